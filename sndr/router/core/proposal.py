"""What a change makes of the routes it is applied to."""

from __future__ import annotations

from sndr.router.core.projection import (
    Finding,
    Projection,
    ProjectionError,
    apply_aliases,
    apply_tiers,
    target_json,
    thaw,
)
from sndr.router.core.receipt import AliasUpdate, ChangeSpec, Record, Rollback, TierReplacement

__all__ = ["propose"]


def propose(record: Record, change: ChangeSpec, *, managed: bool = False) -> Projection:
    """The routes that `change` makes out of the current ones.

    Asked again about the very same values, as each step of one transaction does, it gives the answer that it gave.

    Raises:
        ProjectionError: The change does not fit; for a rollback without a previous projection, code `no_previous`.
    """
    global _last
    current, known = record.current.projection, _last
    if known is not None and known[0] is current and known[1] is change and known[2] is managed:
        return known[3]
    proposed = _propose(record, change, managed=managed)
    if not isinstance(change, Rollback):  # which depends on more than the current routes
        _last = (current, change, managed, proposed)
    return proposed


_last: tuple[Projection, ChangeSpec, bool, Projection] | None = None
"""One answer is enough: transactions come one after the other."""


def _propose(record: Record, change: ChangeSpec, *, managed: bool) -> Projection:
    match change:
        case AliasUpdate(aliases=aliases):
            return apply_aliases(
                record.current.projection, {name: target_json(target) for name, target in aliases.items()}
            )
        case TierReplacement(tiers=tiers):
            return apply_tiers(record.current.projection, thaw(tiers), allow_same=managed)
        case _:
            if record.previous is None:
                raise ProjectionError((Finding("/previous", "there is no previous projection", "no_previous"),))
            return record.previous.projection
