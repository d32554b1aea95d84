"""An alias update over HTTP against the bare durable write that it cannot do without.

    python tests/benchmarks/routes/apply.py [--updates 300] [--load 2] [--probes]

A real gateway process over two synthetic model servers, in a temporary directory below the working directory (a file
system in memory would make every write free). The bare write replaces a file of the authority's size by the same
primitive, in turns with the updates, in the same directory. The target's probe is answered inside the gateway, at once,
unless `--probes` asks for the whole way to the model server.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from sndr.durable import Done, PosixDisk, replace_file
from tests.support.cli import ROOT, environment
from tests.support.gateway import CREDENTIALS, Gateway
from tests.support.live import CLIENT, OPERATOR, live


def serve(config: str) -> None:
    """The gateway of this benchmark: every probe passes at once."""
    from sndr.router import app
    from sndr.router.core.projection import Tier
    from sndr.router.core.readiness import Observation, Reason
    from sndr.router.wire import boot

    async def passes(tier: Tier) -> Observation:
        return Observation(True, Reason.IDENTITY_PASSED, (tier.model or "",))

    def attach(running: app.App) -> None:
        running.prober.probe = passes  # type: ignore[method-assign]  # what the measurement leaves out

    app.run(boot.load(config, os.environ), attach=attach, allow_volatile=True)


class Caller:
    """The operator's side, as cheap as a client can be: what is measured is the gateway."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        self._headers = {**OPERATOR, "content-type": "application/json"}

    def post(self, path: str, body: object) -> Any:
        self._connection.request("POST", path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    def close(self) -> None:
        self._connection.close()


def percentiles(values: list[float]) -> str:
    ordered = sorted(values)
    return f"p50 {ordered[len(ordered) // 2] * 1e3:.2f} ms  p99 {ordered[int(len(ordered) * 0.99)] * 1e3:.2f} ms"


def bare_write(directory_fd: int, data: bytes) -> float:
    began = time.perf_counter()
    assert isinstance(replace_file(PosixDisk(), directory_fd, "bare.json", data), Done)
    return time.perf_counter() - began


def load(url: str, stop: threading.Event, done: list[int]) -> None:
    with httpx.Client(base_url=url, headers=CLIENT, timeout=30, trust_env=False) as http:
        body = {"model": "y", "messages": [{"role": "user", "content": "hi"}]}
        while not stop.is_set():
            done.append(http.post("/v1/chat/completions", json=body).status_code)


def measure(url: str, directory: Path, updates: int, clients: int) -> None:
    stop = threading.Event()
    served: list[int] = []
    threads = [threading.Thread(target=load, args=(url, stop, served)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    data = (directory / "routes.json").read_bytes()
    fd = os.open(directory, os.O_RDONLY)
    caller = Caller(url)
    bare, previews, applies = [], [], []
    for n in range(updates):
        bare.append(bare_write(fd, data))
        began = time.perf_counter()
        change = {"op": "alias_update", "aliases": {"x": {"tier": "ba"[n % 2]}}}
        preview = caller.post("/v1/admin/routes/preview", change)
        middle = time.perf_counter()
        named = {"preview_id": preview["preview_id"], "preview_sha256": preview["preview_sha256"], "confirm": True}
        receipt = caller.post("/v1/admin/routes/apply", named)
        ended = time.perf_counter()
        assert receipt["state"] == "completed"
        previews.append(middle - began)
        applies.append(ended - middle)
    os.close(fd)
    caller.close()
    stop.set()
    for thread in threads:
        thread.join()
    print(f"updates {updates}, requests beside them {len(served)}")
    print(f"bare durable write    {percentiles(bare)}")
    print(f"preview               {percentiles(previews)}")
    print(f"apply                 {percentiles(applies)}")
    print(f"preview + apply       {percentiles([one + two for one, two in zip(previews, applies, strict=True)])}")
    print(f"apply / bare write    {statistics.median(applies) / statistics.median(bare):.1f} at p50")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--load", type=int, default=0, help="Clients that ask as fast as they are answered.")
    parser.add_argument("--probes", action="store_true", help="Probe the model servers for real.")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory, live(Path(directory)) as plane:
        if asked.probes:
            with plane.serving() as (gateway, _, _):
                measure(gateway.url, plane.directory, asked.updates, asked.load)
            return
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", os.fspath(plane.config)],
            stderr=subprocess.PIPE, cwd=ROOT, env=environment(**CREDENTIALS, PYTHONPATH=os.fspath(ROOT)),
        )  # fmt: skip
        gateway = Gateway(plane.config, process)
        try:
            measure(gateway.url, plane.directory, asked.updates, asked.load)
        finally:
            gateway.kill()


if __name__ == "__main__":
    main()
