"""A server's connection over a transport and a loop that the test controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sndr.router.net.upstream import LARGE_READ, Call, Origin, UpstreamConnection, UpstreamPool


class Transport:
    """Whether it is read, and what was done to it."""

    def __init__(self) -> None:
        self.reading = True
        self.unsent = 0
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return bool({"abort", "close"} & set(self.calls))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


class Loop:
    """Runs what is to be called soon when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        assert delay_s > 0  # between two turns there are rounds for everybody else
        self.soon.append(call)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()


class Clock:
    now = 0.0

    def watch(self, watched: object) -> None: ...

    def unwatch(self, watched: object) -> None: ...


class Client:
    """Counts what arrives."""

    def __init__(self) -> None:
        self.bytes = 0
        self.ended = False

    def response_head(self, head: object, body: bytes, *, complete: bool) -> None:
        self.bytes += len(body)

    def response_data(self, data: bytes, chunk: bytes | None = None) -> None:
        assert chunk is None or data in chunk
        self.bytes += len(data)

    def response_end(self) -> None:
        self.ended = True


def started(shared: UpstreamPool | None = None) -> tuple[UpstreamConnection, Transport, Loop, Call, Client]:
    loop, transport, client = Loop(), Transport(), Client()
    pool = shared or UpstreamPool(loop, Origin("127.0.0.1", 1), Clock())  # type: ignore[arg-type]
    connection = UpstreamConnection(pool, "127.0.0.1")
    connection.connection_made(transport)  # type: ignore[arg-type]
    call = Call(client, b"GET", None)  # type: ignore[arg-type]
    connection.send(call)
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    return connection, transport, loop, call, client


def test_a_flood_lets_others_have_their_turn() -> None:
    connection, transport, loop, _, client = started()
    for count in range(1, 4):
        connection.data_received(b"x" * LARGE_READ)
        assert client.bytes == count * LARGE_READ
        assert not transport.reading
        loop.turn()
        assert transport.reading
    connection.data_received(b"x" * (LARGE_READ - 1))
    assert transport.reading
    assert not loop.soon


def test_floods_go_on_one_after_the_other() -> None:
    loop = Loop()
    pool = UpstreamPool(loop, Origin("127.0.0.1", 1), Clock())  # type: ignore[arg-type]
    transports = []
    for _ in range(3):
        connection, transport, *_ = started(pool)
        connection.data_received(b"x" * LARGE_READ)
        transports.append(transport)
    for going_on in range(1, 4):
        loop.turn()
        assert [transport.reading for transport in transports] == [True] * going_on + [False] * (3 - going_on)
    assert not loop.soon


def test_a_flood_whose_client_is_full_stays_paused() -> None:
    connection, transport, loop, call, _ = started()
    connection.data_received(b"x" * LARGE_READ)
    call.pause()
    loop.turn()
    assert not transport.reading
    connection.data_received(b"x" * LARGE_READ)  # was on its way
    loop.turn()
    assert not transport.reading
    call.resume()
    assert transport.reading


def test_a_client_that_takes_bytes_again_does_not_shorten_the_wait() -> None:
    connection, transport, loop, call, _ = started()
    connection.data_received(b"x" * LARGE_READ)
    call.pause()
    call.resume()
    assert not transport.reading
    loop.turn()
    assert transport.reading
    assert not loop.soon


def test_a_large_answer_that_ends_leaves_a_connection_that_is_read() -> None:
    pool = UpstreamPool(Loop(), Origin("127.0.0.1", 1), Clock())  # type: ignore[arg-type]
    connection, transport, client = UpstreamConnection(pool, "127.0.0.1"), Transport(), Client()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.send(Call(client, b"GET", None))  # type: ignore[arg-type]
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX: y\r\n\r\n" % (2 * LARGE_READ))
    connection.data_received(b"x" * LARGE_READ)
    assert not transport.reading
    pool.loop.turn()  # type: ignore[attr-defined]
    connection.data_received(b"x" * LARGE_READ)
    assert client.ended
    assert transport.reading
    assert pool.idle == 1


def test_a_flood_that_is_given_up_is_not_read_on() -> None:
    connection, transport, loop, call, _ = started()
    connection.data_received(b"x" * LARGE_READ)
    call.cancel()
    loop.turn()
    assert not transport.reading
    assert transport.calls == ["abort"]


def test_an_event_that_comes_as_one_chunk_is_handed_over_with_its_framing() -> None:
    pool = UpstreamPool(Loop(), Origin("127.0.0.1", 1), Clock())  # type: ignore[arg-type]
    connection, client, seen = UpstreamConnection(pool, "127.0.0.1"), Client(), []
    connection.connection_made(Transport())  # type: ignore[arg-type]
    client.response_data = lambda data, chunk=None: seen.append((data, chunk))  # type: ignore[method-assign]
    connection.send(Call(client, b"GET", None))  # type: ignore[arg-type]
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in (
        b"3\r\nabc\r\n",
        b"3\r\nab",
        b"c\r\n",
        b"03\r\nabc\r\n",
        b"3\r\nabc\r\n3\r\nabc\r\n",
        b"3\r\nabc\r\n",
    ):
        connection.data_received(piece)
    whole = (b"abc", b"3\r\nabc\r\n")
    assert seen == [whole, (b"ab", None), (b"c", None), (b"abc", None), (b"abcabc", None), whole]
    connection.data_received(b"0\r\n\r\n")
    assert client.ended


def test_an_answer_before_the_end_of_the_request_waits_for_no_more_of_it() -> None:
    """A server that answers and then reads no further would keep the rest of the request in memory for ever."""
    for early in (False, True):
        pool = UpstreamPool(Loop(), Origin("127.0.0.1", 1), Clock())  # type: ignore[arg-type]
        connection, transport, client = UpstreamConnection(pool, "127.0.0.1"), Transport(), Client()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.send(Call(client, b"POST", None))  # type: ignore[arg-type]
        transport.unsent = 1_000_000 if early else 0
        connection.data_received(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        assert client.bytes == 2
        assert transport.calls == (["abort"] if early else [])
        assert pool.idle == (0 if early else 1)
        assert not pool.active
