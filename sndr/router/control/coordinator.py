"""The one writer of the routes: feeds the pure machine, performs what it asks for, and remembers nothing else.

All of it runs on the event loop. A step and the effects that need no waiting are one synchronous turn, so no reader
ever sees half of one, and no two commands interleave: the machine's state is the lock. What takes time (a probe, a
drain, the disk) is started and forgotten; its fact comes back with the ticket it was asked under, and a fact that
nobody waits for any more changes nothing. During a drain the machine is at rest for everybody else: a cancel is heard
at once, and whatever was true before the wait is looked at again after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from sndr.errors import AuthorityError
from sndr.router.core import effects as fx
from sndr.router.core.effects import Code
from sndr.router.core.projection import Tier
from sndr.router.core.readiness import Observation, Reason
from sndr.router.core.receipt import Record
from sndr.router.core.transaction import Machine, State, next_actions, step
from sndr.router.ports import Authority, Clock, EventLog, Gate, Ledger, Prober, Publisher

__all__ = ["CALM_S", "Coordinator", "Outcome", "identity_failure", "is_exact"]

CALM_S: Final = 3.0
"""How long a command waits for another one's step to end before it is told that management is busy."""

DRAIN_LOOK_S: Final = 0.25
ROWS_LOOK_S: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25)
ROWS_LEAST_S: Final = 2.0
"""How long rows of ended requests may take to become durable, however little of the drain's time is left."""
VERIFY_LOOK_S: Final = 0.25

_CALM: Final = frozenset(
    {State.STOPPED, State.IDLE, State.HELD, State.COMMITTED, State.UNCERTAIN, State.DRAINING, State.COUNTING}
)

_UNAVAILABLE: Final = frozenset(
    {
        Reason.NOT_PROBED,
        Reason.UNREACHABLE,
        Reason.TIMEOUT,
        Reason.PROTOCOL,
        Reason.HEALTH_STATUS,
        Reason.IDENTITY_STATUS,
        Reason.NO_RESOURCES,
    }
)


_Found = TypeVar("_Found")
_RESULTS: Final[Mapping[type[fx.Fact], str]] = {
    fx.Written: "done",
    fx.WriteFailed: "failed",
    fx.WriteUncertain: "uncertain",
    fx.WriteRefused: "refused",
}
"""What became of a durable write, as it is counted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answer to one command.

    Attributes:
        code: Why it did not do what it asked for; None when it did.
        machine: As it was when the answer was given.
        taken: The machine took the command up; False when it was refused without any effect.
    """

    code: Code | None
    machine: Machine
    taken: bool


def is_exact(seen: Observation) -> bool:
    """Whether a probe proved health and the exact served model."""
    return seen.passed and seen.reason is Reason.IDENTITY_PASSED


def identity_failure(seen: Sequence[Observation]) -> Code | None:
    """What stands against the targets' identity; a wrong answer counts more than none. None when all proved theirs."""
    failed = [one for one in seen if not is_exact(one)]
    if not failed:
        return None
    wrong = any(one.reason not in _UNAVAILABLE for one in failed)
    return Code.IDENTITY_MISMATCH if wrong else Code.IDENTITY_UNAVAILABLE


class Coordinator:
    """Interpreter of the machine's effects.

    Attributes:
        machine: Everything the authority remembers; replaced as a whole, safe to keep and to read.
        writes: Durable writes by result.
    """

    def __init__(
        self,
        *,
        authority: Authority,
        gate: Gate,
        publisher: Publisher,
        prober: Prober,
        ledger: Ledger,
        clock: Clock,
        log: EventLog,
    ) -> None:
        self.machine = Machine()
        self.writes: dict[str, int] = {}
        self._authority = authority
        self._gate = gate
        self._publisher = publisher
        self._prober = prober
        self._ledger = ledger
        self._clock = clock
        self._log = log
        self._events: deque[fx.Event] = deque()
        self._stepping = False
        self._serving = False
        self._refused: Code | None = None
        self._callers: dict[str, asyncio.Future[Outcome]] = {}
        self._waits: dict[int, asyncio.Task[fx.Fact]] = {}
        self._turn: asyncio.Future[None] | None = None
        self._at_hold = 0
        self._told: dict[str, int] = {}
        self._drain_ends_ms = 0
        self._stopped = asyncio.Event()

    # -- from outside -------------------------------------------------------------------------------------------------

    def open(self, record: Record) -> None:
        """Begin with a record that the store has made durable: holds in force, then published; before listening.

        Raises:
            AuthorityError: The machine refuses to serve.
        """
        receipt = record.transaction
        if receipt is not None and receipt.events:
            self._told = {receipt.id: receipt.events[-1].seq}  # an earlier process has said it
        self._dispatch(fx.Open(record, self._clock.wall_ms()))
        if not self._serving:
            raise AuthorityError("route_state_unsafe", f"the authority cannot be served: {self._refused}")

    async def submit(self, command: fx.Command) -> Outcome:
        """Carry out a command; returns when it is done or refused, however many waits that takes.

        A caller that stops waiting changes nothing about the transaction.
        """
        await self.calm()
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._callers[command.call.id] = answer
        self._dispatch(command)
        return await answer

    async def stop(self) -> None:
        """End every wait, let a write in flight end, and return once nothing is."""
        self._dispatch(fx.Shutdown())
        await self._stopped.wait()

    async def visible(self) -> Record:
        """What the file shows now.

        Raises:
            AuthorityError: It is not what this process left there.
            OSError: The disk failed.
        """
        return await _answered(self._authority.visible)

    async def check(self) -> str:
        """Condition of the file, looked at now; changes nothing.

        Raises:
            OSError: The disk failed.
        """
        return await _answered(self._authority.check)

    @property
    def condition(self) -> str:
        """Of the authority file, as of the last write."""
        return self._authority.condition

    @property
    def last_write(self) -> str | None:
        """How the last write ended."""
        return self._authority.last_write

    async def observe(self, tiers: Collection[str]) -> tuple[Observation, ...]:
        """Probe the current generation of these tiers, past every cache, all at the same time; nothing is kept."""
        runtimes = self._gate.snapshot.runtimes
        return await self.probe([runtimes[tier_id].spec for tier_id in tiers])

    async def probe(self, specs: Sequence[Tier]) -> tuple[Observation, ...]:
        """Probe definitions, current or not, all at the same time; nothing is kept."""
        return tuple(await asyncio.gather(*(self._prober.probe(spec) for spec in specs)))

    def leases(self, scope: Collection[str]) -> int:
        """Requests that are bound to these tiers, over all generations."""
        return sum(self._gate.leases(tier_id) for tier_id in scope)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _dispatch(self, event: fx.Event) -> None:
        """Take an event, and every one that follows from it at once."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                before = self.machine
                self.machine, effects = step(before, self._events.popleft())
                for effect in effects:
                    self._perform(effect, changed=self.machine is not before)
                if self.machine is not before:
                    self._report(before)
        finally:
            self._stepping = False
        if self._turn is not None and self.machine.state in _CALM:
            self._turn.set_result(None)
            self._turn = None

    async def calm(self) -> None:
        """Wait, not for long, until no other command is in the middle of something that will end by itself."""
        if self.machine.state in _CALM:
            return
        try:
            async with asyncio.timeout(CALM_S):
                while self.machine.state not in _CALM:
                    if self._turn is None:
                        self._turn = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._turn)
        except TimeoutError:
            pass

    def _perform(self, effect: fx.Effect, *, changed: bool) -> None:
        match effect:
            case fx.CloseGate(scope=scope):
                for tier_id in scope:
                    self._gate.hold(tier_id)
                self._at_hold = self.leases(scope)
            case fx.OpenGate(scope=scope):
                for tier_id in scope:
                    self._gate.unhold(tier_id)
            case fx.Publish(revision=revision, replaced=replaced):
                self._publisher.publish(revision, replaced)
            case fx.Retire():
                pass  # publishing retires what it replaces, in the same synchronous step
            case fx.AbandonWait(ticket=ticket):
                task = self._waits.pop(ticket, None)
                if task is not None:
                    task.cancel()
            case fx.Reply(call_id=call_id, code=code):
                answer = self._callers.pop(call_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(Outcome(code, self.machine, changed))
            case fx.Serve():
                self._serving = True
            case fx.Refuse(code=code):
                self._refused = code
            case fx.Stop():
                self._stopped.set()
            case fx.Proceed(event=event):
                self._events.appendleft(event)
            case fx.CheckAdmitting(ticket=ticket, tiers=tiers):
                self._events.appendleft(self._admitting(ticket, tiers))
            case fx.Persist():
                self._authority.persist(effect, self._persisted)
            case _:
                self._begin(effect)

    def _persisted(self, fact: fx.Fact) -> None:
        result = _RESULTS[type(fact)]
        self.writes[result] = self.writes.get(result, 0) + 1
        self._feed(fact)

    def _feed(self, fact: fx.Fact) -> None:
        self._dispatch(replace(fact, at_ms=self._clock.wall_ms()))

    def _admitting(self, ticket: int, tiers: Sequence[str]) -> fx.Fact:
        runtimes = self._gate.snapshot.runtimes
        at_ms = self._clock.wall_ms()
        if all(runtimes[tier_id].admitting for tier_id in tiers):
            return fx.TargetsAdmitting(ticket, at_ms)
        return fx.TargetsNotAdmitting(ticket, at_ms)

    # -- what takes time ----------------------------------------------------------------------------------------------

    def _begin(self, effect: fx.Effect) -> None:
        """Start what an effect waits for; should that break, the machine is told so as a plain failure."""
        work: Coroutine[Any, Any, fx.Fact]
        broken: fx.Fact
        match effect:
            case fx.ProbeReady(ticket=ticket):
                work, broken = self._probe_ready(effect), fx.TargetsUnready(ticket)
            case fx.Precheck(ticket=ticket):
                work, broken = self._precheck(effect), fx.PrecheckFailed(ticket)
            case fx.AwaitLeases(ticket=ticket):
                work, broken = self._await_leases(effect), fx.DrainTimedOut(ticket, self._at_hold)
            case fx.CountRows(ticket=ticket):
                work, broken = self._count_rows(effect), fx.RowsUnresolved(ticket, leases=1)
            case fx.ProbeIdentity(ticket=ticket):
                work, broken = self._probe_identity(effect), fx.IdentityFailed(ticket, Code.IDENTITY_UNAVAILABLE)
            case _:
                raise AssertionError(f"no interpretation of {effect}")
        task = asyncio.get_running_loop().create_task(work)
        self._waits[ticket] = task
        task.add_done_callback(lambda done: self._ended(ticket, done, broken))

    def _ended(self, ticket: int, task: asyncio.Task[fx.Fact], broken: fx.Fact) -> None:
        self._waits.pop(ticket, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log("internal_error", {"kind": type(error).__name__, "where": "coordinator"})
        self._feed(broken if error is not None else task.result())

    async def _probe_ready(self, effect: fx.ProbeReady) -> fx.Fact:
        seen = await self.probe([tier for _, tier in effect.targets])
        runtimes = self._gate.snapshot.runtimes
        for (tier_id, _), one in zip(effect.targets, seen, strict=True):
            # Proven now, so routable now; one failed probe of ours is no reason to eject what serves others.
            if one.passed and not self._prober.state(tier_id, runtimes[tier_id].generation).ready:
                self._prober.note(tier_id, runtimes[tier_id].generation, one)
        if all(one.passed for one in seen):
            return fx.TargetsReady(effect.ticket)
        return fx.TargetsUnready(effect.ticket)

    async def _precheck(self, effect: fx.Precheck) -> fx.Fact:
        seen = await self.probe([tier for _, tier in effect.targets])
        if identity_failure(seen) is None:
            return fx.PrecheckPassed(effect.ticket)
        return fx.PrecheckFailed(effect.ticket)

    async def _probe_identity(self, effect: fx.ProbeIdentity) -> fx.Fact:
        """A wrong answer ends it at once; a server that does not answer has until the deadline to do so."""
        runtimes = self._gate.snapshot.runtimes
        targets = [(tier_id, runtimes[tier_id].generation) for tier_id, _ in effect.targets]
        ends_ms = self._clock.elapsed_ms() + effect.timeout_ms
        while True:
            seen = await asyncio.gather(*(self._prober.prove(*target) for target in targets))
            failure = identity_failure(seen)
            if failure is None:
                proven = [tier.model for _, tier in effect.targets if tier.model is not None]  # the others may not fit
                observed = dict.fromkeys([*proven, *(name for one in seen for name in one.models)])
                return fx.IdentityProved(effect.ticket, tuple(observed))
            left_s = (ends_ms - self._clock.elapsed_ms()) / 1000
            if failure is Code.IDENTITY_MISMATCH or left_s <= 0:
                return fx.IdentityFailed(effect.ticket, failure)
            await asyncio.sleep(min(VERIFY_LOOK_S, left_s))

    async def _await_leases(self, effect: fx.AwaitLeases) -> fx.Fact:
        """Watch the scope become idle; nobody is hurried."""
        clock, ticket, at_hold = self._clock, effect.ticket, self._at_hold
        self._drain_ends_ms = clock.elapsed_ms() + effect.timeout_ms
        reported = left = self.leases(effect.scope)
        while left:
            if left != reported:
                reported = left
                self._feed(fx.DrainProgressed(ticket, at_hold, at_hold - left))
            left_s = (self._drain_ends_ms - clock.elapsed_ms()) / 1000
            if left_s <= 0:
                return fx.DrainTimedOut(ticket, at_hold, at_hold - left)
            busy = next(tier_id for tier_id in effect.scope if self._gate.leases(tier_id))
            await self._gate.wait_idle(busy, min(DRAIN_LOOK_S, left_s))
            left = self.leases(effect.scope)
        return fx.LeasesReleased(ticket, at_hold, at_hold)

    async def _count_rows(self, effect: fx.CountRows) -> fx.Fact:
        """Leases first, rows second; waits only for rows that are on their way to the disk."""
        ends_ms = self._clock.elapsed_ms()
        if effect.wait_ms:
            ends_ms = max(self._drain_ends_ms, ends_ms + min(effect.wait_ms, int(ROWS_LEAST_S * 1000)))
        looks = iter(ROWS_LOOK_S)
        while True:
            leases = self.leases(effect.scope)
            rows = self._ledger.unresolved(effect.scope)
            if not leases and not rows.total:
                return fx.RowsResolved(effect.ticket)
            comes = leases or rows.total > rows.earlier + rows.failed
            left_s = (ends_ms - self._clock.elapsed_ms()) / 1000
            if not comes or left_s <= 0:
                return fx.RowsUnresolved(effect.ticket, leases, rows.total, rows.unassociated)
            await asyncio.sleep(min(next(looks, ROWS_LOOK_S[-1]), left_s))

    # -- words for the log --------------------------------------------------------------------------------------------

    def _report(self, before: Machine) -> None:
        """One line for each transition that an operator would ask about: ids and codes, nothing else."""
        after = self.machine
        receipt = after.receipt
        # An event counts once it is durable: the machine notes some before they are.
        if receipt is not None and receipt.events and after.attempt is None:
            last = receipt.events[-1]
            if self._told.get(receipt.id, 0) < last.seq:
                self._told = {**dict(list(self._told.items())[-1:]), receipt.id: last.seq}
                self._log(
                    "transaction",
                    {"id": receipt.id, "op": receipt.op.value, "state": receipt.state.value, "code": last.code},
                )
        attention = after.attention
        if attention is not None and attention != before.attention:
            fields = {"code": attention.code.value, "state": after.standing.value, "next": list(next_actions(after))}
            self._log("attention", {**fields, "transaction": None if receipt is None else receipt.id})


async def _answered(ask: Callable[[Callable[[_Found | Exception], None]], None]) -> _Found:
    """What the authority's thread answers; its exception comes back here."""
    answer: asyncio.Future[_Found | Exception] = asyncio.get_running_loop().create_future()
    ask(lambda found: None if answer.done() else answer.set_result(found))
    found = await answer
    if isinstance(found, Exception):
        raise found
    return found
