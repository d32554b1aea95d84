"""Rows for ledger tests, and a ledger inside a running loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sndr.router.core.usage import FinishRow, StartRow, refusal
from sndr.router.store.ledger import UsageLedger, UsageStore

DAY_MS = 86_400_000


def start_row(n: int = 1, **changes: Any) -> StartRow:
    """A start of request `r<n>`."""
    row = StartRow(
        started_at=1_780_000_000_000 + n, id=f"r{n}", client="default", kind="chat", endpoint="chat", stream=1,
        alias="llm.primary", tier="primary", tier_generation=1, authority_id=None, route_revision=None,
        effective_route_sha256=None, queue_ms=0, request_bytes=552, admission_seq=n, routing=None,
    )  # fmt: skip
    return row._replace(**changes)


def finish_row(n: int = 1, **changes: Any) -> FinishRow:
    """The end of request `r<n>`: completed with 40 tokens."""
    row = FinishRow(
        ended_at=1_780_000_000_500 + n, outcome="completed", status=200, error_code=None, finish_reason="stop",
        prompt_tokens=12, prompt_source="upstream", completion_tokens=40, completion_source="upstream",
        cached_tokens=None, cached_source="absent", first_byte_ms=31, total_ms=410, response_bytes=9120, retries=0,
        release_seq=n,
    )  # fmt: skip
    return row._replace(**changes)


def refused(n: int = 1, code: str = "queue_full", status: int = 429) -> FinishRow:
    """The terminal part of a refused request."""
    return refusal(1_780_000_000_001 + n, status, code, 1)


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[UsageLedger]:
    """An open ledger; closed in order at the end."""
    ledger = UsageLedger(UsageStore.open(str(path)), **options)
    try:
        yield ledger
    finally:
        await ledger.close()


async def started(ledger: UsageLedger, row: StartRow) -> int:
    """Start a request and wait until it is durable; raises what the ledger reports."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    key = ledger.start(row, done)
    await future
    return key


def rows(path: Path, query: str = "SELECT * FROM requests ORDER BY seq") -> list[dict[str, Any]]:
    """Rows of the file, read by a connection of its own."""
    db = sqlite3.connect(path)
    db.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in db.execute(query)]
    finally:
        db.close()
