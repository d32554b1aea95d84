"""What becomes of a table's bytes."""

from __future__ import annotations

import json

import pytest

from sndr.contract import content_sha256
from sndr.router.core.family import PresetRow
from sndr.router.core.projection import parse
from sndr.router.wire.routing_table import judge, no_table, unbound
from tests.support.contract_vectors import D26, D31, G26, G31, M26, REFERENCE

INVALID = {**REFERENCE, "routing_rules": [*REFERENCE["routing_rules"], {"when": 1}]}


def text(table: object) -> bytes:
    return json.dumps(table).encode()


def test_a_good_table_is_in_force_and_knows_its_rows() -> None:
    state = judge("t.json", text(REFERENCE), "natural")
    assert (state.state, state.findings, state.fatal) == ("in_force", (), False)
    assert state.sha256 == content_sha256(REFERENCE)
    assert state.presets[G26][D26] == PresetRow(1, is_default=True, is_chosen=True)
    assert state.presets[G26][M26] == PresetRow(4, is_default=False, is_chosen=True)
    assert [key for key, row in state.presets[G26].items() if row.is_chosen] == [D26, M26]
    assert "unknown" not in state.presets
    assert (no_table().state, no_table().presets, no_table().source) == ("degraded", {}, None)


@pytest.mark.parametrize(
    ("data", "natural", "refuse", "drop"),
    [
        (text(INVALID), "degraded", True, "in_force"),
        (b"{", "degraded", True, "degraded"),
        (b"", "degraded", True, "degraded"),
        (b"[]", "degraded", True, "degraded"),
        (text({**REFERENCE, "presets": 1}), "degraded", True, "degraded"),
        (text({**REFERENCE, "schema_version": 2}), "degraded", False, "degraded"),
        (text({**REFERENCE, "schema_version": True}), "degraded", False, "degraded"),
        (text({**REFERENCE, "vllm_pin": "\ud800"}), "degraded", True, "degraded"),
        (b"\xff", "degraded", True, "degraded"),
        (b"[" * 100_000, "degraded", True, "degraded"),
    ],
)
def test_what_is_wrong_is_one_warning_or_a_refusal(data: bytes, natural: str, refuse: bool, drop: str) -> None:
    for reaction, state in (("natural", natural), ("refuse", natural), ("drop", drop)):
        judged = judge("t.json", data, reaction)  # type: ignore[arg-type]  # a literal in a loop
        assert judged.state == state, reaction
        assert judged.fatal is (reaction == "refuse" and refuse)
        if state == "degraded":
            assert len(judged.table.warnings) == 1
            assert not judged.presets


def test_a_preset_that_no_request_can_reach_is_not_chosen() -> None:
    (rule,) = REFERENCE["routing_rules"]
    table = {**REFERENCE, "routing_rules": [{**rule, "when": {"workload_class": ["summarization"]}}]}
    rows = judge("t.json", text(table), "natural").presets[G26]
    assert {key: row.is_chosen for key, row in rows.items()} == {D26: True, M26: False}


def test_a_rule_of_a_table_with_findings_may_lead_to_another_familys_preset() -> None:
    """Then its requests go there: the preset's tier has to count as the rule's family's, too."""
    (rule,) = REFERENCE["routing_rules"]
    table = {**REFERENCE, "routing_rules": [{**rule, "preset_key": D31}]}
    presets = judge("t.json", text(table), "drop").presets
    assert presets[G26][D31] == PresetRow(1, is_default=False, is_chosen=True)
    assert presets[G31][D31] == PresetRow(1, is_default=True, is_chosen=True)
    assert not presets[G26][M26].is_chosen
    state = judge("t.json", text({**REFERENCE, "routing_rules": [{**rule, "model_family": "rules_only"}]}), "drop")
    assert state.presets["rules_only"] == {M26: PresetRow(4, is_default=False, is_chosen=True)}
    routes = parse(
        {"aliases": {"a": {"family": "rules_only", "natural": "t", "on_unready": "refuse"}},
         "tiers": {"t": {"base_url": "http://127.0.0.1:1/v1", "preset": M26}}},
        fill=True,
    )  # fmt: skip
    assert unbound(routes, state.table) == []
