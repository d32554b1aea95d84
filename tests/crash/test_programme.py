"""The long programmes start, find nothing in a moment, and go on where they were stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.faults import SAME
from tests.support import victims
from tests.support.cli import ROOT, environment
from tests.support.fault_family import inject


def programme(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.scenario("S12")
@pytest.mark.req("R69", "R78", "R71")
@pytest.mark.invariant("INV-1", "INV-12")
def test_system_calls_fail_in_every_operation_at_once(tmp_path: Path) -> None:
    missing = victims.strace_missing()
    if missing:
        pytest.skip(missing)
    done = programme("tests.crash.faults", "--keep", str(tmp_path), "--faults", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    first = (tmp_path / "faults.jsonl").read_text().splitlines()
    assert [json.loads(line)["reached"] for line in first] == [8] * 5
    with (tmp_path / "faults.jsonl").open("a") as file:
        file.write('{"call": "fsync", "act')  # a kill in the middle of a line
    done = programme("tests.crash.faults", "--keep", str(tmp_path), "--faults", "56")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "faults.jsonl").read_text().splitlines()
    assert (lines[: len(first)], len(lines)) == (first, 7)


@pytest.mark.req("R69")
def test_the_rename_itself_is_failed(tmp_path: Path) -> None:
    """It is the commit; which call it is depends on the machine, and a name that nobody calls fails nothing."""
    missing = victims.strace_missing()
    if missing:
        pytest.skip(missing)
    for names in SAME:
        tally = victims.Tally()
        reached = 0
        for call in names:
            folder = tmp_path / call
            folder.mkdir()
            reached += inject(tally, folder, call, "error=EIO", 1)
        assert (reached >= 8, tally.violations) == (True, []), names


@pytest.mark.req("R57", "R72", "R96")
@pytest.mark.invariant("INV-12")
def test_damaged_files_and_bodies_have_an_answer() -> None:
    done = programme("tests.crash.fuzz", "--seconds", "3", "--seed", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout
