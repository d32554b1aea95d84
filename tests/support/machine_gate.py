"""The body of the gate's searches: each of the bounds has a file with a class, for workers share files."""

from __future__ import annotations

import pytest

from tests.support.machine_docs import PAGE
from tests.support.machine_search import GATE, report
from tests.support.machine_world import remember_pure_results


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
class Search:
    """Every interleaving of the machine with clients, disk, upstream and operator, within the bounds of that name."""

    NAME: str

    @pytest.fixture(autouse=True)
    def _memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        remember_pure_results(monkeypatch.setattr)

    def test_every_reachable_world_keeps_every_invariant(self) -> None:
        found = report(dict(GATE)[self.NAME], self.NAME)
        assert found.violation is None, found.path
        assert found.complete
        row = f"| {self.NAME} | {found.states:,} | {found.transitions:,} |"
        assert row in PAGE.read_text("utf-8"), f"docs/live-routes-machine.md must say: {row}"
