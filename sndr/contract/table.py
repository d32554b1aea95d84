"""The routing table as immutable values: load it once, then ask `sndr.contract.decide`.

Loading never raises for what a table contains. A table that cannot be used as a whole is *degraded*: it carries one
warning and every decision over it is "no preset, outcome degraded". A part that cannot be used (a rule, a row, a gap)
is dropped with a warning of its own, and the rest works.

Values are named tuples rather than dataclasses: a short-lived process that imports this library should not pay for
`dataclasses` and `inspect` (Source: ADR 0003).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

__all__ = [
    "AXES",
    "CELLS",
    "CONCURRENCY_MODES",
    "OUTPUT_LENGTHS",
    "SCHEMA_VERSION",
    "UNKNOWN_FAMILY",
    "WORKLOAD_CLASSES",
    "Cell",
    "Gap",
    "Preset",
    "Rule",
    "Table",
    "Verdict",
    "content_sha256",
    "degraded",
    "load",
    "parse_json",
]

SCHEMA_VERSION: Final = 1
UNKNOWN_FAMILY: Final = "unknown"

WORKLOAD_CLASSES: Final = ("tool_call", "structured_json", "summarization", "code_gen", "free_chat")
OUTPUT_LENGTHS: Final = ("short", "medium", "long")
CONCURRENCY_MODES: Final = ("single_stream", "multi_conc")

AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "workload_class": WORKLOAD_CLASSES,
    "expected_output_length": OUTPUT_LENGTHS,
    "concurrency_mode": CONCURRENCY_MODES,
}
CELLS: Final = tuple((w, n, m) for w in WORKLOAD_CLASSES for n in OUTPUT_LENGTHS for m in CONCURRENCY_MODES)


class Cell(NamedTuple):
    """A set of requests: AND across the axes, OR inside one. None admits anything, an empty tuple nothing."""

    workload_class: tuple[str, ...] | None = None
    expected_output_length: tuple[str, ...] | None = None
    concurrency_mode: tuple[str, ...] | None = None

    def admits(self, workload: str, length: str, mode: str) -> bool:
        """Whether a request of this class, length and mode lies in the cell."""
        return self.refusal(workload, length, mode) is None

    def refusal(self, workload: str, length: str, mode: str) -> str | None:
        """The first axis that excludes the request, as a sentence; None when the cell admits it."""
        for axis, allowed, value in zip(AXES, self, (workload, length, mode), strict=True):
            if allowed is not None and value not in allowed:
                return f"{axis} is {value}, the cell has {', '.join(allowed) or 'an empty list'}"
        return None

    def __str__(self) -> str:
        parts = [" | ".join(allowed) or "(nothing)" for allowed in self if allowed is not None]
        return " + ".join(parts) or "any request"


class Preset(NamedTuple):
    """One row of `presets`. Members that no decision reads are None where the row has no usable value."""

    preset_key: str
    model_family: str
    model: str | None
    served_model_name: str | None
    spec_decode_K: int | None  # noqa: N815 - the table's own member name
    max_num_seqs: int | None
    role: str | None
    intended_workloads: tuple[str, ...]
    default_for_family: bool


class Rule(NamedTuple):
    """One rule that is in force. `position` is its place in the emitted array, counted from 0 with dropped rules."""

    position: int
    id: str
    model_family: str
    when: Cell
    preset_key: str
    evidence: str
    evidence_tag: str | None


class Gap(NamedTuple):
    """A cell that was never measured. `cell` is None when the table does not give it in machine-readable form."""

    position: int
    model_family: str
    missing_cell: str
    cell: Cell | None
    fallback_preset: str | None
    next_phase: str | None


class Verdict(NamedTuple):
    """What the table says for one cell of one family; the same for every request in it."""

    preset_key: str | None
    outcome: str
    rule_id: str | None
    evidence_tag: str | None
    gap: str | None


_NATURAL: Final = Verdict(None, "natural", None, None, None)
_DEGRADED: Final = Verdict(None, "degraded", None, None, None)


class Table:
    """A loaded routing table. Immutable; safe to share between threads.

    Attributes:
        degraded: Why the table as a whole is not used; None for a table in force.
        warnings: One line each, to be logged once at start. Exactly one line when degraded.
        presets: The rows, in table order.
        routing_rules: The rules in force, in table order; dropped ones are named in `warnings`.
        coverage_gaps: Surface these once at start (`sndr.contract` has no log of its own).
        vllm_pin: The pin that the table was made for, or None.
        generated_by: The emitter, or None.
        content_sha256: The table's own statement of its content hash, or None.
    """

    __slots__ = (
        "_by_key",
        "_by_model",
        "_by_served_name",
        "_grids",
        "content_sha256",
        "coverage_gaps",
        "degraded",
        "generated_by",
        "presets",
        "routing_rules",
        "vllm_pin",
        "warnings",
    )

    degraded: str | None
    warnings: tuple[str, ...]
    presets: tuple[Preset, ...]
    routing_rules: tuple[Rule, ...]
    coverage_gaps: tuple[Gap, ...]
    vllm_pin: str | None
    generated_by: str | None
    content_sha256: str | None

    _by_served_name: Mapping[str, str]
    _by_model: Mapping[str, str]
    _by_key: Mapping[str, str]
    _grids: Mapping[str, Mapping[tuple[str, str, str], Verdict]]

    def __init__(
        self,
        *,
        presets: Iterable[Preset] = (),
        routing_rules: Iterable[Rule] = (),
        coverage_gaps: Iterable[Gap] = (),
        warnings: Iterable[str] = (),
        degraded: str | None = None,
        vllm_pin: str | None = None,
        generated_by: str | None = None,
        content_sha256: str | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "presets", tuple(presets))
        put(self, "routing_rules", tuple(routing_rules))
        put(self, "coverage_gaps", tuple(coverage_gaps))
        put(self, "warnings", tuple(warnings))
        put(self, "degraded", degraded)
        put(self, "vllm_pin", vllm_pin)
        put(self, "generated_by", generated_by)
        put(self, "content_sha256", content_sha256)
        put(self, "_by_served_name", _index((p.served_model_name, p.model_family) for p in self.presets))
        put(self, "_by_model", _index((p.model, p.model_family) for p in self.presets))
        put(self, "_by_key", _index((p.preset_key, p.model_family) for p in self.presets))
        put(self, "_grids", _grids(self.presets, self.routing_rules, self.coverage_gaps))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a routing table is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a routing table is immutable: {name} cannot be deleted")

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the rows in table order, `unknown` left out."""
        return tuple(dict.fromkeys(p.model_family for p in self.presets if p.model_family != UNKNOWN_FAMILY))

    def preset(self, key: str) -> Preset | None:
        """The first row with this key."""
        return next((p for p in self.presets if p.preset_key == key), None)

    def default_preset(self, family: str) -> Preset | None:
        """The first row that is declared the default of a family."""
        if family == UNKNOWN_FAMILY:
            return None
        return next((p for p in self.presets if p.model_family == family and p.default_for_family), None)

    def family_of(self, model: object) -> str:
        """The family that a request's `model` names, or `unknown`.

        Exact comparison against served_model_name, then model, then preset_key. The first of the three that knows the
        name answers; rows that disagree there make the family unknown.
        """
        if not isinstance(model, str):
            return UNKNOWN_FAMILY
        for names in (self._by_served_name, self._by_model, self._by_key):
            family = names.get(model)
            if family is not None:
                return family
        return UNKNOWN_FAMILY

    def name_kind(self, model: str) -> str | None:
        """Which member of the rows knows a name (the one that `family_of` answers from), or None."""
        if model in self._by_served_name:
            return "served_model_name"
        if model in self._by_model:
            return "model"
        return "preset_key" if model in self._by_key else None

    def verdict(self, family: str, workload: str, length: str, mode: str) -> Verdict:
        """Preset, outcome and gap for one cell (steps 7 and 8 of the procedure), by look-up."""
        if self.degraded is not None:
            return _DEGRADED
        grid = self._grids.get(family)
        return _NATURAL if grid is None else grid[workload, length, mode]


def _index(pairs: Iterable[tuple[str | None, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, family in pairs:
        if name is not None:
            known = found.setdefault(name, family)
            if known != family:
                found[name] = UNKNOWN_FAMILY
    return found


def _grids(
    presets: Iterable[Preset], rules: Iterable[Rule], gaps: Iterable[Gap]
) -> dict[str, dict[tuple[str, str, str], Verdict]]:
    """Every cell of every family that has a rule, a default or a gap, decided once."""
    by_family: dict[str, tuple[list[str], list[Rule], list[Gap]]] = {}
    for preset in presets:
        if preset.default_for_family:
            by_family.setdefault(preset.model_family, ([], [], []))[0].append(preset.preset_key)
    for rule in rules:
        by_family.setdefault(rule.model_family, ([], [], []))[1].append(rule)
    for gap in gaps:
        by_family.setdefault(gap.model_family, ([], [], []))[2].append(gap)
    by_family.pop(UNKNOWN_FAMILY, None)
    grids = {}
    for family, (defaults, family_rules, family_gaps) in by_family.items():
        rest = Verdict(defaults[0], "family_default", None, None, None) if defaults else _NATURAL
        grid = {}
        for cell in CELLS:
            rule_hit = next((rule for rule in family_rules if rule.when.admits(*cell)), None)
            gap_hit = next((g for g in family_gaps if g.cell is not None and g.cell.admits(*cell)), None)
            verdict = (
                rest
                if rule_hit is None
                else Verdict(rule_hit.preset_key, "rule", rule_hit.id, rule_hit.evidence_tag, None)
            )
            grid[cell] = verdict if gap_hit is None else verdict._replace(gap=gap_hit.missing_cell)
        grids[family] = grid
    return grids


# --- reading -----------------------------------------------------------------------------------------------------


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"member {key[:80]!r} is there twice in one object")
            seen.add(key)
    return found


def _constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _float(digits: str) -> float:
    number = float(digits)
    if number in (math.inf, -math.inf):
        raise ValueError(f"the number {digits[:40]} is beyond what a double holds")
    return number


def _int(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # the interpreter's own bound; its text speaks to programmers
        raise ValueError(f"a number of {len(digits)} digits is longer than any that is read") from None


def parse_json(text: bytes | str) -> object:
    """Strict JSON: UTF-8 without a byte order mark, no duplicate members, no NaN, infinity or number that becomes one.

    Raises:
        ValueError: With one line for a person; also for nesting and integers beyond what the interpreter takes.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        if text.startswith("\ufeff"):
            raise ValueError("starts with a byte order mark")
        if not text.strip(" \t\r\n"):
            raise ValueError("empty: there is no JSON value")
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_int)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at line {error.lineno} column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("nested too deep") from None


def content_sha256(table: Mapping[str, Any]) -> str:
    """The hash that a table states of itself: SHA-256 over its canonical JSON.

    Canonical: sorted keys, `,` and `:` without spaces, ASCII; without `generated_by`, `generated_at` and the hash.
    """
    import hashlib  # only here: a consumer that does not ask for the hash does not load OpenSSL

    left_out = ("generated_by", "generated_at", "content_sha256")
    kept = {key: value for key, value in table.items() if key not in left_out}
    canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def degraded(reason: str) -> Table:
    """The table to use when there is none: every decision is None, outcome `degraded`.

    For callers that could not read their file; `reason` is the one warning.
    """
    return Table(degraded=reason, warnings=(reason,))


def load(source: object) -> Table:
    """Make a table from JSON text (bytes or str) or from the object that it decodes to.

    Never raises for what the source contains, and never alters a rule: see the module's text for what is dropped.
    """
    obj = source
    if isinstance(source, bytearray | memoryview):
        source = bytes(source)
    if isinstance(source, bytes | str):
        try:
            obj = parse_json(source)
        except ValueError as error:
            return degraded(f"routing table unreadable ({error}): no decision is made from it")
    if not isinstance(obj, dict):
        return degraded("routing table unreadable (not a JSON object): no decision is made from it")
    version = obj.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int | float) or version != SCHEMA_VERSION:
        if "schema_version" not in obj:
            shown = "missing"
        elif isinstance(version, int) and version.bit_length() > 64:  # the interpreter refuses to print very long ones
            shown = "a very large integer"
        elif isinstance(version, str | int | float | None):
            shown = ascii(version)[:40]
        else:
            shown = f"of type {type(version).__name__}"
        return degraded(f"routing table schema_version is {shown}, this consumer knows 1: no decision is made from it")
    for member in ("presets", "routing_rules"):
        if not isinstance(obj.get(member), list):
            return degraded(f"routing table unreadable ({member} is not an array): no decision is made from it")
    return _load_v1(obj)


def _load_v1(obj: dict[str, Any]) -> Table:
    warnings: list[str] = []
    presets = _read_presets(obj["presets"], warnings)
    rules = _read_rules(obj["routing_rules"], {p.preset_key for p in presets}, warnings)
    gaps = _read_gaps(obj.get("coverage_gaps"), warnings)
    stated = _text(obj.get("content_sha256"))
    if stated is not None:
        try:
            actual = content_sha256(obj)
        except (TypeError, ValueError, RecursionError):
            actual = ""
        if actual != stated:
            warnings.append("/content_sha256: does not fit the content: the table was changed after it was emitted")
    return Table(
        presets=presets,
        routing_rules=rules,
        coverage_gaps=gaps,
        warnings=warnings,
        vllm_pin=_text(obj.get("vllm_pin")),
        generated_by=_text(obj.get("generated_by")),
        content_sha256=stated,
    )


def _read_presets(rows: list[Any], warnings: list[str]) -> list[Preset]:
    presets = []
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            warnings.append(f"/presets/{index}: dropped: not an object")
            continue
        key, family = row.get("preset_key"), row.get("model_family")
        if not isinstance(key, str) or not isinstance(family, str):
            member = "preset_key" if not isinstance(key, str) else "model_family"
            warnings.append(f"/presets/{index}: dropped: {member} is not a string")
            continue
        workloads = row.get("intended_workloads")
        presets.append(
            Preset(
                preset_key=key,
                model_family=family,
                model=_text(row.get("model")),
                served_model_name=_text(row.get("served_model_name")),
                spec_decode_K=_count(row.get("spec_decode_K")),
                max_num_seqs=_count(row.get("max_num_seqs")),
                role=_text(row.get("role")),
                intended_workloads=tuple(w for w in workloads if isinstance(w, str))
                if isinstance(workloads, list)
                else (),
                default_for_family=row.get("default_for_family") is True,
            )
        )
    return presets


def _read_rules(rows: list[Any], keys: set[str], warnings: list[str]) -> list[Rule]:
    rules = []
    for index, row in enumerate(rows):
        where = f"/routing_rules/{index}"
        if not isinstance(row, dict):
            warnings.append(f"{where}: dropped: not an object")
            continue
        family, target, tag = row.get("model_family"), row.get("preset_key"), row.get("evidence_tag")
        if not isinstance(family, str):
            warnings.append(f"{where}: dropped: model_family is not a string")
        elif not isinstance(target, str) or target not in keys:
            warnings.append(f"{where}: dropped: its target {_shown(target)} is not a preset of this table")
        else:
            cell = _read_cell(row.get("when"))
            if isinstance(cell, str):
                warnings.append(f"{where}: dropped: {cell}")
                continue
            rules.append(
                Rule(
                    position=index,
                    id=_text(row.get("id")) or where,
                    model_family=family,
                    when=cell,
                    preset_key=target,
                    evidence=_text(row.get("evidence")) or "",
                    evidence_tag=_text(tag),
                )
            )
    return rules


def _read_gaps(rows: object, warnings: list[str]) -> list[Gap]:
    if not isinstance(rows, list):
        warnings.append("/coverage_gaps: not an array: no gap is known")
        return []
    gaps = []
    for index, row in enumerate(rows):
        where = f"/coverage_gaps/{index}"
        if not isinstance(row, dict):
            warnings.append(f"{where}: dropped: not an object")
            continue
        family, label = row.get("model_family"), row.get("missing_cell")
        if not isinstance(family, str) or not isinstance(label, str):
            member = "model_family" if not isinstance(family, str) else "missing_cell"
            warnings.append(f"{where}: dropped: {member} is not a string")
            continue
        cell = _read_cell(row["cell"]) if "cell" in row else None
        if isinstance(cell, str):
            warnings.append(f"{where}: no request is counted for it: {cell}")
            cell = None
        gaps.append(Gap(index, family, label, cell, _text(row.get("fallback_preset")), _text(row.get("next_phase"))))
    return gaps


def _read_cell(when: object) -> Cell | str:
    """A cell, or why it cannot be used. An axis that is not understood would widen the cell if it were ignored."""
    if not isinstance(when, dict):
        return "its cell is not an object"
    for axis, values in when.items():
        if axis not in AXES:
            return f"axis {_shown(axis)} is not known"
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            return f"axis {axis} is not an array of strings"
    return Cell(**{axis: tuple(values) for axis, values in when.items()})


def _shown(value: object) -> str:
    return ascii(value)[:80] if isinstance(value, str) else f"({type(value).__name__})"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    """An integer, also as 4.0, which the schema takes for one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
