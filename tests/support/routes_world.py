"""The live-route control plane in one process without disk, socket or waiting: every neighbour is a fake that obeys.

Time is the loop's own and does not pass: when nothing can happen before the next timer, the clock jumps to it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import selectors
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from sndr.errors import ControlError
from sndr.router.control.coordinator import Coordinator
from sndr.router.control.routes import Routes
from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.admission import Admission, Lease, Refusal
from sndr.router.core.invariants import check_machine, check_record
from sndr.router.core.listener import Listener
from sndr.router.core.projection import Projection, Tier, TierTarget, parse, sha256, tier_of
from sndr.router.core.readiness import Observation, Reason, TierReadiness
from sndr.router.core.usage import LedgerStatus, Unresolved
from sndr.router.gateway.gate import DataGate
from sndr.router.gateway.published import Published, build_snapshot
from sndr.router.wire.routing_table import no_table

T = TypeVar("T")

AUTHORITY = "6f0c8f3e-2f6c-4f0e-9b57-0d7c1a3c1a11"
WALL_MS = 1_796_000_000_000


class _Selector(selectors.DefaultSelector):
    """Never waits: the time that it should have waited has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise AssertionError("nothing will ever happen again")
            self.now += max(timeout, 0)
        return found


class InstantLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers are always due."""

    def __init__(self) -> None:
        self._instant = _Selector()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now


class FakeClock:
    """Both clocks follow the loop; the wall clock also jumps."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.jump_ms = 0

    def wall_ms(self) -> int:
        return WALL_MS + self.jump_ms + self.elapsed_ms()

    def elapsed_ms(self) -> int:
        return round(self._loop.time() * 1000)


class FakeAuthority:
    """A file that does to each write what it is told: `done`, `failed`, `no_space`, `new`, `old`, or a refusal's code.

    `new` and `old` are unknown outcomes, by what a reader of the file sees after them.
    """

    def __init__(self, record: rc.Record, boot: Projection) -> None:
        self.boot = boot
        self.visible_record = record
        self.survivors = [record]
        self.faults: deque[str] = deque()
        self.condition = "writable"
        self.last_write: str | None = None
        self.write_seq = record.write_seq
        self.kinds: list[str] = []
        self.on_write: Callable[[fx.Persist], None] | None = None
        self.delay_s = 0.0
        self.broken: list[BaseException] = []

    def persist(self, effect: fx.Persist, done: Callable[[fx.Fact], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(self.delay_s, lambda: done(self._write(effect)))

    def _write(self, effect: fx.Persist) -> fx.Fact:
        reassert = effect.kind in (fx.WriteKind.REASSERT, fx.WriteKind.ROLLBACK)
        if self.condition != "writable" and not (reassert and self.condition == "authority_write_uncertain"):
            return fx.WriteRefused(effect.ticket, fx.Code(self.condition))
        if self.on_write is not None:
            try:
                self.on_write(effect)
            except AssertionError as error:
                self.broken.append(error)
        record = replace(effect.record, write_seq=max(effect.record.write_seq, self.write_seq + 1))
        assert check_record(record, self.boot) == ()
        fault = self.faults.popleft() if self.faults else "done"
        self.kinds.append(effect.kind.value)
        self.last_write = fault
        match fault:
            case "done":
                self.write_seq = record.write_seq
                self.condition = "writable"
                self.visible_record, self.survivors = record, [record]
                return fx.Written(effect.ticket, write_seq=record.write_seq)
            case "failed":
                return fx.WriteFailed(effect.ticket)
            case "no_space":
                return fx.WriteFailed(effect.ticket, fx.Code.AUTHORITY_NO_SPACE)
            case "new" | "old":
                self.write_seq = record.write_seq
                self.condition = "authority_write_uncertain"
                self.survivors.append(record)
                if fault == "new":
                    self.visible_record = record
                return fx.WriteUncertain(effect.ticket, write_seq=record.write_seq)
        self.condition = fault
        return fx.WriteRefused(effect.ticket, fx.Code(fault))

    def visible(self, done: Callable[[rc.Record | Exception], None]) -> None:
        asyncio.get_running_loop().call_soon(done, self.visible_record)

    def check(self, done: Callable[[str | Exception], None]) -> None:
        asyncio.get_running_loop().call_soon(done, self.condition)


class FakeProber:
    """Servers by URL: what each advertises, None when it is down. Every probe takes a moment."""

    def __init__(self, plane: RoutesWorld) -> None:
        self._plane = plane
        self.noted: list[tuple[str, int]] = []
        self.ready: dict[tuple[str, int], bool] = {}
        self.last: dict[str, str | None] = {}
        self.script: deque[tuple[str, ...] | None] = deque()

    def state(self, tier_id: str, generation: int) -> TierReadiness:
        return TierReadiness(self.ready.get((tier_id, generation), True), Reason.IDENTITY_PASSED)

    async def probe(self, tier: Tier) -> Observation:
        await asyncio.sleep(0.01)
        served = self.script.popleft() if self.script else self._plane.serving.get(tier.base_url)
        self.last[tier.base_url] = None
        if served is None:
            return Observation(False, Reason.UNREACHABLE)
        if tier.model not in served:
            return Observation(False, Reason.IDENTITY_MISMATCH, served)
        self.last[tier.base_url] = tier.model
        return Observation(True, Reason.IDENTITY_PASSED, served)

    async def prove(self, tier_id: str, generation: int) -> Observation:
        runtime = self._plane.gate.snapshot.runtimes[tier_id]
        assert runtime.generation == generation
        seen = await self.probe(runtime.spec)
        self.note(tier_id, generation, seen)
        return seen

    def note(self, tier_id: str, generation: int, seen: Observation) -> None:
        self.noted.append((tier_id, generation))
        self.ready[tier_id, generation] = seen.passed


class FakeLedger:
    """Open rows by tier, those on their way to the disk, and those that earlier runs left."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.ending: list[str] = []
        self.failed: list[str] = []
        self.earlier: list[str] = []
        self.loose = 0

    def unresolved(self, scope: Collection[str] | None = None) -> Unresolved:
        def count(rows: list[str]) -> int:
            return sum(scope is None or tier in scope for tier in rows)

        earlier = count(self.earlier) + self.loose
        active, failed = count(self.open), count(self.failed)
        total = active + count(self.ending) + failed + earlier
        return Unresolved(total, active, failed, earlier, self.loose)

    def status(self) -> LedgerStatus:
        return LedgerStatus(0, 0, 0, 0, 0, 0, 0)


class Waiting:
    """A request in a queue; it takes what it gets."""

    def __init__(self, took: Callable[[Lease], None]) -> None:
        self._took = took
        self.refused: Refusal | None = None

    def admitted(self, lease: Lease) -> None:
        self._took(lease)

    def turned_away(self, refusal: Refusal) -> None:
        self.refused = refusal


def routes() -> Projection:
    """Two tiers behind three aliases; `a` serves m1 and `b` serves n1."""
    return parse(
        {
            "aliases": {"x": {"tier": "a"}, "y": {"tier": "b"}, "z": {"tier": "a"}},
            "tiers": {
                "a": {"base_url": "http://127.0.0.1:8001/v1", "model": "m1", "health_path": "/health"},
                "b": {"base_url": "http://127.0.0.1:8002/v1", "model": "n1", "health_path": "/health"},
            },
        },
        fill=True,
    )


class RefusedError(Exception):
    """A call was refused with this code."""

    def __init__(self, code: str, standing: Mapping[str, Any]) -> None:
        super().__init__(code)
        self.code = code
        self.standing = standing


class RoutesWorld:
    """One process after another over the same file, ledger and servers."""

    def __init__(self, boot: Projection | None = None) -> None:
        self.loop = InstantLoop()
        self.boot = routes() if boot is None else boot
        first = rc.Revision(1, sha256(self.boot), self.boot)
        record = rc.Record(
            authority_id=AUTHORITY, boot_sha256=sha256(self.boot), current=first, previous=None, transaction=None,
            write_seq=1,
        )  # fmt: skip
        self.clock = FakeClock(self.loop)
        self.authority = FakeAuthority(record, self.boot)
        self.ledger = FakeLedger()
        self.serving: dict[str, tuple[str, ...] | None] = {
            tier.base_url: (tier.model or "",) for tier in self.boot.tiers.values()
        }
        self.log: list[tuple[str, Mapping[str, object]]] = []
        self.leases: list[Lease] = []
        self._ids = itertools.count()
        self.loop.set_exception_handler(self._broke)
        self.start(record)

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self, record: rc.Record) -> None:
        """A new process; the record is made durable again before it is believed."""
        record = replace(record, write_seq=self.authority.write_seq + 1)
        authority = self.authority
        authority.write_seq = record.write_seq
        authority.visible_record, authority.survivors, authority.condition = record, [record], "writable"
        authority.faults.clear()
        self.ledger.earlier += self.ledger.open + self.ledger.ending + self.ledger.failed
        self.ledger.open, self.ledger.ending, self.ledger.failed = [], [], []
        self.leases = []
        self._build(record)

    def _build(self, record: rc.Record) -> None:
        """A gateway's control plane over that record, and everything around it but disk and sockets."""
        authority = self.authority
        self.admission = Admission()
        self.published = Published(
            build_snapshot(
                record.current.projection, self.admission, lambda *_: None, queue_limit=4,
                authority_id=record.authority_id, route_revision=record.current.route_revision,
                effective_route_sha256=record.current.effective_route_sha256,
            )
        )  # fmt: skip
        self.gate = DataGate(self.published, self.admission)
        self.prober = FakeProber(self)
        self.coordinator = Coordinator(
            authority=authority,
            gate=self.gate,
            publisher=self,
            prober=self.prober,
            ledger=self.ledger,  # type: ignore[arg-type]  # rows are started by nobody here
            clock=self.clock,
            log=lambda event, fields: self.log.append((event, fields)),
        )
        self.run(self._open(record))
        self.routes = Routes(
            coordinator=self.coordinator,
            gate=self.gate,
            ledger=self.ledger,  # type: ignore[arg-type]  # as above
            clock=self.clock,
            new_id=lambda: f"{next(self._ids):08x}-0000-4000-8000-000000000000",
            run_id="run",
            tier_view=lambda tier_id: self.tier_view(tier_id),
            listeners=lambda: [Listener("127.0.0.1:8710", "127.0.0.1", 8710, None)],
            others={},
            own_hosts=frozenset(),
            table=no_table(),
        )

    def tier_view(self, tier_id: str) -> dict[str, Any]:
        """What the gateway shows of a tier beside its leases and rows."""
        return {"id": tier_id}

    async def _open(self, record: rc.Record) -> None:
        self.coordinator.open(record)

    def restart(self, record: rc.Record | None = None) -> None:
        """Kill, and start on what the file shows, or on what a power loss left of it."""
        self.cancel_all()
        self.start(self.authority.visible_record if record is None else record)

    def _broke(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.authority.broken.append(context.get("exception") or AssertionError(context["message"]))

    def cancel_all(self) -> None:
        """Nothing of the old process goes on, nor what its ends set off: a task that never began is one, too."""
        for _ in range(100):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks))
        raise AssertionError("every end begins something new")

    def close(self) -> None:
        self.cancel_all()
        self.loop.close()

    def publish(self, revision: rc.Revision, replaced: Collection[str]) -> None:
        self.gate.publish(
            build_snapshot(
                revision.projection, self.admission, lambda *_: None, queue_limit=4, previous=self.published.snapshot,
                authority_id=AUTHORITY, route_revision=revision.route_revision,
                effective_route_sha256=revision.effective_route_sha256, replaced=replaced,
            )
        )  # fmt: skip

    # -- calls --------------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """To its end, however long that takes."""
        return self.loop.run_until_complete(work)

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(work)

    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    async def preview(self, **body: object) -> dict[str, Any]:
        try:
            return await self.routes.preview(json.dumps(body).encode())
        except ControlError as error:
            raise RefusedError(error.code, self.routes.standing()) from error

    async def apply(self, preview: Mapping[str, Any], **more: object) -> dict[str, Any]:
        body = {
            "preview_id": preview["preview_id"], "preview_sha256": preview["preview_sha256"], "confirm": True, **more,
        }  # fmt: skip
        try:
            return await self.routes.apply(json.dumps(body).encode())
        except ControlError as error:
            raise RefusedError(error.code, self.routes.standing()) from error

    async def change(self, apply: Mapping[str, object] | None = None, /, **body: object) -> dict[str, Any]:
        return await self.apply(await self.preview(**body), **(apply or {}))

    async def recover(self, action: str, apply: Mapping[str, object] | None = None, /, **more: object) -> Any:
        if action == "reassert":
            receipt = self.authority.visible_record.transaction
        else:
            receipt = self.coordinator.machine.receipt
        named = None if receipt is None else receipt.id
        return await self.change(apply, op="recover", transaction_id=named, action=action, **more)

    def do(self, work: Coroutine[Any, Any, T]) -> T | str:
        """The answer, or the code of the refusal."""
        try:
            return self.run(work)
        except RefusedError as refusal:
            return refusal.code

    # -- requests -----------------------------------------------------------------------------------------------------

    def request(self, alias: str, sibling: str | None = None) -> Lease | Refusal | None:
        """One request as far as its lease and its row; None when it waits in the queue.

        Behind a family alias it goes to `sibling`, which a table might have chosen, or else to the natural tier.
        """
        snapshot = self.gate.snapshot
        target = snapshot.projection.aliases[alias]
        tier_id = tier_of(target)
        if sibling is not None and not isinstance(target, TierTarget):
            tier_id = sibling
        got = snapshot.runtimes[tier_id].acquire(Waiting(self._took))
        if isinstance(got, Lease):
            self._took(got)
        return got

    def _took(self, lease: Lease) -> None:
        self.leases.append(lease)
        self.ledger.open.append(lease.runtime.tier_id)

    def finish(self, lease: Lease, row: str = "durable") -> None:
        """End a request; its row becomes `durable` at once, stays `ending`, or `failed`."""
        tier_id = lease.runtime.tier_id
        self.leases.remove(lease)
        self.ledger.open.remove(tier_id)
        if row == "ending":
            self.ledger.ending.append(tier_id)
        elif row == "failed":
            self.ledger.failed.append(tier_id)
        lease.release()

    def reconcile(self) -> None:
        self.ledger.earlier, self.ledger.failed, self.ledger.loose = [], [], 0

    # -- what must hold -----------------------------------------------------------------------------------------------

    @property
    def fence(self) -> tuple[int, str]:
        snapshot = self.gate.snapshot
        return snapshot.route_revision or 0, snapshot.effective_route_sha256 or ""

    @property
    def held(self) -> set[str]:
        return {tier_id for tier_id, runtime in self.gate.snapshot.runtimes.items() if runtime.gate.held}

    def check(self) -> None:
        """Every invariant that can be seen at one instant."""
        for error in self.authority.broken:
            raise error
        machine = self.coordinator.machine
        assert check_machine(machine) == ()
        lowest = min(one.current.route_revision for one in self.authority.survivors)
        assert self.fence[0] <= lowest, "INV-1"
        assert self.held == set(machine.gated), "INV-19"
        visible = self.authority.visible_record.transaction
        if visible is not None and visible.hold:
            assert set(visible.scope) <= self.held, "INV-7"
        for tier_id in self.gate.snapshot.runtimes:
            assert len([one for one in self.gate.runtimes_of(tier_id) if one.leases]) <= 1, "INV-6"
        assert self.admission.leases == len(self.leases), "INV-20"
        assert isinstance(self.gate.snapshot.runtimes, MappingProxyType)
