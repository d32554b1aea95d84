"""Streams under a changing router: 100 alias updates and 30 replacements in 5 minutes, beside times without any.

    python tests/benchmarks/routes/changes.py [--seconds 300] [--rounds 5] [--moves 100] [--replacements 30]

Two hundred clients stream from four aliases all the time. In turns, `--rounds` times, the operator changes routes and
leaves them alone: `--seconds` and `--rest` in all. Gaps between events of the streams outside
every scope are compared between the two. Exits 1 if anything was dropped or the gaps' p99 differs by more than 10 % or
2 ms, whichever is more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.support.changes import OUTSIDE, Operations, judge, kinds, operate, plane
from tests.support.traffic import Traffic, p99


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--rest", type=float, default=300, help="Seconds without changes, in all.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--replacements", type=int, default=30)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--gap-ms", type=float, default=100, help="Between two events of a stream.")
    parser.add_argument("--outside-s", type=float, default=60, help="Length of a stream outside every scope.")
    asked = parser.parse_args()
    operations = Operations()
    each = asked.seconds / asked.rounds
    spans: list[tuple[bool, float, float]] = []
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory, plane(Path(directory), processes=True) as running:
        operations.begin(running)
        load = kinds(clients=asked.clients, delay_ms=asked.gap_ms, outside_s=asked.outside_s)
        with Traffic(running.url, load, pollers=8) as traffic:
            time.sleep(5)
            for n in range(asked.rounds):
                for changing in (False, True):
                    began = time.monotonic()
                    if changing:
                        moves, replacements = (
                            (n + 1) * count // asked.rounds - n * count // asked.rounds
                            for count in (asked.moves, asked.replacements)
                        )
                        operate(running, operations, seconds=each, moves=moves, replacements=replacements)
                    else:
                        time.sleep(asked.rest / asked.rounds)
                    spans.append((changing, began, time.monotonic()))
        operations.end()
        faults = judge(running, traffic, operations).faults()
    found = {
        changing: [
            p99([gap for at, gap in traffic.gaps if since <= at < until]) * 1e3
            for kind, since, until in spans
            if kind is changing
        ]
        for changing in (False, True)
    }
    without, during = statistics.median(found[False]), statistics.median(found[True])
    bar = max(without * 0.1, 2.0)
    streams = {alias: traffic.counts(alias) for alias in "pqrs"}
    print(f"{len(operations.moves)} alias updates, {len(operations.waits)} replacements; streams by alias: {streams}")
    print(f"outside every scope ({', '.join(OUTSIDE)}): {len(traffic.gaps)} gaps between events")
    print(
        f"gap p99 without changes {without:.1f} ms ({_range(found[False])}), with {during:.1f} ({_range(found[True])})"
    )
    print(f"an alias update took {_middle(operations.moves)}, a replacement {_middle(operations.waits)}")
    looks = sum(len(seen) for seen in traffic.polls)
    print(f"revisions seen by 8 clients: {looks} looks, 1 to {max(operations.committed)}")
    print(f"faults: {faults or 'none'}")
    passed = not faults and during - without <= bar
    print(f"difference {during - without:+.1f} ms, bar {bar:.1f}: {'passed' if passed else 'MISSED'}")
    return 0 if passed else 1


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} s (at most {max(values):.3f})"


if __name__ == "__main__":
    sys.exit(main())
