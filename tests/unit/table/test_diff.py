"""What `routing-table diff` says: names, meanings, moved cells, and its three exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sndr.cli.main import module_root, run
from sndr.cli.table.diff import compare
from sndr.contract import decide, load
from tests.support.contract_vectors import D26, G26, G31, M26, REFERENCE, RULE, T, gap, request_for, row, rule


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(json.dumps(REFERENCE))
    change(table)
    return table


EMPTY = {"added": [], "removed": [], "changed": []}


def test_the_record_of_equal_tables_is_empty() -> None:
    difference = compare(
        REFERENCE, changed(lambda t: t.update(generated_at="later", generated_by="x", content_sha256="0" * 64))
    )
    assert difference.is_empty
    assert difference.record() == {
        "presets": EMPTY,
        "rules": {**EMPTY, "reordered": False},
        "defaults": [],
        "gaps": {**EMPTY, "reordered": False},
        "moved_cells": [],
        "other": [],
    }


def test_the_order_of_presets_says_nothing() -> None:
    assert compare(REFERENCE, changed(lambda t: t["presets"].reverse())).is_empty


def test_a_removed_rule_moves_its_cells_to_the_default() -> None:
    difference = compare(REFERENCE, changed(lambda t: t["routing_rules"].clear()))
    assert difference.rules["removed"] == [RULE]
    assert difference.moved_cells == [
        {
            "model_family": G26,
            "workload_class": workload,
            "expected_output_length": "short",
            "concurrency_mode": "multi_conc",
            "from": M26,
            "to": D26,
        }
        for workload in ("tool_call", "structured_json")
    ]
    assert difference.presets == EMPTY
    assert difference.defaults == []


def test_a_widened_rule_is_a_changed_rule() -> None:
    difference = compare(REFERENCE, changed(lambda t: t["routing_rules"][0]["when"].pop("concurrency_mode")))
    (change,) = difference.rules["changed"]
    assert (change["name"], change["field"]) == (RULE, "when")
    assert {cell["concurrency_mode"] for cell in difference.moved_cells} == {"single_stream"}


def test_a_rule_without_an_id_is_known_by_its_cell() -> None:
    unnamed = rule(M26, {"concurrency_mode": ["multi_conc"]}, family=G26)
    old = changed(lambda t: t.update(routing_rules=[unnamed]))
    assert compare(old, old).is_empty
    new = changed(lambda t: t.update(routing_rules=[{**unnamed, "evidence": "docs/other.md"}]))
    (change,) = compare(old, new).rules["changed"]
    assert (change["field"], change["from"], change["to"]) == ("evidence", unnamed["evidence"], "docs/other.md")


def test_reordered_rules() -> None:
    rules = [rule(M26, {}, family=G26, rule_id="a"), rule(D26, {}, family=G26, rule_id="b")]
    difference = compare(
        changed(lambda t: t.update(routing_rules=rules)), changed(lambda t: t.update(routing_rules=rules[::-1]))
    )
    assert difference.rules == {**EMPTY, "reordered": True}
    assert len(difference.moved_cells) == 30


def test_rows_of_one_name_are_not_lost() -> None:
    twice = changed(lambda t: t["presets"].append(row(D26, family=G31)))
    difference = compare(REFERENCE, twice)
    assert difference.presets["added"] == [f"{D26} #2"]
    assert compare(twice, twice).is_empty


def test_presets_defaults_gaps_and_the_rest() -> None:
    def change(table: dict[str, Any]) -> None:
        table["presets"] = [p for p in table["presets"] if p["preset_key"] != "prod-qwen3.6-35b-balanced"]
        table["presets"].append(row("new", family="brand_new", default=True))
        table["presets"][5]["default_for_family"] = False
        table["coverage_gaps"][4]["next_phase"] = "done soon"
        table["coverage_gaps"].pop(0)
        table["coverage_gaps"].append(gap("new gap", {}, family=G26, fallback=D26))
        table["vllm_pin"] = "0.1"
        table["length_detection"]["buckets"]["short"] = "budget <= 0256"
        table["odd/name"] = {"a~b": 1}

    difference = compare(REFERENCE, changed(change))
    assert difference.presets == {
        "added": ["new"],
        "removed": ["prod-qwen3.6-35b-balanced"],
        "changed": [{"name": D26, "field": "default_for_family", "from": True, "to": False}],
    }
    assert difference.defaults == [
        {"model_family": G26, "from": D26, "to": None},
        {"model_family": "brand_new", "from": None, "to": "new"},
    ]
    assert difference.gaps["added"] == [f"{G26}: new gap"]
    assert difference.gaps["removed"] == [f"{G26}: single-stream-structured-or-tool-short"]
    assert [c["name"] for c in difference.gaps["changed"]] == [f"{G26}: {T}"]
    assert [o["path"] for o in difference.other] == [
        "/vllm_pin",
        "/length_detection/buckets/short",
        "/odd~1name",
    ]
    moved = {(c["model_family"], c["from"], c["to"]) for c in difference.moved_cells}
    assert moved == {(G26, D26, None), ("brand_new", None, "new")}


def test_moved_cells_are_what_decisions_say() -> None:
    new = changed(lambda t: t.update(routing_rules=[rule(M26, {"workload_class": ["code_gen"]}, family=G26)]))
    before, after = load(REFERENCE), load(new)
    moved = compare(REFERENCE, new).moved_cells
    for workload in ("tool_call", "structured_json", "summarization", "code_gen", "free_chat"):
        for length in ("short", "medium", "long"):
            for in_flight, mode in ((1, "single_stream"), (2, "multi_conc")):
                request, tokens = request_for(workload, length, "gemma-4-26b-a4b")
                keys = [
                    decide(table, request, in_flight=in_flight, input_tokens=tokens).preset_key
                    for table in (before, after)
                ]
                cell = {
                    "model_family": G26,
                    "workload_class": workload,
                    "expected_output_length": length,
                    "concurrency_mode": mode,
                    "from": keys[0],
                    "to": keys[1],
                }
                assert (cell in moved) == (keys[0] != keys[1])


def test_true_is_not_1() -> None:
    (change,) = compare(REFERENCE, changed(lambda t: t["presets"][0].update(spec_decode_K=True))).presets["changed"]
    assert (change["from"], change["to"]) == (4, True)


def test_an_added_null_member_is_a_change() -> None:
    assert not compare(REFERENCE, changed(lambda t: t["presets"][0].update(note=None))).is_empty


# --- the command ---------------------------------------------------------------------------------------------------


def verb(*args: str) -> int:
    return run(module_root(), ["routing-table", "diff", *args], "python3 -m sndr.cli")


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    def write(*texts: Any) -> list[str]:
        paths = []
        for number, text in enumerate(texts):
            path = tmp_path / f"{number}.json"
            path.write_text(text if isinstance(text, str) else json.dumps(text), "utf-8")
            paths.append(str(path))
        return paths

    return write


def test_exit_0_for_the_same(files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    paths = files(REFERENCE, REFERENCE)
    assert verb(*paths) == 0
    assert capsys.readouterr() == ("same\n", "")
    assert verb(*paths, "--json") == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["moved_cells"], err) == ([], "")


def test_exit_1_for_a_difference(files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    new = changed(lambda t: (t["routing_rules"].clear(), t.update(vllm_pin="\x1b[31m")))
    paths = files(REFERENCE, new)
    assert verb(*paths) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert out.isascii()
    assert "\x1b" not in out
    assert f"  - {RULE}\n" in out
    assert "requests that change preset (2 cells):\n" in out
    assert f"  {G26}: {M26} -> {D26}\n    tool_call | structured_json: short multi_conc\n" in out
    assert verb(*paths, "--json") == 1
    assert json.loads(capsys.readouterr().out) == compare(REFERENCE, new).record()


def test_the_text_names_every_kind_of_change(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    def change(table: dict[str, Any]) -> None:
        table["presets"][5].update(default_for_family=False, spec_decode_K=2)
        table["presets"].append(row("new", family="brand_new", default=True))
        table["coverage_gaps"].reverse()
        table["fallback"]["no_rule_matched"] = "x" * 500

    assert verb(*files(REFERENCE, changed(change))) == 1
    out = capsys.readouterr().out
    assert f"  ~ {D26}: spec_decode_K 1 -> 2\n" in out
    assert "  + new\n" in out
    assert "  ~ the order changed\n" in out
    assert f"  ~ {G26}: {D26} -> none\n" in out
    assert "  ~ brand_new: none -> new\n" in out
    assert "  ~ /fallback/no_rule_matched: " in out
    assert "  brand_new: none (route by model) -> new\n    any workload: any length, any mode\n" in out
    assert max(len(line) for line in out.splitlines()) < 300


def test_no_moved_request_is_said(files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(*files(REFERENCE, changed(lambda t: t.update(vllm_pin="1")))) == 1
    assert "no request changes preset\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema_version": 2}',
        '{"schema_version": 1}',
        '{"schema_version": 1, "schema_version": 1}',
        json.dumps({**REFERENCE, "schema_version": True}),
    ],
)
def test_exit_2_when_they_cannot_be_compared(
    text: str, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = files(REFERENCE, text)
    for pair in ((good, bad), (bad, good)):
        assert verb(*pair) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert bad in err
        assert err.count("\n") == 1


def test_exit_2_for_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(str(tmp_path / "none"), str(tmp_path)) == 2
    assert verb("-", "-") == 2
    assert verb("one") == 2
    assert capsys.readouterr().out == ""


def test_what_a_table_drops_is_said_beside_the_answer(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    new = changed(lambda t: t["routing_rules"][0].update(preset_key="gone"))
    paths = files(REFERENCE, new)
    assert verb(*paths, "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["moved_cells"]
    assert "/routing_rules/0: dropped" in err
