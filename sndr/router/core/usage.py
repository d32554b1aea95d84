"""Rows of the usage ledger: what is known when a request starts, and what is known when it ends.

Rows are plain tuples in column order, so that a batch reaches SQLite without a conversion in between. Their members
are exact built-in types on purpose: sqlite3 binds an exact `str` or `int` directly, but sends every subclass (an enum
member, a bool) through its adapter protocol, which costs more than the rest of the row. Therefore enumerated members
hold the enum's `.value` and flags hold 0 or 1.

No member holds prompt text, answer text, a header value, an address or a credential.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

__all__ = [
    "FINISH_SHARED",
    "SCHEMA_VERSION",
    "START_SHARED",
    "FinishRow",
    "Kind",
    "LedgerStatus",
    "Outcome",
    "Reconciled",
    "RunRef",
    "Source",
    "StartRow",
    "Unresolved",
    "refusal",
]

SCHEMA_VERSION: Final = 4
"""`PRAGMA user_version` of a ledger that carries the route generation in every start row."""


class Kind(StrEnum):
    """What was routed: `chat` is every endpoint that is routed by alias, whatever its dialect."""

    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    STT = "stt"
    TTS = "tts"


class Outcome(StrEnum):
    """How a request ended. A row without an outcome is unresolved."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    UPSTREAM_RESET = "upstream_reset"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_ERROR = "upstream_error"
    SHUTDOWN_CUT = "shutdown_cut"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    """Closed by an explicit reconcile: the gateway died or could not write the end; the upstream may have gone on."""


class Source(StrEnum):
    """Where a token count came from."""

    UPSTREAM = "upstream"
    ABSENT = "absent"


class StartRow(NamedTuple):
    """Everything known at admission; durable before the first byte goes upstream.

    From `client` on the members are those that requests of one kind share: the ledger hands them to SQLite once for
    all rows of a batch that agree in them.

    Attributes:
        started_at: Wall clock at the end of the request's head, milliseconds since the epoch.
        id: The request id (`X-Request-Id`); chosen by clients, hence never the key of a row.
        queue_ms: Time in the admission queue.
        request_bytes: Length of the request's body.
        admission_seq: Numbers admissions and releases within the run, in the order in which leases were given and
            given back; None in refused rows.
        client: Id of the client whose credential was used; `default` for the server-wide one or without auth.
        kind: Value of `Kind`.
        endpoint: `chat, completions, responses, messages, embeddings, rerank, …`.
        stream: 1 when the client asked for a stream, else 0.
        alias: Public model name after normalisation; None when a refused request had none that is configured.
        tier: Routing target; None only in refused rows.
        tier_generation: Revision at which the tier's runtime was built, 1 without authority; None only in refused
            rows and in rows written by schema 3.
        authority_id, route_revision, effective_route_sha256: The request's snapshot; None without authority.
        routing: Decision record of a family alias as JSON text, else None.
    """

    started_at: int
    id: str
    queue_ms: int
    request_bytes: int
    admission_seq: int | None
    client: str
    kind: str
    endpoint: str
    stream: int
    alias: str | None
    tier: str | None
    tier_generation: int | None
    authority_id: str | None
    route_revision: int | None
    effective_route_sha256: str | None
    routing: str | None


class FinishRow(NamedTuple):
    """The terminal part of a row; from `outcome` on the members that requests of one kind share.

    Attributes:
        ended_at: Wall clock, milliseconds since the epoch.
        prompt_tokens, completion_tokens, cached_tokens: Counts, None when their source is `absent`.
        first_byte_ms: From the start to the first response byte of the upstream; None when there was none.
        total_ms: From the start to the end of delivery.
        response_bytes: Body bytes handed to the client's connection.
        release_seq: The number of the release, from the same count as `admission_seq`; None in refused rows.
        outcome: Value of `Outcome`.
        status: HTTP status that the client was sent; None when it left before one was sent.
        error_code: Stable code of the error that the client was sent, or None.
        finish_reason: The upstream's own word, never made up; None when it sent none.
        prompt_source, completion_source, cached_source: Values of `Source`.
        retries: 0, or 1 when a reused upstream connection turned out to be closed.
    """

    ended_at: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    first_byte_ms: int | None
    total_ms: int
    response_bytes: int
    release_seq: int | None
    outcome: str
    status: int | None
    error_code: str | None
    finish_reason: str | None
    prompt_source: str
    completion_source: str
    cached_source: str
    retries: int


START_SHARED: Final = StartRow._fields.index("client")
FINISH_SHARED: Final = FinishRow._fields.index("outcome")
"""Where the members begin that requests of one kind have in common."""


def refusal(
    ended_at: int, status: int | None, error_code: str | None, total_ms: int, outcome: str = "refused"
) -> FinishRow:
    """The terminal part of a request that ended before dispatch.

    Args:
        ended_at: As in `FinishRow`.
        status: HTTP status; None when the client left before it was told.
        error_code: Stable code, or None.
        total_ms: As in `FinishRow`.
        outcome: `refused`, or `client_gone` when it left while it waited.
    """
    return FinishRow(
        ended_at, None, None, None, None, total_ms, 0, None, outcome, status, error_code, None, "absent", "absent",
        "absent", 0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Rows that have a start and no durable end.

    Attributes:
        total: All of them.
        active: Those whose request is still running in this process.
        failed: Those of this process whose request ended but whose terminal row could not be written.
        earlier: Those that earlier runs left behind.
        unassociated: Those among `earlier` that name no tier or no tier generation: they concern every scope.
        by_tier: Count per tier id (rows without a tier under the empty string).
    """

    total: int = 0
    active: int = 0
    failed: int = 0
    earlier: int = 0
    unassociated: int = 0
    by_tier: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run as a reconcile reports it."""

    run_id: str
    pid: int
    started_at: int
    verdict: str
    """`dead` (proven), `current`, or `unproven`: its rows were left alone."""
    reconciled: int
    left: int


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Answer of a reconcile: rows closed as `interrupted`, rows left alone, and why, run by run."""

    reconciled: int
    left: int
    runs: tuple[RunRef, ...]


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """Gauges of the ledger, read without waiting for the disk.

    Attributes:
        unresolved: Rows with a start and no durable end.
        rows: Rows in the store, refused ones included.
        queued: Row parts handed over and not yet durable.
        lag_ms: Age of the oldest of them; 0 when there is none.
        failures: Row parts that could not be written since the process started.
        commits: Transactions committed since the process started.
        bytes: Size of the database and its side files at the last look.
    """

    unresolved: int
    rows: int
    queued: int
    lag_ms: int
    failures: int
    commits: int
    bytes: int
