"""The live-route machine: states and transitions as data, and one pure `step`.

    step(machine, event) -> (machine, effects)

`TRANSITIONS` says which event leads where. An absent cell is illegal and changes nothing: a command is answered with a
refusal, a fact is dropped. A present cell has one action in `_ACTIONS`, which decides what to remember and what to ask
for; it may refuse a command, which then changes nothing either. No action chooses the next state.

Order that everything rests on: gate closed, then hold durable, then drained, then committed, then published, then
proved, then readmission durable, then gate open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.effects import Code, Command, Effect, Event, WriteKind
from sndr.router.core.evidence import check_evidence, used_evidence
from sndr.router.core.projection import INTEGER_MAX, Projection, ProjectionError, changed_tiers, sha256, tier_of
from sndr.router.core.proposal import propose
from sndr.router.core.recovery import READ_ONLY, RECOVERY, Action, Attention, AttentionCode, Standing

__all__ = ["STANDINGS", "TRANSITIONS", "Machine", "State", "next_actions", "step"]


class State(Enum):
    """Where the machine is. At rest in stopped, idle, held, committed and uncertain; elsewhere it awaits one fact."""

    STOPPED = "stopped"
    STARTING = "starting"
    ASSERTED = "asserted"
    IDLE = "idle"
    CHECKING = "checking"
    CONFIRMING = "confirming"
    SWITCHING = "switching"
    VETTING = "vetting"
    HOLDING = "holding"
    DRAINING = "draining"
    COUNTING = "counting"
    HELD = "held"
    PRECHECKING = "prechecking"
    PROVING = "proving"
    COMMITTING = "committing"
    VERIFYING = "verifying"
    READMITTING = "readmitting"
    COMMITTED = "committed"
    REPROVING = "reproving"
    CANCELLING = "cancelling"
    REVIEWING = "reviewing"
    REVERTING = "reverting"
    UNCERTAIN = "uncertain"
    RECHECKING = "rechecking"
    REASSERTING = "reasserting"


_S = State

_ROWS: Final[Mapping[State, Mapping[type[Event], State]]] = {
    _S.STOPPED: {fx.Start: _S.STARTING, fx.Open: _S.ASSERTED},
    _S.STARTING: {
        fx.Written: _S.ASSERTED,
        fx.WriteFailed: _S.STOPPED,
        fx.WriteUncertain: _S.STOPPED,
        fx.WriteRefused: _S.STOPPED,
        fx.Shutdown: _S.STARTING,
    },
    _S.ASSERTED: {
        fx.FoundTerminal: _S.IDLE,
        fx.FoundHeld: _S.HELD,
        fx.FoundCommitted: _S.COMMITTED,
        fx.Shutdown: _S.STOPPED,
    },
    _S.IDLE: {
        fx.UpdateAliases: _S.CHECKING,
        fx.ReplaceTiers: _S.HOLDING,
        fx.RollBack: _S.VETTING,
        fx.Shutdown: _S.STOPPED,
    },
    _S.CHECKING: {fx.TargetsReady: _S.CONFIRMING, fx.TargetsUnready: _S.IDLE, fx.Shutdown: _S.STOPPED},
    _S.CONFIRMING: {
        fx.TargetsAdmitting: _S.SWITCHING,
        fx.TargetsNotAdmitting: _S.IDLE,
        fx.Shutdown: _S.STOPPED,
    },
    _S.SWITCHING: {
        fx.Written: _S.IDLE,
        fx.WriteFailed: _S.IDLE,
        fx.WriteUncertain: _S.UNCERTAIN,
        fx.WriteRefused: _S.IDLE,
        fx.Shutdown: _S.SWITCHING,
    },
    _S.VETTING: {fx.PrecheckPassed: _S.HOLDING, fx.PrecheckFailed: _S.IDLE, fx.Shutdown: _S.STOPPED},
    _S.HOLDING: {
        fx.Written: _S.DRAINING,
        fx.WriteFailed: _S.IDLE,
        fx.WriteUncertain: _S.UNCERTAIN,
        fx.WriteRefused: _S.IDLE,
        fx.Shutdown: _S.HOLDING,
    },
    _S.DRAINING: {
        fx.LeasesReleased: _S.COUNTING,
        fx.DrainProgressed: _S.DRAINING,
        fx.DrainTimedOut: _S.HELD,
        fx.Cancel: _S.REPROVING,
        fx.Shutdown: _S.STOPPED,
    },
    _S.COUNTING: {
        fx.RowsResolved: _S.HELD,
        fx.RowsUnresolved: _S.HELD,
        fx.Cancel: _S.REPROVING,
        fx.Shutdown: _S.STOPPED,
    },
    _S.HELD: {
        fx.Continued: _S.PRECHECKING,
        fx.Drain: _S.DRAINING,
        fx.Resume: _S.DRAINING,
        fx.Cancel: _S.REPROVING,
        fx.Shutdown: _S.STOPPED,
    },
    _S.PRECHECKING: {fx.PrecheckPassed: _S.PROVING, fx.PrecheckFailed: _S.HELD, fx.Shutdown: _S.STOPPED},
    _S.PROVING: {fx.RowsResolved: _S.COMMITTING, fx.RowsUnresolved: _S.HELD, fx.Shutdown: _S.STOPPED},
    _S.COMMITTING: {
        fx.Written: _S.VERIFYING,
        fx.WriteFailed: _S.HELD,
        fx.WriteUncertain: _S.UNCERTAIN,
        fx.WriteRefused: _S.HELD,
        fx.Shutdown: _S.COMMITTING,
    },
    _S.VERIFYING: {fx.IdentityProved: _S.READMITTING, fx.IdentityFailed: _S.COMMITTED, fx.Shutdown: _S.STOPPED},
    _S.READMITTING: {
        fx.Written: _S.IDLE,
        fx.WriteFailed: _S.COMMITTED,
        fx.WriteUncertain: _S.UNCERTAIN,
        fx.WriteRefused: _S.COMMITTED,
        fx.Shutdown: _S.READMITTING,
    },
    _S.COMMITTED: {
        fx.Continued: _S.VERIFYING,
        fx.Verify: _S.VERIFYING,
        fx.RollBack: _S.REVIEWING,
        fx.Shutdown: _S.STOPPED,
    },
    _S.REPROVING: {fx.IdentityProved: _S.CANCELLING, fx.IdentityFailed: _S.HELD, fx.Shutdown: _S.STOPPED},
    _S.CANCELLING: {
        fx.Written: _S.IDLE,
        fx.WriteFailed: _S.HELD,
        fx.WriteUncertain: _S.UNCERTAIN,
        fx.WriteRefused: _S.HELD,
        fx.Shutdown: _S.CANCELLING,
    },
    _S.REVIEWING: {fx.PrecheckPassed: _S.REVERTING, fx.PrecheckFailed: _S.COMMITTED, fx.Shutdown: _S.STOPPED},
    _S.REVERTING: {
        fx.Written: _S.COMMITTED,
        fx.WriteFailed: _S.COMMITTED,
        fx.WriteUncertain: _S.UNCERTAIN,
        fx.WriteRefused: _S.COMMITTED,
        fx.Shutdown: _S.REVERTING,
    },
    _S.UNCERTAIN: {fx.Reassert: _S.RECHECKING, fx.RollBack: _S.RECHECKING, fx.Shutdown: _S.STOPPED},
    _S.RECHECKING: {
        fx.IdentityProved: _S.REASSERTING,
        fx.IdentityFailed: _S.REASSERTING,
        fx.Shutdown: _S.STOPPED,
    },
    _S.REASSERTING: {
        fx.Written: _S.ASSERTED,
        fx.WriteFailed: _S.UNCERTAIN,
        fx.WriteUncertain: _S.UNCERTAIN,
        fx.WriteRefused: _S.UNCERTAIN,
        fx.Shutdown: _S.REASSERTING,
    },
}

TRANSITIONS: Final[Mapping[State, Mapping[type[Event], State]]] = MappingProxyType(
    {state: MappingProxyType(dict(row)) for state, row in _ROWS.items()}
)
"""Every legal (state, event) and where it leads."""

STANDINGS: Final[Mapping[State, Standing]] = MappingProxyType(
    {
        _S.STOPPED: Standing.STOPPED,
        _S.STARTING: Standing.STOPPED,
        _S.ASSERTED: Standing.UNCERTAIN,
        _S.IDLE: Standing.IDLE,
        _S.CHECKING: Standing.IDLE,
        _S.CONFIRMING: Standing.IDLE,
        _S.SWITCHING: Standing.IDLE,
        _S.VETTING: Standing.IDLE,
        _S.HOLDING: Standing.IDLE,
        _S.DRAINING: Standing.HELD,
        _S.COUNTING: Standing.HELD,
        _S.HELD: Standing.HELD,
        _S.PRECHECKING: Standing.HELD,
        _S.PROVING: Standing.HELD,
        _S.COMMITTING: Standing.HELD,
        _S.VERIFYING: Standing.COMMITTED,
        _S.READMITTING: Standing.COMMITTED,
        _S.COMMITTED: Standing.COMMITTED,
        _S.REPROVING: Standing.HELD,
        _S.CANCELLING: Standing.HELD,
        _S.REVIEWING: Standing.COMMITTED,
        _S.REVERTING: Standing.COMMITTED,
        _S.UNCERTAIN: Standing.UNCERTAIN,
        _S.RECHECKING: Standing.UNCERTAIN,
        _S.REASSERTING: Standing.UNCERTAIN,
    }
)
"""What each state is called outside: the last thing that is known to be durable, or that it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything the authority remembers, as one immutable value.

    Attributes:
        state: Where it is.
        record: The record last known durable.
        published: The revision that readers see; equal to or older than the record's current one.
        receipt: The transaction as known now: the record's, plus what happened since the last write.
        gated: Tiers whose gate this machine has closed.
        task: The command being carried out; its caller waits for a reply.
        attempt: The record of a write in flight.
        maybe: What the disk may show while the outcome of a write is unknown, oldest first.
        write_seq: Highest number of a record that may be on disk.
        fallback: While the outcome is unknown and a gate is closed, the record that keeps the hold.
        failure: Why a target did not prove itself during a re-assertion.
        attention: Why a person must choose, if so.
        attention_seq: Attentions raised in this process.
        max_attempted: Highest revision that may be on disk; none up to it is used again for other content.
        ticket: Of the fact awaited.
        stopping: A shutdown waits for the write in flight.
    """

    state: State = State.STOPPED
    record: rc.Record | None = None
    published: rc.Revision | None = None
    receipt: rc.Receipt | None = None
    gated: tuple[str, ...] = ()
    task: Command | None = None
    attempt: rc.Record | None = None
    maybe: tuple[rc.Record, ...] = ()
    write_seq: int = 0
    fallback: rc.Record | None = None
    failure: Code | None = None
    attention: Attention | None = None
    attention_seq: int = 0
    max_attempted: int = 0
    ticket: int = 0
    stopping: bool = False

    @property
    def standing(self) -> Standing:
        """The state as operators are told."""
        return STANDINGS[self.state]


Outcome: TypeAlias = tuple[Machine, tuple[Effect, ...]]
_Action: TypeAlias = Callable[[Machine, Any], Outcome | Code]


def step(machine: Machine, event: Event) -> Outcome:
    """Take one event.

    Returns:
        The machine after it, and the effects to perform in order. An illegal, stale or refused event returns the
        machine itself; a refused command also a reply.
    """
    target = TRANSITIONS[machine.state].get(type(event))
    if isinstance(event, Command):
        code = _refusal(machine, event, legal=target is not None)
        if code is not None:
            return machine, (fx.Reply(event.call.id, code),)
    elif not isinstance(event, fx.Start | fx.Open | fx.Shutdown) and event.ticket != machine.ticket:
        return machine, ()
    if target is None:
        return machine, ()
    outcome = _ACTIONS[machine.state, type(event)](machine, event)
    if isinstance(outcome, Code):
        assert isinstance(event, Command)
        return machine, (fx.Reply(event.call.id, outcome),)
    changed, effects = outcome
    # A wait goes on only where the state does: anywhere else the ticket moves on, and with it what is stale.
    ticket = machine.ticket if target is machine.state else machine.ticket + 1
    return replace(changed, state=target, ticket=ticket), effects


# --- refusals that need no knowledge of the operation


_RESTING: Final = frozenset({State.IDLE, State.HELD, State.COMMITTED, State.UNCERTAIN})


def _illegal(machine: Machine, command: Command) -> Code:
    """Why a command has no cell in the present state."""
    state = machine.state
    if state is State.STOPPED:
        return Code.SHUTTING_DOWN
    if state is State.IDLE:
        return Code.NO_TRANSACTION
    if state not in _RESTING:
        begins = isinstance(command, fx.UpdateAliases | fx.ReplaceTiers)
        return Code.TRANSACTION_IN_PROGRESS if begins and machine.gated else Code.MANAGEMENT_BUSY
    if isinstance(command, fx.UpdateAliases | fx.ReplaceTiers):
        return Code.TRANSACTION_IN_PROGRESS if machine.attention is None else Code.RECOVERY_REQUIRED
    if state is State.UNCERTAIN:
        return Code.RECOVERY_REQUIRED
    if isinstance(command, fx.Reassert):
        return Code.TRANSACTION_CHANGED
    return Code.NOT_COMMITTED if state is State.HELD else Code.ALREADY_COMMITTED


def _refusal(machine: Machine, command: Command, *, legal: bool) -> Code | None:
    """What every command is held to before its own checks: the state, attention, and the preview behind it."""
    call, attention = command.call, machine.attention
    if machine.stopping:
        return Code.SHUTTING_DOWN
    if attention is not None and attention.code in READ_ONLY:
        return Code.AUTHORITY_READ_ONLY
    if not legal:
        return _illegal(machine, command)
    if attention is not None and not call.recovers:
        return Code.RECOVERY_REQUIRED
    assert machine.record is not None
    assert machine.published is not None
    bound = (call.base, call.write_seq, call.attention_seq)
    if bound != (machine.published.fence, machine.record.write_seq, machine.attention_seq):
        return Code.PREVIEW_STALE
    if machine.state is State.IDLE:
        return None
    if _transaction_id(command) != (None if machine.receipt is None else machine.receipt.id) and not isinstance(
        command, fx.Reassert
    ):
        return Code.TRANSACTION_CHANGED
    action = _ACTION_OF[type(command)]
    return None if action.value in next_actions(machine) else Code.INVALID_CHANGE


def _transaction_id(command: Command) -> str | None:
    return command.parent_id if isinstance(command, fx.RollBack) else command.transaction_id


_ACTION_OF: Final[Mapping[type[Command], Action]] = MappingProxyType(
    {
        fx.Drain: Action.DRAIN,
        fx.Resume: Action.RESUME,
        fx.Cancel: Action.CANCEL,
        fx.Verify: Action.VERIFY,
        fx.RollBack: Action.ROLLBACK,
        fx.Reassert: Action.REASSERT,
    }
)


def next_actions(machine: Machine) -> tuple[str, ...]:
    """What may legally be asked for next about the transaction at hand; empty when there is none."""
    if machine.attention is not None:
        actions = RECOVERY[machine.standing][machine.attention.code]
        in_doubt = machine.fallback
        overtakes = in_doubt is not None and in_doubt.current != machine.published
        return tuple(
            action.value
            for action in actions
            if machine.state is not State.UNCERTAIN or action is Action.REASSERT or overtakes
        )
    if machine.state is State.HELD:
        return (Action.RESUME.value, Action.CANCEL.value)
    return (Action.CANCEL.value,) if machine.state in (State.DRAINING, State.COUNTING) else ()


# --- parts that several actions share


def _ask(machine: Machine, effect: Effect) -> Effect:
    """The effect that is awaited next, unless a shutdown waited for the last one."""
    return fx.Proceed(fx.Shutdown()) if machine.stopping else effect


def _end(machine: Machine, code: Code | None = None) -> Outcome:
    """Answer the caller: the task is over."""
    effects: tuple[Effect, ...] = () if machine.task is None else (fx.Reply(machine.task.call.id, code),)
    if machine.stopping:
        effects += (fx.Proceed(fx.Shutdown()),)
    return replace(machine, task=None, failure=None), effects


def _attend(machine: Machine, code: AttentionCode) -> Machine:
    seq = machine.attention_seq + 1
    return replace(machine, attention=Attention(seq, code), attention_seq=seq)


def _halt(machine: Machine, attention: AttentionCode, code: Code, at_ms: int) -> Outcome:
    """Stop where the machine is, for a person to choose."""
    receipt = None if machine.receipt is None else _note(machine.receipt, attention.value, at_ms)
    return _end(replace(_attend(machine, attention), receipt=receipt), code)


def _note(receipt: rc.Receipt, code: str, at_ms: int) -> rc.Receipt:
    """The receipt with one more event; the oldest goes when the list is full."""
    seq = receipt.events[-1].seq + 1 if receipt.events else 1
    events = (*receipt.events, rc.Event(at_ms, code, seq))[-rc.EVENTS_MAX :]
    return replace(receipt, events=events, updated_at_ms=at_ms)


def _persist(machine: Machine, kind: WriteKind, record: rc.Record) -> Outcome:
    """Ask for a durable write of `record`, numbered above everything that may be on disk."""
    numbered = replace(record, write_seq=machine.write_seq + 1)
    return replace(machine, attempt=numbered), (fx.Persist(machine.ticket + 1, kind, numbered),)


def _as_written(machine: Machine, event: fx.Written | fx.WriteUncertain) -> rc.Record:
    """The attempt under the number that the store gave it."""
    assert machine.attempt is not None
    return machine.attempt if event.write_seq is None else replace(machine.attempt, write_seq=event.write_seq)


def _durable(machine: Machine, event: fx.Written) -> Machine:
    """The attempt is now the record."""
    record = _as_written(machine, event)
    return replace(
        machine,
        record=record,
        receipt=record.transaction,
        attempt=None,
        maybe=(),
        write_seq=record.write_seq,
        fallback=None,
        max_attempted=max(machine.max_attempted, record.current.route_revision),
    )


def _undone(machine: Machine) -> Machine:
    """The attempt left no trace."""
    return replace(machine, attempt=None)


def _publish(machine: Machine, replaced: tuple[str, ...]) -> tuple[Machine, tuple[Effect, ...]]:
    assert machine.record is not None
    revision = machine.record.current
    effects: tuple[Effect, ...] = (fx.Publish(revision, replaced),)
    if replaced:
        effects += (fx.Retire(replaced, revision.route_revision),)
    return replace(machine, published=revision), effects


def _next_revision(machine: Machine) -> int:
    return machine.max_attempted + 1


def _targets(projection: Projection, tiers: tuple[str, ...]) -> fx.Targets:
    return tuple((tier_id, projection.tiers[tier_id]) for tier_id in tiers)


def _committed(machine: Machine, record: rc.Record, receipt: rc.Receipt, projection: Projection) -> rc.Record:
    """`record` with the next revision as current, and what was current as previous."""
    current = rc.Revision(_next_revision(machine), receipt.proposed_sha256, projection)
    return replace(
        record,
        current=current,
        previous=record.current,
        transaction=replace(receipt, committed_revision=current.route_revision),
    )


def _proposal(record: rc.Record, change: rc.ChangeSpec, expected: str, *, managed: bool = False) -> Projection | Code:
    """The routes the change makes, or why it may not: what the preview promised must come out again."""
    try:
        projection = propose(record, change, managed=managed)
    except ProjectionError as error:
        return Code(error.findings[0].code)
    return projection if sha256(projection) == expected else Code.PREVIEW_STALE


def _receipt(
    machine: Machine,
    command: fx.UpdateAliases | fx.ReplaceTiers | fx.RollBack,
    change: rc.ChangeSpec,
    scope: tuple[str, ...],
) -> rc.Receipt:
    """A new transaction, held, against what is current."""
    assert machine.record is not None
    match change:
        case rc.AliasUpdate():
            op = rc.Op.ALIAS_UPDATE
        case rc.TierReplacement():
            op = rc.Op.TIER_REPLACEMENT
        case _:
            op = rc.Op.ROLLBACK
    at_ms = command.call.at_ms
    return rc.Receipt(
        id=command.transaction_id,
        op=op,
        origin=rc.Origin.ROLLBACK if op is rc.Op.ROLLBACK else rc.Origin.CHANGE,
        state=rc.State.HELD,
        hold=True,
        base=machine.record.current.fence,
        change=change,
        scope=scope,
        proposed_sha256=command.proposed_sha256,
        committed_revision=None,
        preview_sha256=command.call.preview_sha256,
        parent_id=command.parent_id if isinstance(command, fx.RollBack) else None,
        managed=isinstance(command, fx.ReplaceTiers) and command.managed,
        evidence=None,
        drain=None,
        identity=None,
        events=(),
        created_at_ms=at_ms,
        updated_at_ms=at_ms,
        earlier_evidence_sha256=used_evidence(machine.record.transaction),
    )


_SPARE: Final = 16


def _exhausted(machine: Machine, spare: int = 1) -> bool:
    """Whether the counters cannot number what is asked for; a new transaction leaves enough to end it either way."""
    return max(machine.max_attempted, machine.write_seq) > INTEGER_MAX - spare


# --- start


def _loaded(machine: Machine, record: rc.Record) -> Machine:
    """A machine that remembers nothing but `record`."""
    committed = 0 if record.transaction is None else record.transaction.committed_revision or 0
    return Machine(
        record=record,
        receipt=record.transaction,
        write_seq=record.write_seq,
        max_attempted=max(record.current.route_revision, committed),
        ticket=machine.ticket,
    )


def _start(machine: Machine, event: fx.Start) -> Outcome:
    """A predecessor may have died between rename and directory fsync: what is visible is written again first."""
    return _persist(_loaded(machine, event.record), WriteKind.STARTUP, event.record)


def _open(machine: Machine, event: fx.Open) -> Outcome:
    return _look(_loaded(machine, event.record), event.at_ms)


def _start_failed(machine: Machine, event: fx.WriteFailed | fx.WriteUncertain | fx.WriteRefused) -> Outcome:
    match event:
        case fx.WriteUncertain():
            code = Code.AUTHORITY_WRITE_UNCERTAIN
        case _:
            code = event.code
    return _undone(machine), (fx.Refuse(code),)


def _asserted(machine: Machine, event: fx.Written) -> Outcome:
    return _look(_durable(machine, event), event.at_ms)


def _look(machine: Machine, at_ms: int) -> Outcome:
    """The record is durable: see what it holds."""
    assert machine.record is not None
    receipt = machine.record.transaction
    ticket = machine.ticket + 1
    found: fx.Fact
    if receipt is None or receipt.state.is_terminal:
        found = fx.FoundTerminal(ticket, at_ms)
    elif receipt.state is rc.State.HELD:
        found = fx.FoundHeld(ticket, at_ms)
    else:
        found = fx.FoundCommitted(ticket, at_ms)
    return machine, (_ask(machine, fx.Proceed(found)),)


def _found_terminal(machine: Machine, _event: fx.FoundTerminal) -> Outcome:
    assert machine.record is not None
    if machine.published is None:
        published, effects = _publish(machine, ())
        return published, (*effects, fx.Serve())
    effects = ()
    if machine.published != machine.record.current:
        machine, effects = _publish(machine, ())
    if machine.gated:
        effects += (fx.OpenGate(machine.gated),)
    ended, replies = _end(replace(machine, gated=()))
    return ended, effects + replies


def _found_open(machine: Machine, event: fx.FoundHeld | fx.FoundCommitted) -> Outcome:
    """A transaction is open: its hold is in force before anything is published or served."""
    assert machine.record is not None
    assert machine.receipt is not None
    scope = machine.receipt.scope
    if machine.published is None:
        published, effects = _publish(replace(machine, gated=scope), ())
        halted, _ = _halt(published, AttentionCode.INTERRUPTED, Code.RECOVERY_REQUIRED, event.at_ms)
        return halted, (fx.CloseGate(scope), *effects, fx.Serve())
    effects = ()
    if machine.published != machine.record.current:
        machine, effects = _publish(machine, scope)
    failure = machine.failure
    if failure is None:
        halted, replies = _halt(machine, AttentionCode.INTERRUPTED, Code.RECOVERY_REQUIRED, event.at_ms)
        # The re-assertion did what it was asked to: only the transaction still waits.
        replies = tuple(replace(reply, code=None) if isinstance(reply, fx.Reply) else reply for reply in replies)
        return halted, effects + replies
    if isinstance(event, fx.FoundHeld):
        halted, replies = _halt(
            machine, AttentionCode.CANCEL_TARGET_UNVERIFIED, Code.CANCEL_TARGET_UNVERIFIED, event.at_ms
        )
    else:
        halted, replies = _halt(machine, AttentionCode.VERIFY_FAILED, failure, event.at_ms)
    return halted, effects + replies


# --- alias update


def _check_targets(machine: Machine, command: fx.UpdateAliases) -> Outcome | Code:
    assert machine.record is not None
    current = machine.record.current.projection
    proposed = _proposal(machine.record, command.change, command.proposed_sha256)
    if isinstance(proposed, Code):
        return proposed
    if changed_tiers(current, proposed):
        return Code.INVALID_CHANGE  # a rollback that also changes tiers needs a hold
    moved = [target for alias, target in proposed.aliases.items() if target != current.aliases[alias]]
    if not moved:
        return Code.NO_EFFECTIVE_CHANGE
    if _exhausted(machine, _SPARE):
        return Code.REVISION_EXHAUSTED
    tiers = tuple(sorted({tier_of(target) for target in moved}))
    if any(proposed.tiers[tier_id].health_path is None for tier_id in tiers):
        return Code.READINESS_NOT_CONFIGURED
    receipt = _receipt(machine, command, command.change, ())
    begun = replace(machine, task=command, receipt=receipt)
    return begun, (fx.ProbeReady(machine.ticket + 1, _targets(proposed, tiers)),)


def _confirm(machine: Machine, _event: fx.TargetsReady) -> Outcome:
    assert isinstance(machine.task, fx.UpdateAliases)
    assert machine.record is not None
    before = machine.record.current.projection.aliases
    after = propose(machine.record, machine.task.change).aliases
    tiers = {tier_of(target) for alias, target in after.items() if target != before[alias]}
    return machine, (fx.CheckAdmitting(machine.ticket + 1, tuple(sorted(tiers))),)


def _give_up(machine: Machine, event: fx.TargetsUnready | fx.TargetsNotAdmitting | fx.PrecheckFailed) -> Outcome:
    """Nothing was gated and nothing written: as if it had never been asked."""
    assert machine.record is not None
    match event:
        case fx.TargetsUnready(code=found):
            code = found
        case fx.TargetsNotAdmitting():
            code = Code.TARGET_NOT_ADMITTING
        case _:
            code = Code.PRECHECK_FAILED
    return _end(replace(machine, receipt=machine.record.transaction), code)


def _switch(machine: Machine, event: fx.TargetsAdmitting) -> Outcome:
    assert isinstance(machine.task, fx.UpdateAliases)
    assert machine.record is not None
    assert machine.receipt is not None
    receipt = replace(machine.receipt, state=rc.State.COMPLETED, hold=False)
    receipt = _note(_note(receipt, "committed", event.at_ms), "completed", event.at_ms)
    record = _committed(machine, machine.record, receipt, propose(machine.record, machine.task.change))
    return _persist(machine, WriteKind.ALIAS, record)


def _switched(machine: Machine, event: fx.Written) -> Outcome:
    published, effects = _publish(_durable(machine, event), ())
    ended, replies = _end(published)
    return ended, effects + replies


# --- hold and drain


def _vet(machine: Machine, command: fx.RollBack) -> Outcome | Code:
    """A rollback from idle would trade working tiers for dead ones: the earlier servers prove themselves first."""
    assert machine.record is not None
    if machine.record.previous is None:
        return Code.NO_PREVIOUS
    proposed = _proposal(machine.record, rc.Rollback(), command.proposed_sha256)
    if isinstance(proposed, Code):
        return proposed
    scope = changed_tiers(machine.record.current.projection, proposed)
    if not scope:
        return Code.NO_EFFECTIVE_CHANGE
    if command.parent_id is not None or command.accepts_unready:
        return Code.NOT_COMMITTED
    refused = _unfit(machine, proposed, scope)
    if refused is not None:
        return refused
    receipt = _receipt(machine, command, rc.Rollback(), scope)
    effect = fx.Precheck(machine.ticket + 1, _targets(proposed, scope), command.call.verify_timeout_ms)
    return replace(machine, task=command, receipt=receipt), (effect,)


def _unfit(machine: Machine, proposed: Projection, scope: tuple[str, ...]) -> Code | None:
    """Why a replacement could not be verified, or numbered."""
    for _, tier in _targets(proposed, scope):
        if tier.model is None or tier.health_path is None or not tier.model_identity:
            return Code.IDENTITY_REQUIRED
    return Code.REVISION_EXHAUSTED if _exhausted(machine, _SPARE) else None


def _hold(machine: Machine, command: fx.ReplaceTiers) -> Outcome | Code:
    assert machine.record is not None
    if command.managed and not command.prepares:
        return Code.INVALID_CHANGE  # the evidence of a managed change can only exist once it is held and drained
    proposed = _proposal(machine.record, command.change, command.proposed_sha256, managed=command.managed)
    if isinstance(proposed, Code):
        return proposed
    scope = tuple(sorted(command.change.tiers))
    refused = _unfit(machine, proposed, scope)
    if refused is not None:
        return refused
    return _close(replace(machine, task=command, receipt=_receipt(machine, command, command.change, scope)), command)


def _hold_vetted(machine: Machine, _event: fx.PrecheckPassed) -> Outcome:
    assert isinstance(machine.task, fx.RollBack)
    return _close(machine, machine.task)


def _close(machine: Machine, command: fx.ReplaceTiers | fx.RollBack) -> Outcome:
    """The gate first: between its closing and the durable hold nothing can slip in."""
    assert machine.record is not None
    assert machine.receipt is not None
    receipt = _note(machine.receipt, "held", command.call.at_ms)
    closed = replace(
        machine,
        receipt=receipt,
        gated=receipt.scope,
    )
    asked, effects = _persist(closed, WriteKind.HOLD, replace(machine.record, transaction=receipt))
    return asked, (fx.CloseGate(receipt.scope), *effects)


def _await_leases(machine: Machine) -> Outcome:
    assert machine.receipt is not None
    assert machine.task is not None
    wait = fx.AwaitLeases(machine.ticket + 1, machine.receipt.scope, machine.task.call.drain_timeout_ms)
    return machine, (_ask(machine, wait),)


def _held(machine: Machine, event: fx.Written) -> Outcome:
    return _await_leases(_durable(machine, event))


def _reopen(machine: Machine, event: fx.WriteFailed | fx.WriteRefused) -> Outcome:
    """The hold never became durable: take back the gate, or the scope would be silent without a receipt."""
    assert machine.record is not None
    opened = replace(_undone(machine), gated=(), receipt=machine.record.transaction)
    effects = (fx.OpenGate(machine.gated),) if machine.gated else ()
    ended, replies = _refused(opened, event)
    return ended, effects + replies


def _refused(machine: Machine, event: fx.WriteFailed | fx.WriteRefused) -> Outcome:
    """Reply for a write that changed nothing and needs no recovery, unless the authority is no longer ours."""
    if isinstance(event, fx.WriteRefused):
        return _halt(machine, AttentionCode(event.code.value), event.code, event.at_ms)
    return _end(machine, event.code)


def _drained(machine: Machine, event: fx.LeasesReleased | fx.DrainProgressed | fx.DrainTimedOut) -> rc.Receipt:
    assert machine.receipt is not None
    drain = rc.Drain(
        event.at_ms, complete=False, cut=0, finished=event.finished, leases_at_hold=event.at_hold, unresolved=0
    )
    return replace(machine.receipt, drain=drain)


def _progress(machine: Machine, event: fx.DrainProgressed) -> Outcome:
    return replace(machine, receipt=_drained(machine, event)), ()


def _drain_timed_out(machine: Machine, event: fx.DrainTimedOut) -> Outcome:
    """Nobody is cut off: the hold stays, the streams go on."""
    late = replace(machine, receipt=_drained(machine, event))
    return _halt(late, AttentionCode.DRAIN_TIMEOUT, Code.DRAIN_TIMEOUT, event.at_ms)


def _count(machine: Machine, event: fx.LeasesReleased) -> Outcome:
    """Leases first, rows second: a row is only ever begun under a lease."""
    assert machine.task is not None
    receipt = _drained(machine, event)
    count = fx.CountRows(machine.ticket + 1, receipt.scope, machine.task.call.drain_timeout_ms)
    return replace(machine, receipt=receipt), (count,)


def _drain_complete(machine: Machine, event: fx.RowsResolved) -> rc.Receipt:
    assert machine.receipt is not None
    assert machine.receipt.drain is not None
    return replace(
        machine.receipt, drain=replace(machine.receipt.drain, complete=True, unresolved=0, at_ms=event.at_ms)
    )


def _counted(machine: Machine, event: fx.RowsResolved) -> Outcome:
    """Drained. A prepare and a renewed drain stop here."""
    drained = replace(machine, receipt=_note(_drain_complete(machine, event), "drained", event.at_ms))
    stops = isinstance(machine.task, fx.Drain) or (
        isinstance(machine.task, fx.ReplaceTiers | fx.RollBack) and machine.task.prepares
    )
    if stops:
        return _end(drained)
    return drained, (fx.Proceed(fx.Continued(machine.ticket + 1, event.at_ms)),)


def _blocked(machine: Machine, event: fx.RowsUnresolved) -> Outcome:
    assert machine.receipt is not None
    assert machine.receipt.drain is not None
    drain = replace(machine.receipt.drain, complete=False, unresolved=event.unresolved, at_ms=event.at_ms)
    late = replace(machine, receipt=replace(machine.receipt, drain=drain))
    if event.legacy:
        return _halt(late, AttentionCode.DRAIN_BLOCKED_LEGACY, Code.DRAIN_BLOCKED_LEGACY, event.at_ms)
    if event.unresolved:
        return _halt(late, AttentionCode.DRAIN_BLOCKED_USAGE, Code.DRAIN_BLOCKED_USAGE, event.at_ms)
    return _halt(late, AttentionCode.DRAIN_TIMEOUT, Code.DRAIN_TIMEOUT, event.at_ms)


def _drain_again(machine: Machine, command: fx.Drain) -> Outcome:
    return _await_leases(replace(machine, task=command, attention=None))


def _resume(machine: Machine, command: fx.Resume) -> Outcome | Code:
    assert machine.receipt is not None
    assert machine.record is not None
    proposed = _proposal(
        machine.record, machine.receipt.change, machine.receipt.proposed_sha256, managed=machine.receipt.managed
    )
    if isinstance(proposed, Code):
        return proposed
    refused = check_evidence(machine.receipt, proposed, command.evidence, now_ms=command.call.at_ms)
    if refused is not None:
        return refused
    return _await_leases(replace(machine, task=command, attention=None))


# --- commit, verify, readmit


def _precheck(machine: Machine, _event: fx.Continued) -> Outcome:
    assert machine.receipt is not None
    assert machine.record is not None
    assert machine.task is not None
    proposed = propose(machine.record, machine.receipt.change, managed=machine.receipt.managed)
    targets = _targets(proposed, machine.receipt.scope)
    return machine, (fx.Precheck(machine.ticket + 1, targets, machine.task.call.verify_timeout_ms),)


def _precheck_failed(machine: Machine, event: fx.PrecheckFailed) -> Outcome:
    return _halt(machine, AttentionCode.PRECHECK_FAILED, Code.PRECHECK_FAILED, event.at_ms)


def _prove(machine: Machine, _event: fx.PrecheckPassed) -> Outcome:
    """The last look before the commit: an earlier proof of a drain is no authority."""
    assert machine.receipt is not None
    return machine, (fx.CountRows(machine.ticket + 1, machine.receipt.scope, 0),)


def _commit(machine: Machine, event: fx.RowsResolved) -> Outcome:
    assert machine.record is not None
    receipt = replace(_drain_complete(machine, event), state=rc.State.COMMITTED)
    if isinstance(machine.task, fx.Resume):
        receipt = replace(receipt, evidence=machine.task.evidence)
    receipt = _note(receipt, "committed", event.at_ms)
    proposed = propose(machine.record, receipt.change, managed=receipt.managed)
    return _persist(machine, WriteKind.COMMIT, _committed(machine, machine.record, receipt, proposed))


def _write_failed(machine: Machine, event: fx.WriteFailed | fx.WriteRefused) -> Outcome:
    """Nothing changed on disk; the hold stays, and going on is a new decision."""
    undone = _undone(machine)
    if isinstance(event, fx.WriteRefused):
        return _halt(undone, AttentionCode(event.code.value), event.code, event.at_ms)
    return _halt(undone, AttentionCode.WRITE_FAILED, event.code, event.at_ms)


def _uncertain(machine: Machine, event: fx.WriteUncertain) -> Outcome:
    """Nobody knows what a power loss would leave: publish nothing, open nothing, write only what a person chose."""
    attempt, record, fallback = _as_written(machine, event), machine.record, machine.fallback
    assert record is not None
    if fallback is None:
        holding = [r for r in (attempt, record) if r.transaction is not None and r.transaction.hold]
        fallback = holding[0] if holding else None
    doubtful = replace(
        machine,
        attempt=None,
        maybe=(*(machine.maybe or (record,)), attempt),
        write_seq=attempt.write_seq,
        fallback=fallback,
        max_attempted=max(machine.max_attempted, attempt.current.route_revision),
    )
    return _halt(doubtful, AttentionCode.WRITE_UNCERTAIN, Code.AUTHORITY_WRITE_UNCERTAIN, event.at_ms)


def _still_uncertain(machine: Machine, event: fx.WriteFailed | fx.WriteRefused) -> Outcome:
    """The attempt to end the doubt left no trace, and the doubt is what it was."""
    if isinstance(event, fx.WriteRefused):
        return _halt(_undone(machine), AttentionCode(event.code.value), event.code, event.at_ms)
    return _halt(_undone(machine), AttentionCode.WRITE_UNCERTAIN, event.code, event.at_ms)


def _published(machine: Machine, event: fx.Written) -> Outcome:
    """Durable, so publish; published, so prove what is published."""
    durable = _durable(machine, event)
    assert durable.receipt is not None
    published, effects = _publish(durable, durable.receipt.scope)
    verifying, asked = _probe_identity(published, event)
    return verifying, effects + asked


def _probe_identity(machine: Machine, _event: object) -> Outcome:
    """Prove the scope exactly as it is now published."""
    assert machine.published is not None
    assert machine.receipt is not None
    assert machine.task is not None
    targets = _targets(machine.published.projection, machine.receipt.scope)
    probe = fx.ProbeIdentity(machine.ticket + 1, targets, machine.task.call.verify_timeout_ms)
    return machine, (_ask(machine, probe),)


def _identify(machine: Machine, event: fx.IdentityProved) -> rc.Receipt:
    assert machine.receipt is not None
    return replace(machine.receipt, identity=rc.Identity(event.at_ms, rc.kept_names(event.observed)))


def _readmit(machine: Machine, event: fx.IdentityProved) -> Outcome:
    assert machine.record is not None
    receipt = _note(_identify(machine, event), "completed", event.at_ms)
    receipt = replace(receipt, state=rc.State.COMPLETED, hold=False)
    return _persist(machine, WriteKind.READMIT, replace(machine.record, transaction=receipt))


def _verify_failed(machine: Machine, event: fx.IdentityFailed) -> Outcome:
    return _halt(machine, AttentionCode.VERIFY_FAILED, event.code, event.at_ms)


def _released(machine: Machine, event: fx.Written) -> Outcome:
    """The end of the hold is durable: now the gate may open."""
    durable = _durable(machine, event)
    ended, replies = _end(replace(durable, gated=()))
    return ended, (fx.OpenGate(machine.gated), *replies)


def _verify(machine: Machine, command: fx.Verify) -> Outcome:
    return _probe_identity(replace(machine, task=command, attention=None), command)


# --- cancel


def _cancel(machine: Machine, command: fx.Cancel) -> Outcome:
    """A wait in progress ends for its caller; the original target must prove itself as it is still published."""
    effects: tuple[Effect, ...] = ()
    if machine.task is not None:
        effects = (fx.AbandonWait(machine.ticket), fx.Reply(machine.task.call.id, Code.TRANSACTION_CHANGED))
    asked, probe = _probe_identity(replace(machine, task=command, attention=None), command)
    return asked, effects + probe


def _cancel_unverified(machine: Machine, event: fx.IdentityFailed) -> Outcome:
    return _halt(machine, AttentionCode.CANCEL_TARGET_UNVERIFIED, Code.CANCEL_TARGET_UNVERIFIED, event.at_ms)


def _cancel_verified(machine: Machine, event: fx.IdentityProved) -> Outcome:
    assert machine.record is not None
    receipt = _note(_identify(machine, event), "cancelled", event.at_ms)
    receipt = replace(receipt, state=rc.State.CANCELLED, hold=False)
    return _persist(machine, WriteKind.CANCEL, replace(machine.record, transaction=receipt))


# --- rollback of a committed transaction


def _review(machine: Machine, command: fx.RollBack) -> Outcome | Code:
    assert machine.record is not None
    assert machine.receipt is not None
    assert machine.record.previous is not None
    if command.prepares:
        return Code.INVALID_CHANGE
    proposed = _proposal(machine.record, rc.Rollback(), command.proposed_sha256)
    if isinstance(proposed, Code):
        return proposed
    if _exhausted(machine):
        return Code.REVISION_EXHAUSTED
    begun = replace(machine, task=command, attention=None)
    ticket = machine.ticket + 1
    if command.accepts_unready:
        return begun, (fx.Proceed(fx.PrecheckPassed(ticket, command.call.at_ms)),)
    targets = _targets(proposed, machine.receipt.scope)
    return begun, (fx.Precheck(ticket, targets, command.call.verify_timeout_ms),)


def _reverted(machine: Machine, record: rc.Record, command: fx.RollBack, at_ms: int) -> rc.Record:
    """`record`, which is committed and held, with its previous routes as the next revision under the same hold."""
    parent = record.transaction
    assert parent is not None
    assert record.previous is not None
    receipt = _receipt(replace(machine, record=record), command, rc.Rollback(), parent.scope)
    receipt = replace(receipt, state=rc.State.COMMITTED, drain=parent.drain)
    return _committed(machine, record, _note(receipt, "committed", at_ms), record.previous.projection)


def _revert(machine: Machine, event: fx.PrecheckPassed) -> Outcome:
    assert isinstance(machine.task, fx.RollBack)
    assert machine.record is not None
    record = _reverted(machine, machine.record, machine.task, event.at_ms)
    return _persist(machine, WriteKind.ROLLBACK, record)


def _rolled_back(machine: Machine, event: fx.Written) -> Outcome:
    assert isinstance(machine.task, fx.RollBack)
    durable = _durable(machine, event)
    assert durable.receipt is not None
    published, effects = _publish(durable, durable.receipt.scope)
    if machine.task.accepts_unready:
        waiting, replies = _end(_attend(published, AttentionCode.VERIFY_PENDING))
        return waiting, effects + replies
    return published, (*effects, _ask(published, fx.Proceed(fx.Continued(machine.ticket + 1, event.at_ms))))


# --- uncertain


def _reconsider(machine: Machine, command: fx.Reassert) -> Outcome | Code:
    """Choose the record that is visible; one that ends a hold needs its target proved again before it may."""
    visible = next((shown for shown in machine.maybe if shown.write_seq == command.visible_seq), None)
    if visible is None:
        return Code.AUTHORITY_CHANGED_EXTERNALLY
    receipt = visible.transaction
    if command.transaction_id != (None if receipt is None else receipt.id):
        return Code.TRANSACTION_CHANGED
    begun = replace(machine, task=command, attention=None, maybe=(visible,))
    ticket = machine.ticket + 1
    if machine.gated and (receipt is None or not receipt.hold):
        assert machine.published is not None
        targets = _targets(machine.published.projection, machine.gated)
        return begun, (fx.ProbeIdentity(ticket, targets, command.call.verify_timeout_ms),)
    return begun, (fx.Proceed(fx.IdentityProved(ticket, (), command.call.at_ms)),)


def _overtake(machine: Machine, command: fx.RollBack) -> Outcome | Code:
    """Leave a commit in doubt behind: its rollback, under a revision above it, whichever of the two is on disk."""
    doubted = machine.fallback
    assert doubted is not None
    if command.prepares:
        return Code.INVALID_CHANGE
    if _exhausted(machine):
        return Code.REVISION_EXHAUSTED
    proposed = _proposal(doubted, rc.Rollback(), command.proposed_sha256)
    if isinstance(proposed, Code):
        return proposed
    begun = replace(machine, task=command, attention=None)
    return begun, (fx.Proceed(fx.IdentityProved(machine.ticket + 1, (), command.call.at_ms)),)


def _reassert(machine: Machine, event: fx.IdentityProved) -> Outcome:
    if isinstance(machine.task, fx.RollBack):
        assert machine.fallback is not None
        record = _reverted(machine, machine.fallback, machine.task, event.at_ms)
        return _persist(machine, WriteKind.ROLLBACK, record)
    (visible,) = machine.maybe
    return _persist(machine, WriteKind.REASSERT, visible)


def _reassert_hold(machine: Machine, event: fx.IdentityFailed) -> Outcome:
    """The target of the visible record does not prove itself: make the hold certain instead, not its end."""
    assert machine.fallback is not None
    return _persist(replace(machine, failure=event.code), WriteKind.REASSERT, machine.fallback)


# --- shutdown


def _finish_write(machine: Machine, _event: fx.Shutdown) -> Outcome:
    return replace(machine, stopping=True), ()


def _stop(machine: Machine, _event: fx.Shutdown) -> Outcome:
    """End every wait; what is durable stays as it is, and so does the hold."""
    effects: tuple[Effect, ...] = () if machine.task is None else (fx.AbandonWait(machine.ticket),)
    ended, replies = _end(replace(machine, stopping=False), Code.SHUTTING_DOWN)
    return ended, (*effects, *replies, fx.Stop())


_ACTIONS: Final[Mapping[tuple[State, type[Event]], _Action]] = MappingProxyType(
    {
        (_S.STOPPED, fx.Start): _start,
        (_S.STOPPED, fx.Open): _open,
        (_S.STARTING, fx.Written): _asserted,
        (_S.STARTING, fx.WriteFailed): _start_failed,
        (_S.STARTING, fx.WriteUncertain): _start_failed,
        (_S.STARTING, fx.WriteRefused): _start_failed,
        (_S.STARTING, fx.Shutdown): _finish_write,
        (_S.ASSERTED, fx.FoundTerminal): _found_terminal,
        (_S.ASSERTED, fx.FoundHeld): _found_open,
        (_S.ASSERTED, fx.FoundCommitted): _found_open,
        (_S.ASSERTED, fx.Shutdown): _stop,
        (_S.IDLE, fx.UpdateAliases): _check_targets,
        (_S.IDLE, fx.ReplaceTiers): _hold,
        (_S.IDLE, fx.RollBack): _vet,
        (_S.IDLE, fx.Shutdown): _stop,
        (_S.CHECKING, fx.TargetsReady): _confirm,
        (_S.CHECKING, fx.TargetsUnready): _give_up,
        (_S.CHECKING, fx.Shutdown): _stop,
        (_S.CONFIRMING, fx.TargetsAdmitting): _switch,
        (_S.CONFIRMING, fx.TargetsNotAdmitting): _give_up,
        (_S.CONFIRMING, fx.Shutdown): _stop,
        (_S.SWITCHING, fx.Written): _switched,
        (_S.SWITCHING, fx.WriteFailed): _reopen,
        (_S.SWITCHING, fx.WriteUncertain): _uncertain,
        (_S.SWITCHING, fx.WriteRefused): _reopen,
        (_S.SWITCHING, fx.Shutdown): _finish_write,
        (_S.VETTING, fx.PrecheckPassed): _hold_vetted,
        (_S.VETTING, fx.PrecheckFailed): _give_up,
        (_S.VETTING, fx.Shutdown): _stop,
        (_S.HOLDING, fx.Written): _held,
        (_S.HOLDING, fx.WriteFailed): _reopen,
        (_S.HOLDING, fx.WriteUncertain): _uncertain,
        (_S.HOLDING, fx.WriteRefused): _reopen,
        (_S.HOLDING, fx.Shutdown): _finish_write,
        (_S.DRAINING, fx.LeasesReleased): _count,
        (_S.DRAINING, fx.DrainProgressed): _progress,
        (_S.DRAINING, fx.DrainTimedOut): _drain_timed_out,
        (_S.DRAINING, fx.Cancel): _cancel,
        (_S.DRAINING, fx.Shutdown): _stop,
        (_S.COUNTING, fx.RowsResolved): _counted,
        (_S.COUNTING, fx.RowsUnresolved): _blocked,
        (_S.COUNTING, fx.Cancel): _cancel,
        (_S.COUNTING, fx.Shutdown): _stop,
        (_S.HELD, fx.Continued): _precheck,
        (_S.HELD, fx.Drain): _drain_again,
        (_S.HELD, fx.Resume): _resume,
        (_S.HELD, fx.Cancel): _cancel,
        (_S.HELD, fx.Shutdown): _stop,
        (_S.PRECHECKING, fx.PrecheckPassed): _prove,
        (_S.PRECHECKING, fx.PrecheckFailed): _precheck_failed,
        (_S.PRECHECKING, fx.Shutdown): _stop,
        (_S.PROVING, fx.RowsResolved): _commit,
        (_S.PROVING, fx.RowsUnresolved): _blocked,
        (_S.PROVING, fx.Shutdown): _stop,
        (_S.COMMITTING, fx.Written): _published,
        (_S.COMMITTING, fx.WriteFailed): _write_failed,
        (_S.COMMITTING, fx.WriteUncertain): _uncertain,
        (_S.COMMITTING, fx.WriteRefused): _write_failed,
        (_S.COMMITTING, fx.Shutdown): _finish_write,
        (_S.VERIFYING, fx.IdentityProved): _readmit,
        (_S.VERIFYING, fx.IdentityFailed): _verify_failed,
        (_S.VERIFYING, fx.Shutdown): _stop,
        (_S.READMITTING, fx.Written): _released,
        (_S.READMITTING, fx.WriteFailed): _write_failed,
        (_S.READMITTING, fx.WriteUncertain): _uncertain,
        (_S.READMITTING, fx.WriteRefused): _write_failed,
        (_S.READMITTING, fx.Shutdown): _finish_write,
        (_S.COMMITTED, fx.Continued): _probe_identity,
        (_S.COMMITTED, fx.Verify): _verify,
        (_S.COMMITTED, fx.RollBack): _review,
        (_S.COMMITTED, fx.Shutdown): _stop,
        (_S.REPROVING, fx.IdentityProved): _cancel_verified,
        (_S.REPROVING, fx.IdentityFailed): _cancel_unverified,
        (_S.REPROVING, fx.Shutdown): _stop,
        (_S.CANCELLING, fx.Written): _released,
        (_S.CANCELLING, fx.WriteFailed): _write_failed,
        (_S.CANCELLING, fx.WriteUncertain): _uncertain,
        (_S.CANCELLING, fx.WriteRefused): _write_failed,
        (_S.CANCELLING, fx.Shutdown): _finish_write,
        (_S.REVIEWING, fx.PrecheckPassed): _revert,
        (_S.REVIEWING, fx.PrecheckFailed): _precheck_failed,
        (_S.REVIEWING, fx.Shutdown): _stop,
        (_S.REVERTING, fx.Written): _rolled_back,
        (_S.REVERTING, fx.WriteFailed): _write_failed,
        (_S.REVERTING, fx.WriteUncertain): _uncertain,
        (_S.REVERTING, fx.WriteRefused): _write_failed,
        (_S.REVERTING, fx.Shutdown): _finish_write,
        (_S.UNCERTAIN, fx.Reassert): _reconsider,
        (_S.UNCERTAIN, fx.RollBack): _overtake,
        (_S.UNCERTAIN, fx.Shutdown): _stop,
        (_S.RECHECKING, fx.IdentityProved): _reassert,
        (_S.RECHECKING, fx.IdentityFailed): _reassert_hold,
        (_S.RECHECKING, fx.Shutdown): _stop,
        (_S.REASSERTING, fx.Written): _asserted,
        (_S.REASSERTING, fx.WriteFailed): _still_uncertain,
        (_S.REASSERTING, fx.WriteUncertain): _uncertain,
        (_S.REASSERTING, fx.WriteRefused): _still_uncertain,
        (_S.REASSERTING, fx.Shutdown): _finish_write,
    }
)
