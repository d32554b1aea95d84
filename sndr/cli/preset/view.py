"""What the preset verbs share: the catalog option, workload words, JSON and aligned text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from sndr.cli.main import allowed, not_empty
from sndr.cli.output import CommandError, write_out
from sndr.cli.table.catalog import Catalog
from sndr.cli.table.layers import STANDARD_WORKLOADS, Preset
from sndr.contract import UNKNOWN_FAMILY

__all__ = [
    "card_json",
    "cell_text",
    "find_preset",
    "json_option",
    "metric_text",
    "parse_workload",
    "pointers_json",
    "presets_option",
    "require_family",
    "require_hardware",
    "rows_text",
    "value_text",
    "write_json",
]

_CUSTOM = re.compile(r"custom:([a-z0-9][a-z0-9_-]*)\Z", re.ASCII)

presets_option = click.option(
    "--presets", "root", metavar="DIR", callback=not_empty, help="Read this catalog instead of the shipped one."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def write_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    write_out(json.dumps(value, indent=2) + "\n")


def card_json(preset: Preset) -> dict[str, Any]:
    """Return a card with every key present, null where the file leaves it out."""
    card = dict(preset.card)
    metric = card["primary_metric"]
    card["primary_metric_is_placeholder"] = metric is not None and metric["value"] == 0
    return card


def pointers_json(preset: Preset) -> dict[str, Any]:
    """Return id and pointers."""
    return {"id": preset.id, "model": preset.model, "hardware": preset.hardware, "profile": preset.profile}


def find_preset(catalog: Catalog, preset_id: str) -> Preset:
    """Return an active or archived preset.

    Raises:
        CommandError: There is none; the message has the near names.
    """
    preset = catalog.presets.get(preset_id) or catalog.archived.get(preset_id)
    if preset is None:
        names = [*catalog.presets, *catalog.archived]
        raise CommandError("preset_unknown", f"there is no preset {preset_id!r} {allowed(preset_id, names)}")
    return preset


def require_family(catalog: Catalog, word: str | None) -> None:
    """Refuse a family that the catalog does not declare.

    Raises:
        CommandError: There is none of that name.
    """
    known = [*catalog.families, UNKNOWN_FAMILY]
    if word is not None and word not in known:
        raise CommandError("family_unknown", f"there is no family {word!r} {allowed(word, known)}")


def require_hardware(catalog: Catalog, word: str | None) -> None:
    """Refuse a hardware that the catalog does not have.

    Raises:
        CommandError: There is none of that name.
    """
    if word is not None and word not in catalog.hardware:
        raise CommandError("hardware_unknown", f"there is no hardware {word!r} {allowed(word, list(catalog.hardware))}")


def parse_workload(catalog: Catalog, word: str) -> str:
    """Return a workload as cards write it; ``custom:<word>`` loses its prefix.

    Raises:
        CommandError: It is no workload.
    """
    custom = _CUSTOM.match(word)
    if custom is not None:
        return custom[1]
    if word in STANDARD_WORKLOADS or word in catalog.custom_workloads:
        return word
    names = [*STANDARD_WORKLOADS, *(f"custom:{name}" for name in catalog.custom_workloads)]
    raise CommandError("workload_unknown", f"there is no workload {word!r} {allowed(word, names)}")


def rows_text(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Return one row or more as aligned columns, two blanks apart, the last one ragged."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        lines.append(indent + "  ".join([*cells, row[-1]]).rstrip() + "\n")
    return "".join(lines)


def value_text(value: Any) -> str:
    """Return a value as a person reads it on one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_inner(item)}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(_inner(item) for item in value) or "-"
    return str(value)


def _inner(value: Any) -> str:
    text = value_text(value)
    if isinstance(value, Mapping):
        return "{" + text + "}"
    return f"[{text}]" if isinstance(value, (list, tuple)) else text


def cell_text(family: str, axes: Mapping[str, Iterable[str]]) -> str:
    """Return a cell of the routing table: its family and what each axis allows."""
    return " + ".join([family, *(" | ".join(words) for words in axes.values())])


def metric_text(preset: Preset) -> str:
    """Return the primary metric, or a dash for none and for the 0.0 placeholder."""
    metric = preset.card["primary_metric"]
    return "-" if metric is None or metric["value"] == 0 else f"{metric['value']:g} {metric['kind']}"
