"""A model server that writes whatever bytes a test wants, and keeps what it was sent, byte for byte."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

__all__ = ["CLOSE", "DEFAULT", "DEFAULT_BODY", "HOLD", "RESET", "Exchange", "RawUpstream", "Step", "raw_upstream"]

CLOSE: Final = "close"
"""Close in an orderly way."""
RESET: Final = "reset"
"""Close with a TCP reset."""
HOLD: Final = "hold"
"""Write nothing more; the connection stays until the other side closes it."""

Step = bytes | str | float
"""Bytes to write, seconds to wait, or one of `CLOSE`, `RESET`, `HOLD`."""

DEFAULT_BODY: Final = (
    b'{"id":"c-1","object":"chat.completion","created":1,"model":"m1","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":"good"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,'
    b'"total_tokens":4}}'
)
DEFAULT: Final[tuple[Step, ...]] = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(DEFAULT_BODY)
    + DEFAULT_BODY,
)
_WAIT_S: Final = 20.0


@dataclass
class Exchange:
    """One request as it arrived.

    Attributes:
        closed: Set once the gateway's side of the connection is closed.
        closed_at: Monotonic time of that.
    """

    head: bytes
    body: bytes
    connection: int
    closed: threading.Event = field(default_factory=threading.Event)
    closed_at: float | None = None

    @property
    def fields(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}

    @property
    def id(self) -> str:
        return self.fields.get("x-request-id", "")


class RawUpstream:
    """Answers the request with id X by the script given for X, every other one by `DEFAULT`."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.accepted = 0
        self._scripts: dict[str, Sequence[Step]] = {}
        self._early: dict[str, bytes] = {}
        self._more = threading.Condition()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._open: set[socket.socket] = set()
        self._stopping = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    def script(self, request_id: str, steps: Sequence[Step]) -> None:
        """Answer this request so."""
        self._scripts[request_id] = steps

    def answer_early(self, request_id: str, data: bytes) -> None:
        """Answer this request as soon as its head is there; what is left of it is thrown away."""
        self._early[request_id] = data

    def seen(self, request_id: str) -> list[Exchange]:
        """The requests with this id."""
        with self._more:
            return [exchange for exchange in self.exchanges if exchange.id == request_id]

    def wait(self, request_id: str, timeout_s: float = _WAIT_S) -> Exchange:
        """The request with this id, once it is here."""
        with self._more:
            assert self._more.wait_for(lambda: any(e.id == request_id for e in self.exchanges), timeout_s), request_id
            return next(e for e in self.exchanges if e.id == request_id)

    def stop(self) -> None:
        self._stopping = True
        self._socket.close()
        with self._more:
            for sock in tuple(self._open):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopping:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            with self._more:
                self.accepted += 1
                self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock, self.accepted), daemon=True).start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        mine: list[Exchange] = []
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._converse(sock, number, mine)
        except OSError:
            pass
        finally:
            now = time.monotonic()
            for exchange in mine:
                exchange.closed_at = exchange.closed_at or now
                exchange.closed.set()
            with self._more:
                self._open.discard(sock)
            sock.close()

    def _converse(self, sock: socket.socket, number: int, mine: list[Exchange]) -> None:
        buffer = b""
        while True:
            while b"\r\n\r\n" not in buffer:
                data = sock.recv(65536)
                if not data:
                    return
                buffer += data
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            exchange = Exchange(head + b"\r\n\r\n", b"", number)
            length = int(exchange.fields.get("content-length", "0"))
            if exchange.id in self._early:
                sock.sendall(self._early[exchange.id])
                while sock.recv(65536):
                    pass
                return
            parts, have = [buffer], len(buffer)
            while have < length:
                data = sock.recv(1 << 20)
                if not data:
                    return
                parts.append(data)
                have += len(data)
            buffer = b"".join(parts)
            exchange.body, buffer = buffer[:length], buffer[length:]
            mine.append(exchange)
            with self._more:
                self.exchanges.append(exchange)
                self._more.notify_all()
            if not self._play(sock, self._scripts.get(exchange.id, DEFAULT)):
                return

    def _play(self, sock: socket.socket, steps: Sequence[Step]) -> bool:
        for step in steps:
            if isinstance(step, bytes):
                sock.sendall(step)
            elif isinstance(step, float):
                time.sleep(step)
            elif step == HOLD:
                while sock.recv(65536):
                    pass
                return False
            else:
                if step == RESET:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
        return True


@contextmanager
def raw_upstream() -> Iterator[RawUpstream]:
    server = RawUpstream()
    try:
        yield server
    finally:
        server.stop()
