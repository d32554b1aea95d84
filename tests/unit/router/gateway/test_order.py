"""One request through a gateway whose ledger answers when it is told to: durable start, dispatch, row, release."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from sndr.router.app import App
from sndr.router.core.usage import FinishRow, StartRow
from sndr.router.wire import boot
from tests.support.control import FakeLedger
from tests.support.synthetic import Synthetic, synthetic_thread

KEY = "client-key-0123456789"
BOOT = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
[[router.tiers]]
id = "one"
base_url = "{url}"
model = "m1"
health_path = "/health"
[router.model_routes]
llm = "one"
"""


class TellingLedger(FakeLedger):
    """Keeps the callback of every start, and notes how many leases there were at every end."""

    def __init__(self) -> None:
        super().__init__()
        self.app: App | None = None
        self.started: asyncio.Queue[Callable[[Exception | None], None]] = asyncio.Queue()
        self.ends: list[tuple[str, int]] = []
        self.ended = asyncio.Event()

    def start(self, row: StartRow, done: Callable[[Exception | None], None]) -> int:
        self.started.put_nowait(done)
        return 1

    def finish(self, key: int, row: FinishRow) -> None:
        assert self.app is not None
        self.ends.append((row.outcome, self.app.admission.leases))
        self.ended.set()


async def _ask(address: str) -> int:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"model": "llm", "messages": [{"role": "user", "content": "hi"}]}).encode()
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    status = int((await reader.readuntil(b"\r\n")).split()[1])
    writer.transport.abort()
    return status


def _with_gateway(script: Callable[[App, TellingLedger, Synthetic], Any]) -> None:
    async def main(server: Synthetic) -> None:
        ledger = TellingLedger()
        app = App(boot.parse(BOOT.format(url=server.base_url), {"CLIENT_KEY": KEY}), ledger=ledger)
        ledger.app = app
        await app.start()
        try:
            async with asyncio.timeout(20):
                await script(app, ledger, server)
        finally:
            await app.stop(0)

    with synthetic_thread(model="m1") as server:
        asyncio.run(main(server))


def the_server_hears_of_it_after_the_start_row_is_durable() -> None:
    async def script(app: App, ledger: TellingLedger, server: Synthetic) -> None:
        asking = asyncio.create_task(_ask(app.addresses[0]))
        done = await ledger.started.get()
        for _ in range(20):
            await asyncio.sleep(0.005)  # there is no fact to wait for: nothing must happen
            assert (await asyncio.to_thread(server.stats))["requests"] == 0
        done(None)
        assert await asking == 200
        assert (await asyncio.to_thread(server.stats))["requests"] == 1

    _with_gateway(script)


def a_start_that_is_not_written_is_refused_and_not_sent() -> None:
    async def script(app: App, ledger: TellingLedger, server: Synthetic) -> None:
        asking = asyncio.create_task(_ask(app.addresses[0]))
        (await ledger.started.get())(OSError(28, "no space"))
        assert await asking == 503
        await ledger.ended.wait()
        assert ledger.ends == [("refused", 1)]
        assert (await asyncio.to_thread(server.stats))["requests"] == 0
        assert app.admission.leases == 0

    _with_gateway(script)


def the_row_is_handed_over_before_the_lease_is_given_back() -> None:
    async def script(app: App, ledger: TellingLedger, server: Synthetic) -> None:
        asking = asyncio.create_task(_ask(app.addresses[0]))
        (await ledger.started.get())(None)
        assert await asking == 200
        async with asyncio.timeout(5):
            await ledger.ended.wait()
        assert ledger.ends == [("completed", 1)]
        await asyncio.sleep(0)
        assert app.admission.leases == 0

    _with_gateway(script)


@pytest.mark.req("R97", "R36")
@pytest.mark.invariant("INV-21", "INV-20")
@pytest.mark.parametrize(
    "shows",
    [
        the_server_hears_of_it_after_the_start_row_is_durable,
        a_start_that_is_not_written_is_refused_and_not_sent,
        the_row_is_handed_over_before_the_lease_is_given_back,
    ],
)
def test_order(shows: Callable[[], None]) -> None:
    shows()
