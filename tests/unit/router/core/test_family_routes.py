"""Family aliases in the projection, in changes, and compiled for a snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from sndr.router.core import projection as routes
from sndr.router.core.admission import Admission
from sndr.router.core.family import PresetRow, compile_families, serving, tiers_of
from sndr.router.core.projection import FamilyTarget, OnUnready, Projection, ProjectionError, TierTarget
from sndr.router.core.proposal import propose
from sndr.router.core.receipt import AliasUpdate
from sndr.router.wire.record import change_document, parse_change
from tests.support import records

ROWS = {
    "f": {
        "flat": PresetRow(1, is_default=True, is_chosen=True),
        "deep": PresetRow(4, is_default=False, is_chosen=True),
    },
    "g": {"other": PresetRow(None, is_default=False, is_chosen=True)},
}


def projection(*, on_unready: str = "refuse", natural: str = "one", **presets: str | None) -> Projection:
    tiers = {name: {"base_url": "http://127.0.0.1:1/v1", "preset": preset} for name, preset in presets.items()}
    alias = {"family": "f", "natural": natural, "on_unready": on_unready}
    return routes.parse({"aliases": {"a": alias, "p": {"tier": natural}}, "tiers": tiers}, fill=True)


def compiled(rows: Any = ROWS, **given: Any) -> Any:
    return compile_families(projection(**given), rows, Admission().gate)["a"]


def test_the_tiers_of_a_family_are_those_of_its_presets_and_its_natural_ones() -> None:
    made = projection(natural="plain", plain=None, one="flat", two="deep", three="other", four="gone")
    assert tiers_of("f", made, ROWS) == ("one", "plain", "two")
    assert tiers_of("f", made, {}) == ("plain",)
    route = compiled(natural="plain", plain=None, one="flat", two="deep", three="other")
    assert dict(route.tier_of) == {"flat": "one", "deep": "two", "other": "three"}
    assert [gate.tier_id for gate in route.gates] == ["one", "plain", "two"]
    assert list(compile_families(projection(one="flat"), ROWS, Admission().gate)) == ["a"]


@pytest.mark.parametrize(
    ("given", "rows", "expected"),
    [
        ({"one": "flat", "two": "deep"}, ROWS, ("one", "two")),
        ({"one": "flat", "two": "deep"}, {}, ("one",)),
        ({"one": None, "two": "deep", "three": "other"}, ROWS, ("one", "two")),
        ({"one": "flat", "two": "deep"}, {"f": {**ROWS["f"], "deep": PresetRow(4, False, is_chosen=False)}}, ("one",)),
        # the natural tier runs a preset of its own, and the default takes over from a sibling
        ({"one": None, "two": "deep", "three": "flat", "on_unready": "family_default"},
         {"f": {"flat": PresetRow(1, True, is_chosen=False), "deep": PresetRow(4, False, is_chosen=True)}},
         ("one", "two", "three")),
    ],
)  # fmt: skip
def test_a_request_may_be_sent_where_the_table_chooses_and_nowhere_else(
    given: Any, rows: Any, expected: tuple[str, ...]
) -> None:
    made = projection(**given)
    assert compile_families(made, rows, Admission().gate)["a"].serving == expected
    assert serving(made, rows) == {"a": expected, "p": ("one",)}


def test_of_two_tiers_with_one_preset_the_natural_one_wins_then_the_first_by_id() -> None:
    assert dict(compiled(natural="z", a="flat", z="flat", c="deep", b="deep").tier_of) == {"flat": "z", "deep": "b"}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ROWS, {"deep": "one"}),
        ({"f": {**ROWS["f"], "deep": PresetRow(None, False, True)}}, {"deep": "one"}),
        # never from K=1 up to K>1, and a depth that nobody states is taken for the worse one
        ({"f": {"flat": PresetRow(4, True, True), "deep": PresetRow(1, False, True)}}, {}),
        ({"f": {"flat": PresetRow(4, True, True), "deep": PresetRow(None, False, True)}}, {}),
        ({"f": {"flat": PresetRow(None, True, True), "deep": PresetRow(1, False, True)}}, {}),
        ({"f": {"flat": PresetRow(4, True, True), "deep": PresetRow(5, False, True)}}, {"deep": "one"}),
        ({"f": {"flat": PresetRow(1, False, True), "deep": PresetRow(4, False, True)}}, {}),
        ({}, {}),
    ],
)
def test_a_fallback_never_leads_up_to_speculation(rows: Any, expected: dict[str, str]) -> None:
    assert dict(compiled(rows, on_unready="family_default", one="flat", two="deep").fallback_of) == expected
    assert not compiled(rows, one="flat", two="deep").fallback_of


def test_an_alias_moves_between_tiers_and_families() -> None:
    before = records.boot()
    target = FamilyTarget("f", "secondary", OnUnready.REFUSE)
    after = routes.apply_aliases(before, {"llm.primary": routes.target_json(target)})
    assert after.aliases["llm.primary"] == target
    assert [change.pointer.rpartition("/")[2] for change in routes.diff(before, after)] == [
        "family", "natural", "on_unready", "tier",
    ]  # fmt: skip
    assert routes.restart_only(before, after) == ()
    again = routes.apply_aliases(after, {"llm.primary": {**routes.target_json(target), "on_unready": "family_default"}})
    assert routes.diff(after, again)
    assert routes.apply_aliases(again, {"llm.primary": {"tier": "primary"}}) == before
    with pytest.raises(ProjectionError, match="another target"):
        routes.apply_aliases(after, {"llm.primary": routes.target_json(target)})
    assert routes.merge_live(before, after).aliases["llm.primary"] == target
    assert [routes.tier_of(value) for value in (target, TierTarget("x"))] == ["secondary", "x"]


def test_a_change_to_a_family_survives_the_file() -> None:
    document = {
        "kind": "alias_update",
        "aliases": {
            "llm.primary": {"family": "Familie \u00e4", "natural": "secondary", "on_unready": "family_default"},
            "llm.secondary": {"tier": "primary"},
        },
    }
    change = parse_change(document)
    assert isinstance(change, AliasUpdate)
    assert change_document(change) == document
    record = records.first()
    assert propose(record, change).aliases["llm.primary"] == change.aliases["llm.primary"]


@pytest.mark.parametrize(
    "target",
    [
        {"family": "f", "natural": "secondary", "on_unready": "x"},
        {"family": "f", "natural": "secondary"},
        {"family": "f", "natural": "NO", "on_unready": "refuse"},
        {"family": "", "natural": "secondary", "on_unready": "refuse"},
        {"family": "a\nb", "natural": "secondary", "on_unready": "refuse"},
        {"family": "f", "natural": "secondary", "on_unready": "refuse", "tier": "primary"},
        {"family": 1, "natural": "secondary", "on_unready": "refuse"},
    ],
)
def test_a_family_target_that_is_none_is_refused(target: object) -> None:
    from sndr.errors import ControlError

    with pytest.raises(ControlError) as refusal:
        parse_change({"kind": "alias_update", "aliases": {"llm.primary": target}})
    assert refusal.value.code == "invalid_change"
