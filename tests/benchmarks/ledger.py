"""What the usage ledger costs: CPU of a row pair by batch size, a commit, the loop's own share.

    python tests/benchmarks/ledger.py

CPU is that of the process (user and system), the best of some rounds, because the machine is shared. The last lines
drive a ledger from a loop that does some work per request, as a gateway does, with 64 requests in flight.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from sndr.router.core.usage import FinishRow
from sndr.router.store import usage_db
from sndr.router.store.ledger import UsageLedger, UsageStore
from tests.support.ledger import finish_row, start_row

ROUNDS = 7
ROWS = 6400


def fresh() -> UsageStore:
    """A ledger of its own, in a directory that stays until the end of the process."""
    folder = tempfile.TemporaryDirectory()
    _FOLDERS.append(folder)
    return UsageStore.open(str(Path(folder.name) / "usage.db"))


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
_START = [start_row(n) for n in range(ROWS)]
_FINISH = [finish_row(n) for n in range(ROWS)]


def best(measure: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """The least CPU and the least wall time of some rounds."""
    found = [measure() for _ in range(ROUNDS)]
    return min(cpu for cpu, _ in found), min(wall for _, wall in found)


def batches(size: int, durable: bool) -> tuple[float, float]:
    """CPU and wall seconds for `ROWS` starts and their ends, a batch of each per commit."""
    store = fresh()
    if not durable:
        store.db._db.execute("PRAGMA synchronous=OFF")
    cpu, wall = time.process_time(), time.perf_counter()
    count = min(ROWS, size * 200)
    for at in range(0, count, size):
        starts = [(n + 1, _START[n], None) for n in range(at, at + size)]
        before = max(0, at - size)
        ends = [(n + 1, _FINISH[n]) for n in range(before, at)]
        store.db.write(starts, ends, (), {})
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    store.close()
    return cpu / count, wall / (count / size)


def loop(with_ledger: bool, in_flight: int = 64, total: int = 6400) -> tuple[float, float]:
    """CPU and wall seconds per request of a loop that works a little for each."""

    async def main() -> tuple[float, float]:
        running = asyncio.get_running_loop()
        ledger = UsageLedger(fresh()) if with_ledger else None
        over = running.create_future()
        begun = ended = 0

        def work() -> None:
            for _ in range(400):
                pass

        def begin() -> None:
            nonlocal begun
            if begun >= total:
                return
            n = begun
            begun += 1
            work()
            if ledger is None:
                running.call_soon(end, 0, n)
            else:
                key = ledger.start(_START[n], lambda _: running.call_soon(end, key, n))

        def end(key: int, n: int) -> None:
            nonlocal ended
            work()
            if ledger is not None:
                ledger.finish(key, FinishRow(*_FINISH[n]))
            ended += 1
            if ended == total:
                over.set_result(None)
            else:
                running.call_soon(begin)

        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(in_flight):
            begin()
        await over
        if ledger is not None:
            await ledger.flush()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if ledger is not None:
            _COMMITS.append(total / ledger.status().commits)
            await ledger.close()
        return cpu / total, wall / total

    return asyncio.run(main())


_COMMITS: list[float] = []


def main() -> None:
    """Print everything."""
    print(f"SQLite {usage_db.sqlite3.sqlite_version}, CPython {sys.version.split()[0]}, best of {ROUNDS}")
    for size in (1, 8, 32, 64):
        cpu, wall = best(lambda size=size: batches(size, True))
        print(f"batch of {size:2}: {cpu * 1e6:6.1f} us CPU per start and end, {wall * 1e3:.2f} ms per commit")
    cpu, _ = best(lambda: batches(64, False))
    print(f"rows alone (64, no sync): {cpu * 1e6:.1f} us CPU per start and end")
    off, _ = best(lambda: loop(False))
    on, _ = best(lambda: loop(True))
    print(
        f"in a loop: {(on - off) * 1e6:.1f} us CPU per request, {sum(_COMMITS) / len(_COMMITS):.0f} starts per commit"
    )


if __name__ == "__main__":
    main()
