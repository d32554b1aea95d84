"""Random aborts against a real gateway: `python tests/benchmarks/gateway/aborts.py [--count 10000] [--seed 1]`.

Clients close, reset or half-close at random moments: within the head, the body, the wait, the stream. Afterwards every
counter must be 0, no descriptor may be left and the ledger must have no unresolved row. Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.gateway import gateway_process
from tests.support.raw import Raw, boot_file, chat, request, wait_idle
from tests.support.synthetic import synthetic_process


def abort(url: str, chance: random.Random) -> None:
    try:
        raw = Raw(url)
    except OSError:
        return
    plan = {"tokens": chance.randrange(1, 30), "token_delay_ms": chance.choice([0, 0, 1, 5]),
            "first_delay_ms": chance.choice([0, 0, 5, 20])}  # fmt: skip
    data = request(chat(chance.random() < 0.7, synthetic=plan))
    try:
        raw.send(data[: chance.choice([len(data)] * 6 + [len(data) - 5, 40, 0])])
        raw.sock.settimeout(chance.choice([0.001, 0.01, 0.05]))
        for _ in range(chance.randrange(4)):
            if not raw.sock.recv(chance.choice([1, 100, 65536])):
                break
    except OSError:
        pass
    way = chance.random()
    try:
        if way < 0.4:
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif way < 0.6:
            raw.sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    raw.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, synthetic_process() as upstream:
        path = boot_file(
            Path(name), upstream.base_url, server='usage_path = "usage.sqlite"', tier="max_concurrency = 8"
        )
        with gateway_process(path) as gateway:
            url = gateway.url
            wait_idle(url)
            files = Path(f"/proc/{gateway.process.pid}/fd")
            before = len(list(files.iterdir()))
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda number: abort(url, random.Random(options.seed * 1_000_003 + number)),
                              range(options.count)))  # fmt: skip
            tier = wait_idle(url, 60)
            upstream.wait(in_flight=0)
            deadline = time.monotonic() + 15
            while (left := len(list(files.iterdir())) - before) > 4 and time.monotonic() < deadline:
                time.sleep(0.2)
            faults = [line for line in gateway.lines if line["event"] == "internal_error"]
            code = gateway.stop()
            noise = len(gateway.raw) - len(gateway.lines)
            print(
                f"{options.count} aborts, seed {options.seed}: in flight {tier['in_flight']}, queued {tier['queued']},"
                f" descriptors left {left}, internal errors {len(faults)}, stray lines {noise}, exit {code}"
            )
            return int(bool(tier["in_flight"] or tier["queued"] or left > 4 or faults or noise or code))


if __name__ == "__main__":
    sys.exit(main())
