"""Every lie of a model server, as bytes from a real socket: what the client gets, the ledger says, the pool keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.hostile import upstream_answers, upstream_framing
from tests.conformance.hostile.build import Lie
from tests.support.gateway import Gateway, unbroken_gateway
from tests.support.raw import Raw, ask, operator_get, request
from tests.support.raw_upstream import DEFAULT_BODY, RawUpstream

BOOT = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"

[router]
first_byte_timeout_s = 3
idle_timeout_s = 3

[[router.tiers]]
id = "raw"
base_url = "{url}"
model = "served"

[router.model_routes]
m = "raw"
"""
GROUPS = {"framing": upstream_framing, "answers": upstream_answers}
TABLE = [(f"{group}: {lie.name}", lie) for group, module in GROUPS.items() for lie in module.CASES]
DROPPED_S = 3.0
"""Shorter than an idle connection is kept: what is closed by then was dropped."""
CHAT = {"model": "m", "messages": []}
# Deadlines of a second are waited for side by side.
SLOW = [(name, lie) for name, lie in TABLE if lie.outcome == "upstream_timeout"]
QUICK = [(name, lie) for name, lie in TABLE if lie.outcome != "upstream_timeout"]


@pytest.fixture(scope="module")
def gateway(upstream: RawUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    boot, directory = BOOT.format(url=upstream.base_url), tmp_path_factory.mktemp("hostile")
    with unbroken_gateway(boot, directory, secrets=["SMUGGLED", "SERVER SAID"]) as process:
        yield process


def check(gateway: Gateway, upstream: RawUpstream, name: str, lie: Lie) -> None:
    request_id = "".join(letter if letter.isalnum() else "-" for letter in name)
    upstream.script(request_id, lie.steps)
    raw = Raw(gateway.url)
    try:
        raw.send(request({**CHAT, "stream": lie.stream}, headers={"x-request-id": request_id}))
        answer = raw.answer()
        framed = "content-length" in answer.headers or "transfer-encoding" in answer.headers
        assert framed or answer.status == 204
        assert b"SMUGGLED" not in answer.raw_head + answer.body + raw.buffer
        assert b"127.0.0.1" not in answer.raw_head + answer.body
        assert answer.status == lie.status
        assert answer.headers["x-request-id"] == request_id
        if lie.cut:
            assert raw.ended or raw.rest() == b""
        elif lie.code is None:
            assert answer.headers.get("connection") != "close"
        if lie.status in (502, 504):
            assert answer.code == lie.code
            assert answer.json["error"]["type"] == "server_error"
        elif lie.code is not None:
            errors = [event for event in answer.events if '"error"' in event]
            assert [json.loads(event)["error"]["code"] for event in errors] == [lie.code]
            assert answer.events[-1] == errors[0]
            assert b"[DONE]" not in answer.body
        if lie.body is not None:
            assert answer.body == lie.body
        for field, value in lie.fields:
            assert answer.headers.get(field) == value, field
        exchange = upstream.wait(request_id)
        if lie.drops:
            # Until it is dropped, nobody can tell a late byte from the beginning of the next answer.
            assert exchange.closed.wait(DROPPED_S), "the connection was kept"
        else:
            assert not exchange.closed.is_set()
        if not raw.ended and not lie.cut and lie.code is None:
            # The same client's next request gets its own answer.
            again = raw.send(request(CHAT)).answer()
            assert (again.status, again.body) == (200, DEFAULT_BODY)
    except AssertionError as error:
        if lie.cut and "closed after" in str(error):
            assert b"SMUGGLED" not in raw.buffer  # the close before the announced length is what the client can see
        else:
            raise
    finally:
        raw.close()
    if lie.drops:
        assert upstream.wait(request_id).closed.wait(DROPPED_S), "the connection was kept"
    assert len(upstream.seen(request_id)) <= 1 + lie.retries
    assert ask(gateway.url, request(CHAT)).body == DEFAULT_BODY
    row = operator_get(gateway.url, f"/v1/requests/{request_id}")
    if lie.outcome is not None:
        assert row["outcome"] == lie.outcome
    assert row["finish_reason"] is None or len(row["finish_reason"]) <= 64


@pytest.mark.parametrize(("name", "lie"), QUICK, ids=[name for name, _ in QUICK])
def test_response(gateway: Gateway, upstream: RawUpstream, name: str, lie: Lie) -> None:
    check(gateway, upstream, name, lie)


def test_silent_servers(gateway: Gateway, upstream: RawUpstream) -> None:
    with ThreadPoolExecutor(len(SLOW)) as pool:
        faults = []
        for name, future in [(name, pool.submit(check, gateway, upstream, name, lie)) for name, lie in SLOW]:
            try:
                future.result()
            except AssertionError as fault:
                faults.append(f"{name}: {fault}")
    assert not faults


def test_a_reused_connection_that_fails_is_replaced_once(gateway: Gateway, upstream: RawUpstream) -> None:
    """Only before any byte of a response, and only when the connection had been used before."""
    for request_id, steps, status, times in [
        ("reused-1", ("close",), 502, 2),
        ("reused-2", ("reset",), 502, 2),
        ("reused-3", (b"H", "close"), 502, 1),
        ("reused-4", (b"HTTP/1.1 100 Continue\r\n\r\n", "close"), 502, 1),
    ]:
        assert ask(gateway.url, request(CHAT)).status == 200  # leaves a connection in the pool
        upstream.script(request_id, steps)
        answer = ask(gateway.url, request(CHAT, headers={"x-request-id": request_id}))
        assert (answer.status, answer.code) == (status, "upstream_reset")
        assert len(upstream.seen(request_id)) == times
        assert operator_get(gateway.url, f"/v1/requests/{request_id}")["retries"] == times - 1


def test_every_lie_is_its_own() -> None:
    names = [name for name, _ in TABLE]
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
    assert len(names) >= 150
