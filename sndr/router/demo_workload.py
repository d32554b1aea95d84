"""Door: the narrated demonstration of workload routing.

Two synthetic siblings of one model, one that speculates (K=4) and one that does not. Short tool calls are easy to
guess, so they are faster on the first; chat is slower there. A routing table says so, with its evidence, and a gateway
in this process routes by it. At the end the ledger says what each rule got and how fast each sibling was.

Everything listens on 127.0.0.1 and lives in a temporary directory that is removed at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import httpx

from sndr.router import usage
from sndr.router.app import App
from sndr.router.demo import DemoError, Report, play
from sndr.router.routing_table import load_table
from sndr.router.store.ledger import UsageLedger, UsageStore
from sndr.router.synthetic import Options, SyntheticServer
from sndr.router.wire import boot

__all__ = ["Outcome", "example_table", "run"]

FAMILY: Final = "example_family"
RULE: Final = "short-structured-under-concurrency"
_TOKENS: Final = 40
_TOKEN_DELAY_MS: Final = 10
_TOOL_CLIENTS: Final = 6
_CHAT_CLIENTS: Final = 2
_ROUNDS: Final = 4
_TOOL: Final = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured.

    Attributes:
        coverage: As `sndr router coverage --json`.
        gain: Speed of short tool calls on the sibling that speculates over that on the other, less 1.
    """

    coverage: Mapping[str, Any]
    gain: float


def run(report: Report) -> Outcome:
    """Run the whole demonstration: a few seconds.

    Raises:
        DemoError: Something was not as promised; nothing is left behind.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP, after everything was cleaned up.
    """

    async def work(directory: str) -> Outcome:
        async with AsyncExitStack() as stack:
            gain = await _demonstrate(directory, stack, report)
        # Gateway and ledger are closed: every row is there.
        coverage = await asyncio.to_thread(usage.coverage, os.path.join(directory, "usage.db"))
        return Outcome(coverage, gain)

    return play(work)


def example_table() -> dict[str, Any]:
    """A routing table for the two siblings: one rule with its evidence, one default, one gap."""
    row = {"model": "example", "served_model_name": "example", "model_family": FAMILY, "intended_workloads": []}
    flat = {"preset_key": "example-k1", **row, "spec_decode_K": 1, "max_num_seqs": 2, "role": "default"}
    deep = {"preset_key": "example-k4", **row, "spec_decode_K": 4, "max_num_seqs": 8, "role": "structured"}
    structured, short = ["structured_json", "tool_call"], ["short"]
    when = {"workload_class": structured, "expected_output_length": short, "concurrency_mode": ["multi_conc"]}
    alone = {"workload_class": structured, "expected_output_length": short, "concurrency_mode": ["single_stream"]}
    return {
        "schema_version": 1,
        "generated_by": "sndr demo",
        "generated_at": "2026-01-01T00:00:00Z",
        "vllm_pin": None,
        "presets": [{**flat, "default_for_family": True}, {**deep, "default_for_family": False}],
        "routing_rules": [
            {
                "id": RULE,
                "model_family": FAMILY,
                "when": when,
                "preset_key": "example-k4",
                "evidence": "K=4 235.9 against K=1 209.1 tokens/s (+12.8 %), played: presets/evidence/example.yaml",
                "evidence_tag": "measured",
            }
        ],
        "workload_class_detection": {
            "evaluation_order": ["tool_call", "structured_json", "summarization", "code_gen", "free_chat"],
            "classes": {
                "tool_call": {"trigger": "tools is a non-empty array", "priority": 100},
                "structured_json": {"trigger": "response_format.type is json_object or json_schema", "priority": 90},
                "summarization": {"trigger": "input tokens > 2 x budget, no tools, no format", "priority": 50},
                "code_gen": {"trigger": "hint category is code", "priority": 40},
                "free_chat": {"trigger": "everything else", "priority": 0},
            },
        },
        "concurrency_mode_detection": {
            "single_stream": "in_flight <= 1",
            "multi_conc": "in_flight >= 2",
            "owner": "the consumer",
            "fallback": "single_stream",
        },
        "length_detection": {
            "short_threshold_tokens": 256,
            "caller_hint_wins": True,
            "buckets": {"short": "budget <= 256", "medium": "256 < budget <= 512", "long": "budget > 512, or none"},
        },
        "fallback": {
            "no_rule_matched": "the family's default",
            "model_family_unknown": "route by model",
            "classification_failed": "free_chat",
            "default_K": 1,
        },
        "coverage_gaps": [
            {
                "model_family": FAMILY,
                "missing_cell": "single-stream-structured-or-tool-short",
                "cell": alone,
                "fallback_preset": "example-k1",
                "next_phase": "measure both siblings with one request at a time",
            }
        ],
    }


async def _demonstrate(directory: str, stack: AsyncExitStack, report: Report) -> float:
    tiers = {}
    for name, depth in (("k1", 1), ("k4", 4)):
        server = tiers[name] = SyntheticServer(Options(model="example", depth=depth))
        await server.start()
        stack.push_async_callback(server.stop)
    config_path = _write_files(directory, tiers)
    config = boot.load(config_path, {})
    table = load_table(config)
    assert config.paths.usage is not None
    ledger = UsageLedger(UsageStore.open(config.paths.usage))
    stack.push_async_callback(ledger.close)
    gateway = App(config, ledger=ledger, table=table)
    await gateway.start()
    stack.push_async_callback(gateway.stop, 2)
    http = await stack.enter_async_context(
        httpx.AsyncClient(base_url=f"http://{gateway.addresses[0]}", timeout=30, trust_env=False)
    )
    clients = _Clients(http)

    report("", "A table with one rule")
    rule = table.table.routing_rules[0]
    report("table", f"content {(table.sha256 or '')[:12]}, {table.state}; the alias `model` is the family {FAMILY}")
    report("rule", f"{rule.when} -> {rule.preset_key}")
    report("evidence", rule.evidence)

    report("", "One client")
    _check(await clients.tool_calls(1, 2))
    report("route", "a short tool call alone goes to k1: nobody measured it, so the family's default serves it (a gap)")

    report("", f"{_TOOL_CLIENTS} clients with tool calls, {_CHAT_CLIENTS} that chat")
    busy, chat = await asyncio.gather(clients.tool_calls(_TOOL_CLIENTS, _ROUNDS), clients.chat(_CHAT_CLIENTS, _ROUNDS))
    _check(busy)
    deep = [one for one in busy if one.tier == "k4"]
    if not deep or any(one.tier != "k1" for one in chat):
        raise DemoError("demo_failed", "tool calls or chat went to the wrong sibling")
    report("route", f"{len(deep)} of {len(busy)} tool calls found the family busy and went to k4; chat stayed on k1")

    report("", "The same tool calls, all sent to k1")
    forced = await clients.tool_calls(_TOOL_CLIENTS, _ROUNDS, model="only-k1")
    gain = _speed(deep) / _speed(forced) - 1
    report("speed", f"k4 {_speed(deep):.0f}, k1 {_speed(forced):.0f} tokens/s: {gain:+.1%}")
    return gain


@dataclass(frozen=True, slots=True)
class _Served:
    tier: str
    mode: str | None
    tokens: int
    seconds: float


class _Clients:
    """Sends requests and keeps what the receipts say."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def tool_calls(self, clients: int, rounds: int, model: str = "model") -> list[_Served]:
        return await self._many(clients, rounds, {"model": model, "tools": [_TOOL], "max_tokens": _TOKENS})

    async def chat(self, clients: int, rounds: int) -> list[_Served]:
        return await self._many(clients, rounds, {"model": "model"})

    async def _many(self, clients: int, rounds: int, body: Mapping[str, Any]) -> list[_Served]:
        async def one() -> list[_Served]:
            return [await self._ask(body) for _ in range(rounds)]

        found = await asyncio.gather(*(one() for _ in range(clients)))
        return [served for each in found for served in each]

    async def _ask(self, body: Mapping[str, Any]) -> _Served:
        plan = {"tokens": _TOKENS, "token_delay_ms": _TOKEN_DELAY_MS}
        whole = {**body, "messages": [{"role": "user", "content": "hello"}], "synthetic": plan}
        started = time.monotonic()
        response = await self._http.post("/v1/chat/completions", json=whole)
        if response.status_code != 200:
            raise DemoError("demo_failed", f"a request was answered with {response.status_code}")
        tokens = response.json()["usage"]["completion_tokens"]
        headers = response.headers
        return _Served(headers["x-sndr-tier"], headers.get("x-sndr-mode"), tokens, time.monotonic() - started)


def _speed(served: Sequence[_Served]) -> float:
    return median(one.tokens / one.seconds for one in served)


def _check(served: Sequence[_Served]) -> None:
    """Every short tool call is where the table wants it."""
    for one in served:
        wanted = "k4" if one.mode == "multi_conc" else "k1"
        if one.tier != wanted:
            raise DemoError("demo_failed", f"a tool call in {one.mode} was served by {one.tier}, not {wanted}")


def _write_files(directory: str, tiers: Mapping[str, SyntheticServer]) -> str:
    with open(os.path.join(directory, "table.json"), "w", encoding="ascii") as file:
        json.dump(example_table(), file)
    lines = [
        "[server]",
        'listen = ["127.0.0.1:0"]',
        'usage_path = "usage.db"',
        "[router]",
        "receipt_headers = true",
        "[router.routing_table]",
        'path = "table.json"',
        "[router.family_routes.model]",
        f'family = "{FAMILY}"',
        'natural = "k1"',
        "[router.model_routes]",
        'only-k1 = "k1"',
    ]
    for name, server in tiers.items():
        lines += ["[[router.tiers]]", f'id = "{name}"', f'base_url = "{server.base_url}"', 'model = "example"',
                  'health_path = "/health"', f'preset = "example-{name}"']  # fmt: skip
    path = os.path.join(directory, "gateway.toml")
    with open(path, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    return path
