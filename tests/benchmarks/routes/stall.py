"""Traffic outside a change while the authority's disk stands still, beside the same traffic while it does not.

    python tests/benchmarks/routes/stall.py [--stall 10] [--rounds 5]

The stall is outside Python and on the authority's file alone: an fsync of it takes so many seconds. Clients of another
alias ask as fast as they are answered. Bar: p99 with the stall within max(10 %, 2 ms) of the paired runs without.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.support.interpose import Stall
from tests.support.live import Operator, User, live
from tests.support.traffic import p99


def ask(url: str, seen: list[tuple[float, float]], wrong: list[int], stop: threading.Event) -> None:
    """One client of `y`."""
    with User(url) as user:
        while not stop.is_set():
            began = time.monotonic()
            status = user.ask("y").status_code
            ended = time.monotonic()
            seen.append((ended, ended - began))
            if status != 200:
                wrong.append(status)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stall", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=2)
    asked = parser.parse_args()
    seen: list[tuple[float, float]] = []
    wrong: list[int] = []
    spans: list[tuple[bool, float, float]] = []
    waits = []
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory:
        stall = Stall(Path(directory), "routes.json")
        with (
            live(Path(directory)) as plane,
            plane.serving(**stall.environ) as (gateway, operator, _),
            Operator(gateway) as other,
        ):
            stop = threading.Event()
            threads = [
                threading.Thread(target=ask, args=(gateway.url, seen, wrong, stop)) for _ in range(asked.clients)
            ]
            for thread in threads:
                thread.start()
            time.sleep(2)
            for n in range(asked.rounds):
                began = time.monotonic()
                time.sleep(asked.stall)
                spans.append((False, began, time.monotonic()))
                preview = operator.preview(op="alias_update", aliases={"x": {"tier": "ba"[n % 2]}})
                stall.on()
                moving = threading.Thread(target=other.apply, args=(preview,))
                moving.start()
                while not stall.hits:
                    time.sleep(0.01)
                began = time.monotonic()
                time.sleep(asked.stall)
                spans.append((True, began, time.monotonic()))
                assert operator.view()["route_revision"] == n + 1
                stall.off()
                moving.join()
                waits.append(time.monotonic() - began)
                assert operator.view()["route_revision"] == n + 2
            stop.set()
            for thread in threads:
                thread.join()
    found = {
        stalled: [
            p99([took for at, took in seen if since <= at < until]) * 1e3
            for kind, since, until in spans
            if kind is stalled
        ]
        for stalled in (False, True)
    }
    without = statistics.median(found[False])
    difference = statistics.median(
        after - before for before, after in zip(found[False], found[True], strict=True)
    )  # of each pair: the machine's other work comes and goes
    bar = max(without * 0.1, 2.0)
    print(
        f"{len(seen)} requests of another alias, {len(wrong)} not answered 200; updates took {max(waits):.2f} s at most"
    )
    for stalled, what in ((False, "without"), (True, "with a stall")):
        print(
            f"p99 {what}: median {statistics.median(found[stalled]):.2f} ms of {[round(v, 1) for v in found[stalled]]}"
        )
    passed = not wrong and difference <= bar
    print(f"difference {difference:+.2f} ms, bar {bar:.2f}: {'passed' if passed else 'MISSED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
