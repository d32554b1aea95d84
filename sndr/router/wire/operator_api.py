"""Bodies of the management API: requests read strictly, problems as RFC 9457, times as RFC 3339.

Every refusal of the management API is listed in `PROBLEMS`; nothing else is ever answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sndr.errors import RequestError
from sndr.router.wire.record import StrictJsonError, decode_strict

__all__ = [
    "DRAIN_MAX_S",
    "PROBLEMS",
    "VERIFY_MAX_S",
    "AliasUpdate",
    "Apply",
    "Cancel",
    "Drain",
    "PreviewBody",
    "Problem",
    "Quiesce",
    "Readmit",
    "Reconcile",
    "Recover",
    "Resume",
    "Rollback",
    "TierReplacement",
    "encode",
    "instant",
    "named_preview",
    "parse_apply",
    "parse_body",
    "parse_drain_query",
    "parse_preview",
    "problem",
]

DRAIN_MAX_S: Final = 900
VERIFY_MAX_S: Final = 120
PREVIEW_TTL_S: Final = (10, 120, 600)
"""Shortest, usual and longest life of a preview."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of refusal.

    Attributes:
        retryable: The same request may succeed later without anything being changed by hand.
    """

    status: int
    title: str
    detail: str
    retryable: bool = False


PROBLEMS: Final[Mapping[str, Problem]] = MappingProxyType(
    {
        "invalid_request": Problem(400, "Invalid request", "The request is not what this path takes."),
        "invalid_timeout": Problem(
            400,
            "Invalid timeout",
            f"Drain timeouts are whole seconds from 1 to {DRAIN_MAX_S}, verify timeouts from 0 to {VERIFY_MAX_S}.",
        ),
        "invalid_change": Problem(400, "Invalid change", "The change cannot be read."),
        "operator_required": Problem(403, "Operator credential required", "This path takes the operator's credential."),
        "not_found": Problem(404, "Not found", "There is nothing here."),
        "method_not_allowed": Problem(405, "Method not allowed", "The path does not take this method."),
        "not_quiesced": Problem(409, "Not quiesced", "Only a quiesced tier can be drained; quiesce it first."),
        "readmit_refused": Problem(
            409, "Readmit refused", "A fresh probe did not prove the tier's health and identity.", retryable=True
        ),
        "preview_unknown": Problem(409, "Unknown preview", "There is no such preview here; make a new one."),
        "preview_expired": Problem(409, "Preview expired", "The preview's time is over; make a new one."),
        "preview_stale": Problem(409, "Preview stale", "Something changed since the preview; make a new one."),
        "preview_consumed": Problem(409, "Preview consumed", "The preview was applied before, and nothing came of it."),
        "preview_mismatch": Problem(409, "Preview mismatch", "preview_sha256 is not that of this preview."),
        "transaction_in_progress": Problem(
            409, "Transaction in progress", "A transaction is open; end it before another change begins."
        ),
        "no_transaction": Problem(409, "No transaction", "No transaction is open."),
        "transaction_changed": Problem(409, "Transaction changed", "The transaction is not the one that was named."),
        "already_committed": Problem(
            409, "Already committed", "The new routes are committed; roll back instead of cancelling."
        ),
        "not_committed": Problem(409, "Not committed", "This is possible only for a committed transaction."),
        "recovery_required": Problem(
            409, "Recovery required", "Something went wrong before; only a recover preview made since then counts."
        ),
        "no_previous": Problem(409, "No previous routes", "There is nothing to roll back to."),
        "no_effective_change": Problem(409, "No effective change", "The routes are what they would become."),
        "target_not_ready": Problem(
            409, "Target not ready", "A fresh probe did not find the target ready.", retryable=True
        ),
        "readiness_not_configured": Problem(
            409, "Readiness not configured", "The target has no health_path, so nothing shows that it is ready."
        ),
        "target_not_admitting": Problem(409, "Target not admitting", "The target is quiesced or held."),
        "precheck_failed": Problem(
            409, "Precheck failed", "A proposed server did not prove that it serves its model; nothing was committed."
        ),
        "cancel_target_unverified": Problem(
            409, "Original not verified", "The original server did not prove itself; the scope stays held."
        ),
        "drain_blocked_usage": Problem(
            409, "Drain blocked", "Usage rows of the scope have no end; reconcile the ledger first."
        ),
        "drain_blocked_legacy": Problem(
            409, "Drain blocked", "Usage rows of an unknown tier have no end; reconcile the ledger first."
        ),
        "revision_exhausted": Problem(409, "Revision exhausted", "The revision counter is at its end."),
        "precondition_failed": Problem(412, "Precondition failed", "If-Match is not the current revision."),
        "change_too_large": Problem(413, "Change too large", "The change is beyond a bound of the authority."),
        "unknown_alias": Problem(422, "Unknown alias", "Aliases are added and removed with a restart only."),
        "unknown_tier": Problem(422, "Unknown tier", "Tiers are added and removed with a restart only."),
        "mixed_change": Problem(422, "Mixed change", "One change moves aliases or replaces tiers, never both."),
        "restart_only": Problem(422, "Restart only", "This changes with a restart only."),
        "replacement_unsupported": Problem(422, "Replacement unsupported", "Such a tier cannot be replaced live."),
        "identity_required": Problem(
            422, "Identity required", "The tier needs model, health_path and model_identity = true."
        ),
        "shared_endpoint": Problem(422, "Shared endpoint", "The server also serves something that no drain counts."),
        "shared_endpoint_unprovable": Problem(
            422, "Endpoint may be shared", "Whether the server also serves something else cannot be told."
        ),
        "endpoint_overlap": Problem(422, "Endpoint overlap", "The server also belongs to a tier outside the scope."),
        "endpoint_invalid": Problem(422, "Endpoint invalid", "The address cannot be used."),
        "evidence_required": Problem(422, "Evidence required", "A managed change resumes with evidence only."),
        "evidence_invalid": Problem(422, "Evidence invalid", "The evidence is malformed, too old or too new."),
        "evidence_mismatch": Problem(422, "Evidence mismatch", "The evidence is of another tier or model."),
        "evidence_replayed": Problem(422, "Evidence replayed", "The evidence was used before."),
        "authority_write_failed": Problem(500, "Not written", "The authority could not be written; nothing changed."),
        "authority_write_uncertain": Problem(
            500, "Write uncertain", "Whether the write survives a power cut is not known; recover with reassert."
        ),
        "identity_mismatch": Problem(502, "Identity mismatch", "The server serves another model; the scope is held."),
        "identity_unavailable": Problem(
            502, "Identity unavailable", "The server did not answer for its model; the scope stays held."
        ),
        "authority_read_only": Problem(503, "Authority read-only", "The authority is not written until a restart."),
        "authority_changed_externally": Problem(
            503, "Authority changed", "Somebody else changed the authority file; nothing was written."
        ),
        "authority_path_moved": Problem(
            503, "Authority moved", "The authority's directory was moved; nothing was written."
        ),
        "authority_lock_lost": Problem(
            503, "Lock lost", "The authority's lock file was replaced; nothing was written."
        ),
        "drain_timeout": Problem(504, "Drain timed out", "Streams outlived the wait; they go on, the scope is held."),
        "authority_no_space": Problem(507, "No space", "The disk of the authority is full; nothing changed."),
        "ledger_disabled": Problem(409, "No usage ledger", "This gateway runs without server.usage_path."),
        "confirmation_required": Problem(428, "Confirmation required", 'The body must say "confirm": true.'),
        "admission_state_failed": Problem(
            500, "Not stored", "The tier is quiesced now, but the change was not stored for the next start."
        ),
        "accounting_unavailable": Problem(
            503, "Ledger unavailable", "The usage ledger cannot be written now.", retryable=True
        ),
        "management_busy": Problem(503, "Busy", "Too many management requests are running.", retryable=True),
        "shutting_down": Problem(503, "Shutting down", "The gateway is stopping."),
    }
)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class Quiesce(_Body):
    """Body of ``POST /v1/admin/tiers/{id}/quiesce``."""

    reason: Annotated[str, Field(pattern=r"^[ -~]{1,128}$")] | None = None


class Drain(_Body):
    """Body of ``POST /v1/admin/tiers/{id}/drain``."""

    timeout_s: Annotated[int, Field(ge=1, le=DRAIN_MAX_S)] = 60


class Readmit(_Body):
    """Body of ``POST /v1/admin/tiers/{id}/readmit``."""


class Reconcile(_Body):
    """Body of ``POST /v1/admin/usage/reconcile``."""

    confirm: bool = False


_Id = Annotated[str, Field(min_length=1, max_length=64)]
_Ttl = Annotated[int, Field(ge=PREVIEW_TTL_S[0], le=PREVIEW_TTL_S[2])]
_Mode = Literal["apply", "prepare"]


class AliasUpdate(_Body):
    """``op=alias_update``: aliases to other tiers. What the values may be is the change parser's to say."""

    op: Literal["alias_update"]
    aliases: dict[str, Any]
    ttl_s: _Ttl = PREVIEW_TTL_S[1]


class TierReplacement(_Body):
    """``op=tier_replacement``: fields of tiers."""

    op: Literal["tier_replacement"]
    tiers: dict[str, Any]
    mode: _Mode = "apply"
    managed: bool = False
    ttl_s: _Ttl = PREVIEW_TTL_S[1]


class Rollback(_Body):
    """``op=rollback``: the previous routes under a new revision."""

    op: Literal["rollback"]
    mode: _Mode = "apply"
    accept_unready: bool = False
    ttl_s: _Ttl = PREVIEW_TTL_S[1]


class Resume(_Body):
    """``op=resume``: on from the hold."""

    op: Literal["resume"]
    transaction_id: _Id
    evidence: dict[str, Any] | None = None
    ttl_s: _Ttl = PREVIEW_TTL_S[1]


class Cancel(_Body):
    """``op=cancel``: give up before the commit."""

    op: Literal["cancel"]
    transaction_id: _Id
    ttl_s: _Ttl = PREVIEW_TTL_S[1]


class Recover(_Body):
    """``op=recover``: one of the legal ways on after something went wrong."""

    op: Literal["recover"]
    transaction_id: _Id | None
    action: Literal["drain", "resume", "cancel", "verify", "rollback", "reassert"]
    evidence: dict[str, Any] | None = None
    accept_unready: bool = False
    ttl_s: _Ttl = PREVIEW_TTL_S[1]


PreviewBody: TypeAlias = AliasUpdate | TierReplacement | Rollback | Resume | Cancel | Recover

_OPS: Final[Mapping[str, type[PreviewBody]]] = {
    "alias_update": AliasUpdate,
    "tier_replacement": TierReplacement,
    "rollback": Rollback,
    "resume": Resume,
    "cancel": Cancel,
    "recover": Recover,
}


class Apply(_Body):
    """Body of ``POST /v1/admin/routes/apply``; `confirm` is the caller's to check."""

    preview_id: _Id
    preview_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    confirm: Any = None
    drain_timeout_s: Annotated[int, Field(ge=1, le=DRAIN_MAX_S)] = 60
    verify_timeout_s: Annotated[int, Field(ge=0, le=VERIFY_MAX_S)] = 30


_BodyType = TypeVar("_BodyType", bound=_Body)


def parse_preview(body: bytes) -> PreviewBody:
    """Read what is to be previewed.

    Raises:
        RequestError: As `parse_body`; `mixed_change` when aliases and tiers are named together.
    """
    document = _decode(body)
    if "aliases" in document and "tiers" in document:
        raise RequestError("mixed_change", PROBLEMS["mixed_change"].detail)
    op = document.get("op")
    kind = _OPS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise RequestError("invalid_request", f"op must be one of {', '.join(_OPS)}.")
    return _validate(kind, document)


def parse_apply(body: bytes) -> Apply:
    """Read what is to be applied.

    Raises:
        RequestError: As `parse_body`; `confirmation_required` when `confirm` is anything but true.
    """
    apply = parse_body(Apply, body)
    if apply.confirm is not True:
        raise RequestError("confirmation_required", PROBLEMS["confirmation_required"].detail)
    return apply


def named_preview(body: bytes) -> str | None:
    """The hash of the preview that a body names, if it is one; for a record of what was asked."""
    try:
        document = decode_strict(body)
    except StrictJsonError:
        return None
    named = document.get("preview_sha256") if isinstance(document, dict) else None
    return named if isinstance(named, str) and len(named) == 64 and named.isalnum() else None


def parse_drain_query(query: str) -> int:
    """`timeout_s` of a drain observation; 30 when it is not given.

    Raises:
        RequestError: `invalid_request` or `invalid_timeout`.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    if not pairs and not query:
        return 30
    if [name for name, _ in pairs] != ["timeout_s"]:
        raise RequestError("invalid_request", "The query takes timeout_s, once.")
    text = pairs[0][1]
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= DRAIN_MAX_S):
        raise RequestError("invalid_timeout", PROBLEMS["invalid_timeout"].detail)
    return int(text)


def parse_body(kind: type[_BodyType], body: bytes) -> _BodyType:
    """Read a JSON object; an empty body is an empty object.

    Raises:
        RequestError: `invalid_request` or `invalid_timeout`, with every fault in its message.
    """
    return _validate(kind, _decode(body))


def _decode(body: bytes) -> dict[str, Any]:
    try:
        document = decode_strict(body) if body.strip() else {}
    except StrictJsonError as exc:
        raise RequestError("invalid_request", f"The body is not a JSON object: {exc}.") from exc
    if type(document) is not dict:
        raise RequestError("invalid_request", "The body is not a JSON object.")
    if b"\\u" in body:  # only an escape can spell half a character, which no answer and no file could repeat
        try:
            encode(document)
        except UnicodeEncodeError as exc:
            raise RequestError("invalid_request", "The body has a lone surrogate.") from exc
    return document


def _validate(kind: type[_BodyType], document: dict[str, Any]) -> _BodyType:
    try:
        return kind.model_validate(document)
    except ValidationError as exc:
        faults = [(error["loc"], error["type"]) for error in exc.errors(include_url=False, include_input=False)]
    if any(loc and str(loc[0]).endswith("timeout_s") and fault != "extra_forbidden" for loc, fault in faults):
        raise RequestError("invalid_timeout", PROBLEMS["invalid_timeout"].detail)
    allowed = ", ".join(kind.model_fields) or "none"
    unknown = sorted(str(loc[0])[:64] for loc, fault in faults if fault == "extra_forbidden")
    wrong = sorted({str(loc[0]) for loc, fault in faults if fault != "extra_forbidden"})
    parts = [f"unknown member {name!r}" for name in unknown] + [f"{name} has a wrong type or value" for name in wrong]
    raise RequestError("invalid_request", f"{'; '.join(parts)}. Members: {allowed}.")


def problem(code: str, detail: str | None = None, extra: Mapping[str, object] | None = None) -> dict[str, object]:
    """The problem+json document of a code in `PROBLEMS`."""
    known = PROBLEMS[code]
    return {
        "type": f"urn:sndr:router:problem:{code}",
        "title": known.title,
        "status": known.status,
        "detail": detail or known.detail,
        "code": code,
        "retryable": known.retryable,
        **(extra or {}),
    }


def encode(document: Mapping[str, Any]) -> bytes:
    """JSON with members in the order given."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def instant(seconds: float | None) -> str | None:
    """Seconds since the epoch as RFC 3339 UTC; None stays None."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
