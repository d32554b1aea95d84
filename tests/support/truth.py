"""Do the ledger, the clients and the model servers tell the same story?

A gateway is driven with a random mix of requests (complete, given up, reset, cut off, stalled, refused, in both forms)
while it is killed and restarted. Every client notes what it saw, the synthetic servers what they saw; at the end the
ledger is reconciled and each request is judged from all three sides.

    python -m tests.support.truth --requests 100000 --kills 20
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.gateway import CREDENTIALS, gateway_process
from tests.support.synthetic import synthetic_process

CONFIG = """
[server]
listen = ["127.0.0.1:{port}"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "{usage}"

# No machine is so slow that a plan which goes on meets these limits: what stalls has a tier with limits of its own.
[router]
first_byte_timeout_s = 600
idle_timeout_s = 600
admission_timeout_s = 600
queue_limit = 512

[[router.tiers]]
id = "wide"
base_url = "{wide}"
model = "m1"
health_path = "/health"
max_concurrency = 256

[[router.tiers]]
id = "narrow"
base_url = "{narrow}"
model = "m1"
health_path = "/health"
max_concurrency = 1

[[router.tiers]]
id = "stuck"
base_url = "{stuck}"
model = "m1"
health_path = "/health"
max_concurrency = 256
first_byte_timeout_s = 3
idle_timeout_s = 3

[router.model_routes]
"llm.wide" = "wide"
"llm.narrow" = "narrow"
"llm.stuck" = "stuck"
"""


@dataclass(slots=True)
class Seen:
    """What a client saw of its request."""

    id: str
    kind: str
    stream: bool
    connected_at: float
    """When its connection was made: a connection that is older than a kill did not outlive it."""
    ended_at: float = 0.0
    status: int | None = None
    complete: bool = False
    """The response ended as its framing says, and a stream said `[DONE]`."""
    error_event: str | None = None
    left: bool = False
    """The client itself closed the connection."""
    cut: bool = False
    """The connection ended too early."""
    bytes: int = 0
    tokens: int = 0


# kind -> (weight, plan, closes after so many bytes or None, closes without reading, alias)
KINDS: dict[str, tuple[int, dict[str, Any], str]] = {
    "complete": (60, {"tokens": 6}, "llm.wide"),
    "slow": (6, {"tokens": 4, "token_delay_ms": 3, "first_delay_ms": 3}, "llm.wide"),
    "no_usage": (3, {"tokens": 3, "usage": False}, "llm.wide"),
    "leave_early": (4, {"stall_after": -1}, "llm.wide"),
    "leave_midway": (5, {"tokens": 50, "stall_after": 3}, "llm.wide"),
    "leave_at_once": (2, {"tokens": 20, "token_delay_ms": 1}, "llm.wide"),
    "reset_early": (3, {"reset_after": -1}, "llm.wide"),
    "reset_midway": (4, {"reset_after": 3}, "llm.wide"),
    "truncate": (3, {"truncate_after": 3}, "llm.wide"),
    "break": (1, {"breakage": "two_content_lengths"}, "llm.wide"),
    "stall_early": (1, {"stall_after": -1}, "llm.stuck"),
    "stall_midway": (1, {"stall_after": 2}, "llm.stuck"),
    "status_500": (2, {"status": 500}, "llm.wide"),
    "status_429": (2, {"status": 429}, "llm.wide"),
    "unknown_model": (2, {}, "llm.nowhere"),
    "invalid_json": (1, {}, "llm.wide"),
    "narrow": (4, {"tokens": 2}, "llm.narrow"),
}


class Reader:
    """A response, read far enough to know whether it is complete."""

    def __init__(self, reader: asyncio.StreamReader, seen: Seen) -> None:
        self._reader = reader
        self._seen = seen
        self.keep = True

    async def read(self, stop_after: int | None) -> None:
        """Read the response; returns early after `stop_after` body bytes.

        Raises:
            EOFError, OSError: It ended too early.
        """
        seen = self._seen
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        seen.status = int(lines[0].split(b" ")[1])
        fields = {name.strip().lower(): value.strip() for name, _, value in (li.partition(b":") for li in lines[1:])}
        self.keep = fields.get(b"connection", b"").lower() != b"close"
        if seen.status != 200:
            stop_after = None  # a refusal is read to its end: the connection goes on
        body = bytearray()
        if fields.get(b"transfer-encoding") == b"chunked":
            while True:
                size = int((await self._reader.readuntil(b"\r\n"))[:-2], 16)
                data = await self._exactly(size + 2)
                if size == 0:
                    break
                body += data[:-2]
                seen.bytes = len(body)
                if stop_after is not None and len(body) >= stop_after:
                    return
        elif b"content-length" in fields:
            length = int(fields[b"content-length"])
            if stop_after is not None and length > stop_after:
                await self._exactly(stop_after)
                return
            body += await self._exactly(length)
        else:
            body += await self._reader.read()
            self.keep = False
        seen.bytes = len(body)
        self._judge(bytes(body), fields.get(b"content-type", b""))

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as error:
            self._seen.bytes += len(error.partial)
            raise

    def _judge(self, body: bytes, content_type: bytes) -> None:
        seen = self._seen
        if not content_type.startswith(b"text/event-stream"):
            seen.complete = True
            if seen.status == 200:
                seen.tokens = json.loads(body)["choices"][0]["message"]["content"].count("t")
            return
        events = [e[6:] for e in body.split(b"\n\n") if e.startswith(b"data: ")]
        seen.complete = bool(events) and events[-1] == b"[DONE]"
        for event in events:
            if event != b"[DONE]":
                value = json.loads(event)
                if "error" in value:
                    assert seen.error_event is None, "two error events"
                    assert event is events[-1], "bytes after an error event"
                    self.keep = False  # the gateway closes, which its head could not announce
                    seen.error_event = value["error"]["code"]
                elif value["choices"]:
                    seen.tokens += "content" in value["choices"][0]["delta"]
        assert not (seen.complete and seen.error_event), "an end after an error"


class Client:
    """One connection after the other; one request at a time."""

    def __init__(self, harness: Harness, number: int) -> None:
        self.harness = harness
        self.rng = random.Random(harness.seed * 1000 + number)
        self.number = number
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.connected_at = 0.0

    async def run(self) -> None:
        harness = self.harness
        while (n := harness.take()) is not None:
            await self.request(n)
        self.drop()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self.streams is None:
            try:
                self.connected_at = time.monotonic()
                self.streams = await asyncio.open_connection("127.0.0.1", self.harness.port, limit=1 << 20)
            except OSError:
                await self.harness.serving.wait()
                await asyncio.sleep(0.01)  # the port is known to be bound soon: a restart is under way
        return self.streams

    def drop(self) -> None:
        if self.streams is not None:
            self.streams[1].transport.abort()
            self.streams = None

    async def request(self, n: int) -> None:
        rng = self.rng
        kind = rng.choices(list(KINDS), [k[0] for k in KINDS.values()])[0]
        _, plan, alias = KINDS[kind]
        stream = rng.random() < 0.6
        body: Any = {
            "model": alias,
            "stream": stream,
            "messages": [{"role": "user", "content": "x" * rng.randrange(200)}],
        }
        if rng.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
        body["synthetic"] = plan
        data = b"{" if kind == "invalid_json" else json.dumps(body).encode()
        name = f"t{self.harness.seed}-{n}"
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: {name}\r\n"
            f"Authorization: Bearer {CREDENTIALS['CLIENT_KEY']}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        reader, writer = await self.connect()
        seen = Seen(name, kind, stream, self.connected_at)
        self.harness.seen.append(seen)
        keep = False
        try:
            writer.write(head.encode() + data)
            response = Reader(reader, seen)
            if kind in ("leave_early", "leave_at_once"):
                seen.left = True
                if kind == "leave_early" or rng.random() < 0.5:
                    await asyncio.sleep(rng.random() * 0.02)
            else:
                async with asyncio.timeout(600):
                    # A response that is not streamed stalls within its body, whose length the head has told.
                    await response.read(10 if kind == "leave_midway" else None)
                if kind == "leave_midway" and seen.status == 200:
                    seen.left = True
                else:
                    keep = response.keep
        except (EOFError, OSError):
            seen.cut = True
        seen.ended_at = time.monotonic()
        if not keep:
            self.drop()


class Harness:
    """Servers, gateway, clients, and the judgement."""

    def __init__(self, requests: int, kills: int, seed: int, clients: int = 48) -> None:
        self.requests = requests
        self.kills = kills
        self.seed = seed
        self.clients = clients
        self.next = 0
        self.seen: list[Seen] = []
        self.serving = asyncio.Event()
        self.down: list[tuple[float, float]] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def take(self) -> int | None:
        """Number of the next request."""
        if self.next >= self.requests:
            return None
        self.next += 1
        return self.next

    async def run(self, folder: Path) -> Report:
        """Everything."""
        usage = folder / "usage.db"
        with contextlib.ExitStack() as stack:
            wide = stack.enter_context(synthetic_process())
            narrow = stack.enter_context(synthetic_process("--token-delay-ms", "20"))
            stuck = stack.enter_context(synthetic_process())
            config = folder / "router.toml"
            config.write_text(
                CONFIG.format(
                    port=self.port, usage=usage, wide=wide.base_url, narrow=narrow.base_url, stuck=stuck.base_url
                )
            )  # fmt: skip
            await self._drive(config)
            with gateway_process(config) as gateway:
                await asyncio.to_thread(lambda: gateway.url)
                reconciled = await asyncio.to_thread(self._reconcile)
                servers = (wide, narrow, stuck)
                for server in servers:
                    await asyncio.to_thread(server.wait, 60, in_flight=0)
                upstream = [call for server in servers for call in server.log()]
                assert gateway.stop() == 0
        db = sqlite3.connect(usage)
        db.row_factory = sqlite3.Row
        rows = [dict(row) for row in db.execute("SELECT * FROM requests ORDER BY seq")]
        db.close()
        return judge(self.seen, rows, upstream, self.down, reconciled)

    def _reconcile(self) -> dict[str, Any]:
        from sndr.router.client import Client as OperatorClient

        with OperatorClient(f"http://127.0.0.1:{self.port}", CREDENTIALS["OPERATOR_KEY"]) as client:
            answer: dict[str, Any] = client.reconcile().document
            return answer

    async def _drive(self, config: Path) -> None:
        """Run the clients; kill the gateway whenever another share of the requests has been sent."""
        tasks = [asyncio.ensure_future(Client(self, n).run()) for n in range(self.clients)]
        rng = random.Random(self.seed)
        shares = sorted(rng.randrange(self.requests) for _ in range(self.kills))
        for share in [*shares, None]:
            with gateway_process(config) as gateway:
                await asyncio.to_thread(lambda gateway=gateway: gateway.url)
                self.serving.set()
                if share is None:
                    await asyncio.gather(*tasks)
                    assert await asyncio.to_thread(gateway.stop) == 0
                    break
                while self.next < share and not all(task.done() for task in tasks):
                    await asyncio.sleep(0.002)
                self.serving.clear()
                before = time.monotonic()
                gateway.process.kill()
                await asyncio.to_thread(gateway.process.wait)
                self.down.append((before, time.monotonic()))


@dataclass
class Report:
    """Counts, and every contradiction found."""

    requests: int
    outcomes: Counter[str]
    without_row: int
    reconciled: int
    faults: list[str]


def judge(
    seen: Sequence[Seen],
    rows: Sequence[dict[str, Any]],
    upstream: Sequence[dict[str, Any]],
    down: Sequence[tuple[float, float]],
    reconciled: dict[str, Any],
) -> Report:
    """Compare the three sides, request by request."""
    faults: list[str] = []
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_id.setdefault(row["id"], []).append(row)
    calls: dict[str, list[dict[str, Any]]] = {}
    for call in upstream:
        calls.setdefault(call["id"], []).append(call)
    clients = {one.id: one for one in seen}
    faults += [f"row of unknown request {name}" for name in by_id if name not in clients]
    faults += [f"upstream saw unknown request {name}" for name in calls if name not in clients]
    outcomes: Counter[str] = Counter()
    without_row = 0
    for one in seen:
        killed = any(one.connected_at <= after and one.ended_at >= before for before, after in down)
        # An end becomes durable shortly after the client has seen it: a kill in between leaves it open.
        just_before = any(one.connected_at <= after and one.ended_at >= before - 0.5 for before, after in down)
        found = by_id.get(one.id, [])
        if not found:
            without_row += 1
            if calls.get(one.id):
                faults.append(f"{one.id}: dispatched without a row")
            refused = one.status is not None and one.status >= 400  # such a row follows its answer, as an end does
            if not killed and not one.left and not (refused and just_before):
                faults.append(f"{one.id} ({one.kind}): no row, client saw {one.status}")
            continue
        if len(found) > 1:
            faults.append(f"{one.id}: {len(found)} rows")
        row = found[0]
        outcomes[row["outcome"]] += 1
        for fault in _judge_one(one, row, calls.get(one.id, []), killed, just_before):
            faults.append(f"{one.id} ({one.kind}, stream={one.stream}): {fault}; client {one}; row {row}")
    if reconciled["left"] != 0 or reconciled["reconciled"] != outcomes["interrupted"]:
        faults.append(f"reconcile said {reconciled}, but {outcomes['interrupted']} rows are interrupted")
    return Report(len(seen), outcomes, without_row, reconciled["reconciled"], faults)


_TIMED_OUT = ("stall_early", "stall_midway")
_RESET = ("reset_early", "reset_midway", "truncate")


def _judge_one(
    one: Seen, row: dict[str, Any], calls: list[dict[str, Any]], killed: bool, just_before: bool
) -> list[str]:
    faults: list[str] = []

    def expect(condition: bool, what: str) -> None:
        if not condition:
            faults.append(what)

    outcome = row["outcome"]
    if outcome is None:
        return ["unresolved after the reconcile"]
    if outcome == "interrupted":
        expect(just_before, "interrupted without a kill")
        expect(len(calls) <= 2, f"{len(calls)} upstream calls")
        return faults
    # What the row says about the upstream, it must have seen, and once (twice with the one retry).
    if outcome == "refused":
        expect(not calls, "refused, but dispatched")
        expect(one.left or one.cut or row["status"] == one.status, "the client saw another status")
        expect(row["completion_tokens"] is None, "a refused request has tokens")
        return faults
    if row["admission_seq"] is None:
        expect(outcome == "client_gone" and not calls, f"{outcome} without an admission")
        return faults
    expect(len(calls) == 1 + row["retries"] or (outcome == "client_gone" and not calls), f"{len(calls)} upstream calls")
    call = calls[-1] if calls else None
    if not killed and not one.left:
        expect(row["status"] == one.status, "the client saw another status")
        expect(row["response_bytes"] == one.bytes, "the client received another number of bytes")
    if outcome == "completed":
        expect(call is not None and call["ended"] == "complete", "completed, but the upstream did not complete")
        expect(one.complete or one.left or killed, "completed, but the client did not see the end")
        if call is not None:
            expect(row["prompt_tokens"] == (call["prompt_tokens"] if call["usage_sent"] else None), "prompt tokens")
            expect(row["completion_tokens"] == (call["tokens"] if call["usage_sent"] else None), "completion tokens")
            expect(one.left or killed or one.tokens == call["tokens"], "the client did not see every token")
        expect(row["finish_reason"] == "stop", "finish reason")
    elif outcome == "client_gone":
        expect(one.left or killed, "client_gone, but the client stayed")
        expect(call is None or call["ended"] in ("client_gone", "complete"), "what the upstream saw")
    elif outcome == "upstream_reset":
        expect(one.kind in _RESET, "reset")
        expect(call is not None and call["ended"] in ("reset", "truncated"), "the upstream did not reset")
        expect(not one.complete or one.status == 502, "the client saw an end")
        if one.stream and one.status == 200 and not killed and not one.left:
            expect(one.error_event == "upstream_reset", "no error event")
    elif outcome == "upstream_timeout":
        expect(one.kind in _TIMED_OUT, "timeout")
        expect(call is not None and call["ended"] == "client_gone", "the upstream was not let go")
        expect(not one.complete or one.status == 504, "the client saw an end")
    elif outcome == "upstream_error":
        expect(one.kind in ("status_500", "status_429", "break"), "upstream error")
        expect(call is not None and call["ended"] in ("error", "broken"), "the upstream did not fail")
    elif outcome == "shutdown_cut":
        expect(killed, "cut")
    return faults


def run(requests: int, kills: int, seed: int) -> Report:
    """One run in a directory of its own."""
    with tempfile.TemporaryDirectory() as folder:

        async def main() -> Report:
            return await Harness(requests, kills, seed).run(Path(folder))

        return asyncio.run(main())


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    started = time.monotonic()
    report = run(args.requests, args.kills, args.seed)
    for fault in report.faults[:20]:
        print(fault)
    print(
        f"seed {args.seed}: {report.requests} requests, {args.kills} kills, {time.monotonic() - started:.0f} s:"
        f" {dict(report.outcomes)}, {report.without_row} without a row (killed before their start was durable),"
        f" {report.reconciled} reconciled, {len(report.faults)} contradictions"
    )
    return 1 if report.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
