"""The concurrency mode of a family is what the ledger's sequence numbers say, and a steady load does not swing."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sndr.contract import decide, strip_hints
from sndr.contract import load as load_table
from sndr.router import usage
from tests.support.contract_vectors import D26, D31, G26, G31, M26, REFERENCE
from tests.support.gateway import gateway_process
from tests.support.live import until
from tests.support.raw import connected, operator_get, request, wait_idle
from tests.support.synthetic import synthetic_thread
from tests.support.workload import PATHS, SHORT_TOOL_CALL, body, holding, recount, siblings

CLIENTS, ROUNDS = 64, 12
TABLE = load_table(REFERENCE)
FAMILY_TIERS = {G26: ["k1", "k4"], G31: ["dense"]}


def rows(path: Path) -> list[dict[str, Any]]:
    lines: list[str] = []
    usage.export(str(path), "jsonl", lines.append)
    return [json.loads(line) for line in lines]


async def one(url: str, data: bytes, *, leave: bool = False) -> None:
    """One request on a connection of its own; `leave` closes it after the first byte of the answer."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(data)
        if leave:
            await reader.read(1)
        else:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"content-length: " in head:
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            else:
                await reader.readuntil(b"0\r\n\r\n")
    finally:
        writer.close()


def mixed(chance: random.Random) -> tuple[str, str, dict[str, Any]]:
    """Alias, dialect and body of a request of any family and length, streamed or not, some through a plain alias."""
    plan = {"tokens": chance.choice((1, 5)), "token_delay_ms": chance.choice((0, 1, 3))}
    members: dict[str, Any] = chance.choice(
        (
            {},
            SHORT_TOOL_CALL,
            {"max_tokens": 400, "max_output_tokens": 200},
            {"expected_length": "short", "response_format": {"type": "json_object"}},
            {"text": {"format": {"type": "json_schema"}}, "extra_body": {"category": "code", "kept": [1]}},
            {"output_config": {"format": {"type": "json_schema"}}, "category": 5, "max_tokens": 100},
        )
    )
    alias = chance.choice(("moe", "moe", "moe", "dense", "only.k1", "only.k4", "limited"))
    dialect = chance.choice(tuple(PATHS))
    return alias, dialect, body(alias, synthetic=plan, stream=chance.random() < 0.5, **members)


async def load(url: str, seed: int) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """What was sent, by request id."""
    sent = {}

    async def client(number: int) -> None:
        chance = random.Random(f"{seed}-{number}")
        for turn in range(ROUNDS):
            name = f"{number}-{turn}"
            sent[name] = _, dialect, given = mixed(chance)
            data = request(given, path=PATHS[dialect], headers={"x-request-id": name})
            await one(url, data, leave=chance.random() < 0.1)

    async with asyncio.timeout(120):
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return sent


def test_the_mode_of_every_request_agrees_with_a_recount(tmp_path: Path) -> None:
    with synthetic_thread() as server:
        config = siblings(
            tmp_path,
            dict.fromkeys(("k1", "k4", "dense"), server.base_url),
            presets={"k1": D26, "k4": M26, "dense": D31},
            families={"moe": (G26, "k1"), "dense": (G31, "dense")},
            routes={"only.k1": "k1", "only.k4": "k4", "limited": "k4"},
            tier={"k4": "max_concurrency = 6", "k1": "max_concurrency = 40"},
            server='usage_path = "usage.db"',
        )
        with gateway_process(config) as gateway:
            url = gateway.url
            sent = asyncio.run(load(url, 7))
            wait_idle(url)
        log = server.log()
    found = rows(tmp_path / "usage.db")
    assert len(found) == CLIENTS * ROUNDS
    decided = 0
    for family, tiers in FAMILY_TIERS.items():
        counts = recount(found, tiers)
        for row in found:
            if row["tier"] in tiers and row["routing"] is not None and row["admission_seq"] is not None:
                decided += 1
                _, dialect, given = sent[row["id"]]
                count = counts[row["admission_seq"]]
                assert row["routing"]["concurrency_mode"] == ("multi_conc" if count >= 2 else "single_stream"), row
                decision = decide(TABLE, given, in_flight=count, dialect=dialect, family=family)
                assert row["routing"] == decision.record(), given
    forwarded = {entry["headers"]["x-request-id"]: entry["body"] for entry in log if "body" in entry}
    for name, (alias, dialect, given) in sent.items():
        if name in forwarded:  # and did not leave before
            kept = given if alias.startswith(("only", "limited")) else strip_hints(given)
            asked = {"stream_options": {"include_usage": True}} if given["stream"] and dialect == "chat" else {}
            assert forwarded[name] == {**kept, "model": "m1", **asked}
    assert len(forwarded) > CLIENTS * ROUNDS / 2
    modes = {row["routing"]["concurrency_mode"] for row in found if row["routing"] is not None}
    assert decided > 300
    assert modes == {"single_stream", "multi_conc"} or modes == {"multi_conc"}


def test_a_request_that_waited_for_its_slot_is_recounted_alike(tmp_path: Path) -> None:
    """It was decided when it came; it gets the slot of a request whose lease still counts at that moment."""
    with synthetic_thread() as server:
        config = siblings(
            tmp_path,
            dict.fromkeys(("k1", "k4"), server.base_url),
            tier={"k1": "max_concurrency = 1"},
            server='usage_path = "usage.db"',
        )
        with gateway_process(config) as gateway, connected(gateway.url) as waiting:
            with holding(gateway.url, server, 1):
                waiting.send(request(body()))
                until(lambda: operator_get(gateway.url, "/v1/router/status")["tiers"][0]["queued"])
            assert waiting.answer().status == 200
            wait_idle(gateway.url)
    found = sorted(rows(tmp_path / "usage.db"), key=lambda row: int(row["admission_seq"]))
    assert [row["routing"]["concurrency_mode"] for row in found] == ["single_stream", "multi_conc"]
    assert [*recount(found, ["k1", "k4"]).values()] == [1, 2]


def test_a_steady_load_stays_with_the_sibling_that_it_was_sent_to(tmp_path: Path) -> None:
    """Counting per server would swing: what moves to k4 lowers the count of k1 that moved it."""
    with synthetic_thread() as one_, synthetic_thread() as four:
        config = siblings(tmp_path, {"k1": one_.base_url, "k4": four.base_url}, server='usage_path = "usage.db"')
        with gateway_process(config) as gateway:
            url = gateway.url

            async def client() -> None:
                for _ in range(ROUNDS):
                    await one(url, request(body(**SHORT_TOOL_CALL, synthetic={"tokens": 4, "token_delay_ms": 1})))

            async def steady() -> None:
                async with asyncio.timeout(120):
                    await asyncio.gather(*(client() for _ in range(CLIENTS)))

            with holding(url, one_, 1):
                asyncio.run(steady())
            wait_idle(url)
    found = sorted(rows(tmp_path / "usage.db"), key=lambda row: int(row["admission_seq"]))
    assert [row["tier"] for row in found] == ["k1", *["k4"] * CLIENTS * ROUNDS]
