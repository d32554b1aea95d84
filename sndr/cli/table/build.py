"""A catalog becomes the routing table, as plain JSON values in the published order."""

from __future__ import annotations

import os
import time
from typing import Any

from sndr import __version__
from sndr.cli.table import detection
from sndr.cli.table.catalog import Catalog
from sndr.cli.table.compose import Composed, compose_all
from sndr.contract import SCHEMA_VERSION, content_sha256
from sndr.contract.check import ROLES
from sndr.contract.table import AXES
from sndr.errors import InputError

__all__ = ["build_table", "generated_at"]

_LAST_SECOND = 253402300799  # 9999-12-31T23:59:59Z, the last that ISO 8601 writes with four digits


def build_table(catalog: Catalog, vllm_pin: str | None = None) -> dict[str, Any]:
    """Return the routing table of the active presets.

    Args:
        catalog: A loaded catalog.
        vllm_pin: The vLLM version to state; None or empty becomes null.

    Raises:
        CatalogError: Layers that do not go together, or a rule that its evidence does not carry.
        InputError: ``source_date_epoch_invalid``.
    """
    content: dict[str, Any] = {
        "vllm_pin": vllm_pin or None,
        "presets": [_row(composed) for composed in compose_all(catalog)],
        "routing_rules": [
            {
                "id": rule.id,
                "model_family": rule.model_family,
                "when": _cell(rule.when),
                "preset_key": rule.preset_key,
                "evidence": catalog.evidence[rule.evidence].cite(rule.preset_key),
                "evidence_tag": rule.evidence_tag,
            }
            for rule in catalog.rules
        ],
        "workload_class_detection": detection.workload_class_detection(),
        "concurrency_mode_detection": detection.concurrency_mode_detection(),
        "length_detection": detection.length_detection(),
        "fallback": detection.fallback(),
        "coverage_gaps": [
            {
                "model_family": gap.model_family,
                "missing_cell": gap.missing_cell,
                "cell": _cell(gap.cell),
                "fallback_preset": gap.fallback_preset,
                "next_phase": gap.next_phase,
            }
            for gap in catalog.gaps
        ],
    }
    table = {
        "schema_version": SCHEMA_VERSION,
        "generated_by": f"sndr/{__version__}",
        "generated_at": generated_at(),
        **content,
    }
    table["content_sha256"] = content_sha256(table)
    return table


def generated_at() -> str:
    """Return the time of emission, UTC to the second; ``SOURCE_DATE_EPOCH`` decides it where it is set.

    Raises:
        InputError: ``source_date_epoch_invalid``: the variable does not hold whole seconds since 1970.
    """
    stated = os.environ.get("SOURCE_DATE_EPOCH")
    seconds = int(time.time())
    if stated:
        if not (stated.isascii() and stated.isdigit() and len(stated) <= 12 and int(stated) <= _LAST_SECOND):
            text = f"SOURCE_DATE_EPOCH is {stated[:40]!r}; allowed: whole seconds since 1970, 0 to {_LAST_SECOND}"
            raise InputError("source_date_epoch_invalid", text)
        seconds = int(stated)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _row(composed: Composed) -> dict[str, Any]:
    preset, model, profile = composed.preset, composed.model, composed.profile
    return {
        "preset_key": preset.id,
        "model": model.id,
        "served_model_name": model.served_model_name,
        "model_family": model.model_family,
        "spec_decode_K": composed.spec_decode_K,
        "max_num_seqs": composed.max_num_seqs,
        "role": profile.role if profile.role in ROLES else None,  # schema v1 has no others
        "intended_workloads": list(profile.intended_workloads),
        "default_for_family": preset.default_for_family,
    }


def _cell(cell: Any) -> dict[str, list[str]]:
    """Return the axes in their published order; an absent axis admits anything."""
    return {axis: list(cell[axis]) for axis in AXES if axis in cell}
