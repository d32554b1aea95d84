"""Forms that do not fit into memory: the disk sets the pace, a full or stuck one is an answer, nothing is kept."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sndr.router.gateway.upload import FormRequest, Upload
from sndr.router.store.spool import TemporarySpool
from sndr.router.store.writer import Worker
from sndr.router.wire.openai_api import Refused
from tests.support.forms import FORM, form


class Connection:
    """Counts who was told to wait."""

    def __init__(self) -> None:
        self.held = False
        self.calls: list[str] = []

    def hold_body(self) -> None:
        self.held = True
        self.calls.append("hold")

    def release_body(self) -> None:
        self.held = False
        self.calls.append("release")


class Disk:
    """A file in memory that may be slow or full."""

    def __init__(self, *, slow: bool = False, full: bool = False) -> None:
        self.data = bytearray()
        self.go = threading.Event()
        self.full = full
        self.closed = 0
        self.largest = 0
        if not slow:
            self.go.set()

    def write(self, data: bytes, offset: int) -> None:
        assert self.go.wait(20)
        if self.full:
            raise OSError(28, "No space left on device")
        assert offset == len(self.data)
        self.largest = max(self.largest, len(data))
        self.data += data

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def close(self) -> None:
        self.closed += 1


def run(script: Callable[[Upload, Connection], Awaitable[None]], disk: Any) -> None:
    async def main() -> None:
        connection: Any = Connection()
        thread = Worker("disk")
        await script(Upload(thread, connection, FORM.encode(), lambda: disk), connection)
        await thread.close()

    asyncio.run(main())


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not fact():
            await asyncio.sleep(0.001)


async def settled(upload: Upload) -> None:
    done = asyncio.Event()
    upload.settle(done.set)
    async with asyncio.timeout(20):
        await done.wait()


SOUND = hashlib.shake_128(b"x").digest(5_000_000)
BODY = form("whisper", sound=SOUND)
PIECES = [BODY[at : at + 65_536] for at in range(0, len(BODY), 65_536)]


@pytest.mark.parametrize("spool", [Disk, TemporarySpool])
def test_a_large_form_goes_through_the_disk(spool: Callable[[], Any]) -> None:
    async def script(upload: Upload, connection: Connection) -> None:
        for piece in PIECES:
            upload.write(piece)
            await until(lambda: not connection.held)
        await settled(upload)
        asked = FormRequest(upload)
        assert asked.model == "whisper"
        assert asked.pieces(b'"openai/whisper"') == ()
        assert asked.source is upload
        for _ in range(2):  # a second attempt reads it again
            assert b"".join([piece async for piece in upload.chunks()]) == form("openai/whisper", sound=SOUND)
        assert asked.source_bytes == len(form("openai/whisper", sound=SOUND))
        upload.close()

    run(script, spool())


def test_the_client_waits_for_a_slow_disk() -> None:
    disk = Disk(slow=True)

    async def script(upload: Upload, connection: Connection) -> None:
        sent = 0
        for piece in PIECES:
            if connection.held:
                break
            upload.write(piece)
            sent += len(piece)
        assert connection.calls == ["hold"]
        assert sent <= 2 * 1_048_576 + 2 * 65_536
        disk.go.set()
        await until(lambda: not connection.held)
        for piece in PIECES[sent // 65_536 :]:
            upload.write(piece)
            await until(lambda: not connection.held)
        await settled(upload)
        assert FormRequest(upload).model == "whisper"
        upload.close()
        await until(lambda: disk.closed == 1)
        assert disk.largest <= 2 * 1_048_576

    run(script, disk)


def test_a_stalled_disk_is_no_matter_of_others() -> None:
    """However many uploads wait for it: names are still looked up, and every thread of the loop's own is free."""
    disk = Disk(slow=True)

    async def main() -> None:
        connection: Any = Connection()
        thread = Worker("disk")
        uploads = [Upload(thread, connection, FORM.encode(), lambda: disk) for _ in range(40)]
        for upload in uploads:
            for piece in PIECES[:20]:
                upload.write(piece)
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        for upload in uploads:
            upload.close()
        disk.go.set()
        await thread.close()

    asyncio.run(main())


def test_a_full_disk_is_an_answer() -> None:
    disk = Disk(full=True)

    async def script(upload: Upload, connection: Connection) -> None:
        for piece in PIECES:
            upload.write(piece)
            await until(lambda: not connection.held)
        await settled(upload)
        with pytest.raises(Refused) as caught:
            FormRequest(upload)
        assert (caught.value.status, caught.value.code) == (503, "upload_failed")
        await until(lambda: disk.closed == 1)

    run(script, disk)


def test_a_form_that_is_given_up_leaves_nothing() -> None:
    disk = Disk(slow=True)

    async def script(upload: Upload, connection: Connection) -> None:
        for piece in PIECES[:20]:
            upload.write(piece)
        upload.close()
        assert disk.closed == 0  # still being written to
        disk.go.set()
        await until(lambda: disk.closed == 1)
        upload.close()

    run(script, disk)


def test_a_file_that_is_closed_while_it_is_read() -> None:
    spool = TemporarySpool()
    spool.write(b"abc", 0)
    descriptor = spool._enter()
    spool.close()
    with pytest.raises(OSError, match="closed"):
        spool.read(0, 3)
    assert os.pread(descriptor, 3, 0) == b"abc"
    spool._leave()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pread(descriptor, 3, 0)
    spool.close()


def test_a_refused_form_is_read_to_its_end_and_not_kept() -> None:
    disk = Disk()

    async def script(upload: Upload, connection: Connection) -> None:
        upload.write(b"not a form\r\n" + BODY)
        for piece in PIECES:
            upload.write(piece)
        await settled(upload)
        with pytest.raises(Refused):
            FormRequest(upload)
        assert not disk.data

    run(script, disk)
