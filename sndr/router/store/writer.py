"""A thread that owns a file whose writes may block, and the loop's end of it.

The loop never waits for a disk: it hands over items, the thread takes everything that is queued in one go, and the
results of that batch come back in one callback. While one batch is being written the next one gathers, so a slow disk
makes batches larger, not the queue of commits longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

__all__ = ["Worker", "Writer"]

T = TypeVar("T")
R = TypeVar("R")

GATHER_ITERATIONS: Final = 8
"""Loop iterations for which an idle writer waits while each of them brings another item."""


class Writer(Generic[T, R]):
    """Batches from one event loop to one thread and back.

    All methods but those said to run on the thread are called on the loop's thread.

    An item is prompt or lazy. A prompt item leaves as soon as a loop iteration passes that adds no other prompt item
    (at most `GATHER_ITERATIONS`): a burst of sockets that became readable together shares one batch, and a single item
    leaves at once. A lazy item leaves with the next prompt one, or after `lazy_s`, or when `lazy_limit` have gathered.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[T]], R],
        deliver: Callable[[list[T], R], None],
        *,
        lazy_s: float = 0.01,
        lazy_limit: int = 256,
    ) -> None:
        """Start the thread.

        Args:
            name: Of the thread.
            write: Runs on the thread with everything queued, in the order of submission; must not raise.
            deliver: Runs on the loop with the batch and what `write` returned.
            lazy_s: Longest time for which lazy items wait for company.
            lazy_limit: So many lazy items do not wait.
        """
        self._loop = asyncio.get_running_loop()
        self._write = write
        self._deliver = deliver
        self._lazy_s = lazy_s
        self._lazy_limit = lazy_limit
        self._batches: SimpleQueue[list[T] | None] = SimpleQueue()
        self._pending: list[T] = []
        self._prompt = 0
        self._seen = 0
        self._rounds = 0
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._busy: list[T] | None = None
        self._since = 0.0
        self._busy_since = 0.0
        self._idle: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> None:
        """Queue a prompt item."""
        pending = self._pending
        if not pending:
            self._since = self._loop.time()
        pending.append(item)
        self._prompt += 1
        if not self._scheduled and self._busy is None:
            self._scheduled = True
            self._seen = self._rounds = 0
            self._loop.call_soon(self._gather)

    def submit_lazy(self, item: T) -> None:
        """Queue a lazy item."""
        pending = self._pending
        if not pending:
            self._since = self._loop.time()
        pending.append(item)
        if self._busy is None and not self._scheduled:
            if len(pending) >= self._lazy_limit:
                self._send()
            elif self._timer is None:
                self._timer = self._loop.call_later(self._lazy_s, self._hasten)

    @property
    def queued(self) -> int:
        """Items handed over and not yet delivered."""
        return len(self._pending) + (0 if self._busy is None else len(self._busy))

    @property
    def oldest(self) -> float | None:
        """Loop time at which the oldest undelivered item was handed over; None when there is none."""
        if self._busy is not None:
            return self._busy_since
        return self._since if self._pending else None

    async def flush(self) -> None:
        """Return when everything submitted so far has been delivered.

        Items submitted meanwhile are waited for as well, when they share a batch with earlier ones.
        """
        if self._busy is not None:
            await self._turn()
        if self._pending and self._busy is None:
            self._send()
        if self._busy is not None:
            await self._turn()

    async def close(self) -> None:
        """Write what is queued, end the thread and wait for it. Idempotent; nothing may be submitted afterwards.

        When it is cancelled (a disk that stalls), the thread is a daemon and ends with the process.
        """
        while self._pending or self._busy is not None:
            await self.flush()
        if self._ended is None:
            self._ended = self._loop.create_future()
            self._batches.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _turn(self) -> asyncio.Future[None]:
        if self._idle is None:
            self._idle = self._loop.create_future()
        return asyncio.shield(self._idle)

    def _gather(self) -> None:
        if self._busy is not None or not self._pending:
            self._scheduled = False
            return
        if self._prompt != self._seen and self._rounds < GATHER_ITERATIONS:
            self._seen = self._prompt
            self._rounds += 1
            self._loop.call_soon(self._gather)
            return
        self._scheduled = False
        self._send()

    def _hasten(self) -> None:
        self._timer = None
        if not self._scheduled:  # else the prompt items that came meanwhile take everything along
            self._send()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._pending = self._pending, []
        self._busy, self._busy_since = batch, self._since
        self._prompt = 0
        self._batches.put(batch)

    def _run(self) -> None:
        """What the thread does."""
        while (batch := self._batches.get()) is not None:
            result = self._write(batch)
            try:
                self._loop.call_soon_threadsafe(self._delivered, batch, result)
            except RuntimeError:  # the loop is closed: nobody is left to tell
                return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._over)

    def _over(self) -> None:
        assert self._ended is not None  # made before the thread was told to end
        self._ended.set_result(None)

    def _delivered(self, batch: list[T], result: R) -> None:
        self._busy = None
        if self._pending:
            if self._prompt:
                # What gathered during the write: give the events of this iteration their chance to join.
                self._scheduled = True
                self._seen, self._rounds = self._prompt, 1
                self._loop.call_soon(self._gather)
            elif len(self._pending) >= self._lazy_limit:
                self._send()
            else:
                self._timer = self._loop.call_later(self._lazy_s, self._hasten)
        idle, self._idle = self._idle, None
        self._deliver(batch, result)
        if idle is not None and not idle.done():
            idle.set_result(None)


class Worker:
    """Calls that may block, one after the other on a thread of their own.

    The thread is a daemon: a call that never returns delays nobody's exit.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._writer: Writer[tuple[Callable[[], Any], asyncio.Future[Any]], list[tuple[Any, Exception | None]]]
        self._writer = Writer(name, self._call, self._answer)

    def start(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call on the thread; its result or exception comes back. Cancelling does not stop the call."""
        future: asyncio.Future[R] = self._loop.create_future()
        self._writer.submit((call, future))
        return future

    async def run(self, call: Callable[[], R]) -> R:
        """The same, waited for."""
        return await self.start(call)

    async def close(self) -> None:
        """Wait for the calls made so far and end the thread."""
        await self._writer.close()

    @staticmethod
    def _call(batch: list[tuple[Callable[[], Any], asyncio.Future[Any]]]) -> list[tuple[Any, Exception | None]]:
        answers: list[tuple[Any, Exception | None]] = []
        for call, _ in batch:
            try:
                answers.append((call(), None))
            except Exception as error:  # noqa: BLE001 -- handed to whoever asked
                answers.append((None, error))
        return answers

    @staticmethod
    def _answer(
        batch: list[tuple[Callable[[], Any], asyncio.Future[Any]]], answers: list[tuple[Any, Exception | None]]
    ) -> None:  # fmt: skip
        for (_, future), (value, error) in zip(batch, answers, strict=True):
            if future.done():
                continue  # whoever asked was cancelled
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
