"""Random interleavings of starts, ends, faults, restarts and reconciles against a model of what must be true.

Which keys are open when a rule runs depends on how far the writer's thread is. So no draw and no precondition looks at
them: a rule draws a number and takes the key at that place, or does nothing when there is none.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sndr.router.store.ledger import UsageLedger, UsageStore
from tests.support.ledger import finish_row, refused, rows, start_row

OUTCOMES = st.sampled_from(["completed", "client_gone", "upstream_reset", "shutdown_cut"])
TIERS = st.sampled_from(["a", "b"])
PLACES = st.integers(0, 999)


class LedgerMachine(RuleBasedStateMachine):
    """The model: per key, whether its start was acknowledged and which end it may have."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "usage.db"
        self.loop = asyncio.new_event_loop()
        self.acknowledged: dict[int, str] = {}
        self.rejected: set[int] = set()
        self.handed: dict[int, str] = {}
        self.open: list[int] = []
        self.refusals = 0
        self.faults = 0
        self.n = 0
        self.boot()

    def boot(self) -> None:
        async def make() -> UsageLedger:
            return UsageLedger(UsageStore.open(str(self.path)))

        self.ledger = self.loop.run_until_complete(make())
        real = self.ledger._store.db.write

        def write(*args: Any) -> None:
            if self.faults > 0:
                self.faults -= 1
                raise sqlite3.OperationalError("disk I/O error")
            real(*args)

        self.ledger._store.db.write = write  # type: ignore[method-assign]

    def teardown(self) -> None:
        self.faults = 0
        self.loop.run_until_complete(self.ledger.close())
        self.loop.close()
        self.folder.cleanup()

    def spin(self, iterations: int) -> None:
        async def turn() -> None:
            for _ in range(iterations):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())

    def settle(self) -> None:
        self.loop.run_until_complete(self.ledger.flush())

    @rule(tier=TIERS, count=st.integers(1, 40))
    def start(self, tier: str, count: int) -> None:
        for _ in range(count):
            self.begin(tier)

    def begin(self, tier: str) -> None:
        self.n += 1
        name = f"r{self.n}"

        def done(error: Exception | None) -> None:
            if error is None:
                self.acknowledged[key] = name
            else:
                self.rejected.add(key)
                if key in self.open:
                    self.open.remove(key)

        key = self.ledger.start(start_row(self.n, tier=tier), done)
        self.open.append(key)

    @rule(place=PLACES, outcome=OUTCOMES)
    def finish(self, place: int, outcome: str) -> None:
        if self.open:
            key = self.open.pop(place % len(self.open))
            self.handed[key] = outcome
            self.ledger.finish(key, finish_row(1, outcome=outcome))

    @rule(place=PLACES)
    def finish_again(self, place: int) -> None:
        if self.handed:
            key = sorted(self.handed)[place % len(self.handed)]
            self.ledger.finish(key, finish_row(1, outcome="upstream_error"))

    @rule()
    def refuse(self) -> None:
        self.refusals += 1
        self.ledger.refuse(start_row(1, id="refused", tier=None), refused(1))

    @rule(iterations=st.integers(1, 4))
    def turn(self, iterations: int) -> None:
        self.spin(iterations)

    @rule(faults=st.integers(1, 3))
    def break_disk(self, faults: int) -> None:
        self.faults += faults

    @rule()
    def reconcile(self) -> None:
        self.settle()
        before = self.ledger.unresolved()
        answer = self.loop.run_until_complete(self.ledger.reconcile())
        assert answer.left == 0
        assert answer.reconciled == before.failed + before.earlier
        after = self.ledger.unresolved()
        assert (after.failed, after.earlier, after.active) == (0, 0, before.active)

    @rule()
    def restart(self) -> None:
        """An orderly end with requests still open: they stay unresolved for the next run."""
        self.faults = 0
        self.loop.run_until_complete(self.ledger.close())
        self.open.clear()
        # A key that never became a row is free again for the next run.
        self.rejected.clear()
        self.handed = {key: outcome for key, outcome in self.handed.items() if key in self.acknowledged}
        self.boot()

    @invariant()
    def memory_and_disk_agree(self) -> None:
        for key in self.open:
            assert key in self.ledger._open

    @rule()
    def compare(self) -> None:
        self.settle()
        found = {row["seq"]: row for row in rows(self.path)}
        for key, name in self.acknowledged.items():
            assert found[key]["id"] == name
        for key in self.rejected:
            assert key not in found
        lost = 0
        for key, row in found.items():
            if row["id"] == "refused":
                continue
            expected = self.handed.get(key)
            assert row["outcome"] in (None, "interrupted", expected)
            lost += row["outcome"] is None and key not in self.open
        for tier in ("a", "b"):
            on_disk = sum(1 for row in found.values() if row["outcome"] is None and row["tier"] == tier)
            assert self.ledger.unresolved({tier}).total == on_disk
        unresolved = self.ledger.unresolved()
        assert unresolved.total == len(self.open) + lost
        assert unresolved.active == len(self.open)
        assert sum(1 for row in found.values() if row["id"] == "refused") <= self.refusals


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
