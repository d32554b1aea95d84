"""The words between the machine and the world: commands and facts go in, effects come out.

A *command* is what an operator asks for (imperative), a *fact* what happened (past tense), an *effect* what somebody
must now do. The interpreter performs the effects of one step in order and begins none before every earlier one has
returned. An effect that carries a ticket is answered by a fact with the same ticket; it is always the last of its
step, and there is at most one. A fact whose ticket is not the one awaited is stale and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from sndr.router.core.projection import Tier
from sndr.router.core.receipt import AliasUpdate, Evidence, Fence, Record, Revision, Rollback, TierReplacement

__all__ = [
    "AbandonWait",
    "AwaitLeases",
    "Call",
    "Cancel",
    "CheckAdmitting",
    "CloseGate",
    "Code",
    "Command",
    "Continued",
    "CountRows",
    "Drain",
    "DrainProgressed",
    "DrainTimedOut",
    "Effect",
    "Event",
    "Fact",
    "FoundCommitted",
    "FoundHeld",
    "FoundTerminal",
    "IdentityFailed",
    "IdentityProved",
    "LeasesReleased",
    "Open",
    "OpenGate",
    "Persist",
    "Precheck",
    "PrecheckFailed",
    "PrecheckPassed",
    "ProbeIdentity",
    "ProbeReady",
    "Proceed",
    "Publish",
    "Reassert",
    "Refuse",
    "ReplaceTiers",
    "Reply",
    "Resume",
    "Retire",
    "RollBack",
    "RowsResolved",
    "RowsUnresolved",
    "Serve",
    "Shutdown",
    "Start",
    "Stop",
    "Targets",
    "TargetsAdmitting",
    "TargetsNotAdmitting",
    "TargetsReady",
    "TargetsUnready",
    "UpdateAliases",
    "Verify",
    "WriteFailed",
    "WriteKind",
    "WriteRefused",
    "WriteUncertain",
    "Written",
]


class Code(StrEnum):
    """Why a call did not do what it asked for; the management API maps each to one HTTP status."""

    INVALID_CHANGE = "invalid_change"
    PREVIEW_STALE = "preview_stale"
    TRANSACTION_IN_PROGRESS = "transaction_in_progress"
    NO_TRANSACTION = "no_transaction"
    TRANSACTION_CHANGED = "transaction_changed"
    ALREADY_COMMITTED = "already_committed"
    NOT_COMMITTED = "not_committed"
    RECOVERY_REQUIRED = "recovery_required"
    NO_PREVIOUS = "no_previous"
    NO_EFFECTIVE_CHANGE = "no_effective_change"
    TARGET_NOT_READY = "target_not_ready"
    READINESS_NOT_CONFIGURED = "readiness_not_configured"
    TARGET_NOT_ADMITTING = "target_not_admitting"
    PRECHECK_FAILED = "precheck_failed"
    CANCEL_TARGET_UNVERIFIED = "cancel_target_unverified"
    DRAIN_BLOCKED_USAGE = "drain_blocked_usage"
    DRAIN_BLOCKED_LEGACY = "drain_blocked_legacy"
    DRAIN_TIMEOUT = "drain_timeout"
    CHANGE_TOO_LARGE = "change_too_large"
    UNKNOWN_ALIAS = "unknown_alias"
    UNKNOWN_TIER = "unknown_tier"
    RESTART_ONLY = "restart_only"
    REPLACEMENT_UNSUPPORTED = "replacement_unsupported"
    ENDPOINT_INVALID = "endpoint_invalid"
    IDENTITY_REQUIRED = "identity_required"
    EVIDENCE_REQUIRED = "evidence_required"
    EVIDENCE_INVALID = "evidence_invalid"
    EVIDENCE_MISMATCH = "evidence_mismatch"
    EVIDENCE_REPLAYED = "evidence_replayed"
    REVISION_EXHAUSTED = "revision_exhausted"
    AUTHORITY_WRITE_FAILED = "authority_write_failed"
    AUTHORITY_WRITE_UNCERTAIN = "authority_write_uncertain"
    AUTHORITY_NO_SPACE = "authority_no_space"
    IDENTITY_MISMATCH = "identity_mismatch"
    IDENTITY_UNAVAILABLE = "identity_unavailable"
    MANAGEMENT_BUSY = "management_busy"
    AUTHORITY_READ_ONLY = "authority_read_only"
    AUTHORITY_CHANGED_EXTERNALLY = "authority_changed_externally"
    AUTHORITY_PATH_MOVED = "authority_path_moved"
    AUTHORITY_LOCK_LOST = "authority_lock_lost"
    SHUTTING_DOWN = "shutting_down"


class WriteKind(StrEnum):
    """Which durable write of a transaction one is; the crash table names them so."""

    STARTUP = "W0"
    HOLD = "W1"
    COMMIT = "W2"
    READMIT = "W3"
    CANCEL = "Wx"
    ROLLBACK = "Wr"
    ALIAS = "alias"
    REASSERT = "reassert"


Targets: TypeAlias = tuple[tuple[str, Tier], ...]


# --- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What every command carries: who waits for the answer, and what the preview behind it was bound to.

    Attributes:
        id: Names the waiting caller in `Reply`.
        preview_sha256: The preview that this call applies.
        base: Fence of the routes the preview was made against.
        write_seq: `write_seq` of the record the preview was made against: any durable write since makes it stale.
        attention_seq: Attentions raised in this process before the preview: any raised since makes it stale.
        recovers: Whether the preview is one of `op=recover`; only such a one counts while attention is set.
        at_ms: Wall time of the call.
    """

    id: str
    preview_sha256: str
    base: Fence
    write_seq: int
    attention_seq: int
    recovers: bool = False
    at_ms: int = 0
    drain_timeout_ms: int = 60_000
    verify_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class UpdateAliases:
    """Point aliases at other tiers, without a hold; `Rollback` where only aliases differ from the previous routes."""

    call: Call
    transaction_id: str
    change: AliasUpdate | Rollback
    proposed_sha256: str


@dataclass(frozen=True, slots=True)
class ReplaceTiers:
    """Hold, drain, commit, publish, verify and readmit the tiers of `change`; a prepare stops once drained."""

    call: Call
    transaction_id: str
    change: TierReplacement
    proposed_sha256: str
    managed: bool = False
    prepares: bool = False


@dataclass(frozen=True, slots=True)
class RollBack:
    """Make the previous routes current again, under a new revision.

    From idle it is a replacement of the tiers that differ, refused unless their earlier servers prove themselves.
    Of a committed transaction (`parent_id`) it reuses the hold.
    """

    call: Call
    transaction_id: str
    proposed_sha256: str
    parent_id: str | None = None
    prepares: bool = False
    accepts_unready: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait for the drain again, and stop there."""

    call: Call
    transaction_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on from the hold: drain, check, commit, verify, readmit."""

    call: Call
    transaction_id: str
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give the change up before its commit, once the original target proves itself."""

    call: Call
    transaction_id: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Prove the committed target again and readmit."""

    call: Call
    transaction_id: str


@dataclass(frozen=True, slots=True)
class Reassert:
    """Write the record that is visible on disk once more, as a new object.

    Attributes:
        transaction_id: Of the record on disk; None when it has no transaction.
        visible_seq: `write_seq` of the record on disk.
    """

    call: Call
    transaction_id: str | None
    visible_seq: int


Command: TypeAlias = UpdateAliases | ReplaceTiers | RollBack | Drain | Resume | Cancel | Verify | Reassert


# --- facts


@dataclass(frozen=True, slots=True)
class Start:
    """The authority was opened and validated; its record is what the disk showed, and may not be durable."""

    record: Record
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """The same, and the store has written the record again already: it is durable."""

    record: Record
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The process was asked to end."""


@dataclass(frozen=True, slots=True)
class Written:
    """The record is durable; `write_seq` is the number the store gave it, None for the one it was asked with."""

    ticket: int
    at_ms: int = 0
    write_seq: int | None = None


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """Nothing changed on disk; `code` says why, as the caller is told."""

    ticket: int
    code: Code = Code.AUTHORITY_WRITE_FAILED
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class WriteUncertain:
    """The record may or may not survive a power loss, or may not even be visible; `write_seq` as in `Written`."""

    ticket: int
    at_ms: int = 0
    write_seq: int | None = None


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """The store did not try: the file, its directory or the lock is no longer what this process left there."""

    ticket: int
    code: Code
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class TargetsReady:
    """Fresh probes found every target ready."""

    ticket: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class TargetsUnready:
    """A fresh probe found a target not ready, or a target has nothing to probe."""

    ticket: int
    code: Code = Code.TARGET_NOT_READY
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class TargetsAdmitting:
    """Neither quiesced nor held, at this instant."""

    ticket: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class TargetsNotAdmitting:
    """A target is quiesced or held."""

    ticket: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class PrecheckPassed:
    """The proposed targets proved themselves before anything was committed."""

    ticket: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class PrecheckFailed:
    """A proposed target did not prove itself."""

    ticket: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class LeasesReleased:
    """No lease is left in the scope. Counts are of the whole drain since the gate closed."""

    ticket: int
    at_hold: int = 0
    finished: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class DrainProgressed:
    """Some streams of the scope ended; others go on."""

    ticket: int
    at_hold: int = 0
    finished: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class DrainTimedOut:
    """Streams outlived the wait; they go on."""

    ticket: int
    at_hold: int = 0
    finished: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class RowsResolved:
    """No lease in the scope and no unresolved usage row that could concern it, counted in this order."""

    ticket: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class RowsUnresolved:
    """What is left: leases, rows of the scope or of an unknown tier, and of the latter those older than the scheme."""

    ticket: int
    leases: int = 0
    unresolved: int = 0
    legacy: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class IdentityProved:
    """Each target advertised exactly the model it is defined with; `observed` is all that they advertised."""

    ticket: int
    observed: tuple[str, ...] = ()
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class IdentityFailed:
    """A target advertised something else, or did not answer."""

    ticket: int
    code: Code = Code.IDENTITY_MISMATCH
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Continued:
    """The call goes on past a state where others stop."""

    ticket: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class FoundTerminal:
    """The record made durable holds nothing."""

    ticket: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class FoundHeld:
    """The record made durable holds a scope before its commit."""

    ticket: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class FoundCommitted:
    """The record made durable holds a scope after its commit."""

    ticket: int
    at_ms: int = 0


Fact: TypeAlias = (
    Written
    | WriteFailed
    | WriteUncertain
    | WriteRefused
    | TargetsReady
    | TargetsUnready
    | TargetsAdmitting
    | TargetsNotAdmitting
    | PrecheckPassed
    | PrecheckFailed
    | LeasesReleased
    | DrainProgressed
    | DrainTimedOut
    | RowsResolved
    | RowsUnresolved
    | IdentityProved
    | IdentityFailed
    | Continued
    | FoundTerminal
    | FoundHeld
    | FoundCommitted
)

Event: TypeAlias = Command | Fact | Start | Open | Shutdown


# --- effects that return at once


@dataclass(frozen=True, slots=True)
class CloseGate:
    """Bind nothing new in the scope; waiters are refused. Takes effect in one synchronous step."""

    scope: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Let the scope bind again, as far as the operator's own bit allows."""

    scope: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Swap the one reference that readers take; the tiers of `replaced` get a runtime of their own generation."""

    revision: Revision
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retire:
    """The runtimes of the scope older than `revision` gain no lease any more. Same synchronous step as `Publish`."""

    scope: tuple[str, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class AbandonWait:
    """Nobody waits for the fact with this ticket any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the call; `code` None means done. The receipt to show is the machine's."""

    call_id: str
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class Serve:
    """The holds are in force and the routes published: connections may be accepted."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not start."""

    code: Code


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing durable is in flight: the process may end."""


# --- effects answered by a fact


@dataclass(frozen=True, slots=True)
class Persist:
    """Replace the authority file. `Written`, `WriteFailed`, `WriteUncertain` or `WriteRefused` answers.

    Crash: the disk shows the earlier record or this one, whole; after `Written` only this one.
    """

    ticket: int
    kind: WriteKind
    record: Record


@dataclass(frozen=True, slots=True)
class ProbeReady:
    """Probe past every cache. `TargetsReady` or `TargetsUnready` answers."""

    ticket: int
    targets: Targets


@dataclass(frozen=True, slots=True)
class CheckAdmitting:
    """Look at both admission bits, and report without letting go of the event loop.

    `TargetsAdmitting` or `TargetsNotAdmitting` answers.
    """

    ticket: int
    tiers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Precheck:
    """Prove that the servers of definitions not yet current serve them. `PrecheckPassed` or `PrecheckFailed`."""

    ticket: int
    targets: Targets
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class AwaitLeases:
    """Wait, by a monotonic clock, until the scope has no lease. `LeasesReleased` or `DrainTimedOut` answers.

    `DrainProgressed` may come before with the same ticket, any number of times.
    """

    ticket: int
    scope: tuple[str, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class CountRows:
    """Count leases, then unresolved rows of the scope; wait for zero at most so long. `RowsResolved|RowsUnresolved`."""

    ticket: int
    scope: tuple[str, ...]
    wait_ms: int


@dataclass(frozen=True, slots=True)
class ProbeIdentity:
    """Prove exactly, past every cache, what published definitions say. `IdentityProved` or `IdentityFailed`."""

    ticket: int
    targets: Targets
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Proceed:
    """Feed this back at once, before any other event."""

    event: Fact | Shutdown


Effect: TypeAlias = (
    CloseGate
    | OpenGate
    | Publish
    | Retire
    | AbandonWait
    | Reply
    | Serve
    | Refuse
    | Stop
    | Persist
    | ProbeReady
    | CheckAdmitting
    | Precheck
    | AwaitLeases
    | CountRows
    | ProbeIdentity
    | Proceed
)
