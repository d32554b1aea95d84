"""TLS: listeners, their certificate, which can be exchanged while they listen, and the context for model servers."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from typing import TYPE_CHECKING, Final

from sndr.errors import InputError

if TYPE_CHECKING:
    from sndr.router.net.server import Connection, Server

__all__ = ["SHUTDOWN_S", "Certificate", "TlsListener", "client_context"]

ACCEPTS_AT_ONCE: Final = 16
PAUSE_S: Final = 1.0
"""Until the next look at the accept queue when there is no descriptor to take a connection with."""
SHUTDOWN_S: Final = 2.0
"""How long the other side may take to agree that a connection is closed."""
_PROTOCOLS: Final = ["http/1.1"]


def client_context() -> ssl.SSLContext:
    """Certificate and name of a model server are verified, against the system's authorities or `SSL_CERT_FILE`."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(_PROTOCOLS)
    return context


class Certificate:
    """A certificate chain and its key, read from two files.

    Attributes:
        context: For the next handshake.
    """

    def __init__(self, cert_path: str, key_path: str) -> None:
        """Read both files.

        Raises:
            InputError: `tls_unusable`; says which file cannot be read, or that the two do not fit.
        """
        self._cert_path = cert_path
        self._key_path = key_path
        self.context = self._read()

    def reload(self) -> None:
        """Read both files again; connections that exist go on with what they have.

        Raises:
            InputError: `tls_unusable`; the certificate in use stays in use.
        """
        # Both files are judged in a context of their own, so that a bad pair cannot leave half of itself behind.
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_alpn_protocols(_PROTOCOLS)
        for key, path in (("tls_cert", self._cert_path), ("tls_key", self._key_path)):
            try:
                # Without O_NONBLOCK a FIFO in the file's place would stop the loop until somebody wrote into it.
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
                try:
                    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                        raise InputError("tls_unusable", f"server.{key}: {path}: not a regular file")
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise InputError("tls_unusable", f"server.{key}: {path}: {error.strerror}") from error
        try:
            # A key that asks for a passphrase must fail, not wait for somebody at a terminal.
            context.load_cert_chain(self._cert_path, self._key_path, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None)
            said = {
                "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
                "NO_START_LINE": "one of the files holds no PEM of its kind",
            }.get(str(reason), "not a PEM certificate chain and its key without a passphrase")
            raise InputError(
                "tls_unusable", f"server.tls_cert and server.tls_key: {self._cert_path}, {self._key_path}: {said}"
            ) from error
        return context


class TlsListener:
    """Accepts connections, and hands those whose handshake is over to the server.

    Handshakes are bounded in time, and in number by what the server has room for: one more connection is closed at
    once, before it costs a handshake.

    Attributes:
        sockets: What is listened on.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: Server,
        certificate: Certificate,
        sockets: list[socket.socket],
        *,
        timeout_s: float,
    ) -> None:
        """Start to accept on listening sockets, which then belong to the listener.

        Args:
            timeout_s: How long a handshake may take.
        """
        self._loop = loop
        self._server = server
        self._certificate = certificate
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self.sockets = sockets
        for one in sockets:
            one.setblocking(False)
            loop.add_reader(one.fileno(), self._accept, one)

    @classmethod
    async def bind(
        cls,
        loop: asyncio.AbstractEventLoop,
        server: Server,
        certificate: Certificate,
        host: str,
        port: int,
        *,
        backlog: int,
        timeout_s: float,
    ) -> TlsListener:
        """Listen on every address that the host has; port 0 takes a free one.

        Raises:
            OSError: One of them cannot be had; nothing is listened on.
        """
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                try:
                    sockets.append(socket.create_server(address, family=family, backlog=backlog))
                except OSError as error:
                    if error.errno != errno.EAFNOSUPPORT:
                        raise
                    missing = error  # a name may have an IPv6 address where there is no IPv6
            if missing is not None and not sockets:
                raise missing
        except OSError:
            for one in sockets:
                one.close()
            raise
        return cls(loop, server, certificate, sockets, timeout_s=timeout_s)

    def close(self) -> None:
        """Accept nothing more; handshakes that are not over end."""
        for one in self.sockets:
            pause = self._pauses.pop(one, None)
            if pause is None:
                self._loop.remove_reader(one.fileno())
            else:
                pause.cancel()
            one.close()
        self.sockets = []
        for task in tuple(self._tasks):
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._loop.remove_reader(listening.fileno())
                    self._pauses[listening] = self._loop.call_later(PAUSE_S, self._resume, listening)
                self._loop.call_exception_handler({"message": "a connection cannot be accepted", "exception": error})
                return
            connection = self._server.begin_handshake()
            if connection is None:
                accepted.close()
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._handshake(accepted, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _resume(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    async def _handshake(self, accepted: socket.socket, connection: Connection) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._certificate.context,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError:
            pass  # not TLS, too slow, or gone: the transport has closed the socket
        finally:
            self._server.end_handshake(connection)
