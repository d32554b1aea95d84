"""A request with two faults is refused for the one that is looked at first, whichever two they are."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.gateway import Gateway, unbroken_gateway
from tests.support.raw import KEY, OPERATOR, ask, connected, operator_get, request, wait_idle
from tests.support.synthetic import Synthetic

BOOT = """
[server]
listen = ["127.0.0.1:0"]
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"
max_body_bytes = 10000

[[server.clients]]
id = "me"
auth_env = "CLIENT_KEY"
aliases = ["mine*"]

[router]
probe_interval_s = 0.2
probe_failures = 1

[[router.tiers]]
id = "closed"
base_url = "http://127.0.0.1:1/v1"
model = "m1"
serves = ["completions"]
tool_support = false
context_limit = 10
health_path = "/health"

[[router.tiers]]
id = "unready"
base_url = "http://127.0.0.1:1/v1"
model = "m1"
health_path = "/health"

[[router.tiers]]
id = "full"
base_url = "{url}"
model = "m1"
max_concurrency = 1
admission_timeout_s = 2

[router.model_routes]
mine = "closed"
theirs = "closed"
mine-unready = "unready"
mine-full = "full"
"""


@dataclass
class Ask:
    """A request to a quiesced tier that is not ready either: without any other fault it is refused for that."""

    method: str = "POST"
    path: str = "/v1/completions"
    key: str | None = KEY
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=lambda: {"model": "mine", "prompt": "x"})
    data: bytes | None = None

    def encode(self) -> bytes:
        data = self.data if self.data is not None else json.dumps(self.body).encode()
        return request(data=data, method=self.method, path=self.path, key=self.key, headers=self.headers)


def two_hosts(it: Ask) -> None:
    it.headers["Host"] = "other"


def no_key(it: Ask) -> None:
    it.key = None


def unknown_path(it: Ask) -> None:
    it.path = "/v1/nothing"


def wrong_method(it: Ask) -> None:
    it.method = "PUT"


def too_long(it: Ask) -> None:
    it.headers["content-length"] = "10001"


def encoded(it: Ask) -> None:
    it.headers["content-encoding"] = "gzip"


def bad_json(it: Ask) -> None:
    it.data = b"{"


def unknown_model(it: Ask) -> None:
    it.body["model"] = "nobody"


def others_model(it: Ask) -> None:
    if it.body["model"] != "nobody":
        it.body["model"] = "theirs"


def not_served(it: Ask) -> None:
    if it.path != "/v1/nothing":
        it.path = "/v1/chat/completions"


def tools(it: Ask) -> None:
    it.body["tools"] = [{"type": "function"}]


def too_many_tokens(it: Ask) -> None:
    it.body["max_tokens"] = 11


FAULTS: list[tuple[Callable[[Ask], None], int, str]] = [
    (two_hosts, 400, "invalid_request"),
    (no_key, 401, "invalid_api_key"),
    (unknown_path, 404, "not_found"),
    (wrong_method, 405, "method_not_allowed"),
    (too_long, 413, "body_too_large"),
    (encoded, 415, "unsupported_content_encoding"),
    (bad_json, 400, "invalid_json"),
    (unknown_model, 404, "model_not_found"),
    (others_model, 403, "model_not_allowed"),
    (not_served, 400, "endpoint_not_served"),
    (tools, 400, "tools_unsupported"),
    (too_many_tokens, 400, "context_length_exceeded"),
    (lambda _: None, 503, "quiesced"),
]
PAIRS = list(itertools.combinations(range(len(FAULTS)), 2))


@pytest.fixture(scope="module")
def gateway(synthetic: Synthetic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with unbroken_gateway(BOOT.format(url=synthetic.base_url), tmp_path_factory.mktemp("order")) as process:
        answer = ask(process.url, request({"reason": "x"}, path="/v1/admin/tiers/closed/quiesce", key=OPERATOR))
        assert answer.status == 200
        tiers = operator_get(process.url, "/v1/router/status")["tiers"]  # every tier was probed before it listened
        assert [tier["id"] for tier in tiers if tier["ready"]] == ["full"]
        yield process


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_the_first_of_two_faults_is_told(gateway: Gateway, first: int, second: int) -> None:
    it = Ask()
    for spoil in (FAULTS[first][0], FAULTS[second][0]):
        spoil(it)
    answer = ask(gateway.url, it.encode())
    assert (answer.status, answer.code) == FAULTS[first][1:]


def test_all_faults_one_after_the_other(gateway: Gateway) -> None:
    """Every fault at once, then the first mended, and so on to the last."""
    for start in range(len(FAULTS)):
        it = Ask()
        for spoil, _, _ in FAULTS[start:]:
            spoil(it)
        answer = ask(gateway.url, it.encode())
        assert (answer.status, answer.code) == FAULTS[start][1:]


def test_readiness_comes_after_the_operator_and_before_the_queue(gateway: Gateway, synthetic: Synthetic) -> None:
    url = gateway.url
    answer = ask(url, Ask(body={"model": "mine-unready", "prompt": "x"}).encode())
    assert (answer.status, answer.code) == (503, "not_ready")
    chat = {"model": "mine-full", "messages": []}
    with connected(url) as running:
        running.send(request(chat | {"synthetic": {"stall_after": -1}}))
        synthetic.wait(requests=1)
        late = ask(url, request(chat))
        assert (late.status, late.code) == (503, "admission_timeout")
        assert late.headers["retry-after"]
        quiesce = request({"reason": "x"}, path="/v1/admin/tiers/full/quiesce", key=OPERATOR)
        assert ask(url, quiesce).status == 200
        closed = ask(url, request(chat))
        assert (closed.status, closed.code) == (503, "quiesced")
    assert synthetic.stats()["requests"] == 1


def test_refusals_change_no_other_counter(gateway: Gateway, synthetic: Synthetic) -> None:
    before = synthetic.stats()["requests"]
    for start in range(len(FAULTS)):
        it = Ask()
        FAULTS[start][0](it)
        ask(gateway.url, it.encode())
    wait_idle(gateway.url)
    assert synthetic.stats()["requests"] == before
    metrics = ask(gateway.url, request(method="GET", path="/metrics", key=OPERATOR)).body.decode()
    outcomes = {line.split('outcome="')[1].split('"')[0] for line in metrics.splitlines()
                if line.startswith("sndr_requests_total{") and 'alias="mine"' in line}  # fmt: skip
    assert outcomes == {"refused"}
