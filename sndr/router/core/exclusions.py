"""Which tiers may be replaced live: what a drain of chat requests can prove about the servers behind them.

A drain proves that no request routed by alias is running. It proves nothing about a server that also answers for
somebody else, so such a server may be neither left nor moved to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from sndr.router.core.listener import Listener, is_own_listener
from sndr.router.core.projection import Finding, Overlap, Projection, Tier, compare_endpoints, endpoint

__all__ = ["exclusions", "surfaces"]

_NOT_CHAT: Final = frozenset({"embeddings", "rerank"})


def surfaces(projection: Projection, others: Mapping[str, str]) -> dict[str, str]:
    """Name -> URL of everything that is served by something else than chat.

    Args:
        others: Name -> URL of the surfaces outside the routes (purpose models, speech).
    """
    tiers = projection.tiers.items()
    return {**others, **{f"tier {name}": tier.base_url for name, tier in tiers if _NOT_CHAT & set(tier.serves)}}


def exclusions(
    before: Projection,
    after: Projection,
    scope: Collection[str],
    *,
    others: Mapping[str, str],
    listeners: Collection[Listener],
    own_hosts: frozenset[str] = frozenset(),
) -> tuple[Finding, ...]:
    """Everything that forbids replacing `scope`, each with its public code."""
    return tuple(_exclusions(before, after, scope, others, listeners, own_hosts))


def _exclusions(
    before: Projection,
    after: Projection,
    scope: Collection[str],
    others: Mapping[str, str],
    listeners: Collection[Listener],
    own_hosts: frozenset[str],
) -> Iterator[Finding]:
    outside = {name: tier for name, tier in after.tiers.items() if name not in scope}
    for tier_id in sorted(scope):
        old, new = before.tiers[tier_id], after.tiers[tier_id]
        place = f"/tiers/{tier_id}"
        if new.model is None or new.health_path is None or not new.model_identity:
            yield Finding(
                place,
                "needs model, health_path and model_identity = true: what it serves must be provable",
                "identity_required",
            )
        for listener in listeners:
            if is_own_listener(new.base_url, listener, own_hosts):
                yield Finding(f"{place}/base_url", "is this gateway itself", "endpoint_invalid")
        yield from _shared(place, old, new, surfaces(after, others))
        for name, tier in outside.items():
            if _meets(old, new, tier.base_url) is Overlap.SAME and not _NOT_CHAT & set(tier.serves):
                yield Finding(
                    f"{place}/base_url",
                    f"is the server of tier {name} too; replace both together, or move that one first",
                    "endpoint_overlap",
                )


def _shared(place: str, old: Tier, new: Tier, taken: Mapping[str, str]) -> Iterator[Finding]:
    for name, url in taken.items():
        meets = _meets(old, new, url)
        if meets is Overlap.SAME:
            yield Finding(
                f"{place}/base_url", f"is the server of {name} too, whose requests no drain counts", "shared_endpoint"
            )
        elif meets is Overlap.UNPROVABLE:
            yield Finding(
                f"{place}/base_url",
                f"may be the server of {name}: the port is the same and one host is a name; write addresses",
                "shared_endpoint_unprovable",
            )


def _meets(old: Tier, new: Tier, url: str) -> Overlap:
    """The closer of the two relations that a tier's old and new server have with another URL."""
    found = {compare_endpoints(endpoint(tier.base_url), endpoint(url)) for tier in (old, new)}
    return next((one for one in (Overlap.SAME, Overlap.UNPROVABLE) if one in found), Overlap.DIFFERENT)
