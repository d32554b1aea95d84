"""Without an authority the gateway answers as it did before there was one, byte for byte but for what must differ.

`python tests/conformance/test_gateway_golden.py --rewrite` records the answers of the checkout it runs in.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import CREDENTIALS, gateway_process
from tests.support.synthetic import synthetic_thread

GOLDEN = Path(__file__).parent / "golden" / "gateway_answers.json"
OPERATOR, CLIENT = CREDENTIALS["OPERATOR_KEY"], CREDENTIALS["CLIENT_KEY"]
CHAT = {"model": "x", "messages": [{"role": "user", "content": "hi"}]}

#: Name, method, path, credential, body.
REQUESTS: list[tuple[str, str, str, str | None, object]] = [
    ("livez", "GET", "/livez", None, None),
    ("readyz", "GET", "/readyz", None, None),
    ("models", "GET", "/v1/models", CLIENT, None),
    ("model", "GET", "/v1/models/x", CLIENT, None),
    ("no model", "GET", "/v1/models/none", CLIENT, None),
    ("chat", "POST", "/v1/chat/completions", CLIENT, CHAT),
    ("stream", "POST", "/v1/chat/completions", CLIENT, {**CHAT, "stream": True}),
    ("completions", "POST", "/v1/completions", CLIENT, {"model": "y", "prompt": "hi"}),
    ("unknown alias", "POST", "/v1/chat/completions", CLIENT, {**CHAT, "model": "none"}),
    ("no credential", "POST", "/v1/chat/completions", None, CHAT),
    ("operator may not", "POST", "/v1/chat/completions", OPERATOR, CHAT),
    ("not JSON", "POST", "/v1/chat/completions", CLIENT, "{"),
    ("unknown path", "GET", "/v1/nothing", CLIENT, None),
    ("wrong method", "GET", "/v1/chat/completions", CLIENT, None),
    ("status", "GET", "/v1/router/status", OPERATOR, None),
    ("status of a client", "GET", "/v1/router/status", CLIENT, None),
    ("tiers", "GET", "/v1/admin/tiers", OPERATOR, None),
    ("tiers of a client", "GET", "/v1/admin/tiers", CLIENT, None),
    ("quiesce", "POST", "/v1/admin/tiers/b/quiesce", OPERATOR, {"reason": "mine"}),
    ("quiesced", "POST", "/v1/chat/completions", CLIENT, {**CHAT, "model": "y"}),
    ("drain", "POST", "/v1/admin/tiers/b/drain", OPERATOR, {"timeout_s": 1}),
    ("readmit", "POST", "/v1/admin/tiers/b/readmit", OPERATOR, {}),
    ("not quiesced", "POST", "/v1/admin/tiers/b/drain", OPERATOR, {"timeout_s": 1}),
    ("reconcile", "POST", "/v1/admin/usage/reconcile", OPERATOR, {"confirm": True}),
    ("trace", "GET", "/v1/requests/golden-chat", CLIENT, None),
    ("trace of nobody", "GET", "/v1/requests/none", CLIENT, None),
    ("routes", "GET", "/v1/admin/routes", OPERATOR, None),
    ("preview", "POST", "/v1/admin/routes/preview", OPERATOR, {"op": "rollback"}),
    ("apply", "POST", "/v1/admin/routes/apply", OPERATOR, {}),
    ("watch", "GET", "/v1/admin/routes/drain", OPERATOR, None),
    ("check", "GET", "/v1/admin/routes/check", OPERATOR, None),
]

_VOLATILE = [
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "AT"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r'"(created|uptime_s|unresolved|lag_ms|rows|(?:queue|first_byte|total)_ms)":\d+'), r'"\1":0'),
    (re.compile(r'"(run_id|config_sha256)":"[^"]*"'), r'"\1":""'),
    (re.compile(r'"pid":\d+'), '"pid":0'),
    (re.compile(r"chatcmpl-\d+|cmpl-\d+"), "ID"),
]


def steady(text: str) -> str:
    for pattern, by in _VOLATILE:
        text = pattern.sub(by, text)
    return text


def boot_text(directory: Path, servers: list[str], *, live: bool) -> str:
    authority = f'route_state_path = "{directory}/routes.json"\n' if live else ""
    return f"""
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "{directory}/usage.db"
{authority}
[[router.tiers]]
id = "a"
base_url = "{servers[0]}"
model = "m1"
health_path = "/health"
[[router.tiers]]
id = "b"
base_url = "{servers[1]}"
model = "n1"
health_path = "/health"
[router.model_routes]
x = "a"
y = "b"
"""


def answers(directory: Path, *, live: bool = False) -> dict[str, Any]:
    """Everything a gateway says, with the parts that differ from run to run made equal."""
    directory.chmod(0o700)
    found: dict[str, Any] = {}
    with synthetic_thread(model="m1") as one, synthetic_thread(model="n1") as two:
        config = directory / "gateway.toml"
        config.write_text(boot_text(directory, [one.base_url, two.base_url], live=live))
        if live:
            from tests.support.live import init

            init(config)
        arguments = ["--allow-volatile-filesystem"] if live else []
        with gateway_process(config, *arguments) as gateway:
            for name, method, path, credential, body in REQUESTS:
                connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=20)
                headers = {"x-request-id": f"golden-{name.replace(' ', '-')}"}
                if credential is not None:
                    headers["authorization"] = f"Bearer {credential}"
                data = None if body is None else body if isinstance(body, str) else json.dumps(body)
                connection.request(method, path, data, headers)
                response = connection.getresponse()
                text = response.read().decode()
                length = response.headers["content-length"]
                assert length is None or int(length) == len(text.encode())
                # What these say depends on what had arrived in one piece.
                framing = ("content-length", "transfer-encoding", "connection")
                kept = [f"{key}: {value}" for key, value in response.getheaders() if key not in framing]
                found[name] = {"status": response.status, "headers": kept, "body": steady(text)}
                connection.close()
            assert gateway.stop() == 0
    return found


@pytest.mark.scenario("S19")
@pytest.mark.req("R3", "R6")
def test_the_answers_are_those_of_before(tmp_path: Path) -> None:
    said = answers(tmp_path)
    expected = json.loads(GOLDEN.read_text("utf-8"))
    for name, answer in expected.items():
        assert said[name] == answer, name
    assert list(said) == list(expected)
    # The ledger, its lock, its journal; nothing of an authority.
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"gateway.toml", "usage.db", "usage.db.lock"}


@pytest.mark.req("R3", "R20")
def test_an_authority_only_adds_the_fence(tmp_path: Path) -> None:
    with_it = answers(tmp_path, live=True)
    expected = json.loads(GOLDEN.read_text("utf-8"))
    added = {"route_revision", "effective_route_sha256"}
    for name, answer in expected.items():
        if "/v1/admin/routes" in next(path for known, _, path, _, _ in REQUESTS if known == name):
            continue
        said = with_it[name]
        assert said["status"] == answer["status"], name
        revision = "x-sndr-route-revision: 1"
        assert said["headers"].count(revision) == 1, name
        extra = [line for line in said["headers"] if line not in answer["headers"]]
        assert set(extra) <= {revision, 'etag: "1"'}, name
        if answer["body"].startswith("{") and name != "stream":
            before, after = json.loads(answer["body"]), json.loads(said["body"])
            more = set(after) - set(before)
            if name == "trace":
                assert (after["route_revision"], after["tier_generation"]) == (1, 1)
                continue
            standing = {"authority_id", "transaction_id", "state", "held", "attention", "next"}
            allowed = {"status": {"route_authority"}, "not quiesced": standing}.get(name, set())
            assert more <= added | allowed, name
            assert {key: after[key] for key in before} == before, name
        else:
            assert said["body"] == answer["body"], name


if __name__ == "__main__":
    assert sys.argv[1:] == ["--rewrite"], __doc__
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o700)
        GOLDEN.write_text(json.dumps(answers(Path(scratch)), indent=1) + "\n", "utf-8")
