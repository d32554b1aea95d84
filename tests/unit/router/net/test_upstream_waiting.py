"""Requests that wait for a connection: who gets which, and what a failed connect means. No socket."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sndr.router.net.upstream import (
    CONNECT_S,
    DIALS_PER_ROUND,
    PATIENCE_S,
    Call,
    Failure,
    Origin,
    UpstreamConnection,
    UpstreamPool,
)
from sndr.router.wire.http1 import ResponseHead

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Transport:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class Clock:
    now = 0.0

    def __init__(self) -> None:
        self.watched: set[object] = set()

    def watch(self, watched: object) -> None:
        self.watched.add(watched)

    def unwatch(self, watched: object) -> None:
        self.watched.discard(watched)


class Pool(UpstreamPool):
    """Connects that end when the test says so, in the order in which they began."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.clock = Clock()
        super().__init__(asyncio.get_running_loop(), Origin(host, 1), self.clock)  # type: ignore[arg-type]
        self.begun: list[tuple[str, asyncio.Future[None]]] = []
        self.made: list[tuple[UpstreamConnection, Transport]] = []

    async def _open(self, family: int, address: str) -> UpstreamConnection:
        begun: asyncio.Future[None] = self.loop.create_future()
        self.begun.append((address, begun))
        await begun
        connection, transport = UpstreamConnection(self, address), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        self.made.append((connection, transport))
        return connection

    async def let(self, number: int, failure: BaseException | None = None) -> None:
        """End a connect, well or badly."""
        _, begun = self.begun[number]
        if failure is None:
            begun.set_result(None)
        else:
            begun.set_exception(failure)
        await rounds()

    def answer(self, number: int) -> None:
        """The server's answer on a connection."""
        self.made[number][0].data_received(OK)

    def at_rest(self) -> bool:
        """Whether nothing waits, connects or runs."""
        return not (self._waiting or self._dials or self._dialing or self.active)


class Client:
    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        self.status: int | None = None
        self.failures: list[Failure] = []
        self.on_end = on_end

    def response_head(self, head: ResponseHead, body: bytes, *, complete: bool) -> None:
        assert complete
        self.status = head.status
        self.on_end()

    def response_data(self, data: bytes) -> None: ...

    def response_end(self) -> None: ...

    def upstream_failed(self, failure: Failure, *, may_retry: bool) -> None:
        assert not may_retry
        self.failures.append(failure)


async def rounds(count: int = 40) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def ask(pool: Pool, count: int, *, fresh: bool = False) -> tuple[list[Client], list[Call]]:
    clients = [Client() for _ in range(count)]
    calls = [pool.request(client, b"%d" % number, fresh=fresh) for number, client in enumerate(clients)]
    await rounds()
    return clients, calls


def run(main: Callable[[], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    asyncio.run(bounded())


def test_a_waiting_call_takes_a_connection_that_becomes_free_first() -> None:
    async def main() -> None:
        pool = Pool()
        clients, _ = await ask(pool, 3)
        assert len(pool.begun) == 3
        await pool.let(0)
        for _ in range(3):
            pool.answer(0)
        assert pool.made[0][1].sent == [b"0", b"1", b"2"]  # who came first, first
        assert [client.status for client in clients] == [200] * 3
        await pool.let(1)
        await pool.let(2)
        assert (pool.idle, pool.opened, pool.at_rest()) == (3, 3, True)  # the others are there for later
        assert not pool.made[1][1].sent

    run(main)


def test_the_next_call_has_the_connection_before_the_answer_is_told() -> None:
    async def main() -> None:
        pool = Pool()
        seen: list[list[bytes]] = []
        pool.request(Client(lambda: seen.append([*pool.made[0][1].sent])), b"first")
        pool.request(Client(), b"second")
        await rounds()
        await pool.let(0)
        pool.answer(0)
        assert seen == [[b"first", b"second"]]

    run(main)


def test_a_connect_that_nobody_needs_any_more_fails_nobody() -> None:
    async def main() -> None:
        pool = Pool()
        clients, _ = await ask(pool, 2)
        await pool.let(0)
        pool.answer(0)
        await pool.let(1, ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
        pool.answer(0)
        assert [(client.status, client.failures) for client in clients] == [(200, []), (200, [])]
        assert (pool.idle, pool.at_rest()) == (1, True)

    run(main)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Failure.UNREACHABLE),
        (OSError(errno.EMFILE, "too many open files"), Failure.EXHAUSTED),
    ],
)
def test_every_failed_connect_fails_one_call(error: OSError, failure: Failure) -> None:
    async def main() -> None:
        pool = Pool()
        clients, _ = await ask(pool, 3)
        for number in range(3):
            await pool.let(number, error)
            assert [client.failures for client in clients] == [[failure]] * (number + 1) + [[]] * (2 - number)
        assert (pool.idle, pool.at_rest()) == (0, True)
        assert len(pool.begun) == 3

    run(main)


def test_connects_of_a_burst_begin_in_several_rounds_and_each_call_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("sndr.router.net.upstream.time", SimpleNamespace(monotonic=lambda: 0.0))
        pool = Pool()
        count = 3 * DIALS_PER_ROUND + 1
        for number in range(count):
            pool.request(Client(), b"%d" % number)
        begun = []
        while not begun or len(pool.begun) < count:
            await asyncio.sleep(0)
            begun.append(len(pool.begun))
            assert len(begun) < 20
        assert max(after - before for before, after in zip([0, *begun], begun, strict=False)) == DIALS_PER_ROUND
        for number in range(count):
            await pool.let(number)
        assert [transport.sent for _, transport in pool.made] == [[b"%d" % number] for number in range(count)]

    run(main)


def test_who_waits_for_long_no_longer_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        now = 0.0
        monkeypatch.setattr("sndr.router.net.upstream.time", SimpleNamespace(monotonic=lambda: now))
        pool = Pool()
        calls = [pool.request(Client(), b"") for _ in range(20 * DIALS_PER_ROUND)]
        assert len(pool._dials) == DIALS_PER_ROUND
        now = PATIENCE_S
        await asyncio.sleep(0)
        assert len(pool._dials) == 2 * DIALS_PER_ROUND
        now = 1.1 * PATIENCE_S
        await asyncio.sleep(0)
        assert len(pool._dials) == len(calls)
        for call in calls:
            call.cancel()

    run(main)


def test_a_fresh_connection_is_one_that_was_never_used() -> None:
    async def main() -> None:
        pool = Pool()
        await ask(pool, 1)
        (again,), _ = await ask(pool, 1, fresh=True)
        await pool.let(0)
        pool.answer(0)  # free, but used
        assert pool.idle == 1
        await pool.let(1)
        assert pool.made[1][1].sent == [b"0"]
        pool.answer(1)
        assert (again.status, pool.idle, pool.at_rest()) == (200, 2, True)

    run(main)


def test_a_fresh_connection_that_fails_fails_its_own_call() -> None:
    async def main() -> None:
        pool = Pool()
        (waiting,), _ = await ask(pool, 1)
        (again,), _ = await ask(pool, 1, fresh=True)
        await pool.let(1, ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
        assert (waiting.failures, again.failures) == ([], [Failure.UNREACHABLE])

    run(main)


def test_a_call_that_is_given_up_while_it_waits_is_never_sent() -> None:
    async def main() -> None:
        pool = Pool()
        clients, calls = await ask(pool, 2)
        calls[0].cancel()
        await pool.let(0)
        assert pool.made[0][1].sent == [b"1"]
        calls[1].cancel()
        await pool.let(1)
        assert (pool.idle, pool.at_rest()) == (1, True)
        assert all(client.status is None and not client.failures for client in clients)

    run(main)


def test_calls_that_are_given_up_before_their_connect_began_need_none() -> None:
    async def main() -> None:
        pool = Pool()
        calls = [pool.request(Client(), b"") for _ in range(10 * DIALS_PER_ROUND)]
        for call in calls:
            call.cancel()
        await rounds()
        assert (pool.begun, pool.at_rest()) == ([], True)
        pool.tick(1.0)
        assert not pool.clock.watched

    run(main)


def test_an_address_that_does_not_answer_in_time_is_followed_by_the_next() -> None:
    async def main() -> None:
        pool = Pool("name")

        async def found(*_: object, **__: object) -> list[tuple[int, str]]:
            return [(2, "192.0.2.1"), (2, "192.0.2.2")]

        pool._resolve = found  # type: ignore[method-assign]
        (client,), _ = await ask(pool, 1)
        assert pool in pool.clock.watched
        pool.tick(CONNECT_S - 0.1)
        await rounds()
        assert [address for address, _ in pool.begun] == ["192.0.2.1"]
        pool.clock.now = CONNECT_S
        pool.tick(CONNECT_S)
        pool.tick(CONNECT_S)
        await rounds()
        assert [address for address, _ in pool.begun] == ["192.0.2.1", "192.0.2.2"]
        assert not client.failures
        pool.tick(2 * CONNECT_S)
        await rounds()
        assert client.failures == [Failure.UNREACHABLE]
        assert pool.at_rest()

    run(main)


def test_a_closed_pool_keeps_nothing_and_leaves_nobody_waiting() -> None:
    async def main() -> None:
        pool = Pool()
        (client,), (call,) = await ask(pool, 1)
        pool.close()
        await pool.let(0)
        pool.answer(0)
        assert (client.status, pool.idle, pool.made[0][1].closed) == (200, 0, True)
        _, (call,) = await ask(pool, 1)
        call.cancel()
        pool.close()
        await rounds()
        assert pool.begun[1][1].cancelled()
        assert pool.at_rest()

    run(main)


def test_an_idle_connection_is_used_or_closed_within_four_seconds() -> None:
    async def main() -> None:
        pool = Pool()
        await ask(pool, 1)
        await pool.let(0)
        pool.answer(0)
        pool.tick(3.9)
        assert (pool.idle, pool.made[0][1].closed) == (1, False)
        pool.tick(4.0)
        assert (pool.idle, pool.made[0][1].closed) == (0, True)
        assert not pool.clock.watched
        await ask(pool, 1)
        await pool.let(1)
        pool.answer(1)
        pool.clock.now = 4.0  # nobody looked in time: it is not used all the same
        await ask(pool, 1)
        assert (len(pool.begun), pool.made[1][1].closed, pool.made[1][1].sent) == (3, True, [b"0"])

    run(main)


def test_idle_connections_to_addresses_that_the_name_has_no_more_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pool = Pool("name")
        known = ["192.0.2.1"]

        async def found(*_: object, **__: object) -> list[Any]:
            return [(2, address) for address in known]

        monkeypatch.setattr(pool._resolver, "resolve", found)
        await ask(pool, 1)
        await pool.let(0)
        pool.answer(0)
        known[:] = ["192.0.2.2", "192.0.2.1"]
        await ask(pool, 1, fresh=True)
        assert (pool.idle, [address for address, _ in pool.begun]) == (1, ["192.0.2.1", "192.0.2.2"])
        await pool.let(1)
        pool.answer(1)
        known[:] = ["192.0.2.2"]
        await ask(pool, 1, fresh=True)
        assert [transport.closed for _, transport in pool.made] == [True, False]

    run(main)


def test_a_connection_whose_address_vanished_while_it_was_busy_is_given_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        pool = Pool("name")
        known = ["192.0.2.1"]

        async def found(*_: object, **__: object) -> list[Any]:
            return [(2, address) for address in known]

        monkeypatch.setattr(pool._resolver, "resolve", found)
        (busy,), _ = await ask(pool, 1)
        await pool.let(0)
        known[:] = ["192.0.2.2"]
        (waiting,), _ = await ask(pool, 1)
        pool.answer(0)
        assert (busy.status, waiting.status, pool.idle) == (200, None, 0)
        assert pool.made[0][1].closed
        await pool.let(1)
        pool.answer(1)
        assert (waiting.status, pool.idle, pool.at_rest()) == (200, 1, True)
        assert [address for address, _ in pool.begun] == ["192.0.2.1", "192.0.2.2"]

    run(main)
