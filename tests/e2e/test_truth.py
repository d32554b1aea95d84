"""Ledger, clients and model servers tell the same story, also when the gateway is killed in between.

Ten times as much: `python -m tests.support.truth --requests 100000 --kills 20`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.ledger import finish_row, start_row
from tests.support.truth import Seen, judge, run

REQUESTS = int(os.environ.get("SNDR_TRUTH_REQUESTS", "10000"))


@pytest.mark.req("R36", "R97", "R101")
def test_every_request_is_told_alike_by_all_three() -> None:
    report = run(REQUESTS, kills=6, seed=20)
    assert report.faults == []
    assert set(report.outcomes) == {
        "completed", "client_gone", "upstream_reset", "upstream_timeout", "upstream_error", "refused", "interrupted",
    }  # fmt: skip
    # Kills lose nothing but requests that had not begun: each kill meets at most every client once.
    assert report.without_row <= 6 * 48


def story(**changes: Any) -> tuple[list[Seen], list[dict[str, Any]], list[dict[str, Any]]]:
    """A request that completed, seen from three sides; `side__member=value` changes one of them."""
    seen = Seen("a", "complete", False, 1.0, 2.0, 200, complete=True, bytes=9120, tokens=40)
    row = {**start_row(1, id="a")._asdict(), **finish_row(1, completion_tokens=40)._asdict()}
    call = {"id": "a", "ended": "complete", "usage_sent": True, "tokens": 40, "prompt_tokens": 12}
    for name, value in changes.items():
        side, _, member = name.partition("__")
        if side == "seen":
            setattr(seen, member, value)
        else:
            {"row": row, "call": call}[side][member] = value
    return [seen], [row], [call]


def test_a_consistent_story_is_believed() -> None:
    assert judge(*story(), (), {"reconciled": 0, "left": 0}).faults == []


@pytest.mark.parametrize(
    "changes",
    [
        {"row__outcome": None},
        {"row__outcome": "interrupted"},
        {"row__outcome": "client_gone"},
        {"row__outcome": "upstream_reset"},
        {"row__outcome": "upstream_timeout"},
        {"row__outcome": "upstream_error"},
        {"row__outcome": "shutdown_cut"},
        {"row__outcome": "refused"},
        {"row__status": 502},
        {"row__completion_tokens": 39},
        {"row__prompt_tokens": None},
        {"row__response_bytes": 9119},
        {"row__finish_reason": "length"},
        {"row__retries": 1},
        {"row__id": "b"},
        {"call__ended": "reset"},
        {"call__usage_sent": False},
        {"call__id": "b"},
        {"seen__complete": False},
        {"seen__tokens": 39},
        {"seen__status": 500},
    ],
)
def test_a_contradiction_is_noticed(changes: dict[str, Any]) -> None:
    assert judge(*story(**changes), (), {"reconciled": 0, "left": 0}).faults


def test_lost_and_doubled_rows_are_noticed() -> None:
    seen, rows, calls = story()
    clean = {"reconciled": 0, "left": 0}
    assert judge(seen, [], [], (), clean).faults  # no kill, and no row
    assert judge(seen, [], calls, ((0.5, 3.0),), clean).faults  # a kill does not excuse a dispatch without a row
    assert not judge(seen, [], [], ((0.5, 3.0),), clean).faults
    assert judge(seen, rows * 2, calls, (), clean).faults
    assert judge(seen, rows, calls, (), {"reconciled": 1, "left": 0}).faults
