"""What the planes need from each other, as Protocols: nobody imports a neighbour to use it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sndr.router.core.usage import FinishRow, LedgerStatus, Reconciled, StartRow, Unresolved

if TYPE_CHECKING:
    from sndr.router.core.admission import TierRuntime
    from sndr.router.core.effects import Fact, Persist
    from sndr.router.core.projection import Tier
    from sndr.router.core.readiness import Observation, TierReadiness
    from sndr.router.core.receipt import Record, Revision
    from sndr.router.core.snapshot import Snapshot

__all__ = [
    "AdmissionStore",
    "Authority",
    "Clock",
    "EventLog",
    "Gate",
    "Ledger",
    "ManagementApi",
    "ManagementRequest",
    "ManagementResponse",
    "Metrics",
    "Prober",
    "Process",
    "Publisher",
    "Readiness",
    "RoutingTableView",
    "Spool",
    "Thread",
]

R = TypeVar("R")


class Ledger(Protocol):
    """The usage ledger, called on the loop thread only. No call waits for the disk.

    A request is either `start`ed and later `finish`ed with the key that `start` returned, exactly once, or
    `refuse`d when it never got a lease.
    """

    def start(self, row: StartRow, done: Callable[[Exception | None], None]) -> int:
        """Queue the durable start of a request; returns the key for `finish`.

        `done(None)` is called on the loop once the row is durable, `done(error)` when it could not be written (the
        request is refused with `accounting_unavailable`, and `finish` may be called or not: there is no row).
        It is called from a later loop iteration, never from inside `start`.
        """
        ...

    def finish(self, key: int, row: FinishRow) -> None:
        """Hand over the end of a request; allowed before `done` (the request gave up waiting), at most once per key."""
        ...

    def refuse(self, row: StartRow, end: FinishRow) -> None:
        """Queue one complete row for a request that was refused before it had a lease."""
        ...

    def unresolved(self, scope: Collection[str] | None = None) -> Unresolved:
        """Rows of kind `chat` that could concern these tiers (None: all rows of every kind), as of this instant.

        Counts a start from the moment it is queued until its end is durable, so that a zero is a proof.
        """
        ...

    def status(self) -> LedgerStatus:
        """Gauges."""
        ...

    async def trace(self, request_id: str, client: str | None) -> Mapping[str, Any] | None:
        """The newest row with this request id, as `GET /v1/requests/{id}` answers it; `client` None sees every row."""
        ...

    async def reconcile(self) -> Reconciled:
        """Close the unresolved rows of runs proven dead, and those of this run whose request is over."""
        ...


@dataclass(frozen=True, slots=True)
class ManagementRequest:
    """A request to a management path, read and authenticated by the data plane.

    Attributes:
        method: `GET`, `POST`, … (`HEAD` arrives as `GET`).
        path: Path as sent, without query.
        query: Query string as sent, without `?`; empty when there was none.
        headers: Lower-case name -> value, the first one where a name is repeated; never a credential.
        body: The whole body, at most 64 KiB.
        role: `operator`, `client` or `metrics`; the answerer decides what each may see.
        client_id: Id of the client for role `client`, else None.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    role: str
    client_id: str | None


@dataclass(frozen=True, slots=True)
class ManagementResponse:
    """Answer to a management request; `content-length`, `x-request-id` and framing are added by the data plane."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class ManagementApi(Protocol):
    """The control plane's door: `/v1/admin/*`, `/v1/router/status`, `/v1/requests/{id}` and `/metrics`."""

    def handle(self, request: ManagementRequest) -> Awaitable[ManagementResponse]:
        """Answer; a raised exception becomes a 500 without detail. A vanished client does not cancel it."""
        ...


class Metrics(Protocol):
    """Counters fed by the data plane, on the loop thread, once per request. Everything else is read at scrape time."""

    def finished(
        self,
        alias: str,
        tier: str,
        endpoint: str,
        outcome: str,
        first_byte_s: float | None,
        total_s: float,
        prompt_tokens: int | None,
        completion_tokens: int | None,
        cached_tokens: int | None,
    ) -> None:
        """One request is over. `alias` and `tier` are empty where a request was refused before it had them."""
        ...

    def decided(self, family: str, outcome: str, rule: str | None, gap: str | None) -> None:
        """A request to a family alias is over; this was decided about it."""
        ...


class RoutingTableView(Protocol):
    """The routing table as the status shows it."""

    def info(self) -> tuple[str | None, str] | None:
        """Content hash and state, for the metrics; None when no table is configured. No waiting."""
        ...

    async def view(self) -> Mapping[str, Any] | None:
        """What the boot file's table is, what became of it, and whether its file holds another one by now."""
        ...


class Readiness(Protocol):
    """What the router reads before admission, and what it tells the prober about live traffic."""

    def is_ready(self, tier_id: str, generation: int) -> bool:
        """Whether the tier may be chosen; must be a dictionary look-up."""
        ...

    def context_limit(self, tier_id: str, generation: int) -> int | None:
        """Context length that the tier's server advertises for its model; None while unknown."""
        ...

    def state(self, tier_id: str, generation: int) -> TierReadiness:
        """All that is known about a generation."""
        ...

    def served(self, tier_id: str, generation: int) -> None:
        """A response of this tier has just delivered bytes: a probe that times out now is no reason to eject it."""
        ...


class Gate(Protocol):
    """The data plane's state as the control plane sees and changes it; every call is synchronous, on the loop."""

    @property
    def snapshot(self) -> Snapshot:
        """What new requests are admitted under."""
        ...

    @property
    def purposes(self) -> Mapping[tuple[str, str], TierRuntime]:
        """Models outside the routes, by kind and name."""
        ...

    def publish(self, snapshot: Snapshot) -> None:
        """Swap the reference; runtimes that the new snapshot does not carry are retired."""
        ...

    def quiesce(self, tier_id: str, reason: str | None) -> None:
        """Operator: stop new leases; waiters are turned away, running work goes on."""
        ...

    def readmit(self, tier_id: str) -> None:
        """Operator: clear the operator's bit. The caller has proven health and identity."""
        ...

    def hold(self, tier_id: str) -> None:
        """Transaction: stop new leases."""
        ...

    def unhold(self, tier_id: str) -> None:
        """Transaction: clear the transaction's bit."""
        ...

    def runtimes_of(self, tier_id: str) -> tuple[TierRuntime, ...]:
        """The current generation first, then retired ones that still have leases."""
        ...

    def leases(self, tier_id: str) -> int:
        """Leases over all generations of the tier."""
        ...

    async def wait_idle(self, tier_id: str, timeout_s: float) -> bool:
        """Wait for zero leases; False at the deadline. Never cuts anything."""
        ...

    def connections(self) -> Mapping[str, int]:
        """Open connections by side: `client`, `client_handshake`, `upstream_active`, `upstream_idle`."""
        ...


class Prober(Protocol):
    """Probes as the control plane uses them."""

    def state(self, tier_id: str, generation: int) -> TierReadiness:
        """All that is known about a generation: the very value that the router reads."""
        ...

    async def prove(self, tier_id: str, generation: int) -> Observation:
        """Probe a published generation now, past every cache; the result alone decides its readiness."""
        ...

    async def probe(self, tier: Tier) -> Observation:
        """Probe a definition now, published or not; nothing is remembered."""
        ...

    def note(self, tier_id: str, generation: int, seen: Observation) -> None:
        """Let a probe that was made for another purpose decide the readiness of a published generation."""
        ...


class Publisher(Protocol):
    """Makes the routes of a revision those that new requests are admitted under."""

    def publish(self, revision: Revision, replaced: Collection[str]) -> None:
        """Build the snapshot and swap the reference, in one synchronous step.

        Args:
            replaced: Tiers that get a runtime of a new generation even where their definition is the same; their
                earlier runtimes gain no lease any more. Every other unchanged tier keeps its runtime.
        """
        ...


class Authority(Protocol):
    """The authority file as the coordinator sees it: on the loop, never waiting for the disk.

    Each `done` is called on the loop, once, from a later iteration.
    """

    @property
    def condition(self) -> str:
        """`writable`, or the code of what stands in the way; as of the last answered write."""
        ...

    @property
    def last_write(self) -> str | None:
        """How the last write ended: `done` or a code; None before the first."""
        ...

    def persist(self, effect: Persist, done: Callable[[Fact], None]) -> None:
        """Make a record durable. `Written`, `WriteFailed`, `WriteUncertain` or `WriteRefused` answers."""
        ...

    def visible(self, done: Callable[[Record | Exception], None]) -> None:
        """Read what the file shows now."""
        ...

    def check(self, done: Callable[[str | Exception], None]) -> None:
        """Compare file, path and lock with what this process knows; answers like `condition` and changes nothing."""
        ...


class Clock(Protocol):
    """Time, as two clocks that are wrong in different ways."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump."""
        ...

    def elapsed_ms(self) -> int:
        """Milliseconds since some instant of this boot, time asleep included; never goes back."""
        ...


class AdmissionStore(Protocol):
    """Where operator quiescence survives a restart."""

    async def save(self, quiesced: Mapping[str, str | None]) -> None:
        """Replace what is stored: tier id -> reason of every quiesced tier.

        Raises:
            OSError: It may not have been stored. Crash: leaves the old or the new content.
        """
        ...


class EventLog(Protocol):
    """One structured line per thing that happened; never content, never waits."""

    def __call__(self, event: str, fields: Mapping[str, object], /) -> None: ...


class Process(Protocol):
    """The process as `/v1/router/status` shows it.

    Attributes:
        state: `serving` or `stopping`.
        listen: Addresses as bound.
        started_at: Wall clock, seconds since the epoch.
        uptime_s: Whole seconds.
        dropped_log_lines: Lines that nobody took, by log: `requests`, and `decisions` where there is one.
    """

    @property
    def state(self) -> str: ...
    @property
    def listen(self) -> list[str]: ...
    @property
    def started_at(self) -> float: ...
    @property
    def uptime_s(self) -> int: ...
    @property
    def dropped_log_lines(self) -> Mapping[str, int]: ...


class Thread(Protocol):
    """A thread for calls that may block for long, one after the other."""

    def start(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call there; its result or exception comes back. Cancelling the future does not stop the call."""
        ...


class Spool(Protocol):
    """A file for one request body. `write` and `read` may wait for the disk: call them on a thread."""

    def write(self, data: bytes, offset: int) -> None:
        """Write all of it, or raise `OSError`."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from there on, none at the end; or raise `OSError`."""
        ...

    def close(self) -> None:
        """Give the file up, at any time, more than once."""
        ...
