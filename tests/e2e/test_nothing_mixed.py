"""Clients whose requests look alike: each server sees what each client wrote, and each client gets its own answer."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import gateway_process
from tests.support.raw import KEY, connected, request, wait_idle
from tests.support.raw_upstream import RawUpstream, Step, raw_upstream

SECOND = "second-key-0123456789"
TIERS = ("one", "two")
BOOT = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"
{server}

[[server.clients]]
id = "second"
auth_env = "SECOND_KEY"
aliases = ["llm.two"]

[router]
receipt_headers = true

[[router.tiers]]
id = "one"
base_url = "{one}"
model = "served-one"
auth_env = "SERVER_ONE"

[[router.tiers]]
id = "two"
base_url = "{two}"
model = "served-two"
auth_env = "SERVER_TWO"

[router.model_routes]
"llm.one" = "one"
"llm.two" = "two"
"""
CLIENTS, REQUESTS = 8, 40


def steps_of(name: str, chance: random.Random) -> tuple[bytes, tuple[Step, ...]]:
    """An answer that says whose it is, in one of the ways in which servers send theirs: body and steps."""
    body = json.dumps({"id": name, "choices": [], "text": name * chance.choice([1, 50])}).encode()
    if chance.random() < 0.5:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        return body, (head + body,)
    events = [b"data: %b\n\n" % body] * chance.choice([1, 4])
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = (head, *chunks, b"0\r\n\r\n")
    return b"".join(events), (b"".join(pieces),) if chance.random() < 0.5 else pieces


class Asked:
    """One request, and what has to come of it."""

    def __init__(self, name: str, upstreams: dict[str, RawUpstream], chance: random.Random) -> None:
        self.name = name
        self.tier = chance.choice(TIERS)
        self.allowed = True
        key = chance.choice([KEY, KEY, SECOND])
        self.allowed = key == KEY or self.tier == "two"
        self.upstream = upstreams[self.tier]
        self.trace = f"00-{name}" if chance.random() < 0.5 else None
        hop = chance.random() < 0.3
        self.forwarded = None if hop else self.trace
        self.padding = chance.choice(["", "p" * 6000])
        body, steps = steps_of(name, chance)
        self.body = body
        self.upstream.script(name, steps)
        headers = {"x-request-id": name}
        if hop:
            headers["connection"] = "keep-alive, traceparent"
        if self.trace is not None:
            headers["traceparent"] = self.trace
        if chance.random() < 0.5:
            headers = dict(reversed(headers.items()))
        members = {"model": f"llm.{self.tier}", "user": name, "messages": [self.padding]}
        data = json.dumps(members, separators=chance.choice([(",", ":"), (", ", ": ")])).encode()
        self.data = request(data=data, key=key, headers=headers)

    def check(self, answer: Any) -> None:
        assert answer.headers["x-request-id"] == self.name
        seen = self.upstream.seen(self.name)
        if not self.allowed:
            assert (answer.status, answer.code, seen) == (403, "model_not_allowed", [])
            return
        assert (answer.status, answer.body, answer.headers["x-sndr-tier"]) == (200, self.body, self.tier)
        (exchange,) = seen
        assert exchange.fields["authorization"] == f"Bearer server-{self.tier}-0123456789"
        assert exchange.fields.get("traceparent") == self.forwarded
        assert exchange.head.count(b"traceparent") == (self.forwarded is not None)
        assert json.loads(exchange.body) == {
            "model": f"served-{self.tier}", "user": self.name, "messages": [self.padding],
        }  # fmt: skip


def talk(url: str, upstreams: dict[str, RawUpstream], number: int) -> None:
    chance = random.Random(number)
    asked = [Asked(f"c{number}-{k}", upstreams, chance) for k in range(REQUESTS)]
    while asked:
        on_one = asked[: chance.choice([1, 3, 12])]
        asked = asked[len(on_one) :]
        at_once = chance.random() < 0.5
        with connected(url) as raw:
            if at_once:
                raw.send(b"".join(one.data for one in on_one))
            for one in on_one:
                if not at_once:
                    raw.send(one.data)
                one.check(raw.answer())


@pytest.mark.parametrize("server", ["", 'trusted_proxies = ["127.0.0.1"]'])
def test_requests_that_share_their_heads_share_nothing_else(tmp_path: Path, server: str) -> None:
    with ExitStack() as stack:
        upstreams = {name: stack.enter_context(raw_upstream()) for name in TIERS}
        config = tmp_path / "gateway.toml"
        config.write_text(BOOT.format(server=server, **{name: it.base_url for name, it in upstreams.items()}))
        keys = {"SECOND_KEY": SECOND, **{f"SERVER_{name.upper()}": f"server-{name}-0123456789" for name in TIERS}}
        gateway = stack.enter_context(gateway_process(config, **keys))
        with ThreadPoolExecutor(CLIENTS) as threads:
            for done in [threads.submit(talk, gateway.url, upstreams, number) for number in range(CLIENTS)]:
                done.result()
        wait_idle(gateway.url)
