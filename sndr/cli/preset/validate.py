"""``preset validate``: the whole catalog, archive included: faults, and where cards drift from what is composed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import click

from sndr.cli.output import write_err, write_out
from sndr.cli.preset.view import json_option, presets_option, value_text, write_json
from sndr.cli.table.catalog import Catalog, CatalogError, load_catalog
from sndr.cli.table.compose import check_evidence, check_preset, compose
from sndr.cli.table.fields import Finding
from sndr.cli.table.layers import Preset

__all__ = ["validate", "warnings_of"]


@click.command("validate", short_help="Check the whole catalog, archive included.")
@click.option("--strict", is_flag=True, help="Exit 1 on warnings too.")
@presets_option
@json_option
def validate(strict: bool, root: str | None, as_json: bool) -> int:
    """Check every file of the catalog, the archive too: fields, pointers, composition, evidence; then drift.

    Errors exit 1. Warnings say where a card differs from what its preset composes to, which overrides have expired and
    which evidence cannot be found.
    """
    errors: list[Finding] = []
    warnings: list[Finding] = []
    presets = 0
    try:
        catalog = load_catalog(root, archive=True)
    except CatalogError as error:
        errors += error.findings
    else:
        every = [*catalog.presets.values(), *catalog.archived.values()]
        presets = len(every)
        for preset in every:
            errors += check_preset(catalog, preset)
        errors += check_evidence(catalog)
        if not errors:
            warnings = sorted(
                (w for preset in every for w in warnings_of(catalog, preset, _today())),
                key=lambda found: found[:4],
            )
    failed = bool(errors) or (strict and bool(warnings))
    if as_json:
        write_json({"errors": [f._asdict() for f in errors], "warnings": [f._asdict() for f in warnings]})
        return int(failed)
    for finding in errors:
        write_err(str(finding))
    for finding in warnings:
        write_err(f"warning: {finding}")
    counted = f"{presets} presets, " if presets else ""
    write_out(f"{counted}{len(errors)} errors, {len(warnings)} warnings\n")
    return int(failed)


def _today() -> str:
    """Return the day, SOURCE_DATE_EPOCH's if it is set."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = int(epoch) if epoch.isascii() and epoch.isdigit() and len(epoch) < 12 else time.time()
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def warnings_of(catalog: Catalog, preset: Preset, today: str) -> Iterator[Finding]:
    """Yield what is worth a look in a preset that composes.

    Args:
        catalog: Where the preset stands.
        preset: Active or archived.
        today: YYYY-MM-DD; overrides that end before it have expired.
    """
    composed = compose(catalog, preset.id)
    card, model, profile, hardware = preset.card, composed.model, composed.profile, composed.hardware
    found: list[tuple[str, str, str]] = []

    def differs(path: str, says: object, is_: object, what: str) -> None:
        if says != is_:
            found.append((preset.file, path, f"the card says {value_text(says)}, {what} is {value_text(is_)}"))

    if card["K"] is not None:
        differs("card.K", card["K"], composed.spec_decode_K, "the composed K")
    if card["concurrency"]["max"] > composed.max_num_seqs:
        differs("card.concurrency.max", card["concurrency"]["max"], composed.max_num_seqs, "the composed max_num_seqs")
    length = composed.max_model_len
    differs("card.context.max_model_len", card["context"]["max_model_len"], length, "the composed max_model_len")
    differs("card.engine", card["engine"], model.engine, "the model's engine")
    differs("card.routing_family", card["routing_family"], model.model_family, "the model's family")
    differs("card.default_for_family", card["default_for_family"], preset.default_for_family, "the routing block's")
    fit = card["hardware_fit"]
    if fit is not None:
        differs("card.hardware_fit.tensor_parallel", fit["tensor_parallel"], hardware.n_gpus, "the composed size")
        if fit["requires_min_gpu_count"] > hardware.n_gpus:
            differs(
                "card.hardware_fit.requires_min_gpu_count", fit["requires_min_gpu_count"], hardware.n_gpus, "the rig"
            )
        if fit["requires_min_vram_gb"] * 10**9 > hardware.min_vram_per_gpu_mib * 2**20:
            mib = f"{hardware.min_vram_per_gpu_mib} MiB"
            differs("card.hardware_fit.requires_min_vram_gb", fit["requires_min_vram_gb"], mib, "a card of the rig")
        if fit["requires_min_cuda_capability"] > hardware.cuda_capability_min:
            differs(
                "card.hardware_fit.requires_min_cuda_capability",
                fit["requires_min_cuda_capability"],
                hardware.cuda_capability_min,
                "the rig's",
            )
        pin = profile.vllm_pin or model.vllm_pin
        if pin is not None:
            differs("card.hardware_fit.engine_pin", fit["engine_pin"], pin, "the composed pin")
    root = os.path.dirname(os.path.abspath(catalog.root))
    for place, reference in enumerate(card["evidence_refs"]):
        path = reference["path"]
        if not path.startswith("external://") and not os.path.exists(os.path.join(root, path)):
            found.append((preset.file, f"card.evidence_refs[{place}].path", f"'{path}' is not a file here"))
    if profile.override_expires_at is not None and profile.override_expires_at < today:
        found.append(
            (profile.file, "override_expires_at", f"expired on {profile.override_expires_at} (today: {today})")
        )
    if profile.target_hardware not in (None, preset.hardware):
        found.append(
            (profile.file, "target_hardware", f"made for '{profile.target_hardware}', '{preset.id}' has another")
        )
    for file, path, message in found:
        yield catalog.finding(file, path, message)
