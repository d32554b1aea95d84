"""A small world around the real machine, for searching all of it.

It holds what the machine itself must not know: what is on disk and what of it survives a power loss, which gates are
closed, who holds a lease, which usage rows are open, what the upstream of a tier really serves. `moves` lists all that
could happen next. A rule that is broken raises `Violation` with the invariant's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core import transaction as tr
from sndr.router.core.invariants import check_machine, check_record, check_step
from sndr.router.core.projection import (
    FamilyTarget,
    OnUnready,
    Projection,
    Target,
    TierTarget,
    changed_tiers,
    sha256,
    tier_of,
)
from sndr.router.core.proposal import propose
from sndr.router.core.transaction import Machine, State, next_actions
from tests.support.machine import PREVIEW, boot, record

TIERS = ("a", "b")
FAMILIES = (FamilyTarget("f", "a", OnUnready.REFUSE), FamilyTarget("f", "b", OnUnready.REFUSE))
MODELS = {"a": ("m1", "m2"), "b": ("n1", "n2")}
_ACTION = {
    fx.Drain: "drain",
    fx.Resume: "resume",
    fx.Cancel: "cancel",
    fx.Verify: "verify",
    fx.RollBack: "rollback",
    fx.Reassert: "reassert",
}
Step = Callable[[Machine, fx.Event], tuple[Machine, tuple[fx.Effect, ...]]]


class Violation(Exception):  # noqa: N818 - it is a finding that travels, not a fault of the program
    """A rule is broken; the search prints how it came to that."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


@dataclass(frozen=True)
class Bounds:
    """How much world there is.

    With `families`, alias x may become a model family's: it asks for its natural tier, and its requests resolve to any
    tier, whatever the routing table says of them.
    """

    revisions: int = 3
    requests: int = 1
    aliases: bool = True
    families: bool = False
    both_tiers: bool = True
    prepares: bool = True
    upstream: tuple[str, ...] = ("m1", "m2", "")
    second_upstream: bool = False
    quiesce: bool = False
    kill: bool = True
    power: bool = True
    uncertain: bool = True
    refused: bool = False
    shutdown: bool = False
    orphans: bool = True
    timeouts: bool = True
    misuse: bool = True


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault: a changed step, or a flag that the world around it obeys.

    `structural` adds the rules of one step and of the machine's memory to those of the world; a mutant should be caught
    without them, by what goes wrong outside.
    """

    name: str
    invariant: str
    step: Step = tr.step
    flags: frozenset[str] = frozenset()
    bounds: Bounds = field(default_factory=Bounds)
    structural: bool = False


SOUND = Mutant("design", "", structural=True)


class Lease(NamedTuple):
    """One request: `r` resolved, `l` holding a lease and an open row, `d` delivered with its row not yet durable."""

    phase: str
    tier: str
    generation: int


class World(NamedTuple):
    """Everything at one instant."""

    machine: Machine | None
    ask: fx.Effect | None
    renamed: bool
    visible: rc.Record
    survivors: tuple[rc.Record, ...]
    torn: bool
    closed: frozenset[str]
    snapshot: rc.Revision | None
    serving: bool
    generations: tuple[int, int]
    requests: tuple[Lease, ...]
    orphans: frozenset[str]
    upstream: str
    second: bool
    quiesced: bool
    proved: bool
    seen: int
    pairs: tuple[tuple[int, str], ...]
    last: fx.Command | None
    spent: bool


def beginning() -> World:
    """An authority that was initialised and never started."""
    return World(
        machine=None,
        ask=None,
        renamed=False,
        visible=record(),
        survivors=(),
        torn=False,
        closed=frozenset(),
        snapshot=None,
        serving=False,
        generations=(1, 1),
        requests=(),
        orphans=frozenset(),
        upstream="m1",
        second=True,
        quiesced=False,
        proved=False,
        seen=0,
        pairs=(),
        last=None,
        spent=False,
    )


# --- one name for all worlds that behave alike


def _record_key(given: rc.Record | None) -> object:
    if given is None:
        return None
    receipt, previous = given.transaction, given.previous
    return (
        given.current.route_revision,
        given.current.effective_route_sha256,
        previous and (previous.route_revision, previous.effective_route_sha256),
        receipt and (receipt.op, receipt.state, receipt.scope, receipt.proposed_sha256, receipt.parent_id is None),
    )


def _bound(machine: Machine, command: fx.Command) -> bool:
    call = command.call
    return machine.record is not None and (call.write_seq, call.attention_seq) == (
        machine.record.write_seq,
        machine.attention_seq,
    )


def key(world: World) -> object:
    """Equal for worlds that no later move can tell apart: counters, ids and times are left out."""
    machine = world.machine
    if machine is None:
        inside: object = None
    else:
        task = machine.task
        inside = (
            machine.state,
            _record_key(machine.record),
            machine.published and machine.published.route_revision,
            machine.gated,
            task and (type(task), getattr(task, "prepares", None), getattr(task, "accepts_unready", None)),
            machine.receipt and machine.receipt.proposed_sha256,
            _record_key(machine.attempt),
            frozenset(map(_record_key, machine.maybe)),
            _record_key(machine.fallback),
            machine.failure,
            machine.attention and machine.attention.code,
            machine.max_attempted,
            machine.stopping,
        )
    replayable = machine is not None and world.last is not None and _bound(machine, world.last)
    return (
        inside,
        type(world.ask),
        world.renamed,
        _record_key(world.visible),
        tuple(sorted(map(_record_key, world.survivors), key=repr)) if world.survivors else (),
        world.torn,
        world.closed,
        world.snapshot and world.snapshot.route_revision,
        world.serving,
        world.generations,
        world.requests,
        world.orphans,
        world.upstream,
        world.second,
        world.quiesced,
        world.proved,
        world.seen,
        world.pairs,
        type(world.last) if replayable else None,
        world.spent,
    )


# --- memory for pure functions: the same few projections come again and again

_proposed: dict[object, Projection] = {}
_hashes: dict[int, str] = {}
_kept: list[Projection] = []
_sound_records: dict[object, tuple[object, ...]] = {}


def _propose(given: rc.Record, change: rc.ChangeSpec, *, managed: bool = False) -> Projection:
    match change:
        case rc.AliasUpdate(aliases=aliases):
            part: object = tuple(aliases.items())
        case rc.TierReplacement(tiers=tiers):
            part = tuple((tier, tuple(patch.items())) for tier, patch in tiers.items())
        case rc.Rollback():
            return propose(given, change)
    name = (given.current.effective_route_sha256, part)
    if name not in _proposed:
        _proposed[name] = propose(given, change, managed=managed)
    return _proposed[name]


def _sha256(projection: Projection) -> str:
    found = _hashes.get(id(projection))
    if found is None:
        found = sha256(projection)
        _hashes[id(projection)] = found
        _kept.append(projection)
    return found


def remember_pure_results(patch: Callable[[object, str, object], None]) -> None:
    """Let the machine use the memory above."""
    patch(tr, "propose", _propose)
    patch(tr, "sha256", _sha256)


def _check_written(given: rc.Record) -> None:
    receipt = given.transaction
    name = (_record_key(given), receipt and (receipt.base, receipt.committed_revision, receipt.hold))
    if name not in _sound_records:
        _sound_records[name] = check_record(given, boot())
    if _sound_records[name]:
        raise Violation("INV-14", f"a record that startup would refuse: {_sound_records[name]}")


# --- performing what the machine asks for


def _holds(given: rc.Record, tier: str) -> bool:
    receipt = given.transaction
    return receipt is not None and receipt.hold and tier in receipt.scope


def feed(world: World, event: fx.Event, mutant: Mutant) -> World:
    """Give the machine one event and perform its effects in order."""
    before = world.machine
    assert before is not None
    machine, effects = mutant.step(before, event)
    if machine is before:
        return world
    if isinstance(event, fx.Command):
        world = _accepted(world, before, event)
    if mutant.structural:
        for finding in check_step(before, event, machine, effects):
            raise Violation(finding.code, finding.message)
    if machine.ticket != before.ticket:
        world = world._replace(machine=machine, ask=None, renamed=False)
    else:
        world = world._replace(machine=machine)
    for effect in effects:
        world = _perform(world, effect, mutant)
    if mutant.structural and world.machine is not None:
        for finding in check_machine(world.machine):
            raise Violation(finding.code, finding.message)
    return world


def _accepted(world: World, before: Machine, command: fx.Command) -> World:
    """A command took effect: it must have been entitled to."""
    if command is world.last and (world.spent or not _bound(before, command)):
        raise Violation("INV-17", f"{type(command).__name__} executed twice for one preview")
    if before.attention is not None and not command.call.recovers:
        raise Violation("INV-18", f"{type(command).__name__} accepted under attention without a recover preview")
    if not _bound(before, command):
        raise Violation("INV-18", f"{type(command).__name__} accepted on a preview older than the last event")
    return world._replace(last=command, spent=False, proved=False)


def _perform(world: World, effect: fx.Effect, mutant: Mutant) -> World:
    match effect:
        case fx.CloseGate(scope=scope):
            return world._replace(closed=world.closed | set(scope), proved=False)
        case fx.OpenGate(scope=scope):
            return _open(world, scope, mutant)
        case fx.Publish(revision=revision, replaced=replaced):
            return _swap(world, revision, replaced, mutant)
        case fx.Serve():
            return world._replace(serving=True, seen=max(world.seen, _published(world)))
        case fx.Proceed(event=event):
            return feed(world, event, mutant)
        case fx.AbandonWait(ticket=ticket):
            machine = world.machine
            assert machine is not None
            late, effects = mutant.step(machine, fx.LeasesReleased(ticket))
            if late is not machine or effects:
                raise Violation("K13", "an abandoned wait still moved the machine")
            return world
        case fx.Stop() | fx.Refuse():
            return _die(world)
        case fx.Persist(record=written, kind=kind):
            if mutant.structural:
                _check_written(written)
            if kind is fx.WriteKind.COMMIT:
                if written.transaction is None or not written.transaction.hold:
                    raise Violation("INV-7", "a commit would put the new routes on disk without their hold")
                _check_drained(world, written)
            if kind is fx.WriteKind.ALIAS and not _is_admitting(world, written):
                raise Violation("R25", "an alias was committed to a tier that does not admit")
            if kind is fx.WriteKind.STARTUP and "no_boot_resync" in mutant.flags:
                return feed(world._replace(ask=effect, visible=written), fx.Written(effect.ticket), mutant)
            return world._replace(ask=effect, renamed=False)
        case fx.Retire() | fx.Reply():
            return world
        case _:
            return world._replace(ask=effect)


def _published(world: World) -> int:
    return 0 if world.snapshot is None else world.snapshot.route_revision


def _is_admitting(world: World, written: rc.Record) -> bool:
    assert written.previous is not None
    before, after = written.previous.projection.aliases, written.current.projection.aliases
    moved = {tier_of(target) for name, target in after.items() if target != before[name]}
    return not (moved & world.closed) and not (world.quiesced and "b" in moved)


def _check_drained(world: World, written: rc.Record) -> None:
    assert written.transaction is not None
    scope = set(written.transaction.scope)
    if any(request.phase == "l" and request.tier in scope for request in world.requests):
        raise Violation("INV-5", "committed while a lease of the scope is open")
    if scope & world.orphans or any(request.phase == "d" and request.tier in scope for request in world.requests):
        raise Violation("INV-5", "committed while a usage row of the scope is unresolved")


def _open(world: World, scope: tuple[str, ...], mutant: Mutant) -> World:
    """Without a fresh proof a gate may open only where the hold never came near the disk."""
    if not world.proved and world.spent:
        raise Violation("INV-9", "a gate opened without a fresh proof of what is published")
    quiesced = False if "completion_readmits" in mutant.flags else world.quiesced
    if quiesced != world.quiesced:
        raise Violation("INV-10", "a transaction changed the operator's bit")
    return world._replace(closed=world.closed - set(scope))


def _swap(world: World, revision: rc.Revision, replaced: tuple[str, ...], mutant: Mutant) -> World:
    number, content = revision.route_revision, revision.effective_route_sha256
    if world.serving and number < world.seen:
        raise Violation("INV-2", f"revision {number} published after {world.seen} was seen")
    if _sha256(revision.projection) != content:
        raise Violation("INV-3", f"revision {number} published with the hash of other content")
    for other, known in world.pairs:
        if other == number and known != content:
            raise Violation("INV-3", f"revision {number} names two different contents")
    first, second = world.generations
    if world.snapshot is None or "rebuild_all" in mutant.flags:
        first = second = number
    else:
        for tier in changed_tiers(world.snapshot.projection, revision.projection):
            if tier not in replaced:
                raise Violation("INV-4", f"tier {tier} keeps a runtime of another definition")
        first = number if "a" in replaced else first
        second = number if "b" in replaced else second
    return world._replace(
        snapshot=revision,
        generations=(first, second),
        proved=False,
        seen=max(world.seen, number) if world.serving else world.seen,
        pairs=tuple(sorted({*world.pairs, (number, content)})),
    )


def _die(world: World) -> World:
    """The process is gone; its open rows stay behind unresolved."""
    orphans = world.orphans | {request.tier for request in world.requests if request.phase in "ld"}
    return world._replace(
        machine=None,
        ask=None,
        renamed=False,
        closed=frozenset(),
        snapshot=None,
        serving=False,
        generations=(1, 1),
        requests=(),
        orphans=orphans,
        quiesced=False,
        proved=False,
        last=None,
        spent=False,
    )


# --- rules of the whole


def check(world: World) -> None:
    """What must hold at every instant."""
    if world.torn:
        raise Violation("INV-12", "a power loss would leave a file that is none of the records written")
    on_disk = (world.visible, *world.survivors)
    if world.seen > min(given.current.route_revision for given in on_disk):
        raise Violation("INV-1", f"revision {world.seen} was seen, and a power loss would take it back")
    machine = world.machine
    if machine is None or not world.serving:
        return
    if machine.task is not None and (world.last is None or machine.task.call.id != world.last.call.id):
        raise Violation("INV-22", f"{type(machine.task).__name__} is carried out and nobody asked for it")
    for tier in TIERS:
        if _holds(world.visible, tier) and tier not in world.closed:
            raise Violation("INV-7", f"the file holds tier {tier} and its gate is open")
    if world.closed != frozenset(machine.gated):
        raise Violation("INV-19", f"gates closed {sorted(world.closed)}, in scope {sorted(machine.gated)}")
    for tier in TIERS:
        generations = {r.generation for r in world.requests if r.phase == "l" and r.tier == tier}
        if len(generations) > 1:
            raise Violation("INV-6", f"tier {tier} has leases of generations {sorted(generations)}")


# --- what may happen next

Move = tuple[str, Callable[[], World]]


def moves(world: World, bounds: Bounds, mutant: Mutant) -> Iterator[Move]:
    """Every next event of this world, with a label for the counterexample."""
    machine = world.machine
    if machine is None:
        opened = world._replace(machine=Machine())
        yield "restart", lambda: feed(opened, fx.Start(world.visible), mutant)
        if bounds.power and world.survivors:
            for survivor in world.survivors:
                lost = world._replace(visible=survivor, survivors=())
                yield f"power loss leaves r{survivor.current.route_revision}", lambda lost=lost: lost
        return
    if bounds.kill:
        yield "kill", lambda: _die(world)
    if bounds.shutdown and not machine.stopping and machine.state is not State.STOPPED:
        yield "shutdown", lambda: feed(world, fx.Shutdown(), mutant)
    if world.ask is not None:
        yield from _answers(world, world.ask, bounds, mutant)
    if world.serving:
        yield from _commands(world, machine, bounds, mutant)
        yield from _clients(world, machine, bounds, mutant)
        if bounds.quiesce:
            yield "operator toggles b", lambda: world._replace(quiesced=not world.quiesced)
    for model in bounds.upstream:
        if model != world.upstream:
            yield f"upstream a serves {model or 'nothing'}", lambda model=model: world._replace(upstream=model)
    if bounds.second_upstream:
        yield "upstream b toggles", lambda: world._replace(second=not world.second)


def _answers(world: World, ask: fx.Effect, bounds: Bounds, mutant: Mutant) -> Iterator[Move]:
    def give(fact: fx.Fact, at: World = world) -> Callable[[], World]:
        return lambda: feed(at, fact, mutant)

    ticket: int = ask.ticket  # type: ignore[union-attr]
    match ask:
        case fx.Persist():
            yield from _disk(world, ask, bounds, mutant)
        case fx.ProbeReady(targets=targets):
            ready = _serves(world, targets)
            yield (
                f"targets {'ready' if ready else 'not ready'}",
                give(fx.TargetsReady(ticket) if ready else fx.TargetsUnready(ticket)),
            )
        case fx.CheckAdmitting(tiers=tiers):
            admits = not (world.closed & set(tiers)) and not (world.quiesced and "b" in tiers)
            admits = admits or "admitting_unchecked" in mutant.flags
            yield "targets admitting", give(fx.TargetsAdmitting(ticket) if admits else fx.TargetsNotAdmitting(ticket))
        case fx.Precheck(targets=targets):
            good = _serves(world, targets)
            yield f"precheck {good}", give(fx.PrecheckPassed(ticket) if good else fx.PrecheckFailed(ticket))
        case fx.AwaitLeases(scope=scope):
            busy = any(r.phase == "l" and r.tier in scope for r in world.requests)
            if not busy or "no_lease_drain" in mutant.flags:
                yield "leases released", give(fx.LeasesReleased(ticket))
            if busy and bounds.timeouts:
                yield "drain timed out", give(fx.DrainTimedOut(ticket))
        case fx.CountRows(scope=scope):
            leases = sum(r.phase == "l" and r.tier in scope for r in world.requests)
            rows = len(world.orphans & set(scope)) + sum(r.phase == "d" and r.tier in scope for r in world.requests)
            leases = 0 if "no_lease_drain" in mutant.flags else leases
            rows = 0 if "no_row_drain" in mutant.flags else rows
            if leases or rows:
                yield "rows unresolved", give(fx.RowsUnresolved(ticket, leases, rows))
            else:
                yield "rows resolved", give(fx.RowsResolved(ticket))
        case fx.ProbeIdentity(targets=targets):
            if _serves(world, targets):
                yield "identity proved", give(fx.IdentityProved(ticket), world._replace(proved=True))
            else:
                yield "identity failed", give(fx.IdentityFailed(ticket))


def _serves(world: World, targets: fx.Targets) -> bool:
    return all(tier.model == world.upstream if name == "a" else world.second for name, tier in targets)


def _disk(world: World, ask: fx.Persist, bounds: Bounds, mutant: Mutant) -> Iterator[Move]:
    """The durable write in its two halves: up to the rename, and the directory fsync."""

    def give(fact: fx.Fact, at: World) -> Callable[[], World]:
        return lambda: feed(at, fact, mutant)

    ticket, kind = ask.ticket, ask.kind.value
    if not world.renamed:
        yield f"{kind} fails", give(fx.WriteFailed(ticket), world)
        if bounds.refused:
            yield f"{kind} refused", give(fx.WriteRefused(ticket, fx.Code.AUTHORITY_LOCK_LOST), world)
        if bounds.uncertain:
            yield f"{kind} rename in doubt", give(fx.WriteUncertain(ticket), _doubt(world))
        torn = world.torn or "no_filesync" in mutant.flags
        names = {_record_key(r): r for r in (*world.survivors, world.visible)}
        names.pop(_record_key(ask.record), None)
        survivors = tuple(names.values())
        yield (
            f"{kind} renamed",
            lambda: world._replace(renamed=True, visible=ask.record, survivors=survivors, torn=torn, spent=True),
        )
        return
    if "no_dirsync" in mutant.flags:
        yield f"{kind} acknowledged", give(fx.Written(ticket), world)
        return
    yield f"{kind} durable", give(fx.Written(ticket), world._replace(survivors=()))
    if bounds.uncertain:
        if "ignore_dirsync_error" in mutant.flags:
            yield f"{kind} directory fsync fails", give(fx.Written(ticket), world)
        else:
            yield f"{kind} directory fsync fails", give(fx.WriteUncertain(ticket), _doubt(world))


def _doubt(world: World) -> World:
    """What was proved before a write of unknown outcome proves nothing after it."""
    return world._replace(proved=False, spent=True)


def _clients(world: World, machine: Machine, bounds: Bounds, mutant: Mutant) -> Iterator[Move]:
    assert world.snapshot is not None

    def instead(old: Lease, *new: Lease) -> World:
        left = list(world.requests)
        left.remove(old)
        return world._replace(requests=tuple(sorted((*left, *new))))

    if len(world.requests) < bounds.requests:
        routes = world.snapshot.projection.aliases
        for alias in ("x", "y"):
            target = routes[alias]
            for tier in (target.tier,) if isinstance(target, TierTarget) else TIERS:
                generation = world.generations[TIERS.index(tier)]
                added = Lease("r", tier, generation)
                label = f"{alias} resolves to {tier}/{generation}"
                yield label, lambda added=added: world._replace(requests=tuple(sorted((*world.requests, added))))
    for request in sorted(set(world.requests)):
        if request.phase == "r":
            yield f"bind {request.tier}", lambda request=request: _bind(world, request, instead, mutant)
        elif request.phase == "l":
            yield f"{request.tier} delivered, row durable", lambda request=request: instead(request)
            yield (
                f"{request.tier} delivered, row pending",
                lambda request=request: instead(request, request._replace(phase="d")),
            )
        else:
            yield f"row of {request.tier} durable", lambda request=request: instead(request)
            if bounds.orphans:
                yield (
                    f"row of {request.tier} fails",
                    lambda request=request: instead(request)._replace(orphans=world.orphans | {request.tier}),
                )
    if world.orphans:
        yield "reconcile", lambda: world._replace(orphans=frozenset())


def _bind(world: World, request: Lease, instead: Callable[..., World], mutant: Mutant) -> World:
    """One synchronous step: the operator's bit, the gate, the generation, then the lease."""
    current = world.generations[TIERS.index(request.tier)]
    if request.tier in world.closed or (world.quiesced and request.tier == "b"):
        return instead(request)
    if request.generation != current and "late_binder" not in mutant.flags:
        return instead(request)
    if request.generation != current:
        raise Violation("INV-4", f"a lease on generation {request.generation} of {request.tier}, published {current}")
    for given in (world.visible, *world.survivors):
        if _holds(given, request.tier):
            raise Violation("INV-8", f"a lease on {request.tier} while its hold may be on disk")
    return instead(request, request._replace(phase="l"))


def _commands(world: World, machine: Machine, bounds: Bounds, mutant: Mutant) -> Iterator[Move]:
    def give(command: fx.Command) -> Callable[[], World]:
        return lambda: feed(world, command, mutant)

    def offered(command: fx.Command) -> Callable[[], World]:
        def tried() -> World:
            reached = feed(world, command, mutant)
            if reached is world and _ACTION.get(type(command)) in next_actions(machine):
                raise Violation("R83", f"{type(command).__name__} is offered and refused")
            return reached

        return tried

    for label, command in _offers(world, machine, bounds):
        yield label, offered(command)
        if bounds.misuse:
            for reason, call in _misused(command.call, machine):
                yield f"{label} ({reason})", give(replace(command, call=call))
    if world.last is not None:
        yield "the same preview again", give(world.last)


def _misused(call: fx.Call, machine: Machine) -> Iterator[tuple[str, fx.Call]]:
    if machine.attention is not None:
        yield "not a recover preview", replace(call, recovers=False)
        yield "from before the attention", replace(call, attention_seq=call.attention_seq - 1)
    yield "from before the last write", replace(call, write_seq=call.write_seq - 1)


def _offers(world: World, machine: Machine, bounds: Bounds) -> Iterator[tuple[str, fx.Command]]:
    """Commands worth giving in this state, each with a preview made just now."""
    if machine.state not in (State.IDLE, State.HELD, State.COMMITTED, State.UNCERTAIN, State.DRAINING, State.COUNTING):
        return
    given = machine.record
    assert given is not None
    assert machine.published is not None
    call = fx.Call(
        id="op",
        preview_sha256=PREVIEW,
        base=machine.published.fence,
        write_seq=given.write_seq,
        attention_seq=machine.attention_seq,
        recovers=machine.attention is not None,
    )
    fresh = "t1" if given.transaction is None or given.transaction.id != "t1" else "t2"
    at_hand = machine.receipt.id if machine.receipt is not None else ""
    room = machine.max_attempted < bounds.revisions
    if machine.state is State.IDLE or bounds.misuse:
        if room:
            yield from _changes(machine, given, bounds, call, fresh)
        if room and given.previous is not None and machine.state is State.IDLE:
            undone = given.previous.effective_route_sha256
            if given.previous.projection.tiers == given.current.projection.tiers:
                yield "rollback aliases", fx.UpdateAliases(call, fresh, rc.Rollback(), undone)
            else:
                yield "rollback tiers", fx.RollBack(call, fresh, undone)
    if machine.state in (State.HELD, State.DRAINING, State.COUNTING):
        yield "cancel", fx.Cancel(call, at_hand)
        if room:
            yield "resume", fx.Resume(call, at_hand)
        yield "drain", fx.Drain(call, at_hand)
    if machine.state is State.COMMITTED:
        yield "verify", fx.Verify(call, at_hand)
        if room:
            assert given.previous is not None
            undone = given.previous.effective_route_sha256
            yield "rollback", fx.RollBack(call, fresh, undone, at_hand)
            yield "rollback unready", fx.RollBack(call, fresh, undone, at_hand, accepts_unready=True)
    if machine.state is State.UNCERTAIN:
        shown = world.visible.transaction
        yield "reassert", fx.Reassert(call, None if shown is None else shown.id, world.visible.write_seq)
        doubted = machine.fallback
        if room and doubted is not None and doubted.previous is not None:
            undone = doubted.previous.effective_route_sha256
            yield "overtake", fx.RollBack(call, fresh, undone, at_hand)


def _changes(
    machine: Machine, given: rc.Record, bounds: Bounds, call: fx.Call, fresh: str
) -> Iterator[tuple[str, fx.Command]]:
    routes = given.current.projection
    if bounds.aliases:
        now = routes.aliases["x"]
        other = "b" if tier_of(now) == "a" else "a"
        wanted: list[Target] = [TierTarget(other)]
        if bounds.families:
            wanted = [target for target in FAMILIES if target != now] + ([TierTarget("a")] if now in FAMILIES else [])
        for target in wanted:
            change: rc.ChangeSpec = rc.AliasUpdate({"x": target})
            label = f"alias x={'' if isinstance(target, TierTarget) else 'family, else '}{tier_of(target)}"
            yield label, fx.UpdateAliases(call, fresh, change, _sha256(_propose(given, change)))
    scopes = [("a",), ("a", "b")] if bounds.both_tiers else [("a",)]
    for scope in scopes:
        patch: dict[str, Any] = {}
        for tier in scope:
            first, second = MODELS[tier]
            patch[tier] = {"model": second if routes.tiers[tier].model == first else first}
        change = rc.TierReplacement(patch)
        proposed = _sha256(_propose(given, change))
        yield f"replace {'+'.join(scope)}", fx.ReplaceTiers(call, fresh, change, proposed)
        if bounds.prepares and machine.state is State.IDLE:
            yield f"prepare {'+'.join(scope)}", fx.ReplaceTiers(call, fresh, change, proposed, prepares=True)
