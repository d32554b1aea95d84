"""The record as bytes: forms, bounds, and what an operator's change and evidence must look like."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from sndr.errors import AuthorityError, ControlError
from sndr.router.core import projection as routes
from sndr.router.core.receipt import AliasUpdate, Campaign, Event, Evidence, Rollback, TierReplacement
from sndr.router.wire import record as wire
from tests.support import records

GOLDEN = (
    '{"authority_id":"6f0c1d2e-3a4b-4c5d-8e6f-708192a3b4c5",'
    '"boot":{"projection_sha256":"396544471f57c9923562035df180b119'
)


@pytest.mark.req("R57", "R61")
def test_the_file_is_one_line_of_canonical_json_with_every_member() -> None:
    data = wire.encode_record(records.completed(records.committed(records.managed(records.first()))))
    document = json.loads(data)
    assert data == routes.canonical(document)
    assert data.decode().startswith(GOLDEN)
    assert list(document) == [
        "authority_id",
        "boot",
        "current",
        "digest",
        "previous",
        "schema",
        "transaction",
        "write_seq",
    ]
    assert document["schema"] == "sndr.route-authority/1"
    receipt = document["transaction"]
    assert receipt["identity"] == {
        "at": "2026-05-28T20:26:40.126Z",
        "observed": ["m2", "m2-lora"],
        "proves": "advertised_name",
    }
    assert receipt["evidence"]["containers"]["primary"]["served_model"] == "m2"
    assert receipt["drain"]["cut"] == 0
    assert receipt["change"] == {"kind": "tier_replacement", "tiers": {"primary": {"model": "m2"}}}


def test_every_form_of_change_reads_back() -> None:
    for step in records.steps():
        data = wire.encode_record(step.after)
        assert wire.parse_record(data) == step.after
        assert wire.examine(data, known=(step.after.current.projection,)).record == step.after
        receipt = step.after.transaction
        assert receipt is not None
        assert wire.parse_change(wire.change_document(receipt.change)) == receipt.change


@pytest.mark.req("R58")
@pytest.mark.invariant("INV-14")
def test_bounds_are_kept_when_writing() -> None:
    hold = records.held(records.first())
    receipt = hold.transaction
    assert receipt is not None
    patch = MappingProxyType({"params": MappingProxyType({f"k{i}": "x" * 2000 for i in range(9)})})
    cases: list[Any] = [
        replace(hold, transaction=replace(receipt, change=TierReplacement(MappingProxyType({"primary": patch})))),
        replace(hold, transaction=replace(receipt, scope=tuple(f"t{i}" * 20 for i in range(1000)))),
        replace(
            hold,
            transaction=replace(receipt, evidence=Evidence(Campaign("x" * 13_000, "0" * 64), MappingProxyType({}))),
        ),
    ]
    many = {f"t{i:062}": records.boot(params={"a": "x" * 2000}).tiers["primary"] for i in range(64)}
    huge = routes.Projection(MappingProxyType({}), MappingProxyType(many))
    assert len(huge.encoded) > 150_000
    cases.append(replace(hold, current=records.revision(2, huge), previous=records.revision(1, huge), transaction=None))
    for record in cases:
        with pytest.raises(ControlError) as refusal:
            wire.encode_record(record)
        assert refusal.value.code == "change_too_large"


def test_the_first_problem_is_the_refusal_and_all_are_listed() -> None:
    document = json.loads(wire.encode_record(records.first()))
    document["write_seq"] = "x"
    del document["boot"]
    document["current"]["projection"]["tiers"]["primary"]["base_url"] = "ftp://x"
    examination = wire.examine(routes.canonical(document))
    assert examination.record is None
    assert [str(problem).split(": ")[:2] for problem in examination.problems] == [
        ["route_state_unsafe", "/boot"],
        ["route_state_unsafe", "/write_seq"],
        ["route_state_corrupt", "/digest"],
        ["route_state_corrupt", "/current/effective_route_sha256"],
        ["route_state_unsafe", "/current/projection/tiers/primary/base_url"],
    ]
    with pytest.raises(AuthorityError, match=r"^/boot: is missing$"):
        wire.parse_record(routes.canonical(document))
    with pytest.raises(AuthorityError, match=r"^is empty$"):
        wire.parse_record(b"")
    with pytest.raises(AuthorityError) as refusal:
        wire.parse_record(b" " * (wire.FILE_BYTES_MAX + 1))
    assert refusal.value.code == "route_state_too_large"
    assert str(wire.Problem("code", "", "text")) == "code: text"


@pytest.mark.req("R30", "R22")
@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"kind": "magic"},
        {"kind": "rollback", "mode": "apply"},
        {"kind": "alias_update"},
        {"kind": "alias_update", "aliases": []},
        {"kind": "alias_update", "aliases": {"A": {"tier": "t"}}},
        {"kind": "alias_update", "aliases": {"a": {"tier": 1}}},
        {"kind": "alias_update", "aliases": {"a": {"tier": "t", "x": 1}}},
        {"kind": "alias_update", "aliases": {"a": "t"}},
        {"kind": "tier_replacement", "tiers": {"T": {}}},
        {"kind": "tier_replacement", "tiers": {"t": []}},
        {"kind": "tier_replacement", "tiers": {"t": {"a": 1}}, "aliases": {}},
    ],
)
def test_a_change_of_another_form_is_refused(document: object) -> None:
    with pytest.raises(ControlError) as refusal:
        wire.parse_change(document)
    assert refusal.value.code == "invalid_change"


def test_a_change_that_is_too_large_is_refused() -> None:
    document = {"kind": "tier_replacement", "tiers": {"t": {"params": {"a": "x" * 17_000}}}}
    with pytest.raises(ControlError, match="of 16384"):
        wire.parse_change(document)
    assert wire.parse_change({"kind": "rollback"}) == Rollback()
    assert isinstance(wire.parse_change({"kind": "alias_update", "aliases": {}}), AliasUpdate)


def _evidence(**changes: Any) -> dict[str, Any]:
    receipt = records.managed(records.first()).transaction
    assert receipt is not None
    assert receipt.evidence is not None
    document = wire.evidence_document(receipt.evidence)
    assert wire.parse_evidence(document) == receipt.evidence
    for where, value in changes.items():
        holder: Any = document
        *parents, last = where.split("__")
        for part in parents:
            holder = holder[part]
        holder[last] = value
    return document


@pytest.mark.req("R104")
@pytest.mark.parametrize(
    "changes",
    [
        {"more": 1},
        {"campaign": None},
        {"campaign__id": ""},
        {"campaign__id": "a\nb"},
        {"campaign__sha256": "AB" * 32},
        {"containers__Primary": {}},
        {"containers__primary__container_id": "0123456789a"},
        {"containers__primary__image_id": "cd" * 32},
        {"containers__primary__started_at": "yesterday"},
        {"containers__primary__observed_at": "2026-11-30T09:00:00+00:00"},
        {"containers__primary__observer": 7},
        {"containers__primary__served_model": "x" * 2049},
        {"containers__primary__weights": "sha256:0"},
        {
            "campaign__id": "x" * 2048,
            "containers__primary__observer": "y" * 2048,
            "containers__primary__served_model": "é" * 2048,
            "containers__a": {"observer": "z" * 2048},
            "containers__b": {"observer": "z" * 2048},
            "containers__c": {"observer": "z" * 2048},
        },
    ],
)
def test_evidence_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ControlError) as refusal:
        wire.parse_evidence(_evidence(**changes))
    assert refusal.value.code == "evidence_invalid"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "2026-13-01T00:00:00.000Z",
        "2026-01-01T24:00:00.000Z",
        "2026-01-01t00:00:00.000z",
        "٢٠٢٦-01-01T00:00:00.000Z",
    ],
)
def test_an_instant_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"instant|month|hour|day"):
        wire.parse_instant(text)


def test_events_and_scope_are_checked_as_lists() -> None:
    document = json.loads(wire.encode_record(records.held(records.first())))
    for key, value in (
        ("events", "x"),
        ("events", [1]),
        ("events", [{}] * 17),
        ("scope", "primary"),
        ("scope", [7]),
        ("scope", ["x" * 2049]),
        ("scope", ["UPPER"]),
        ("state", 7),
        ("hold", None),
        ("created_at", 7),
        ("identity", []),
        ("committed_revision", 0),
    ):
        changed = json.loads(json.dumps(document))
        changed["transaction"][key] = value
        problems = wire.examine(routes.canonical(changed)).problems
        assert any(problem.pointer.startswith(f"/transaction/{key}") for problem in problems), key


@pytest.mark.req("R57", "R104")
def test_the_hash_of_earlier_evidence_is_there_or_absent_and_nothing_else() -> None:
    hold = records.held(records.first(), earlier_evidence_sha256="ef" * 32)
    data = wire.encode_record(hold)
    assert wire.parse_record(data) == hold
    assert b"earlier_evidence" not in wire.encode_record(records.held(records.first()))
    for wrong in (None, "", "EF" * 32, "ef" * 31, 1, [], {"sha256": "ef" * 32}):
        document = json.loads(data)
        document["transaction"]["earlier_evidence_sha256"] = wrong
        problems = wire.examine(routes.canonical(document)).problems
        assert any(problem.pointer == "/transaction/earlier_evidence_sha256" for problem in problems), wrong


def test_a_receipt_with_too_many_events_is_not_readable() -> None:
    hold = records.held(records.first())
    assert hold.transaction is not None
    events = tuple(Event(records.AT_MS, "again", index + 1) for index in range(17))
    data = wire.encode_record(replace(hold, transaction=replace(hold.transaction, events=events)))
    assert [problem.pointer for problem in wire.examine(data).problems] == ["/transaction/events"]


@pytest.mark.req("R14")
def test_a_file_of_the_first_released_format_is_read_and_written_unchanged() -> None:
    """The format is frozen: another encoding of the same record would make every existing authority unreadable."""
    data = (Path(__file__).parents[3] / "fixtures/authority/sndr.route-authority-1.json").read_bytes()
    record = wire.parse_record(data)
    assert wire.encode_record(record) == data
    boot = records.boot(params={"stop": ["\n", "é"], "t": 0.7})
    assert record == records.completed(records.committed(records.managed(records.first(boot))))
    assert record.current.effective_route_sha256 == "23dccebfddb6b0f754f14bbffffa0aa3c76cfdb910a53b00e3945ce3b2489973"
