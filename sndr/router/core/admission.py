"""Who may start, who waits, and when a tier is idle: pure bookkeeping, one synchronous step per call.

Three objects per tier. A `TierGate` carries the two independent bits that close a tier, the operator's and the
transaction's, and outlives every change of the tier's definition. A `TierRuntime` is one generation of a tier: its
leases, its concurrency slots and its queue; a replacement makes a new one and retires the old for ever. A `Lease` is
one admitted request.

A request holds a concurrency slot until its last byte is delivered and a lease until its terminal row was handed to
the ledger, so a tier without leases has nobody left who could write. Waiters in the queue hold neither: closing a gate
turns them away, and they learn why.

Nothing here waits, reads a clock or touches the loop. Callers act on what is returned.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from sndr.router.core.projection import Tier

__all__ = ["Admission", "Lease", "Refusal", "TierGate", "TierRuntime", "Waiter"]


class Refusal(StrEnum):
    """Why a request got neither a lease nor a place in the queue; the values are the public error codes."""

    QUIESCED = "quiesced"
    HELD = "held"
    RETIRED = "retired"
    """Never public: the caller resolves the alias again, the tier has a newer generation."""
    MOVED = "moved"
    """Never public: the caller resolves the alias again, some alias of the tier leads elsewhere now."""
    QUEUE_FULL = "queue_full"


class Waiter(Protocol):
    """A request in the queue. Exactly one of the two is called, once, and the waiter is out of the queue by then."""

    def admitted(self, lease: Lease) -> None:
        """A slot became free; the lease is already counted."""
        ...

    def turned_away(self, refusal: Refusal) -> None:
        """The gate was closed, or the runtime was retired."""
        ...


class TierGate:
    """The two bits that close a tier, each with its own owner.

    Attributes:
        tier_id: The tier, across all its generations.
        quiesced: The operator's bit.
        quiesce_reason: Reason code the operator gave; None while the bit is off.
        held: The transaction's bit.
        leases: Requests of all generations that have not been accounted for yet.
    """

    __slots__ = ("held", "leases", "quiesce_reason", "quiesced", "tier_id")

    def __init__(self, tier_id: str) -> None:
        self.tier_id: Final = tier_id
        self.quiesced = False
        self.quiesce_reason: str | None = None
        self.held = False
        self.leases = 0

    @property
    def refusal(self) -> Refusal | None:
        """Why nobody may start now; the operator's bit is named first."""
        if self.quiesced:
            return Refusal.QUIESCED
        return Refusal.HELD if self.held else None


class TierRuntime:
    """One generation of one tier.

    Attributes:
        tier_id: The tier.
        generation: Revision at which this runtime was built; 1 without authority.
        spec: The tier's definition; never changes.
        gate: Bits shared by all generations of the tier.
        upstream: What the data plane built for this definition (address, head bytes, pool); opaque here.
        leases: Requests bound to this runtime that have not been accounted for yet.
        running: Requests that occupy a concurrency slot.
        limit: Concurrency slots; None is no limit.
        queue_limit: Places in the queue.
        retired: A newer generation took over; no lease is ever given again.
    """

    __slots__ = (
        "_idle",
        "_owner",
        "_queue",
        "gate",
        "generation",
        "leases",
        "limit",
        "queue_limit",
        "retired",
        "running",
        "spec",
        "tier_id",
        "upstream",
    )  # fmt: skip

    def __init__(
        self, owner: Admission, spec: Tier, *, tier_id: str, generation: int, queue_limit: int, upstream: object
    ) -> None:
        self._owner = owner
        self._queue: deque[Waiter] = deque()
        self.tier_id: Final = tier_id
        self.generation: Final = generation
        self.spec: Final = spec
        self.gate: Final = owner.gate(tier_id)
        self.upstream: Final = upstream
        self.leases = 0
        self.running = 0
        self.limit: Final = spec.max_concurrency
        self.queue_limit: Final = queue_limit
        self.retired = False

    @property
    def queued(self) -> int:
        """Requests waiting for a slot."""
        return len(self._queue)

    @property
    def admitting(self) -> bool:
        """Whether a request could start or queue here now (readiness is another question)."""
        return not (self.retired or self.gate.quiesced or self.gate.held)

    @property
    def full(self) -> bool:
        """Whether every slot and every place in the queue is taken."""
        return self.limit is not None and self.running >= self.limit and len(self._queue) >= self.queue_limit

    def acquire(self, waiter: Waiter) -> Lease | Refusal | None:
        """Check every bit, then count: one step that nothing can interleave.

        Args:
            waiter: Put into the queue when all slots are taken.

        Returns:
            The lease; why there is none; or None when `waiter` was queued.
        """
        gate = self.gate
        if gate.quiesced:
            return Refusal.QUIESCED
        if gate.held:
            return Refusal.HELD
        if self.retired:
            return Refusal.RETIRED
        if self.limit is not None and (self.running >= self.limit or self._queue):
            if len(self._queue) >= self.queue_limit:
                return Refusal.QUEUE_FULL
            self._queue.append(waiter)
            return None
        return self._grant()

    def leave(self, waiter: Waiter) -> bool:
        """Take a waiter out of the queue (it gave up); False when it was not there any more."""
        try:
            self._queue.remove(waiter)
        except ValueError:
            return False
        return True

    def retire(self) -> None:
        """Give no lease any more; waiters are turned away with `RETIRED` and resolve again."""
        self.retired = True
        self.turn_away(Refusal.RETIRED)

    def turn_away(self, refusal: Refusal) -> None:
        """Empty the queue."""
        waiting, self._queue = self._queue, deque()
        for waiter in waiting:
            waiter.turned_away(refusal)

    def _grant(self) -> Lease:
        self.leases += 1
        self.running += 1
        self.gate.leases += 1
        owner = self._owner
        owner.leases += 1
        owner.seq += 1
        return Lease(self, owner.seq)

    def _pass_on(self) -> None:
        while self._queue and (self.limit is None or self.running < self.limit):
            waiter = self._queue.popleft()
            waiter.admitted(self._grant())


class Lease:
    """One admitted request's claim on a tier runtime.

    Attributes:
        runtime: What the request is bound to until its end.
        admission_seq: Position among all admissions and releases of this process.
        release_seq: The same for its release; None until numbered.
    """

    __slots__ = ("_delivered", "_released", "admission_seq", "release_seq", "runtime")

    def __init__(self, runtime: TierRuntime, admission_seq: int) -> None:
        self.runtime: Final = runtime
        self.admission_seq: Final = admission_seq
        self.release_seq: int | None = None
        self._delivered = False
        self._released = False

    def delivered(self) -> None:
        """Free the concurrency slot; the longest waiter gets it at once. Repeating does nothing."""
        if self._delivered:
            return
        self._delivered = True
        runtime = self.runtime
        runtime.running -= 1
        if runtime._queue:
            runtime._pass_on()

    def next_release_seq(self) -> int:
        """Number the release that is about to happen, for the terminal row. Call once, right before `release`."""
        owner = self.runtime._owner
        owner.seq += 1
        self.release_seq = owner.seq
        return self.release_seq

    def release(self) -> None:
        """Give the lease back: the request's terminal row has been handed over.

        Raises:
            AssertionError: On a second release; counters would lie from then on.
        """
        runtime = self.runtime
        owner = runtime._owner
        if self._released:
            raise AssertionError("a lease is released exactly once")
        self._released = True
        if not self._delivered:
            self.delivered()
        runtime.leases -= 1
        runtime.gate.leases -= 1
        owner.leases -= 1
        if not runtime.leases and owner.on_idle is not None:
            owner.on_idle(runtime)


class IdleListener(Protocol):
    """Told when a runtime's last lease is released."""

    def __call__(self, runtime: TierRuntime) -> None: ...


class Admission:
    """All gates of a process, and the counter that numbers its admissions and releases.

    One counter for both, so that the ledger's rows say who was in flight at any admission.

    Attributes:
        leases: Sum over every runtime, retired ones included.
        seq: Number of the newest admission or release.
        on_idle: Called when a runtime's last lease is released; a drain listens here.
    """

    __slots__ = ("_gates", "leases", "on_idle", "seq")

    def __init__(self) -> None:
        self._gates: dict[str, TierGate] = {}
        self.leases = 0
        self.seq = 0
        self.on_idle: IdleListener | None = None

    def gate(self, tier_id: str) -> TierGate:
        """The gate of a tier; the same object for ever."""
        gate = self._gates.get(tier_id)
        if gate is None:
            gate = self._gates[tier_id] = TierGate(tier_id)
        return gate

    def quiesce(self, runtime: TierRuntime, reason: str | None) -> None:
        """Set the operator's bit and turn the queue away."""
        runtime.gate.quiesced = True
        runtime.gate.quiesce_reason = reason
        runtime.turn_away(Refusal.QUIESCED)

    def readmit(self, runtime: TierRuntime) -> None:
        """Clear the operator's bit; the transaction's is not touched."""
        runtime.gate.quiesced = False
        runtime.gate.quiesce_reason = None

    def hold(self, runtime: TierRuntime) -> None:
        """Set the transaction's bit and turn the queue away."""
        runtime.gate.held = True
        runtime.turn_away(Refusal.QUIESCED if runtime.gate.quiesced else Refusal.HELD)

    def unhold(self, runtime: TierRuntime) -> None:
        """Clear the transaction's bit; the operator's is not touched."""
        runtime.gate.held = False
