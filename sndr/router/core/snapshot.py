"""What a request is admitted under: the routes at one revision, and the runtime of each tier, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sndr.router.core.admission import TierRuntime
    from sndr.router.core.family import FamilyRoute
    from sndr.router.core.projection import Projection

__all__ = ["Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Published by one reference assignment; whoever took the reference keeps a consistent view.

    Attributes:
        authority_id: Identity of the live authority; None when there is none.
        route_revision: Revision of the projection; None without authority.
        effective_route_sha256: Hash of the projection; None without authority.
        projection: Aliases and tiers.
        runtimes: Tier id -> its current generation; the mapping must not be changed after publication.
        families: Family alias -> which of the tiers runs what.
    """

    authority_id: str | None
    route_revision: int | None
    effective_route_sha256: str | None
    projection: Projection
    runtimes: Mapping[str, TierRuntime]
    families: Mapping[str, FamilyRoute] = field(default_factory=lambda: MappingProxyType({}))
