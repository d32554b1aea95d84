"""One log line per request, and a few events: JSON lines through a buffer and a thread, never through the loop.

Lines hold names from the configuration, ids, codes and numbers. Nothing that a client or a model server wrote gets in,
except a request id, whose characters are checked where it is read.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Final

import msgspec

__all__ = ["Journal", "RequestLine"]

BUFFER_BYTES: Final = 65_536
BACKLOG_BYTES: Final = 16_777_216
"""When nobody takes the log, lines beyond this are dropped and counted: a stuck pipe must not stop the relay."""

_encode: Final = msgspec.json.Encoder().encode


class RequestLine(msgspec.Struct):
    """The line of a request; members in the order in which they are printed."""

    at: str
    level: str
    event: str
    id: str
    client: str | None
    endpoint: str | None
    alias: str | None
    tier: str | None
    revision: int | None
    outcome: str
    status: int | None
    error_code: str | None
    first_byte_ms: int | None
    total_ms: int
    prompt_tokens: int | None
    completion_tokens: int | None


class Journal:
    """Collects lines and hands them to a thread that writes them.

    Attributes:
        dropped: Lines that were thrown away because nobody took them.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._bytes = 0
        self._second = -1
        self._stamp = ""
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._backlog = 0
        self._lock = threading.Lock()
        self.dropped = 0
        self._thread: threading.Thread | None = None
        if descriptor is not None:
            self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
            self._thread.start()

    def timestamp(self, wall_ms: int) -> str:
        """RFC 3339 in UTC with milliseconds."""
        second, ms = divmod(wall_ms, 1000)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._stamp}.{ms:03d}Z"

    def request(self, line: RequestLine) -> None:
        """Add the line of a request."""
        if self._descriptor is None:
            return
        data = _encode(line)
        self._lines.append(data)
        self._bytes += len(data)
        if self._bytes > BUFFER_BYTES:
            self.flush()

    def event(self, event: str, *, level: str = "info", **members: object) -> None:
        """Add the line of an event, and write it soon."""
        if self._descriptor is None:
            return
        line = {"at": self.timestamp(time.time_ns() // 1_000_000), "level": level, "event": event, **members}
        self._lines.append(_encode(line))
        self.flush()

    def flush(self) -> None:
        """Hand what was collected to the writing thread."""
        if not self._lines:
            return
        lines, self._lines, self._bytes = self._lines, [], 0
        if self._backlog > BACKLOG_BYTES:
            self.dropped += len(lines)
            return
        lines.append(b"")
        data = b"\n".join(lines)
        with self._lock:
            self._backlog += len(data)
        self._queue.put(data)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is left, for a limited time."""
        self.flush()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)
            self._thread = None

    def _write(self) -> None:
        descriptor = self._descriptor
        assert descriptor is not None
        while (data := self._queue.get()) is not None:
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(descriptor, view) :]
            except OSError:
                self.dropped += 1
            with self._lock:
                self._backlog -= len(data)
