"""Route changes under streams: a plane of four aliases, a paced operator, and the verdict over everybody's books.

`p` is behind a tier that is replaced again and again, `q` moves between two tiers, `r` and `s` are outside every scope.
What clients, model servers, pollers and operator say must agree.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.gateway import gateway_process
from tests.support.live import Operator, boot_text, init, private
from tests.support.synthetic import Synthetic, synthetic_process, synthetic_thread
from tests.support.traffic import Done, Kind, Traffic, how

OUTSIDE = ("r", "s")
MODELS = {"a1": "m1", "a2": "m2", "b1": "n1", "b2": "n2", "o": "o1"}
ROUTES = {"p": "a", "q": "b1", "r": "o", "s": "o"}


@dataclass
class Plane:
    """A serving gateway, its operator, and its model servers by name (`a1`, `a2`: the two that tier `a` is in turn)."""

    url: str
    operator: Operator
    servers: dict[str, Synthetic]


@contextmanager
def plane(directory: Path, *, processes: bool, **environ: str) -> Iterator[Plane]:
    """Serve the four aliases; model servers as processes of their own, or as threads of this one."""
    place = private(directory / "plane")
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                synthetic_process("--model", model) if processes else synthetic_thread(model=model)
            )
            for name, model in MODELS.items()
        }
        tiers = {
            tier_id: {"base_url": servers[name].base_url, "model": MODELS[name]}
            for tier_id, name in {"a": "a1", "b1": "b1", "b2": "b2", "o": "o"}.items()
        }
        config = place / "gateway.toml"
        config.write_text(boot_text(place, tiers, {**ROUTES, "unused": "b2"}))
        init(config)
        gateway = stack.enter_context(gateway_process(config, "--allow-volatile-filesystem", **environ))
        operator = stack.enter_context(Operator(gateway))
        yield Plane(operator.url, operator, servers)


def kinds(*, clients: int, delay_ms: float, outside_s: float, inside_s: float = 3) -> list[Kind]:
    """`clients` streams over the four aliases."""
    each = clients // len(ROUTES)
    return [
        Kind(alias, each, int((outside_s if outside else inside_s) * 1000 / delay_ms), delay_ms, keep_gaps=outside)
        for alias in ROUTES
        for outside in [alias in OUTSIDE]
    ]


@dataclass
class Operations:
    """What an operator did.

    Attributes:
        committed: Revision -> hash, of all that were ever in force.
        behind: Revision -> name of the server behind `p`.
        retired: Server, and from when to when (epoch) it was certainly retired.
        tier: Where `q` is.
        waits: Seconds of each replacement, hold to readmission.
        moves: Seconds of each alias update, preview and apply.
    """

    committed: dict[int, str] = field(default_factory=dict)
    behind: dict[int, str] = field(default_factory=dict)
    retired: list[tuple[str, float, float]] = field(default_factory=list)
    tier: str = "b1"
    waits: list[float] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)

    def begin(self, plane: Plane) -> None:
        """Note where it starts."""
        view = plane.operator.view()
        self.committed[view["route_revision"]] = view["effective_route_sha256"]
        self.behind[view["route_revision"]] = "a1"
        self._since["a2"] = time.time()

    def move(self, plane: Plane) -> None:
        """`q` goes to its other tier."""
        self.tier = {"b1": "b2", "b2": "b1"}[self.tier]
        began = time.monotonic()
        receipt = plane.operator.change(op="alias_update", aliases={"q": {"tier": self.tier}})
        self.moves.append(time.monotonic() - began)
        self._committed(receipt, self.behind[max(self.behind)])

    def replace(self, plane: Plane) -> None:
        """Tier `a` becomes its other server."""
        old = self.behind[max(self.behind)]
        new = {"a1": "a2", "a2": "a1"}[old]
        self.retired.append((new, self._since[new], time.time()))
        target = {"base_url": plane.servers[new].base_url, "model": MODELS[new]}
        began = time.monotonic()
        receipt = plane.operator.change({"drain_timeout_s": 60}, op="tier_replacement", tiers={"a": target})
        self.waits.append(time.monotonic() - began)
        assert receipt["streams"]["cut"] == 0
        self._since[old] = time.time()
        self._committed(receipt, new)

    def end(self) -> None:
        """Nothing more will change."""
        self.retired += [(name, since, time.time()) for name, since in self._since.items() if name != self._now()]

    def _now(self) -> str:
        return self.behind[max(self.behind)]

    def _committed(self, receipt: Any, behind: str) -> None:
        assert receipt["state"] == "completed"
        revision = receipt["changed"]["to"]["route_revision"]
        assert revision > max(self.committed)
        self.committed[revision] = receipt["changed"]["to"]["effective_route_sha256"]
        self.behind[revision] = behind


def operate(plane: Plane, operations: Operations, *, seconds: float, moves: int, replacements: int) -> None:
    """Spread so many changes evenly over a time."""
    began = time.monotonic()
    due = sorted(
        [((n + 0.5) / moves, "move") for n in range(moves)]
        + [((n + 0.5) / replacements, "replace") for n in range(replacements)]
    )
    for share, what in due:
        time.sleep(max(0.0, began + share * seconds - time.monotonic()))
        (operations.move if what == "move" else operations.replace)(plane)
    time.sleep(max(0.0, began + seconds - time.monotonic()))


@dataclass
class Verdict:
    """Everything that must be nothing."""

    outside_lost: list[Done]
    inside_cut: list[Done]
    inside_refused_otherwise: list[Done]
    on_retired: list[str]
    wrong_server: list[str]
    unknown_to_clients: list[str]
    unended: list[str]
    polls_back: int
    polls_torn: int
    failed_polls: int

    def faults(self) -> dict[str, Any]:
        """Those that are not nothing."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name))}


def judge(plane: Plane, traffic: Traffic, operations: Operations) -> Verdict:
    """Compare everybody's books, once the traffic has ended."""
    logs = {
        name: [entry for entry in server.log() if entry["method"] == "POST"] for name, server in plane.servers.items()
    }
    where = {entry["id"]: name for name, log in logs.items() for entry in log}
    inside = [one for one in traffic.done if one.alias not in OUTSIDE]
    answered = [one for one in traffic.done if one.status == 200]
    known = {one.id for one in traffic.done}
    retired = [
        entry["id"]
        for name, since, until in operations.retired
        for entry in logs[name]
        if since < entry["received_at"] < until
    ]
    return Verdict(
        outside_lost=[one for one in traffic.done if one.alias in OUTSIDE and how(one) != "whole"],
        inside_cut=[one for one in inside if how(one) in ("cut", "failed")],
        inside_refused_otherwise=[
            one for one in inside if how(one) == "refused" and (one.alias, one.code) != ("p", "held")
        ],
        on_retired=retired,
        wrong_server=[
            one.id
            for one in answered
            if one.alias == "p" and (one.revision is None or where.get(one.id) != operations.behind[one.revision])
        ],
        unknown_to_clients=[request_id for request_id in where if request_id not in known],
        unended=[entry["id"] for log in logs.values() for entry in log if entry["ended"] != "complete"],
        polls_back=sum(later[0] < earlier[0] for seen in traffic.polls for earlier, later in pairwise(seen)),
        polls_torn=sum(operations.committed.get(revision) != sha for seen in traffic.polls for revision, sha in seen),
        failed_polls=traffic.failed_polls,
    )
