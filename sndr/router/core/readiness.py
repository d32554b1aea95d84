"""Whether a tier may be chosen: probe results in, one bit with a reason out. No clock, no socket.

A tier becomes ready after `successes` passed probes in a row and unready after `failures` failed ones. Three results do
not wait for a threshold: the server answering under another model's name (it would serve the wrong model meanwhile),
a fresh proof that an operator asked for, and results that say nothing about the server, which change nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sndr.router.core.projection import UPSTREAM, Tier
from sndr.router.core.receipt import OBSERVED_MAX, kept_names

__all__ = [
    "Observation",
    "Reason",
    "Thresholds",
    "TierReadiness",
    "initial",
    "judge_health",
    "judge_models",
    "needs_probe",
    "proven",
    "step",
]

#: What a name may be so that it can be shown, and kept in the receipt of what it proves.
_SHOWABLE: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,2048}")
_CONTEXT_KEYS: Final = ("max_model_len", "context_window", "context_length")


class Reason(StrEnum):
    """Why a tier is ready or not, and how a probe ended. Free of content: no address, no text of the server."""

    NOT_PROBED = "not_probed"
    NOT_CONFIGURED = "not_configured"
    HEALTH_PASSED = "health_passed"
    IDENTITY_PASSED = "identity_passed"
    UNREACHABLE = "unreachable"
    TIMEOUT = "probe_timeout"
    PROTOCOL = "probe_protocol"
    TOO_LARGE = "probe_too_large"
    REDIRECT = "probe_redirect"
    HEALTH_STATUS = "health_status"
    IDENTITY_STATUS = "identity_status"
    IDENTITY_MALFORMED = "identity_malformed"
    IDENTITY_MISMATCH = "identity_mismatch"
    NO_RESOURCES = "no_resources"
    """This process could not open a connection; says nothing about the server."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of one probe.

    Attributes:
        passed: Everything that the tier's definition asks for was shown.
        reason: The last thing that was shown, or the first that was not.
        models: Ids that the server advertises, as many as `receipt.kept_names` keeps; empty when the list was not read.
        context_limit: Context length that the server advertises for the tier's model.
    """

    passed: bool
    reason: Reason
    models: tuple[str, ...] = ()
    context_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Results in a row that it takes to change the bit."""

    failures: int
    successes: int


@dataclass(frozen=True, slots=True)
class TierReadiness:
    """What is known about one generation of a tier.

    Attributes:
        ready: The bit that the router reads.
        reason: Why it is what it is.
        checked_at: Wall clock of the last probe, seconds since the epoch; None before the first.
        passes: Passed probes in a row.
        failures: Failed probes in a row.
        models: Ids that the server last advertised.
        context_limit: Context length that it last advertised.
    """

    ready: bool
    reason: Reason
    checked_at: float | None = None
    passes: int = 0
    failures: int = 0
    models: tuple[str, ...] = ()
    context_limit: int | None = None


def needs_probe(tier: Tier) -> bool:
    """Whether the tier is probed in the background: it has a health path, or a limit that only its server knows."""
    return tier.health_path is not None or tier.context_limit == UPSTREAM


def initial(tier: Tier) -> TierReadiness:
    """Before the first probe: unknown is unready, except where nothing was configured to find out."""
    if tier.health_path is None:
        return TierReadiness(True, Reason.NOT_CONFIGURED)
    return TierReadiness(False, Reason.NOT_PROBED)


def step(
    state: TierReadiness, seen: Observation, thresholds: Thresholds, *, at: float, is_serving: bool
) -> TierReadiness:
    """Take one background probe into account.

    Args:
        at: Wall clock, seconds since the epoch.
        is_serving: The tier delivered response bytes lately: it is busy, so a probe that timed out proves nothing.
    """
    if seen.reason is Reason.NO_RESOURCES or (seen.reason is Reason.TIMEOUT and is_serving):
        return replace(state, checked_at=at)
    if state.reason is Reason.NOT_CONFIGURED:
        return replace(state, checked_at=at, models=seen.models, context_limit=seen.context_limit)
    if seen.passed:
        passes = state.passes + 1
        ready = state.ready or passes >= thresholds.successes
        reason = seen.reason if ready else state.reason
        return TierReadiness(ready, reason, at, passes, 0, seen.models, seen.context_limit)
    failures = state.failures + 1
    ejected = failures >= thresholds.failures or seen.reason is Reason.IDENTITY_MISMATCH
    if state.ready and not ejected:
        return replace(state, checked_at=at, passes=0, failures=failures)
    models = seen.models or state.models
    return TierReadiness(False, seen.reason, at, 0, failures, models, state.context_limit)


def proven(state: TierReadiness, seen: Observation, *, at: float) -> TierReadiness:
    """Take a fresh probe that somebody asked for into account: it decides alone."""
    if seen.reason is Reason.NO_RESOURCES or state.reason is Reason.NOT_CONFIGURED:
        return replace(state, checked_at=at, models=seen.models or state.models)
    if seen.passed:
        return TierReadiness(True, seen.reason, at, state.passes + 1, 0, seen.models, seen.context_limit)
    failures = state.failures + 1
    return TierReadiness(False, seen.reason, at, 0, failures, seen.models or state.models, state.context_limit)


def judge_health(status: int) -> Reason:
    """The health path's answer; `HEALTH_PASSED` for 2xx only."""
    if 200 <= status < 300:
        return Reason.HEALTH_PASSED
    return Reason.REDIRECT if 300 <= status < 400 else Reason.HEALTH_STATUS


def judge_models(tier: Tier, status: int, body: bytes) -> Observation:
    """The model list's answer.

    A tier with `model_identity` passes only when one entry's id equals its model byte for byte; another one's list is
    read for its context length alone.
    """
    if not 200 <= status < 300:
        return Observation(False, Reason.REDIRECT if 300 <= status < 400 else Reason.IDENTITY_STATUS)
    entries = _entries(body)
    if entries is None:
        return Observation(False, Reason.IDENTITY_MALFORMED)
    models = kept_names(entries)
    if tier.model is not None and tier.model in entries and tier.model not in models:
        models = (tier.model, *models[: OBSERVED_MAX - 1])  # what is proven is always among what was seen
    limit = entries.get(tier.model) if tier.model is not None else None
    if not tier.model_identity:
        return Observation(True, Reason.HEALTH_PASSED, models, limit)
    if tier.model not in entries:
        return Observation(False, Reason.IDENTITY_MISMATCH, models)
    return Observation(True, Reason.IDENTITY_PASSED, models, limit)


def _entries(body: bytes) -> Mapping[str, int | None] | None:
    """Id -> context length, or None when the list cannot be read without doubt."""
    try:
        document = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        return None
    entries: dict[str, int | None] = {}
    for entry in data:
        name = entry.get("id") if isinstance(entry, dict) else None
        if type(name) is not str or _SHOWABLE.fullmatch(name) is None:
            return None
        lengths = [entry[key] for key in _CONTEXT_KEYS if type(entry.get(key)) is int and entry[key] > 0]
        entries[name] = lengths[0] if lengths else None
    return entries


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is repeated")
    return members


def _refuse(_constant: str) -> object:
    raise ValueError("not a JSON number")
