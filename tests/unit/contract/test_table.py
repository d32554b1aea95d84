"""Loading: what is degraded, what is dropped, what is kept; and a table that cannot be changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from sndr.contract import Cell, Table, content_sha256, decide, degraded, load, parse_json
from tests.support.contract_vectors import D26, G26, M26, REFERENCE, RULE, row, rule, table

TEXT = json.dumps(REFERENCE)
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


def test_a_table_in_force() -> None:
    loaded = load(TEXT.encode())
    assert (loaded.degraded, loaded.warnings, loaded.vllm_pin, loaded.generated_by) == (None, (), None, "conformance")
    assert [p.preset_key for p in loaded.presets] == [p["preset_key"] for p in REFERENCE["presets"]]
    assert [(r.position, r.id, r.preset_key, r.evidence_tag) for r in loaded.routing_rules] == [
        (0, RULE, M26, "measured")
    ]
    assert [g.missing_cell for g in loaded.coverage_gaps] == [g["missing_cell"] for g in REFERENCE["coverage_gaps"]]
    assert loaded.families == ("qwen3_6_27b", "gemma4_moe_26b_a4b", "gemma4_dense_31b", "qwen3_6_35b")
    preset = loaded.preset(M26)
    assert preset is not None
    assert (preset.spec_decode_K, preset.max_num_seqs, preset.role) == (4, 8, "structured")
    assert preset.intended_workloads == ("structured_count", "tool_json")
    assert loaded.preset("gone") is None
    default = loaded.default_preset(G26)
    assert default is not None
    assert default.preset_key == D26
    assert loaded.default_preset("unknown") is None
    assert loaded.default_preset("qwen3_6_27b") is None


@pytest.mark.parametrize(
    "source", [TEXT, TEXT.encode(), bytearray(TEXT, "ascii"), memoryview(TEXT.encode()), REFERENCE]
)
def test_every_form_of_source_gives_the_same_table(source: object) -> None:
    assert load(source).presets == load(TEXT).presets
    assert load(source).warnings == ()


def test_a_table_is_immutable() -> None:
    loaded = load(REFERENCE)
    with pytest.raises(AttributeError, match="immutable"):
        loaded.degraded = "x"
    with pytest.raises(AttributeError, match="immutable"):
        del loaded.presets
    with pytest.raises(AttributeError):
        loaded.extra = 1  # type: ignore[attr-defined]


def test_the_source_is_not_changed_and_not_kept() -> None:
    source = json.loads(TEXT)
    loaded = load(source)
    source["routing_rules"][0]["when"]["workload_class"].clear()
    source["presets"].clear()
    request = {"model": M26, "tools": [1], "max_tokens": 1}
    assert decide(loaded, request, in_flight=2).outcome == "rule"
    assert source != REFERENCE


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"\xff", "not UTF-8 at byte 0"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b"[NaN]", "NaN"),
        (b"{", "line 1 column 2"),
        (b"[" * 100_000, "too deep"),
        (b"1" * 5000, "a number of 5000 digits"),
        (b"1e999", "beyond what a double holds"),
        (b"", "empty"),
        ({"schema_version": 10**5000}, "schema_version is a very large integer"),
        ({"schema_version": "\u00e9"}, r"schema_version is '\xe9'"),
        (b"[]", "not a JSON object"),
        (None, "not a JSON object"),
        ({"schema_version": 2}, "schema_version is 2"),
        ({"schema_version": "1"}, "schema_version is '1'"),
        ({"schema_version": [1]}, "of type list"),
        ({"schema_version": True}, "schema_version is True"),
        ({}, "schema_version is missing"),
        ({"schema_version": 1}, "presets is not an array"),
        ({"schema_version": 1, "presets": []}, "routing_rules is not an array"),
    ],
)
def test_a_degraded_table_has_one_warning_with_the_reason(source: object, text: str) -> None:
    loaded = load(source)
    assert loaded.degraded is not None
    assert loaded.warnings == (loaded.degraded,)
    assert text in loaded.degraded
    assert "\n" not in loaded.degraded
    assert decide(loaded, {"model": "gemma-4-26b-a4b"}).outcome == "degraded"


def test_a_degraded_table_for_a_file_that_could_not_be_read() -> None:
    loaded = degraded("/etc/x.json: no such file")
    assert (loaded.degraded, loaded.warnings) == ("/etc/x.json: no such file", ("/etc/x.json: no such file",))
    decision = decide(loaded, {"model": "m", "max_tokens": 1}, in_flight=2, family="fam")
    assert (decision.outcome, decision.preset_key, decision.model_family) == ("degraded", None, "fam")


def test_each_dropped_part_has_a_warning_with_its_place() -> None:
    damaged = table(
        [row("k1"), 5, {"preset_key": 1, "model_family": "fam"}, {"preset_key": "x"}],
        [
            5,
            {"preset_key": "k1"},
            rule("gone", {}),
            rule("k1", {"x": []}),
            rule("k1", 5),
            rule("k1", {"workload_class": 5}),
        ],
        [5, {"model_family": "fam"}, {"missing_cell": "x"}, {"model_family": "fam", "missing_cell": "x", "cell": 5}],
    )
    assert [warning.split(": ")[0] for warning in load(damaged).warnings] == [
        *(f"/presets/{n}" for n in (1, 2, 3)),
        *(f"/routing_rules/{n}" for n in range(6)),
        *(f"/coverage_gaps/{n}" for n in range(4)),
    ]
    reasons = [warning.split(": ", 1)[1] for warning in load(damaged).warnings]
    assert reasons == [
        "dropped: not an object",
        "dropped: preset_key is not a string",
        "dropped: model_family is not a string",
        "dropped: not an object",
        "dropped: model_family is not a string",
        "dropped: its target 'gone' is not a preset of this table",
        "dropped: axis 'x' is not known",
        "dropped: its cell is not an object",
        "dropped: axis workload_class is not an array of strings",
        "dropped: not an object",
        "dropped: missing_cell is not a string",
        "dropped: model_family is not a string",
        "no request is counted for it: its cell is not an object",
    ]
    assert len(load(damaged).coverage_gaps) == 1  # surfaced, though no request lies in it


def test_members_that_no_decision_reads_are_none_when_they_are_odd() -> None:
    odd = {"spec_decode_K": True, "max_num_seqs": "2", "role": 1, "model": 1, "intended_workloads": "x"}
    (preset,) = load(table([{**row("k1"), **odd}], [], [])).presets
    assert (preset.spec_decode_K, preset.max_num_seqs, preset.role, preset.model) == (None, None, None, None)
    assert preset.intended_workloads == ()
    (preset,) = load(table([{**row("k1"), "intended_workloads": ["a", 1, "b"]}], [], [])).presets
    assert preset.intended_workloads == ("a", "b")


def test_a_count_may_be_written_as_the_schema_allows() -> None:
    """JSON's 4.0 is an integer there, and 4.5 is none."""
    rows = [{**REFERENCE["presets"][0], "spec_decode_K": 4.0, "max_num_seqs": 4.5}]
    (preset,) = load({**REFERENCE, "presets": rows, "routing_rules": []}).presets
    assert (preset.spec_decode_K, type(preset.spec_decode_K), preset.max_num_seqs) == (4, int, None)


def test_a_changed_table_is_noticed_by_its_hash() -> None:
    signed: dict[str, Any] = {**REFERENCE, "content_sha256": content_sha256(REFERENCE)}
    assert content_sha256(signed) == signed["content_sha256"]
    assert load(signed).warnings == ()
    assert load({**signed, "generated_at": "later", "generated_by": "else"}).warnings == ()
    edited = load({**signed, "vllm_pin": "other"})
    assert edited.degraded is None
    assert [warning.split(":")[0] for warning in edited.warnings] == ["/content_sha256"]
    assert len(load({**signed, "odd": {1, 2}}).warnings) == 1  # cannot be JSON at all


def test_the_hash_is_that_of_the_canonical_json() -> None:
    assert content_sha256({"b": [1, "\u00e9"], "a": None, "generated_at": "x", "generated_by": "y"}) == (
        "a44633ba036df25280e4fd9ef09da6f54dfe6d3611c755e31f993ab16f108f34"
    )


def test_a_cell_says_what_it_is() -> None:
    assert str(Cell()) == "any request"
    assert str(Cell(("tool_call", "code_gen"), None, ("multi_conc",))) == "tool_call | code_gen + multi_conc"
    assert str(Cell((), None, None)) == "(nothing)"
    assert Cell((), None, None).refusal("tool_call", "short", "multi_conc") == (
        "workload_class is tool_call, the cell has an empty list"
    )


def test_parse_json_takes_plain_json() -> None:
    assert parse_json('{"a": [1, 2.5, null, true, "x"]}') == {"a": [1, 2.5, None, True, "x"]}


def test_an_empty_table_decides_naturally() -> None:
    assert decide(Table(), {"model": "m"}).outcome == "natural"


BLOCKED = """
import sys
before = set(sys.modules)
import sndr.contract
loaded = set(sys.modules) - before
ours = {name for name in loaded if name == "sndr" or name.startswith("sndr.")}
foreign = {name.partition(".")[0] for name in loaded - ours} - sys.stdlib_module_names
print(sorted(foreign), sorted(ours))
print(sorted(loaded & {"dataclasses", "inspect", "asyncio", "socket", "subprocess", "logging", "hashlib", "pathlib"}))
"""


def test_the_library_imports_no_third_party_and_nothing_slow() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {ROOT!r})\n" + BLOCKED],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    third_party, slow = done.stdout.splitlines()
    assert third_party == (
        "[] ['sndr', 'sndr.contract', 'sndr.contract.check', 'sndr.contract.decide', 'sndr.contract.detect', "
        "'sndr.contract.table']"
    )
    assert slow == "[]"
