"""``preset explain``: what one preset composes to, where each value is from, and who routes to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from sndr.cli.output import write_out
from sndr.cli.preset.view import (
    card_json,
    cell_text,
    find_preset,
    json_option,
    presets_option,
    rows_text,
    value_text,
    write_json,
)
from sndr.cli.table.catalog import Catalog, load_catalog
from sndr.cli.table.compose import Composed, Resolved, Source, compose, resolve
from sndr.cli.table.layers import Evidence, Preset

__all__ = ["explain"]


@click.command("explain", short_help="Say what one preset composes to, and where each value is from.")
@click.argument("preset_id", metavar="ID")
@presets_option
@json_option
def explain(preset_id: str, root: str | None, as_json: bool) -> None:
    """Say what one preset, active or archived, composes to and where each value comes from.

    Also: how it differs from its fallback preset, the routing rules and coverage gaps that name it, and their evidence.
    """
    catalog = load_catalog(root, archive=True)
    preset = find_preset(catalog, preset_id)
    composed = compose(catalog, preset.id)
    resolved = resolve(composed)
    places = {name: _place(catalog, source) for name, source in resolved.sources.items()}
    fallback = preset.card["fallback_preset"]
    difference = {} if fallback in (None, preset.id) else _difference(catalog, composed, fallback)
    routed = [rule for rule in catalog.rules if rule.preset_key == preset.id]
    gaps = [
        {
            "model_family": gap.model_family,
            "missing_cell": gap.missing_cell,
            "cell": gap.cell,
            "named_as": "fallback_preset" if gap.fallback_preset == preset.id else "was",
            "next_phase": gap.next_phase,
        }
        for gap in catalog.gaps
        if preset.id in (gap.fallback_preset, gap.was)
    ]
    records = [record for record in catalog.evidence.values() if _names(catalog, record, preset)]
    if as_json:
        write_json(
            {
                "id": preset.id,
                "card": card_json(preset),
                "composed": resolved.values,
                "sources": places,
                "fallback_diff": difference,
                "rules": [
                    {
                        "id": rule.id,
                        "model_family": rule.model_family,
                        "when": rule.when,
                        "evidence": rule.evidence,
                        "evidence_tag": rule.evidence_tag,
                    }
                    for rule in routed
                ],
                "gaps": gaps,
                "evidence": [_evidence(record, preset) for record in records],
            }
        )
        return
    card = preset.card
    text = f"{preset.id}{'  (archived)' if preset.archived else ''}\n{card['title']}\n  {card['summary']}\n\n"
    text += rows_text(
        [
            ("model", f"{composed.model.id}  ({composed.model.title})"),
            ("hardware", f"{composed.hardware.id}  ({composed.hardware.title})"),
            ("profile", f"{composed.profile.id}  ({composed.profile.title})"),
            ("status", f"{card['status']}, {card['maturity']}; for {card['audience']}; mode {card['mode']}"),
        ]
    )
    text += "\nComposed\n" + rows_text(list(_lines(resolved, places)), "  ")
    if fallback is not None:
        text += f"\nAgainst its fallback, {fallback}\n"
        rows = [(name, _cut(value_text(here)), _cut(value_text(there))) for name, (here, there) in difference.items()]
        text += rows_text([("", "here", "there"), *rows], "  ") if rows else "  nothing differs\n"
    for title, items in (
        ("Routing rules", [f"{r.id}: {cell_text(r.model_family, r.when)} ({r.evidence_tag})" for r in routed]),
        ("Coverage gaps", [f"{gap['missing_cell']} ({gap['named_as']}): {gap['next_phase']}" for gap in gaps]),
        ("Evidence", [record.cite(preset.id) for record in records]),
        ("Trade-offs", card["tradeoffs"]),
        ("Limits", card["limits"]),
        ("Notes", card["notes"]),
    ):
        if items:
            text += f"\n{title}\n" + "".join(f"  - {item}\n" for item in items)
    write_out(text)


def _lines(resolved: Resolved, places: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield one line for each value and each variable: name, value, layer and place."""
    values = {name: value for name, value in resolved.values.items() if name != "system_env" or not value}
    values |= {f"system_env.{name}": text for name, text in resolved.values["system_env"].items()}
    for name, value in values.items():
        place = places[name]
        where = f"{place['layer']}  {place['file']}:{place['line']}"
        yield name, _cut(value_text(value)), where if place["stated"] else f"{place['layer']}  leaves it out"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _place(catalog: Catalog, source: Source) -> dict[str, Any]:
    place = source.place(catalog)
    return {"layer": place.layer, "file": place.file, "line": place.line, "stated": place.stated}


def _difference(catalog: Catalog, composed: Composed, fallback: str) -> dict[str, list[Any]]:
    here, there = resolve(composed).values, resolve(compose(catalog, fallback)).values
    return {name: [here[name], there[name]] for name in here if here[name] != there[name]}


def _names(catalog: Catalog, record: Evidence, preset: Preset) -> bool:
    """Tell whether a record has an arm for the preset or carries a rule to it."""
    arms = record.comparison["arms"] if record.comparison else ()
    cited = any(rule.evidence == record.id and rule.preset_key == preset.id for rule in catalog.rules)
    return cited or any(arm["preset"] == preset.id for arm in arms)


def _evidence(record: Evidence, preset: Preset) -> dict[str, Any]:
    gain = record.gain_percent(preset.id)
    return {
        "id": record.id,
        "phase": record.phase,
        "path": record.path,
        "date": record.date,
        "hardware": record.hardware,
        "vllm_pin": record.vllm_pin,
        "source": record.source,
        "verdict": record.verdict,
        "comparison": record.comparison,
        "gain_percent": None if gain is None else round(gain, 1),
        "figures": record.figures,
        "citation": record.cite(preset.id),
    }
