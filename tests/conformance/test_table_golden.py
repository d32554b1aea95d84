"""The shipped table, whole, against its golden file, and against what users of the predecessor's v1 schema rely on.

After a deliberate change of the catalog: ``SNDR_REWRITE=1 python -m pytest tests/conformance/test_table_golden.py``,
then read the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from sndr.cli.schemas import table_schema_findings
from sndr.cli.table.build import build_table
from sndr.cli.table.catalog import load_catalog
from sndr.cli.table.encode import encode
from sndr.cli.table.validate import table_findings
from sndr.contract import check_table
from sndr.resources import presets_dir
from tests.support.cli import ROOT

GOLDEN = Path(__file__).parent / "golden" / "routing_table.json"


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return build_table(load_catalog(presets_dir()))


def test_the_shipped_table_is_the_golden_one(table: dict[str, Any]) -> None:
    text = encode({key: value for key, value in table.items() if not key.startswith("generated_")})
    if os.environ.get("SNDR_REWRITE"):
        GOLDEN.write_text(text, "ascii")
    assert text == GOLDEN.read_text("ascii")


def test_it_is_valid_by_every_judge(table: dict[str, Any]) -> None:
    assert check_table(table) == []
    assert list(table_schema_findings(table)) == []
    assert table_findings(table, presets_dir()) == []


def test_it_is_small_ascii_with_a_final_newline(table: dict[str, Any]) -> None:
    text = encode(table)
    assert len(text) < 50 * 1024
    assert text.isascii()
    assert text.endswith("\n}\n")


def test_members_stand_in_the_published_order(table: dict[str, Any]) -> None:
    assert list(table) == [
        "schema_version",
        "generated_by",
        "generated_at",
        "vllm_pin",
        "presets",
        "routing_rules",
        "workload_class_detection",
        "concurrency_mode_detection",
        "length_detection",
        "fallback",
        "coverage_gaps",
        "content_sha256",
    ]
    assert [row["preset_key"] for row in table["presets"]] == sorted(row["preset_key"] for row in table["presets"])


#: What the public v1 schema asks for: object -> its required members.
_V1_ROW = {
    "preset_key", "model", "model_family", "spec_decode_K", "max_num_seqs", "role", "intended_workloads",
    "default_for_family",
}  # fmt: skip
_V1_TOP = {
    "schema_version", "generated_by", "generated_at", "vllm_pin", "presets", "routing_rules",
    "workload_class_detection", "concurrency_mode_detection", "length_detection", "fallback", "coverage_gaps",
}  # fmt: skip
_V1_CLASSES = {"tool_call", "structured_json", "summarization", "code_gen", "free_chat"}
_V1_LENGTHS = {"short", "medium", "long"}
_V1_MODES = {"single_stream", "multi_conc"}


def test_a_reader_of_the_predecessors_schema_finds_all_that_it_requires(table: dict[str, Any]) -> None:
    assert set(table) >= _V1_TOP
    assert table["schema_version"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", table["generated_at"])
    assert table["vllm_pin"] is None or isinstance(table["vllm_pin"], str)
    for row in table["presets"]:
        assert set(row) >= _V1_ROW
        assert all(isinstance(row[key], str) for key in ("preset_key", "model", "model_family"))
        assert all(isinstance(row[key], int) and row[key] >= 1 for key in ("spec_decode_K", "max_num_seqs"))
        assert row["role"] in {"default", "structured", "gateway", None}
        assert all(isinstance(word, str) for word in row["intended_workloads"])
        assert isinstance(row["default_for_family"], bool)
    for rule in table["routing_rules"]:
        assert set(rule) >= {"model_family", "when", "preset_key", "evidence", "evidence_tag"}
        assert rule["evidence"].strip()
        assert rule["evidence_tag"] in {"measured", "inferred"}
        _check_cell(rule["when"])
    detection = table["workload_class_detection"]
    assert set(detection["evaluation_order"]) == set(detection["classes"]) == _V1_CLASSES
    for described in detection["classes"].values():
        assert isinstance(described["trigger"], str)
        assert isinstance(described["priority"], int)
    assert set(table["concurrency_mode_detection"]) >= _V1_MODES | {"owner", "fallback"}
    lengths = table["length_detection"]
    assert (lengths["short_threshold_tokens"], lengths["caller_hint_wins"]) == (256, True)
    assert set(lengths["buckets"]) == _V1_LENGTHS
    fallback = table["fallback"]
    assert set(fallback) >= {"no_rule_matched", "model_family_unknown", "classification_failed", "default_K"}
    assert fallback["default_K"] == 1
    for gap in table["coverage_gaps"]:
        assert set(gap) >= {"model_family", "missing_cell", "fallback_preset", "next_phase"}
        assert all(
            isinstance(gap[key], str) for key in ("model_family", "missing_cell", "fallback_preset", "next_phase")
        )
        _check_cell(gap["cell"])


def _check_cell(cell: dict[str, list[str]]) -> None:
    for axis, words in cell.items():
        assert set(words) <= {
            "workload_class": _V1_CLASSES, "expected_output_length": _V1_LENGTHS, "concurrency_mode": _V1_MODES,
        }[axis]  # fmt: skip


def test_what_the_contract_document_says_about_the_live_table(table: dict[str, Any]) -> None:
    rows = {row["preset_key"]: row for row in table["presets"]}
    assert len(rows) == 15
    (rule,) = table["routing_rules"]
    assert (rule["model_family"], rule["preset_key"], rule["evidence_tag"]) == (
        "gemma4_moe_26b_a4b",
        "prod-gemma4-26b-multiconc",
        "measured",
    )
    assert {axis: set(words) for axis, words in rule["when"].items()} == {
        "workload_class": {"structured_json", "tool_call"},
        "expected_output_length": {"short"},
        "concurrency_mode": {"multi_conc"},
    }
    assert "B4" in rule["evidence"]
    assert "+12.8 %" in rule["evidence"]
    defaults = {row["model_family"]: key for key, row in rows.items() if row["default_for_family"]}
    assert defaults == {
        "gemma4_moe_26b_a4b": "prod-gemma4-26b-default",
        "gemma4_dense_31b": "prod-gemma4-31b-tq-default",
    }
    assert {rows[key]["spec_decode_K"] for key in defaults.values()} == {1}
    assert rows["prod-qwen3.6-35b-balanced"]["max_num_seqs"] == 2
    order = table["workload_class_detection"]["evaluation_order"]
    priorities = [table["workload_class_detection"]["classes"][name]["priority"] for name in order]
    assert list(zip(order, priorities, strict=True)) == [
        ("tool_call", 100),
        ("structured_json", 90),
        ("summarization", 50),
        ("code_gen", 40),
        ("free_chat", 0),
    ]
    archived = " ".join(gap["next_phase"] for gap in table["coverage_gaps"])
    assert "prod-gemma4-26b-mtp-k4" in archived
    assert "prod-gemma4-31b-tq-mtp-structured-k4" in archived
    assert all(rows[gap["fallback_preset"]]["model_family"] == gap["model_family"] for gap in table["coverage_gaps"])
    families = {row["model_family"] for row in rows.values()}
    assert {"qwen3_6_27b", "qwen3_6_35b"} <= families
    ruled = {rule["model_family"] for rule in table["routing_rules"]} | set(defaults)
    assert not {"qwen3_6_27b", "qwen3_6_35b"} & ruled


def test_every_archived_preset_stays_out(table: dict[str, Any]) -> None:
    archived = {path.stem for path in (ROOT / "presets" / "archive" / "presets").glob("*.yaml")}
    assert len(archived) == 11
    assert not archived & {row["preset_key"] for row in table["presets"]}
