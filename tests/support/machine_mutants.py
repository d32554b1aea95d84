"""Deliberate faults in the machine and in the world around it. The search must answer each with a counterexample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.transaction import Machine, State, step
from tests.support.machine_world import Bounds, Mutant, Step

Effects = tuple[fx.Effect, ...]

SMALL: Final = Bounds(
    requests=0, aliases=False, both_tiers=False, prepares=False, upstream=("m1", "m2"), misuse=False, timeouts=False
)
CLIENTS: Final = replace(SMALL, requests=1, revisions=2, kill=False, power=False, uncertain=False)


def after(change: Callable[[Machine, fx.Event, Machine, Effects], tuple[Machine, Effects]]) -> Step:
    """The real step, then a change of what it decided."""

    def mutated(machine: Machine, event: fx.Event) -> tuple[Machine, Effects]:
        return change(machine, event, *step(machine, event))

    return mutated


def before(change: Callable[[Machine, fx.Event], fx.Event]) -> Step:
    """The real step, on another event than the one that came."""
    return lambda machine, event: step(machine, change(machine, event))


def _writes(effects: Effects, kind: fx.WriteKind) -> fx.Persist | None:
    return next((e for e in effects if isinstance(e, fx.Persist) and e.kind is kind), None)


def _publish_before_commit(
    _before: Machine, _event: fx.Event, machine: Machine, effects: Effects
) -> tuple[Machine, Effects]:
    write = _writes(effects, fx.WriteKind.COMMIT)
    return machine, effects if write is None else (fx.Publish(write.record.current, ("a",)), *effects)


def _release_before_write(
    _before: Machine, _event: fx.Event, machine: Machine, effects: Effects
) -> tuple[Machine, Effects]:
    if _writes(effects, fx.WriteKind.READMIT) is None:
        return machine, effects
    return replace(machine, gated=()), (fx.OpenGate(machine.gated), *effects)


def _restart_forgets_hold(
    was: Machine, _event: fx.Event, machine: Machine, effects: Effects
) -> tuple[Machine, Effects]:
    if was.state is not State.ASSERTED or was.published is not None:
        return machine, effects
    return replace(machine, gated=()), tuple(e for e in effects if not isinstance(e, fx.CloseGate))


def _gate_after_write(was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
    if _writes(effects, fx.WriteKind.HOLD) is not None:
        return replace(machine, gated=()), tuple(e for e in effects if not isinstance(e, fx.CloseGate))
    if was.state is State.HOLDING and isinstance(event, fx.Written) and machine.receipt is not None:
        return replace(machine, gated=machine.receipt.scope), (fx.CloseGate(machine.receipt.scope), *effects)
    return machine, effects


def _unasked(state: State) -> Step:
    """Take the identity of the target for granted in one state."""

    def change(_was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
        if machine.state is not state or not effects or not isinstance(effects[-1], fx.ProbeIdentity):
            return machine, effects
        return machine, (*effects[:-1], fx.Proceed(fx.IdentityProved(machine.ticket)))

    return after(change)


def _rollback_moves_back(
    _was: Machine, _event: fx.Event, machine: Machine, effects: Effects
) -> tuple[Machine, Effects]:
    write = _writes(effects, fx.WriteKind.ROLLBACK)
    if write is None or machine.record is None or machine.record.previous is None:
        return machine, effects
    record = replace(write.record, current=machine.record.previous, previous=None)
    return replace(machine, attempt=record), (replace(write, record=record),)


def _reuse_rev(was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
    if isinstance(event, fx.WriteUncertain) and machine is not was:
        return replace(machine, max_attempted=was.max_attempted), effects
    return machine, effects


def _no_reopen(was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
    if was.state is State.HOLDING and isinstance(event, fx.WriteFailed):
        return machine, tuple(e for e in effects if not isinstance(e, fx.OpenGate))
    return machine, effects


def _taken_for(state: State, doubt: Callable[[int], fx.Fact]) -> Step:
    """Take a write of unknown outcome for a certain one, in one state."""

    def change(machine: Machine, event: fx.Event) -> fx.Event:
        uncertain = machine.state is state and isinstance(event, fx.WriteUncertain)
        return doubt(machine.ticket) if uncertain else event

    return before(change)


def _rebound(**changes: Callable[[Machine], object]) -> Step:
    """Ignore one of the things that a preview is bound to."""

    def change(machine: Machine, event: fx.Event) -> fx.Event:
        if not isinstance(event, fx.Command) or machine.record is None:
            return event
        call = replace(event.call, **{name: value(machine) for name, value in changes.items()})  # type: ignore[arg-type]
        return replace(event, call=call)

    return before(change)


def _write_seq(machine: Machine) -> int:
    assert machine.record is not None
    return machine.record.write_seq


def _automatic_rollback(was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
    if was.state is not State.VERIFYING or not isinstance(event, fx.IdentityFailed) or machine is was:
        return machine, effects
    record, published, receipt = machine.record, machine.published, machine.receipt
    assert record is not None
    assert record.previous is not None
    assert published is not None
    assert receipt is not None
    call = fx.Call(
        id="nobody",
        preview_sha256=receipt.preview_sha256,
        base=published.fence,
        write_seq=record.write_seq,
        attention_seq=machine.attention_seq,
        recovers=True,
    )
    again = fx.RollBack(call, "auto", record.previous.effective_route_sha256, receipt.id)
    rolled, more = step(machine, again)
    return rolled, effects + more


def _alias_during_hold(machine: Machine, event: fx.Event) -> tuple[Machine, Effects]:
    if machine.state is State.HELD and isinstance(event, fx.UpdateAliases):
        return step(replace(machine, state=State.IDLE, attention=None, gated=()), event)
    return step(machine, event)


def _commit_drops_hold(_was: Machine, _event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
    write = _writes(effects, fx.WriteKind.COMMIT)
    if write is None:
        return machine, effects
    assert write.record.transaction is not None
    receipt = replace(write.record.transaction, state=rc.State.COMPLETED, hold=False)
    record = replace(write.record, transaction=receipt)
    return replace(machine, attempt=record), (replace(write, record=record),)


def _publishes(change: Callable[[Machine, fx.Publish], fx.Publish]) -> Step:
    def changed(was: Machine, _event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
        return machine, tuple(change(was, e) if isinstance(e, fx.Publish) else e for e in effects)

    return after(changed)


def _old_content(was: Machine, effect: fx.Publish) -> fx.Publish:
    if was.published is None:
        return effect
    return replace(effect, revision=replace(effect.revision, projection=was.published.projection))


def _open_on_timeout(_was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
    if isinstance(event, fx.DrainTimedOut) and machine.gated:
        return replace(machine, gated=()), (fx.OpenGate(machine.gated), *effects)
    return machine, effects


def _shutdown_releases(was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
    if isinstance(event, fx.Shutdown) and was.state is State.READMITTING:
        return replace(machine, gated=()), (fx.OpenGate(machine.gated), *effects)
    return machine, effects


def _serve_before_resync(was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
    if isinstance(event, fx.Start):
        receipt = event.record.transaction
        scope = receipt.scope if receipt is not None and receipt.hold else ()
        return replace(machine, gated=scope), (
            fx.CloseGate(scope),
            fx.Publish(event.record.current),
            fx.Serve(),
            *effects,
        )
    return machine, effects


def _publish_on_doubt(state: State) -> Step:
    def change(was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
        if was.state is not state or not isinstance(event, fx.WriteUncertain) or was.attempt is None:
            return machine, effects
        replaced = ("a",) if was.gated else ()
        return machine, (fx.Publish(was.attempt.current, replaced), *effects)

    return after(change)


def _forgets_older(_was: Machine, event: fx.Event, machine: Machine, effects: Effects) -> tuple[Machine, Effects]:
    if isinstance(event, fx.WriteUncertain) and machine.maybe:
        return replace(machine, maybe=machine.maybe[-1:]), effects
    return machine, effects


def _flagged(name: str, invariant: str, bounds: Bounds) -> Mutant:
    return Mutant(name, invariant, flags=frozenset({name}), bounds=bounds)


MUTANTS: Final = (
    # Those of the design's own model.
    _flagged("no_boot_resync", "INV-1", SMALL),
    Mutant("publish_before_commit", "INV-1", after(_publish_before_commit), bounds=SMALL),
    _flagged("no_dirsync", "INV-1", SMALL),
    _flagged("ignore_dirsync_error", "INV-1", SMALL),
    Mutant("release_before_write", "INV-7", after(_release_before_write), bounds=SMALL),
    Mutant("restart_forgets_hold", "INV-7", after(_restart_forgets_hold), bounds=SMALL),
    Mutant("gate_after_write", "INV-7", after(_gate_after_write), bounds=SMALL),
    _flagged("late_binder", "INV-4", CLIENTS),
    _flagged("no_lease_drain", "INV-5", CLIENTS),
    _flagged("no_row_drain", "INV-5", replace(CLIENTS, kill=True)),
    Mutant("no_identity", "INV-9", _unasked(State.VERIFYING), bounds=SMALL),
    Mutant("cancel_no_verify", "INV-9", _unasked(State.REPROVING), bounds=replace(SMALL, timeouts=True)),
    Mutant("rollback_moves_back", "INV-1", after(_rollback_moves_back), bounds=SMALL),
    Mutant("no_reverify", "INV-9", _unasked(State.RECHECKING), bounds=SMALL),
    # Ours.
    Mutant("no_reopen", "INV-19", after(_no_reopen), bounds=SMALL),
    Mutant("uncertain_hold_reopens", "INV-9", _taken_for(State.HOLDING, fx.WriteFailed), bounds=SMALL),
    Mutant("uncertain_readmit_opens", "INV-9", _taken_for(State.READMITTING, fx.Written), bounds=SMALL),
    Mutant("uncertain_cancel_opens", "INV-9", _taken_for(State.CANCELLING, fx.Written), bounds=SMALL),
    Mutant("publish_on_uncertain_commit", "INV-1", _publish_on_doubt(State.COMMITTING), bounds=SMALL),
    Mutant(
        "publish_on_uncertain_alias", "INV-1", _publish_on_doubt(State.SWITCHING), bounds=replace(SMALL, aliases=True)
    ),
    Mutant("serve_before_resync", "INV-1", after(_serve_before_resync), bounds=SMALL),
    _flagged("no_filesync", "INV-12", SMALL),
    Mutant(
        "attention_seq_ignored",
        "INV-18",
        _rebound(attention_seq=lambda machine: machine.attention_seq),
        bounds=replace(SMALL, misuse=True),
    ),
    Mutant("write_seq_ignored", "INV-18", _rebound(write_seq=_write_seq), bounds=replace(SMALL, misuse=True)),
    Mutant("recovery_not_required", "INV-18", _rebound(recovers=lambda _: True), bounds=replace(SMALL, misuse=True)),
    Mutant(
        "preview_replayed",
        "INV-17",
        _rebound(
            write_seq=_write_seq,
            base=lambda machine: machine.published and machine.published.fence,
            recovers=lambda _: True,
            attention_seq=lambda machine: machine.attention_seq,
        ),
        bounds=SMALL,
    ),
    Mutant("automatic_rollback", "INV-22", after(_automatic_rollback), bounds=SMALL),
    Mutant("alias_during_hold", "INV-19", _alias_during_hold, bounds=replace(SMALL, aliases=True, misuse=True)),
    Mutant("commit_drops_hold", "INV-7", after(_commit_drops_hold), bounds=SMALL),
    Mutant("publish_old_content", "INV-3", _publishes(_old_content), bounds=SMALL),
    Mutant("keep_old_runtime", "INV-4", _publishes(lambda _, e: replace(e, replaced=())), bounds=SMALL),
    _flagged("rebuild_all", "INV-6", replace(CLIENTS, aliases=True, requests=2)),
    _flagged("admitting_unchecked", "R25", replace(SMALL, aliases=True, quiesce=True)),
    Mutant(
        "natural_unchecked",
        "R25",
        flags=frozenset({"admitting_unchecked"}),
        bounds=replace(SMALL, aliases=True, families=True, quiesce=True),
    ),
    _flagged("completion_readmits", "INV-10", replace(SMALL, quiesce=True)),
    Mutant("open_on_timeout", "INV-9", after(_open_on_timeout), bounds=replace(CLIENTS, timeouts=True)),
    Mutant("forgets_older_attempt", "R83", after(_forgets_older), bounds=SMALL),
    Mutant("shutdown_releases", "INV-7", after(_shutdown_releases), bounds=replace(SMALL, shutdown=True)),
)

WHAT: Final = {
    "no_boot_resync": "a start publishes what it sees, without writing it again",
    "publish_before_commit": "the new revision is published before its write",
    "no_dirsync": "a write is acknowledged after the rename",
    "ignore_dirsync_error": "a failed directory fsync counts as success",
    "release_before_write": "the gate opens before the end of the hold is durable",
    "restart_forgets_hold": "a start publishes without closing the gates of the hold",
    "gate_after_write": "the gate closes after the hold is written, not before",
    "late_binder": "a request that resolved before a replacement binds to the retired runtime after it",
    "no_lease_drain": "the drain does not wait for leases",
    "no_row_drain": "the drain does not count unresolved rows",
    "no_identity": "readmission without proof of the new server",
    "cancel_no_verify": "cancellation without proof of the original server",
    "rollback_moves_back": "a rollback writes the earlier revision number",
    "no_reverify": "a re-asserted end of a hold opens the gate without a new proof",
    "no_reopen": "a hold that was not written leaves its gate closed",
    "uncertain_hold_reopens": "a hold of unknown outcome is taken for one that failed",
    "uncertain_readmit_opens": "a readmission of unknown outcome is taken for done",
    "uncertain_cancel_opens": "a cancellation of unknown outcome is taken for done",
    "publish_on_uncertain_commit": "a commit of unknown outcome is published",
    "publish_on_uncertain_alias": "an alias update of unknown outcome is published",
    "serve_before_resync": "a start serves while its first write is in flight",
    "no_filesync": "the rename does not wait for the file's fsync",
    "attention_seq_ignored": "a preview from before the failure is accepted after it",
    "write_seq_ignored": "a preview from before a durable write is accepted after it",
    "recovery_not_required": "an ordinary preview is accepted under attention",
    "preview_replayed": "a used preview is carried out again",
    "automatic_rollback": "a failed verification rolls back by itself",
    "alias_during_hold": "an alias update is accepted while a transaction is open",
    "commit_drops_hold": "the commit writes the new routes without the hold",
    "publish_old_content": "the new number is published with the old routes",
    "keep_old_runtime": "a replaced tier keeps the runtime of the old definition",
    "rebuild_all": "every publication rebuilds every runtime",
    "admitting_unchecked": "an alias moves to a tier that the operator has quiesced",
    "natural_unchecked": "an alias becomes a family's whose natural tier the operator has quiesced",
    "completion_readmits": "the end of a transaction clears the operator's bit",
    "open_on_timeout": "a drain that runs out opens the gate",
    "forgets_older_attempt": "of several writes of unknown outcome only the last can be made certain",
    "shutdown_releases": "a shutdown during the last write opens the gate",
}
"""Each mutant in words."""

SURVIVORS: Final = (
    (
        Mutant("reuse_rev", "", after(_reuse_rev), bounds=SMALL),
        (
            "A revision that was attempted and never published is used again for other content. Nobody can have seen "
            "the first use: publishing waits for the write, and a restart publishes only what it made durable. The "
            "rule stays because an offline inspection can show a record that never became current."
        ),
    ),
)
