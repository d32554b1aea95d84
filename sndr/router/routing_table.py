"""Door: the routing table that a boot file names, and whether the boot file's family aliases agree with it.

Offline, everything that the two files say is compared. With a probe, the servers are asked as well: what they serve,
how long a context, and (vLLM's metrics) how deep they speculate.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sndr.contract import Table
from sndr.router.core.family import tiers_of
from sndr.router.core.projection import FamilyTarget, Overlap, Tier, compare_endpoints, endpoint
from sndr.router.store import table_source
from sndr.router.wire.routing_table import CELLS, TableState, no_table, unbound

if TYPE_CHECKING:
    import httpx

    from sndr.router.wire.boot import BootConfig

__all__ = ["Judgement", "Sibling", "judge", "load_table", "probe"]

BYTES_MAX: Final = 8 << 20
ANSWER_S: Final = 10.0
"""How long a server may take for one whole answer; a silence is over after the probe's own time."""
_POSITION: Final = re.compile(
    rb'^vllm:spec_decode_num_accepted_tokens_per_pos(?:_total)?\{[^}]*position="(\d+)"', re.MULTILINE
)
_VLLM: Final = re.compile(rb"^vllm:", re.MULTILINE)


def load_table(config: BootConfig, env: Mapping[str, str] | None = None) -> TableState:
    """Read and judge the routing table that the boot file names; runs its command where it names one.

    Args:
        env: The environment for the command; credentials that the boot file names are left out. None is ours.
    """
    keys = config.router.routing_table
    if keys is None:
        return no_table()
    return table_source.load(
        path=config.paths.routing_table,
        command=keys.command,
        cwd=os.path.dirname(os.path.abspath(config.source)),
        env=config.secrets.left_out(os.environ if env is None else env),
        timeout_s=keys.timeout_s,
        max_bytes=keys.max_bytes,
        on_error=keys.on_table_error,
    )


@dataclass(slots=True)
class Judgement:
    """What a check of the family aliases found, one sentence each.

    Attributes:
        findings: To be mended.
        notes: Worth knowing.
    """

    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def judge(config: BootConfig, state: TableState) -> Judgement:
    """Compare the boot file's family aliases with the table, without asking a server."""
    found = Judgement()
    if state.fatal:
        found.findings.append(state.table.degraded or "the routing table cannot be used")
        return found
    table, aliases = state.table, config.projection.aliases
    families = list(dict.fromkeys(t.family for t in aliases.values() if isinstance(t, FamilyTarget)))
    if state.source is not None or families:
        found.notes += table.warnings
    if table.degraded is not None:
        return found
    found.notes += [f"routing table: {finding}" for finding in state.findings]
    found.findings += unbound(config.projection, table)
    known = {preset.preset_key for preset in table.presets}
    for family in families:
        tiers = _tiers(config, state, family)
        _compare_files(family, tiers, table, found)
        found.notes += _gaps(family, table)
        for alias, target in aliases.items():
            if isinstance(target, FamilyTarget) and target.family == family:
                natural = config.projection.tiers[target.natural]
                if natural.preset in known and natural.preset not in state.presets.get(family, {}):
                    found.notes.append(
                        f"alias {alias}: its natural tier {target.natural} runs {natural.preset}, a preset of another"
                        " family"
                    )
                depth = _depth(table, natural)
                if depth is not None and depth > 1:
                    found.notes.append(f"alias {alias}: its natural tier {target.natural} speculates (K={depth})")
    found.notes += [
        f"tier {tier_id}: the routing table has no preset {tier.preset}"
        for tier_id, tier in config.projection.tiers.items()
        if families and tier.preset is not None and tier.preset not in known
    ]
    return found


def _tiers(config: BootConfig, state: TableState, family: str) -> dict[str, Tier]:
    tiers = config.projection.tiers
    return {tier_id: tiers[tier_id] for tier_id in tiers_of(family, config.projection, state.presets)}


def _depth(table: Table, tier: Tier) -> int | None:
    row = None if tier.preset is None else table.preset(tier.preset)
    return None if row is None else row.spec_decode_K


def _compare_files(family: str, tiers: Mapping[str, Tier], table: Table, found: Judgement) -> None:
    for (one_id, one), (other_id, other) in combinations(tiers.items(), 2):
        if one.preset == other.preset:
            if one.preset is not None:
                found.notes.append(
                    f"family {family}: {one_id} and {other_id} both run {one.preset}; requests go to the alias's"
                    " natural tier if it is one of them, else to the first by name"
                )
            continue
        same_server = compare_endpoints(endpoint(one.base_url), endpoint(other.base_url)) is Overlap.SAME
        if same_server and one.model == other.model:
            found.findings.append(
                f"family {family}: {one_id} and {other_id} are one server with one model; each preset needs its own"
            )
        elif one.model == other.model:
            found.notes.append(
                f"family {family}: {one_id} and {other_id} serve the name {one.model}: a probe of identity cannot tell"
                " them apart; check --probe asks for more"
            )
        for key in ("serves", "tool_support", "context_limit", "max_output_tokens"):
            if getattr(one, key) != getattr(other, key):
                outcome = "cut shorter" if key == "max_output_tokens" else "refused"
                found.notes.append(
                    f"family {family}: {one_id} and {other_id} differ in {key}: a request that one of them takes may be"
                    f" {outcome} when the table chooses the other"
                )
    for tier_id, tier in tiers.items():
        row = None if tier.preset is None else table.preset(tier.preset)
        if row is not None and row.served_model_name not in (None, tier.model):
            found.notes.append(
                f"tier {tier_id}: serves {tier.model}, the preset {row.preset_key} is named {row.served_model_name}"
            )


def _gaps(family: str, table: Table) -> list[str]:
    """The family's coverage gaps that a request to this gateway can lie in."""
    found = []
    for gap in table.coverage_gaps:
        if gap.model_family != family or gap.cell is None:
            continue
        cells = [cell for cell in CELLS if table.verdict(family, *cell).gap == gap.missing_cell]
        if cells:
            served = sorted({table.verdict(family, *cell).preset_key or "the natural tier" for cell in cells})
            found.append(
                f"coverage gap {gap.missing_cell} of {family} can be hit ({gap.cell}): served by {', '.join(served)}"
            )
    return found


# -- asking the servers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sibling:
    """What the server of one tier reveals of itself; None and empty where it does not.

    Attributes:
        max_model_len: Longest context of the tier's model.
        depth: Speculative depth: 1 is none.
    """

    tier: str
    preset: str | None
    expected_depth: int | None
    answered: bool
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    depth: int | None = None

    def __str__(self) -> str:
        if not self.answered:
            return f"tier {self.tier}: no answer"
        depth = "not revealed" if self.depth is None else f"K={self.depth}"
        return (
            f"tier {self.tier} ({self.preset or 'no preset'}): serves {', '.join(self.models) or 'nothing'}, context"
            f" {self.max_model_len or 'not revealed'}, speculation {depth}"
        )


def probe(config: BootConfig, state: TableState, found: Judgement) -> None:
    """Ask the servers of every used family, and add what they reveal: a depth that is not the preset's is a finding,
    and so are siblings that reveal everything and differ in nothing."""
    import httpx

    families = dict.fromkeys(t.family for t in config.projection.aliases.values() if isinstance(t, FamilyTarget))
    with httpx.Client(timeout=config.router.probe_timeout_s, follow_redirects=False, trust_env=False) as http:
        for family in families:
            siblings = [
                _ask(http, tier_id, tier, state.table, config.secrets.get(tier.auth_env))
                for tier_id, tier in _tiers(config, state, family).items()
            ]
            found.notes += map(str, siblings)
            _compare_servers(family, siblings, found)


def _compare_servers(family: str, siblings: list[Sibling], found: Judgement) -> None:
    for one in siblings:
        wanted = one.expected_depth
        if wanted is not None and one.depth is not None and max(wanted, 1) != one.depth:
            found.findings.append(
                f"tier {one.tier}: its server speculates with K={one.depth}, its preset {one.preset} says K={wanted}"
            )
    for one, other in combinations(siblings, 2):
        if one.preset == other.preset or not (one.answered and other.answered):
            continue
        if (one.models, one.max_model_len) != (other.models, other.max_model_len):
            continue
        if one.depth is None or other.depth is None:
            found.notes.append(
                f"family {family}: the servers of {one.tier} and {other.tier} do not reveal a difference"
            )
        elif one.depth == other.depth:
            found.findings.append(f"family {family}: the servers of {one.tier} and {other.tier} differ in nothing")


def _ask(http: httpx.Client, tier_id: str, tier: Tier, table: Table, credential: str | None) -> Sibling:
    headers = {} if credential is None else {"authorization": f"Bearer {credential}"}
    parts = urlsplit(tier.base_url)
    expected = _depth(table, tier)
    listed = _get(http, f"{tier.base_url}/models", headers)
    if listed is None:
        return Sibling(tier_id, tier.preset, expected, answered=False)
    models, length = _read_models(listed, tier.model)
    metrics = _get(http, f"{parts.scheme}://{parts.netloc}/metrics", {})
    return Sibling(
        tier_id, tier.preset, expected, True, models, length, None if metrics is None else _read_depth(metrics)
    )


def _get(http: httpx.Client, url: str, headers: Mapping[str, str]) -> bytes | None:
    import httpx

    deadline = time.monotonic() + ANSWER_S
    try:
        with http.stream("GET", url, headers=dict(headers)) as response:
            if response.status_code != 200:
                return None
            data = b""
            for piece in response.iter_bytes():
                data += piece
                if len(data) > BYTES_MAX or time.monotonic() > deadline:
                    return None
            return data
    except (httpx.HTTPError, httpx.InvalidURL):
        return None


def _read_models(listed: bytes, wanted: str | None) -> tuple[tuple[str, ...], int | None]:
    from sndr.contract import parse_json

    try:
        document = parse_json(listed)
    except ValueError:
        return (), None
    entries = document.get("data") if isinstance(document, dict) else None
    named = [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
    length = next((entry.get("max_model_len") for entry in named if entry["id"] == wanted), None)
    return tuple(entry["id"] for entry in named[:16]), length if type(length) is int else None


def _read_depth(metrics: bytes) -> int | None:
    """Depth from vLLM's counters of accepted tokens by position; vLLM without any of them does not speculate."""
    positions = [int(found) for found in _POSITION.findall(metrics)]
    if positions:
        return max(positions) + 1
    return 1 if _VLLM.search(metrics) is not None else None
