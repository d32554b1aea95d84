"""Two hundred streams, and the routes under them change all the time: nobody outside a scope loses anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.changes import OUTSIDE, Operations, judge, kinds, operate, plane
from tests.support.traffic import Traffic

SECONDS = 30
DELAY_MS = 250


@pytest.mark.scenario("S1", "S2")
@pytest.mark.req("R1", "R2", "R11", "R12", "R15", "R18", "R20", "R26", "R29", "R34", "R35", "R37", "R45", "R48")
def test_changes_under_two_hundred_streams(tmp_path: Path) -> None:
    operations = Operations()
    with plane(tmp_path, processes=False) as running:
        operations.begin(running)
        load = kinds(clients=200, delay_ms=DELAY_MS, outside_s=8)
        with Traffic(running.url, load, pollers=8) as traffic:
            operate(running, operations, seconds=SECONDS, moves=10, replacements=3)
        operations.end()
        verdict = judge(running, traffic, operations)
    assert verdict.faults() == {}
    assert len(operations.committed) == 14
    assert all(len(seen) > 20 and len(set(seen)) > 5 for seen in traffic.polls)
    assert all(traffic.counts(alias)["whole"] >= 50 for alias in ("p", "q", *OUTSIDE))
