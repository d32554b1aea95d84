"""A form on its way through: read while it arrives, kept in memory up to a limit, beyond it in a file.

Memory per upload is bounded whatever its size: at most two pieces that wait for the disk on the way in (reading from
the client pauses meanwhile) and one on the way out (the server's connection asks for the next when it has the last).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from sndr.router.wire.multipart import Form, FormReader
from sndr.router.wire.openai_api import Piece, Refused

if TYPE_CHECKING:
    from sndr.router.net.server import Connection
    from sndr.router.ports import Spool, Thread

__all__ = ["FormRequest", "Upload"]

MEMORY_MAX: Final = 1_048_576
PIECE: Final = 262_144


class Upload:
    """Takes the body of one request from its connection. Implements the server's `Sink` and the pool's `Source`."""

    __slots__ = ("_close", "_connection", "_done", "_failed", "_fault", "_file", "_held", "_in_flight", "_insert",
                 "_parts", "_reader", "_spool", "_spooled", "_thread", "_waiting", "length")  # fmt: skip

    def __init__(self, thread: Thread, connection: Connection, content_type: bytes, spool: Callable[[], Spool]) -> None:
        """Start.

        Args:
            thread: For the disk alone: where it stalls, uploads wait and nothing else does.
            spool: Makes the file, on the thread.

        Raises:
            Refused: The content type is not that of a form.
        """
        self._thread = thread
        self._connection = connection
        self._reader = FormReader(content_type)
        self._spool = spool
        self._parts: list[bytes] = []
        self._held = 0
        self._file: Spool | None = None
        self._spooled = 0
        self._in_flight = False
        self._waiting = False
        self._failed = False
        self._fault: Refused | None = None
        self._close = False
        self._done: Callable[[], None] | None = None
        self._insert: tuple[int, int, bytes] | None = None
        self.length = 0

    # -- from the client -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Take the next bytes. A form that is refused is read to its end and not kept: the answer comes after it."""
        if self._fault is not None or self._failed:
            return
        self.length += len(data)
        try:
            self._reader.feed(data)
        except Refused as refused:
            self._fault = refused
            self._parts.clear()
            return
        self._parts.append(data)
        self._held += len(data)
        if self._held > MEMORY_MAX:
            if self._in_flight:
                self._waiting = True
                self._connection.hold_body()
            else:
                self._write_out()

    def settle(self, done: Callable[[], None]) -> None:
        """Call `done` once nothing is being written any more; at once where nothing is."""
        if self._in_flight:
            self._done = done
        else:
            done()

    def close(self) -> None:
        """Nobody needs the body any more. May be called again."""
        self._close = True
        self._done = None
        self._parts.clear()
        file, self._file = self._file, None
        if file is not None:
            self._thread.start(file.close)

    def form(self) -> Form:
        """What the form says; only after `settle`.

        Raises:
            Refused: The form is not whole or ambiguous, or there was no room for it.
        """
        if self._fault is not None:
            raise self._fault
        if self._failed:
            raise Refused(503, "upload_failed", "the upload cannot be kept", retry_after_s=5)
        return self._reader.finish()

    def _write_out(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        self._held = 0
        self._in_flight = True
        offset = self._spooled
        future = self._thread.start(lambda: self._store(data, offset))
        self._spooled += len(data)
        future.add_done_callback(self._stored)

    def _store(self, data: bytes, offset: int) -> Spool:
        """On a thread."""
        file = self._file or self._spool()
        try:
            file.write(data, offset)
        except BaseException:
            file.close()
            raise
        return file

    def _stored(self, future: asyncio.Future[Spool]) -> None:
        self._in_flight = False
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            self._failed = True
            self._file = None
            self._parts.clear()
        elif self._close:
            self._thread.start(future.result().close)
            return
        else:
            self._file = future.result()
        if self._waiting:
            self._waiting = False
            self._connection.release_body()
        done, self._done = self._done, None
        if done is not None:
            done()

    # -- to the server -------------------------------------------------------------------------------------------

    @property
    def in_memory(self) -> bytes | None:
        """The whole body, where it was small enough."""
        return b"".join(self._parts) if self._file is None else None

    def replace(self, start: int, end: int, value: bytes) -> None:
        """Put other bytes in the place of these."""
        self._insert = (start, end, value)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece, from its start.

        Raises:
            OSError: It cannot be read back.
        """
        if self._insert is None:
            ranges: list[tuple[int, int, bytes]] = [(0, self.length, b"")]
        else:
            start, end, value = self._insert
            ranges = [(0, start, value), (end, self.length, b"")]
        for start, end, value in ranges:
            at = start
            while at < end:
                data = await self._read(at, min(end - at, PIECE))
                at += len(data)
                yield data
            if value:
                yield value

    async def _read(self, at: int, size: int) -> bytes:
        spooled, file = self._spooled, self._file
        if at >= spooled:
            tail = b"".join(self._parts)
            return tail[at - spooled : at - spooled + size]
        if file is None:
            raise OSError("the upload is closed")
        data = await self._thread.start(lambda: file.read(at, min(size, spooled - at)))
        if not data:
            raise OSError("the upload is shorter than it was")
        return data


class FormRequest:
    """A form in the place of a decoded JSON body: the same questions, the same way on.

    Attributes:
        source: The body, where it is in a file; set by `pieces`.
        source_bytes: Its length.
    """

    __slots__ = ("_form", "_upload", "model", "source", "source_bytes", "stream")

    include_usage: Final = None
    max_tokens: Final = None
    has_tools: Final = False
    background: Final = False

    def __init__(self, upload: Upload) -> None:
        """Read what the upload says.

        Raises:
            Refused: As `Upload.form`.
        """
        form = upload.form()
        self._form = form
        self._upload = upload
        self.model = form.model
        self.stream = form.stream
        self.source: Upload | None = None
        self.source_bytes = 0

    def pieces(
        self,
        served_model: bytes | None,
        *,
        force: Mapping[str, bytes] | None = None,  # noqa: ARG002 - JSON members have no place in a form
        default: Mapping[str, bytes] | None = None,  # noqa: ARG002 - the same
        output_limit: int | None = None,  # noqa: ARG002 - a form has no limit on tokens
        ask_usage: bool = False,  # noqa: ARG002 - nor a way to ask for counts
        without_hints: bool = False,  # noqa: ARG002 - nor hints: no alias of a family is looked for
    ) -> Sequence[Piece]:
        """The body for the server; none where `source` has it. Every byte but the model's name is the client's."""
        form, upload = self._form, self._upload
        name = form.model.encode() if served_model is None else msgspec.json.decode(served_model, type=str).encode()
        body = upload.in_memory
        if body is not None:
            return (body[: form.start], name, body[form.end :])
        upload.replace(form.start, form.end, name)
        self.source = upload
        self.source_bytes = form.length - (form.end - form.start) + len(name)
        return ()
