"""Bodies of the management API: requests read strictly, problems as RFC 9457, times as RFC 3339.

Every refusal of the management API is listed in `PROBLEMS`; nothing else is ever answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sndr.errors import RequestError
from sndr.router.wire.record import StrictJsonError, decode_strict

__all__ = [
    "DRAIN_MAX_S",
    "PROBLEMS",
    "Drain",
    "Problem",
    "Quiesce",
    "Readmit",
    "Reconcile",
    "encode",
    "instant",
    "parse_body",
    "problem_body",
]

DRAIN_MAX_S: Final = 900


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
        "invalid_timeout": Problem(400, "Invalid timeout", f"timeout_s is a whole number from 1 to {DRAIN_MAX_S}."),
        "operator_required": Problem(403, "Operator credential required", "This path takes the operator's credential."),
        "not_found": Problem(404, "Not found", "There is nothing here."),
        "method_not_allowed": Problem(405, "Method not allowed", "The path does not take this method."),
        "not_quiesced": Problem(409, "Not quiesced", "Only a quiesced tier can be drained; quiesce it first."),
        "readmit_refused": Problem(
            409, "Readmit refused", "A fresh probe did not prove the tier's health and identity.", retryable=True
        ),
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


_BodyType = TypeVar("_BodyType", bound=_Body)


def parse_body(kind: type[_BodyType], body: bytes) -> _BodyType:
    """Read a JSON object; an empty body is an empty object.

    Raises:
        RequestError: `invalid_request` or `invalid_timeout`, with every fault in its message.
    """
    try:
        document = decode_strict(body) if body.strip() else {}
    except StrictJsonError as exc:
        raise RequestError("invalid_request", f"The body is not a JSON object: {exc}.") from exc
    if type(document) is not dict:
        raise RequestError("invalid_request", "The body is not a JSON object.")
    try:
        return kind.model_validate(document)
    except ValidationError as exc:
        faults = [(error["loc"], error["type"]) for error in exc.errors(include_url=False, include_input=False)]
    if any(loc[:1] == ("timeout_s",) for loc, _ in faults):
        raise RequestError("invalid_timeout", PROBLEMS["invalid_timeout"].detail)
    allowed = ", ".join(kind.model_fields) or "none"
    unknown = sorted(str(loc[0])[:64] for loc, fault in faults if fault == "extra_forbidden")
    wrong = sorted({str(loc[0]) for loc, fault in faults if fault != "extra_forbidden"})
    parts = [f"unknown member {name!r}" for name in unknown] + [f"{name} has a wrong type or value" for name in wrong]
    raise RequestError("invalid_request", f"{'; '.join(parts)}. Members: {allowed}.")


def problem_body(code: str, detail: str | None = None, extra: Mapping[str, object] | None = None) -> bytes:
    """The problem+json body of a code in `PROBLEMS`."""
    problem = PROBLEMS[code]
    return encode(
        {
            "type": f"urn:sndr:router:problem:{code}",
            "title": problem.title,
            "status": problem.status,
            "detail": detail or problem.detail,
            "code": code,
            "retryable": problem.retryable,
            **(extra or {}),
        }
    )


def encode(document: Mapping[str, Any]) -> bytes:
    """JSON with members in the order given."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def instant(seconds: float | None) -> str | None:
    """Seconds since the epoch as RFC 3339 UTC; None stays None."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
