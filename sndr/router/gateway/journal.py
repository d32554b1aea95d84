"""One log line per request, and a few events: lines through a buffer and a thread, never through the loop.

Lines hold names from the configuration, ids, codes and numbers. Nothing that a client or a model server wrote gets in,
except a request id, whose characters are checked where it is read.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

__all__ = ["Form", "Journal", "RequestLine"]

Form = Literal["json", "text"]
FILE_MODE: Final = 0o600

BUFFER_LINES: Final = 256
BACKLOG_BYTES: Final = 16_777_216
"""When nobody takes the log, lines beyond this are dropped and counted: a stuck pipe must not stop the relay."""

_encode: Final = msgspec.json.Encoder().encode
_encode_lines: Final = msgspec.json.Encoder().encode_lines


class RequestLine(msgspec.Struct, omit_defaults=True, gc=False):
    """The line of a request; members in the order in which they are printed.

    Address and scheme are there where proxies are configured.
    """

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
    address: str | None = None
    scheme: str | None = None


def _text_lines(lines: list[object]) -> bytes:
    return b"".join([_text_line(line) for line in lines])


def _text_line(line: object) -> bytes:
    """For people: instant, level, event, then `name=value` of what there is."""
    members: dict[str, Any] = msgspec.to_builtins(line)
    words = [str(members.pop(name)) for name in ("at", "level", "event")]
    words += [f"{name}={_word(value)}" for name, value in members.items() if value is not None]
    return (" ".join(words) + "\n").encode()


def _word(value: object) -> str:
    if isinstance(value, str) and value.isprintable() and value and not set(value) & {" ", '"', "="}:
        return value
    return _encode(value).decode()


class Journal:
    """Collects lines and hands them to a thread that writes them.

    Attributes:
        dropped: Lines that were thrown away because nobody took them.
    """

    def __init__(self, descriptor: int | None, *, form: Form = "json") -> None:
        """Write to a descriptor; None throws everything away."""
        self._descriptor = descriptor
        self._path: str | None = None
        self._encode: Callable[[list[object]], bytes] = _encode_lines if form == "json" else _text_lines
        self._lines: list[object] = []
        self._ms = -1
        self._instant = ""
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

    @classmethod
    def to_file(cls, path: str) -> Journal:
        """Write to the end of a file, made with mode 0600 where it is absent.

        Raises:
            OSError: It cannot be opened.
        """
        journal = cls(_append_to(path))
        journal._path = path
        return journal

    def reopen(self) -> None:
        """Write to whatever has the file's name now: what was renamed away gets no further lines.

        Raises:
            OSError: It cannot be opened; lines go on to the file that they went to.
        """
        if self._path is None or self._descriptor is None:
            return
        self.flush()
        fresh = _append_to(self._path)
        try:
            # One step for the writing thread: it never sees a closed descriptor.
            os.dup2(fresh, self._descriptor, inheritable=False)
        finally:
            os.close(fresh)

    def timestamp(self, wall_ms: int) -> str:
        """RFC 3339 in UTC with milliseconds."""
        if wall_ms != self._ms:
            second, ms = divmod(wall_ms, 1000)
            if second != self._second:
                self._second = second
                self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._ms = wall_ms
            self._instant = f"{self._stamp}.{ms:03d}Z"
        return self._instant

    def request(self, line: RequestLine) -> None:
        """Add the line of a request; `line` must not be changed any more."""
        if self._descriptor is None:
            return
        lines = self._lines
        lines.append(line)
        if len(lines) >= BUFFER_LINES:
            self.flush()

    def event(self, event: str, *, level: str = "info", **members: object) -> None:
        """Add the line of an event, and write it soon."""
        if self._descriptor is None:
            return
        line = {"at": self.timestamp(time.time_ns() // 1_000_000), "level": level, "event": event, **members}
        self._lines.append(line)
        self.flush()

    def line(self, event: str, **members: object) -> None:
        """Add the line of something that happens per request."""
        if self._descriptor is None:
            return
        self._lines.append({"at": self.timestamp(time.time_ns() // 1_000_000), "event": event, **members})
        if len(self._lines) >= BUFFER_LINES:
            self.flush()

    def flush(self) -> None:
        """Hand what was collected to the writing thread."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if self._backlog > BACKLOG_BYTES:
            with self._lock:
                self.dropped += len(lines)
            return
        data = self._encode(lines)  # all at once: that costs a third of one call for each
        with self._lock:
            self._backlog += len(data)
        self._queue.put(data)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is left, for a limited time."""
        self.flush()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)
            if self._path is not None and self._descriptor is not None and not self._thread.is_alive():
                os.close(self._descriptor)
            self._thread = None
            self._descriptor = None

    def _write(self) -> None:
        descriptor = self._descriptor
        assert descriptor is not None
        is_torn = False
        while (data := self._queue.get()) is not None:
            # A disk that became full may have taken part of a line: what comes next must not be glued to it.
            view = memoryview(b"\n" + data if is_torn else data)
            try:
                while view:
                    taken = os.write(descriptor, view)
                    is_torn = view[taken - 1] != 0x0A
                    view = view[taken:]
            except OSError:
                with self._lock:
                    self.dropped += min(bytes(view).count(b"\n"), data.count(b"\n"))
            with self._lock:
                self._backlog -= len(data)


def _append_to(path: str) -> int:
    # A FIFO that nobody reads must be an error at once: without O_NONBLOCK it would stop the loop until somebody does.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    descriptor = os.open(path, flags, FILE_MODE)
    os.set_blocking(descriptor, True)
    return descriptor
