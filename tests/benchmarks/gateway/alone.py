"""A request's whole life in the gateway without sockets: CPU per request of what is ours.

    python tests/benchmarks/gateway/alone.py [--prompt-bytes 40] [--ledger] [--fresh] [--rounds 1000] [--calls]

The kernel and the event loop's sockets are left out, so that a change of a microsecond shows on a busy machine, too:
what the best twentieth of the rounds needed hardly depends on the machine's other work. Some 2 us are this program's
own. Batches of 64 requests go through the product's own objects; transports that call back take the place of
connections. `--calls` counts calls of Python functions and of C functions instead.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))  # this tree, whatever is installed

from sndr.router.app import App
from sndr.router.net.upstream import UpstreamConnection
from sndr.router.store.ledger import UsageLedger, UsageStore
from sndr.router.wire import boot
from tests.benchmarks.gateway.mock import JSON

BATCH = 64
KEY = "bench-key"
OWN = b"X-Request-Id: req-%016x\r\ntraceparent: 00-%032x-%016x-01\r\nAccept:"


class Transport:
    """Takes the place of a connection's: tells somebody that something was written."""

    def __init__(self, written: Callable[[], None]) -> None:
        self.written = written

    def write(self, _data: bytes) -> None:
        self.written()

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


class Bench:
    def __init__(self, app: App, request: bytes, *, fresh: bool) -> None:
        self.request, self.fresh = request, fresh
        self.number = self.answered = 0
        self.asked: list[UpstreamConnection] = []
        self.clients = []
        app.prober._ready["bench", 1] = True
        pool = next(iter(app._pools.values()))
        for _ in range(BATCH):
            upstream = UpstreamConnection(pool, "127.0.0.1")
            upstream.connection_made(Transport(lambda one=upstream: self.asked.append(one)))  # type: ignore[arg-type, misc]
            pool.keep(upstream)
            client = app.server.protocol()
            client.connection_made(Transport(self.delivered))  # type: ignore[arg-type]
            self.clients.append(client)

    def delivered(self) -> None:
        self.answered += 1

    async def batch(self, pause_s: float) -> None:
        self.answered = 0
        request = self.request
        for client in self.clients:
            if self.fresh:
                self.number += 1
                request = self.request.replace(b"Accept:", OWN % (self.number, self.number, self.number), 1)
            client.data_received(request)
        while self.answered < BATCH:
            asked, self.asked = self.asked, []
            for upstream in asked:
                upstream.data_received(JSON)
            if not asked:
                await asyncio.sleep(pause_s)  # the ledger's disk
        await asyncio.sleep(0)


def counted(counts: Counter[str]) -> Callable[[Any, str, Any], None]:
    def count(frame: Any, event: str, called: Any) -> None:
        if event == "call":
            counts[f"Python {frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            counts[f"C {getattr(called, '__qualname__', called)}"] += 1

    return count


async def run(options: argparse.Namespace, directory: Path) -> None:
    path = directory / "usage.sqlite"
    usage = f'usage_path = "{path}"\n' if options.ledger else ""
    (directory / "router.toml").write_text(
        f'[server]\nlisten = ["127.0.0.1:8710"]\nauth_env = "BENCH_KEY"\n{usage}'
        '[[router.tiers]]\nid = "bench"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m1"\n'
        '[router.model_routes]\n"llm.primary" = "bench"\n'
    )
    ledger = UsageLedger(UsageStore.open(str(path))) if options.ledger else None
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT, 0o600)
    config = boot.load(str(directory / "router.toml"), {"BENCH_KEY": KEY})
    prompt = [{"role": "user", "content": "x" * options.prompt_bytes}]
    body = json.dumps({"model": "llm.primary", "messages": prompt}, separators=(",", ":")).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8710\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\nAccept: */*\r\nUser-Agent: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    app = App(config, log_descriptor=log, ledger=ledger)
    bench = Bench(app, head.encode() + body, fresh=options.fresh)
    pause_s = 0.0002 if options.ledger else 0
    for _ in range(20):
        await bench.batch(pause_s)
    if options.calls:
        counts: Counter[str] = Counter()
        sys.setprofile(counted(counts))
        for _ in range(10):
            await bench.batch(pause_s)
        sys.setprofile(None)
        for name, calls in counts.most_common(100):
            print(f"{calls / BATCH / 10:6.2f} {name}")
    else:
        times: list[tuple[float, float]] = []
        for _ in range(options.rounds):
            process, thread = time.process_time_ns(), time.thread_time_ns()
            await bench.batch(pause_s)
            times.append((time.process_time_ns() - process, time.thread_time_ns() - thread))
        for what, values in zip(("all threads", "the loop's"), zip(*times, strict=True), strict=True):
            best = sorted(value / BATCH / 1000 for value in values)
            print(f"{what}: {best[len(best) // 20]:.2f} us, median {best[len(best) // 2]:.2f}")
    app.ticker.close()
    if ledger is not None:
        await ledger.close()
    app.journal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-bytes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--ledger", action="store_true")
    parser.add_argument("--fresh", action="store_true", help="an id and a trace of its own in each request")
    parser.add_argument("--calls", action="store_true")
    options = parser.parse_args()
    # As the product starts.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    bytearray(4_194_304)
    with tempfile.TemporaryDirectory() as directory:
        try:
            import uvloop

            uvloop.run(run(options, Path(directory)))
        except ImportError:
            asyncio.run(run(options, Path(directory)))


if __name__ == "__main__":
    main()
