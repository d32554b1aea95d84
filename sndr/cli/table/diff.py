"""``routing-table diff``: what moved between two tables, by name and by what happens to requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import click

from sndr.cli.output import CommandError, one_line, write_err, write_out
from sndr.cli.table.document import read_json
from sndr.contract import CONCURRENCY_MODES, OUTPUT_LENGTHS, WORKLOAD_CLASSES, Table, load
from sndr.errors import InputError

__all__ = ["Difference", "compare", "diff"]

_NOT_COMPARED = frozenset({"generated_by", "generated_at", "content_sha256"})
_ROWS = frozenset({"presets", "routing_rules", "coverage_gaps"})


class Difference(NamedTuple):
    """What `compare` found; `record` is its published JSON."""

    presets: dict[str, Any]
    rules: dict[str, Any]
    defaults: list[dict[str, Any]]
    gaps: dict[str, Any]
    moved_cells: list[dict[str, Any]]
    other: list[dict[str, Any]]

    @property
    def is_empty(self) -> bool:
        """Whether the tables say the same."""
        return not any((self.defaults, self.moved_cells, self.other)) and not any(
            value for part in (self.presets, self.rules, self.gaps) for value in part.values()
        )

    def record(self) -> dict[str, Any]:
        """The JSON object that ``--json`` prints."""
        return self._asdict()


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    """Compare two tables that `sndr.contract.load` takes.

    Rules and gaps are matched by name (a rule without an id by its family and cell), so that a moved rule is not a
    removed and an added one. `moved_cells` is computed from the decisions, not from the texts: it has every cell of
    every family whose preset is another one afterwards.
    """
    return Difference(
        presets=_rows_apart(old, new, "presets"),
        rules=_rows_apart(old, new, "routing_rules"),
        defaults=_defaults_apart(load(dict(old)), load(dict(new))),
        gaps=_rows_apart(old, new, "coverage_gaps"),
        moved_cells=list(_moved_cells(load(dict(old)), load(dict(new)))),
        other=list(_other_apart(old, new)),
    )


def _name(kind: str, row: Mapping[str, Any]) -> str:
    if kind == "presets":
        return str(row.get("preset_key"))
    if kind == "coverage_gaps":
        return f"{row.get('model_family')}: {row.get('missing_cell')}"
    rule_id = row.get("id")
    if isinstance(rule_id, str) and rule_id:
        return rule_id
    return f"{row.get('model_family')}: {json.dumps(row.get('when'), sort_keys=True)}"


def _named(kind: str, table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rows under their names; the second of two equal names gets a number, so that no row is lost."""
    named: dict[str, Mapping[str, Any]] = {}
    rows = table.get(kind)
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            name = _name(kind, row)
            count = 1
            while (name if count == 1 else f"{name} #{count}") in named:
                count += 1
            named[name if count == 1 else f"{name} #{count}"] = row
    return named


def _rows_apart(old: Mapping[str, Any], new: Mapping[str, Any], kind: str) -> dict[str, Any]:
    before, after = _named(kind, old), _named(kind, new)
    changed = [
        {"name": name, "field": field, "from": before[name].get(field), "to": after[name].get(field)}
        for name in before
        if name in after
        for field in dict.fromkeys((*before[name], *after[name]))
        if not _same(before[name].get(field), after[name].get(field))
        or (field in before[name]) != (field in after[name])
    ]
    apart: dict[str, Any] = {
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "changed": changed,
    }
    if kind != "presets":  # the order of rules and gaps decides which comes first; that of presets says nothing
        stayed = [name for name in after if name in before]
        apart["reordered"] = stayed != [name for name in before if name in after]
    return apart


def _same(one: object, other: object) -> bool:
    """Equality as JSON has it: true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _defaults_apart(old: Table, new: Table) -> list[dict[str, Any]]:
    apart = []
    for family in dict.fromkeys((*old.families, *new.families)):
        before, after = old.default_preset(family), new.default_preset(family)
        keys = before and before.preset_key, after and after.preset_key
        if keys[0] != keys[1]:
            apart.append({"model_family": family, "from": keys[0], "to": keys[1]})
    return apart


def _moved_cells(old: Table, new: Table) -> Iterator[dict[str, Any]]:
    families = dict.fromkeys((*old.families, *new.families))
    for family in families:
        for workload in WORKLOAD_CLASSES:
            for length in OUTPUT_LENGTHS:
                for mode in CONCURRENCY_MODES:
                    before = old.verdict(family, workload, length, mode).preset_key
                    after = new.verdict(family, workload, length, mode).preset_key
                    if before != after:
                        yield {
                            "model_family": family,
                            "workload_class": workload,
                            "expected_output_length": length,
                            "concurrency_mode": mode,
                            "from": before,
                            "to": after,
                        }


def _other_apart(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for member in dict.fromkeys((*old, *new)):
        if member not in _NOT_COMPARED and member not in _ROWS:
            yield from _values_apart(old.get(member), new.get(member), f"/{_part(member)}")


def _values_apart(old: object, new: object, at: str) -> Iterator[dict[str, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for member in dict.fromkeys((*old, *new)):
            yield from _values_apart(old.get(member), new.get(member), f"{at}/{_part(member)}")
    elif not _same(old, new):
        yield {"path": at, "from": old, "to": new}


def _part(name: str) -> str:
    """One part of a JSON pointer (Source: RFC 6901 section 3)."""
    return name.replace("~", "~0").replace("/", "~1")


# --- text --------------------------------------------------------------------------------------------------------


def _lines(difference: Difference) -> Iterator[str]:
    for title, part in (("presets", difference.presets), ("rules", difference.rules), ("gaps", difference.gaps)):
        if any(part.values()):
            yield f"{title}:"
            yield from (f"  + {name}" for name in part["added"])
            yield from (f"  - {name}" for name in part["removed"])
            for change in part["changed"]:
                yield f"  ~ {change['name']}: {change['field']} {_value(change['from'])} -> {_value(change['to'])}"
            if part.get("reordered"):
                yield "  ~ the order changed"
    if difference.defaults:
        yield "defaults:"
        for moved in difference.defaults:
            yield f"  ~ {moved['model_family']}: {moved['from'] or 'none'} -> {moved['to'] or 'none'}"
    if difference.other:
        yield "elsewhere:"
        for change in difference.other:
            yield f"  ~ {change['path']}: {_value(change['from'])} -> {_value(change['to'])}"
    if difference.moved_cells:
        count = len(difference.moved_cells)
        yield f"requests that change preset ({count} cell{'' if count == 1 else 's'}):"
        yield from _moves(difference.moved_cells)
    else:
        yield "no request changes preset"


def _moves(cells: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The moved cells, one line for all classes of a family that move alike."""
    moves: dict[tuple[str, Any, Any], dict[str, list[str]]] = {}
    for cell in cells:
        move = moves.setdefault((cell["model_family"], cell["from"], cell["to"]), {})
        where = f"{cell['expected_output_length']} {cell['concurrency_mode']}"
        move.setdefault(cell["workload_class"], []).append(where)
    for (family, before, after), classes in moves.items():
        yield f"  {family}: {before or 'none (route by model)'} -> {after or 'none (route by model)'}"
        alike: dict[tuple[str, ...], list[str]] = {}
        for workload, moved in classes.items():
            alike.setdefault(tuple(moved), []).append(workload)
        for places, workloads in alike.items():
            everywhere = len(places) == len(OUTPUT_LENGTHS) * len(CONCURRENCY_MODES)
            names = "any workload" if len(workloads) == len(WORKLOAD_CLASSES) else " | ".join(workloads)
            yield f"    {names}: {'any length, any mode' if everywhere else ', '.join(places)}"


def _value(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:57]} ... {text[-57:]}"


def _read(path: str) -> Mapping[str, Any]:
    """A table that can be compared; everything else is exit code 2."""
    name = "standard input" if path == "-" else path
    try:
        table = read_json(path)
    except InputError as error:
        raise CommandError(error.code, error.message, 2) from error
    loaded = load(table)
    if loaded.degraded is not None or not isinstance(table, dict):
        raise CommandError("table_unusable", f"{name}: {loaded.degraded}", 2)
    for warning in loaded.warnings:
        write_err(f"{name}: {warning}")
    return table


@click.command(short_help="Say what moved between two tables, and which requests change preset.")
@click.argument("old")
@click.argument("new")
@click.option("--json", "as_json", is_flag=True, help="Print the difference as one JSON object.")
def diff(old: str, new: str, as_json: bool) -> int:
    """Compare two routing tables (files, or - for standard input).

    Exit code 0: they say the same. 1: they differ. 2: they could not be compared.
    """
    if old == new == "-":
        raise click.UsageError("only one of OLD and NEW can be standard input")
    difference = compare(_read(old), _read(new))
    if as_json:
        write_out(json.dumps(difference.record(), indent=2) + "\n")
    elif difference.is_empty:
        write_out("same\n")
    else:
        write_out("\n".join(one_line(line) for line in _lines(difference)) + "\n")
    return 0 if difference.is_empty else 1
