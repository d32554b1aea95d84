"""CPU that workload routing adds to a request: `python -m tests.benchmarks.routing`. Exits 1 when a bar is missed.
With `--gateway`: CPU per request of whole gateway processes, for comparison.

Family aliases are measured from the parsed request to the tier, with everything that the decision adds later (stripping
hints, counting); plain aliases against the same step as it would be without family aliases.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from sndr.contract import degraded
from sndr.router.core.admission import Admission
from sndr.router.core.projection import TierTarget, parse
from sndr.router.gateway.endpoints import ROUTED, Context, Gateway
from sndr.router.gateway.gate import DataGate
from sndr.router.gateway.published import Published, build_snapshot
from sndr.router.metrics import Metrics
from sndr.router.wire import openai_api
from sndr.router.wire.routing_table import judge
from tests.support.contract_vectors import D26, G26, M26, REFERENCE, TOOL
from tests.support.gateway import gateway_process
from tests.support.raw import request
from tests.support.synthetic import synthetic_process
from tests.support.workload import siblings

BATCH, BATCHES = 1000, 101
FAMILY_BAR_US, PLAIN_BAR_US = 15.0, 0.5
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x" * 2000}],
    "tools": [TOOL],
    "max_tokens": 200,
    "temperature": 0.2,
    "stream": True,
}
FIELDS = [
    (b"host", b"localhost"), (b"content-type", b"application/json"), (b"authorization", b"Bearer x"),
    (b"accept", b"*/*"), (b"user-agent", b"OpenAI/Python"), (b"content-length", b"2300"),
]  # fmt: skip


def microseconds(call: Callable[[], object]) -> float:
    """Median over batches of the process's CPU time for one call."""
    spent = []
    for _ in range(BATCHES):
        start = time.process_time_ns()
        for _ in range(BATCH):
            call()
        spent.append((time.process_time_ns() - start) / BATCH / 1000)
    return statistics.median(spent)


class Memo:
    fence = None


class Head:
    """A parsed head, as far as it is looked at here."""

    memo = Memo()

    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        self.headers = [(name, value, b"") for name, value in fields]
        self.fields = dict(fields)


class Ready:
    def is_ready(self, _tier: str, _generation: int) -> bool:
        return True


def gateway(table: Any) -> Gateway:
    """A data plane over two siblings; the family already has a request in flight."""
    state = judge("table", json.dumps(REFERENCE).encode(), "natural")
    tiers = {"k1": D26, "k4": M26}
    projection = parse(
        {
            "aliases": {
                "gemma": {"family": G26, "natural": "k1", "on_unready": "family_default"},
                "plain": {"tier": "k1"},
            },
            "tiers": {
                name: {"base_url": "http://h/v1", "model": "m", "preset": preset} for name, preset in tiers.items()
            },
        },
        fill=True,
    )
    admission = Admission()
    snapshot = build_snapshot(projection, admission, lambda _tier: None, queue_limit=8, presets=state.presets)
    anything = cast(Any, None)
    made = Gateway(
        asyncio.new_event_loop(), gate=DataGate(Published(snapshot), admission), ticker=anything,
        readiness=cast(Any, Ready()), credentials=anything, metrics=Metrics(["gemma", "plain"], ["k1", "k4"]),
        table=state.table if table else degraded("none"),
    )  # fmt: skip
    snapshot.runtimes["k1"].acquire(anything)
    return made


def request_of(members: dict[str, Any]) -> openai_api.ChatRequest:
    return openai_api.parse(json.dumps({"model": "gemma", **members}).encode())


def family_us(members: dict[str, Any], *, table: bool = True, fields: list[tuple[bytes, bytes]] | None = None) -> float:
    """What a family alias adds to one request."""
    plane, request = gateway(table), request_of(members)
    context = Context(cast(Any, Head(FIELDS + (fields or []))), "id", 0.0)
    context.endpoint = ROUTED["/v1/chat/completions"]

    def decided() -> None:
        plane.resolve("gemma", context, request)
        plane.count_decision(context)

    plain = microseconds(lambda: plane.resolve("plain", context, request))
    stripped = microseconds(lambda: b"".join(request.pieces(b'"m"', without_hints=True)))
    return microseconds(decided) - plain + stripped - microseconds(lambda: b"".join(request.pieces(b'"m"')))


def plain_us() -> float:
    """What family aliases add to a request of a plain one: the look at its target, and the two counters of its tier."""
    plane, request = gateway(table=True), request_of(BODY)
    context = Context(cast(Any, Head(FIELDS)), "id", 0.0)
    context.endpoint = ROUTED["/v1/chat/completions"]
    gate, tier_gate = plane.gate, plane.gate.snapshot.runtimes["k1"].gate

    class Before:
        def resolve(self, alias: str) -> object:
            snapshot = gate.snapshot
            target = snapshot.projection.aliases[alias]
            tier_id = target.tier if isinstance(target, TierTarget) else target.natural
            return snapshot, tier_id, snapshot.runtimes[tier_id]

    def later() -> None:
        tier_gate.leases += 1
        if context.family or context.routing is not None:
            raise AssertionError
        if context.routing is not None:
            raise AssertionError
        plane.count_decision(context)
        tier_gate.leases -= 1

    before = Before()
    now = microseconds(lambda: plane.resolve("plain", context, request))
    then = microseconds(lambda: before.resolve("plain"))
    return now - then + microseconds(later) - microseconds(lambda: None)


async def _load(url: str, data: bytes, requests: int, connections: int = 16) -> None:
    parts = urlsplit(url)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for _ in range(requests // connections):
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()

    async with asyncio.timeout(120):
        await asyncio.gather(*(client() for _ in range(connections)))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def whole_gateway(rounds: int = 7, requests: int = 4000) -> list[tuple[str, float]]:
    """CPU of the whole gateway process per request: plain alias, family alias with a table, and without one.

    The three take turns within every round; the median over the rounds of each is returned, in microseconds.
    """
    chat = {
        "messages": [{"role": "user", "content": "hi"}],
        "synthetic": {"tokens": 1},
        "tools": [TOOL],
        "max_tokens": 50,
    }
    spent: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        server = stack.enter_context(synthetic_process())
        runs = []
        for label, table in (("with a table", REFERENCE), ("without a table", None)):
            folder = Path(name, label)
            folder.mkdir()
            source = 'path = "table.json"' if table is not None else None
            config = siblings(
                folder, dict.fromkeys(("k1", "k4"), server.base_url), table=table, routing_table=source, router=""
            )
            gateway = stack.enter_context(gateway_process(config))
            runs.append((f"family alias {label}", gateway, "gemma"))
            if table is not None:
                runs.append(("plain alias", gateway, "only.k1"))
        for _ in range(rounds):
            for label, gateway, alias in runs:
                data = request({"model": alias, **chat})
                before = _cpu_s(gateway.process.pid)
                asyncio.run(_load(gateway.url, data, requests))
                spent.setdefault(label, []).append((_cpu_s(gateway.process.pid) - before) / requests * 1e6)
    return [(label, statistics.median(found)) for label, found in spent.items()]


def main() -> int:
    if "--gateway" in sys.argv:
        for label, us in whole_gateway():
            print(f"| {label} | {us:.1f} us |")
        return 0
    long_schema = {"type": "json_schema", "json_schema": {"schema": {"properties": {f"p{n}": {} for n in range(400)}}}}
    hints = [(b"x-sndr-expected-length", b"short"), (b"x-sndr-category", b"code")]
    without_tools = {name: value for name, value in BODY.items() if name != "tools"}
    rows = [
        ("tool call of 2 kB", family_us(BODY)),
        ("the same, no table", family_us(BODY, table=False)),
        ("free chat", family_us(without_tools)),
        ("hints in body and headers", family_us({**without_tools, "expected_length": "short"}, fields=hints)),
        ("JSON schema of 6 kB", family_us({**without_tools, "response_format": long_schema})),
    ]
    plain = plain_us()
    print("| request | CPU us | bar |\n|---|---|---|")
    for name, spent in rows:
        print(f"| family alias: {name} | {spent:.2f} | <= {FAMILY_BAR_US:g} |")
    print(f"| plain alias | {plain:.2f} | <= {PLAIN_BAR_US:g} |")
    return 0 if all(spent <= FAMILY_BAR_US for _, spent in rows) and plain <= PLAIN_BAR_US else 1


if __name__ == "__main__":
    sys.exit(main())
