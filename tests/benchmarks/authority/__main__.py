"""What one committed alias update costs beside the disk calls that it cannot do without.

    python -m tests.benchmarks.authority [--tiers 10] [--rounds 400] [--directory DIR]

The bare loop does two fsyncs and one rename on the same file system, with a file of the same size written before the
clock starts. Bar: update <= 1.5 x bare + 1 ms, at the median. The two alternate, so that a busy disk hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

from sndr.durable import PosixDisk
from sndr.router.core import projection as routes
from sndr.router.store import authority as store
from tests.support import records

FACTOR = 1.5
ALLOWANCE_MS = 1.0


def _bare(directory: str, dir_fd: int, data: bytes) -> float:
    temp = os.path.join(directory, "bare.tmp")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, data)
    began = time.perf_counter()
    os.fsync(fd)
    os.rename(temp, os.path.join(directory, "bare"))
    os.fsync(dir_fd)
    took = time.perf_counter() - began
    os.close(fd)
    return took


def measure(directory: str, tiers: int, rounds: int) -> dict[str, float | int]:
    boot = records.many_tiers(tiers)
    path = os.path.join(directory, "routes.json")
    store.create(path, boot, allow_volatile=True)
    authority = store.open_authority(path, boot, disk=PosixDisk(), allow_volatile=True)
    dir_fd = os.open(directory, os.O_RDONLY)
    update, bare = [], []
    size = os.path.getsize(path)
    for number in range(rounds):
        record = records.alias_update(authority.record, "a0", f"t{1 + number % (tiers - 1)}")
        began = time.perf_counter()
        answer = authority.write(record, boot)
        update.append((time.perf_counter() - began) * 1e3)
        assert isinstance(answer, store.Written)
        size = os.path.getsize(path)
        bare.append(_bare(directory, dir_fd, b"x" * size) * 1e3)
    began = time.perf_counter()
    for number in range(rounds):
        routes.apply_aliases(authority.record.current.projection, {"a1": {"tier": f"t{2 + number % (tiers - 2)}"}})
    apply_ms = (time.perf_counter() - began) * 1e3 / rounds
    os.close(dir_fd)
    authority.close()
    limit = FACTOR * statistics.median(bare) + ALLOWANCE_MS
    return {
        "tiers": tiers,
        "file_bytes": size,
        "rounds": rounds,
        "update_median_ms": round(statistics.median(update), 3),
        "update_p99_ms": round(statistics.quantiles(update, n=100)[98], 3),
        "bare_median_ms": round(statistics.median(bare), 3),
        "bare_p99_ms": round(statistics.quantiles(bare, n=100)[98], 3),
        "apply_ms": round(apply_ms, 3),
        "limit_ms": round(limit, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.authority")
    parser.add_argument("--tiers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--directory", help="on the file system to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        result = measure(directory, options.tiers, options.rounds)
    print(json.dumps(result, indent=1))
    return 0 if result["update_median_ms"] <= result["limit_ms"] else 1


if __name__ == "__main__":
    sys.exit(main())
