"""Family aliases compiled for one snapshot: which tier runs which preset, which of them a request may be sent to, and
whose requests count as the family's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sndr.router.core.projection import FamilyTarget, OnUnready, Projection

if TYPE_CHECKING:
    from sndr.router.core.admission import TierGate

__all__ = ["FamilyRoute", "PresetRow", "Presets", "compile_families", "serving", "tiers_of"]


@dataclass(frozen=True, slots=True)
class PresetRow:
    """What routing needs to know of a preset within a family.

    Attributes:
        depth: Speculative depth (K); None where the table does not say.
        is_default: It is the default of the family.
        is_chosen: There are requests that the table sends to it.
    """

    depth: int | None
    is_default: bool
    is_chosen: bool


Presets: TypeAlias = Mapping[str, Mapping[str, PresetRow]]
"""Family -> preset -> what is known of it; empty for a table that is not used."""


@dataclass(frozen=True, slots=True)
class FamilyRoute:
    """One family alias.

    Attributes:
        family: Model family.
        natural: Tier for everything that the table sends nowhere.
        tier_of: Preset -> the tier that runs it.
        fallback_of: Preset -> the tier of the family's default, for presets whose requests may go there when their
            own tier cannot take them. Empty unless the alias asks for it.
        serving: Tiers that a request to the alias may be sent to, the natural one first.
        tiers: All tiers of the family, whichever alias leads to them.
        gates: Their gates.
    """

    family: str
    natural: str
    tier_of: Mapping[str, str]
    fallback_of: Mapping[str, str]
    serving: tuple[str, ...]
    tiers: tuple[str, ...]
    gates: tuple[TierGate, ...]

    def in_flight(self) -> int:
        """Requests of the family that hold a lease, plus the one that asks."""
        return 1 + sum([gate.leases for gate in self.gates])


def tiers_of(family: str, projection: Projection, presets: Presets) -> tuple[str, ...]:
    """Tiers of a family: those that run one of its presets, and the natural tiers of its aliases; sorted."""
    rows = presets.get(family, {})
    found = {tier_id for tier_id, tier in projection.tiers.items() if tier.preset in rows}
    found |= {t.natural for t in projection.aliases.values() if isinstance(t, FamilyTarget) and t.family == family}
    return tuple(sorted(found))


def compile_families(
    projection: Projection, presets: Presets, gate: Callable[[str], TierGate]
) -> Mapping[str, FamilyRoute]:
    """Every family alias of these routes."""
    families = _members(projection, presets)
    compiled = {}
    for alias, target in projection.aliases.items():
        if isinstance(target, FamilyTarget):
            members = families[target.family]
            tier_of = _tier_of(target, members, projection)
            fallback_of = _fallbacks(target, tier_of, members.rows)
            compiled[alias] = FamilyRoute(
                target.family,
                target.natural,
                MappingProxyType(tier_of),
                MappingProxyType(fallback_of),
                _serving(target, members, tier_of, fallback_of),
                members.tiers,
                tuple(gate(tier_id) for tier_id in members.tiers),
            )
    return MappingProxyType(compiled)


def serving(projection: Projection, presets: Presets) -> dict[str, tuple[str, ...]]:
    """Tiers that a request to each alias may be sent to."""
    families = _members(projection, presets)
    found = {}
    for alias, target in projection.aliases.items():
        if isinstance(target, FamilyTarget):
            members = families[target.family]
            tier_of = _tier_of(target, members, projection)
            found[alias] = _serving(target, members, tier_of, _fallbacks(target, tier_of, members.rows))
        else:
            found[alias] = (target.tier,)
    return found


class _Members(NamedTuple):
    """What all aliases of a family share.

    Attributes:
        tiers: Its tiers.
        tier_of: Preset -> the tier that runs it: where two do, one of the family is preferred, then the first by id, so
            that the choice depends on nothing but the routes.
        rows: Its presets.
    """

    tiers: tuple[str, ...]
    tier_of: Mapping[str, str]
    rows: Mapping[str, PresetRow]


def _members(projection: Projection, presets: Presets) -> Mapping[str, _Members]:
    found = {}
    for family in {target.family for target in projection.aliases.values() if isinstance(target, FamilyTarget)}:
        tiers = tiers_of(family, projection, presets)
        tier_of: dict[str, str] = {}
        for tier_id in (*tiers, *projection.tiers):
            preset = projection.tiers[tier_id].preset
            if preset is not None:
                tier_of.setdefault(preset, tier_id)
        found[family] = _Members(tiers, tier_of, presets.get(family, {}))
    return found


def _tier_of(target: FamilyTarget, members: _Members, projection: Projection) -> dict[str, str]:
    """The alias's own: its natural tier is preferred to any other that runs the same preset."""
    preset = projection.tiers[target.natural].preset
    return dict(members.tier_of) if preset is None else {**members.tier_of, preset: target.natural}


def _serving(
    target: FamilyTarget, members: _Members, tier_of: Mapping[str, str], fallback_of: Mapping[str, str]
) -> tuple[str, ...]:
    found = {target.natural: None}
    for key, row in members.rows.items():
        if row.is_chosen and key in tier_of:
            found[tier_of[key]] = None
            if key in fallback_of:
                found[fallback_of[key]] = None
    return tuple(found)


def _fallbacks(target: FamilyTarget, tier_of: Mapping[str, str], rows: Mapping[str, PresetRow]) -> dict[str, str]:
    """Never from no speculation up to speculation: a depth that is not known is taken for the unfavourable one."""
    default = next((key for key, row in rows.items() if row.is_default), None)
    if target.on_unready is not OnUnready.FAMILY_DEFAULT or default is None or default not in tier_of:
        return {}
    default_depth = rows[default].depth
    is_flat = default_depth is not None and default_depth <= 1
    return {
        key: tier_of[default]
        for key, tier_id in tier_of.items()
        if tier_id != tier_of[default] and (is_flat or (key in rows and (rows[key].depth or 1) > 1))
    }
