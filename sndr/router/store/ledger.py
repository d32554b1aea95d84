"""The usage ledger as the gateway sees it: rows go in on the loop, callbacks come back, nothing waits for the disk.

What is unresolved is known in memory and exactly: a start counts from the moment it is handed over until its end is
durable, so a zero is a proof, whatever the disk is doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sndr import __version__
from sndr.errors import AuthorityError, ControlError
from sndr.router.core.usage import FinishRow, LedgerStatus, Reconciled, StartRow, Unresolved
from sndr.router.store.usage_db import Holder, Lock, UsageDb, at, check_custody, create, take_lock
from sndr.router.store.writer import Worker, Writer

__all__ = ["LedgerError", "UsageLedger", "UsageStore"]

TRACE_WINDOW: Final = 200_000
OPEN_LIMIT: Final = 100_000
CHECKPOINT_FRAMES: Final = 2_000
_SETTLE_S: Final = 2.0


class LedgerError(Exception):
    """A start could not be made durable; the request is refused with `accounting_unavailable`."""


class _Start(NamedTuple):
    key: int
    row: StartRow
    done: Callable[[Exception | None], None]


class _Finish(NamedTuple):
    key: int
    row: FinishRow


class _Refusal(NamedTuple):
    key: int
    row: StartRow
    end: FinishRow


class _Task(NamedTuple):
    """Work that must run between two batches, on the writer's thread."""

    run: Callable[[], Any]
    future: asyncio.Future[Any]


_item: Final = tuple.__new__
"""Makes an item without the call in between that the class's own constructor would be; there are two per request."""
_AUTHORITY: Final = StartRow._fields.index("authority_id")
_Item = _Start | _Finish | _Refusal | _Task


@dataclass(slots=True)
class _Written:
    """What became of a batch.

    Attributes:
        failed_starts: None when none failed, else the reason by key.
        failed_ends: Keys of finishes and refused rows that failed twice.
    """

    failed_starts: dict[int, Exception] | None = None
    failed_ends: frozenset[int] = frozenset()
    reason: str = ""
    tasks: list[tuple[asyncio.Future[Any], Any, Exception | None]] | None = None
    commits: int = 0
    checkpoint: bool = False
    size: int | None = None


class UsageStore:
    """The ledger's files, held: lock taken, run recorded, connection open. Made before the gateway listens.

    Attributes:
        earlier: Unresolved rows that were there when this run began, as (run, kind, tier, tier generation, count).
    """

    def __init__(self, db: UsageDb, lock: Lock, holder: Holder) -> None:
        self.db = db
        self.lock = lock
        self.holder = holder
        self.first_key = db.next_key()
        self.earlier = db.unresolved_groups()

    @classmethod
    def open(cls, path: str, *, may_create: bool = True) -> UsageStore:
        """Take the lock, open or create the ledger, record this run.

        Args:
            path: `server.usage_path`.
            may_create: Whether an absent ledger is created; serving with a route authority never does.

        Raises:
            AuthorityError: `usage_lock_held` and the codes of `UsageDb.open` and `create`.

        Crash:
            Leaves the ledger as it was, or with a run that has no rows.
        """
        lock = take_lock(path)
        try:
            if may_create and (not check_custody(path) or _is_empty(path)):
                create(path)
            db = UsageDb.open(path)
            try:
                holder = Holder.current(lock.identity)
                store = cls(db, lock, holder)
                db.begin_run(holder, __version__, _now_ms())
            except sqlite3.Error as error:
                db.close()
                raise AuthorityError("usage_unusable", f"{path}: {error}") from None
            except BaseException:
                db.close()
                raise
        except BaseException:
            lock.release()
            raise
        return store

    def max_route_revision(self, authority_id: str) -> int | None:
        """The highest revision of this authority that a row was ever started under."""
        return self.db.max_route_revision(authority_id)

    def close(self) -> None:
        """Record the end of the run, close the file, free the lock."""
        with contextlib.suppress(sqlite3.Error):
            self.db.end_run(_now_ms())
            self.db.checkpoint("TRUNCATE")
        self.db.close()
        self.lock.release()


def _is_empty(path: str) -> bool:
    return os.stat(path).st_size == 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class UsageLedger:
    """Implements `ports.Ledger` over a `UsageStore`; made inside the running loop."""

    def __init__(self, store: UsageStore, *, on_failure: Callable[[str, int], None] | None = None) -> None:
        """Start the threads.

        Args:
            store: Owned from now on; `close` closes it.
            on_failure: Called on the loop with the reason and the number of row parts that could not be written.
        """
        self._store = store
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._next = store.first_key
        self._open: dict[int, StartRow] = {}
        self._ending: dict[int, StartRow] = {}
        self._failed: dict[int, StartRow] = {}
        self._earlier = list(store.earlier)
        self._revisions: dict[str, int] = {}
        self._failures = 0
        self._commits = 0
        self._written = 0
        self._counted: int | None = None
        self._size = store.db.size()
        self._frames = 0
        self._checkpointing = False
        self._reader = UsageDb.open(store.db.path)
        self._reading = Worker("sndr-usage-read")
        self._background: set[asyncio.Future[Any]] = set()
        self._writer: Writer[_Item, _Written] = Writer("sndr-usage", self._write, self._deliver)
        self._spawn(self._count())

    # rows in

    def start(self, row: StartRow, done: Callable[[Exception | None], None]) -> int:
        """Queue a durable start; see `ports.Ledger`."""
        key = self._next
        self._next = key + 1
        if len(self._open) >= OPEN_LIMIT:
            self._failures += 1
            self._loop.call_soon(done, LedgerError("too many rows wait for the disk"))
            return key
        self._open[key] = row
        self._writer.submit(_item(_Start, (key, row, done)))
        return key

    def finish(self, key: int, row: FinishRow) -> None:
        """Queue the end of a started request; see `ports.Ledger`."""
        start = self._open.pop(key, None)
        if start is not None:  # else its start failed: there is no row to end
            self._ending[key] = start
            self._writer.submit_lazy(_item(_Finish, (key, row)))

    def refuse(self, row: StartRow, end: FinishRow) -> None:
        """Queue a complete row; see `ports.Ledger`."""
        if self._writer.queued >= OPEN_LIMIT:
            self._failures += 1
            return
        key = self._next
        self._next = key + 1
        self._writer.submit_lazy(_Refusal(key, row, end))

    # answers

    def unresolved(self, scope: Collection[str] | None = None) -> Unresolved:
        """Rows that could concern these tiers; see `ports.Ledger`."""
        tiers = None if scope is None else frozenset(scope)
        by_tier: Counter[str] = Counter()
        counts = [0, 0, 0]
        for i, rows in enumerate((self._open, self._ending, self._failed)):
            for row in rows.values():
                if tiers is None or (row.kind == "chat" and (row.tier is None or row.tier in tiers)):
                    counts[i] += 1
                    by_tier[row.tier or ""] += 1
        earlier = unassociated = 0
        for _, kind, tier, generation, count in self._earlier:
            loose = tier is None or generation is None
            if tiers is None or (kind == "chat" and (loose or tier in tiers)):
                earlier += count
                unassociated += count if loose else 0
                by_tier[tier or ""] += count
        active, ending, failed = counts
        return Unresolved(active + ending + failed + earlier, active, failed, earlier, unassociated, dict(by_tier))

    def status(self) -> LedgerStatus:
        """Gauges; see `ports.Ledger`."""
        oldest = self._writer.oldest
        earlier = sum(group[4] for group in self._earlier)
        return LedgerStatus(
            unresolved=len(self._open) + len(self._ending) + len(self._failed) + earlier,
            rows=self._written if self._counted is None else self._counted + self._written,
            queued=self._writer.queued,
            lag_ms=0 if oldest is None else max(0, int((self._loop.time() - oldest) * 1000)),
            failures=self._failures,
            commits=self._commits,
            bytes=self._size,
        )

    async def trace(self, request_id: str, client: str | None) -> Mapping[str, Any] | None:
        """The newest row with this id among the newest 200,000; see `ports.Ledger`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._writer.flush(), _SETTLE_S)
        row = await self._reading.run(lambda: self._reader.find(request_id, client, TRACE_WINDOW))
        return None if row is None else as_trace(row)

    async def reconcile(self) -> Reconciled:
        """Close rows of dead runs and of this run's requests that are over; see `ports.Ledger`.

        Raises:
            ControlError: `accounting_unavailable`; the ledger could not be written, nothing was closed.
        """
        failed = tuple(self._failed)
        try:
            answer: Reconciled = await self._on_writer(
                lambda: self._store.db.reconcile(self._store.holder, _now_ms(), failed)
            )
            self._earlier = await self._on_writer(self._earlier_groups)
        except sqlite3.Error as error:
            raise ControlError("accounting_unavailable", f"the usage ledger could not be written: {error}") from None
        for key in failed:
            self._failed.pop(key, None)
        # What is still running is no finding of a reconcile: it will be finished by its own request.
        return replace(answer, left=sum(group[4] for group in self._earlier))

    def _earlier_groups(self) -> list[tuple[int, str, str | None, int | None, int]]:
        db = self._store.db
        return [group for group in db.unresolved_groups() if group[0] != db.run]

    async def backup(self, target: str) -> None:
        """Copy the ledger as of one instant into a new file.

        Raises:
            OSError, sqlite3.Error: There is no copy.
        """
        await self._writer.flush()
        await self._reading.run(lambda: self._reader.backup(target))

    async def flush(self) -> None:
        """Return when everything handed over so far is durable or has failed."""
        await self._writer.flush()

    async def close(self) -> None:
        """Write what is queued, end the threads, close the file and free the lock."""
        while self._writer.queued or self._background:
            await self._writer.flush()
            # A checkpoint ends on the writer's thread, so that thread must not end before it.
            await asyncio.gather(*self._background, return_exceptions=True)
        await self._writer.close()
        await self._reading.run(self._shut)
        await self._reading.close()

    def _shut(self) -> None:
        self._reader.close()
        self._store.close()

    # background

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _count(self) -> None:
        first = self._store.first_key  # this run counts its own rows, of which some may be in the file by now
        with contextlib.suppress(sqlite3.Error):
            self._counted = await self._reading.run(lambda: self._reader.count(first))

    async def _checkpoint(self) -> None:
        """Move the bulk beside the writer, on the reader thread; then the rest between two batches: it can restart."""
        try:
            await self._reading.run(self._reader.checkpoint)
            await self._on_writer(self._store.db.checkpoint)
        except sqlite3.Error:
            pass  # the WAL grows until the next attempt; failing writes are reported where they happen
        finally:
            self._checkpointing = False

    async def _on_writer(self, run: Callable[[], Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._writer.submit(_Task(run, future))
        return await future

    # the writer's thread

    def _write(self, batch: list[_Item]) -> _Written:
        starts: list[_Start] = []
        finishes: list[_Finish] = []
        refusals: list[_Refusal] = []
        tasks: list[_Task] = []
        for item in batch:
            kind = type(item)
            if kind is _Start:
                starts.append(item)  # type: ignore[arg-type]
            elif kind is _Finish:
                finishes.append(item)  # type: ignore[arg-type]
            elif kind is _Refusal:
                refusals.append(item)  # type: ignore[arg-type]
            else:
                tasks.append(item)  # type: ignore[arg-type]
        result = _Written()
        if len(tasks) < len(batch):
            self._write_rows(starts, finishes, refusals, result)
        for task in tasks:
            value, failure = None, None
            try:
                value = task.run()
            except Exception as error:  # noqa: BLE001 -- handed to whoever asked
                failure = error
            result.tasks = [*(result.tasks or ()), (task.future, value, failure)]
        return result

    def _write_rows(
        self, starts: list[_Start], finishes: list[_Finish], refusals: list[_Refusal], result: _Written
    ) -> None:  # fmt: skip
        db = self._store.db
        revisions = self._raised(starts, refusals)
        try:
            db.write(starts, finishes, refusals, revisions)
        except sqlite3.OperationalError as error:
            # The disk or another process: every start of the batch fails, ends are tried once more.
            result.failed_starts = {start.key: error for start in starts}
            if finishes or refusals:
                self._retry(finishes, refusals, result)
        except Exception as error:  # noqa: BLE001 -- one row that cannot be bound must not fail its neighbours
            result.failed_starts = {}
            result.reason = str(error)
            for start in starts:
                revisions = self._raised([start], [])
                try:
                    db.write((start,), (), (), revisions)
                except Exception as own:  # noqa: BLE001 -- see above
                    result.failed_starts[start.key] = own
                else:
                    self._revisions.update(revisions)
            for finish in finishes:
                self._retry([finish], [], result)
            for refusal in refusals:
                self._retry([], [refusal], result)
        else:
            self._revisions.update(revisions)
        result.commits = 1
        self._frames += 3 + (len(starts) + len(finishes) + len(refusals)) // 4
        if self._frames >= CHECKPOINT_FRAMES:
            self._frames = 0
            result.checkpoint = True
            result.size = db.size()

    def _retry(self, finishes: list[_Finish], refusals: list[_Refusal], result: _Written) -> None:
        try:
            self._store.db.write((), finishes, refusals, {})
        except Exception as error:  # noqa: BLE001 -- the rows stay unresolved, which is what an unwritten end is
            result.reason = str(error)
            result.failed_ends |= {end.key for end in finishes} | {end.key for end in refusals}

    def _raised(self, starts: list[_Start], refusals: list[_Refusal]) -> dict[str, int]:
        """Authorities whose highest revision these rows raise."""
        raised: dict[str, int] = {}
        rows = [start[1] for start in starts] + [refusal[1] for refusal in refusals]
        pairs: set[Any] = {row[_AUTHORITY : _AUTHORITY + 2] for row in rows if row[_AUTHORITY] is not None}
        for authority, revision in pairs:
            if revision is not None and revision > raised.get(authority, self._revisions.get(authority, 0)):
                raised[authority] = revision
        return raised

    # the loop again

    def _deliver(self, batch: list[_Item], result: _Written) -> None:
        self._commits += result.commits
        if result.failed_starts is None and not result.failed_ends:
            ending = self._ending
            rows = 0
            for item in batch:
                kind = type(item)
                if kind is _Start:
                    rows += 1
                    try:
                        item[2](None)  # type: ignore[misc, operator]
                    except Exception as fault:  # noqa: BLE001 -- as in _tell
                        self._report(fault)
                elif kind is _Finish:
                    ending.pop(item[0], None)  # type: ignore[arg-type]
                elif kind is _Refusal:
                    rows += 1
            self._written += rows
        else:
            self._deliver_failures(batch, result)
        for future, value, failure in result.tasks or ():
            if future.done():
                continue  # whoever asked was cancelled
            if failure is None:
                future.set_result(value)
            else:
                future.set_exception(failure)
        if result.size is not None:
            self._size = result.size
        if result.checkpoint and not self._checkpointing:
            self._checkpointing = True
            self._spawn(self._checkpoint())

    def _deliver_failures(self, batch: list[_Item], result: _Written) -> None:
        failed_starts = result.failed_starts or {}
        failures = 0
        reason = result.reason
        for item in batch:
            if isinstance(item, _Start):
                error = failed_starts.get(item.key)
                if error is None:
                    self._written += 1
                    self._tell(item.done, None)
                    continue
                failures += 1
                reason = reason or str(error)
                self._open.pop(item.key, None)
                self._ending.pop(item.key, None)
                self._tell(item.done, LedgerError(str(error)))
            elif isinstance(item, _Finish):
                row = self._ending.pop(item.key, None)
                if item.key in result.failed_ends and row is not None:
                    failures += 1
                    self._failed[item.key] = row
            elif isinstance(item, _Refusal):
                if item.key in result.failed_ends:
                    failures += 1
                else:
                    self._written += 1
        self._failures += failures
        if self._on_failure is not None and failures:
            self._on_failure(reason, failures)

    def _tell(self, done: Callable[[Exception | None], None], error: Exception | None) -> None:
        try:
            done(error)
        except Exception as failure:  # noqa: BLE001 -- one request's fault must not cost the others their answer
            self._report(failure)

    def _report(self, failure: Exception) -> None:
        self._loop.call_exception_handler({"message": "a ledger callback failed", "exception": failure})


def as_trace(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as `GET /v1/requests/{id}` answers it."""
    return {
        "object": "request",
        "id": row["id"],
        "client": row["client"],
        "started_at": at(row["started_at"]),
        "ended_at": at(row["ended_at"]),
        "endpoint": row["endpoint"],
        "stream": bool(row["stream"]),
        "alias": row["alias"],
        "tier": row["tier"],
        "tier_generation": row["tier_generation"],
        "authority_id": row["authority_id"],
        "route_revision": row["route_revision"],
        "effective_route_sha256": row["effective_route_sha256"],
        "outcome": row["outcome"],
        "status": row["status"],
        "error_code": row["error_code"],
        "finish_reason": row["finish_reason"],
        "tokens": {
            "prompt": row["prompt_tokens"],
            "prompt_source": row["prompt_source"],
            "completion": row["completion_tokens"],
            "completion_source": row["completion_source"],
            "cached": row["cached_tokens"],
            "cached_source": row["cached_source"],
        },
        "queue_ms": row["queue_ms"],
        "first_byte_ms": row["first_byte_ms"],
        "total_ms": row["total_ms"],
        "request_bytes": row["request_bytes"],
        "response_bytes": row["response_bytes"],
        "retries": row["retries"],
        "routing": None if row["routing"] is None else json.loads(row["routing"]),
    }
