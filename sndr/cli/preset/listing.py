"""``preset list`` and ``preset show``: the catalog as it is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from sndr.cli.main import allowed
from sndr.cli.output import CommandError, write_out
from sndr.cli.preset.view import (
    card_json,
    find_preset,
    json_option,
    metric_text,
    parse_workload,
    pointers_json,
    presets_option,
    require_family,
    require_hardware,
    rows_text,
    value_text,
    write_json,
)
from sndr.cli.table.catalog import Catalog, load_catalog
from sndr.cli.table.layers import MODES, STATUSES, Preset

__all__ = ["list_presets", "show"]


@click.command("list", short_help="List the presets that match.")
@click.option("--family", help="Only presets whose model is of this family (or: unknown).")
@click.option("--workload", help="Only presets whose card allows this workload (tool_call.short, custom:<word>, ...).")
@click.option("--hardware", help="Only presets for this hardware.")
@click.option("--mode", type=click.Choice(MODES), help="Only presets whose card has this mode.")
@click.option("--status", type=click.Choice(STATUSES), help="Only presets whose card has this status.")
@click.option("--archive", is_flag=True, help="Include the archived presets.")
@presets_option
@json_option
def list_presets(
    family: str | None,
    workload: str | None,
    hardware: str | None,
    mode: str | None,
    status: str | None,
    archive: bool,
    root: str | None,
    as_json: bool,
) -> None:
    """List the presets that match every filter."""
    catalog = load_catalog(root, archive=archive)
    require_family(catalog, family)
    require_hardware(catalog, hardware)
    word = None if workload is None else parse_workload(catalog, workload)
    every = [*catalog.presets.values(), *catalog.archived.values()]
    matched = [
        preset
        for preset in every
        if (family is None or catalog.models[preset.model].model_family == family)
        and (word is None or word in preset.card["workload_allow"])
        and (hardware is None or preset.hardware == hardware)
        and (mode is None or preset.card["mode"] == mode)
        and (status is None or preset.card["status"] == status)
    ]
    if as_json:
        filters = {"family": family, "workload": workload, "hardware": hardware, "mode": mode, "status": status}
        rows = [
            {
                **pointers_json(preset),
                "model_family": catalog.models[preset.model].model_family,
                "card": card_json(preset),
            }
            for preset in matched
        ]
        write_json({"filters": filters, "matched": len(matched), "total": len(every), "presets": rows})
        return
    text = rows_text([("PRESET", "FAMILY", "STATUS", "MODE", "METRIC", "TITLE"), *_lines(catalog, matched)])
    write_out((text if matched else "") + f"matched {len(matched)} / {len(every)}\n")


def _lines(catalog: Catalog, presets: Iterable[Preset]) -> Iterable[tuple[str, ...]]:
    for preset in presets:
        card = preset.card
        family = catalog.models[preset.model].model_family
        yield preset.id, family, card["status"], card["mode"], metric_text(preset), card["title"]


@click.command("show", short_help="Show one preset as it is written: pointers and card.")
@click.argument("preset_id", metavar="ID")
@click.option("--field", metavar="PATH", help="Only this value (a dotted path such as card.concurrency.max).")
@presets_option
@json_option
def show(preset_id: str, field: str | None, root: str | None, as_json: bool) -> None:
    """Show one preset, active or archived, as its file says: pointers and card."""
    catalog = load_catalog(root, archive=True)
    preset = find_preset(catalog, preset_id)
    document = {**pointers_json(preset), "card": card_json(preset)}
    if field is not None:
        value = _pick(document, field)
        if as_json:
            write_json(value)
        else:
            write_out(("null" if value is None else value_text(value)) + "\n")
        return
    if as_json:
        write_json(document)
        return
    card = document.pop("card")
    lists = {key: card.pop(key) for key in ("tradeoffs", "limits", "notes")}
    head = [("id", preset.id + ("  (archived)" if preset.archived else ""))]
    head += [(key, value) for key, value in document.items() if key != "id"]
    references = card.pop("evidence_refs")
    text = rows_text([(key, value_text(value)) for key, value in [*head, *card.items()]])
    for name, items in [*lists.items(), ("evidence_refs", [f"{r['type']}: {r['path']}" for r in references])]:
        if items:
            text += f"{name}\n" + "".join(f"  - {item}\n" for item in items)
    write_out(text)


def _pick(document: dict[str, Any], path: str) -> Any:
    """Return the value at a dotted path; the first step may leave out ``card``."""
    steps = path.split(".")
    value: Any = document if steps[0] in document else document["card"]
    for place, step in enumerate(steps):
        if isinstance(value, (list, tuple)):
            value = {str(index): item for index, item in enumerate(value)}
        if isinstance(value, dict) and step in value:
            value = value[step]
            continue
        names = list(value) if isinstance(value, dict) else []
        if place == 0:
            names += list(document)
        near = allowed(step, names) if names else f"(nothing is below {'.'.join(steps[:place])})"
        raise CommandError("field_unknown", f"there is no field {path!r} {near}")
    return value
