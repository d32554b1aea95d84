"""A client connection over a transport that the test controls: order, delivery, leaving, limits. No socket, no loop."""

from __future__ import annotations

from typing import Any

import pytest

from sndr.router.net.server import Connection, ServerLimits
from sndr.router.wire.http1 import RequestHead, RequestMemory

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


class Transport:
    """Keeps what is written; `buffered` is what the socket would not take."""

    def __init__(self) -> None:
        self.written = b""
        self.buffered = 0
        self.calls: list[str] = []

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        self.calls.append(f"limits {high}")

    def can_write_eof(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def watch(self, watched: object) -> None: ...

    def unwatch(self, watched: object) -> None: ...


class Application:
    """Answers nothing by itself; remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.refused: list[int] = []
        self.events: list[str] = []
        self.room = 1000

    def accept_head(self, connection: Connection, head: RequestHead) -> int:
        self.seen.append(head.path)
        return self.room

    def accept_request(self, connection: Connection, body: bytes) -> None:
        connection.answer_later(self)

    def refuse_malformed(self, connection: Connection, head: RequestHead | None, status: int, message: str) -> None:
        self.refused.append(status)
        connection.respond(status, b"", b"no", close=True)

    def client_gone(self) -> None:
        self.events.append("gone")

    def client_stalled(self) -> None:
        self.events.append("stalled")

    def client_ready(self) -> None:
        self.events.append("ready")

    def delivered(self) -> None:
        self.events.append("delivered")

    def tick(self, now: float) -> None:
        self.events.append("tick")


class Later:
    """Runs what waits for the end of the loop's round when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.skips = 0

    def call(self, callback: Any) -> None:
        self.waiting.append(callback)

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class World:
    def __init__(self) -> None:
        self.application = Application()
        self.ticker = Clock()
        self.after_reads = Later()
        self.limits = ServerLimits(header_timeout_s=10, body_timeout_s=5, keepalive_idle_s=75)
        self.memory = RequestMemory()
        self.connections: set[Connection] = set()
        self.handshaking: set[Connection] = set()
        self.closing = False
        self.refused = 0
        self.transport = Transport()
        self.connection = Connection(self)  # type: ignore[arg-type]
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.req("R16")
def test_delivered_means_that_the_socket_has_the_last_byte(world: World) -> None:
    world.connection.data_received(GET)
    world.connection.start(200, b"", None, b"abc")
    world.transport.buffered = 500
    world.connection.end()
    assert world.application.events == []
    world.after_reads.run()
    assert world.application.events == []
    assert world.transport.calls[-1] == "limits 0"  # asks to be told when the buffer is empty
    world.connection.pause_writing()
    world.transport.buffered = 0
    world.connection.resume_writing()
    assert world.application.events == ["delivered"]
    assert world.transport.written.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


def test_chunks_of_one_round_are_sent_at_its_end_in_their_order(world: World) -> None:
    world.connection.data_received(GET)
    world.connection.start(200, b"", None)
    head = world.transport.written
    world.connection.write(b"one", b"3\r\none\r\n")
    assert world.transport.written == head
    world.connection.write(b"two")
    world.connection.write(b"three")
    assert len(world.after_reads.waiting) == 1
    world.after_reads.run()
    assert world.transport.written == head + b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n"
    world.after_reads.skips = 1
    world.connection.write(b"x")
    assert world.transport.written.endswith(b"1\r\nx\r\n")
    assert not world.after_reads.waiting
    world.connection.write(b"last")
    world.connection.end()
    assert world.transport.written.endswith(b"1\r\nx\r\n4\r\nlast\r\n0\r\n\r\n")
    assert world.application.events == ["delivered"]
    whole = world.transport.written
    world.after_reads.run()
    assert world.transport.written == whole


def test_a_chunk_that_waits_comes_before_the_cut_and_not_after_the_client_has_left(world: World) -> None:
    world.connection.data_received(GET)
    world.connection.start(200, b"", None)
    world.connection.write(b"one")
    world.connection.cut()
    assert world.transport.written.endswith(b"3\r\none\r\n")
    gone = World()
    gone.connection.data_received(GET)
    gone.connection.start(200, b"", None)
    gone.connection.write(b"one")
    gone.connection.connection_lost(None)
    gone.after_reads.run()
    assert b"one" not in gone.transport.written


def test_next_request_waits_for_the_response_before_it(world: World) -> None:
    world.connection.data_received(GET + GET.replace(b"/a", b"/b"))
    assert world.application.seen == ["/a"]
    world.connection.respond(200, b"", b"one")
    assert world.application.seen == ["/a", "/b"]
    world.connection.respond(200, b"", b"two")
    assert world.transport.written.index(b"one") < world.transport.written.index(b"two")


def test_reading_ahead_is_bounded(world: World) -> None:
    world.connection.data_received(GET)
    world.connection.data_received(GET * 3000)
    assert world.transport.calls == ["pause_reading"]
    world.connection.respond(200, b"", b"")
    assert "resume_reading" in world.transport.calls


@pytest.mark.parametrize("how", ["eof", "lost"])
def test_a_client_that_leaves_is_noticed_once(world: World, how: str) -> None:
    world.connection.data_received(GET)
    if how == "eof":
        assert not world.connection.eof_received()
    world.connection.connection_lost(None)
    assert world.application.events == ["gone"]
    assert not world.connections


def test_a_transport_that_cannot_be_half_closed_is_not_asked_to_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS: staying open is refused there with a warning on standard error, and what was written is sent anyway."""
    monkeypatch.setattr(Transport, "can_write_eof", lambda _: False)
    world.connection.data_received(GET)
    world.transport.buffered = 5
    world.connection.respond(200, b"", b"x")
    assert not world.connection.eof_received()


def test_half_closing_after_the_answer_was_made_still_delivers_it(world: World) -> None:
    world.connection.data_received(GET)
    world.transport.buffered = 5
    world.connection.respond(200, b"", b"x")
    assert world.connection.eof_received()
    world.transport.buffered = 0
    world.after_reads.run()
    assert world.application.events == ["delivered"]
    assert world.transport.calls[-1] == "close"


@pytest.mark.parametrize(
    ("sent", "after_s", "status"),
    [(b"GET /", 10, 408), (GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\nab"), 5, 408), (b"", 10, None)],
)
def test_time_limits(world: World, sent: bytes, after_s: float, status: int | None) -> None:
    if sent:
        world.connection.data_received(sent)
    world.connection.tick(after_s - 0.1)
    assert not world.transport.calls
    world.connection.tick(after_s)
    assert world.application.refused == ([status] if status else [])
    assert world.transport.calls


def test_a_client_that_takes_nothing_is_gone_after_a_minute(world: World) -> None:
    world.connection.data_received(GET)
    world.connection.start(200, b"", None, b"abc")
    world.transport.buffered = 500
    world.connection.tick(1.0)
    world.connection.tick(60.9)
    assert "gone" not in world.application.events
    world.transport.buffered = 400  # it took a little
    world.connection.tick(61.0)
    world.connection.tick(120.9)
    assert "gone" not in world.application.events
    world.connection.tick(121.0)
    assert world.application.events[-1] == "gone"
    assert world.transport.calls == ["abort"]


def test_a_body_that_trickles_has_an_end(world: World) -> None:
    world.limits.body_total_s = 12
    world.connection.data_received(GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 500\r\n\r\n"))
    for second in range(12):
        world.ticker.now = float(second)
        world.connection.data_received(b"x")
        world.connection.tick(second + 0.9)
    assert world.application.refused == []
    world.connection.tick(12.0)
    assert world.application.refused == [408]


def test_a_body_beyond_the_room_is_refused(world: World) -> None:
    world.application.room = 3
    world.connection.data_received(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n")
    assert world.application.refused == [413]


def test_nothing_starts_after_the_stop(world: World) -> None:
    world.connection.data_received(GET)
    world.closing = True
    world.connection.close_when_idle()
    world.connection.respond(200, b"", b"x")
    assert b"connection: close" in world.transport.written
    assert world.transport.calls[-1] == "close"
    idle = World()
    idle.connection.close_when_idle()
    assert idle.transport.calls == ["close"]
