"""What must hold, said once: of a record, of the machine, of one step, and of the whole as seen from outside.

Each function returns findings, empty when all is well. The store runs `check_record` at load and before a write, `fsck`
runs it offline, the tests run everything after every step.
"""

from __future__ import annotations

from collections.abc import Iterator

from sndr.router.core.projection import (
    INTEGER_MAX,
    Finding,
    Projection,
    ProjectionError,
    apply_aliases,
    apply_tiers,
    changed_tiers,
    restart_only,
    sha256,
    thaw,
)
from sndr.router.core.receipt import (
    EVENTS_MAX,
    OBSERVED_MAX,
    AliasUpdate,
    ChangeSpec,
    Op,
    Origin,
    Receipt,
    Record,
    Revision,
    Rollback,
    State,
    TierReplacement,
)

__all__ = ["check_record", "propose"]


def propose(record: Record, change: ChangeSpec, *, managed: bool = False) -> Projection:
    """The routes that `change` makes out of the current ones.

    Raises:
        ProjectionError: The change does not fit; for a rollback without a previous projection, code `no_previous`.
    """
    match change:
        case AliasUpdate(aliases=aliases):
            return apply_aliases(
                record.current.projection, {name: {"tier": target.tier} for name, target in aliases.items()}
            )
        case TierReplacement(tiers=tiers):
            return apply_tiers(record.current.projection, thaw(tiers), allow_same=managed)
        case Rollback():
            if record.previous is None:
                raise ProjectionError((Finding("/previous", "there is no previous projection", "no_previous"),))
            return record.previous.projection


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
        try:
            proposed = sha256(propose(record, receipt.change, managed=receipt.managed))
        except ProjectionError as error:
            yield Finding("/transaction/change", f"does not fit the current projection: {error}")
        else:
            if proposed != receipt.proposed_sha256:
                yield Finding("/transaction/proposed_sha256", "is not the hash of what the change proposes")
    if receipt.state is State.COMMITTED and receipt.committed_revision != record.current.route_revision:
        yield Finding("/transaction/committed_revision", "must be the current revision while committed")
    if committed and receipt.committed_revision == record.current.route_revision:
        if receipt.proposed_sha256 != record.current.effective_route_sha256:
            yield Finding("/transaction/proposed_sha256", "must be the hash of the revision it was committed as")
        rebased = record.previous is None and receipt.state is State.COMPLETED  # a rebase forgets what was before
        if not rebased and (record.previous is None or record.previous.fence != receipt.base):
            yield Finding("/previous", "must be the revision that the committed change was made against")


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
        case Rollback():
            # Both sides are in the file only while the rollback is the latest thing that happened to the routes.
            latest = receipt.state is State.HELD or receipt.committed_revision == record.current.route_revision
            if latest and record.previous is not None:
                differing = set(changed_tiers(record.current.projection, record.previous.projection))
                fits = differing <= set(receipt.scope) if receipt.parent_id else differing == set(receipt.scope)
                if not fits:
                    yield Finding("/transaction/scope", "must be the tiers whose definition the rollback changes")
