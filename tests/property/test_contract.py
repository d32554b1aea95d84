"""The library against the naive second implementation, the checks against the published schema, on any JSON."""

from __future__ import annotations

import json
import os
from typing import Any

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sndr.contract import READ_MEMBERS, check_meaning, check_structure, check_table, decide, explain, load
from sndr.contract.check import _bounds
from tests.support import naive_contract
from tests.support.contract_vectors import CLASSES, LENGTHS, MODES, REFERENCE

SCHEMA = os.path.join(os.path.dirname(__file__), "..", "..", "schemas", "routing_schema.json")
with open(SCHEMA, encoding="ascii") as file:
    VALIDATOR = jsonschema.Draft7Validator(json.load(file))

some = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 600)
    | st.sampled_from([1.0, 0.5, 256.0, 1e300, 2**70, 10**400])
    | st.sampled_from(["", "a", "text", "short", "code", "json_object", "tool_call", "unknown", "~/", "\u00e9", "gone"])
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)

# --- tables and requests that are near the real ones --------------------------------------------------------------

families = st.sampled_from(["fam", "other", "unknown"])
names = st.sampled_from(["a", "b", "c", "d"])
keys = st.sampled_from(["k1", "k2", "k3"])


values = {"workload_class": CLASSES, "expected_output_length": LENGTHS, "concurrency_mode": MODES}
good_cells = st.fixed_dictionaries(
    {}, optional={axis: st.lists(st.sampled_from([*of, "odd"]), max_size=4) for axis, of in values.items()}
)
any_cells = (
    st.fixed_dictionaries({"workload_class": scalars}) | st.fixed_dictionaries({"tenant": scalars}) | json_values
)
rows = st.fixed_dictionaries(
    {
        "preset_key": keys,
        "model": names,
        "served_model_name": names | st.none(),
        "model_family": families,
        "spec_decode_K": st.integers(0, 3),
        "default_for_family": st.booleans() | st.just(1),
    }
)
rules = st.fixed_dictionaries(
    {"model_family": families, "preset_key": keys | st.just("gone"), "when": good_cells | any_cells},
    optional={
        "id": st.sampled_from(["r1", "r2", "", 5]),
        "evidence_tag": st.sampled_from(["measured", "inferred", None, 1]),
    },
)
gaps = st.fixed_dictionaries(
    {"model_family": families, "missing_cell": st.sampled_from(["g1", "g2", None])},
    optional={"cell": good_cells | any_cells},
)


def mostly(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(strategy, strategy, strategy, strategy, strategy, scalars)


tables = st.fixed_dictionaries(
    {
        "schema_version": st.sampled_from([1, 1, 1, 1, 1, 1, 1, 1.0, 2, True, "1", None]),
        "presets": st.lists(mostly(rows), max_size=6),
        "routing_rules": st.lists(mostly(rules), max_size=6),
        "coverage_gaps": st.lists(mostly(gaps), max_size=4) | scalars,
    },
    optional={"extra": json_values},
)
budgets = st.sampled_from([None, 0, 1, 256, 257, 512, 513, 256.0, 0.5, True, "1"])
formats = st.sampled_from(
    [None, {}, {"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": 1}, "text"]
)
hint_members: dict[str, Any] = {
    "expected_length": st.sampled_from(["short", "medium", "long", "Short", 1, None]),
    "category": st.sampled_from(["code", "Code", None, []]),
}
bodies = (
    st.fixed_dictionaries(
        {},
        optional={
            "model": names | keys | scalars,
            "tools": st.sampled_from([None, [], [1], {}, "x"]),
            "max_tokens": budgets,
            "max_completion_tokens": budgets,
            "max_output_tokens": budgets,
            "response_format": formats,
            "text": st.fixed_dictionaries({}, optional={"format": formats}) | scalars,
            "output_config": st.fixed_dictionaries({}, optional={"format": formats}) | scalars,
            "extra_body": st.fixed_dictionaries({}, optional=hint_members) | scalars,
            **hint_members,
        },
    )
    | json_values
)
header_lists = st.lists(
    st.tuples(
        st.sampled_from(["x-sndr-expected-length", "X-Sndr-Category", "X-Sndr-Expected-Length", "accept"]),
        st.sampled_from(["short", "long", "code", "SHORT", ""]),
    ).map(list),
    max_size=3,
)
arguments = st.fixed_dictionaries(
    {
        "in_flight": st.sampled_from([None, 0, 1, 2, 3]),
        "input_tokens": st.sampled_from([None, 0, 1, 2, 3, 512, 513, 1025]),
        "headers": header_lists,
        "dialect": st.sampled_from(["chat", "responses", "messages"]),
        "family": st.sampled_from([None, None, None, "fam", "other", "unknown", "absent"]),
    }
)


@some
@given(table=tables, body=bodies, given_arguments=arguments)
def test_the_library_agrees_with_the_naive_implementation(table: Any, body: Any, given_arguments: Any) -> None:
    loaded = load(table)
    decision = decide(loaded, body, **given_arguments)
    assert decision.record() == naive_contract.decide(table, body, **given_arguments)
    assert explain(loaded, body, **given_arguments).decision == decision
    if not naive_contract.is_degraded(table):
        kept = {rule.position for rule in loaded.routing_rules}
        assert set(range(len(table["routing_rules"]))) - kept == set(naive_contract.dropped_rules(table))


@some
@given(table=tables, body=bodies, given_arguments=arguments)
def test_a_body_cut_down_to_the_read_members_is_decided_alike(table: Any, body: Any, given_arguments: Any) -> None:
    loaded = load(table)
    read = READ_MEMBERS[given_arguments["dialect"]]
    cut = {name: value for name, value in body.items() if name in read} if isinstance(body, dict) else body
    assert decide(loaded, cut, **given_arguments) == decide(loaded, body, **given_arguments)


@some
@given(value=json_values | tables)
def test_no_json_makes_anything_raise(value: Any) -> None:
    check_table(value, resolves=lambda path: False)
    loaded = load(value)
    assert decide(loaded, value).outcome in ("rule", "family_default", "natural", "degraded")
    explain(loaded, value)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


#: Two rows of each kind say what all say, in a fraction of the time.
SHORT = {**REFERENCE, **{kind: REFERENCE[kind][:2] for kind in ("presets", "routing_rules", "coverage_gaps")}}
PLACES = places(SHORT)


def replaced(path: tuple[Any, ...], value: Any, *, drop: bool) -> Any:
    table = json.loads(json.dumps(SHORT))
    if not path:
        return value
    holder = table
    for part in path[:-1]:
        holder = holder[part]
    if drop:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return table


@some
@given(
    changes=st.lists(st.tuples(st.sampled_from(PLACES), json_values, st.booleans()), min_size=1, max_size=1),
)
def test_structure_and_published_schema_give_the_same_verdict(changes: Any) -> None:
    path, value, drop = changes[0]
    table = replaced(path, value, drop=drop and bool(path))
    assert (check_structure(table) == []) == VALIDATOR.is_valid(table)
    check_meaning(table, resolves=lambda path: True)


def test_every_member_dropped_or_nulled_gets_the_verdict_of_the_schema() -> None:
    for path in PLACES[1:]:
        for value, drop in ((None, True), (None, False), ({}, False), ([], False), (True, False), ("", False)):
            table = replaced(path, value, drop=drop)
            assert (check_structure(table) == []) == VALIDATOR.is_valid(table), (path, value, drop)


@some
@given(st.lists(good_cells, max_size=5))
def test_a_rule_is_shadowed_exactly_when_no_request_reaches_it(whens: list[Any]) -> None:
    table = {
        "presets": [{"preset_key": "k", "model_family": "fam"}],
        "routing_rules": [{"model_family": "fam", "preset_key": "k", "when": when} for when in whens],
    }
    reached = set()
    for workload in CLASSES:
        for length in LENGTHS:
            for mode in MODES:
                hits = [n for n, when in enumerate(whens) if naive_contract.cell_contains(when, workload, length, mode)]
                reached.update(hits[:1])
    found = check_meaning(table)
    named = {int(f.pointer.split("/")[2]) for f in found if f.code in ("shadowed", "admits_nothing")}
    assert named == set(range(len(whens))) - reached


@given(st.integers(0, 10**6), st.sampled_from(["<", "<=", ">", ">=", "\u2264", "\u2265"]), st.booleans())
def test_bounds_read_from_a_text_are_those_of_the_comparison(number: int, operator: str, number_first: bool) -> None:
    text = f"x {number} {operator} budget" if number_first else f"budget {operator} {number} tokens"
    low, high = _bounds(text)
    holds = {
        "<": int.__lt__,
        "<=": int.__le__,
        "\u2264": int.__le__,
        ">": int.__gt__,
        ">=": int.__ge__,
        "\u2265": int.__ge__,
    }
    for value in (number - 1, number, number + 1):
        true = holds[operator](number, value) if number_first else holds[operator](value, number)
        assert true == ((low is None or value >= low) and (high is None or value <= high))
