"""The deliberate mutants of the machine, each of which the search must catch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.machine_mutants import MUTANTS, SURVIVORS
from tests.support.machine_search import GATE, report_mutant
from tests.support.machine_world import Mutant, remember_pure_results


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_pure_results(monkeypatch.setattr)


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


def test_every_bounds_of_the_gate_have_a_file() -> None:
    files = Path(__file__).parent.glob("test_machine_search_*.py")
    names = re.findall(r'^    NAME = "(.*)"$', "".join(file.read_text("utf-8") for file in files), re.MULTILINE)
    assert sorted(names) == sorted(name for name, _ in GATE)
