"""A migration that is killed, or whose disk is full, at any of its writes loses nothing and can be run again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sndr.router import usage
from sndr.router.store.usage_db import UsageDb
from tests.support import victims
from tests.support.cli import environment
from tests.support.ledger import rows
from tests.support.ledger_v3 import write_v3

MIGRATE = "import sys; from sndr.router import usage; usage.migrate(sys.argv[1], confirm=True, backup=sys.argv[2])"
CALLS = {"pwrite64": 60, "fsync": 4, "fdatasync": 8, "rename": 1, "unlink": 6, "ftruncate": 2}
"""Call -> highest number that is tried; a series ends where the migration makes no more of them."""


def _migrate(path: Path, copy: Path, inject: str) -> subprocess.CompletedProcess[str]:
    words = ["strace", "-f", "-o", "/dev/null", "-e", "trace=pwrite64,fsync,fdatasync,rename,unlink,ftruncate"]
    return subprocess.run(
        [*words, "-e", f"inject={inject}", victims.interpreter(), "-c", MIGRATE, str(path), str(copy)],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def _content(path: Path) -> Sequence[object]:
    columns = "seq, run, started_at, id, outcome, prompt_tokens, completion_tokens, response_bytes"
    return rows(path, f"SELECT {columns} FROM requests ORDER BY seq")


def _check_whole(path: Path, before: Sequence[object], version: int | None = None) -> None:
    db = UsageDb.open(str(path), readonly=True, versions=(3, 4) if version is None else (version,))
    try:
        assert next(iter(db.select("PRAGMA integrity_check")[1])) == ("ok",)
    finally:
        db.close()
    assert _content(path) == before


@pytest.mark.req("R98", "R99")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", ["signal=SIGKILL", "error=ENOSPC"])
def test_a_migration_that_fails_at_a_call_loses_nothing_and_can_be_run_again(
    tmp_path: Path, call: str, fault: str
) -> None:
    missing = victims.strace_missing()
    if missing:
        pytest.skip(missing)
    hit = False
    step = 5 if call == "pwrite64" else 1
    for when in range(1, CALLS[call] + 1, step):
        folder = tmp_path / str(when)
        folder.mkdir(mode=0o700)
        path, copy = folder / "usage.db", folder / "copy.db"
        write_v3(path, rows=60)
        before = _content(path)
        failed = _migrate(path, copy, f"{call}:{fault}:when={when}{'' if 'KILL' in fault else '+'}")
        if failed.returncode == 0 and copy.exists() and "KILL" in fault:
            break  # the migration makes no more of these calls
        hit = hit or failed.returncode != 0
        _check_whole(path, before)
        if copy.exists():
            _check_whole(copy, before, 3)
        again = usage.migrate(str(path), confirm=True, backup=str(folder / "second.db"))
        assert again.to_schema == 4
        _check_whole(path, before, 4)
        left = {name for name in os.listdir(folder) if not name.startswith(".")}
        assert left <= {"usage.db", "usage.db.lock", "usage.db-wal", "usage.db-shm", "copy.db", "second.db"}
    assert hit or "KILL" not in fault, f"the migration makes no call {call}"


def test_the_victim_migrates_when_nothing_is_done_to_it(tmp_path: Path) -> None:
    path, copy = tmp_path / "usage.db", tmp_path / "copy.db"
    write_v3(path, rows=60)
    done = subprocess.run(
        [sys.executable, "-c", MIGRATE, str(path), str(copy)], env=environment(), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    _check_whole(copy, _content(path), 3)
