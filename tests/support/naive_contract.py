"""The decision procedure a second time: slow, plain, from its description, sharing nothing with `sndr.contract`.

Expected values of the generated conformance vectors come from here; property tests hold the library against it.
"""

from __future__ import annotations

import json
import math
from typing import Any


class UnreadableError(Exception):
    pass


def read_text(text: str) -> Any:
    """JSON as a cautious consumer reads it: one meaning or none."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise UnreadableError
        return dict(pairs)

    def refuse(_: str) -> None:
        raise UnreadableError

    try:
        return json.loads(text, object_pairs_hook=no_duplicates, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise UnreadableError from None


def is_degraded(table: Any) -> bool:
    if type(table) is not dict:
        return True
    version = table.get("schema_version")
    if type(version) not in (int, float) or version != 1:
        return True
    return type(table.get("presets")) is not list or type(table.get("routing_rules")) is not list


def usable_rows(table: Any) -> list[dict[str, Any]]:
    return [
        row
        for row in table["presets"]
        if type(row) is dict and type(row.get("preset_key")) is str and type(row.get("model_family")) is str
    ]


def usable_cell(cell: Any) -> bool:
    if type(cell) is not dict:
        return False
    for axis in cell:
        if axis not in ("workload_class", "expected_output_length", "concurrency_mode"):
            return False
        if type(cell[axis]) is not list:
            return False
        for value in cell[axis]:
            if type(value) is not str:
                return False
    return True


def dropped_rules(table: Any) -> list[int]:
    """Positions of the rules that are not in force."""
    keys = [row["preset_key"] for row in usable_rows(table)]
    dropped = []
    for position, rule in enumerate(table["routing_rules"]):
        good = (
            type(rule) is dict
            and type(rule.get("model_family")) is str
            and rule.get("preset_key") in keys
            and usable_cell(rule.get("when"))
        )
        if not good:
            dropped.append(position)
    return dropped


def cell_contains(cell: dict[str, Any], workload: str, length: str, mode: str) -> bool:
    if "workload_class" in cell and workload not in cell["workload_class"]:
        return False
    if "expected_output_length" in cell and length not in cell["expected_output_length"]:
        return False
    return not ("concurrency_mode" in cell and mode not in cell["concurrency_mode"])


def hint(name: str, valid: list[str], body: Any, headers: list[list[str]]) -> str | None:
    candidates = []
    if type(body) is dict:
        candidates.append(body.get(name))
        if type(body.get("extra_body")) is dict:
            candidates.append(body["extra_body"].get(name))
    header_name = {"expected_length": "x-sndr-expected-length", "category": "x-sndr-category"}[name]
    candidates += [value for header, value in headers if header.lower() == header_name]
    for candidate in candidates:
        if type(candidate) is str and candidate in valid:
            return candidate
    return None


def decide(
    table: Any,
    body: Any,
    *,
    in_flight: Any = None,
    input_tokens: Any = None,
    headers: list[list[str]] | None = None,
    dialect: str = "chat",
    family: str | None = None,
) -> dict[str, str | None]:
    # What the request brings, whatever the dialect calls it.
    tools = response_format = raw_budget = model = None
    if type(body) is dict:
        model = body.get("model")
        tools = body.get("tools")
        if dialect == "chat":
            response_format = body.get("response_format")
            raw_budget = body.get("max_tokens")
            if body.get("max_completion_tokens") is not None:
                raw_budget = body["max_completion_tokens"]
        elif dialect == "responses":
            raw_budget = body.get("max_output_tokens")
            if type(body.get("text")) is dict:
                response_format = body["text"].get("format")
        else:
            raw_budget = body.get("max_tokens")
            if type(body.get("output_config")) is dict:
                response_format = body["output_config"].get("format")

    if (type(raw_budget) is int and raw_budget >= 1) or (
        type(raw_budget) is float and math.isfinite(raw_budget) and raw_budget == math.floor(raw_budget) >= 1
    ):
        budget = int(raw_budget)
    else:
        budget = 0  # none

    kind = None
    if type(response_format) is dict:
        kind = response_format.get("type")
    plain_format = response_format is None or (type(kind) is str and kind == "text")

    # 3. workload
    if type(body) is not dict:
        workload = "free_chat"
    elif type(tools) is list and len(tools) > 0:
        workload = "tool_call"
    elif type(kind) is str and kind in ["json_object", "json_schema"]:
        workload = "structured_json"
    elif plain_format and type(input_tokens) is int and input_tokens >= 0 and budget and input_tokens > 2 * budget:
        workload = "summarization"
    elif hint("category", ["code"], body, headers or []) == "code":
        workload = "code_gen"
    else:
        workload = "free_chat"

    # 4. length
    length = hint("expected_length", ["short", "medium", "long"], body, headers or [])
    if length is None:
        if not budget:
            length = "long"
        elif budget <= 256:
            length = "short"
        elif budget <= 512:
            length = "medium"
        else:
            length = "long"

    # 5. mode
    mode = "multi_conc" if type(in_flight) is int and in_flight >= 2 else "single_stream"

    record: dict[str, str | None] = {
        "workload_class": workload,
        "expected_output_length": length,
        "concurrency_mode": mode,
        "model_family": family or "unknown",
        "preset_key": None,
        "outcome": "natural",
        "rule_id": None,
        "evidence_tag": None,
        "gap": None,
    }
    if is_degraded(table):
        record["outcome"] = "degraded"
        return record

    # 6. family
    rows = usable_rows(table)
    if family is None:
        family = "unknown"
        for member in ("served_model_name", "model", "preset_key"):
            families = {row["model_family"] for row in rows if type(model) is str and row.get(member) == model}
            if families:
                if len(families) == 1:
                    family = families.pop()
                break
        record["model_family"] = family
    if family == "unknown":
        return record

    # 7. rule, default
    chosen = None
    for position, rule in enumerate(table["routing_rules"]):
        if position in dropped_rules(table) or rule["model_family"] != family:
            continue
        if cell_contains(rule["when"], workload, length, mode):
            chosen = position
            break
    if chosen is not None:
        rule = table["routing_rules"][chosen]
        record["preset_key"] = rule["preset_key"]
        record["outcome"] = "rule"
        has_id = type(rule.get("id")) is str and rule["id"] != ""
        record["rule_id"] = rule["id"] if has_id else f"/routing_rules/{chosen}"
        if type(rule.get("evidence_tag")) is str:
            record["evidence_tag"] = rule["evidence_tag"]
    else:
        for row in rows:
            if row["model_family"] == family and row.get("default_for_family") is True:
                record["preset_key"] = row["preset_key"]
                record["outcome"] = "family_default"
                break

    # 8. gap
    gaps = table.get("coverage_gaps")
    for gap in gaps if type(gaps) is list else []:
        if type(gap) is not dict or type(gap.get("missing_cell")) is not str or gap.get("model_family") != family:
            continue
        if usable_cell(gap.get("cell")) and cell_contains(gap["cell"], workload, length, mode):
            record["gap"] = gap["missing_cell"]
            break
    return record
