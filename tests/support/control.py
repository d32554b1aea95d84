"""The control plane over fakes: a gate on the real admission rules, a scripted prober, a ledger of dictionaries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from sndr.router.control.api import Management
from sndr.router.control.quiescence import Quiescence
from sndr.router.core.admission import Admission, Lease, TierRuntime
from sndr.router.core.projection import Tier
from sndr.router.core.readiness import Observation, Reason, TierReadiness
from sndr.router.core.snapshot import Snapshot
from sndr.router.core.usage import FinishRow, LedgerStatus, Reconciled, RunRef, StartRow, Unresolved
from sndr.router.metrics import Metrics
from sndr.router.ports import ManagementRequest, ManagementResponse
from sndr.router.wire import boot

BOOT = """
[server]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
[[server.clients]]
id = "narrow"
auth_env = "NARROW_KEY"
aliases = ["small*"]
[[router.tiers]]
id = "a"
base_url = "http://127.0.0.1:9001/v1"
model = "m1"
health_path = "/health"
max_concurrency = 2
[[router.tiers]]
id = "b"
base_url = "http://127.0.0.1:9002/v1"
model = "m2"
context_limit = 4096
[router.model_routes]
llm.primary = "a"
small = "b"
"""
ENV = {name: f"{name.lower()}-0123456789" for name in ("CLIENT_KEY", "OPERATOR_KEY", "NARROW_KEY")}


class Nobody:
    """A waiter that is never told anything."""

    def admitted(self, lease: Lease) -> None:
        raise AssertionError

    def turned_away(self, refusal: object) -> None:
        raise AssertionError


class FakeGate:
    """`ports.Gate` over `core.admission`."""

    def __init__(self, config: boot.BootConfig) -> None:
        self.admission = Admission()
        runtimes = {
            tier_id: TierRuntime(self.admission, tier, tier_id=tier_id, generation=1, queue_limit=4, upstream=None)
            for tier_id, tier in config.projection.tiers.items()
        }
        self.snapshot = Snapshot(None, None, None, config.projection, runtimes)
        self.purposes: dict[tuple[str, str], TierRuntime] = {}
        self.idle = asyncio.Event()
        self.admission.on_idle = lambda _runtime: self.idle.set()

    def publish(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def quiesce(self, tier_id: str, reason: str | None) -> None:
        self.admission.quiesce(self.snapshot.runtimes[tier_id], reason)

    def readmit(self, tier_id: str) -> None:
        self.admission.readmit(self.snapshot.runtimes[tier_id])

    def hold(self, tier_id: str) -> None:
        self.admission.hold(self.snapshot.runtimes[tier_id])

    def unhold(self, tier_id: str) -> None:
        self.admission.unhold(self.snapshot.runtimes[tier_id])

    def runtimes_of(self, tier_id: str) -> tuple[TierRuntime, ...]:
        return (self.snapshot.runtimes[tier_id],)

    def leases(self, tier_id: str) -> int:
        return self.snapshot.runtimes[tier_id].leases

    async def wait_idle(self, tier_id: str, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self.leases(tier_id):
                    self.idle.clear()
                    await self.idle.wait()
        except TimeoutError:
            return False
        return True

    def connections(self) -> Mapping[str, int]:
        return {"client": 1, "upstream_active": 0, "upstream_idle": 2}

    def lease(self, tier_id: str) -> Lease:
        lease = self.snapshot.runtimes[tier_id].acquire(Nobody())
        assert isinstance(lease, Lease)
        return lease


class FakeProber:
    """Answers what it is told to."""

    def __init__(self) -> None:
        self.answer = Observation(True, Reason.IDENTITY_PASSED, ("m1",))
        self.proved: list[tuple[str, int]] = []

    def state(self, tier_id: str, generation: int) -> TierReadiness:
        return TierReadiness(True, Reason.IDENTITY_PASSED, 1780000000.5, models=("m1",))

    async def prove(self, tier_id: str, generation: int) -> Observation:
        self.proved.append((tier_id, generation))
        return self.answer

    async def probe(self, tier: Tier) -> Observation:
        return self.answer


class FakeStore:
    """Remembers what was stored; fails when told to."""

    def __init__(self) -> None:
        self.saved: list[Mapping[str, str | None]] = []
        self.fails = False

    async def save(self, quiesced: Mapping[str, str | None]) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise OSError(28, "no space")
        self.saved.append(dict(quiesced))


class FakeLedger:
    """One traceable request of the client `default`."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {"r1": {"object": "request", "id": "r1", "client": "default"}}

    def start(self, row: StartRow, done: Callable[[Exception | None], None]) -> int:
        raise AssertionError

    def finish(self, key: int, row: FinishRow) -> None:
        raise AssertionError

    def refuse(self, row: StartRow, end: FinishRow) -> None:
        raise AssertionError

    def unresolved(self, scope: Collection[str] | None = None) -> Unresolved:
        return Unresolved(total=3, by_tier={"a": 3})

    def status(self) -> LedgerStatus:
        return LedgerStatus(unresolved=3, rows=10, queued=0, lag_ms=2, failures=1, commits=5, bytes=4096)

    async def trace(self, request_id: str, client: str | None) -> Mapping[str, Any] | None:
        row = self.rows.get(request_id)
        return row if row is not None and client in (None, row["client"]) else None

    async def reconcile(self) -> Reconciled:
        return Reconciled(3, 0, (RunRef("r", 7, 1780000000000, "dead", 3, 0),))


class FakeTable:
    """A routing table in force; its status says nothing more."""

    def info(self) -> tuple[str | None, str] | None:
        return "0" * 64, "in_force"

    async def view(self) -> None:
        return None


class FakeProcess:
    """A process that has been serving for twelve seconds."""

    state = "serving"
    started_at = 1780000000.25
    uptime_s = 12
    dropped_log_lines: ClassVar[Mapping[str, int]] = {"requests": 7}

    @property
    def listen(self) -> list[str]:
        return ["127.0.0.1:8710"]


class Plane:
    """A whole control plane, and requests to it. Make it inside a running loop."""

    def __init__(self, text: str = BOOT, *, ledger: FakeLedger | None = None) -> None:
        self.config = boot.parse(text, ENV)
        self.gate = FakeGate(self.config)
        self.prober = FakeProber()
        self.store = FakeStore()
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.quiescence = Quiescence(self.gate, self.prober, lambda *event: self.events.append(event), self.store)
        self.metrics = Metrics(self.config.projection.aliases, self.config.projection.tiers)
        self.api = Management(
            config=self.config,
            gate=self.gate,
            prober=self.prober,
            ledger=ledger,
            metrics=self.metrics,
            quiescence=self.quiescence,
            process=FakeProcess(),
            routing_table=FakeTable(),
        )

    async def call(
        self, method: str, path: str, body: bytes = b"", *, role: str = "operator", client: str | None = None
    ) -> ManagementResponse:
        return await self.api.handle(ManagementRequest(method, path, "", {}, body, role, client))
