"""Every interleaving of the machine with clients, disk, upstream and operator, within bounds; and the mutants."""

from __future__ import annotations

import pytest

from tests.support.machine_docs import PAGE
from tests.support.machine_mutants import MUTANTS, SURVIVORS
from tests.support.machine_search import GATE, report, report_mutant
from tests.support.machine_world import Bounds, Mutant, remember_pure_results


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_pure_results(monkeypatch.setattr)


@pytest.mark.invariant(
    "INV-1",
    "INV-2",
    "INV-3",
    "INV-4",
    "INV-5",
    "INV-6",
    "INV-7",
    "INV-8",
    "INV-9",
    "INV-10",
    "INV-12",
    "INV-14",
    "INV-17",
    "INV-18",
    "INV-19",
    "INV-20",
    "INV-22",
)
@pytest.mark.req(
    "R12", "R18", "R25", "R32", "R34", "R36", "R38", "R40", "R50", "R71", "R81", "R82", "R84", "R87", "R89"
)
@pytest.mark.parametrize(("name", "bounds"), GATE, ids=[name for name, _ in GATE])
def test_every_reachable_world_keeps_every_invariant(name: str, bounds: Bounds) -> None:
    found = report(bounds, name)
    assert found.violation is None, found.path
    assert found.complete
    row = f"| {name} | {found.states:,} | {found.transitions:,} |"
    assert row in PAGE.read_text("utf-8"), f"docs/live-routes-machine.md must say: {row}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_is_caught_with_a_counterexample(mutant: Mutant) -> None:
    found = report_mutant(mutant)
    assert found.violation is not None, f"{mutant.name} survived {found.states} states"
    assert found.violation.invariant == mutant.invariant
    assert found.path


@pytest.mark.parametrize("mutant", [mutant for mutant, _ in SURVIVORS], ids=[mutant.name for mutant, _ in SURVIVORS])
def test_survivor_is_still_one(mutant: Mutant) -> None:
    """A survivor that is caught one day no longer needs its explanation."""
    found = report_mutant(mutant)
    assert found.complete
    assert found.violation is None
