"""Time and back-pressure for connections: one coarse ticker instead of a timer each, and a watch for stalled writes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["AfterReads", "Ticker", "Turns", "Watched", "WriteWatch"]

TICK_S: Final = 0.1
WRITE_STALL_S: Final = 60.0
TURN_S: Final = 0.002
"""A large read is a quarter of a megabyte at most: together, those who take turns bring some 120 MB/s."""
COMPANY: Final = 2.0
"""Callbacks a round, on average, from which waiting for its end pays."""
SKIPS: Final = 64


class Watched(Protocol):
    """Something with deadlines."""

    def tick(self, now: float) -> None:
        """Called about ten times a second with the monotonic time."""
        ...


class Ticker:
    """Calls everything that has deadlines, about ten times a second.

    A timer per request would cost more than the request's parsing; a deadline that fires up to a tenth of a second late
    costs nothing.

    Attributes:
        now: The monotonic time at the last tick or `watch`; late by at most a period while anything is watched.
    """

    __slots__ = ("_handle", "_loop", "_watched", "now")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: set[Watched] = set()
        self._handle: asyncio.TimerHandle | None = None
        self.now = time.monotonic()

    def watch(self, watched: Watched) -> None:
        """Start calling `watched.tick`."""
        self._watched.add(watched)
        if self._handle is None:
            self.now = time.monotonic()
            self._handle = self._loop.call_later(TICK_S, self._tick)

    def unwatch(self, watched: Watched) -> None:
        """Stop calling it."""
        self._watched.discard(watched)

    def close(self) -> None:
        """Stop for good."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._watched.clear()

    def _tick(self) -> None:
        self._handle = None
        now = self.now = time.monotonic()
        for watched in tuple(self._watched):
            try:
                watched.tick(now)
            except Exception as error:  # noqa: BLE001 - a fault of one must not take their time limits from all others
                self._loop.call_exception_handler(
                    {"message": "a time limit could not be looked at", "exception": error}
                )
        if self._watched and self._handle is None:
            self._handle = self._loop.call_later(TICK_S, self._tick)


class AfterReads:
    """Calls back when everything that could be read in this round of the loop was read, before it waits again.

    By then writes had their chance to reach the socket, too, whether the loop sends at once or at the end of a round:
    asking for the size of the write buffer makes sense. One callback of the loop serves all who ask.

    Attributes:
        skips: How many who only hope for company need not ask, because few have met in a round lately: a round that
            is made for one of them alone costs more than it saves.
    """

    __slots__ = ("_loop", "_met", "_waiting", "skips")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Callable[[], None]] = []
        self._met = 1.0
        self.skips = 0

    def call(self, callback: Callable[[], None]) -> None:
        """Run `callback` in the next round."""
        if not self._waiting:
            self._loop.call_soon(self._run)
        self._waiting.append(callback)

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._met += (len(waiting) - self._met) / 8
        if self._met < COMPANY:
            self.skips = SKIPS
        for callback in waiting:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - a fault of one must not keep the others waiting
                self._loop.call_exception_handler({"message": "a chunk could not be sent", "exception": error})


class Turns:
    """Lets those that want more than their share go on one after the other, each time a moment later.

    What one of them does in its turn is then all that anybody else has to wait for, however many they are, and between
    two turns there is time for everybody else: rounds of the loop without one of them in it.
    """

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` at its turn."""
        if not self._waiting:
            self._loop.call_later(TURN_S, self._next)
        self._waiting.append(go_on)

    def _next(self) -> None:
        go_on = self._waiting.popleft()
        if self._waiting:
            self._loop.call_later(TURN_S, self._next)
        go_on()


class WriteWatch:
    """Notices a peer that has stopped taking bytes.

    The transport says when its buffer runs full and when it has drained; in between only its size shows whether the
    peer takes anything at all.
    """

    __slots__ = ("_since", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._since = 0.0

    def stalled(self, size: int, now: float) -> bool:
        """Whether a non-empty write buffer has not changed for the stall limit."""
        if not size:
            self._size = 0
            return False
        if size != self._size:
            self._size = size
            self._since = now
            return False
        return now - self._since >= WRITE_STALL_S
