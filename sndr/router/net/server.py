"""The client side: connections that carry requests one after the other, and the responses to them.

A connection reads ahead (so that it notices a client that leaves) but answers strictly in order: the next request is
looked at when the response before it has been written. No task and no stream object exists per request; the transport
calls in, and whoever answers calls back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from sndr.router.net.flow import WriteWatch
from sndr.router.wire.http1 import Malformed, RequestHead, RequestMemory, RequestReader, reason_phrase

if TYPE_CHECKING:
    from sndr.router.net.flow import AfterReads, Ticker

__all__ = ["Application", "Connection", "Responder", "Server", "ServerLimits", "Sink"]

READ_AHEAD_MAX: Final = 65_536
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1_048_576
_STATUS_LINES: Final = {
    status: b"HTTP/1.1 %d %s\r\n" % (status, reason_phrase(status).encode()) for status in range(100, 600)
}


class ServerLimits:
    """Bounds of a connection, in bytes and seconds."""

    __slots__ = (
        "body_timeout_s",
        "body_total_s",
        "header_timeout_s",
        "keepalive_idle_s",
        "max_connections",
        "max_head_bytes",
    )

    def __init__(
        self,
        *,
        max_head_bytes: int = 32_768,
        header_timeout_s: float = 10,
        body_timeout_s: float = 30,
        body_total_s: float = 3600,
        keepalive_idle_s: float = 75,
        max_connections: int = 4096,
    ) -> None:
        self.max_head_bytes = max_head_bytes
        self.header_timeout_s = header_timeout_s
        self.body_timeout_s = body_timeout_s
        self.body_total_s = body_total_s
        self.keepalive_idle_s = keepalive_idle_s
        self.max_connections = max_connections


class Responder(Protocol):
    """Whoever answers a request later than in the call that brought it."""

    def client_gone(self) -> None:
        """The client left before the response was complete. Called at most once; nothing may be written after it."""
        ...

    def client_stalled(self) -> None:
        """The client's side of the connection is full: produce no more until `client_ready`."""
        ...

    def client_ready(self) -> None:
        """The client takes bytes again."""
        ...

    def delivered(self) -> None:
        """After `Connection.end`: the last byte was handed to the socket. Called at most once."""
        ...

    def tick(self, now: float) -> None:
        """Look at deadlines."""
        ...


class Application(Protocol):
    """What a server serves."""

    def accept_head(self, connection: Connection, head: RequestHead) -> int:
        """Look at a head before its body is read.

        Returns:
            How many body bytes are acceptable, or -1 when the request was answered already (refused).
        """
        ...

    def accept_request(self, connection: Connection, body: bytes | memoryview) -> None:
        """Answer a complete request: `respond` now, or `answer_later` with a responder."""
        ...

    def refuse_malformed(self, connection: Connection, head: RequestHead | None, status: int, message: str) -> None:
        """Answer a request that cannot be read any further; the connection closes after it."""
        ...


class Sink(Protocol):
    """Whoever takes a body while it arrives."""

    def write(self, data: bytes) -> None:
        """The next bytes; `Connection.hold_body` stops more from coming."""
        ...

    def close(self) -> None:
        """The request will not be completed."""
        ...


class Server:
    """What the connections of all listeners share.

    Attributes:
        memory: Heads that any of them judged.
        connections: The open ones.
        handshaking: Connections that are not open yet, because their TLS handshake is under way.
        closing: No request may start any more; connections close after the response they carry.
        refused: Connections turned away because too many were open.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        application: Application,
        limits: ServerLimits,
        ticker: Ticker,
        after_reads: AfterReads,
    ) -> None:
        self.loop: Final = loop
        self.application: Final = application
        self.limits: Final = limits
        self.ticker: Final = ticker
        self.after_reads: Final = after_reads
        self.memory: Final = RequestMemory()
        self.connections: set[Connection] = set()
        self.handshaking: set[Connection] = set()
        self.closing = False
        self.refused = 0
        self._empty = asyncio.Event()

    def protocol(self) -> Connection:
        """A new connection's protocol; pass this method to `create_server`."""
        return Connection(self)

    def begin_handshake(self) -> Connection | None:
        """A new connection's protocol, which counts from now on until `end_handshake`; None when there is no room."""
        if self.closing or len(self.connections) + len(self.handshaking) >= self.limits.max_connections:
            self.refused += 1
            return None
        connection = Connection(self)
        self.handshaking.add(connection)
        return connection

    def end_handshake(self, connection: Connection) -> None:
        """It ended; the connection counts among the open ones, or no more."""
        self.handshaking.discard(connection)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no connection is left; False at the deadline."""
        if self.connections:
            self._empty.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
            except TimeoutError:
                return not self.connections
        return True

    def stop(self) -> None:
        """Close idle connections now, and every other one after its response."""
        self.closing = True
        for connection in tuple(self.connections):
            connection.close_when_idle()


# What a connection is doing.
_HEAD, _BODY, _ANSWER, _FLUSH, _LINGER, _CLOSED = range(6)


class Connection(asyncio.Protocol):
    """One client connection.

    Attributes:
        context: For the application: what it learned of the current request's head.
    """

    __slots__ = (
        "_body",
        "_body_end",
        "_body_held",
        "_body_left",
        "_busy",
        "_chunked",
        "_close_after",
        "_deadline",
        "_due",
        "_eof",
        "_head",
        "_lingered",
        "_paused_reading",
        "_reader",
        "_responder",
        "_server",
        "_sink",
        "_stalled",
        "_started",
        "_state",
        "_transport",
        "_watch",
        "context",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = RequestReader(server.limits.max_head_bytes, server.memory)
        self._transport: Any = None
        self._state = _HEAD
        self._head: RequestHead | None = None
        self._body: list[bytes] = []
        self._body_end = 0.0
        self._body_held = False
        self._body_left = 0
        self._responder: Responder | None = None
        self._sink: Sink | None = None
        self._close_after = False
        self._chunked = False
        self._due = b""
        self._started = False
        self._stalled = False
        self._eof = False
        self._busy = False
        self._paused_reading = False
        self._lingered = 0
        self._deadline = 0.0
        self._watch: WriteWatch | None = None
        self.context: Any = None

    # -- the transport calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = transport
        server.connections.add(self)
        server.handshaking.discard(self)
        server.ticker.watch(self)
        self._deadline = server.ticker.now + server.limits.header_timeout_s
        if server.closing or len(server.connections) > server.limits.max_connections:
            server.refused += 1
            self._state = _ANSWER
            self._close_after = True
            server.application.refuse_malformed(self, None, 503, "too many connections")

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == _LINGER:
            self._lingered += len(data)
            if self._lingered > LINGER_BYTES:
                self._abort()
            return
        if state == _CLOSED:
            return
        reader = self._reader
        if state == _HEAD and not self._busy:
            whole = reader.repeat(data)
            if whole is not None:
                self._read_whole(*whole)
                return
        reader.feed(data)
        if state in (_ANSWER, _FLUSH):
            if reader.buffered > READ_AHEAD_MAX and not self._paused_reading:
                self._paused_reading = True
                self._transport.pause_reading()
            return
        if not self._busy:
            self._advance()

    def eof_received(self) -> bool:
        state = self._state
        self._eof = True
        if state == _FLUSH:
            # Everything was produced; only the socket is slow. (TLS has no half-closed state: its transport sends what
            # it has, and closes.)
            return bool(self._transport.can_write_eof())
        if state == _LINGER:
            return False
        self._leave()
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # half closed and not reading: nobody would take the rest
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        server = self._server
        try:
            self._leave()
        finally:
            server.closed(self)
            server.ticker.unwatch(self)
            self._transport = None

    def pause_writing(self) -> None:
        self._stalled = True
        if self._responder is not None and self._state == _ANSWER:
            self._responder.client_stalled()

    def resume_writing(self) -> None:
        self._stalled = False
        if self._state == _FLUSH:
            if self._transport.get_write_buffer_size() == 0:
                self._transport.set_write_buffer_limits()
                self._delivered()
        elif self._responder is not None and self._state == _ANSWER:
            self._responder.client_ready()

    def tick(self, now: float) -> None:
        """Deadlines of this connection and of the request it carries."""
        state = self._state
        if state in (_ANSWER, _FLUSH):
            watch = self._watch
            size = self._transport.get_write_buffer_size()
            if size or watch is not None:
                if watch is None:
                    watch = self._watch = WriteWatch()
                if watch.stalled(size, now):
                    self._abort()
                    return
            if self._responder is not None:
                self._responder.tick(now)
        elif now >= self._deadline:
            self._expired()

    # -- whoever answers calls -----------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether a response can still be written."""
        return self._state in (_BODY, _ANSWER)

    @property
    def started(self) -> bool:
        """Whether the response's head was written."""
        return self._started

    @property
    def peername(self) -> object:
        """The peer's socket address."""
        return self._transport.get_extra_info("peername")

    @property
    def is_tls(self) -> bool:
        """Whether the client came through TLS that ends here."""
        return self._transport.get_extra_info("sslcontext") is not None

    def answer_later(self, responder: Responder) -> None:
        """Leave the current request with `responder`, who will call `start`, `write` and `end`, or `respond`."""
        self._responder = responder
        if self._stalled:
            responder.client_stalled()

    def collect(self, sink: Sink) -> None:
        """From `accept_head`: give the body to `sink`; `accept_request` then gets none, and owns the sink."""
        self._sink = sink

    def hold_body(self) -> None:
        """Read no more of the body until `release_body`."""
        if self._state == _BODY and not self._body_held:
            self._body_held = True
            self._transport.pause_reading()

    def release_body(self) -> None:
        """Read on."""
        if self._body_held:
            self._body_held = False
            if self._state != _CLOSED:
                self._expect_more()
                self._transport.resume_reading()

    def respond(self, status: int, fields: bytes, body: bytes, *, close: bool = False) -> None:
        """Write a whole response.

        Args:
            status: HTTP status.
            fields: Header lines, each ended by CR LF, without framing.
            body: The body; left out where the request was a HEAD.
            close: Close the connection afterwards.
        """
        head = self._head
        if close or not self._may_keep_alive():
            self._close_after = True
        # The version-1.0 client needs to be told of what is the default for others.
        if self._close_after:
            fields += b"connection: close\r\n"
        elif head is not None and head.http10:
            fields += b"connection: keep-alive\r\n"
        length = len(body)
        if head is not None and head.method == "HEAD":
            body = b""
        self._started = True
        self._transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (_STATUS_LINES[status], fields, length, body))
        self._ended()

    def start(self, status: int, fields: bytes, content_length: int | None, data: bytes = b"") -> None:
        """Write the head of a response, and the first bytes of its body.

        Args:
            status: HTTP status.
            fields: Header lines, each ended by CR LF, without framing.
            content_length: Length of the body; None when only its end will show.
            data: What there is of the body.
        """
        head = self._head
        assert head is not None
        if not self._may_keep_alive():
            self._close_after = True
        self._chunked = False
        if status == 204:
            framing = data = b""
        elif content_length is not None:
            framing = b"content-length: %d\r\n" % content_length
        elif head.http10:
            framing = b""
            self._close_after = True
        else:
            framing = b"transfer-encoding: chunked\r\n"
            self._chunked = True
        if self._close_after:
            framing += b"connection: close\r\n"
        elif head.http10:
            framing += b"connection: keep-alive\r\n"
        if data and self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._started = True
        self._transport.write(b"%b%b%b\r\n%b" % (_STATUS_LINES[status], fields, framing, data))

    def write(self, data: bytes, chunk: bytes | None = None) -> None:
        """Write body bytes; never empty ones. `chunk` is how they look as one chunk, where the caller has that.

        A model server sends an event for each of its streams at the same moment. Then chunks are sent after the reads
        of the round: sent in between, each would wake a client that has just gone to sleep, which costs as much as a
        read.
        """
        if not self._chunked:
            self._transport.write(data)
            return
        if chunk is None:
            chunk = b"%x\r\n%b\r\n" % (len(data), data)
        due, rounds = self._due, self._server.after_reads
        if due:
            self._transport.write(due)
        elif rounds.skips:
            rounds.skips -= 1
            self._transport.write(chunk)
            return
        else:
            rounds.call(self._write_due)
        self._due = chunk

    def end(self, *, close: bool = False) -> None:
        """The response is complete; `delivered` follows once the socket has it."""
        if close:
            self._close_after = True
        if self._chunked:
            due, self._due = self._due, b""
            self._transport.write(due + b"0\r\n\r\n")
        self._ended()

    def cut(self) -> None:
        """The response cannot be completed: end the connection so that the client notices."""
        self._write_due()
        self._chunked = False
        self._close_after = True
        self._ended()

    def abort(self) -> None:
        """End the connection now, whatever it carries."""
        self._abort()

    def close_when_idle(self) -> None:
        """Close now if no request is under way, else after its response."""
        self._close_after = True
        if self._state == _HEAD:
            self._state = _CLOSED
            self._transport.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _may_keep_alive(self) -> bool:
        head = self._head
        return (
            head is not None
            and head.keep_alive
            and not self._server.closing
            # Nothing of the request is missing, so that the next one can be found.
            and (self._reader.complete or self._skippable())
        )

    def _skippable(self) -> bool:
        head = self._head
        return (
            head is not None
            and head.content_length is not None
            and not self._body
            and self._reader.buffered >= head.content_length
        )

    def _advance(self) -> None:
        """Look at what has arrived, request by request, until one is being answered or bytes are missing."""
        self._busy = True
        try:
            while self._state in (_HEAD, _BODY):
                if not (self._read_head() if self._state == _HEAD else self._read_body()):
                    break
        except Malformed as fault:
            self._malformed(fault)
        finally:
            self._busy = False

    def _read_whole(self, head: RequestHead, body: bytes | memoryview) -> None:
        """A request that arrived in one piece."""
        self._busy = True
        self._head = head
        self._started = False
        self._state = _BODY
        try:
            application = self._server.application
            room = application.accept_head(self, head)
            if self._state == _BODY and room >= 0:
                if len(body) > room:
                    raise Malformed("the request body is too large", 413)
                if self._sink is not None:
                    self._sink.write(bytes(body))
                    body = b""
                self._dispatch(body)
        except Malformed as fault:
            self._malformed(fault)
        finally:
            self._busy = False

    def _read_head(self) -> bool:
        server = self._server
        reader = self._reader
        had = reader.buffered
        head = reader.head()
        if head is None:
            if had and self._head is not None:
                # First bytes of a further request: from here on the head has its own time limit.
                self._head = None
                self._deadline = server.ticker.now + server.limits.header_timeout_s
            return False
        self._head = head
        self._started = False
        self._state = _BODY
        room = server.application.accept_head(self, head)
        if self._state != _BODY:
            return self._state == _HEAD
        if room < 0:
            return False
        if not head.has_body:
            self._dispatch(b"")
            return self._state == _HEAD
        self._body_left = room
        self._body_end = server.ticker.now + server.limits.body_total_s
        self._expect_more()
        if head.expects_continue and not reader.buffered:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _read_body(self) -> bool:
        reader = self._reader
        had = reader.buffered
        data = reader.body()
        if data:
            self._body_left -= len(data)
            if self._body_left < 0:
                raise Malformed("the request body is too large", 413)
            if self._sink is None:
                self._body.append(data)
            else:
                self._sink.write(data)
        if had:
            self._expect_more()
        if not reader.complete:
            return False
        parts = self._body
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._dispatch(body)
        return self._state == _HEAD

    def _expect_more(self) -> None:
        """More of the body must come soon, and all of it in a time that no trickle can stretch."""
        server = self._server
        self._deadline = min(server.ticker.now + server.limits.body_timeout_s, self._body_end)

    def _dispatch(self, body: bytes | memoryview) -> None:
        self._state = _ANSWER
        if self._sink is not None:
            self._sink = None
            self.release_body()
        self._server.application.accept_request(self, body)

    def _malformed(self, fault: Malformed) -> None:
        if self._state == _HEAD:
            self._head = None
        self._state = _ANSWER
        self._body.clear()
        self._drop_sink()
        self._close_after = True
        self._server.application.refuse_malformed(self, self._head, fault.status, fault.message)

    def _write_due(self) -> None:
        due, self._due = self._due, b""
        if due:
            self._transport.write(due)

    def _ended(self) -> None:
        """The response was written: wait until the socket has it."""
        if self._state == _BODY and not self._reader.complete:
            # Refused before the body was read. What is already here is skipped, else the connection must end.
            if self._skippable():
                self._reader.body()
            else:
                self._close_after = True
        self._state = _FLUSH
        if self._transport.get_write_buffer_size() == 0:
            self._delivered()
        else:
            self._server.after_reads.call(self._flushed)

    def _flushed(self) -> None:
        transport = self._transport
        if self._state != _FLUSH or transport is None:
            return
        if transport.get_write_buffer_size() == 0:
            self._delivered()
        else:
            # Makes the transport call resume_writing when the last byte is gone.
            transport.set_write_buffer_limits(high=0)

    def _delivered(self) -> None:
        responder, self._responder = self._responder, None
        self._watch = None
        if responder is not None:
            responder.delivered()
        if self._close_after or self._eof:
            self._close()
            return
        self._state = _HEAD
        server = self._server
        self._deadline = server.ticker.now + server.limits.keepalive_idle_s
        if self._paused_reading:
            self._paused_reading = False
            self._transport.resume_reading()
        if self._reader.buffered and not self._busy:
            self._advance()

    def _close(self) -> None:
        """Close without destroying what the client has not read yet.

        A socket that is closed while unread bytes wait in it resets the connection, and the reset can overtake the
        response. So the write side is closed first and the rest of the request is thrown away for a moment.
        """
        transport = self._transport
        if self._eof or (self._reader.complete and not self._reader.buffered):
            self._state = _CLOSED
            transport.close()
            return
        self._state = _LINGER
        self._deadline = self._server.ticker.now + LINGER_S
        if transport.can_write_eof():
            transport.write_eof()
        if self._paused_reading:
            self._paused_reading = False
            transport.resume_reading()

    def _expired(self) -> None:
        state = self._state
        if state == _BODY and self._body_held:
            self._malformed(Malformed("the request body cannot be kept", 503))
        elif state == _BODY:
            self._malformed(Malformed("the request body did not arrive in time", 408))
        elif state == _HEAD and self._head is None and self._reader.buffered:
            self._malformed(Malformed("the request head did not arrive in time", 408))
        elif state == _HEAD:
            self._state = _CLOSED
            self._transport.close()
        elif state == _LINGER:
            self._abort()

    def _leave(self) -> None:
        """The client is gone, or may as well be."""
        if self._state == _CLOSED:
            return
        self._state = _CLOSED
        self._due = b""
        self._drop_sink()
        responder, self._responder = self._responder, None
        if responder is not None:
            responder.client_gone()

    def _drop_sink(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()
            self.release_body()

    def _abort(self) -> None:
        self._leave()
        if self._transport is not None:
            self._transport.abort()
