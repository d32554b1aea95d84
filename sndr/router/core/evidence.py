"""Evidence for resuming a managed change: its form, and whether it fits this transaction.

It is the operator's assertion. Nothing here looks at a container or at a weight; it is checked for form, for the
model it says is served, for being younger than the hold, and for not being what was used last.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from sndr.router.core.effects import Code
from sndr.router.core.projection import Projection, canonical
from sndr.router.core.receipt import Container, Evidence, Receipt

__all__ = [
    "CONTAINER_PATTERN",
    "FUTURE_MS",
    "IMAGE_PATTERN",
    "INSTANT_PATTERN",
    "SHA256_PATTERN",
    "TRUST",
    "WINDOW_MS",
    "check_evidence",
    "evidence_sha256",
    "parse_instant",
    "used_evidence",
]

WINDOW_MS: Final = 5_000
"""How much earlier than the hold, or than its container's start, an observation may claim to be: clocks differ."""

FUTURE_MS: Final = 300_000
"""How far ahead of this host's clock an observation may claim to be."""

TRUST: Final = "operator_asserted"
"""What a receipt says of evidence: whose word it is."""

SHA256_PATTERN: Final = re.compile(r"[0-9a-f]{64}")
CONTAINER_PATTERN: Final = re.compile(r"[0-9a-f]{12,64}")
IMAGE_PATTERN: Final = re.compile(r"sha256:[0-9a-f]{64}")
INSTANT_PATTERN: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?Z", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


def parse_instant(text: str) -> int | None:
    """Milliseconds since 1970 of an RFC 3339 instant in UTC with `Z`; None when it is not one.

    A fraction of a second is cut to milliseconds. A leap second is not accepted: no clock we compare with shows it.
    """
    match = INSTANT_PATTERN.fullmatch(text)
    if match is None:
        return None
    try:
        whole = datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(whole.timestamp()) * 1000 + int(((match[2] or ".")[1:] + "000")[:3])


def evidence_sha256(evidence: Evidence) -> str:
    """Hash of the canonical bytes, by which evidence is known again."""
    containers = {tier_id: asdict(container) for tier_id, container in evidence.containers.items()}
    return hashlib.sha256(canonical({"campaign": asdict(evidence.campaign), "containers": containers})).hexdigest()


def used_evidence(before: Receipt | None) -> str | None:
    """The hash of what was used last, by the transaction before or by an earlier one; None when nothing was."""
    if before is None:
        return None
    return before.earlier_evidence_sha256 if before.evidence is None else evidence_sha256(before.evidence)


def check_evidence(receipt: Receipt, proposed: Projection, evidence: Evidence | None, *, now_ms: int) -> Code | None:
    """Why `evidence` does not let this transaction go on; None when it does.

    Args:
        receipt: The held transaction; only a managed one takes evidence, and it needs it.
        proposed: The routes it would commit.
        evidence: What the operator handed in.
        now_ms: Wall time of this host.
    """
    if not receipt.managed:
        return None if evidence is None else Code.INVALID_CHANGE
    if evidence is None:
        return Code.EVIDENCE_REQUIRED
    if not _is_well_formed(evidence):
        return Code.EVIDENCE_INVALID
    if set(evidence.containers) != set(receipt.scope):
        return Code.EVIDENCE_MISMATCH
    if evidence_sha256(evidence) == receipt.earlier_evidence_sha256:
        return Code.EVIDENCE_REPLAYED
    for tier_id, container in evidence.containers.items():
        observed, started = parse_instant(container.observed_at), parse_instant(container.started_at)
        assert observed is not None
        assert started is not None
        if container.served_model != proposed.tiers[tier_id].model:
            return Code.EVIDENCE_MISMATCH
        if not max(receipt.created_at_ms, started) - WINDOW_MS <= observed <= now_ms + FUTURE_MS:
            return Code.EVIDENCE_INVALID
    return None


def _is_well_formed(evidence: Evidence) -> bool:
    return (
        _NAME.fullmatch(evidence.campaign.id) is not None
        and SHA256_PATTERN.fullmatch(evidence.campaign.sha256) is not None
        and all(_is_container(container) for container in evidence.containers.values())
    )


def _is_container(container: Container) -> bool:
    return (
        CONTAINER_PATTERN.fullmatch(container.container_id) is not None
        and IMAGE_PATTERN.fullmatch(container.image_id) is not None
        and _NAME.fullmatch(container.observer) is not None
        and parse_instant(container.started_at) is not None
        and parse_instant(container.observed_at) is not None
    )
