"""No credential, no URL's secret, no word of a prompt or an answer: in no log, metric, answer, ledger or trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cli import ROOT
from tests.support.gateway import CREDENTIALS, gateway_process
from tests.support.leaks import leaks
from tests.support.raw import KEY, OPERATOR, ask, connected, operator_get, request, wait_idle
from tests.support.synthetic import synthetic_process

TIER_KEY = "tier-key-0123456789-secret"
METRICS_KEY = "metrics-key-0123456789-secret"
WORDS = [
    "prompt-word-1", "tool-word-2", "answer-word-3", "unknown-model-4", "query-word-5", "cookie-word-6", "wrong-key-7",
    "broken-json-8", "header-word-9", "server-said-10", "path-word-11", "user-word-12", "id-word-13-with spaces",
]  # fmt: skip
BOOT = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
metrics_auth_env = "METRICS_KEY"
usage_path = "state/usage.sqlite"
admission_state_path = "state/admission.json"

[router]
receipt_headers = true
probe_interval_s = 0.2
first_byte_timeout_s = 3

[[router.tiers]]
id = "primary"
base_url = "{url}"
model = "m1"
auth_env = "TIER_KEY"
health_path = "/health"

[[router.tiers]]
id = "dead"
base_url = "http://127.0.0.1:1/v1"
model = "m1"
auth_env = "TIER_KEY"

[router.model_routes]
llm = "primary"
dead = "dead"
"""


@pytest.mark.invariant("INV-24")
def test_nothing_secret_is_left_anywhere(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    answers: dict[str, bytes] = {}
    body = {"model": "llm", "messages": [{"role": "user", "content": WORDS[0]}], "user": WORDS[11],
            "tools": [{"type": "function", "function": {"name": WORDS[1]}}]}  # fmt: skip
    environ = {"TIER_KEY": TIER_KEY, "METRICS_KEY": METRICS_KEY}
    with synthetic_process("--auth-env", "TIER_KEY", env=environ) as upstream:
        config = tmp_path / "gateway.toml"
        config.write_text(BOOT.format(url=upstream.base_url))
        with gateway_process(config, **environ) as gateway:
            url = gateway.url

            def own(name: str, data: bytes, status: int) -> None:
                """A request whose answer is the gateway's own."""
                answer = ask(url, data)
                assert answer.status == status, (name, answer)
                answers[name] = answer.raw_head + answer.body

            said = {"choices": [{"index": 0, "message": {"content": WORDS[2]}, "finish_reason": "stop"}]}
            headers = {"cookie": WORDS[5], "x-odd": WORDS[8], "x-request-id": WORDS[12]}
            completed = ask(url, request(body | {"synthetic": {"body": said}}, headers=headers))
            assert WORDS[2] in completed.body.decode()
            # An id of our own instead of one that is not in the permitted form; the rest of the head is the gateway's.
            answers["a relayed head"] = completed.raw_head
            assert ask(url, request(body | {"stream": True}, path=f"/v1/chat/completions?{WORDS[4]}=1")).status == 200
            for name, plan, status in [
                ("failed", {"status": 500, "body": WORDS[9]}, 502),
                ("own credential", {"status": 401, "body": WORDS[9]}, 502),
                ("unreadable", {"breakage": "not_http"}, 502),
                ("silent", {"stall_after": -1}, 504),
            ]:
                own(name, request(body | {"synthetic": plan}), status)
            own("dead", request(body | {"model": "dead"}), 502)
            own("unknown model", request(body | {"model": WORDS[3]}), 404)
            own("wrong key", request(body, key=WORDS[6]), 401)
            own("operator's key", request(body, key=OPERATOR), 403)
            own("bad JSON", request(data=f'{{"model": "{WORDS[7]}"'.encode()), 400)
            own("unknown path", request(body, path=f"/v1/{WORDS[10]}"), 404)
            own("malformed", f"GET /{WORDS[10]} HTTP/1.1\r\nHost: x\r\n{WORDS[8]} : y\r\n\r\n".encode(), 400)
            own("unknown version", f"GET /{WORDS[10]} HTTP/3.0\r\n\r\n".encode(), 505)
            own(
                "admin",
                request({"reason": 5, "x": WORDS[0]}, path="/v1/admin/tiers/primary/quiesce", key=OPERATOR),
                400,
            )
            own("admin path", request(method="GET", path=f"/v1/admin/tiers/{WORDS[10]}", key=OPERATOR), 404)
            with connected(url) as leaving:
                leaving.send(request(body | {"stream": True, "synthetic": {"token_delay_ms": 50, "tokens": 100}}))
                leaving.until(b" t1")
            wait_idle(url)
            own("metrics", request(method="GET", path="/metrics", key=METRICS_KEY), 200)
            own("models", request(method="GET", path="/v1/models"), 200)
            own("status of a client", request(method="GET", path="/v1/router/status"), 200)
            assert upstream.base_url not in answers["status of a client"].decode()
            answers["status"] = json.dumps(operator_get(url, "/v1/router/status")).encode()
            seen = [line["id"] for line in gateway.lines if line["event"] == "request" and line["endpoint"]]
            deadline = time.monotonic() + 10
            while len(seen) < 8:
                assert time.monotonic() < deadline
                time.sleep(0.05)
                seen = [line["id"] for line in gateway.lines if line["event"] == "request" and line["endpoint"]]
            for request_id in seen:
                answers[f"trace {request_id}"] = ask(
                    url, request(method="GET", path=f"/v1/requests/{request_id}", key=OPERATOR)
                ).body
            for verb in (["status"], ["models"], ["usage", "report"], ["usage", "export"], ["check"]):
                command = [sys.executable, "-m", "sndr.cli", "router", *verb, "--config", os.fspath(config)]
                if verb[0] in ("status", "models"):
                    command += ["--url", url]
                done = subprocess.run(
                    command, cwd=ROOT, env={**os.environ, **CREDENTIALS, **environ}, capture_output=True, check=False
                )
                answers[f"verb {' '.join(verb)}"] = done.stdout + done.stderr
            files = {path.name for path in (tmp_path / "state").iterdir()}
            assert {"usage.sqlite", "usage.sqlite-wal"} <= files
            found = leaks([KEY, OPERATOR, TIER_KEY, METRICS_KEY, *WORDS], directory=tmp_path, texts=answers)
            assert not found
            assert gateway.stop() == 0
            assert len(gateway.lines) > 15
            everything = leaks([KEY, OPERATOR, TIER_KEY, METRICS_KEY, *WORDS], directory=tmp_path,
                               texts={"log": "".join(gateway.raw)})  # fmt: skip
            assert not everything


def test_a_leak_is_found(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"\x00\xff secret \x00")
    assert leaks(["secret", "other"], directory=tmp_path, texts={"log": "an other one"}) == [
        "'other' in log",
        "'secret' in deep/file",
    ]


@pytest.mark.parametrize("value", ["http://user:word-in-url@127.0.0.1:1/v1", "http://127.0.0.1:1/v1?key=word-in-url"])
def test_a_secret_in_a_url_is_refused_without_being_shown(tmp_path: Path, value: str) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(BOOT.format(url=value))
    done = subprocess.run(
        [sys.executable, "-m", "sndr.cli", "router", "check", "--without-env", "--config", os.fspath(config)],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert b"word-in-url" not in done.stdout + done.stderr
