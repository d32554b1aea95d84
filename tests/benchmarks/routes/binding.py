"""What a live authority adds to one request: the step that binds it to a snapshot, and the line of its answer.

    python tests/benchmarks/routes/binding.py

Prints nanoseconds per request with and without authority, the median of many short rounds that take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from sndr.router.core.admission import Admission, Lease
from sndr.router.core.projection import Projection, TierTarget, parse, sha256
from sndr.router.core.snapshot import Snapshot
from sndr.router.core.usage import StartRow
from sndr.router.gateway.endpoints import revision_field
from sndr.router.gateway.gate import DataGate
from sndr.router.gateway.published import Published, build_snapshot

ROUNDS, PER_ROUND = 400, 1000


class _Nobody:
    def admitted(self, lease: Lease) -> None:
        raise AssertionError

    def turned_away(self, refusal: object) -> None:
        raise AssertionError


def routes() -> Projection:
    tiers = {f"t{n}": {"base_url": f"http://127.0.0.1:{9000 + n}/v1", "model": f"m{n}"} for n in range(8)}
    aliases = {f"llm.{n}": {"tier": f"t{n % 8}"} for n in range(32)}
    return parse({"aliases": aliases, "tiers": tiers}, fill=True)


def bind(gate: DataGate) -> Callable[[], None]:
    """As `Gateway.resolve`, `Exchange.admitted` and `Exchange.response_head` do it."""
    nobody = _Nobody()

    def once() -> None:
        snapshot: Snapshot = gate.snapshot
        target = snapshot.projection.aliases["llm.7"]
        assert isinstance(target, TierTarget)
        runtime = snapshot.runtimes[target.tier]
        lease = runtime.acquire(nobody)
        assert isinstance(lease, Lease)
        StartRow(
            1, "id", "default", "chat", "chat", 1, "llm.7", target.tier, runtime.generation, snapshot.authority_id,
            snapshot.route_revision, snapshot.effective_route_sha256, 0, 100, lease.admission_seq, None,
        )  # fmt: skip
        if snapshot.route_revision is not None:
            revision_field(snapshot)
        lease.release()

    return once


def main() -> None:
    projection = routes()
    runs = {}
    for name, fence in (("off", {}), ("on", {"authority_id": "a" * 36, "route_revision": 7})):
        admission = Admission()
        digest = {"effective_route_sha256": sha256(projection)} if fence else {}
        snapshot = build_snapshot(projection, admission, lambda *_: None, queue_limit=8, **fence, **digest)  # type: ignore[arg-type]  # members by name
        runs[name] = bind(DataGate(Published(snapshot), admission))
    took: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, once in runs.items():
            began = time.perf_counter_ns()
            for _ in range(PER_ROUND):
                once()
            took[name].append((time.perf_counter_ns() - began) / PER_ROUND)
    medians = {name: statistics.median(values) for name, values in took.items()}
    off, on = medians["off"], medians["on"]
    print(f"authority off {off:.0f} ns  on {on:.0f} ns  more {on - off:.0f} ns")


if __name__ == "__main__":
    main()
