"""Certificates made on the spot by `openssl`, raw connections over TLS, and a TLS front for a plain server."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.raw import DEADLINE_S, Raw

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@dataclass(frozen=True)
class Pair:
    """A self-signed certificate and its key."""

    cert: Path
    key: Path

    @property
    def toml(self) -> str:
        """Lines for `[server]`."""
        return f'tls_cert = "{self.cert}"\ntls_key = "{self.key}"\n'

    @property
    def der(self) -> bytes:
        """The certificate as a peer sends it."""
        return ssl.PEM_cert_to_DER_cert(self.cert.read_text())


def make_pair(directory: Path, name: str = "server", names: str = "DNS:localhost,IP:127.0.0.1,IP:::1") -> Pair:
    """A new pair for these names."""
    pair = Pair(directory / f"{name}.crt", directory / f"{name}.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", pair.key, "-out", pair.cert, "-days", "2", "-subj", f"/CN={name}",
         "-addext", f"subjectAltName={names}"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return pair


def client_context(pair: Pair | None = None) -> ssl.SSLContext:
    """Trusts exactly one pair; none: trusts anything."""
    context = ssl.create_default_context(cafile=None if pair is None else str(pair.cert))
    if pair is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class TlsRaw(Raw):
    """A raw connection within TLS."""

    def __init__(self, url: str, context: ssl.SSLContext, name: str = "localhost") -> None:
        parts = urlsplit(url)
        plain = socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S)
        self.tls = self.sock = context.wrap_socket(plain, server_hostname=name)
        self.buffer = b""
        self.ended = False


@dataclass
class Front:
    """A running TLS front.

    Attributes:
        port: On 127.0.0.1.
        names: Server names that clients asked for.
        protocols: What ALPN agreed on.
        handshakes: Completed ones.
    """

    port: int = 0
    names: list[str | None] = field(default_factory=list)
    protocols: list[str | None] = field(default_factory=list)
    handshakes: int = 0


@contextmanager
def tls_front(pair: Pair, address: str) -> Iterator[Front]:
    """Take the TLS off and pass bytes on to `address`."""
    front = Front()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.sni_callback = lambda _socket, name, _context: front.names.append(name)
    host, _, port = address.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        front.handshakes += 1
        front.protocols.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        writers = [writer]
        try:
            back_reader, back_writer = await asyncio.open_connection(host, int(port))
            writers.append(back_writer)
            await asyncio.gather(pump(reader, back_writer), pump(back_reader, writer))
        except asyncio.CancelledError:
            for one in writers:
                one.transport.abort()
            raise

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0, ssl=context))
    front.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def end() -> None:
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield front
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
