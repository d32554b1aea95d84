"""The ledger's file by itself: who may hold it, what proves a run dead, and what is left after a failure."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sndr.errors import AuthorityError
from sndr.router.store import usage_db
from sndr.router.store.usage_db import Holder, UsageDb, at, check_custody, create, ddl, prove, take_lock
from tests.support.ledger import finish_row, refused, rows, start_row

HERE = Holder("run-1", "boot-1", 10, 500, "pid:[1]", "1:2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.db"


@pytest.fixture
def db(path: Path) -> Any:
    create(str(path))
    opened = UsageDb.open(str(path))
    opened.begin_run(HERE, "0", 1)
    yield opened
    opened.close()


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(AuthorityError) as caught:
        call(*args)
    return caught.value.code


# --- who holds it


def facts(**changes: Any) -> dict[str, Any]:
    known = {
        "run_id": "run-0", "boot_id": "boot-1", "pid": 7, "start_ticks": 400, "pid_namespace": "pid:[1]", "lock": "9:9",
    }  # fmt: skip
    return {**known, **changes}


@pytest.mark.req("R101")
@pytest.mark.parametrize(
    ("run", "now", "ticks", "verdict"),
    [
        (facts(run_id="run-1"), HERE, 400, "current"),
        (facts(lock="1:2"), HERE, 400, "dead"),
        (facts(lock=None), replace(HERE, lock=None), 400, "unproven"),
        (facts(boot_id=None), HERE, None, "unproven"),
        (facts(), replace(HERE, boot_id=None), None, "unproven"),
        (facts(boot_id="boot-0"), HERE, 400, "dead"),
        (facts(pid=None), HERE, None, "unproven"),
        (facts(start_ticks=None), HERE, None, "unproven"),
        (facts(pid_namespace="pid:[2]"), HERE, None, "unproven"),
        (facts(pid_namespace=None), replace(HERE, pid_namespace=None), None, "unproven"),
        (facts(), HERE, 400, "unproven"),
        (facts(), HERE, 401, "dead"),
        (facts(), HERE, None, "dead"),
    ],
)
def test_only_a_proof_makes_a_run_dead(
    run: dict[str, Any], now: Holder, ticks: int | None, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_db, "_start_ticks", lambda pid: ticks)
    assert prove(run, now) == verdict


def test_a_platform_that_tells_nothing_leaves_the_facts_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, "no procfs")

    monkeypatch.setattr("builtins.open", absent)
    monkeypatch.setattr(os, "readlink", absent)
    holder = Holder.current("1:2")
    assert (holder.boot_id, holder.start_ticks, holder.pid_namespace) == (None, None, None)
    assert (holder.pid, holder.lock) == (os.getpid(), "1:2")


# --- custody


def test_a_ledger_whose_place_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(check_custody, str(tmp_path / "file" / "usage.db")) == "usage_custody"


def test_somebody_elses_ledger_is_refused(path: Path, db: UsageDb, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(
        AuthorityError,
        match=f"belongs to uid {other - 1}, this process is uid {other}: both must be the gateway's user",
    ):
        check_custody(str(path))


def test_a_lock_is_free_after_its_release_and_a_second_release_frees_nothing_else(path: Path) -> None:
    lock = take_lock(str(path))
    assert refusal(take_lock, str(path)) == "usage_lock_held"
    lock.release()
    second = take_lock(str(path))
    assert second.identity == lock.identity
    lock.release()  # its number may be another file's by now
    assert refusal(take_lock, str(path)) == "usage_lock_held"
    second.release()


def test_a_lock_without_a_folder_or_of_another_type_is_refused(tmp_path: Path) -> None:
    assert refusal(take_lock, str(tmp_path / "absent" / "usage.db")) == "usage_custody"
    os.mkfifo(tmp_path / "pipe.lock", 0o600)
    assert refusal(take_lock, str(tmp_path / "pipe")) == "usage_custody"
    (tmp_path / "link.lock").symlink_to(tmp_path / "pipe.lock")
    assert refusal(take_lock, str(tmp_path / "link")) == "usage_custody"


def test_a_lock_of_another_user_is_refused_with_both_users(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(AuthorityError, match=f"belongs to uid {other - 1}, this process is uid {other}") as caught:
        take_lock(str(path))
    assert caught.value.code == "usage_custody"


def test_a_file_system_without_locks_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(AuthorityError, match="cannot be locked") as caught:
        take_lock(str(path))
    assert caught.value.code == "usage_custody"


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_a_lock_file_that_vanishes_under_the_lock_is_taken_again(
    replaced: bool, times: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, name = fcntl.flock, path.with_name("usage.db.lock")
    left = [None] * times

    def flock(fd: int, how: int) -> None:
        real(fd, how)
        if left:
            left.pop()
            name.unlink()
            if replaced:
                name.touch(mode=0o600)

    monkeypatch.setattr(fcntl, "flock", flock)
    if times == 3:
        with pytest.raises(AuthorityError, match="being replaced"):
            take_lock(str(path))
        return
    lock = take_lock(str(path))
    assert lock.identity == f"{name.stat().st_dev}:{name.stat().st_ino}"
    lock.release()


# --- the file


def test_creating_says_why_it_cannot(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(str(path))
    assert refusal(create, str(path)) == "usage_exists"
    with pytest.raises(AuthorityError, match=r"No such file or directory$") as caught:
        create(str(tmp_path / "absent" / "usage.db"))
    assert caught.value.code == "usage_unusable"

    def fail(*_: Any, **__: Any) -> Any:
        raise sqlite3.OperationalError("disk is full")

    monkeypatch.setattr(sqlite3, "connect", fail)
    with pytest.raises(AuthorityError, match=r"disk is full$") as caught:
        create(str(tmp_path / "other.db"))
    assert caught.value.code == "usage_unusable"


@pytest.mark.req("R102")
def test_a_ledger_of_schema_3_is_read_as_it_is_and_migrated_to_what_a_new_one_has(path: Path, tmp_path: Path) -> None:
    old = sqlite3.connect(path)
    for statement in ddl(3):
        old.execute(statement)
    old.execute(f"PRAGMA application_id={usage_db.APPLICATION_ID}")
    old.execute("PRAGMA user_version=3")
    old.execute(
        "INSERT INTO runs(run, run_id, boot_id, pid, start_ticks, started_at) VALUES(5, 'r', 'boot-0', 1, 1, 9)"
    )
    for run in (5, 6):  # of 6 nothing is known
        old.execute(
            "INSERT INTO requests(run, started_at, id, client, kind, endpoint, stream, tier)"
            " VALUES(?, 3, 'x', 'c', 'chat', 'chat', 0, 't')",
            (run,),
        )
    old.commit()
    old.close()
    path.chmod(0o600)
    assert refusal(UsageDb.open, str(path)) == "usage_schema_old"
    db = UsageDb.open(str(path), versions=(3, 4))
    assert db.unresolved_groups() == [(5, "chat", "t", None, 1), (6, "chat", "t", None, 1)]
    answer = db.reconcile(HERE, 99)
    assert [(run.run_id, run.verdict, run.reconciled, run.left) for run in answer.runs] == [
        ("r", "dead", 1, 0),
        ("", "unproven", 0, 1),
    ]
    db.migrate()
    assert db.version == 4
    db.close()
    create(str(tmp_path / "new.db"))
    schema = "SELECT type, name FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"
    assert rows(path, schema) == rows(tmp_path / "new.db", schema)
    for table in ("runs", "requests", "authorities"):
        names = f"SELECT name, type FROM pragma_table_info('{table}')"
        assert rows(path, names) == rows(tmp_path / "new.db", names)
    assert [row["outcome"] for row in rows(path)] == ["interrupted", None]


def test_ends_are_written_the_same_by_an_sqlite_without_update_from(
    path: Path, db: UsageDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = [(n, start_row(n), None) for n in (1, 2, 3)]
    db.write(starts, (), (), {})
    monkeypatch.setattr(usage_db, "_UPDATE_FROM", False)
    db.write((), [(1, finish_row(1)), (2, finish_row(2, completion_tokens=7))], (), {})
    db.write((), [(1, finish_row(1, completion_tokens=1))], (), {})  # an end is final
    assert [row["completion_tokens"] for row in rows(path)] == [40, 7, None]


class Broken:
    """A connection whose rollback fails."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.in_transaction = True

    def execute(self, sql: str, *args: Any) -> Any:
        if sql == "ROLLBACK":
            raise sqlite3.OperationalError("disk I/O error")
        return self.db.execute(sql, *args)

    def twice(self, sql: str) -> None:
        for _ in range(2):
            self.db.execute(sql)

    def close(self) -> None:
        self.db.close()
        raise sqlite3.OperationalError("unable to close")


def test_a_connection_that_cannot_roll_back_is_replaced_and_nothing_of_it_is_kept(path: Path, db: UsageDb) -> None:
    db._db = Broken(db._db)  # type: ignore[assignment]
    with pytest.raises(sqlite3.IntegrityError), db.transaction() as connection:
        connection.twice("INSERT INTO authorities VALUES('a', 1)")  # type: ignore[attr-defined]
    assert db.max_route_revision("a") is None
    db.write([(1, start_row(1), None)], (), (), {"a": 3})
    assert db.max_route_revision("a") == 3


@pytest.mark.parametrize(
    ("free", "said"),
    [(0, "disk I/O error: the disk is full"), (1 << 30, "disk I/O error"), (None, "disk I/O error")],
)
def test_a_full_disk_is_said_where_sqlite_calls_it_an_error_of_the_disk(
    path: Path, db: UsageDb, monkeypatch: pytest.MonkeyPatch, free: int | None, said: str
) -> None:
    """SQLite does so where the index of the WAL must grow, which is the first thing that anybody needs who opens it."""
    real = os.statvfs(path.parent)

    def statvfs(_: str) -> SimpleNamespace:
        if free is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return SimpleNamespace(f_bavail=free, f_bfree=free, f_frsize=real.f_frsize)

    monkeypatch.setattr(os, "statvfs", statvfs)

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError) as failed, db.transaction():
        fail()
    assert str(failed.value) == said
    monkeypatch.setattr(UsageDb, "_connect", fail)
    with pytest.raises(AuthorityError) as refused:
        UsageDb.open(str(path), readonly=True)
    assert refused.value.message == f"{path}: {said}"


def test_a_transaction_that_sqlite_has_ended_is_not_rolled_back_again(db: UsageDb) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no transaction"), db.transaction() as connection:
        connection.execute("ROLLBACK")  # as SQLite itself does when the disk is full
    db.write([(1, start_row(1), None)], (), (), {})
    assert (db.count(1), db.count(2), db.count()) == (0, 1, 1)


def test_a_row_is_found_by_its_newest_use_and_for_its_own_client_only(db: UsageDb) -> None:
    db.write([(1, start_row(1, id="x"), None), (2, start_row(2, id="x", client="c"), None)], (), (), {})
    for client, seq in ((None, 2), ("default", 1), ("other", None)):
        found = db.find("x", client, 100)
        assert (None if found is None else found["seq"]) == seq
    assert db.find("x", "default", 1) is None
    names, answers = db.select("SELECT seq, client FROM requests WHERE id=? ORDER BY seq", ("x",))
    assert (names, list(answers)) == (["seq", "client"], [(1, "default"), (2, "c")])


def test_pruning_leaves_what_is_unresolved_and_what_is_newer(db: UsageDb) -> None:
    db.write([(1, start_row(1), None)], (), [(n, start_row(n), refused(n)) for n in (2, 3, 4)], {})
    before = start_row(4).started_at
    assert [db.prune(before, 1), db.prune(before, 9), db.prune(before, 9)] == [1, 1, 0]
    assert [row[0] for row in db.select("SELECT seq FROM requests ORDER BY seq")[1]] == [1, 4]


def test_a_backup_is_whole_or_absent(path: Path, db: UsageDb, tmp_path: Path) -> None:
    db.write([(1, start_row(1), None)], (), (), {})
    db.backup(str(tmp_path / "copy"))
    assert [row["id"] for row in rows(tmp_path / "copy")] == ["r1"]
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        db.backup(str(tmp_path / "copy"))
    assert (tmp_path / "copy").exists()
    db.close()
    with pytest.raises(sqlite3.ProgrammingError):
        db.backup(str(tmp_path / "second"))
    assert not (tmp_path / "second").exists()


def test_an_instant_is_shown_in_utc_and_nothing_as_nothing() -> None:
    assert at(1_780_000_000_001) == "2026-05-28T20:26:40.001Z"
    assert at(None) is None
