"""A storm of half a minute; and what the judge of storms must see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.storm.history import Asked, History, Observation, judge
from tests.storm.storm import Storm, secrets_in
from tests.support.kept import keep, results

STORM_S = 24  # and its start, settlement and judgement


@pytest.mark.scenario("S25")
@pytest.mark.req("R11", "R12", "R17", "R20", "R21", "R29", "R31", "R34", "R37", "R97")
@pytest.mark.invariant(
    "INV-1",
    "INV-2",
    "INV-3",
    "INV-4",
    "INV-5",
    "INV-6",
    "INV-7",
    "INV-8",
    "INV-10",
    "INV-11",
    "INV-12",
    "INV-19",
    "INV-20",
    "INV-21",
    "INV-22",
    "INV-23",
    "INV-24",
)
def test_a_storm_breaks_nothing(tmp_path: Path) -> None:
    report = Storm(tmp_path / "storm", 7, STORM_S).run()
    assert report.violations == []
    assert secrets_in(tmp_path) == []
    assert report.kills >= 2
    assert report.statuses["200"] > 20
    assert report.revisions > 1


def _routes(a: str = "a1") -> dict[str, Any]:
    models = {"a": a, "b": "b1", "c": "c1"}
    return {
        "aliases": {"x": {"tier": "a"}, "y": {"tier": "b"}, "z": {"tier": "c"}},
        "tiers": {tier: {"model": model} for tier, model in models.items()},
    }


def _calm() -> tuple[History, list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Two requests to tier `a`, a replacement between them, a kill at the end."""
    history = History("me", {"a": 1, "b": 1, "c": 1})
    history.projections = {1: _routes(), 2: _routes("a2")}
    history.observed = [
        Observation(0.0, 0.1, 1, "one", "GET"),
        Observation(2.0, 3.0, 2, "two", "apply"),
        Observation(4.0, 4.1, 2, None, "client"),
    ]
    history.commits = [(2.0, 2)]
    history.holds = [(0.0, frozenset()), (2.0, frozenset("a")), (3.0, frozenset())]
    history.kills = [(9.0, 10.0)]
    history.on_disk = [(9.0, 2)]
    rows, served = [], {}
    for name, revision, model, at in (("r1", 1, "a1", 1.0), ("r2", 2, "a2", 4.0)):
        history.asked.append(
            Asked(name, "x", False, at, at, at + 0.2, at + 0.4, 200, revision, model, None, [0, 1], complete=True)
        )
        rows.append(
            {
                "id": name, "run": 1, "alias": "x", "tier": "a", "tier_generation": revision, "authority_id": "me",
                "route_revision": revision, "effective_route_sha256": {1: "one", 2: "two"}[revision],
                "admission_seq": revision, "outcome": "completed", "retries": 0, "status": 200, "error_code": None,
                "prompt_tokens": 10, "completion_tokens": 2,
            }
        )  # fmt: skip
        served[model] = [
            {
                "id": name, "received_at": at + 0.1, "ended_at": at + 0.2, "ended": "complete", "tokens": 2,
                "prompt_tokens": 10, "usage_sent": True,
            }
        ]  # fmt: skip
    history.closed = [(2.2, 2.9, frozenset("a"))]
    history.quiesced = [(6.0, 12.0, "a")]
    held = Asked("r3", "x", False, 2.5, 2.5, 2.6, 2.6, 503, 1, None, "held", complete=True)
    history.asked.append(held)
    refused = {"outcome": "refused", "status": 503, "error_code": "held"}
    rows.append({**rows[0], "id": "r3", "tier_generation": None, "admission_seq": None, **refused})
    return history, rows, served


def test_the_judge_has_nothing_to_say_about_a_calm_history() -> None:
    assert judge(*_calm()) == []


def test_a_kill_excuses_what_it_may_have_met() -> None:
    """The end of an answer that came right before a kill may be lost, and a quiesced bit ends with its process."""
    history, rows, served = _calm()
    history.kills = [(5.5, 7.0), (9.0, 10.0)]
    rows[1].update(outcome="interrupted")
    history.quiesced = [(5.0, 12.0, "a")]
    history.asked.append(Asked("r4", "x", False, 7.5, 7.5, 7.6, 7.8, 200, 2, "a2", None, [0, 1], complete=True))
    rows.append({**rows[1], "id": "r4", "outcome": "completed"})
    served["a2"].append({**served["a2"][0], "id": "r4", "received_at": 7.6, "ended_at": 7.7})
    assert judge(history, rows, served) == []


def test_results_that_a_kill_cut_short_are_made_again(tmp_path: Path) -> None:
    kept = tmp_path / "storms.jsonl"
    assert results(kept) == []
    kept.write_text('{"seconds": 60}\n{"seco')
    assert results(kept) == [{"seconds": 60}]
    assert kept.read_text() == '{"seconds": 60}\n'
    keep(kept, {"seconds": 30})
    assert results(kept) == [{"seconds": 60}, {"seconds": 30}]


_Fault = Callable[[History, list[dict[str, Any]], dict[str, list[dict[str, Any]]]], object]
FAULTS: dict[str, _Fault] = {
    "INV-1: revision 2 had been told": lambda h, r, s: h.on_disk.append((9.5, 1)),
    "INV-2: late was told revision 1": lambda h, r, s: h.observed.append(Observation(5, 6, 1, None, "late")),
    "INV-2: early was told revision 2": lambda h, r, s: h.observed.append(Observation(1, 1.5, 2, None, "early")),
    "INV-3: revision 2 was shown with 2": lambda h, r, s: h.observed.append(Observation(5, 6, 2, "else", "GET")),
    "INV-3: different routes": lambda h, r, s: h.observed.append(Observation(5, 6, 2, "one", "GET")),
    "INV-3: row r1 has another": lambda h, r, s: r[0].update(authority_id="you"),
    "INV-4: r2 reached a1": lambda h, r, s: s.update({"a1": s["a1"] + s.pop("a2")}),
    "INV-4: r1 ended on a1 after": lambda h, r, s: s["a1"][0].update(ended_at=3.5),
    "INV-11: r1: served by a9": lambda h, r, s: setattr(h.asked[0], "model", "a9"),
    "INV-11: r1: told 1, booked 2": lambda h, r, s: r[0].update(route_revision=2),
    "INV-11: r2: an answer without": lambda h, r, s: setattr(h.asked[1], "revision", None),
    "INV-11: r2: revision 7": lambda h, r, s: setattr(h.asked[1], "revision", 7),
    "INV-7: r2 was sent while its tier was held": lambda h, r, s: (
        h.closed.append((3.5, 4.5, frozenset("a"))),
        h.holds.append((3.5, frozenset("a"))),
    ),
    "INV-10: r2 was sent while its tier was quiesced": lambda h, r, s: h.quiesced.append((3.5, 9.0, "a")),
    "INV-19: r3 was refused": lambda h, r, s: r[2].update(tier="b"),
    "INV-21: r1 reached a1 and has 0": lambda h, r, s: r.pop(0),
    "INV-21: r1 reached a1, and its row lacks": lambda h, r, s: r[0].update(tier_generation=None),
    "INV-21: r2: generation 1 under 2": lambda h, r, s: r[1].update(tier_generation=1),
    "INV-21: r3 was answered with 503 and has no row": lambda h, r, s: r.pop(2),
    "INV-21: r1 was refused": lambda h, r, s: r[0].update(outcome="refused"),
    "INV-23: 2 requests at once at a1": lambda h, r, s: (
        s["a1"].append({**s["a1"][0], "id": "r4"}),
        r.append({**r[0], "id": "r4"}),
        h.asked.append(Asked("r4", "x", False, 1, 1, 1.2, 1.4, 200, 1, "a1", complete=True)),
    ),
    "r1: tokens [0, 2]": lambda h, r, s: setattr(h.asked[0], "tokens", [0, 2]),
    "r1: 3 tokens came, and 2": lambda h, r, s: setattr(h.asked[0], "tokens", [0, 1, 2]),
    "r1: booked 10 and 4 tokens": lambda h, r, s: r[0].update(completion_tokens=4),
    "r1: booked None and 2 tokens": lambda h, r, s: r[0].update(prompt_tokens=None),
    "r1: booked as interrupted": lambda h, r, s: r[0].update(outcome="interrupted"),
    "r1: booked as client_gone": lambda h, r, s: r[0].update(outcome="client_gone"),
    "r1: booked as upstream_reset": lambda h, r, s: r[0].update(outcome="upstream_reset"),
    "r1: booked as shutdown_cut": lambda h, r, s: r[0].update(outcome="shutdown_cut"),
    "r3: booked with (503, 'not_ready')": lambda h, r, s: r[2].update(error_code="not_ready"),
    "r1: cut, although": lambda h, r, s: setattr(h.asked[0], "complete", False),
    "r1: cut, although its server did not break off": lambda h, r, s: (
        setattr(h.asked[0], "complete", False),
        s["a1"][0].update(ended="client_gone"),
    ),
    "r1: upstream_reset, although its server": lambda h, r, s: (
        setattr(h.asked[0], "status", 502),
        setattr(h.asked[0], "code", "upstream_reset"),
    ),
    "r1: no answer": lambda h, r, s: setattr(h.asked[0], "status", None),
    "r1: unresolved": lambda h, r, s: r[0].update(outcome=None),
    "r1: answered, but no server": lambda h, r, s: s.pop("a1"),
    "r1 reached servers 2 times": lambda h, r, s: s["a1"].append({**s["a1"][0], "received_at": 1.3, "ended_at": 1.4}),
    "r9: a row of a request": lambda h, r, s: r.append({**r[2], "id": "r9"}),
}


@pytest.mark.parametrize("said", FAULTS)
def test_the_judge_sees(said: str) -> None:
    calm = _calm()
    FAULTS[said](*calm)
    found = judge(*calm)
    assert any(fault.startswith(said) for fault in found), found
