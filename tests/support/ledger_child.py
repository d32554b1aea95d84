"""A process that keeps a ledger under random load and says what it was promised, until it is killed.

One line per event on standard output, written at once: `S key n` start acknowledged, `X n` failed, `F key outcome`
before an end is handed over, `R n` before a refused row is, `D count` after a flush: the first `count` ends are durable
(or were reported as failed). Run as `python -m tests.support.ledger_child PATH SEED [REQUESTS [FSIZE_LIMIT]]`.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sys
from pathlib import Path

from tests.support.ledger import finish_row, refused, running, start_row

OUTCOMES = ("completed", "client_gone", "upstream_reset", "upstream_timeout")


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


async def main(path: Path, seed: int, requests: int) -> None:
    rng = random.Random(seed)
    async with running(path, on_failure=lambda reason, count: say(f"E {count} {reason}")) as ledger:
        say("O")
        open_keys: list[tuple[int, int]] = []
        ends = 0

        def begin(n: int) -> None:
            gave_up = rng.random() < 0.1

            def done(error: Exception | None) -> None:
                if error is not None:
                    say(f"X {n}")
                    return
                say(f"S {key} {n}")
                if not gave_up:
                    open_keys.append((key, n))

            key = ledger.start(start_row(n), done)
            if gave_up:
                say(f"F {key} refused")
                ledger.finish(key, refused(n, "accounting_unavailable", 503))

        for n in range(requests):
            begin(n)
            while open_keys and rng.random() < 0.5:
                key, m = open_keys.pop(rng.randrange(len(open_keys)))
                outcome = rng.choice(OUTCOMES)
                say(f"F {key} {outcome}")
                ends += 1
                ledger.finish(key, finish_row(m, outcome=outcome))
            if rng.random() < 0.1:
                say(f"R {n}")
                ledger.refuse(start_row(n, id=f"refused-{n}"), refused(n))
            if rng.random() < 0.3:
                await asyncio.sleep(0)
            if rng.random() < 0.02:
                await asyncio.sleep(rng.random() * 0.004)
            if rng.random() < 0.01:
                count = ends
                await ledger.flush()
                say(f"D {count}")
        await ledger.flush()
        for key, m in open_keys:
            say(f"F {key} completed")
            ledger.finish(key, finish_row(m))
        await ledger.flush()
        unresolved = ledger.unresolved()
        say(f"U {unresolved.total} {unresolved.failed}")


if __name__ == "__main__":
    if len(sys.argv) > 4:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = int(sys.argv[4])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000))
