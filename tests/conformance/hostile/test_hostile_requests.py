"""Every case of the tables, as bytes to one gateway process: its status, and whether anything reached the server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.hostile import access, bodies, chunked, framing, limits, slow, syntax
from tests.conformance.hostile.build import HALF_CLOSE, Case, get
from tests.support.gateway import Gateway, unbroken_gateway
from tests.support.raw import Answer, Raw
from tests.support.raw_upstream import RawUpstream

BOOT = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"
header_timeout_s = 3
body_timeout_s = 3
keepalive_idle_s = 2
max_body_bytes = 100000

[[router.tiers]]
id = "raw"
base_url = "{url}"
model = "served"
context_limit = 10000

[router.model_routes]
m = "raw"
"""
GROUPS = {"framing": framing, "chunked": chunked, "syntax": syntax, "limits": limits, "access": access,
          "bodies": bodies}  # fmt: skip
TABLE = [pytest.param(case, id=f"{name}: {case.name}") for name, group in GROUPS.items() for case in group.CASES]
KEPT_BACK = {
    "transfer-encoding", "connection", "upgrade", "http2-settings", "te", "trailer", "keep-alive", "expect",
    "authorization", "x-api-key", "cookie", "proxy-authorization", "x-hop", "x-hop2",
}  # fmt: skip
SPOILED = b'"model":"m"'


@pytest.fixture(scope="module")
def gateway(upstream: RawUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    boot, directory = BOOT.format(url=upstream.base_url), tmp_path_factory.mktemp("hostile")
    with unbroken_gateway(boot, directory, secrets=["s3cret"]) as process:
        yield process


def converse(url: str, case: Case) -> list[Answer]:
    """Play a case: every response, and afterwards an open or a closed connection, as the case says."""
    raw = Raw(url)
    answers: list[Answer] = []
    try:
        for step in case.sends:
            if isinstance(step, float):
                time.sleep(step)
            elif step == HALF_CLOSE:
                raw.sock.shutdown(socket.SHUT_WR)
            else:
                assert isinstance(step, bytes)
                try:
                    raw.send(step)
                except ConnectionError:
                    break  # refused before everything was sent
        while len(answers) < len(case.statuses):
            answers.append(raw.answer(head_only=case.head))
        if case.closes is None:
            return answers
        if not case.closes:
            raw.send(get(b"/livez"))
            alive = raw.answer()
            assert (alive.status, alive.body) == (200, b"ok\n"), alive
            return answers
        rest = raw.rest()
        assert rest == b"", rest
    finally:
        raw.close()
    return answers


def check(url: str, case: Case) -> None:
    answers = converse(url, case)
    assert tuple(answer.status for answer in answers) == case.statuses
    for answer in answers:
        if answer.status >= 200:
            assert answer.headers["content-length"]
            assert "127.0.0.1" not in answer.body.decode()
            assert b"s3cret" not in answer.body
        if answer.status >= 400 and not case.head:
            document = answer.json
            assert document.get("error", document)["code"]
            assert answer.headers["x-request-id"]
    if case.closes and answers and answers[-1].status >= 400:
        assert answers[-1].headers["connection"] == "close"
    if case.code is not None:
        assert answers[-1].code == case.code


@pytest.mark.parametrize("case", TABLE)
def test_request(gateway: Gateway, upstream: RawUpstream, case: Case) -> None:
    before = len(upstream.exchanges)
    check(gateway.url, case)
    reached = upstream.exchanges[before:]
    assert len(reached) == case.reaches
    if case.arrives is not None:
        assert reached[-1].body == case.arrives.replace(SPOILED, b'"model":"served"')
    if case.path is not None:
        assert reached[-1].head.split(b" ")[1].decode() == case.path
    for exchange in reached:
        names = [line.partition(":")[0].lower() for line in exchange.head.decode("latin-1").split("\r\n")[1:] if line]
        assert names.count("content-length") == 1
        assert names.count("host") == 1
        assert not KEPT_BACK & set(names)
        assert exchange.fields["accept-encoding"] == "identity"


def test_slow_clients(gateway: Gateway, upstream: RawUpstream) -> None:
    before = len(upstream.exchanges)
    with ThreadPoolExecutor(len(slow.CASES)) as pool:
        faults = []
        for case, future in [(case, pool.submit(check, gateway.url, case)) for case in slow.CASES]:
            try:
                future.result()
            except AssertionError as fault:
                faults.append(f"{case.name}: {fault}")
    assert not faults
    assert len(upstream.exchanges) - before == sum(case.reaches for case in slow.CASES)


def test_every_case_is_its_own() -> None:
    cases = [case for group in (*GROUPS.values(), slow) for case in group.CASES]
    assert len(cases) >= 200
    for group in (*GROUPS.values(), slow):
        names = [case.name for case in group.CASES]
        assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
