"""What must hold, said once: of a record, of the machine, of one step, and of the whole as seen from outside.

Each function returns findings, empty when all is well. The store runs `check_record` at load and before a write, `fsck`
runs it offline, the tests run everything after every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sndr.router.core import effects as fx
from sndr.router.core.projection import (
    INTEGER_MAX,
    Finding,
    Projection,
    ProjectionError,
    changed_tiers,
    restart_only,
    sha256,
)
from sndr.router.core.proposal import propose
from sndr.router.core.receipt import (
    EVENTS_MAX,
    OBSERVED_MAX,
    AliasUpdate,
    Op,
    Origin,
    Receipt,
    Record,
    Revision,
    Rollback,
    State,
    TierReplacement,
)
from sndr.router.core.recovery import RECOVERY, Standing
from sndr.router.core.transaction import TRANSITIONS, Machine
from sndr.router.core.transaction import State as Phase

__all__ = ["check_machine", "check_record", "check_step"]


def check_record(record: Record, boot: Projection | None = None) -> tuple[Finding, ...]:
    """What in a record contradicts itself, or the boot projection where one is given.

    Types, ranges of strings and the digest are the codec's to check; this checks meaning.
    """
    return tuple(_check_record(record, boot))


def _check_record(record: Record, boot: Projection | None) -> Iterator[Finding]:
    current, previous = record.current, record.previous
    yield from _check_revision(current, "/current")
    if not 1 <= record.write_seq <= INTEGER_MAX:
        yield Finding("/write_seq", f"must be 1 to {INTEGER_MAX}")
    if previous is not None:
        yield from _check_revision(previous, "/previous")
        if previous.route_revision >= current.route_revision:
            yield Finding("/previous/route_revision", "must be lower than the current revision")
    if boot is not None:
        if sha256(boot) != record.boot_sha256:
            yield Finding("/boot/projection_sha256", "is not the hash of the boot file's projection")
        for revision, place in ((current, "/current"), (previous, "/previous")):
            if revision is not None:
                for finding in restart_only(boot, revision.projection):
                    yield Finding(f"{place}/projection{finding.pointer}", finding.message, finding.code)
    if record.transaction is not None:
        yield from _check_receipt(record, record.transaction)
        yield from _check_state(record, record.transaction)
        yield from _check_scope(record, record.transaction)


def _check_revision(revision: Revision, place: str) -> Iterator[Finding]:
    if not 1 <= revision.route_revision <= INTEGER_MAX:
        yield Finding(f"{place}/route_revision", f"must be 1 to {INTEGER_MAX}")
    if sha256(revision.projection) != revision.effective_route_sha256:
        yield Finding(f"{place}/effective_route_sha256", "is not the hash of the projection beside it")


_CHANGE_OF = {Op.ALIAS_UPDATE: AliasUpdate, Op.TIER_REPLACEMENT: TierReplacement, Op.ROLLBACK: Rollback}


def _check_receipt(record: Record, receipt: Receipt) -> Iterator[Finding]:
    """What every receipt satisfies, whatever its state."""
    if not isinstance(receipt.change, _CHANGE_OF[receipt.op]):
        yield Finding("/transaction/change/kind", f"must be {receipt.op} as the transaction's op")
    if (receipt.origin is Origin.ROLLBACK) != (receipt.op is Op.ROLLBACK):
        yield Finding("/transaction/origin", "must be rollback for a rollback, and change for all else")
    if receipt.parent_id is not None and receipt.op is not Op.ROLLBACK:
        yield Finding("/transaction/parent_id", "only a rollback has a parent")
    if receipt.hold == receipt.state.is_terminal:
        yield Finding("/transaction/hold", "must be true in held and committed, false otherwise")
    if len(receipt.events) > EVENTS_MAX:
        yield Finding("/transaction/events", f"at most {EVENTS_MAX} events are kept")
    if any(later.seq <= earlier.seq for earlier, later in zip(receipt.events, receipt.events[1:], strict=False)):
        yield Finding("/transaction/events", "seq must rise strictly")
    if receipt.drain is not None and (receipt.drain.cut != 0 or (receipt.drain.complete and receipt.drain.unresolved)):
        yield Finding("/transaction/drain", "cut must be 0, and unresolved too once complete")
    if receipt.identity is not None:
        if len(receipt.identity.observed) > OBSERVED_MAX:
            yield Finding("/transaction/identity/observed", f"at most {OBSERVED_MAX} names are kept")
        if receipt.identity.proves != "advertised_name":
            yield Finding("/transaction/identity/proves", "must be advertised_name: nothing more was proved")
    if receipt.evidence is not None and (not receipt.managed or set(receipt.evidence.containers) != set(receipt.scope)):
        yield Finding("/transaction/evidence", "belongs to a managed transaction and covers exactly its scope")
    if receipt.committed_revision is not None and not (
        receipt.base.route_revision < receipt.committed_revision <= record.current.route_revision
    ):
        yield Finding("/transaction/committed_revision", "must be above base and not above the current revision")


def _check_state(record: Record, receipt: Receipt) -> Iterator[Finding]:
    """What the receipt's state says about the routes beside it."""
    committed = receipt.committed_revision is not None
    if committed != (receipt.state in (State.COMMITTED, State.COMPLETED)):
        yield Finding("/transaction/committed_revision", "must be set in committed and completed, null otherwise")
    if receipt.state is State.HELD:
        if receipt.base != record.current.fence:
            yield Finding("/transaction/base", "must be the current revision while held")
        yield from _check_proposal(record, receipt)
    if receipt.state is State.COMMITTED and receipt.committed_revision != record.current.route_revision:
        yield Finding("/transaction/committed_revision", "must be the current revision while committed")
    if committed and receipt.committed_revision == record.current.route_revision:
        if receipt.proposed_sha256 != record.current.effective_route_sha256:
            yield Finding("/transaction/proposed_sha256", "must be the hash of the revision it was committed as")
        rebased = record.previous is None and receipt.state is State.COMPLETED  # a rebase forgets what was before
        if not rebased and (record.previous is None or record.previous.fence != receipt.base):
            yield Finding("/previous", "must be the revision that the committed change was made against")
        elif record.previous is not None and not isinstance(receipt.change, Rollback):
            # A rollback took its routes from a revision that the file no longer has.
            yield from _check_proposal(replace(record, current=record.previous, previous=None), receipt)


def _check_proposal(base: Record, receipt: Receipt) -> Iterator[Finding]:
    """The change, made once more against what it was made against, gives what the receipt says."""
    try:
        proposed = sha256(propose(base, receipt.change, managed=receipt.managed))
    except ProjectionError as error:
        yield Finding("/transaction/change", f"does not fit the projection it was made against: {error}")
    else:
        if proposed != receipt.proposed_sha256:
            yield Finding("/transaction/proposed_sha256", "is not the hash of what the change proposes")


def _check_scope(record: Record, receipt: Receipt) -> Iterator[Finding]:
    if list(receipt.scope) != sorted(set(receipt.scope)):
        yield Finding("/transaction/scope", "must be sorted, without repetition")
    if not set(receipt.scope) <= set(record.current.projection.tiers):
        yield Finding("/transaction/scope", "names a tier that does not exist")
    match receipt.change:
        case AliasUpdate():
            if receipt.scope:
                yield Finding("/transaction/scope", "must be empty for an alias update")
        case TierReplacement(tiers=tiers):
            if not receipt.scope or set(receipt.scope) != set(tiers):
                yield Finding("/transaction/scope", "must be the tiers of the change")
        case _:
            # A rollback: both sides are in the file only while it is the latest thing that happened to the routes.
            latest = receipt.state is State.HELD or receipt.committed_revision == record.current.route_revision
            if latest and record.previous is not None:
                differing = set(changed_tiers(record.current.projection, record.previous.projection))
                fits = differing <= set(receipt.scope) if receipt.parent_id else differing == set(receipt.scope)
                if not fits:
                    yield Finding("/transaction/scope", "must be the tiers whose definition the rollback changes")


# --- the machine, and one step of it

_UNGATED = frozenset({Phase.IDLE, Phase.CHECKING, Phase.CONFIRMING, Phase.SWITCHING, Phase.VETTING})
_OPEN = {Standing.HELD: State.HELD, Standing.COMMITTED: State.COMMITTED}


def check_machine(machine: Machine) -> tuple[Finding, ...]:
    """What in the machine's memory contradicts itself; the code of a finding names the invariant."""
    return tuple(_check_machine(machine))


def _check_machine(machine: Machine) -> Iterator[Finding]:
    standing, record, attention = machine.standing, machine.record, machine.attention
    if record is None or standing is Standing.STOPPED:
        return
    if machine.state in _UNGATED and machine.gated:
        yield Finding("/gated", "a gate is closed though no transaction is open", "INV-19")
    held = record.transaction
    if standing in _OPEN:
        if held is None or held.state is not _OPEN[standing]:
            yield Finding("/record/transaction/state", f"is not {standing} on disk", "INV-7")
        elif machine.gated != held.scope:
            yield Finding("/gated", "is not the scope of the hold", "INV-7")
        if machine.receipt is None or held is None or machine.receipt.id != held.id:
            yield Finding("/receipt/id", "is not the transaction on disk", "INV-7")
    if machine.published is not None and machine.published.route_revision > record.current.route_revision:
        yield Finding("/published", "is newer than what is known to be durable", "INV-1")
    if machine.max_attempted < record.current.route_revision:
        yield Finding("/max_attempted", "is below the current revision", "INV-2")
    if attention is not None and attention.code not in RECOVERY.get(standing, {}):
        yield Finding("/attention", f"{attention.code} has no recovery in {standing}", "INV-18")
    if machine.state in (Phase.COMMITTED, Phase.UNCERTAIN) and machine.task is None and attention is None:
        yield Finding("/attention", f"{standing} at rest and nobody is asked to act", "INV-18")


_FAILURES = (
    fx.WriteFailed,
    fx.WriteUncertain,
    fx.WriteRefused,
    fx.TargetsUnready,
    fx.TargetsNotAdmitting,
    fx.PrecheckFailed,
    fx.DrainTimedOut,
    fx.RowsUnresolved,
    fx.IdentityFailed,
)
_PUBLISHING = (fx.Written, fx.FoundTerminal, fx.FoundHeld, fx.FoundCommitted)
_OPENING = (fx.Written, fx.FoundTerminal, fx.WriteFailed, fx.WriteRefused)


def check_step(before: Machine, event: fx.Event, after: Machine, effects: tuple[fx.Effect, ...]) -> tuple[Finding, ...]:
    """What is wrong about one step: its transition, the order of its effects, what it asks for."""
    return tuple(_check_step(before, event, after, effects))


def _check_step(before: Machine, event: fx.Event, after: Machine, effects: tuple[fx.Effect, ...]) -> Iterator[Finding]:
    kinds = [type(effect) for effect in effects]
    if after is before:
        if any(kind is not fx.Reply for kind in kinds):
            yield Finding("/effects", "an event that changed nothing had effects", "INV-22")
        return
    if TRANSITIONS[before.state].get(type(event)) is not after.state:
        yield Finding("/state", f"{before.state} to {after.state} is no transition of {type(event).__name__}", "INV-22")
    if isinstance(event, fx.Command) and before.attention is not None and not event.call.recovers:
        yield Finding("/attention", "overruled by a command that is not a recovery", "INV-18")
    asked = [
        index
        for index, effect in enumerate(effects)
        if hasattr(effect, "ticket") and kinds[index] is not fx.AbandonWait
    ]
    if asked and (len(asked) > 1 or asked[0] != len(effects) - 1):
        yield Finding("/effects", "something follows an effect that must first be answered", "INV-1")
    if fx.Persist in kinds:
        if fx.Publish in kinds or fx.OpenGate in kinds:
            yield Finding("/effects", "published or opened before the write it depends on", "INV-1")
        if isinstance(event, _FAILURES) and before.state is not Phase.RECHECKING:
            yield Finding("/effects", "a failure was answered by a write that nobody asked for", "INV-22")
        if after.task is None and not isinstance(event, fx.Start):
            yield Finding("/effects", "a write without a call behind it", "INV-22")
    if fx.Publish in kinds and not isinstance(event, _PUBLISHING):
        yield Finding("/effects", "published without a durable write just before", "INV-1")
    if fx.OpenGate in kinds and not isinstance(event, _OPENING):
        yield Finding("/effects", "opened a gate without an answer of the disk just before", "INV-8")
    if before.published is not None and after.published is not None and not isinstance(event, fx.Start):
        if after.published.route_revision < before.published.route_revision:
            yield Finding("/published", "went back", "INV-2")
        if after.max_attempted < before.max_attempted:
            yield Finding("/max_attempted", "a counter went back", "INV-2")
