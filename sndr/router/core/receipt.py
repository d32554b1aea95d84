"""What the authority file says, as values: revisions, the receipt of one transaction, and the record that holds them.

Instants are whole milliseconds since 1970 UTC; the codec writes them as RFC 3339. Nothing here is secret and nothing
comes from a request: identifiers are ours or the operator's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from sndr.router.core.projection import FrozenJson, Projection, Target

__all__ = [
    "EVENTS_MAX",
    "OBSERVED_BYTES_MAX",
    "OBSERVED_MAX",
    "AliasUpdate",
    "Campaign",
    "ChangeSpec",
    "Container",
    "Drain",
    "Event",
    "Evidence",
    "Fence",
    "Identity",
    "Op",
    "Origin",
    "Receipt",
    "Record",
    "Revision",
    "Rollback",
    "State",
    "TierReplacement",
    "kept_names",
]

EVENTS_MAX: Final = 16
OBSERVED_MAX: Final = 16
OBSERVED_BYTES_MAX: Final = 8_192


class State(StrEnum):
    """Durable state of a transaction; the scope refuses new requests in `held` and `committed`."""

    HELD = "held"
    COMMITTED = "committed"
    COMPLETED = "completed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the transaction is over: no hold, and another change may begin."""
        return self in (State.COMPLETED, State.CANCELLED)


class Op(StrEnum):
    """What kind of change a transaction makes."""

    ALIAS_UPDATE = "alias_update"
    TIER_REPLACEMENT = "tier_replacement"
    ROLLBACK = "rollback"


class Origin(StrEnum):
    """Where the proposed routes come from: the operator's change, or the previous projection."""

    CHANGE = "change"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Fence:
    """A revision and the hash of its content; consumers compare both."""

    route_revision: int
    effective_route_sha256: str


@dataclass(frozen=True, slots=True)
class Revision:
    """One published or publishable set of routes."""

    route_revision: int
    effective_route_sha256: str
    projection: Projection

    @property
    def fence(self) -> Fence:
        """The pair that consumers compare."""
        return Fence(self.route_revision, self.effective_route_sha256)


@dataclass(frozen=True, slots=True)
class AliasUpdate:
    """Existing aliases, each to an existing tier, or to a family with an existing natural tier."""

    aliases: Mapping[str, Target]


@dataclass(frozen=True, slots=True)
class TierReplacement:
    """Per tier the fields to set, as the operator wrote them."""

    tiers: Mapping[str, Mapping[str, FrozenJson]]


@dataclass(frozen=True, slots=True)
class Rollback:
    """Take the previous projection."""


ChangeSpec: TypeAlias = AliasUpdate | TierReplacement | Rollback


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a transaction; `seq` rises strictly, the oldest events are dropped first."""

    at_ms: int
    code: str
    seq: int


@dataclass(frozen=True, slots=True)
class Drain:
    """The drain that preceded a commit. `finished` counts streams that ended by themselves; `cut` is always 0."""

    at_ms: int
    complete: bool
    cut: int
    finished: int
    leases_at_hold: int
    unresolved: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What the servers of the scope advertised. It proves a name, never which weights are loaded."""

    at_ms: int
    observed: tuple[str, ...]
    proves: str = "advertised_name"


def kept_names(names: Iterable[str]) -> tuple[str, ...]:
    """As many of the advertised names as are kept: what servers say makes no receipt too large to write, and no view of
    64 tiers too large to read."""
    kept: list[str] = []
    left_bytes = OBSERVED_BYTES_MAX
    for name in names:
        size = 2 * len(name.encode()) + 3  # quotes, comma, and a backslash before each character at worst
        if len(kept) < OBSERVED_MAX and size <= left_bytes:
            kept.append(name)
            left_bytes -= size
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class Campaign:
    """The operator's promotion that a managed change belongs to."""

    id: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Container:
    """What the operator observed of the container behind one tier; the instants are the operator's text."""

    container_id: str
    image_id: str
    started_at: str
    observed_at: str
    observer: str
    served_model: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The operator's assertion behind a managed resume, one container per tier of the scope."""

    campaign: Campaign
    containers: Mapping[str, Container]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Enough of one transaction to continue or undo it after a restart, without any memory of it.

    Attributes:
        earlier_evidence_sha256: Hash of the evidence that was used last before this transaction; it is not used again.
    """

    id: str
    op: Op
    origin: Origin
    state: State
    hold: bool
    base: Fence
    change: ChangeSpec
    scope: tuple[str, ...]
    proposed_sha256: str
    committed_revision: int | None
    preview_sha256: str
    parent_id: str | None
    managed: bool
    evidence: Evidence | None
    drain: Drain | None
    identity: Identity | None
    events: tuple[Event, ...]
    created_at_ms: int
    updated_at_ms: int
    earlier_evidence_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The whole authority: what is current, what was before, and the last transaction.

    Attributes:
        authority_id: Identity of this history; a new `init` makes a new one, so that fences of two histories differ.
        boot_sha256: Hash of the boot projection that this record belongs to.
        write_seq: Rises by one with every write, also those that change no route.
    """

    authority_id: str
    boot_sha256: str
    current: Revision
    previous: Revision | None
    transaction: Receipt | None
    write_seq: int
