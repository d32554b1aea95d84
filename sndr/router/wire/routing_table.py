"""The routing table as the gateway takes it: bytes in, a table in force or a degraded one out, and why.

A table is judged once, before anything is locked or bound. What is wrong with it costs no request: it is then not used
at all and every request goes where its alias leads by itself, unless the boot file asks for a refusal to start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from sndr.contract import (
    CONCURRENCY_MODES,
    OUTPUT_LENGTHS,
    SCHEMA_VERSION,
    UNKNOWN_FAMILY,
    WORKLOAD_CLASSES,
    Finding,
    Preset,
    Table,
    check_table,
    content_sha256,
    degraded,
    load,
    parse_json,
)
from sndr.router.core.family import PresetRow, Presets
from sndr.router.core.projection import FamilyTarget, Projection

__all__ = ["CELLS", "NO_TABLE", "OnTableError", "TableState", "judge", "no_table", "stated_sha256", "unbound", "unread"]

OnTableError = Literal["natural", "refuse", "drop"]
NO_TABLE: Final = "no routing table is configured: family aliases lead to their natural tiers"
CELLS: Final = tuple(
    (workload, length, mode)
    for workload in WORKLOAD_CLASSES
    if workload != "summarization"  # needs the length of the prompt in tokens, which the gateway does not count
    for length in OUTPUT_LENGTHS
    for mode in CONCURRENCY_MODES
)
"""Workload, length and mode of every request that the gateway can see."""
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class TableState:
    """A table and what became of it; never changes while the process lives.

    Attributes:
        source: The file's path, or the command's first word; None without a table.
        table: What decides; degraded when the source gave nothing that may be used.
        sha256: Hash of the content as it was computed here; None when there is no JSON object.
        findings: What the contract's checks said; not empty means that the table is invalid.
        fatal: The boot file asks that the gateway does not start with this table.
    """

    source: str | None
    table: Table
    sha256: str | None
    findings: tuple[Finding, ...] = ()
    fatal: bool = False

    @property
    def state(self) -> str:
        """`in_force` or `degraded`."""
        return "in_force" if self.table.degraded is None else "degraded"

    @property
    def presets(self) -> Presets:
        """Rows of a table in force; of rows of a family with the same key the first.

        Where a table with findings is used all the same, a rule may name a preset of another family: requests of the
        rule's family go there then, so it is one of its presets too.
        """
        table = self.table
        if table.degraded is not None:
            return MappingProxyType({})
        known: dict[str, Preset] = {}
        members: dict[str, dict[str, Preset]] = {}
        for preset in table.presets:
            known.setdefault(preset.preset_key, preset)
            members.setdefault(preset.model_family, {}).setdefault(preset.preset_key, preset)
        for rule in table.routing_rules:
            members.setdefault(rule.model_family, {}).setdefault(rule.preset_key, known[rule.preset_key])
        members.pop(UNKNOWN_FAMILY, None)
        return MappingProxyType({family: self._rows(family, found) for family, found in members.items()})

    def _rows(self, family: str, members: Mapping[str, Preset]) -> Mapping[str, PresetRow]:
        default = self.table.default_preset(family)
        chosen = {self.table.verdict(family, *cell).preset_key for cell in CELLS}
        return MappingProxyType(
            {
                key: PresetRow(
                    preset.spec_decode_K,
                    is_default=default is not None and default.preset_key == key,
                    is_chosen=key in chosen,
                )
                for key, preset in members.items()
            }
        )


def no_table() -> TableState:
    """For a gateway whose boot file names no table."""
    return TableState(None, degraded(NO_TABLE), None)


def unread(source: str, reason: str, on_error: OnTableError) -> TableState:
    """For a source that gave no bytes."""
    text = f"routing table {source} unreadable ({reason}): family aliases lead to their natural tiers"
    return TableState(source, degraded(text), None, fatal=on_error == "refuse")


def judge(source: str, data: bytes, on_error: OnTableError) -> TableState:
    """Load a table and decide whether it is used.

    Args:
        on_error: `natural` does not use a table with findings; `refuse` neither, and the gateway must not start;
            `drop` uses what the contract's loader can use of it. A table of another version is never used and never
            a reason not to start.
    """
    try:
        obj = parse_json(data)
        json.dumps(obj, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # Labels and headers are made of a table's words; half a character fits into neither.
        return unread(source, "holds half a character", on_error)
    except ValueError as error:
        return unread(source, str(error), on_error)
    table = load(obj)
    sha256 = _sha256(obj)
    if isinstance(obj, dict) and table.degraded is not None and not _is_known_version(obj.get("schema_version")):
        return TableState(source, table, sha256)
    findings = tuple(check_table(obj))
    if table.degraded is not None:
        return TableState(source, table, sha256, findings, fatal=on_error == "refuse")
    if not findings or on_error == "drop":
        return TableState(source, table, sha256, findings)
    shown = "; ".join(map(str, findings[:_SHOWN]))
    more = f"; and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    text = f"routing table {source} invalid ({shown}{more}): family aliases lead to their natural tiers"
    return TableState(source, degraded(text), sha256, findings, fatal=on_error == "refuse")


def unbound(projection: Projection, table: Table) -> list[str]:
    """Presets that a decision about a family alias can name and that no tier runs, one sentence each."""
    if table.degraded is not None:
        return []
    bound = {tier.preset for tier in projection.tiers.values()}
    families = dict.fromkeys(t.family for t in projection.aliases.values() if isinstance(t, FamilyTarget))
    found = []
    for family in families:
        wanted = {rule.preset_key: f"rule {rule.id}" for rule in table.routing_rules if rule.model_family == family}
        if not wanted and family not in table.families:
            found.append(
                f"family {family}: the routing table has no such family; its aliases lead to their natural tiers"
            )
            continue
        default = table.default_preset(family)
        if default is not None:
            wanted.setdefault(default.preset_key, "the family's default")
        found += [
            f"family {family}: no tier runs the preset {preset} ({role}): its requests go to the alias's natural tier"
            for preset, role in wanted.items()
            if preset not in bound
        ]
    return found


def stated_sha256(data: bytes) -> str | None:
    """Content hash of a table's text; None when it is no JSON object."""
    try:
        return _sha256(parse_json(data))
    except ValueError:
        return None


def _sha256(obj: object) -> str | None:
    if not isinstance(obj, dict):
        return None
    try:
        return content_sha256(obj)
    except (ValueError, RecursionError):
        return None


def _is_known_version(version: object) -> bool:
    return isinstance(version, int | float) and not isinstance(version, bool) and version == SCHEMA_VERSION
