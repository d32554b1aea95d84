"""What a change makes of the routes it is applied to."""

from __future__ import annotations

from sndr.router.core.projection import Finding, Projection, ProjectionError, apply_aliases, apply_tiers, thaw
from sndr.router.core.receipt import AliasUpdate, ChangeSpec, Record, TierReplacement

__all__ = ["propose"]


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
        case _:
            if record.previous is None:
                raise ProjectionError((Finding("/previous", "there is no previous projection", "no_previous"),))
            return record.previous.projection
