"""A gateway under a steady mix of requests for a long time: nothing may grow, and the books must agree.

    python -m tests.support.soak --minutes 20                      one run
    python -m tests.support.soak --minutes 120 --state DIR         the same, to be stopped and started again at will

About a hundred requests a second: answers and streams of four dialects, refusals, failing servers, clients that leave
at every stage. At each checkpoint sending stops, and when everything is idle: in flight 0, no unresolved row, each
request that the model server saw has exactly one ledger row and each row of a dispatched request was seen there. Memory
and descriptors are then compared with those of the first checkpoints. With `--state` ledger and progress are
kept in that directory; a run that is stopped (Ctrl-C, a crash, a power cut) goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.gateway import gateway_process
from tests.support.raw import KEY, operator_get, request
from tests.support.synthetic import Synthetic, synthetic_process

RSS_GROWTH_MAX = 0.05
DESCRIPTORS_MORE_MAX = 4
IDLE_S = 20.0

_CHAT, _MESSAGES, _RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"

# share, name, path, stream, what the client does, plan of the model server
MIX: list[tuple[int, str, str, bool, str, dict[str, Any]]] = [
    (24, "answer", _CHAT, False, "stay", {}),
    (20, "stream", _CHAT, True, "stay", {"tokens": 40}),
    (5, "slow stream", _CHAT, True, "stay", {"tokens": 20, "token_delay_ms": 20}),
    (6, "messages", _MESSAGES, True, "stay", {"tokens": 30}),
    (5, "responses", _RESPONSES, True, "stay", {"tokens": 30}),
    (5, "completions", "/v1/completions", False, "stay", {}),
    (5, "embeddings", "/v1/embeddings", False, "stay", {}),
    (8, "leaves the stream", _CHAT, True, "leave midway", {"tokens": 200, "token_delay_ms": 5}),
    (4, "leaves before the answer", _CHAT, False, "leave early", {"first_delay_ms": 300}),
    (2, "leaves within the body", _CHAT, False, "leave body", {}),
    (2, "half-closes", _CHAT, True, "half close", {"tokens": 200, "token_delay_ms": 5}),
    (3, "reset midway", _CHAT, True, "stay", {"tokens": 20, "reset_after": 5}),
    (1, "reset early", _CHAT, False, "stay", {"reset_after": -1}),
    (2, "server fails", _CHAT, False, "stay", {"status": 500}),
    (1, "server is busy", _CHAT, False, "stay", {"status": 429}),
    (1, "server stalls", _CHAT, True, "stay", {"tokens": 9, "stall_after": 3}),
    (3, "unknown model", _CHAT, False, "stay", {}),
    (2, "wrong key", _CHAT, False, "stay", {}),
    (1, "no JSON", _CHAT, False, "stay", {}),
]


@dataclass
class Progress:
    """What a run has come to; saved at each checkpoint."""

    seconds: float = 0.0
    requests: int = 0
    aborted: int = 0
    upstream: int = 0
    rows: int = 0
    last_seq: int = 0
    segments: int = 0
    rss_growth_max: float = 0.0
    rss_kib: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Driver:
    """Clients."""

    def __init__(self, url: str, seed: int) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.random = random.Random(seed)
        self.prefix = f"soak-{os.getpid():x}-{seed:x}-"
        self.sent = 0
        self.aborted = 0
        self.running: set[asyncio.Task[None]] = set()
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def drive(self, seconds: float, rate: float) -> None:
        """Start `rate` requests a second; wait for those that run at the end."""
        clock = asyncio.get_running_loop().time
        begun, started = clock(), 0
        while (passed := clock() - begun) < seconds:
            while started < passed * rate:
                started += 1
                task = asyncio.ensure_future(self._one())
                self.running.add(task)
                task.add_done_callback(self.running.discard)
            await asyncio.sleep(0.01)
        if self.running:
            await asyncio.wait(tuple(self.running), timeout=IDLE_S)
        for _, writer in self.idle:
            writer.close()
        self.idle.clear()

    async def _one(self) -> None:
        _, name, path, stream, conduct, plan = self.random.choices(MIX, [entry[0] for entry in MIX])[0]
        self.sent += 1
        body: dict[str, Any] = {"model": "nobody" if name == "unknown model" else "llm.primary", "synthetic": plan}
        if path == "/v1/embeddings":
            body["input"] = "a"
        elif path == _RESPONSES:
            body["input"] = "hello"
        elif path == "/v1/completions":
            body["prompt"] = "hello"
        else:
            body["messages"] = [{"role": "user", "content": "x" * self.random.choice((10, 10, 1000, 30_000))}]
            body["max_tokens"] = 1000
        if stream:
            body["stream"] = True
        data = b"{nonsense" if name == "no JSON" else json.dumps(body).encode()
        key = "wrong" if name == "wrong key" else KEY
        whole = request(path=path, data=data, key=key, headers={"x-request-id": f"{self.prefix}{self.sent}"})
        if conduct != "stay":
            self.aborted += 1
        reused = bool(self.idle) and self.random.random() < 0.7
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(IDLE_S):
                pair = self.idle.pop() if reused else await asyncio.open_connection(self.host, self.port)
                try:
                    if await self._exchange(pair, whole, conduct, path):
                        self.idle.append(pair)
                        return
                finally:
                    if pair not in self.idle:
                        if conduct != "stay" and self.random.random() < 0.5:
                            pair[1].transport.abort()
                        pair[1].close()

    async def _exchange(
        self, pair: tuple[asyncio.StreamReader, asyncio.StreamWriter], whole: bytes, conduct: str, path: str
    ) -> bool:
        reader, writer = pair
        if conduct == "leave body":
            writer.write(whole[: len(whole) - 5])
            await asyncio.sleep(0.01)
            return False
        writer.write(whole)
        if conduct == "leave early":
            await asyncio.sleep(0.02)
            return False
        head = await reader.readuntil(b"\r\n\r\n")
        if conduct in ("leave midway", "half close"):
            await reader.read(1000)
            if conduct == "half close":
                writer.write_eof()
                while await reader.read(65536):
                    pass
            return False
        lowered = head.lower()
        if b"transfer-encoding: chunked" in lowered:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            await reader.readexactly(int(lowered.split(b"content-length: ")[1].split(b"\r\n")[0]))
        return b"connection: close" not in lowered


def rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def wait_until_idle(url: str, upstream: Synthetic) -> str | None:
    """Nothing runs any more, on either side; else what does."""
    upstream.wait(in_flight=0, timeout_s=IDLE_S)
    deadline = time.monotonic() + IDLE_S
    while True:
        status = operator_get(url, "/v1/router/status")
        busy = [tier["id"] for tier in status["tiers"] if tier["in_flight"] or tier["queued"]]
        if not busy and not status["ledger"]["unresolved"]:
            return None
        if time.monotonic() > deadline:
            return f"not idle: {busy}, {status['ledger']}"
        time.sleep(0.05)


def compare(path: Path, progress: Progress, upstream: Synthetic) -> None:
    """The ledger's rows since the last checkpoint against the requests that the model server saw."""
    calls = Counter(call["id"] for call in upstream.log() if call["id"].startswith("soak-"))
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        rows = db.execute(
            "SELECT seq, id, outcome, retries, admission_seq FROM requests WHERE seq > ? ORDER BY seq",
            (progress.last_seq,),
        ).fetchall()
    finally:
        db.close()
    seen: Counter[str] = Counter()
    outcomes = Counter(progress.outcomes)
    for seq, name, outcome, retries, admitted in rows:
        progress.last_seq = seq
        seen[name] += 1
        outcomes[str(outcome)] += 1
        expected = 0 if admitted is None else 1 + (retries or 0)
        got = calls.get(name, 0)
        # A client that left while its connection to the server was being made was admitted, and sent nowhere.
        if got != expected and not (outcome == "client_gone" and got < expected):
            progress.faults.append(f"{name}: {outcome}, {got} upstream calls for {expected}")
    progress.faults += [f"{name}: {count} rows" for name, count in seen.items() if count > 1]
    progress.faults += [f"{name}: sent upstream without a row" for name in calls if name not in seen]
    progress.outcomes = dict(outcomes)
    progress.rows += len(rows)
    progress.upstream += sum(calls.values())


def run(
    folder: Path, *, seconds: float, rate: float = 100, every_s: float = 60, seed: int = 1, say: Any = lambda _: None
) -> Progress:
    """Go on until `seconds` of load have been had in all; `folder` holds ledger and progress."""
    saved = folder / "progress.json"
    progress = Progress(**json.loads(saved.read_text())) if saved.exists() else Progress()
    progress.segments += 1
    ledger = folder / "usage.db"
    with synthetic_process() as upstream:
        config = folder / "gateway.toml"
        config.write_text(
            '[server]\nlisten = ["127.0.0.1:0"]\nauth_env = "CLIENT_KEY"\noperator_auth_env = "OPERATOR_KEY"\n'
            f'usage_path = "{ledger}"\ndecision_log_path = "{os.devnull}"\n'
            "[router]\nidle_timeout_s = 1\n"
            f'[[router.tiers]]\nid = "primary"\nbase_url = "{upstream.base_url}"\nmodel = "m1"\n'
            'serves = ["chat", "completions", "responses", "messages", "embeddings"]\nhealth_path = "/health"\n'
            "max_concurrency = 64\n"
            '[router.model_routes]\n"llm.primary" = "primary"\n'
        )
        with gateway_process(config) as gateway:
            url = gateway.url
            pid = gateway.process.pid
            first_rss: int | None = None
            first_descriptors: int | None = None
            checkpoint = 0
            if progress.last_seq:
                from sndr.router.client import Client
                from tests.support.raw import OPERATOR

                with Client(url, OPERATOR) as operator:
                    operator.reconcile()  # rows of a run that was killed
                db = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)
                progress.last_seq = db.execute("SELECT max(seq) FROM requests").fetchone()[0]
                db.close()
            while progress.seconds < seconds:
                span = min(every_s, seconds - progress.seconds)
                driver = Driver(url, seed + int(progress.seconds * 1000))
                asyncio.run(driver.drive(span, rate))
                busy = wait_until_idle(url, upstream)
                if busy is not None:
                    progress.faults.append(busy)
                checkpoint += 1
                compare(ledger, progress, upstream)
                upstream.call("POST", "/synthetic/clear")
                gateway.lines.clear()
                gateway.raw.clear()
                time.sleep(4.5)  # idle connections to the server are let go of after 4 s
                rss, count = rss_kib(pid), descriptors(pid)
                progress.seconds += span
                progress.requests += driver.sent
                progress.aborted += driver.aborted
                progress.rss_kib.append(rss)
                progress.descriptors.append(count)
                if checkpoint == 2:  # caches and pools have been filled once
                    first_rss, first_descriptors = rss, count
                if first_rss is not None and first_descriptors is not None:
                    growth = rss / first_rss - 1
                    progress.rss_growth_max = max(progress.rss_growth_max, growth)
                    if growth > RSS_GROWTH_MAX:
                        progress.faults.append(f"memory grew by {growth:.1%} to {rss} KiB")
                    if count > first_descriptors + DESCRIPTORS_MORE_MAX:
                        progress.faults.append(f"{count} descriptors after {first_descriptors}")
                fresh = saved.with_suffix(".new")
                fresh.write_text(json.dumps(asdict(progress)))
                fresh.replace(saved)
                say(
                    f"{progress.seconds:6.0f} s: {progress.requests} requests, {progress.upstream} upstream,"
                    f" {rss} KiB, {count} descriptors, {len(progress.faults)} faults"
                )
                if progress.faults:
                    break
            if gateway.stop() != 0:
                progress.faults.append("the gateway did not stop with 0")
    return progress


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, help="directory that keeps ledger and progress")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if options.state is None else options.state
        folder.mkdir(parents=True, exist_ok=True)
        progress = run(
            folder,
            seconds=options.minutes * 60,
            rate=options.rate,
            seed=options.seed,
            say=lambda line: print(line, flush=True),
        )
    for fault in progress.faults[:20]:
        print(fault)
    print(
        f"{progress.seconds:.0f} s in {progress.segments} part(s): {progress.requests} requests ({progress.aborted}"
        f" left by their clients), {progress.rows} rows, {progress.upstream} upstream; {progress.outcomes}; memory"
        f" +{progress.rss_growth_max:.1%} at most ({min(progress.rss_kib)} to {max(progress.rss_kib)} KiB), descriptors"
        f" {min(progress.descriptors)} to {max(progress.descriptors)}; {len(progress.faults)} faults"
    )
    return 1 if progress.faults else 0


if __name__ == "__main__":
    sys.exit(main())
