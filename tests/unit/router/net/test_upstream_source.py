"""Request bodies that are not in memory: written as fast as the server takes them, and no faster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sndr.router.net.flow import Ticker
from sndr.router.net.upstream import Failure, Origin, UpstreamPool
from sndr.router.wire.http1 import ResponseHead

PIECE = b"x" * 262_144
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Body:
    """Eight megabytes; counts what was taken, may fail."""

    def __init__(self, pieces: int = 32, fails_at: int | None = None) -> None:
        self.pieces = pieces
        self.fails_at = fails_at
        self.taken = 0
        self.ended = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            for number in range(self.pieces):
                if number == self.fails_at:
                    raise OSError(5, "Input/output error")
                await asyncio.sleep(0)
                self.taken += 1
                yield PIECE
        finally:
            self.ended += 1


class Client:
    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.status: int | None = None
        self.failure: Failure | None = None

    def response_head(self, head: ResponseHead, body: bytes, *, complete: bool) -> None:
        self.status = head.status
        if complete:
            self.over.set()

    def response_data(self, data: bytes, chunk: bytes | None = None) -> None: ...

    def response_end(self) -> None:
        self.over.set()

    def upstream_failed(self, failure: Failure, *, may_retry: bool) -> None:
        assert not may_retry
        self.failure = failure
        self.over.set()


HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


@asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[UpstreamPool]:
    """A server and a pool for it; every connection is over at the end."""
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handler(reader, writer)
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    ticker = Ticker(loop)
    pool = UpstreamPool(loop, Origin("127.0.0.1", server.sockets[0].getsockname()[1]), ticker)
    yield pool
    pool.close()
    ticker.close()
    server.close()
    async with asyncio.timeout(20):
        await asyncio.gather(*running)


async def until(fact: Any) -> None:
    async with asyncio.timeout(20):
        while not fact():
            await asyncio.sleep(0.001)


def test_a_server_that_reads_slowly_slows_the_source() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await go.wait()
            await reader.readexactly(32 * len(PIECE))
            writer.write(OK)

        async with serving(handler) as pool:
            body, client = Body(), Client()
            pool.request(client, HEAD % (32 * len(PIECE)), source=body)
            before = -1
            while body.taken != before:  # until the source rests
                before = body.taken
                await asyncio.sleep(0.05)
            assert 0 < body.taken < 32
            go.set()
            async with asyncio.timeout(20):
                await client.over.wait()
            assert (client.status, body.taken, pool.idle) == (200, 32, 1)

    asyncio.run(main())


def test_an_early_answer_stops_the_source_and_ends_the_connection() -> None:
    async def main() -> None:
        go, read_on = asyncio.Event(), asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await go.wait()
            writer.write(OK)
            await read_on.wait()

        async with serving(handler) as pool:
            body, client = Body(), Client()
            call = pool.request(client, HEAD % (32 * len(PIECE)), source=body)
            await until(lambda: call.connection is not None)
            connection = call.connection
            assert connection is not None
            go.set()
            async with asyncio.timeout(20):
                await client.over.wait()
            await until(lambda: connection.closing)  # although the server reads nothing of what is on its way
            await until(lambda: connection._transport is None)
            read_on.set()
            await until(lambda: body.ended == 1)
            assert (client.status, pool.idle, len(pool.active)) == (200, 0, 0)
            assert body.taken < 32

    asyncio.run(main())


@pytest.mark.parametrize("how", ["fails", "cancelled", "closed"])
def test_the_source_ends_with_its_exchange(how: str) -> None:
    async def main() -> None:
        seen = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            seen.set()
            if how == "closed":
                writer.transport.abort()
            else:
                await reader.read()

        async with serving(handler) as pool:
            body, client = Body(fails_at=3 if how == "fails" else None, pieces=10_000), Client()
            call = pool.request(client, HEAD % (10_000 * len(PIECE)), source=body)
            async with asyncio.timeout(20):
                await seen.wait()
            if how == "cancelled":
                call.cancel()
            else:
                async with asyncio.timeout(20):
                    await client.over.wait()
                assert client.failure is (Failure.SOURCE if how == "fails" else Failure.RESET)
            await until(lambda: body.ended == 1)
            assert (pool.idle, len(pool.active)) == (0, 0)

    asyncio.run(main())
