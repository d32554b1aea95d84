"""The same promises with real processes, real signals, and faults injected where Python cannot see them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import victims
from tests.support.victims import Tally

STARTS_MAX = 60
ALL = Tally()


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sndr-crash-") as name:
        yield Path(name)


@pytest.mark.req("R12", "R39", "R78")
@pytest.mark.invariant("INV-1", "INV-2", "INV-12")
@pytest.mark.parametrize(("operation", "first", "step"), [("W2", 0, 1), ("init", 8, 3), ("W0", 14, 4)])
def test_a_process_killed_at_any_disk_call_loses_nothing_it_was_told(
    operation: str, first: int, step: int, root: Path
) -> None:
    killed = 0
    for call in range(first, 40, step):
        if not victims.kill_at(ALL, root, operation, call):
            break
        killed += 1
    assert ALL.violations == []
    assert killed >= 4
    assert ALL.told > 0


@pytest.mark.scenario("S12")
@pytest.mark.parametrize(
    ("operation", "call", "action", "when"),
    [
        ("W2", "fsync", "error=EIO", 1),
        ("W2", "fsync", "error=EIO", 2),
        ("W2", "fsync", "signal=SIGKILL", 1),
        ("W2", "fsync", "signal=SIGKILL", 2),
        ("W2", "write", "error=ENOSPC", 1),
        ("W2", "write", "retval=1000", 1),
        ("init", "fsync", "error=EIO", 2),
        ("W0", "fsync", "error=EIO", 3),
    ],
)
def test_a_system_call_that_fails_outside_python_is_told_as_it_is(
    operation: str, call: str, action: str, when: int, root: Path
) -> None:
    missing = victims.strace_missing()
    if missing:
        pytest.skip(missing)
    if action.startswith("retval"):
        # The kernel wrote nothing and says 1000 bytes: the size check must see it.
        action = "retval=1000"
    assert victims.inject(ALL, root, operation, call, action, when)
    assert ALL.violations == []


@pytest.mark.scenario("S10")
@pytest.mark.invariant("INV-1")
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_of_a_real_file_system_loses_nothing_that_was_told(kind: str, root: Path) -> None:
    missing = victims.power_missing(kind)
    if missing:
        pytest.skip(missing)
    with victims.volume(root, kind) as (image, point):
        for seed in range(4):
            victims.cut_power(ALL, image, point, random.Random(seed))
    assert ALL.violations == []


def test_the_number_of_processes_stays_small() -> None:
    print(f"{ALL.starts} processes, {ALL.runs} runs, {ALL.told} answers")
    assert ALL.starts <= STARTS_MAX
