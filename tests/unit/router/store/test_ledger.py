"""The usage ledger on a real file: what is durable when, what is unresolved, how failures show."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sndr.errors import AuthorityError, ControlError
from sndr.router.core.usage import Outcome, Reconciled, Unresolved
from sndr.router.store import ledger as ledger_module
from sndr.router.store.ledger import LedgerError, UsageLedger, UsageStore
from sndr.router.store.usage_db import UsageDb
from tests.support.ledger import finish_row, refused, rows, running, start_row, started


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.db"


class Failing:
    """Makes the database refuse writes until told otherwise."""

    def __init__(self, ledger: UsageLedger, error: Exception) -> None:
        self.db = ledger._store.db
        self.real = self.db.write
        self.error = error
        self.calls = 0

    def __enter__(self) -> Failing:
        def write(*args: Any) -> None:
            self.calls += 1
            raise self.error

        self.db.write = write  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.db.write = self.real  # type: ignore[method-assign]


@pytest.mark.req("R97")
def test_a_start_is_on_disk_when_it_is_acknowledged_and_carries_its_binding(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            row = start_row(1, authority_id="a-1", route_revision=7, effective_route_sha256="f" * 64, tier_generation=3)
            key = await started(ledger, row)
            (seen,) = rows(path)
            assert {name: seen[name] for name in row._fields} == row._asdict()
            assert (seen["seq"], seen["outcome"]) == (key, None)
            ledger.finish(key, finish_row(1))
            await ledger.flush()
            (seen,) = rows(path)
            assert {name: seen[name] for name in finish_row(1)._fields} == finish_row(1)._asdict()

    run(test)


def test_done_is_never_called_inside_start(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            told: list[object] = []
            ledger.start(start_row(1), told.append)
            assert told == []
            await ledger.flush()
            assert told == [None]

    run(test)


def test_refused_rows_are_complete_and_never_unresolved(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            ledger.refuse(start_row(1, tier=None, tier_generation=None, admission_seq=None), refused(1))
            assert ledger.unresolved() == Unresolved()
            await ledger.flush()
            (row,) = rows(path)
            assert (row["outcome"], row["status"], row["error_code"]) == ("refused", 429, "queue_full")

    run(test)


def test_many_rows_in_one_batch(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            keys = await asyncio.gather(*(started(ledger, start_row(n)) for n in range(300)))
            assert len(rows(path)) == 300
            for n, key in enumerate(keys):
                ledger.finish(key, finish_row(n))
            for n in range(300, 500):
                ledger.refuse(start_row(n), refused(n))
            await ledger.flush()
            seen = rows(path)
            assert [row["outcome"] for row in seen] == ["completed"] * 300 + ["refused"] * 200
            assert [row["release_seq"] for row in seen[:300]] == list(range(300))
            assert ledger.status().rows == 500
            assert ledger.status().commits < 20

    run(test)


@pytest.mark.req("R36")
def test_unresolved_counts_from_the_hand_over_to_the_durable_end(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            key = ledger.start(start_row(1), lambda _: None)
            assert ledger.unresolved({"primary"}).total == 1
            assert ledger.unresolved({"other"}).total == 0
            await ledger.flush()
            assert ledger.unresolved({"primary"}).active == 1
            ledger.finish(key, finish_row(1))
            assert (ledger.unresolved({"primary"}).total, ledger.unresolved().active) == (1, 0)
            await ledger.flush()
            assert ledger.unresolved() == Unresolved()

    run(test)


@pytest.mark.req("R36")
def test_only_chat_rows_concern_a_scope(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            ledger.start(start_row(1, kind="embedding"), lambda _: None)
            ledger.start(start_row(2, tier=None), lambda _: None)
            assert ledger.unresolved({"primary"}).total == 1
            assert ledger.unresolved({"elsewhere"}).by_tier == {"": 1}
            assert ledger.unresolved().total == 2

    run(test)


@pytest.mark.req("R36")
def test_a_start_whose_request_gave_up_is_closed_right_behind_it(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            told: list[object] = []
            key = ledger.start(start_row(1), told.append)
            ledger.finish(key, refused(1, "accounting_unavailable", 503))
            await ledger.flush()
            (row,) = rows(path)
            assert (row["outcome"], row["error_code"]) == ("refused", "accounting_unavailable")
            assert ledger.unresolved() == Unresolved()
            assert told == [None]

    run(test)


@pytest.mark.req("R97")
@pytest.mark.parametrize("message", ["database or disk is full", "database is locked", "disk I/O error"])
def test_a_failed_start_is_reported_and_leaves_nothing(path: Path, message: str) -> None:
    async def test() -> None:
        said: list[tuple[str, int]] = []
        async with running(path, on_failure=lambda *a: said.append(a)) as ledger:
            with Failing(ledger, sqlite3.OperationalError(message)) as failing:
                with pytest.raises(LedgerError, match=message):
                    await started(ledger, start_row(1))
                assert failing.calls == 1  # a start is not retried: its request is waiting
            assert ledger.unresolved() == Unresolved()
            assert rows(path) == []
            assert said == [(message, 1)]
            assert ledger.status().failures == 1
            await started(ledger, start_row(2))

    run(test)


@pytest.mark.req("R36")
def test_an_end_is_retried_once_then_stays_unresolved_until_reconciled(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            key = await started(ledger, start_row(1))
            with Failing(ledger, sqlite3.OperationalError("disk I/O error")) as failing:
                ledger.finish(key, finish_row(1))
                await ledger.flush()
                assert failing.calls == 2
            assert ledger.unresolved({"primary"}) == Unresolved(total=1, failed=1, by_tier={"primary": 1})
            running_key = await started(ledger, start_row(2))
            answer = await ledger.reconcile()
            assert (answer.reconciled, answer.left) == (1, 0)
            assert [run.verdict for run in answer.runs] == ["current"]
            assert ledger.unresolved().total == 1  # the running one
            assert [row["outcome"] for row in rows(path)] == ["interrupted", None]
            ledger.finish(running_key, finish_row(2))
            await ledger.flush()
            assert [row["outcome"] for row in rows(path)] == ["interrupted", "completed"]

    run(test)


def test_one_retry_saves_an_end(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            key = await started(ledger, start_row(1))
            real, calls = ledger._store.db.write, []

            def write(*args: Any) -> None:
                calls.append(args)
                if len(calls) == 1:
                    raise sqlite3.OperationalError("database is locked")
                real(*args)

            ledger._store.db.write = write  # type: ignore[method-assign]
            ledger.finish(key, finish_row(1))
            await ledger.flush()
            assert rows(path)[0]["outcome"] == "completed"
            assert ledger.status().failures == 0

    run(test)


def test_a_row_that_cannot_be_stored_does_not_fail_its_neighbours(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            answers = await asyncio.gather(
                started(ledger, start_row(1)),
                started(ledger, start_row(2, alias="\ud800")),
                started(ledger, start_row(3)),
                return_exceptions=True,
            )
            assert [type(a) for a in answers] == [int, LedgerError, int]
            assert isinstance(answers[0], int)
            assert isinstance(answers[2], int)
            ledger.finish(answers[0], finish_row(1, finish_reason="\ud800"))
            ledger.finish(answers[2], finish_row(3))
            await ledger.flush()
            assert [row["outcome"] for row in rows(path)] == [None, "completed"]
            assert ledger.unresolved().failed == 1

    run(test)


def test_another_writer_makes_starts_fail_after_the_busy_timeout_only(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError, match="locked"):
                await started(ledger, start_row(1))
            other.execute("ROLLBACK")
            other.close()
            await started(ledger, start_row(2))

    run(test)


@pytest.mark.req("R97")
def test_a_start_in_a_file_that_was_moved_away_is_not_acknowledged(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            await started(ledger, start_row(1))
            away = path.with_name("away.db")
            for leave in (lambda: path.rename(away), lambda: (path.rename(away), path.write_bytes(b""))):
                leave()
                with pytest.raises(LedgerError):
                    await started(ledger, start_row(2))
                away.replace(path)
                await started(ledger, start_row(3))

    run(test)


def test_a_stalled_disk_stalls_no_caller(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            gate = threading.Event()
            real = ledger._store.db.write

            def write(*args: Any) -> None:
                assert gate.wait(10)
                real(*args)

            ledger._store.db.write = write  # type: ignore[method-assign]
            told: list[object] = []
            keys = [ledger.start(start_row(n), told.append) for n in range(50)]
            await asyncio.sleep(0.02)
            assert told == []
            status = ledger.status()
            assert (status.queued, status.unresolved) == (50, 50)
            assert status.lag_ms > 0
            for key in keys:
                ledger.finish(key, refused(1, "accounting_unavailable", 503))
            gate.set()
            await ledger.flush()
            assert told == [None] * 50
            assert {row["outcome"] for row in rows(path)} == {"refused"}
            assert ledger.unresolved() == Unresolved()

    run(test)


def test_finishing_twice_keeps_the_first_end(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            key = await started(ledger, start_row(1))
            ledger.finish(key, finish_row(1))
            ledger.finish(key, finish_row(1, outcome=Outcome.CLIENT_GONE.value))
            await ledger.flush()
            ledger.finish(key, finish_row(1, outcome=Outcome.CLIENT_GONE.value))
            await ledger.flush()
            assert rows(path)[0]["outcome"] == "completed"
            # Nor does the store itself change a row that has ended, whoever asks.
            ledger._store.db.write((), [(key, finish_row(1, outcome="client_gone"))], (), {})
            assert rows(path)[0]["outcome"] == "completed"

    run(test)


def test_a_failing_callback_costs_the_others_nothing(path: Path) -> None:
    async def test() -> None:
        heard: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
        async with running(path) as ledger:
            told: list[object] = []
            ledger.start(start_row(1), lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
            ledger.start(start_row(2), told.append)
            await ledger.flush()
            assert told == [None]
            assert [type(e) for e in heard] == [ZeroDivisionError]

    run(test)


@pytest.mark.req("R97")
def test_highest_revision_survives_restart_and_prune(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            for n, revision in enumerate((3, 9, 5)):
                key = await started(ledger, start_row(n, authority_id="a", route_revision=revision))
                ledger.finish(key, finish_row(n))
            await started(ledger, start_row(7, authority_id="b", route_revision=2))
            await ledger.flush()
            assert ledger._store.db.prune(before=1 << 60, limit=100) == 3
        store = UsageStore.open(str(path))
        assert store.max_route_revision("a") == 9
        assert store.max_route_revision("b") == 2
        assert store.max_route_revision("c") is None
        store.close()

    run(test)


def test_trace_has_the_documented_members(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            assert await ledger.trace("r1", None) is None
            key = await started(ledger, start_row(1, routing='{"outcome":"rule"}'))
            trace = await ledger.trace("r1", None)
            assert trace is not None
            assert (trace["outcome"], trace["ended_at"]) == (None, None)
            ledger.finish(key, finish_row(1))
            trace = await ledger.trace("r1", "default")
            assert trace is not None
            assert list(trace) == [
                "object", "id", "client", "started_at", "ended_at", "endpoint", "stream", "alias", "tier",
                "tier_generation", "authority_id", "route_revision", "effective_route_sha256", "outcome", "status",
                "error_code", "finish_reason", "tokens", "queue_ms", "first_byte_ms", "total_ms", "request_bytes",
                "response_bytes", "retries", "routing",
            ]  # fmt: skip
            assert trace["started_at"] == "2026-05-28T20:26:40.001Z"
            assert trace["stream"] is True
            assert trace["tokens"]["cached_source"] == "absent"
            assert trace["routing"] == {"outcome": "rule"}
            assert await ledger.trace("r1", "somebody else") is None
            # The newest of several requests with the same id, because clients choose it.
            await started(ledger, start_row(2, id="r1", alias="other"))
            newest = await ledger.trace("r1", None)
            assert newest is not None
            assert newest["alias"] == "other"

    run(test)


def test_checkpoints_keep_the_wal_small(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sndr.router.store.ledger.CHECKPOINT_FRAMES", 50)

    async def test() -> None:
        async with running(path) as ledger:
            for n in range(400):
                key = await started(ledger, start_row(n))
                ledger.finish(key, finish_row(n))
            await ledger.flush()
            # 400 commits of several pages each would be more than 4 MB without checkpoints.
            assert (path.parent / "usage.db-wal").stat().st_size < 1_500_000
            assert ledger.status().bytes > 0
        assert not (path.parent / "usage.db-wal").exists()

    run(test)


def test_files_are_private_and_the_lock_excludes_a_second_gateway(path: Path) -> None:
    old = os.umask(0)
    try:
        store = UsageStore.open(str(path))
        for name in ("usage.db", "usage.db-wal", "usage.db-shm", "usage.db.lock"):
            assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600, name
        with pytest.raises(AuthorityError) as caught:
            UsageStore.open(str(path))
        assert caught.value.code == "usage_lock_held"
        store.close()
        UsageStore.open(str(path)).close()
    finally:
        os.umask(old)


@pytest.mark.req("R102")
def test_refusals_to_open(path: Path) -> None:
    def code(**options: Any) -> str:
        with pytest.raises(AuthorityError) as caught:
            UsageStore.open(str(path), **options)
        return caught.value.code

    assert code(may_create=False) == "usage_store_missing"
    assert not path.exists()
    path.write_bytes(b"not a database" * 100)
    path.chmod(0o600)
    assert code() == "usage_not_a_ledger"
    path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE t(x)").connection.close()
    path.chmod(0o600)
    assert code() == "usage_not_a_ledger"
    path.unlink()
    UsageStore.open(str(path)).close()
    for version, expected in ((3, "usage_schema_old"), (5, "usage_schema_new")):
        db = sqlite3.connect(path)
        db.execute(f"PRAGMA user_version={version}")
        db.close()
        assert code() == expected
    path.chmod(0o640)
    assert code() == "usage_custody"
    path.chmod(0o600)
    os.link(path, path.parent / "second")
    assert code() == "usage_custody"
    path.unlink()
    path.symlink_to(path.parent / "second")
    assert code() == "usage_custody"
    path.unlink()
    os.mkfifo(path)
    assert code() == "usage_custody"


@pytest.mark.parametrize("kinds", [1, 3, 70])
def test_rows_of_a_batch_keep_their_own_members_whatever_they_share(path: Path, kinds: int) -> None:
    """Members that rows share travel once; neither a mixed batch nor a uniform one may mix rows up."""
    starts = [start_row(n, client=f"c{n % kinds}", stream=n % 2, admission_seq=n) for n in range(1, 71)]
    ends = [finish_row(n, status=200 + n % kinds, retries=n % 2, total_ms=n * 3) for n in range(1, 71)]
    store = UsageStore.open(str(path))
    store.db.write([(n, row, None) for n, row in enumerate(starts, 1)], (), (), {})
    store.db.write((), list(enumerate(ends, 1)), (), {})
    store.db.write((), [(70, finish_row(70, status=599)), (71, finish_row(71))], (), {})  # ended; never started
    store.close()
    found = rows(path)
    expected = [
        {"seq": n, "run": 1, **start._asdict(), **end._asdict()}
        for n, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
    ]
    assert found == expected


def test_an_empty_file_is_completed(path: Path) -> None:
    path.touch(mode=0o600)
    UsageStore.open(str(path)).close()
    assert UsageDb.open(str(path)).version == 4


@pytest.mark.req("R101")
def test_reconcile_closes_rows_of_dead_runs_only(path: Path) -> None:
    async def test() -> None:
        store = UsageStore.open(str(path))
        dead = store.db.run
        store.db.write([(1, start_row(1), None), (2, start_row(2), None)], (), (), {})
        store.db.close()
        store.lock.release()  # as the kernel does at the end of a process
        async with running(path) as ledger:
            assert ledger.unresolved({"primary"}) == Unresolved(total=2, earlier=2, by_tier={"primary": 2})
            key = await started(ledger, start_row(3))
            assert key == 3
            answer = await ledger.reconcile()
            assert (answer.reconciled, answer.left) == (2, 0)
            assert [(r.verdict, r.reconciled, r.left) for r in answer.runs] == [("dead", 2, 0), ("current", 0, 1)]
            assert ledger.unresolved({"primary"}).total == 1
            seen = rows(path)
            assert [r["outcome"] for r in seen] == ["interrupted", "interrupted", None]
            assert seen[0]["run"] == dead
            assert (seen[0]["status"], seen[0]["completion_tokens"], seen[0]["completion_source"]) == (
                None,
                None,
                "absent",
            )
            assert (await ledger.reconcile()).reconciled == 0

    run(test)


@pytest.mark.req("R100")
def test_rows_without_association_concern_every_scope(path: Path) -> None:
    async def test() -> None:
        UsageStore.open(str(path)).close()
        db = sqlite3.connect(path)
        db.execute("INSERT INTO runs(run, run_id, started_at) VALUES(77, 'legacy', 0)")
        db.execute(
            "INSERT INTO requests(seq, run, started_at, id, client, kind, endpoint, stream, tier)"
            " VALUES(1, 77, 0, 'x', 'c', 'chat', 'chat', 0, 'elsewhere')"
        )
        db.commit()
        db.close()
        async with running(path) as ledger:
            found = ledger.unresolved({"primary"})
            assert (found.total, found.unassociated) == (1, 1)
            answer = await ledger.reconcile()  # nothing proves that run dead
            assert (answer.reconciled, answer.left) == (0, 1)
            assert [r.verdict for r in answer.runs] == ["unproven"]
            assert ledger.unresolved({"primary"}).total == 1

    run(test)


def test_cancelled_reconcile_still_counts_right(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            task = asyncio.ensure_future(ledger.reconcile())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await ledger.reconcile() == await ledger.reconcile()

    run(test)


@pytest.mark.parametrize("fault", [sqlite3.OperationalError("disk is full"), KeyboardInterrupt()])
def test_a_run_that_cannot_be_recorded_leaves_the_ledger_free(
    fault: BaseException, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(UsageDb, "begin_run", fail)
        with pytest.raises((AuthorityError, KeyboardInterrupt)) as caught:
            UsageStore.open(str(path))
    assert getattr(caught.value, "code", None) == ("usage_unusable" if isinstance(fault, sqlite3.Error) else None)
    UsageStore.open(str(path)).close()


def test_rows_beyond_the_limit_are_turned_away_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            monkeypatch.setattr(ledger_module, "OPEN_LIMIT", 1)
            first = await started(ledger, start_row(1))
            with pytest.raises(LedgerError, match="too many rows"):
                await started(ledger, start_row(2))
            ledger.finish(first, finish_row(1))  # waits for company
            ledger.refuse(start_row(3), refused(3))
            assert ledger.status().failures == 2
            await ledger.flush()
            ledger.refuse(start_row(4), refused(4))
            await ledger.flush()
            assert [row["id"] for row in rows(path)] == ["r1", "r4"]

    run(test)


@pytest.mark.req("R100")
def test_rows_that_earlier_runs_left_concern_the_scope_of_their_own_chat_tier(path: Path) -> None:
    async def test() -> None:
        store = UsageStore.open(str(path))
        left = [start_row(1), start_row(2, tier="other"), start_row(3, kind="embedding"), start_row(4)]
        store.db.write([(row.admission_seq or 0, row, None) for row in left], (), (), {})
        store.close()
        async with running(path) as ledger:
            assert ledger.unresolved({"primary"}) == Unresolved(total=2, earlier=2, by_tier={"primary": 2})
            assert ledger.unresolved() == Unresolved(total=4, earlier=4, by_tier={"primary": 3, "other": 1})

    run(test)


def test_a_reconcile_that_cannot_write_is_refused_and_forgets_nothing(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            key = await started(ledger, start_row(1))
            with Failing(ledger, sqlite3.OperationalError("disk I/O error")):
                ledger.finish(key, finish_row(1))
                await ledger.flush()
            ledger._store.db._db.execute("PRAGMA query_only=1")
            with pytest.raises(ControlError, match="could not be written") as caught:
                await ledger.reconcile()
            assert caught.value.code == "accounting_unavailable"
            assert ledger.unresolved().failed == 1
            ledger._store.db._db.execute("PRAGMA query_only=0")
            assert (await ledger.reconcile()).reconciled == 1
            assert ledger.unresolved().total == 0

    run(test)


def test_a_backup_has_everything_that_was_handed_over(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            key = await started(ledger, start_row(1))
            ledger.finish(key, finish_row(1))
            await ledger.backup(str(path.with_name("copy")))
            assert [row["outcome"] for row in rows(path.with_name("copy"))] == ["completed"]

    run(test)


def test_closing_waits_for_the_count_that_is_under_way(path: Path) -> None:
    async def test() -> None:
        ledger = UsageLedger(UsageStore.open(str(path)))
        counting, go_on = threading.Event(), threading.Event()

        def count(below: int) -> int:
            counting.set()
            assert go_on.wait(10)
            raise ZeroDivisionError

        ledger._reader.count = count  # type: ignore[method-assign]
        await asyncio.to_thread(counting.wait, 10)
        closing = asyncio.ensure_future(ledger.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        go_on.set()
        await asyncio.wait_for(closing, 10)
        UsageStore.open(str(path)).close()  # the lock is free

    run(test)


def test_a_checkpoint_that_fails_is_tried_again_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(ledger_module, "CHECKPOINT_FRAMES", 1)
        async with running(path) as ledger:
            real, calls = ledger._reader.checkpoint, []

            def checkpoint(*args: Any) -> Any:
                calls.append(args)
                if len(calls) == 1:
                    raise sqlite3.OperationalError("disk I/O error")
                return real(*args)

            ledger._reader.checkpoint = checkpoint  # type: ignore[method-assign]
            await started(ledger, start_row(1))
            while ledger._checkpointing:
                await asyncio.sleep(0.001)
            await started(ledger, start_row(2))
            while ledger._checkpointing:
                await asyncio.sleep(0.001)
            assert len(calls) == 2
            assert ledger.status().failures == 0

    run(test)


def test_closing_in_the_middle_of_a_checkpoint_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(ledger_module, "CHECKPOINT_FRAMES", 1)
        ledger = UsageLedger(UsageStore.open(str(path)))
        real, begun, go_on = ledger._reader.checkpoint, threading.Event(), threading.Event()

        def checkpoint(*args: Any) -> Any:
            begun.set()
            assert go_on.wait(10)
            return real(*args)

        ledger._reader.checkpoint = checkpoint  # type: ignore[method-assign]
        await started(ledger, start_row(1))
        await asyncio.to_thread(begun.wait, 10)
        closing = asyncio.ensure_future(ledger.close())
        for _ in range(20):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(closing, 10)

    run(test)


def test_a_refused_row_that_cannot_be_stored_does_not_fail_its_neighbours(path: Path) -> None:
    async def test() -> None:
        said: list[tuple[str, int]] = []
        async with running(path, on_failure=lambda *a: said.append(a)) as ledger:
            for n, alias in ((1, "a"), (2, "\ud800"), (3, "b")):
                ledger.refuse(start_row(n, alias=alias), refused(n))
            await ledger.flush()
            assert [row["id"] for row in rows(path)] == ["r1", "r3"]
            assert [number for _, number in said] == [1]
            assert (ledger.status().failures, ledger.unresolved().total) == (1, 0)

    run(test)


def test_a_callback_that_fails_while_a_batch_fails_costs_the_others_nothing(path: Path) -> None:
    async def test() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        async with running(path) as ledger:
            told: list[Exception | None] = []

            def broken(error: Exception | None) -> None:
                raise ZeroDivisionError

            with Failing(ledger, sqlite3.OperationalError("disk I/O error")):
                ledger.start(start_row(1), broken)
                ledger.start(start_row(2), told.append)
                await ledger.flush()
            assert [type(error) for error in told] == [LedgerError]
            assert [type(error) for error in reported] == [ZeroDivisionError]

    run(test)


def test_a_start_beside_a_row_that_cannot_be_stored_is_written_with_its_revision(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            told: list[Exception | None] = []
            ledger.start(start_row(1, authority_id="a-1", route_revision=4), told.append)
            ledger.start(start_row(2, alias="\ud800", authority_id="a-1", route_revision=9), told.append)
            ledger.start(start_row(3, authority_id="a-1", route_revision=3), told.append)
            await ledger.flush()
            assert [type(error) for error in told] == [type(None), LedgerError, type(None)]
            assert [row["id"] for row in rows(path)] == ["r1", "r3"]
            # The next start may never come: what is written now must say what it was started under.
            assert ledger._store.max_route_revision("a-1") == 4

    run(test)


def test_a_row_without_a_revision_raises_none(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            await started(ledger, start_row(1, authority_id="a-1", route_revision=None))
            assert ledger._store.max_route_revision("a-1") is None
            await started(ledger, start_row(2, authority_id="a-1", route_revision=4))
            assert ledger._store.max_route_revision("a-1") == 4

    run(test)


def test_a_reconcile_is_answered_although_the_rows_beside_it_fail(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            told: list[Exception | None] = []
            with Failing(ledger, sqlite3.OperationalError("disk I/O error")):
                ledger.start(start_row(1), told.append)
                answering = asyncio.ensure_future(ledger.reconcile())
                await asyncio.sleep(0)  # both are in one batch now
                assert ledger.status().queued == 2
                assert await answering == Reconciled(0, 0, ())
            assert [type(error) for error in told] == [LedgerError]
            assert ledger.unresolved() == Unresolved()

    run(test)


def test_rows_that_are_written_before_the_count_are_counted_once(path: Path) -> None:
    async def test() -> None:
        store = UsageStore.open(str(path))
        store.db.write([(n, start_row(n), None) for n in (1, 2)], (), (), {})
        store.close()
        async with running(path) as ledger:
            real, go_on = ledger._reader.count, threading.Event()

            def count(*args: int) -> int:
                assert go_on.wait(10)
                return real(*args)

            ledger._reader.count = count  # type: ignore[method-assign]
            for n in (3, 4, 5):
                await started(ledger, start_row(n))
            go_on.set()
            while ledger._counted is None:
                await asyncio.sleep(0.001)
            assert ledger.status().rows == 5

    run(test)
