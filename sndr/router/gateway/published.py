"""The snapshot that new requests are admitted under: built whole, published by one assignment."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import MappingProxyType
from typing import TYPE_CHECKING

from sndr.router.core.admission import Admission, Refusal, TierRuntime
from sndr.router.core.family import Presets, compile_families
from sndr.router.core.projection import TierTarget, tier_sha256
from sndr.router.core.snapshot import Snapshot

if TYPE_CHECKING:
    from sndr.router.core.projection import Projection, Tier

__all__ = ["Published", "build_snapshot"]


class Published:
    """The one reference. Reading it twice within one request is a fault: the two may differ.

    Attributes:
        snapshot: The current one.
    """

    __slots__ = ("snapshot",)

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def swap(self, snapshot: Snapshot) -> tuple[TierRuntime, ...]:
        """Publish, then retire the runtimes that the new snapshot does not carry; returns those.

        Who waits for a slot of a tier that lost an alias resolves again, in the order of the queue.
        """
        before, self.snapshot = self.snapshot, snapshot
        kept = set(map(id, snapshot.runtimes.values()))
        retired = tuple(runtime for runtime in before.runtimes.values() if id(runtime) not in kept)
        for runtime in retired:
            runtime.retire()
        aliases = snapshot.projection.aliases
        for alias, target in before.projection.aliases.items():
            if aliases.get(alias) != target:
                family = before.families.get(alias)
                tiers = (target.tier,) if isinstance(target, TierTarget) else () if family is None else family.tiers
                for tier_id in tiers:
                    runtime = before.runtimes[tier_id]
                    if runtime.queued:
                        runtime.turn_away(Refusal.MOVED)
        return retired


def build_snapshot(
    projection: Projection,
    admission: Admission,
    upstream: Callable[[Tier], object],
    *,
    queue_limit: int,
    previous: Snapshot | None = None,
    authority_id: str | None = None,
    route_revision: int | None = None,
    effective_route_sha256: str | None = None,
    replaced: Collection[str] = (),
    presets: Presets | None = None,
) -> Snapshot:
    """A snapshot of these routes; nothing is published.

    A tier whose definition is the same in `previous` keeps its runtime, and with it its slots, counters and queue. Any
    other tier, and each of `replaced`, gets a new one whose generation is the revision. `presets` are those of the
    routing table, for family aliases.
    """
    runtimes: dict[str, TierRuntime] = {}
    for tier_id, spec in projection.tiers.items():
        known = previous.runtimes.get(tier_id) if previous is not None else None
        if known is not None and tier_id not in replaced and _is_same(known.spec, spec):
            runtimes[tier_id] = known
            continue
        runtimes[tier_id] = TierRuntime(
            admission,
            spec,
            tier_id=tier_id,
            generation=route_revision or 1,
            queue_limit=queue_limit,
            upstream=upstream(spec),
        )
    return Snapshot(
        authority_id,
        route_revision,
        effective_route_sha256,
        projection,
        MappingProxyType(runtimes),
        compile_families(projection, presets or {}, admission.gate),
    )


def _is_same(one: Tier, other: Tier) -> bool:
    # The hash decides, because 1, 1.0 and True are equal in Python and different to a model server.
    return one is other or tier_sha256(one) == tier_sha256(other)
