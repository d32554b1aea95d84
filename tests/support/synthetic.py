"""Synthetic model servers for tests: in a thread of this process, or as a process of their own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sndr.router.synthetic import Options, SyntheticServer

ROOT = Path(__file__).parents[2]


class Synthetic:
    """A running synthetic server, told what to do and asked what it saw over its control paths."""

    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self.base_url = f"http://{address}/v1"
        self.pid = pid

    def call(self, method: str, path: str, body: object = None, timeout_s: float = 30) -> Any:
        """A control call; fails the test when it is refused."""
        connection = http.client.HTTPConnection(self.address, timeout=timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        assert response.status == 200, (method, path, response.status, answer)
        return answer

    def set(self, **members: Any) -> None:
        """`plan=…, next=[…], model=…, models=[…], health=…, models_status=…, listening=…`."""
        self.call("POST", "/synthetic/set", members)

    def log(self, request_id: str | None = None) -> list[dict[str, Any]]:
        """Requests seen, oldest first."""
        query = "" if request_id is None else f"?id={request_id}"
        requests: list[dict[str, Any]] = self.call("GET", f"/synthetic/log{query}")["requests"]
        return requests

    def stats(self) -> dict[str, int]:
        """Counters; the connection that asks is one of `connections`."""
        stats: dict[str, int] = self.call("GET", "/synthetic/stats")
        return stats

    def wait(self, timeout_s: float = 10, **counters: int) -> dict[str, int]:
        """Wait until the counters are reached (`requests=3, in_flight=0, ended=3`)."""
        stats: dict[str, int] = self.call(
            "POST", "/synthetic/wait", {**counters, "timeout_s": timeout_s}, timeout_s + 10
        )
        return stats

    def release(self) -> int:
        """Let stalled requests go on."""
        released: int = self.call("POST", "/synthetic/release")["released"]
        return released


@contextmanager
def synthetic_thread(**options: Any) -> Iterator[Synthetic]:
    """A server on a loop of its own in this process."""
    loop = asyncio.new_event_loop()
    server = SyntheticServer(Options(**options))
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield Synthetic(server.address, os.getpid())
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextmanager
def synthetic_process(*args: str, env: Mapping[str, str] | None = None) -> Iterator[Synthetic]:
    """A server as `sndr router synthetic-serve ARGS`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sndr.cli", "router", "synthetic-serve", *args],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )
    try:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        yield Synthetic(line["address"], process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
