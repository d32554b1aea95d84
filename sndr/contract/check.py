"""Is a table right? Structure (the shape that schema v1 asks for) and meaning (what a schema cannot say).

Faults come back as a list of findings, each with a JSON pointer into the table. No check raises, whatever JSON it gets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from sndr.contract.detect import MEDIUM_MAX_TOKENS, MULTI_CONC_MIN_IN_FLIGHT, SHORT_MAX_TOKENS, SUMMARIZATION_RATIO
from sndr.contract.table import (
    AXES,
    CELLS,
    CONCURRENCY_MODES,
    OUTPUT_LENGTHS,
    SCHEMA_VERSION,
    UNKNOWN_FAMILY,
    WORKLOAD_CLASSES,
)

__all__ = ["PRIORITIES", "ROLES", "Finding", "check_meaning", "check_structure", "check_table", "evidence_paths"]

ROLES: Final = ("default", "structured", "gateway")
EVIDENCE_TAGS: Final = ("measured", "inferred")
PRIORITIES: Final[Mapping[str, int]] = {
    "tool_call": 100,
    "structured_json": 90,
    "summarization": 50,
    "code_gen": 40,
    "free_chat": 0,
}


class Finding(NamedTuple):
    """One fault: where (a JSON pointer, empty for the whole table), a stable code, and one line for a person."""

    pointer: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.message}"


# --- structure ---------------------------------------------------------------------------------------------------

_Test = Callable[[Any], bool]


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_integer(value: object) -> bool:
    """An integer as JSON Schema has it: 1.0 is one, true is none."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 1


def _is_number(number: int) -> _Test:
    return lambda value: _is_integer(value) and value == number


def _one_of(allowed: tuple[str, ...], *, or_null: bool = False) -> _Test:
    return lambda value: (value is None and or_null) or (isinstance(value, str) and value in allowed)


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


class _Member(NamedTuple):
    test: _Test
    allowed: str
    required: bool = True


_STRING: Final = _Member(_is_string, "a string")
_NULLABLE: Final = _Member(lambda value: value is None or isinstance(value, str), "a string or null")
_COUNT: Final = _Member(_is_count, "an integer of at least 1")
_INTEGER: Final = _Member(_is_integer, "an integer")
_OBJECT: Final = _Member(lambda value: isinstance(value, dict), "an object")
_ARRAY: Final = _Member(lambda value: isinstance(value, list), "an array")

_TABLE: Final[Mapping[str, _Member]] = {
    "schema_version": _Member(_is_number(SCHEMA_VERSION), "1"),
    "generated_by": _STRING,
    "generated_at": _STRING,
    "vllm_pin": _NULLABLE,
    "presets": _ARRAY,
    "routing_rules": _ARRAY,
    "workload_class_detection": _OBJECT,
    "concurrency_mode_detection": _OBJECT,
    "length_detection": _OBJECT,
    "fallback": _OBJECT,
    "coverage_gaps": _ARRAY,
    "content_sha256": _Member(
        lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None,
        "64 lower-case hexadecimal digits",
        required=False,
    ),
}
_PRESET: Final[Mapping[str, _Member]] = {
    "preset_key": _STRING,
    "model": _STRING,
    "served_model_name": _NULLABLE,
    "model_family": _STRING,
    "spec_decode_K": _COUNT,
    "max_num_seqs": _COUNT,
    "role": _Member(_one_of(ROLES, or_null=True), "default, structured, gateway or null"),
    "intended_workloads": _Member(_is_strings, "an array of strings"),
    "default_for_family": _Member(lambda value: isinstance(value, bool), "true or false"),
}
_RULE: Final[Mapping[str, _Member]] = {
    "model_family": _STRING,
    "when": _OBJECT,
    "preset_key": _STRING,
    "evidence": _STRING,
    "evidence_tag": _Member(_one_of(EVIDENCE_TAGS, or_null=True), "measured, inferred or null", required=False),
    "id": _STRING._replace(required=False),
}
_GAP: Final[Mapping[str, _Member]] = {
    "model_family": _STRING,
    "missing_cell": _STRING,
    "fallback_preset": _STRING,
    "next_phase": _STRING,
    "cell": _OBJECT._replace(required=False),
}
_WORKLOADS: Final[Mapping[str, _Member]] = {
    "evaluation_order": _Member(_is_strings, "an array of strings"),
    "classes": _OBJECT,
}
_CLASS: Final[Mapping[str, _Member]] = {
    "trigger": _STRING,
    "priority": _INTEGER,
    "subtype": _Member(lambda value: value is None or isinstance(value, dict), "an object or null", required=False),
}
_MODES: Final[Mapping[str, _Member]] = dict.fromkeys((*CONCURRENCY_MODES, "owner", "fallback"), _STRING)
_LENGTHS: Final[Mapping[str, _Member]] = {
    "short_threshold_tokens": _Member(_is_number(SHORT_MAX_TOKENS), str(SHORT_MAX_TOKENS)),
    "caller_hint_wins": _Member(lambda value: value is True, "true"),
    "buckets": _OBJECT._replace(required=False),
}
_BUCKETS: Final[Mapping[str, _Member]] = dict.fromkeys(OUTPUT_LENGTHS, _STRING._replace(required=False))
_FALLBACK: Final[Mapping[str, _Member]] = {
    "no_rule_matched": _STRING,
    "model_family_unknown": _STRING,
    "classification_failed": _STRING,
    "default_K": _Member(_is_number(1), "1"),
}


def check_structure(table: object) -> list[Finding]:
    """What schema v1 would refuse: the same verdict as `schemas/routing_schema.json`, without a schema validator."""
    if not isinstance(table, dict):
        return [Finding("", "type", f"is {_kind(table)}; must be an object")]
    found = [*_members(table, _TABLE, "")]
    for name, members, cell in (
        ("presets", _PRESET, ""),
        ("routing_rules", _RULE, "when"),
        ("coverage_gaps", _GAP, "cell"),
    ):
        for pointer, row in _items(table, name):
            if not isinstance(row, dict):
                found.append(Finding(pointer, "type", f"is {_kind(row)}; must be an object"))
                continue
            found += _members(row, members, pointer)
            if cell:
                found += _cell(row.get(cell), f"{pointer}/{cell}")
    for name, members in (
        ("workload_class_detection", _WORKLOADS),
        ("concurrency_mode_detection", _MODES),
        ("length_detection", _LENGTHS),
        ("fallback", _FALLBACK),
    ):
        if isinstance(table.get(name), dict):
            found += _members(table[name], members, f"/{name}")
    for name, section in _object(_object(table.get("workload_class_detection")).get("classes")).items():
        pointer = f"/workload_class_detection/classes/{_escape(name)}"
        if isinstance(section, dict):
            found += _members(section, _CLASS, pointer)
        else:
            found.append(Finding(pointer, "type", f"is {_kind(section)}; must be an object"))
    found += _members(
        _object(_object(table.get("length_detection")).get("buckets")), _BUCKETS, "/length_detection/buckets"
    )
    return found


def _members(holder: Mapping[str, Any], members: Mapping[str, _Member], at: str) -> Iterator[Finding]:
    for name, member in members.items():
        if name not in holder:
            if member.required:
                yield Finding(at, "required", f"{name} is missing; must be {member.allowed}")
        elif not member.test(holder[name]):
            yield Finding(f"{at}/{name}", "value", f"is {_kind(holder[name])}; must be {member.allowed}")


def _cell(cell: object, at: str) -> Iterator[Finding]:
    for axis, allowed in AXES.items():
        values = _object(cell).get(axis, [])
        if not isinstance(values, list):
            yield Finding(f"{at}/{axis}", "type", f"is {_kind(values)}; must be an array")
            continue
        for index, value in enumerate(values):
            if not isinstance(value, str) or value not in allowed:
                text = f"is {_kind(value)}; must be one of {', '.join(allowed)}"
                yield Finding(f"{at}/{axis}/{index}", "value", text)


# --- meaning -----------------------------------------------------------------------------------------------------


def check_meaning(table: object, *, resolves: Callable[[str], bool] | None = None) -> list[Finding]:
    """What a schema cannot say: references, defaults, evidence, order of the rules, texts that agree with the numbers.

    Parts that are not well-formed are passed over: `check_structure` names those.

    Args:
        table: The decoded JSON.
        resolves: Whether a path that an evidence text names exists; None checks only that it names one.
    """
    if not isinstance(table, dict):
        return []
    rows = [(pointer, row) for pointer, row in _items(table, "presets") if isinstance(row, dict)]
    families: dict[str, str] = {}
    for _, row in rows:
        key, family = row.get("preset_key"), row.get("model_family")
        if isinstance(key, str) and isinstance(family, str):
            families.setdefault(key, family)
    return [
        *_check_presets(rows),
        *_check_rules(table, families, resolves),
        *_check_gaps(table, families),
        *_check_texts(table),
    ]


def check_table(table: object, *, resolves: Callable[[str], bool] | None = None) -> list[Finding]:
    """Structure, then meaning: everything that is wrong, in one list, each place once."""
    found = check_structure(table)
    named = {finding.pointer for finding in found if finding.code != "required"}
    return found + [finding for finding in check_meaning(table, resolves=resolves) if finding.pointer not in named]


def _check_presets(rows: list[tuple[str, dict[str, Any]]]) -> Iterator[Finding]:
    keys: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for pointer, row in rows:
        key, family = row.get("preset_key"), row.get("model_family")
        if isinstance(key, str):
            if not key.strip():
                yield Finding(f"{pointer}/preset_key", "blank", "is blank")
            first = keys.setdefault(key, pointer)
            if first != pointer:
                yield Finding(f"{pointer}/preset_key", "duplicate_key", f"{_quote(key)} is already the key of {first}")
        if row.get("default_for_family") is not True or not isinstance(family, str):
            continue
        where = f"{pointer}/default_for_family"
        if family == UNKNOWN_FAMILY:
            yield Finding(where, "unknown_family", f"{_quote(key)} cannot be the default of family {UNKNOWN_FAMILY}")
            continue
        first = defaults.setdefault(family, pointer)
        if first != pointer:
            yield Finding(where, "second_default", f"family {_quote(family)} already has a default at {first}")
        if not _is_number(1)(row.get("spec_decode_K")):
            text = f"the default of family {_quote(family)} must have spec_decode_K 1"
            yield Finding(where, "default_k", text)


def _check_rules(
    table: Mapping[str, Any], families: Mapping[str, str], resolves: Callable[[str], bool] | None
) -> Iterator[Finding]:
    earlier: dict[str, list[tuple[str, int]]] = {}
    single_first: dict[str, str] = {}
    ids: dict[str, str] = {}
    for pointer, rule in _items(table, "routing_rules"):
        if not isinstance(rule, dict):
            continue
        family, target, rule_id = rule.get("model_family"), rule.get("preset_key"), rule.get("id")
        if isinstance(rule_id, str):
            if not rule_id.strip():
                yield Finding(f"{pointer}/id", "blank", "is blank")
            first = ids.setdefault(rule_id, pointer)
            if first != pointer:
                yield Finding(f"{pointer}/id", "duplicate_id", f"{_quote(rule_id)} is already the id of {first}")
        if family == UNKNOWN_FAMILY:
            yield Finding(f"{pointer}/model_family", "unknown_family", f"a rule cannot name family {UNKNOWN_FAMILY}")
        yield from _check_target(f"{pointer}/preset_key", target, family, families)
        yield from _check_evidence(pointer, rule, resolves)
        if isinstance(family, str):
            yield from _check_order(pointer, rule.get("when"), family, earlier.setdefault(family, []), single_first)


def _check_target(at: str, target: object, family: object, families: Mapping[str, str]) -> Iterator[Finding]:
    if not isinstance(target, str):
        return
    if target not in families:
        yield Finding(at, "dangling", f"{_quote(target)} is not a preset of this table")
    elif isinstance(family, str) and families[target] != family:
        text = f"{_quote(target)} is of family {_quote(families[target])}, not {_quote(family)}"
        yield Finding(at, "other_family", text)


_BRACKETS: Final = "()[]{}<>,;:\"'`"


def evidence_paths(evidence: str) -> list[str]:
    """The paths that an evidence text names: words with a slash whose last part has a suffix, URLs left out."""
    words = (word.lstrip(_BRACKETS).rstrip(_BRACKETS + ".") for word in evidence.split())
    return [word for word in words if "://" not in word and "/" in word and "." in word.rpartition("/")[2]]


def _check_evidence(pointer: str, rule: Mapping[str, Any], resolves: Callable[[str], bool] | None) -> Iterator[Finding]:
    evidence = rule.get("evidence")
    if isinstance(evidence, str):
        at = f"{pointer}/evidence"
        paths = evidence_paths(evidence)
        if not evidence.strip():
            yield Finding(at, "blank", "is blank; must cite where the figures come from")
        elif not paths:
            yield Finding(at, "evidence_path", "names no path, such as presets/evidence/x.yaml")
        elif resolves is not None and not any(resolves(path) for path in paths):
            yield Finding(at, "evidence_path", f"{_quote(', '.join(paths))} does not exist")
    if rule.get("evidence_tag") is None:
        yield Finding(f"{pointer}/evidence_tag", "evidence_tag", "is missing; must be measured or inferred")


def _check_order(
    pointer: str, when: object, family: str, earlier: list[tuple[str, int]], single_first: dict[str, str]
) -> Iterator[Finding]:
    """A rule that can never be reached, and a single-stream rule in front of a multi-conc one."""
    cells = _cells(when)
    if cells is None:
        return
    if cells == 0:
        yield Finding(f"{pointer}/when", "admits_nothing", "no request can match: an axis has no usable value")
        return
    shadow = next((at for at, mask in earlier if cells & ~mask == 0), None)
    if shadow is not None:
        text = f"never reached: {shadow} of the same family admits everything that this rule admits"
        yield Finding(f"{pointer}/when", "shadowed", text)
    elif cells & ~_union(earlier) == 0:
        text = "never reached: the earlier rules of the family together admit everything that this rule admits"
        yield Finding(f"{pointer}/when", "shadowed", text)
    earlier.append((pointer, cells))
    if cells & ~_MODE_CELLS["single_stream"] == 0:
        single_first.setdefault(family, pointer)
    elif cells & ~_MODE_CELLS["multi_conc"] == 0 and family in single_first:
        text = f"a multi_conc rule must stand before {single_first[family]}, a single_stream rule of its family"
        yield Finding(pointer, "mode_order", text)


# A set of cells as an integer: one bit per cell. Inclusion is then two operations.
_MODE_CELLS: Final = {
    mode: sum(1 << bit for bit, cell in enumerate(CELLS) if cell[2] == mode) for mode in CONCURRENCY_MODES
}


def _union(earlier: list[tuple[str, int]]) -> int:
    union = 0
    for _, cells in earlier:
        union |= cells
    return union


def _cells(when: object) -> int | None:
    """The cells that a `when` admits; None when it is not well-formed."""
    if not isinstance(when, dict) or any(axis not in AXES or not _is_strings(when[axis]) for axis in when):
        return None
    sets = [when.get(axis, allowed) for axis, allowed in AXES.items()]
    return sum(
        1 << bit
        for bit, cell in enumerate(CELLS)
        if all(value in allowed for value, allowed in zip(cell, sets, strict=True))
    )


def _check_gaps(table: Mapping[str, Any], families: Mapping[str, str]) -> Iterator[Finding]:
    labels: dict[tuple[str, str], str] = {}
    for pointer, gap in _items(table, "coverage_gaps"):
        if not isinstance(gap, dict):
            continue
        family, label = gap.get("model_family"), gap.get("missing_cell")
        yield from _check_target(f"{pointer}/fallback_preset", gap.get("fallback_preset"), family, families)
        if isinstance(label, str):
            if not label.strip():
                yield Finding(f"{pointer}/missing_cell", "blank", "is blank; it is the gap's name")
            elif isinstance(family, str):
                first = labels.setdefault((family, label), pointer)
                if first != pointer:
                    text = f"{_quote(label)} is already the name of {first} in this family"
                    yield Finding(f"{pointer}/missing_cell", "duplicate_gap", text)
        cell = gap.get("cell")
        for axis in _object(cell):
            if axis not in AXES:
                at = f"{pointer}/cell/{_escape(axis)}"
                yield Finding(at, "unknown_axis", f"is no axis; must be one of {', '.join(AXES)}")
        if _cells(cell) == 0:
            yield Finding(f"{pointer}/cell", "admits_nothing", "no request can lie in it: an axis has no usable value")
    for pointer, rule in _items(table, "routing_rules"):
        for axis in _object(_object(rule).get("when")):
            if axis not in AXES:
                at = f"{pointer}/when/{_escape(axis)}"
                yield Finding(at, "unknown_axis", f"is no axis; must be one of {', '.join(AXES)}")


# --- texts that are read by people who implement them ------------------------------------------------------------

# `x <= 256`, `256 < x`: operators are listed longest first, so that `<` does not take the `<` of `<=`.
_COMPARISON: Final = re.compile(r"(\d{1,9})\s*(<=|>=|<|>|\u2264|\u2265)|(<=|>=|<|>|\u2264|\u2265)\s*(\d{1,9})(?!\d)")
_MIRROR: Final = {"<=": ">=", ">=": "<=", "<": ">", ">": "<", "\u2264": ">=", "\u2265": "<="}


def _bounds(text: str) -> tuple[int | None, int | None]:
    """The closed range of integers that the comparisons in a text describe; None for an open end."""
    low: int | None = None
    high: int | None = None
    for match in _COMPARISON.finditer(text):
        if match[1] is not None:
            number, operator = int(match[1]), _MIRROR[match[2]]
        else:
            number, operator = int(match[4]), {"\u2264": "<=", "\u2265": ">="}.get(match[3], match[3])
        if operator in ("<=", "<"):
            limit = number if operator == "<=" else number - 1
            high = limit if high is None else min(high, limit)
        else:
            limit = number if operator == ">=" else number + 1
            low = limit if low is None else max(low, limit)
    return low, high


def _check_texts(table: Mapping[str, Any]) -> Iterator[Finding]:
    detection = _object(table.get("workload_class_detection"))
    at = "/workload_class_detection"
    order = detection.get("evaluation_order")
    if isinstance(order, list) and order != list(WORKLOAD_CLASSES):
        text = f"must be {', '.join(WORKLOAD_CLASSES)}, in this order"
        yield Finding(f"{at}/evaluation_order", "evaluation_order", text)
    classes = detection.get("classes")
    if isinstance(classes, dict):
        yield from _check_classes(classes, f"{at}/classes")
    modes = _object(table.get("concurrency_mode_detection"))
    at = "/concurrency_mode_detection"
    many = MULTI_CONC_MIN_IN_FLIGHT
    few = many - 1
    text = f"at most {few} in flight, such as in_flight <= {few}"
    yield from _check_range(modes, "single_stream", at, (None, few), text)
    text = f"at least {many} in flight, such as in_flight >= {many}"
    yield from _check_range(modes, "multi_conc", at, (many, None), text)
    fallback = modes.get("fallback")
    if isinstance(fallback, str) and "single_stream" not in fallback:
        yield Finding(f"{at}/fallback", "text", "must name single_stream")
    lengths = _object(table.get("length_detection"))
    threshold = lengths.get("short_threshold_tokens")
    short, medium = SHORT_MAX_TOKENS, MEDIUM_MAX_TOKENS
    if _is_integer(threshold) and threshold != short:
        yield Finding("/length_detection/short_threshold_tokens", "threshold", f"must be {short}")
    buckets = _object(lengths.get("buckets"))
    at = "/length_detection/buckets"
    yield from _check_range(buckets, "short", at, (None, short), f"a budget <= {short}")
    yield from _check_range(buckets, "medium", at, (short + 1, medium), f"{short} < budget <= {medium}")
    yield from _check_range(buckets, "long", at, (medium + 1, None), f"a budget > {medium}")
    default_k = _object(table.get("fallback")).get("default_K")
    if _is_integer(default_k) and default_k != 1:
        yield Finding("/fallback/default_K", "default_k", "must be 1")


def _check_range(
    holder: Mapping[str, Any], name: str, at: str, expected: tuple[int | None, int | None], text: str
) -> Iterator[Finding]:
    value = holder.get(name)
    if not isinstance(value, str):
        return
    low, high = _bounds(value)
    if name == "short" and low == 1:
        low = None  # "1 <= budget <= 256" says the same: a budget is at least 1
    if name == "medium" and low is None:
        low = SHORT_MAX_TOKENS + 1  # what is left when short was looked at first
    if name == "single_stream" and low in (0, 1):
        low = None
    if (low, high) != expected:
        yield Finding(f"{at}/{name}", "text", f"does not agree with the procedure; must say {text}")


_TRIGGER_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "tool_call": ("tools",),
    "structured_json": ("json_object", "json_schema"),
    "code_gen": ("category", "code"),
}


def _check_classes(classes: Mapping[str, Any], at: str) -> Iterator[Finding]:
    for name in WORKLOAD_CLASSES:
        if name not in classes:
            yield Finding(at, "missing_class", f"{name} is missing")
    for name, section in classes.items():
        where = f"{at}/{_escape(name)}"
        if name not in PRIORITIES:
            yield Finding(where, "unknown_class", f"is no class of v1; must be one of {', '.join(WORKLOAD_CLASSES)}")
            continue
        trigger, priority = _object(section).get("trigger"), _object(section).get("priority")
        if _is_integer(priority) and priority != PRIORITIES[name]:
            yield Finding(f"{where}/priority", "priority", f"must be {PRIORITIES[name]}")
        if not isinstance(trigger, str):
            continue
        if not trigger.strip():
            yield Finding(f"{where}/trigger", "blank", "is blank; consumers implement what it says")
            continue
        missing = [word for word in _TRIGGER_WORDS.get(name, ()) if word not in trigger]
        if missing:
            yield Finding(f"{where}/trigger", "text", f"does not name {', '.join(missing)}")
        if (
            name == "summarization"
            and "twice" not in trigger
            and set(re.findall(r"\d+", trigger)) != {str(SUMMARIZATION_RATIO)}
        ):
            yield Finding(f"{where}/trigger", "text", f"must say: input tokens > {SUMMARIZATION_RATIO} x budget")


# --- small things ------------------------------------------------------------------------------------------------


def _items(table: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    rows = table.get(name)
    if isinstance(rows, list):
        for index, row in enumerate(rows):
            yield f"/{name}/{index}", row


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _escape(name: str) -> str:
    """One part of a JSON pointer (Source: RFC 6901 section 3), printable ASCII."""
    return ascii(name)[1:-1].replace("~", "~0").replace("/", "~1")


def _quote(value: object) -> str:
    return ascii(value)[:80]


def _kind(value: object) -> str:
    """A value as a person should see it: short, printable, its type when it is long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value.bit_length() < 64 else "a very large integer"
    if isinstance(value, float | str):
        return _quote(value)
    return "an object" if isinstance(value, dict) else "an array"
