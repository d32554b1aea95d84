"""A ledger disk that stalls: new requests are refused in time, running streams do not notice."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import CREDENTIALS, gateway_process
from tests.support.ledger import rows
from tests.support.raw import wait_idle
from tests.support.synthetic import synthetic_thread

CONFIG = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "{usage}"

[router]
admission_timeout_s = 3

[[router.tiers]]
id = "one"
base_url = "{upstream}"
model = "m1"
health_path = "/health"

[router.model_routes]
"llm" = "one"
"""
STALL_S = 12


@contextmanager
def stalled_syncs(pid: int) -> Iterator[None]:
    """Every fsync of a process takes `STALL_S` longer."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    calls = "fsync,fdatasync"
    inject = f"inject={calls}:delay_enter={STALL_S * 1_000_000}"
    tool = subprocess.Popen(
        [strace, "-f", "-p", str(pid), "-e", f"trace={calls}", "-e", inject, "-o", "/dev/null"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert tool.stderr is not None
        if "attached" not in tool.stderr.readline():
            pytest.skip("strace may not attach here")
        yield
    finally:
        tool.terminate()
        tool.wait(10)
        tool.stderr.close()


@pytest.mark.req("R97")
def test_stall(tmp_path: Path) -> None:
    usage = tmp_path / "usage.db"
    config = tmp_path / "router.toml"
    headers = {"Authorization": f"Bearer {CREDENTIALS['CLIENT_KEY']}"}
    body = {"model": "llm", "messages": []}
    with synthetic_thread() as upstream:
        config.write_text(CONFIG.format(usage=usage, upstream=upstream.base_url))
        with gateway_process(config) as gateway:
            url = f"{gateway.url}/v1/chat/completions"
            text: list[str] = []

            def stream() -> None:
                plan = {"tokens": 60, "token_delay_ms": 50}
                with httpx.stream(
                    "POST", url, json={**body, "stream": True, "synthetic": plan}, headers=headers, timeout=30
                ) as response:
                    text.extend(response.iter_text())

            reader = threading.Thread(target=stream)
            reader.start()
            upstream.wait(in_flight=1)
            with stalled_syncs(gateway.process.pid):
                # The first one's start is in the stalled commit, the second one's waits for the next.
                for name in ("first", "second"):
                    begun = time.monotonic()
                    answer = httpx.post(url, json=body, headers={**headers, "X-Request-Id": name}, timeout=30)
                    assert answer.status_code == 503
                    assert answer.json()["error"]["code"] == "accounting_unavailable"
                    assert time.monotonic() - begun >= 3  # the admission deadline, not earlier
                reader.join(30)
                # The stream went on meanwhile: all of it, in order, to the end.
                whole = "".join(text)
                assert [f" t{n}" in whole for n in range(60)] == [True] * 60
                assert whole.endswith("data: [DONE]\n\n")
            wait_idle(gateway.url, STALL_S + 10)
            assert len(upstream.log()) == 1  # nothing was dispatched without a durable start
            assert httpx.post(url, json=body, headers=headers, timeout=30).status_code == 200
            gateway.stop()
    found = {row["id"]: (row["outcome"], row["error_code"]) for row in rows(usage)}
    assert found["first"] == found["second"] == ("refused", "accounting_unavailable")
    assert all(outcome is not None for outcome, _ in found.values())
