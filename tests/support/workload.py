"""Workload routing under test: boot files with siblings, and the contract's vectors as HTTP requests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sndr.router.app import App
from sndr.router.control.api import Management
from sndr.router.control.quiescence import Quiescence
from sndr.router.routing_table import load_table
from sndr.router.store.ledger import UsageLedger, UsageStore
from sndr.router.wire import boot
from tests.support.contract_vectors import D26, G26, M26, REFERENCE
from tests.support.gateway import CREDENTIALS
from tests.support.raw import KEY, Raw, ask, operator_get, request
from tests.support.synthetic import Synthetic

VECTORS = Path(__file__).parents[2] / "schemas" / "conformance"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
ALIAS = "gemma"
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
SHORT_TOOL_CALL = {"tools": [TOOL], "max_tokens": 100}


def siblings(
    directory: Path,
    base_urls: Mapping[str, str],
    *,
    table: object = REFERENCE,
    families: Mapping[str, tuple[str, str]] | None = None,
    presets: Mapping[str, str | None] | None = None,
    on_unready: str = "refuse",
    server: str = "",
    router: str = "receipt_headers = true",
    routing_table: str | None = 'path = "table.json"',
    tier: Mapping[str, str] | None = None,
    routes: Mapping[str, str] | None = None,
) -> Path:
    """A boot file with one tier per base URL (`k1` and `k4` run the 26B presets unless `presets` says otherwise).

    Args:
        table: Written to `table.json`; bytes as they are, None writes nothing.
        families: Alias -> family and natural tier; default the 26B family under `gemma`, natural `k1`.
        tier: More lines for a tier.
        routes: Plain aliases; default one per tier.
    """
    presets = {"k1": D26, "k4": M26} if presets is None else presets
    families = {ALIAS: (G26, "k1")} if families is None else families
    if table is not None:
        data = table if isinstance(table, bytes) else json.dumps(table).encode()
        (directory / "table.json").write_bytes(data)
    lines = [
        "[server]", 'listen = ["127.0.0.1:0"]', 'auth_env = "CLIENT_KEY"', 'operator_auth_env = "OPERATOR_KEY"', server,
        "[router]", "probe_interval_s = 0.2", router,
    ]  # fmt: skip
    if routing_table is not None:
        lines += ["[router.routing_table]", routing_table]
    for name, base_url in base_urls.items():
        lines += ["[[router.tiers]]", f'id = "{name}"', f'base_url = "{base_url}"', 'model = "m1"',
                  'health_path = "/health"', 'serves = ["chat", "completions", "responses", "messages"]']  # fmt: skip
        preset = presets.get(name)
        if preset is not None:
            lines.append(f'preset = "{preset}"')
        lines.append((tier or {}).get(name, ""))
    lines.append("[router.model_routes]")
    lines += [f'"{alias}" = "{name}"' for alias, name in (routes or {f"only.{n}": n for n in base_urls}).items()]
    for alias, (family, natural) in families.items():
        lines += [f'[router.family_routes."{alias}"]', f'family = "{family}"', f'natural = "{natural}"',
                  f'on_unready = "{on_unready}"']  # fmt: skip
    path = directory / "gateway.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@contextmanager
def gateway_thread(config: Path) -> Iterator[str]:
    """A gateway on a loop of its own in this process, for tests that need many; its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[App, UsageLedger | None]:
        boot_config = boot.load(os.fspath(config), CREDENTIALS)
        ledger = None
        if boot_config.paths.usage is not None:
            ledger = UsageLedger(UsageStore.open(boot_config.paths.usage))
        app = App(boot_config, ledger=ledger, table=load_table(boot_config))
        quiescence = Quiescence(app.gate, app.prober, lambda event, fields: None, None)
        app.use_management(
            Management(
                config=boot_config,
                gate=app.gate,
                prober=app.prober,
                ledger=ledger,
                metrics=app.metrics,
                quiescence=quiescence,
                process=app,
                routing_table=app.table_view,
            )
        )
        await app.start()
        return app, ledger

    async def stop(app: App, ledger: UsageLedger | None) -> None:
        await app.stop(5)
        if ledger is not None:
            await ledger.close()

    try:
        app, ledger = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
        try:
            yield f"http://{app.addresses[0]}"
        finally:
            asyncio.run_coroutine_threadsafe(stop(app, ledger), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def body(model: str = ALIAS, **members: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **members}


@contextmanager
def holding(url: str, server: Synthetic, count: int, model: str = ALIAS) -> Iterator[list[Raw]]:
    """So many requests in flight behind the alias, for as long as the block runs; released at its end."""
    with ExitStack() as stack:
        held = []
        for _ in range(count):
            before = server.stats()["requests"]
            raw = Raw(url)
            stack.callback(raw.close)
            raw.send(request(body(model, synthetic={"stall_after": -1})))
            server.wait(requests=before + 1)
            held.append(raw)
        try:
            yield held
        finally:
            if count:
                server.release()
                for raw in held:
                    assert raw.answer().status == 200


def receipt(url: str, members: Mapping[str, Any], **given: Any) -> dict[str, str]:
    """Receipt headers of one request that is served."""
    answer = ask(url, request(members, **given))
    assert answer.status == 200, answer
    return {name.removeprefix("x-sndr-"): value for name, value in answer.headers.items() if name.startswith("x-sndr")}


def vectors(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((VECTORS / name).read_text())
    return document


def as_request(vector: Mapping[str, Any], alias: str) -> bytes | None:
    """A vector as the bytes of a request; None where HTTP or the gateway's own checks have no place for it."""
    given, headers = vector["request"], vector["headers"]
    if not isinstance(given, dict) or vector["input_tokens"] is not None:
        return None
    in_flight = vector["in_flight"]
    if in_flight is not None and (isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1):
        return None
    if any(not re.fullmatch(r"[!-~]+", value) or not re.fullmatch(r"[A-Za-z-]+", name) for name, value in headers):
        return None
    data = json.dumps({**given, "model": alias}).encode()
    lines = [f"POST {PATHS[vector['dialect']]} HTTP/1.1", "Host: g", f"Authorization: Bearer {KEY}",
             *(f"{name}: {value}" for name, value in headers), f"content-length: {len(data)}"]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode() + data


def decision_of(url: str, request_id: str) -> Any:
    """The decision in the ledger, as an operator reads it."""
    return operator_get(url, f"/v1/requests/{request_id}")["routing"]


def recount(rows: Iterable[Mapping[str, Any]], tiers: Sequence[str]) -> dict[int, int]:
    """Per admission: how many requests of these tiers held a lease right after it, from the sequence numbers alone."""
    events: list[tuple[int, int]] = []
    for row in rows:
        if row["tier"] in tiers and row["admission_seq"] is not None:
            events.append((row["admission_seq"], 1))
            if row["release_seq"] is not None:
                events.append((row["release_seq"], -1))
    assert len({seq for seq, _ in events}) == len(events), "a number was given twice"
    running, counts = 0, {}
    for seq, step in sorted(events):
        running += step
        if step > 0:
            counts[seq] = running
    return counts
