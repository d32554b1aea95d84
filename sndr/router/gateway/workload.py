"""Family aliases: the contract's decision for each request, and the tier that it leads to.

The decision is `sndr.contract`'s, over the members of the body that it reads, and over the gateway's own count of the
family's leases. Nothing here looks at a prompt. Everything that follows from a decision alone (ledger text, header
lines) is made once for each distinct decision: there are as many as the table has cells.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from sndr.contract import HINT_HEADERS, READ_MEMBERS, Decision, Dialect, Table, decide

if TYPE_CHECKING:
    from sndr.router.core.admission import TierRuntime
    from sndr.router.core.family import FamilyRoute
    from sndr.router.core.snapshot import Snapshot
    from sndr.router.wire.http1 import RequestHead
    from sndr.router.wire.openai_api import ChatRequest

__all__ = ["HINT_FIELDS", "Routing", "Workload"]

HINT_FIELDS: Final = frozenset(name.encode() for name in HINT_HEADERS)
_DIALECTS: Final[Mapping[str, Dialect]] = {
    "chat": "chat",
    "completions": "chat",
    "responses": "responses",
    "messages": "messages",
}
"""Endpoints whose requests are classified; every other endpoint of a family alias goes to the natural tier."""
_READ: Final = {dialect: frozenset(members) - {"model"} for dialect, members in READ_MEMBERS.items()}
_FIELDS: Final = (
    ("x-sndr-workload", "workload_class"),
    ("x-sndr-length", "expected_output_length"),
    ("x-sndr-mode", "concurrency_mode"),
    ("x-sndr-outcome", "outcome"),
    ("x-sndr-rule", "rule_id"),
    ("x-sndr-evidence-tag", "evidence_tag"),
    ("x-sndr-gap", "gap"),
)
_VALUE_MAX: Final = 256
_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_KEPT_MAX: Final = 4096


class Routing(NamedTuple):
    """A decision about a family alias, ready for the ledger, the headers and the counters.

    Attributes:
        decision: The record.
        substitute: Why the tier is not the one that the decision names: `unbound` (no tier runs the preset) or
            `on_unready` (it cannot take requests now, and the alias prefers the family's default); else None.
        text: The record as JSON.
        fields: Header lines of a receipt.
    """

    decision: Decision
    substitute: str | None
    text: str
    fields: bytes


class Workload:
    """Decides for every family alias over one table, for the life of the process."""

    def __init__(self, table: Table, can_take: Callable[[TierRuntime], bool]) -> None:
        """Make it.

        Args:
            can_take: Whether a tier could start or queue a request at this moment.
        """
        self._table = table
        self._can_take = can_take
        self._made: dict[tuple[Decision, str | None], Routing] = {}

    def choose(
        self, route: FamilyRoute, snapshot: Snapshot, endpoint: str, request: ChatRequest, head: RequestHead
    ) -> tuple[str, Routing | None]:
        """The tier for a request at this instant, and the decision; None where the endpoint has no workload."""
        dialect = _DIALECTS.get(endpoint)
        if dialect is None:
            return route.natural, None
        fields = head.fields
        hints = [
            (name.decode(), value.decode("latin-1")) for name, value, _ in head.headers if name in HINT_FIELDS
        ] if not HINT_FIELDS.isdisjoint(fields) else None  # fmt: skip
        decision = decide(
            self._table,
            request.read(_READ[dialect]),
            in_flight=route.in_flight(),
            headers=hints,
            dialect=dialect,
            family=route.family,
        )
        preset = decision.preset_key
        substitute: str | None = None
        tier_id = route.natural
        if preset is not None:
            bound = route.tier_of.get(preset)
            if bound is None:
                substitute = "unbound"
            else:
                tier_id = bound
                other = route.fallback_of.get(preset)
                if (
                    other is not None
                    and not self._can_take(snapshot.runtimes[bound])
                    and self._can_take(snapshot.runtimes[other])
                ):
                    tier_id, substitute = other, "on_unready"
        key = (decision, substitute)
        return tier_id, self._made.get(key) or self._make(key)

    def _make(self, key: tuple[Decision, str | None]) -> Routing:
        decision, substitute = key
        record = decision.record()
        lines = [f"{name}: {_header(value)}\r\n" for name, member in _FIELDS if (value := record[member]) is not None]
        if substitute is not None:
            record["substitute"] = substitute
        made = Routing(decision, substitute, json.dumps(record), "".join(lines).encode())
        if len(self._made) < _KEPT_MAX:
            self._made[key] = made
        return made


def _header(value: str) -> str:
    """A table's own word as a field value: printable ASCII, everything else percent-encoded, not endless."""
    return quote(value, safe=_PRINTABLE, errors="replace")[:_VALUE_MAX].strip()
