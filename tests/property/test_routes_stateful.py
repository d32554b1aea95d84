"""Random histories of the coordinator and its API over fakes, against what may be seen from outside.

The machine alone is searched exhaustively elsewhere. Here it is the interpreter's turn: real admission, real snapshots,
real waits, calls that overlap, processes that die at any moment.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sndr.router.core import effects as fx
from sndr.router.core.admission import Lease
from sndr.router.core.transaction import State
from tests.support.routes_world import RefusedError, RoutesWorld

SERVERS = {"a": ("http://127.0.0.1:8001/v1", "http://127.0.0.1:8003/v1"), "b": ("http://127.0.0.1:8002/v1",)}
FAULTS = st.sampled_from(["done"] * 24 + ["failed", "no_space", "new", "new", "old", "old", "authority_lock_lost"])
tiers = st.sampled_from(["a", "b"])
aliases = st.sampled_from(["x", "y", "z"])


class Histories(RuleBasedStateMachine):
    """The rules are what anybody may do; the oracle only remembers what anybody has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.world = RoutesWorld()
        self.world.serving[SERVERS["a"][1]] = ("m2",)
        self.observed: dict[int, str] = {}
        self.newest = 0
        self.quiesced: set[str] = set()
        self.calls: list[asyncio.Task[Any]] = []
        self.previews: list[dict[str, Any]] = []
        self.uses: dict[str, int] = {}
        self.watch()

    def watch(self) -> None:
        world = self.world
        self.held = set(world.held)
        world.authority.on_write = self.on_write

    def on_write(self, effect: fx.Persist) -> None:
        """Every write has a call behind it; a commit has nobody left in its scope."""
        world, machine = self.world, self.world.coordinator.machine
        assert any(not call.done() for call in self.calls), "INV-22"
        assert machine.task is not None, "INV-22"
        assert world.held == set(machine.gated), "INV-19"
        if effect.kind is fx.WriteKind.COMMIT:
            scope = machine.gated
            assert world.coordinator.leases(scope) == 0, "INV-5"
            assert world.ledger.unresolved(scope).total == 0, "INV-5"
        if effect.kind in (fx.WriteKind.READMIT, fx.WriteKind.CANCEL):
            for tier in machine.gated:
                spec = world.gate.snapshot.runtimes[tier].spec
                assert world.prober.last.get(spec.base_url) == spec.model, "INV-9"
        if effect.kind in (fx.WriteKind.HOLD, fx.WriteKind.ALIAS):
            self.uses[machine.task.call.id] = self.uses.get(machine.task.call.id, 0) + 1
            assert self.uses[machine.task.call.id] == 1, "INV-17"

    # -- operators

    def call(self, work: Any) -> None:
        async def answered() -> None:
            try:
                found = await work
            except RefusedError:
                return
            if found.get("object") == "route.preview":
                self.previews.append(found)

        self.calls = [call for call in self.calls if not call.done()]
        self.calls.append(self.world.background(answered()))

    @rule(alias=aliases, tier=tiers, family=st.booleans())
    def preview_alias(self, alias: str, tier: str, family: bool) -> None:
        target = {"family": "f", "natural": tier} if family else {"tier": tier}
        self.call(self.world.preview(op="alias_update", aliases={alias: target}))
        self.world.pass_time(0.05)

    @rule(model=st.sampled_from(["m1", "m2"]), prepares=st.booleans(), both=st.booleans())
    def preview_replacement(self, model: str, prepares: bool, both: bool) -> None:
        patch: dict[str, Any] = {"a": {"base_url": SERVERS["a"][model == "m2"], "model": model}}
        if both:
            patch["b"] = {"max_output_tokens": 64 + len(self.observed)}
        mode = "prepare" if prepares else "apply"
        self.call(self.world.preview(op="tier_replacement", tiers=patch, mode=mode))
        self.world.pass_time(0.05)

    @rule(op=st.sampled_from(["rollback", "resume", "cancel"]))
    def preview_other(self, op: str) -> None:
        receipt = self.world.coordinator.machine.receipt
        body: dict[str, Any] = {"op": op}
        if op != "rollback":
            body["transaction_id"] = "nobody" if receipt is None else receipt.id
        self.call(self.world.preview(**body))
        self.world.pass_time(0.05)

    @rule(
        action=st.sampled_from(["drain", "resume", "cancel", "verify", "rollback", "reassert"]), unready=st.booleans()
    )
    def preview_recovery(self, action: str, unready: bool) -> None:
        receipt = self.world.coordinator.machine.receipt
        if action == "reassert":
            receipt = self.world.authority.visible_record.transaction
        body: dict[str, Any] = {"op": "recover", "action": action}
        body["transaction_id"] = None if receipt is None else receipt.id
        if action == "rollback":
            body["accept_unready"] = unready
        self.call(self.world.preview(**body))
        self.world.pass_time(0.05)

    @rule(
        to_new=st.booleans(), prepares=st.booleans(), works=st.booleans(), faults=st.lists(FAULTS, max_size=4),
        waits_s=st.sampled_from([0.03, 0.06, 3.0, 70.0]), idle=st.booleans(),
    )  # fmt: skip
    def replace(self, to_new: bool, prepares: bool, works: bool, faults: list[str], waits_s: float, idle: bool) -> None:
        """The usual way: to a server that is up, or turns out not to be."""
        world, url = self.world, SERVERS["a"][to_new]
        model = "m2" if to_new else "m1"
        world.serving[url] = (model,)
        while idle and world.leases:
            world.finish(world.leases[0])
        world.authority.faults.clear()
        world.authority.faults.extend(faults)
        if not works:
            world.prober.script.extend([(model,), (model,), ("wrong",)])
        patch = {"a": {"base_url": url, "model": model}}
        mode = "prepare" if prepares else "apply"
        self.call(world.change({"drain_timeout_s": 60}, op="tier_replacement", tiers=patch, mode=mode))
        world.pass_time(waits_s)
        world.prober.script.clear()

    @precondition(lambda self: self.world.routes.standing()["next"])
    @rule(
        index=st.integers(0, 2), works=st.booleans(), faults=st.lists(FAULTS, max_size=4), unready=st.booleans(),
        waits_s=st.sampled_from([0.03, 0.06, 3.0, 70.0]),
    )  # fmt: skip
    def go_on(self, index: int, works: bool, faults: list[str], unready: bool, waits_s: float) -> None:
        """One of the legal ways on."""
        world = self.world
        actions = world.routes.standing()["next"]
        action = actions[index % len(actions)]
        if works:
            for url, model in zip((*SERVERS["a"], *SERVERS["b"]), ("m1", "m2", "n1"), strict=True):
                world.serving[url] = (model,)
            world.reconcile()
        world.authority.faults.clear()
        world.authority.faults.extend(faults)
        more = {"accept_unready": unready} if action == "rollback" else {}
        self.call(world.recover(action, {"verify_timeout_s": 1}, **more))
        world.pass_time(waits_s)

    @precondition(lambda self: self.previews)
    @rule(
        index=st.integers(-3, -1), faults=st.lists(FAULTS, max_size=4), waits_s=st.sampled_from([0.0, 0.012, 3.0]),
        timeout_s=st.sampled_from([1, 60]),
    )  # fmt: skip
    def apply(self, index: int, faults: list[str], waits_s: float, timeout_s: int) -> None:
        preview = self.previews[max(index, -len(self.previews))]
        self.world.authority.faults.clear()
        self.world.authority.faults.extend(faults)
        self.call(self.world.apply(preview, drain_timeout_s=timeout_s, verify_timeout_s=1))
        self.world.pass_time(waits_s)

    @rule(tier=tiers)
    def quiesce(self, tier: str) -> None:
        self.world.gate.quiesce(tier, "mine")
        self.quiesced.add(tier)

    @rule(tier=tiers)
    def readmit(self, tier: str) -> None:
        self.world.gate.readmit(tier)
        self.quiesced.discard(tier)

    @rule()
    def reconcile(self) -> None:
        self.world.reconcile()

    # -- clients and servers

    @rule(alias=aliases, sibling=tiers)
    def request(self, alias: str, sibling: str) -> None:
        world = self.world
        snapshot = world.gate.snapshot
        got = world.request(alias, sibling)
        if isinstance(got, Lease):
            tier = got.runtime.tier_id
            assert got.runtime is snapshot.runtimes[tier], "INV-4"
            assert tier not in world.held, "INV-8"
            assert tier not in self.quiesced, "INV-10"

    @precondition(lambda self: self.world.leases)
    @rule(row=st.sampled_from(["durable", "durable", "failed"]))
    def finish(self, row: str) -> None:
        self.world.finish(self.world.leases[0], row)

    @rule(server=st.sampled_from([0, 1]), model=st.sampled_from(["m1", "m2", None]))
    def serve(self, server: int, model: str | None) -> None:
        self.world.serving[SERVERS["a"][server]] = None if model is None else (model,)

    # -- time and death

    @rule(seconds=st.sampled_from([0.01, 0.3, 5.0, 130.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(jump_s=st.sampled_from([-3600, 3600]))
    def jump(self, jump_s: int) -> None:
        self.world.clock.jump_ms += jump_s * 1000

    @rule(survivor=st.integers(0, 3), kill=st.booleans())
    def die(self, survivor: int, kill: bool) -> None:
        world = self.world
        survivors = world.authority.survivors
        world.restart(None if kill else survivors[survivor % len(survivors)])
        self.quiesced.clear()
        self.previews.clear()
        self.calls = []
        assert world.fence[0] >= self.newest, "INV-1"
        self.watch()

    # -- what must hold

    @invariant()
    def sound(self) -> None:
        world = self.world
        world.check()
        revision, sha = world.fence
        assert revision >= self.newest, "INV-2"
        self.newest = revision
        assert self.observed.setdefault(revision, sha) == sha, "INV-3"
        for tier, runtime in world.gate.snapshot.runtimes.items():
            assert runtime.gate.quiesced == (tier in self.quiesced), "INV-10"
        released = self.held - world.held
        self.held = set(world.held)
        machine = world.coordinator.machine
        if released and machine.record is not None and machine.record.transaction is not None:
            assert machine.record.transaction.state.is_terminal, "INV-8"

    @invariant()
    def released_only_after_proof(self) -> None:
        """Where a gate opened after a hold was durable, the published definition has proved itself."""
        machine = self.world.coordinator.machine
        if machine.state is not State.IDLE or machine.record is None:
            return
        receipt = machine.record.transaction
        if receipt is not None and receipt.scope:
            assert receipt.identity is not None, "INV-9"
            assert receipt.drain is None or receipt.drain.cut == 0

    def teardown(self) -> None:
        self.world.close()


Histories.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = pytest.mark.invariant(
    "INV-1", "INV-2", "INV-3", "INV-4", "INV-5", "INV-7", "INV-8", "INV-9", "INV-10", "INV-17", "INV-19", "INV-20",
    "INV-22",
)(Histories.TestCase)  # fmt: skip
