"""`sndr router usage …` as an operator runs it: on files, beside a running ledger, after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import os
import sqlite3
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sndr.cli import main
from sndr.errors import InputError
from sndr.router import usage
from sndr.router.store.ledger import UsageLedger, UsageStore
from sndr.router.store.usage_db import UsageDb
from tests.support.ledger import DAY_MS, finish_row, refused, rows, running, start_row, started
from tests.support.ledger_v3 import write_v3

ROOT = Path(__file__).parents[2]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def sndr(*args: str) -> Done:
    """A verb through the command line's edge, in this process: the start of an interpreter is not what is tested."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.run(main.module_root(), ["router", "usage", *args], "sndr")
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.db"


async def fill(ledger: UsageLedger) -> None:
    """Three completed, one gone, one refused, one open."""
    for n in range(4):
        changes = {"outcome": "client_gone", "completion_tokens": 7} if n == 3 else {}
        row = start_row(n, alias="a" if n < 2 else "b", route_revision=n // 2 + 1, authority_id="x")
        ledger.finish(await started(ledger, row), finish_row(n, **changes))
    ledger.refuse(start_row(4, alias=None, tier=None, started_at=start_row().started_at + DAY_MS), refused(4))
    await started(ledger, start_row(5, alias="b"))
    await ledger.flush()


def crash_with_open_rows(path: Path) -> None:
    """Fill a ledger in a process that is killed."""
    code = (
        "import asyncio, os, signal, sys; from pathlib import Path\n"
        "from tests.e2e.test_usage_verbs import fill\n"
        "from tests.support.ledger import running\n"
        "async def main():\n"
        "    async with running(Path(sys.argv[1])) as ledger:\n"
        "        await fill(ledger)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, timeout=60)
    assert done.returncode == -9


def test_reading_works_beside_a_running_ledger(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            await fill(ledger)
            loop = asyncio.get_running_loop()
            found = json.loads((await loop.run_in_executor(None, sndr, "report", "--file", str(path), "--json")).stdout)
            by_key = {group["key"]: group for group in found["groups"]}
            assert {key: group["requests"] for key, group in by_key.items()} == {None: 1, "a": 2, "b": 3}
            assert (by_key["b"]["completed"], by_key["b"]["client_gone"], by_key["b"]["unresolved"]) == (1, 1, 1)
            assert (by_key["b"]["prompt_tokens"], by_key["b"]["completion_tokens"]) == (24, 47)
            assert by_key[None]["refused"] == 1
            status = json.loads(
                (await loop.run_in_executor(None, sndr, "status", "--file", str(path), "--json")).stdout
            )
            assert (status["rows"], status["unresolved"], status["schema"]) == (6, 1, 4)
            assert [run["verdict"] for run in status["runs"]] == ["unproven"]  # it runs
            assert status["authorities"] == [{"authority_id": "x", "max_route_revision": 2}]
            refused_verb = await loop.run_in_executor(None, sndr, "reconcile", "--file", str(path), "--confirm")
            assert (refused_verb.returncode, "usage_lock_held" in refused_verb.stderr) == (3, True)
            assert ledger.unresolved().total == 1

    asyncio.run(test())


def test_the_fastest_requests_count_in_the_coverage(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            for n, ms in enumerate((0, 0, 10)):
                row = start_row(n, routing='{"model_family":"f","outcome":"rule"}', queue_ms=0)
                ledger.finish(await started(ledger, row), finish_row(n, completion_tokens=20, total_ms=ms))

    asyncio.run(test())
    (family,) = usage.coverage(str(path))["families"]
    (sibling,) = family["siblings"]
    assert (sibling["completed"], sibling["completion_tokens"], sibling["tokens_per_s_median"]) == (3, 60, 20_000.0)


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("tier", [None, "primary"]),
        ("client", ["default"]),
        ("revision", [None, 1, 2]),
        ("day", ["2026-05-28", "2026-05-29"]),
    ],
)
def test_report_groups(path: Path, by: str, keys: list[Any]) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            await fill(ledger)

    asyncio.run(test())
    found = usage.report(str(path), by)
    assert [group["key"] for group in found["groups"]] == keys
    assert sum(group["requests"] for group in found["groups"]) == 6
    assert usage.report(str(path), by, usage.parse_instant("2026-05-29"))["groups"][0]["requests"] == 1


def test_export_in_both_forms_has_every_column(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            await fill(ledger)

    asyncio.run(test())
    lines = [json.loads(line) for line in sndr("export", "--file", str(path)).stdout.splitlines()]
    assert len(lines) == 6
    assert lines[0]["started_at"].endswith("Z")
    assert (lines[0]["id"], lines[0]["stream"], lines[0]["outcome"]) == ("r0", True, "completed")
    names = {name for name in rows(path)[0] if name != "run"} | {"run_id"}
    assert set(lines[0]) == names
    table = list(csv.DictReader(io.StringIO(sndr("export", "--file", str(path), "--format", "csv").stdout)))
    assert [row["id"] for row in table] == [line["id"] for line in lines]
    assert table[5]["outcome"] == ""
    assert set(table[0]) == names


def test_prune_never_takes_an_unresolved_row(path: Path) -> None:
    async def test() -> None:
        async with running(path) as ledger:
            await fill(ledger)
            loop = asyncio.get_running_loop()
            would = await loop.run_in_executor(None, sndr, "prune", "--file", str(path), "--before", "2026-05-29")
            assert (would.returncode, would.stdout) == (0, "4 rows would be deleted; add --confirm\n")
            assert len(rows(path)) == 6
            args = ("prune", "--file", str(path), "--before", "2026-05-29", "--confirm", "--json")
            done = await loop.run_in_executor(None, sndr, *args)  # beside the running ledger
            assert json.loads(done.stdout)["rows"] == 4
            assert [row["outcome"] for row in rows(path)] == ["refused", None]
            await started(ledger, start_row(9))

    asyncio.run(test())


@pytest.mark.req("R101")
def test_reconcile_after_a_kill(path: Path) -> None:
    crash_with_open_rows(path)
    before = sndr("reconcile", "--file", str(path))
    assert (before.returncode, "nothing was changed" in before.stdout) == (0, True)
    assert rows(path)[-1]["outcome"] is None
    done = sndr("reconcile", "--file", str(path), "--confirm", "--json")
    answer = json.loads(done.stdout)
    assert (answer["reconciled"], answer["left"], answer["runs"][0]["verdict"]) == (1, 0, "dead")
    assert rows(path)[-1]["outcome"] == "interrupted"
    assert json.loads(sndr("reconcile", "--file", str(path), "--confirm", "--json").stdout)["reconciled"] == 0


@pytest.mark.req("R101")
def test_reconcile_leaves_a_run_that_may_be_alive(path: Path, tmp_path: Path) -> None:
    """A copy of a running gateway's ledger, restored elsewhere: another lock, and the process lives."""

    async def test() -> None:
        async with running(path) as ledger:
            await fill(ledger)
            await ledger.backup(str(tmp_path / "copy.db"))

    copy = tmp_path / "copy.db"
    asyncio.run(test())
    answer = usage.reconcile(str(copy))
    assert (answer.reconciled, answer.left, answer.runs[0].verdict) == (0, 1, "unproven")
    assert [row["outcome"] for row in rows(copy)][-1] is None


def test_backup_of_a_running_ledger_is_whole_and_restores(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"

    async def test() -> None:
        async with running(path) as ledger:
            await fill(ledger)
            open_rows = [asyncio.ensure_future(started(ledger, start_row(n))) for n in range(100)]
            await ledger.backup(str(copy))
            await asyncio.gather(*open_rows)
            with pytest.raises(FileExistsError):
                await ledger.backup(str(copy))

    asyncio.run(test())
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    db = UsageDb.open(str(copy), readonly=True)
    assert db.select("PRAGMA integrity_check")[1].__next__() == ("ok",)
    assert db.count() >= 6
    assert db.max_route_revision("x") == 2
    db.close()
    path.unlink()
    os.replace(copy, path)
    restored = UsageStore.open(str(path), may_create=False)
    assert sum(group[4] for group in restored.earlier) >= 1  # a restore needs a reconcile
    restored.close()


def dump(path: Path, columns: list[str]) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(path)
    db.text_factory = bytes
    try:
        return db.execute(
            f"SELECT {','.join(f'quote({c}), typeof({c})' for c in columns)} FROM requests ORDER BY seq"
        ).fetchall()
    finally:
        db.close()


@pytest.mark.req("R98")
def test_migration_keeps_old_values_and_totals(path: Path) -> None:
    write_v3(path, rows=500)
    columns = list(rows(path)[0])
    before = dump(path, columns)
    would = sndr("migrate", "--file", str(path))
    assert (would.returncode, "add --confirm" in would.stdout) == (0, True)
    assert rows(path, "PRAGMA user_version")[0]["user_version"] == 3
    with pytest.raises(Exception, match="schema 3"):
        UsageStore.open(str(path))
    nowhere = sndr("migrate", "--file", str(path), "--confirm", "--backup", str(path.parent / "none" / "copy.db"))
    assert (nowhere.returncode, ": usage_backup_failed: " in nowhere.stderr) == (2, True)
    assert rows(path, "PRAGMA user_version")[0]["user_version"] == 3
    done = json.loads(sndr("migrate", "--file", str(path), "--confirm", "--json").stdout)
    assert (done["from_schema"], done["to_schema"], done["rows"], done["applied"]) == (3, 4, 500, True)
    assert dump(path, columns) == before
    added = [name for name in rows(path)[0] if name not in columns]
    assert added == [
        "tier_generation", "authority_id", "route_revision", "effective_route_sha256", "admission_seq", "release_seq",
        "routing",
    ]  # fmt: skip
    assert all(row[name] is None for row in rows(path) for name in added)
    backup = Path(done["backup"])
    assert dump(backup, columns) == before
    assert (rows(backup, "PRAGMA user_version")[0]["user_version"], stat.S_IMODE(backup.stat().st_mode)) == (3, 0o600)
    again = sndr("migrate", "--file", str(path), "--confirm")
    assert (again.returncode, again.stdout) == (0, f"{path}: has schema 4 already\n")

    async def use() -> None:
        async with running(path) as ledger:
            ledger.finish(await started(ledger, start_row(1)), finish_row(1))

    asyncio.run(use())
    assert len(rows(path)) == 501


def test_a_migrated_ledger_has_the_layout_of_a_new_one(path: Path, tmp_path: Path) -> None:
    write_v3(path)
    usage.migrate(str(path), confirm=True)
    fresh = tmp_path / "fresh.db"
    UsageStore.open(str(fresh)).close()
    for table in ("requests", "runs", "authorities"):
        query = f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')"
        assert rows(path, query) == rows(fresh, query)
    query = "SELECT type, name FROM sqlite_master ORDER BY name"
    assert rows(path, query) == rows(fresh, query)


@pytest.mark.req("R99")
def test_unresolved_rows_block_the_migration_until_reconciled(path: Path) -> None:
    write_v3(path, rows=5, unresolved=3)
    before = path.read_bytes()
    refused_verb = sndr("migrate", "--file", str(path), "--confirm")
    assert refused_verb.returncode == 3
    assert "usage_unresolved" in refused_verb.stderr
    assert "3 of tier primary in run 2" in refused_verb.stderr
    assert (path.read_bytes(), sorted(p.name for p in path.parent.glob("usage.db.schema3*"))) == (before, [])
    answer = json.loads(sndr("reconcile", "--file", str(path), "--confirm", "--json").stdout)
    assert answer["reconciled"] == 3
    assert sndr("migrate", "--file", str(path), "--confirm").returncode == 0


@pytest.mark.req("R99")
def test_legacy_rows_of_a_process_that_may_live_are_left_alone(path: Path) -> None:
    write_v3(path, rows=1, unresolved=1, pid=os.getpid())
    assert usage.reconcile(str(path)).left == 1  # schema 3 did not record the pid namespace: nothing is proven
    assert sndr("migrate", "--file", str(path), "--confirm").returncode == 3


ODD = {
    "no table of runs": ("DROP TABLE runs", "the columns of the table runs"),
    "no table of requests": ("DROP TABLE requests", "no such table: requests"),
    "a column of schema 4": ("ALTER TABLE requests ADD COLUMN routing TEXT", "the columns of the table requests"),
    "a name of schema 4": ("CREATE INDEX requests_unresolved ON requests(run)", "something named requests_unresolved"),
    "another table of schema 4": ("CREATE TABLE authorities(x)", "something named authorities"),
}


@pytest.mark.req("R98")
@pytest.mark.parametrize("odd", ODD)
def test_a_ledger_that_is_not_of_schema_3_is_refused_before_it_is_copied(path: Path, odd: str) -> None:
    statement, said = ODD[odd]
    write_v3(path, rows=5)
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()
    before = path.read_bytes()
    for more in ((), ("--confirm",)):
        done = sndr("migrate", "--file", str(path), *more)
        assert (done.returncode, said in done.stderr, len(done.stderr.splitlines())) == (2, True, 1), done.stderr
    assert path.read_bytes() == before
    assert list(path.parent.glob("*schema3*")) == []


def test_a_schema_that_is_older_than_any_is_not_sent_in_circles(path: Path) -> None:
    write_v3(path, rows=1)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=2")
    db.close()
    done = sndr("migrate", "--file", str(path), "--confirm")
    assert (done.returncode, "usage_schema_old" in done.stderr, "run: sndr" in done.stderr) == (2, True, False)


@pytest.mark.req("R98", "R99")
def test_what_an_old_ledger_may_hold_is_migrated_and_read(path: Path) -> None:
    """Numbers that no calendar has, text that is no UTF-8, bytes where text belongs, and nothing where it may be."""
    write_v3(path, rows=6, unresolved=1)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE requests SET started_at=9223372036854775807, ended_at=-9223372036854775808 WHERE seq=1")
    db.execute("UPDATE requests SET id=CAST(? AS TEXT), finish_reason=CAST(? AS TEXT) WHERE seq=2", (b"a\xff", b"\x80"))
    db.execute("UPDATE requests SET id=?, error_code=? WHERE seq=3", (b"\x00\xff", b"x"))
    db.execute(
        "UPDATE requests SET alias=NULL, status=NULL, prompt_source=NULL, queue_ms='no', total_ms=1e300 WHERE seq=4"
    )
    db.execute("UPDATE requests SET tier=CAST(? AS TEXT) WHERE seq=7", (b"\xfe",))
    db.close()
    columns = list(rows(path, "SELECT * FROM requests WHERE seq=1")[0])
    assert sndr("status", "--file", str(path)).returncode == 0
    done = sndr("migrate", "--file", str(path), "--confirm")
    assert (done.returncode, "1 of tier \\xfe in run 2" in done.stderr) == (3, True), done.stderr
    assert sndr("reconcile", "--file", str(path), "--confirm").returncode == 0
    before = dump(path, columns)
    assert sndr("migrate", "--file", str(path), "--confirm").returncode == 0
    assert dump(path, columns) == before
    for words in (("status",), ("report",), ("report", "--by", "day"), ("export", "--format", "csv")):
        done = sndr(*words, "--file", str(path))
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stderr)
    lines = [json.loads(line) for line in sndr("export", "--file", str(path)).stdout.splitlines()]
    assert (lines[0]["started_at"], lines[0]["ended_at"]) == (None, None)
    assert [line["id"] for line in lines[1:3]] == ["a\\xff", "\x00\\xff"]
    assert len(lines) == 7


def test_a_report_adds_whatever_numbers_an_old_ledger_holds(path: Path) -> None:
    most = 2**63 - 1
    write_v3(path, rows=4, unresolved=0)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE requests SET alias='one', prompt_tokens=?, completion_tokens=-7, response_bytes=NULL", (most,))
    db.execute("UPDATE requests SET prompt_tokens=5, completion_tokens=3, response_bytes=? WHERE seq=1", (most,))
    db.close()
    assert sndr("migrate", "--file", str(path), "--confirm").returncode == 0
    done = sndr("report", "--file", str(path), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (group,) = json.loads(done.stdout)["groups"]
    assert (group["prompt_tokens"], group["completion_tokens"]) == (3 * most + 5, -18)
    assert (group["cached_tokens"], group["response_bytes"]) == (0, most)
    assert list(group)[-6:] == [
        "prompt_tokens", "completion_tokens", "cached_tokens", "completed_without_usage", "request_bytes",
        "response_bytes",
    ]  # fmt: skip
    assert str(3 * most + 5) in sndr("report", "--file", str(path)).stdout


def test_a_running_ledger_refuses_the_migration(path: Path) -> None:
    store = UsageStore.open(str(path))
    done = sndr("migrate", "--file", str(path), "--confirm")
    assert (done.returncode, "usage_lock_held" in done.stderr) == (3, True)
    store.close()


def test_bad_input_is_one_line(path: Path) -> None:
    for args, code, words in (
        (("status",), 2, "--config FILE or --file FILE"),
        (("status", "--file", str(path)), 2, "usage_store_missing"),
        (("report", "--file", str(path), "--by", "moon"), 2, "moon"),
        (("export", "--file", str(path), "--since", "yesterday"), 2, "YYYY-MM-DD"),
        (("reconcile", "--file", str(path), "--confirm"), 2, "usage_store_missing"),
    ):
        done = sndr(*args)
        assert (done.returncode, done.stdout) == (code, ""), args
        assert len(done.stderr.splitlines()) == 1
        assert words in done.stderr


def test_instants() -> None:
    assert usage.parse_instant("1970-01-02") == DAY_MS
    assert usage.parse_instant("1970-01-01T00:00:01.5Z") == 1500
    assert usage.parse_instant("1970-01-01T01:00:00+01:00") == 0
    assert usage.parse_instant("2d", now_ms=3 * DAY_MS) == DAY_MS
    assert usage.parse_instant("90min", now_ms=5_400_000) == 0
    for text in ("", "d", "-1d", "1y", "1.5d", "0x10s", "\u0663d"):
        with pytest.raises(InputError):
            usage.parse_instant(text)
