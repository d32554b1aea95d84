"""Each kind of fault, planted in a good table, is found where it is; a good table has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sndr.contract import check_meaning, check_structure, check_table
from sndr.contract.check import evidence_paths
from tests.support.contract_vectors import D26, D31, G26, G31, M26, REFERENCE, T, gap, row, rule

Change = Callable[[dict[str, Any]], Any]


def exists(path: str) -> bool:
    return path.startswith("presets/evidence/")


def changed(change: Change) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(json.dumps(REFERENCE))  # not deepcopy: rows share lists there
    change(table)
    return table


def put(*path: Any, to: Any) -> Change:
    def change(table: Any) -> None:
        for part in path[:-1]:
            table = table[part]
        table[path[-1]] = to

    return change


def drop(*path: Any) -> Change:
    def change(table: Any) -> None:
        for part in path[:-1]:
            table = table[part]
        del table[path[-1]]

    return change


def add(member: str, *rows: Any) -> Change:
    return lambda table: table[member].extend(rows)


def instead(member: str, *rows: Any) -> Change:
    return put(member, to=list(rows))


def test_the_reference_table_is_good() -> None:
    assert check_table(REFERENCE, resolves=exists) == []


SINGLE_RULE = rule(D26, {"concurrency_mode": ["single_stream"]}, family=G26, rule_id="s")
MULTI_RULE = rule(M26, {"concurrency_mode": ["multi_conc"]}, family=G26, rule_id="m")
TOOLS, SHORT = {"workload_class": ["tool_call"]}, {"expected_output_length": ["short"]}

MEANING: dict[str, tuple[Change, list[tuple[str, str]]]] = {
    "a key twice": (
        add("presets", row(D26, family=G31)),
        [("/presets/15/preset_key", "duplicate_key")],
    ),
    "a blank key": (put("presets", 0, "preset_key", to=" "), [("/presets/0/preset_key", "blank")]),
    "two defaults": (
        put("presets", 6, to=row(M26, family=G26, default=True)),
        [("/presets/6/default_for_family", "second_default")],
    ),
    "a default with K above 1": (
        put("presets", 5, "spec_decode_K", to=4),
        [("/presets/5/default_for_family", "default_k")],
    ),
    "unknown has a default": (
        put("presets", 4, "default_for_family", to=True),
        [("/presets/4/default_for_family", "unknown_family")],
    ),
    "a rule for unknown": (
        put("routing_rules", 0, "model_family", to="unknown"),
        [("/routing_rules/0/model_family", "unknown_family"), ("/routing_rules/0/preset_key", "other_family")],
    ),
    "a rule to nowhere": (
        put("routing_rules", 0, "preset_key", to="gone"),
        [("/routing_rules/0/preset_key", "dangling")],
    ),
    "a rule into another family": (
        put("routing_rules", 0, "preset_key", to=D31),
        [("/routing_rules/0/preset_key", "other_family")],
    ),
    "a gap to nowhere": (
        put("coverage_gaps", 1, "fallback_preset", to="gone"),
        [("/coverage_gaps/1/fallback_preset", "dangling")],
    ),
    "a gap into another family": (
        put("coverage_gaps", 1, "fallback_preset", to=D26),
        [("/coverage_gaps/1/fallback_preset", "other_family")],
    ),
    "a gap twice": (
        add("coverage_gaps", gap(T, {}, family=G26, fallback=D26)),
        [("/coverage_gaps/6/missing_cell", "duplicate_gap")],
    ),
    "a gap without a name": (
        put("coverage_gaps", 0, "missing_cell", to=""),
        [("/coverage_gaps/0/missing_cell", "blank")],
    ),
    "a gap with an unknown axis": (
        put("coverage_gaps", 0, "cell", "a/b~c", to=[]),
        [("/coverage_gaps/0/cell/a~1b~0c", "unknown_axis")],
    ),
    "a gap that nothing lies in": (
        put("coverage_gaps", 0, "cell", "workload_class", to=[]),
        [("/coverage_gaps/0/cell", "admits_nothing")],
    ),
    "blank evidence": (put("routing_rules", 0, "evidence", to=" \t"), [("/routing_rules/0/evidence", "blank")]),
    "evidence without a path": (
        put("routing_rules", 0, "evidence", to="12 tokens/s more, see https://example.org/x.html"),
        [("/routing_rules/0/evidence", "evidence_path")],
    ),
    "evidence that does not resolve": (
        put("routing_rules", 0, "evidence", to="presets/none/b4.yaml"),
        [("/routing_rules/0/evidence", "evidence_path")],
    ),
    "no evidence tag": (drop("routing_rules", 0, "evidence_tag"), [("/routing_rules/0/evidence_tag", "evidence_tag")]),
    "a null evidence tag": (
        put("routing_rules", 0, "evidence_tag", to=None),
        [("/routing_rules/0/evidence_tag", "evidence_tag")],
    ),
    "an id twice": (
        instead("routing_rules", MULTI_RULE, {**SINGLE_RULE, "id": "m"}),
        [("/routing_rules/1/id", "duplicate_id")],
    ),
    "a blank id": (put("routing_rules", 0, "id", to=""), [("/routing_rules/0/id", "blank")]),
    "an unknown axis in a rule": (
        put("routing_rules", 0, "when", "tenant", to=["a"]),
        [("/routing_rules/0/when/tenant", "unknown_axis")],
    ),
    "a rule that nothing matches": (
        put("routing_rules", 0, "when", "concurrency_mode", to=[]),
        [("/routing_rules/0/when", "admits_nothing")],
    ),
    "shadowed by the same cell": (
        instead("routing_rules", MULTI_RULE, {**MULTI_RULE, "id": "n"}),
        [("/routing_rules/1/when", "shadowed")],
    ),
    "shadowed by a wider rule": (
        instead("routing_rules", rule(M26, {}, family=G26), rule(M26, TOOLS, family=G26)),
        [("/routing_rules/1/when", "shadowed")],
    ),
    "shadowed by two rules together": (
        instead("routing_rules", MULTI_RULE, SINGLE_RULE, rule(M26, TOOLS, family=G26)),
        [("/routing_rules/2/when", "shadowed")],
    ),
    "single_stream before multi_conc": (
        instead("routing_rules", SINGLE_RULE, MULTI_RULE),
        [("/routing_rules/1", "mode_order")],
    ),
    "another order of classes": (
        put("workload_class_detection", "evaluation_order", 0, to="code_gen"),
        [("/workload_class_detection/evaluation_order", "evaluation_order")],
    ),
    "a class missing": (
        drop("workload_class_detection", "classes", "code_gen"),
        [("/workload_class_detection/classes", "missing_class")],
    ),
    "a class too many": (
        put("workload_class_detection", "classes", "vision", to={"trigger": "an image", "priority": 5}),
        [("/workload_class_detection/classes/vision", "unknown_class")],
    ),
    "another priority": (
        put("workload_class_detection", "classes", "code_gen", "priority", to=60),
        [("/workload_class_detection/classes/code_gen/priority", "priority")],
    ),
    "a blank trigger": (
        put("workload_class_detection", "classes", "free_chat", "trigger", to=""),
        [("/workload_class_detection/classes/free_chat/trigger", "blank")],
    ),
    "a trigger that forgets json_schema": (
        put("workload_class_detection", "classes", "structured_json", "trigger", to="type is json_object"),
        [("/workload_class_detection/classes/structured_json/trigger", "text")],
    ),
    "a trigger that forgets tools": (
        put("workload_class_detection", "classes", "tool_call", "trigger", to="functions"),
        [("/workload_class_detection/classes/tool_call/trigger", "text")],
    ),
    "a trigger that forgets the hint": (
        put("workload_class_detection", "classes", "code_gen", "trigger", to="looks like code"),
        [("/workload_class_detection/classes/code_gen/trigger", "text")],
    ),
    "three times the budget": (
        put("workload_class_detection", "classes", "summarization", "trigger", to="input > 3 x budget"),
        [("/workload_class_detection/classes/summarization/trigger", "text")],
    ),
    "single_stream up to 2": (
        put("concurrency_mode_detection", "single_stream", to="in_flight <= 2"),
        [("/concurrency_mode_detection/single_stream", "text")],
    ),
    "multi_conc from 3": (
        put("concurrency_mode_detection", "multi_conc", to="in_flight > 2"),
        [("/concurrency_mode_detection/multi_conc", "text")],
    ),
    "multi_conc without a number": (
        put("concurrency_mode_detection", "multi_conc", to="several in flight"),
        [("/concurrency_mode_detection/multi_conc", "text")],
    ),
    "the mode's fallback": (
        put("concurrency_mode_detection", "fallback", to="multi_conc"),
        [("/concurrency_mode_detection/fallback", "text")],
    ),
    "the threshold": (
        put("length_detection", "short_threshold_tokens", to=128),
        [("/length_detection/short_threshold_tokens", "threshold")],
    ),
    "short up to 255": (
        put("length_detection", "buckets", "short", to="budget < 256"),
        [("/length_detection/buckets/short", "text")],
    ),
    "medium from 256": (
        put("length_detection", "buckets", "medium", to="256 <= budget <= 512"),
        [("/length_detection/buckets/medium", "text")],
    ),
    "medium from 1": (
        put("length_detection", "buckets", "medium", to="1 <= budget <= 512"),
        [("/length_detection/buckets/medium", "text")],
    ),
    "long from 1024": (
        put("length_detection", "buckets", "long", to="budget > 1024"),
        [("/length_detection/buckets/long", "text")],
    ),
    "the default K": (put("fallback", "default_K", to=2), [("/fallback/default_K", "default_k")]),
}


@pytest.mark.parametrize("name", MEANING)
def test_a_fault_of_meaning_is_found(name: str) -> None:
    change, expected = MEANING[name]
    found = check_meaning(changed(change), resolves=exists)
    assert sorted((f.pointer, f.code) for f in found) == sorted(expected)
    assert all(f.message and f.message.isascii() and "\n" not in f.message for f in found)


GOOD: dict[str, Change] = {
    "no rules": instead("routing_rules"),
    "no gaps": instead("coverage_gaps"),
    "no presets, rules and gaps": lambda table: table.update(presets=[], routing_rules=[], coverage_gaps=[]),
    "members of one's own": lambda table: (
        table.update(note="x"),
        table["presets"][0].update(note=1),
        table["routing_rules"][0].update(note=1),
        table["coverage_gaps"][0].update(note=1),
    ),
    "multi_conc, then single_stream": instead("routing_rules", MULTI_RULE, SINGLE_RULE),
    "narrow, then wide": instead("routing_rules", rule(M26, TOOLS, family=G26), rule(M26, {}, family=G26)),
    "overlap is no shadow": instead("routing_rules", rule(M26, TOOLS, family=G26), rule(M26, SHORT, family=G26)),
    "a rule without a mode between": instead("routing_rules", rule(M26, TOOLS, family=G26), MULTI_RULE, SINGLE_RULE),
    "the same cell in two families": instead("routing_rules", MULTI_RULE, rule(D31, {}, family=G31, rule_id="o")),
    "single_stream first in another family": instead(
        "routing_rules", rule(D31, {"concurrency_mode": ["single_stream"]}, family=G31), MULTI_RULE
    ),
    "rules without ids": instead("routing_rules", rule(M26, TOOLS, family=G26), rule(M26, SHORT, family=G26)),
    "a gap without a cell": drop("coverage_gaps", 0, "cell"),
    "bounds said otherwise": lambda table: (
        table["concurrency_mode_detection"].update(single_stream="in_flight < 2", multi_conc="in_flight > 1"),
        table["length_detection"]["buckets"].update(
            short="1 <= budget <= 256", medium="budget \u2264 512", long="513 <= budget"
        ),
        table["workload_class_detection"]["classes"]["summarization"].update(trigger="input above twice the budget"),
    ),
    "one in flight at the least": put("concurrency_mode_detection", "single_stream", to="1 <= in_flight <= 1"),
    "no buckets": drop("length_detection", "buckets"),
    "inferred": put("routing_rules", 0, "evidence_tag", to="inferred"),
    "a hash": put("content_sha256", to="0" * 64),
    "no pin": put("vllm_pin", to=None),
    "a subtype": put("workload_class_detection", "classes", "tool_call", "subtype", to={"a": 1}),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_allowed_is_not_a_finding(name: str) -> None:
    assert check_table(changed(GOOD[name]), resolves=exists) == []


def test_without_a_resolver_only_the_mention_of_a_path_is_checked() -> None:
    table = changed(put("routing_rules", 0, "evidence", to="see elsewhere/b4.yaml"))
    assert check_meaning(table) == []
    assert [f.code for f in check_meaning(table, resolves=lambda path: False)] == ["evidence_path"]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("B4: K=4 235.9 TPS, K=1 209.1 TPS (presets/evidence/b4.yaml).", ["presets/evidence/b4.yaml"]),
        ("a/b tokens/s http://h/x.html", []),
        ('"docs/x.md", [y/z.json];', ["docs/x.md", "y/z.json"]),
        ("", []),
    ],
)
def test_paths_in_an_evidence_text(text: str, paths: list[str]) -> None:
    assert evidence_paths(text) == paths


STRUCTURE: dict[str, tuple[Change, str, str]] = {
    "version 2": (put("schema_version", to=2), "/schema_version", "must be 1"),
    "version true": (put("schema_version", to=True), "/schema_version", "is true"),
    "a hash in capitals": (put("content_sha256", to="A" * 64), "/content_sha256", "hexadecimal"),
    "a pin that is a number": (put("vllm_pin", to=1), "/vllm_pin", "a string or null"),
    "presets no array": (put("presets", to={}), "/presets", "an array"),
    "a preset no object": (put("presets", 2, to="x"), "/presets/2", "an object"),
    "K zero": (put("presets", 2, "spec_decode_K", to=0), "/presets/2/spec_decode_K", "at least 1"),
    "K true": (put("presets", 2, "spec_decode_K", to=True), "/presets/2/spec_decode_K", "at least 1"),
    "role bench": (put("presets", 2, "role", to="bench"), "/presets/2/role", "gateway"),
    "workloads": (put("presets", 2, "intended_workloads", to=[1]), "/presets/2/intended_workloads", "strings"),
    "default 1": (put("presets", 2, "default_for_family", to=1), "/presets/2/default_for_family", "true or false"),
    "key null": (put("presets", 2, "preset_key", to=None), "/presets/2/preset_key", "is null"),
    "when null": (put("routing_rules", 0, "when", to=None), "/routing_rules/0/when", "an object"),
    "class": (
        put("routing_rules", 0, "when", "workload_class", 0, to="vision"),
        "/routing_rules/0/when/workload_class/0",
        "one of tool_call",
    ),
    "axis": (
        put("routing_rules", 0, "when", "concurrency_mode", to="x"),
        "/routing_rules/0/when/concurrency_mode",
        "an array",
    ),
    "tag": (put("routing_rules", 0, "evidence_tag", to="guessed"), "/routing_rules/0/evidence_tag", "inferred"),
    "gap cell": (put("coverage_gaps", 0, "cell", to=3), "/coverage_gaps/0/cell", "an object"),
    "detection": (put("fallback", to=[]), "/fallback", "an object"),
    "trigger": (
        put("workload_class_detection", "classes", "tool_call", to="x"),
        "/workload_class_detection/classes/tool_call",
        "an object",
    ),
    "subtype": (
        put("workload_class_detection", "classes", "tool_call", "subtype", to="x"),
        "/workload_class_detection/classes/tool_call/subtype",
        "an object or null",
    ),
    "hint": (put("length_detection", "caller_hint_wins", to=False), "/length_detection/caller_hint_wins", "true"),
    "a very large number": (put("fallback", "default_K", to=10**400), "/fallback/default_K", "very large"),
    "a fraction": (put("fallback", "default_K", to=1.5), "/fallback/default_K", "is 1.5"),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_a_fault_of_structure_is_found(name: str) -> None:
    change, pointer, text = STRUCTURE[name]
    found = check_structure(changed(change))
    assert [f.pointer for f in found] == [pointer]
    assert text in str(found[0])
    assert str(found[0]).startswith(f"{pointer}: ")


REQUIRED = [
    *((member,) for member in REFERENCE),
    *(("presets", 0, member) for member in REFERENCE["presets"][0]),
    *(("routing_rules", 0, member) for member in ("model_family", "when", "preset_key", "evidence")),
    *(("coverage_gaps", 0, member) for member in ("model_family", "missing_cell", "fallback_preset", "next_phase")),
    *(("concurrency_mode_detection", member) for member in REFERENCE["concurrency_mode_detection"]),
    *(("length_detection", member) for member in ("short_threshold_tokens", "caller_hint_wins")),
    *(("fallback", member) for member in REFERENCE["fallback"]),
    *(("workload_class_detection", member) for member in ("evaluation_order", "classes")),
    *(("workload_class_detection", "classes", "tool_call", member) for member in ("trigger", "priority")),
]


@pytest.mark.parametrize("path", REQUIRED, ids=lambda path: "/".join(str(part) for part in path))
def test_a_missing_member_is_found(path: tuple[Any, ...]) -> None:
    found = check_structure(changed(drop(*path)))
    assert [(f.pointer, f.code) for f in found] == [("".join(f"/{part}" for part in path[:-1]), "required")]
    assert str(path[-1]) in found[0].message


def test_something_else_than_an_object() -> None:
    for value in (None, [], "x", 1, 1.5, True, False):
        assert [f.pointer for f in check_structure(value)] == [""]
        assert check_meaning(value) == []
        assert str(check_structure(value)[0]).startswith("/: is ")


def test_all_findings_come_together() -> None:
    def change(table: dict[str, Any]) -> None:
        table["presets"][0]["role"] = "bench"
        del table["fallback"]
        table["routing_rules"][0]["preset_key"] = "gone"

    codes = [f.code for f in check_table(changed(change), resolves=exists)]
    assert codes == ["required", "value", "dangling"]


def test_a_broken_row_does_not_hide_the_next() -> None:
    for member, last in (("presets", 14), ("routing_rules", 1), ("coverage_gaps", 5)):

        def change(table: dict[str, Any], member: str = member, last: int = last) -> None:
            table["routing_rules"].append(dict(table["routing_rules"][0], id=1))
            table[member][0] = "x"
            table[member][last].pop("model_family")

        found = [f.pointer for f in check_structure(changed(change)) if f.pointer.startswith(f"/{member}/")]
        assert {f"/{member}/0", f"/{member}/{last}"} <= set(found)
        check_meaning(changed(change))


def test_one_fault_does_not_hide_the_next() -> None:
    def change(table: dict[str, Any]) -> None:
        table["presets"][0]["default_for_family"] = 1  # not a default, and no reason to stop looking
        table["presets"][4]["default_for_family"] = True
        table["presets"][6]["default_for_family"] = True
        table["routing_rules"][0]["when"].update(workload_class="x", concurrency_mode="y")
        table["workload_class_detection"]["classes"]["tool_call"]["trigger"] = 5
        table["workload_class_detection"]["classes"]["code_gen"]["trigger"] = ""
        table["workload_class_detection"]["classes"] = {"x": {}, **table["workload_class_detection"]["classes"]}

    meaning = [(f.pointer, f.code) for f in check_meaning(changed(change))]
    assert meaning == [
        ("/presets/4/default_for_family", "unknown_family"),
        ("/presets/6/default_for_family", "second_default"),
        ("/presets/6/default_for_family", "default_k"),
        ("/workload_class_detection/classes/x", "unknown_class"),
        ("/workload_class_detection/classes/code_gen/trigger", "blank"),
    ]
    structure = [f.pointer for f in check_structure(changed(change)) if f.code != "required"]
    assert structure == [
        "/presets/0/default_for_family",
        "/routing_rules/0/when/workload_class",
        "/routing_rules/0/when/concurrency_mode",
        "/workload_class_detection/classes/tool_call/trigger",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (-7, "-7"),
        (0.5, "0.5"),
        ("x" * 500, "'xxx"),
        ("\u2028", "'\\u2028'"),
        ({}, "an object"),
        ([], "an array"),
    ],
)
def test_a_finding_shows_the_value(value: object, shown: str) -> None:
    (found,) = check_structure(changed(put("presets", 0, "max_num_seqs", to=value)))
    assert found.message.startswith(f"is {shown}")
    assert len(found.message) < 150


def test_one_place_is_named_once() -> None:
    assert [f.code for f in check_table(changed(put("fallback", "default_K", to=2)))] == ["value"]
