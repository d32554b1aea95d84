"""Admission as a machine: whatever happens in whatever order, the counters are the truth."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sndr.router.core.admission import Admission, Lease, Refusal, TierRuntime
from sndr.router.core.projection import Tier

SPEC = Tier(base_url="http://127.0.0.1:1/v1", max_concurrency=2)
QUEUE = 2


class Waiting:
    """A request: in the queue, admitted or turned away, at most one of the last two and only once."""

    def __init__(self, machine: AdmissionMachine) -> None:
        self.machine = machine
        self.lease: Lease | None = None
        self.refusal: Refusal | None = None

    def admitted(self, lease: Lease) -> None:
        assert self.lease is None
        assert self.refusal is None
        self.lease = lease
        self.machine.queued.remove(self)
        self.machine.active.append(self)

    def turned_away(self, refusal: Refusal) -> None:
        assert self.lease is None
        assert self.refusal is None
        self.refusal = refusal
        self.machine.queued.remove(self)


class AdmissionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission()
        self.idle: list[TierRuntime] = []
        self.admission.on_idle = self.idle.append
        self.runtime = self.build(1)
        self.old: list[TierRuntime] = []
        self.active: list[Waiting] = []
        self.delivered: list[Waiting] = []
        self.queued: list[Waiting] = []

    def build(self, generation: int) -> TierRuntime:
        return TierRuntime(self.admission, SPEC, tier_id="t", generation=generation, queue_limit=QUEUE, upstream=None)

    @rule()
    def arrive(self) -> None:
        waiting = Waiting(self)
        gate, runtime = self.runtime.gate, self.runtime
        free = runtime.running < 2 and not self.queued
        self.queued.append(waiting)
        result = runtime.acquire(waiting)
        if result is not None:
            self.queued.remove(waiting)
        if gate.quiesced:
            assert result is Refusal.QUIESCED
        elif gate.held:
            assert result is Refusal.HELD
        elif free:
            assert isinstance(result, Lease)
            waiting.lease = result
            self.active.append(waiting)
        elif len(self.queued) > QUEUE or (result is Refusal.QUEUE_FULL):
            assert result is Refusal.QUEUE_FULL
            assert len(self.queued) == QUEUE
        else:
            assert result is None

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        waiting = data.draw(st.sampled_from(self.active))
        first = self.queued[0] if self.queued and waiting.lease.runtime is self.runtime else None  # type: ignore[union-attr]
        self.active.remove(waiting)
        self.delivered.append(waiting)
        assert waiting.lease is not None
        waiting.lease.delivered()
        waiting.lease.delivered()
        if first is not None:
            assert first.lease is not None  # first come, first served

    @precondition(lambda self: self.active or self.delivered)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        waiting = data.draw(st.sampled_from(self.active + self.delivered))
        (self.active if waiting in self.active else self.delivered).remove(waiting)
        assert waiting.lease is not None
        runtime = waiting.lease.runtime
        self.idle.clear()
        waiting.lease.release()
        assert (runtime in self.idle) == (runtime.leases == 0)
        with pytest.raises(AssertionError):
            waiting.lease.release()

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        waiting = data.draw(st.sampled_from(self.queued))
        assert self.runtime.leave(waiting)
        self.queued.remove(waiting)
        assert not self.runtime.leave(waiting)

    @rule(on=st.booleans())
    def quiesce(self, on: bool) -> None:
        held = self.runtime.gate.held
        if on:
            self.admission.quiesce(self.runtime, "why")
            assert not self.queued
        else:
            self.admission.readmit(self.runtime)
        assert self.runtime.gate.held == held

    @rule(on=st.booleans())
    def hold(self, on: bool) -> None:
        quiesced = self.runtime.gate.quiesced
        if on:
            self.admission.hold(self.runtime)
            assert not self.queued
        else:
            self.admission.unhold(self.runtime)
        assert self.runtime.gate.quiesced == quiesced

    @precondition(lambda self: len(self.old) < 3)
    @rule()
    def replace(self) -> None:
        old, self.runtime = self.runtime, self.build(self.runtime.generation + 1)
        self.old.append(old)
        old.retire()
        assert not self.queued
        result = old.acquire(Waiting(self))
        assert isinstance(result, Refusal)
        assert self.runtime.gate is old.gate  # both bits outlive the generation

    @invariant()
    def counters_are_the_truth(self) -> None:
        holders = self.active + self.delivered
        for runtime in [self.runtime, *self.old]:
            leases = sum(waiting.lease is not None and waiting.lease.runtime is runtime for waiting in holders)
            running = sum(waiting.lease is not None and waiting.lease.runtime is runtime for waiting in self.active)
            assert runtime.leases == leases
            assert runtime.running == running <= 2
        assert self.runtime.queued == len(self.queued)
        assert self.admission.leases == len(holders)
        assert not self.queued or self.runtime.running == 2


TestAdmission = AdmissionMachine.TestCase
