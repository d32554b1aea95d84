"""The concurrency mode of a family is what the ledger's sequence numbers say, and a steady load does not swing."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sndr.router import usage
from tests.support.contract_vectors import D26, D31, G26, G31, M26
from tests.support.gateway import gateway_process
from tests.support.live import until
from tests.support.raw import connected, operator_get, request, wait_idle
from tests.support.synthetic import synthetic_thread
from tests.support.workload import PATHS, SHORT_TOOL_CALL, body, holding, recount, siblings

CLIENTS, ROUNDS = 64, 12
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


def mixed(chance: random.Random) -> tuple[bytes, bool]:
    """A request of any family, dialect and length, streamed or not, some through a plain alias of a sibling."""
    plan = {"tokens": chance.choice((1, 5)), "token_delay_ms": chance.choice((0, 1, 3))}
    members: dict[str, Any] = chance.choice(({}, SHORT_TOOL_CALL, {"max_tokens": 400}, {"expected_length": "short"}))
    alias = chance.choice(("moe", "moe", "moe", "dense", "only.k1", "only.k4", "limited"))
    stream = chance.random() < 0.5
    data = request(body(alias, synthetic=plan, stream=stream, **members), path=PATHS[chance.choice(tuple(PATHS))])
    return data, chance.random() < 0.1


async def load(url: str, seed: int) -> None:
    async def client(number: int) -> None:
        chance = random.Random(f"{seed}-{number}")
        for _ in range(ROUNDS):
            data, leave = mixed(chance)
            await one(url, data, leave=leave)

    async with asyncio.timeout(120):
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))


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
            asyncio.run(load(url, 7))
            wait_idle(url)
    found = rows(tmp_path / "usage.db")
    assert len(found) == CLIENTS * ROUNDS
    decided = 0
    for family, tiers in FAMILY_TIERS.items():
        counts = recount(found, tiers)
        for row in found:
            if row["tier"] in tiers and row["routing"] is not None and row["admission_seq"] is not None:
                decided += 1
                expected = "multi_conc" if counts[row["admission_seq"]] >= 2 else "single_stream"
                assert row["routing"]["concurrency_mode"] == expected, row
                assert row["routing"]["model_family"] == family
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
