"""The server side: a pool of keep-alive connections per origin, each carrying one exchange at a time.

The pool never retries. It says whether a failure happened on a connection that had been used before and before any
byte of the response, which is the only case in which sending the request again cannot repeat work.

A request that finds no idle connection waits for a new one, and takes one that becomes free before that: in a burst of
short answers many need not connect at all. Every waiting request has a connect of its own on the way, so that none
depends on the answers of others.
"""

from __future__ import annotations

import asyncio
import errno
import math
import ssl
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any, Final, Protocol

from sndr.router.net.flow import Ticker, Turns
from sndr.router.net.resolver import Resolver, literal
from sndr.router.net.tls import SHUTDOWN_S
from sndr.router.wire.http1 import HeadMemory, Malformed, ResponseHead, ResponseReader

__all__ = ["Call", "Failure", "Origin", "Source", "UpstreamClient", "UpstreamPool"]

IDLE_S: Final = 3.9
"""Servers close idle connections after 5 s; a connection is retired before that, a tick of tolerance included."""
CONNECT_S: Final = 5.0
LARGE_READ: Final = 32_768
"""Bytes at once from which a server is taken to send faster than its share."""
IDLE_MAX: Final = 1024
DIALS_PER_ROUND: Final = 4
"""So many connects begin in one round of the loop: answers of a burst come in between, and free connections."""
PATIENCE_S: Final = 0.03
"""Once somebody has waited so long, free connections do not come fast enough: connects begin for all who wait."""


class Failure(Enum):
    """How an exchange failed, as far as the connection can tell."""

    UNREACHABLE = "unreachable"
    EXHAUSTED = "exhausted"
    """No descriptor is left for a new connection."""
    RESET = "reset"
    PROTOCOL = "protocol"
    SOURCE = "source"
    """The request's own body could not be read."""


class Source(Protocol):
    """A request body that is not in memory."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body from its start, in pieces; may be asked for again.

        Raises:
            OSError: It cannot be read.
        """
        ...


class UpstreamClient(Protocol):
    """Who receives a response. After `response_end` or `upstream_failed` nothing more is called."""

    def response_head(self, head: ResponseHead, body: bytes, *, complete: bool) -> None:
        """The final head, with the body bytes that came along; `complete` when there is nothing after them."""
        ...

    def response_data(self, data: bytes, chunk: bytes | None = None) -> None:
        """Body bytes, never empty; where they came as one chunk of their own, `chunk` is that chunk as it was sent."""
        ...

    def response_end(self) -> None:
        """The response is complete (not called when the head came with `complete`)."""
        ...

    def upstream_failed(self, failure: Failure, *, may_retry: bool) -> None:
        """The response will not be completed."""
        ...


class Origin:
    """Where a tier's server is.

    Attributes:
        host: Name or literal address, without brackets.
        port: TCP port.
        tls: Context when the scheme is https.
    """

    __slots__ = ("host", "port", "tls")

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.port = port
        self.tls = tls


class Call:
    """One exchange from the client's side: what can be done to it while it runs."""

    __slots__ = ("client", "connection", "data", "source", "waits_in")

    def __init__(self, client: UpstreamClient, data: bytes, source: Source | None) -> None:
        self.client: UpstreamClient | None = client
        self.data = data
        self.source = source
        self.connection: UpstreamConnection | None = None
        self.waits_in: OrderedDict[Call, float] | None = None

    def is_wanted(self) -> bool:
        """Whether somebody still waits for the response."""
        return self.client is not None

    def cancel(self) -> None:
        """Give up: close the connection, receive nothing more."""
        self.client = None
        self.data = b""
        self.source = None
        waits_in, self.waits_in = self.waits_in, None
        if waits_in is not None:
            del waits_in[self]
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()

    def pause(self) -> None:
        """Stop reading the response."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read on."""
        if self.connection is not None:
            self.connection.resume()


class UpstreamConnection(asyncio.Protocol):
    """One connection to a server."""

    __slots__ = (
        "_call",
        "_feed",
        "_full",
        "_memory",
        "_paused",
        "_pool",
        "_reader",
        "_resting",
        "_transport",
        "_used",
        "address",
        "idle_since",
    )

    def __init__(self, pool: UpstreamPool, address: str) -> None:
        self._pool = pool
        self._transport: Any = None
        self._memory = pool.memory
        self._call: Call | None = None
        self._reader: ResponseReader | None = None
        self._paused = False
        self._resting = False
        self._used = False
        self._feed: asyncio.Task[None] | None = None
        self._full: asyncio.Event | None = None
        self.address = address
        self.idle_since = 0.0

    def send(self, call: Call) -> None:
        """Start an exchange."""
        self._call = call
        call.connection = self
        self._pool.active.add(self)
        self._transport.write(call.data)
        call.data = b""
        if call.source is not None:
            self._feed = self._pool.loop.create_task(self._send_source(call.source))
            call.source = None

    def abandon(self) -> None:
        """Close at once; nobody is told."""
        self._call = None
        self._stop_feed()
        self._pool.active.discard(self)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close an idle connection."""
        if self._transport is not None:
            self._transport.close()

    @property
    def closing(self) -> bool:
        """Whether the connection cannot carry another exchange."""
        return self._transport is None or bool(self._transport.is_closing())

    def pause(self) -> None:
        """Stop reading."""
        if not self._paused and self._transport is not None:
            self._paused = True
            if not self._resting:
                self._transport.pause_reading()

    def resume(self) -> None:
        """Read on, at our turn."""
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._resting:
                self._transport.resume_reading()

    def _take_turns(self) -> None:
        """Read on when it is our turn: uvloop would read again at once, dozens of times, and let others wait."""
        if not self._resting and self._transport is not None:
            self._resting = True
            if not self._paused:
                self._transport.pause_reading()
            self._pool.turns.wait(self._rested)

    def _rested(self) -> None:
        self._resting = False
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def pause_writing(self) -> None:
        if self._feed is not None:
            self._full = asyncio.Event()

    def resume_writing(self) -> None:
        full, self._full = self._full, None
        if full is not None:
            full.set()

    def data_received(self, data: bytes) -> None:
        call, reader = self._call, self._reader
        if call is not None and reader is not None:
            body = reader.whole_chunk(data)
            if body:
                client = call.client
                assert client is not None
                client.response_data(body, data)
                return
        if call is None:
            # A byte that nobody asked for: whatever it belongs to, it is not an answer.
            self._pool.forget(self)
            if self._transport is not None:
                self._transport.abort()
            return
        if reader is None:
            whole = self._memory.repeat(data)
            if whole is not None:
                head, body = whole
                client = call.client
                assert client is not None
                self._settle(call, reusable=head.keep_alive)
                client.response_head(head, body, complete=True)
                return
            reader = self._reader = ResponseReader(memory=self._memory)
        had_head = reader.head is not None
        try:
            body = reader.receive(data)
        except Malformed:
            self._fail(Failure.PROTOCOL)
            return
        client = call.client
        assert client is not None
        if reader.complete:
            self._settle(call, reusable=reader.reusable)
            if had_head:
                if body:
                    client.response_data(body)
                client.response_end()
            else:
                assert reader.head is not None
                client.response_head(reader.head, body, complete=True)
            return
        if len(data) >= LARGE_READ:
            self._take_turns()
        if had_head:
            if body:
                client.response_data(body)
        elif reader.head is not None:
            client.response_head(reader.head, body, complete=False)

    def eof_received(self) -> bool:
        call, reader = self._call, self._reader
        if call is not None:
            try:
                if reader is None:
                    raise Malformed("no response")
                reader.eof()
            except Malformed:
                self._fail(Failure.RESET)
                return False
            client = call.client
            assert client is not None
            self._settle(call, reusable=False)
            client.response_end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._transport = None
        self._pool.forget(self)
        if self._call is not None:
            self._fail(Failure.RESET)

    def _settle(self, call: Call, *, reusable: bool) -> None:
        """The exchange is over: make the connection available before anybody can ask for one."""
        self._call = None
        self._reader = None
        call.client = None
        call.connection = None
        pool = self._pool
        pool.active.discard(self)
        transport = self._transport
        if self._feed is not None or (transport is not None and transport.get_write_buffer_size()):
            # An answer before the end of the request: what is missing of the request must not meet the next one, and is
            # not waited for, which a server that reads no further would make a wait for ever.
            self._stop_feed()
            transport.abort()
        elif reusable and transport is not None and pool.may_keep(self.address):
            if self._paused:
                self.resume()
            self._used = True
            pool.keep(self)
        elif transport is not None:
            transport.close()

    def _fail(self, failure: Failure) -> None:
        call, reader = self._call, self._reader
        self._call = None
        self._stop_feed()
        self._pool.active.discard(self)
        if self._transport is not None:
            self._transport.abort()
        if call is None or call.client is None:
            return
        client, call.client, call.connection = call.client, None, None
        if failure is Failure.SOURCE:
            client.upstream_failed(failure, may_retry=False)
            return
        fresh_bytes = reader is not None and reader.begun
        client.upstream_failed(failure, may_retry=self._used and not fresh_bytes)

    async def _send_source(self, source: Source) -> None:
        """Write a body as fast as the server takes it, one piece at a time."""
        try:
            async for piece in source.chunks():
                self._transport.write(piece)
                if self._full is not None:
                    await self._full.wait()
        except OSError:
            self._feed = None
            self._fail(Failure.SOURCE)
            return
        self._feed = None

    def _stop_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.cancel()


class _Dial:
    """A connection on its way.

    Attributes:
        call: Who needs this one; None where it is for whoever waits.
        deadline: When the address that is being tried is given up.
        expired: It was given up.
        task: What tries.
    """

    __slots__ = ("call", "deadline", "expired", "task")

    def __init__(self, call: Call | None) -> None:
        self.call = call
        self.deadline = math.inf
        self.expired = False
        self.task: asyncio.Task[None] | None = None


class UpstreamPool:
    """Connections to one origin.

    Attributes:
        loop: Where they live.
        memory: The last head of a response on any of them.
        turns: For the connections that bring more than their share; best shared by all pools.
        active: Those that carry an exchange.
        opened: Connections made so far.
    """

    __slots__ = (
        "_addresses",
        "_counts_round",
        "_dialing",
        "_dials",
        "_idle",
        "_literal",
        "_origin",
        "_resolver",
        "_room",
        "_ticker",
        "_waiting",
        "_watching",
        "active",
        "closed",
        "loop",
        "memory",
        "opened",
        "turns",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: Origin,
        ticker: Ticker,
        turns: Turns | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self.loop = loop
        self.turns = turns or Turns(loop)
        self._origin = origin
        self._resolver = resolver or Resolver()
        self._ticker = ticker
        self._idle: list[UpstreamConnection] = []
        self._waiting: OrderedDict[Call, float] = OrderedDict()
        self._dials: set[_Dial] = set()
        self._dialing = 0  # of these, those that are for whoever waits
        self._room = DIALS_PER_ROUND  # so many more may begin in this round of the loop
        self._counts_round = False
        self._literal = literal(origin.host)
        self._addresses: frozenset[str] = frozenset()
        self._watching = False
        self.memory: Final = HeadMemory()
        self.active: set[UpstreamConnection] = set()
        self.opened = 0
        self.closed = False

    @property
    def idle(self) -> int:
        """Connections kept for later."""
        return len(self._idle)

    def request(
        self, client: UpstreamClient, data: bytes, *, source: Source | None = None, fresh: bool = False
    ) -> Call:
        """Send a request.

        Args:
            client: Receives the response; never called from inside this method.
            data: Head and body.
            source: What follows `data` of the body.
            fresh: Use a new connection even where an idle one exists.
        """
        call = Call(client, data, source)
        idle = self._idle
        while idle and not fresh:
            connection = idle.pop()
            if self._ticker.now - connection.idle_since > IDLE_S or connection.closing:
                connection.close()
                continue
            connection.send(call)
            return call
        if fresh:
            self._dial(call)
        else:
            self._waiting[call] = time.monotonic()
            call.waits_in = self._waiting
            self._dial_for_waiting()
        return call

    def may_keep(self, address: str) -> bool:
        """Whether the origin still has an address, as far as it was looked up last."""
        return not self._addresses or address in self._addresses

    def keep(self, connection: UpstreamConnection) -> None:
        """Take a connection that is free: whoever has waited longest gets it."""
        if self._waiting:
            connection.send(self._first_waiting())
            return
        if self.closed or len(self._idle) >= IDLE_MAX:
            connection.close()
            return
        connection.idle_since = self._ticker.now
        self._idle.append(connection)
        if not self._watching:
            self._watch()

    def forget(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        if connection in self._idle:
            self._idle.remove(connection)

    def tick(self, now: float) -> None:
        """Retire connections before their server does; give up connects that take too long."""
        idle = self._idle
        # The oldest are at the front: they are taken from the back.
        while idle and now - idle[0].idle_since > IDLE_S:
            idle.pop(0).close()
        for dial in self._dials:
            if now >= dial.deadline and not dial.expired:
                assert dial.task is not None
                dial.expired = True
                dial.task.cancel()
        if not idle and not self._dials:
            self._watching = False
            self._ticker.unwatch(self)

    def close(self) -> None:
        """Close idle connections; running exchanges go on, their connections are not kept."""
        self.closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        for dial in self._dials:
            if dial.call is None and not self._waiting and dial.task is not None:
                dial.task.cancel()

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self._ticker.watch(self)

    def _first_waiting(self) -> Call:
        call, _ = self._waiting.popitem(last=False)
        call.waits_in = None
        return call

    def _dial_for_waiting(self) -> None:
        """Have a connect on its way for each who waits, a few more in each round of the loop."""
        while self._room and self._dialing < len(self._waiting):
            if not self._counts_round:
                self._counts_round = True
                self.loop.call_soon(self._next_round)
            self._room -= 1
            self._dial(None)

    def _next_round(self) -> None:
        self._counts_round = False
        waiting = self._waiting
        if waiting and time.monotonic() - next(iter(waiting.values())) > PATIENCE_S:
            self._room = len(waiting)
        else:
            self._room = DIALS_PER_ROUND
        self._dial_for_waiting()
        if not self._counts_round:
            self._room = DIALS_PER_ROUND

    def _dial(self, call: Call | None) -> None:
        dial = _Dial(call)
        self._dials.add(dial)
        if call is None:
            self._dialing += 1
        self._watch()
        dial.task = self.loop.create_task(self._connect(dial))

    async def _connect(self, dial: _Dial) -> None:
        connection: UpstreamConnection | None = None
        failure = Failure.UNREACHABLE
        try:
            connection = await self._reach(dial)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                failure = Failure.EXHAUSTED
        except UnicodeError:
            pass  # a name that cannot be a host name
        finally:
            self._dials.discard(dial)
            if dial.call is None:
                self._dialing -= 1
        call = dial.call
        if connection is not None:
            self.opened += 1
            if call is not None and call.is_wanted():
                connection.send(call)
            else:
                self.keep(connection)
            return
        if call is None and self._dialing < len(self._waiting):
            call = self._first_waiting()
            self._dial_for_waiting()
        if call is not None and call.client is not None:
            client, call.client = call.client, None
            client.upstream_failed(failure, may_retry=False)

    async def _reach(self, dial: _Dial) -> UpstreamConnection | None:
        """A connection to the first address that takes one; None when nobody wants it any more.

        Raises:
            OSError: No address does, or no descriptor is left.
            UnicodeError: The name cannot be a host name.
        """
        last: OSError | None = None
        for family, address in self._literal or await self._resolve():
            call = dial.call
            if not (call.is_wanted() if call is not None else self._dialing <= len(self._waiting)):
                return None
            dial.deadline = self._ticker.now + CONNECT_S
            try:
                return await self._open(family, address)
            except asyncio.CancelledError:
                assert dial.task is not None
                if not dial.expired or dial.task.uncancel():
                    raise
                dial.expired = False
                last = TimeoutError(errno.ETIMEDOUT, "no answer to the connect")
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                last = error
        raise last or OSError(errno.EADDRNOTAVAIL, "the name has no address")

    async def _resolve(self) -> list[tuple[int, str]]:
        """Addresses of the origin, looked up off the loop; those that vanished retire their idle connections."""
        addresses = await self._resolver.resolve(self._origin.host)
        now = frozenset(address for _, address in addresses)
        if now != self._addresses:
            self._addresses = now
            for connection in tuple(self._idle):
                if connection.address not in now:
                    self._idle.remove(connection)
                    connection.close()
        return addresses

    async def _open(self, family: int, address: str) -> UpstreamConnection:
        origin = self._origin
        connection = UpstreamConnection(self, address)
        await self.loop.create_connection(
            lambda: connection,
            address,
            origin.port,
            family=family,
            ssl=origin.tls,
            server_hostname=origin.host if origin.tls is not None else None,
            ssl_shutdown_timeout=SHUTDOWN_S if origin.tls is not None else None,
        )
        return connection
