"""Long random histories of the machine, against an oracle that says the same in other words.

SNDR_MACHINE_EXAMPLES=5000 python -m pytest tests/property/test_machine_stateful.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.invariants import check_machine, check_record, check_step
from sndr.router.core.projection import FamilyTarget, Projection, changed_tiers, parse, sha256
from sndr.router.core.transaction import Machine, next_actions, step
from tests.support.machine import boot, call, record, replacement, update
from tests.support.machine_oracle import Content, Died, Disk, Oracle

EXAMPLES = int(os.environ.get("SNDR_MACHINE_EXAMPLES", "300"))
MODELS = {"a": ("m1", "m2"), "b": ("n1", "n2")}
FATES = st.lists(
    st.sampled_from(["done"] * 12 + ["fails", "doubt old", "doubt new", "died old", "died new"]), max_size=4
)
ACTS = ("request", "request", "deliver", "lose row", "reconcile")
SCOPES = st.sampled_from([("a",), ("b",), ("a", "b")])


def content(projection: Projection) -> Content:
    target = projection.aliases["x"]
    assert not isinstance(target, FamilyTarget)
    first, second = (MODELS[tier].index(projection.tiers[tier].model or "") for tier in ("a", "b"))
    return (target.tier, first, second)


def disk(given: rc.Record) -> Disk:
    """A record in the oracle's terms."""
    receipt, before = given.transaction, given.previous
    plain = Disk(
        given.current.route_revision,
        content(given.current.projection),
        None if before is None else (before.route_revision, content(before.projection)),
    )
    if receipt is None:
        return plain
    return Disk(
        plain.revision,
        plain.content,
        plain.before,
        receipt.state.value,
        receipt.scope,
        CONTENTS[receipt.proposed_sha256],
        receipt.op is rc.Op.ROLLBACK,
    )


def _contents() -> dict[str, Content]:
    """Every content there can be, by its hash."""
    found: dict[str, Content] = {}
    for target in ("a", "b"):
        for first in (0, 1):
            for second in (0, 1):
                routes = parse(
                    {
                        "aliases": {"x": {"tier": target}, "y": {"tier": "b"}, "z": {"tier": "a"}},
                        "tiers": {
                            name: {
                                "base_url": f"http://127.0.0.1:{port}/v1",
                                "model": MODELS[name][which],
                                "health_path": "/health",
                            }
                            for name, port, which in (("a", 8001, first), ("b", 8002, second))
                        },
                    },
                    fill=True,
                )
                found[sha256(routes)] = (target, first, second)
    return found


CONTENTS = _contents()


class Histories(RuleBasedStateMachine):
    """Operations, faults and clients in any order; after each the machine and the oracle must agree."""

    @initialize()
    def begin(self) -> None:
        self.oracle = Oracle()
        self.machine: Machine | None = None
        self.shown = record()
        self.on_disk: dict[Disk, rc.Record] = {self.oracle.visible: self.shown}
        self.maybe: set[Disk] = set()
        self.closed: set[str] = set()
        self.number = 0
        self.spent: fx.Command | None = None
        self.pairs: dict[int, str] = {}
        self.restart()

    # --- the world: performs effects

    def give(self, event: fx.Event, fates: list[str]) -> str | None:
        """Feed one event and what follows; the reply's code. Raises `Died` like the oracle does."""
        ends = iter(fates)
        queue, reply = [event], None
        self.proved = self.touched = False
        while queue:
            assert self.machine is not None
            taken = queue.pop(0)
            after, effects = step(self.machine, taken)
            assert check_step(self.machine, taken, after, effects) == ()
            self.machine = after
            for effect in effects:
                match effect:
                    case fx.Reply(code=code):
                        reply = code and code.value
                    case fx.Proceed(event=fed):
                        queue.append(fed)
                    case fx.CloseGate(scope=scope):
                        self.closed |= set(scope)
                    case fx.OpenGate(scope=scope):
                        assert self.proved or not self.touched
                        self.closed -= set(scope)
                    case fx.Publish():
                        self.publish(effect)
                    case fx.Persist():
                        queue.append(self.persist(effect, ends))
                    case _ if hasattr(effect, "ticket"):
                        queue.append(self.look(effect))
        return reply

    def publish(self, effect: fx.Publish) -> None:
        number, routes = effect.revision.route_revision, effect.revision.projection
        assert self.pairs.setdefault(number, sha256(routes)) == effect.revision.effective_route_sha256 == sha256(routes)
        assert all(number <= survivor.revision for survivor in (disk(self.shown), *self.maybe))
        if self.routes is not None:
            assert set(changed_tiers(self.routes, routes)) <= set(effect.replaced)
        self.routes = routes

    def persist(self, effect: fx.Persist, ends: Iterator[str]) -> fx.Fact:
        assert check_record(effect.record, boot()) == ()
        fate = next(ends, "done")
        self.touched = self.touched or fate != "fails"
        self.proved = self.proved and fate == "done"
        if fate in ("done", "doubt new", "died new"):
            self.maybe = set() if fate == "done" else {*self.maybe, disk(self.shown)}
            self.shown = effect.record
            self.on_disk[disk(effect.record)] = effect.record
        if fate == "fails":
            return fx.WriteFailed(effect.ticket)
        if fate.startswith("doubt"):
            return fx.WriteUncertain(effect.ticket)
        if fate.startswith("died"):
            raise Died
        return fx.Written(effect.ticket)

    def look(self, effect: fx.Effect) -> fx.Fact:
        world = self.oracle
        match effect:
            case fx.ProbeReady(ticket=ticket, targets=targets):
                return fx.TargetsReady(ticket) if self.good(targets) else fx.TargetsUnready(ticket)
            case fx.CheckAdmitting(ticket=ticket, tiers=tiers):
                assert not self.closed & set(tiers)
                return fx.TargetsAdmitting(ticket)
            case fx.Precheck(ticket=ticket, targets=targets):
                return fx.PrecheckPassed(ticket) if self.good(targets) else fx.PrecheckFailed(ticket)
            case fx.AwaitLeases(ticket=ticket, scope=scope):
                busy = any(world.leases[tier] for tier in scope)
                return fx.DrainTimedOut(ticket) if busy else fx.LeasesReleased(ticket)
            case fx.CountRows(ticket=ticket, scope=scope):
                left = len(world.rows & set(scope))
                return fx.RowsUnresolved(ticket, unresolved=left) if left else fx.RowsResolved(ticket)
            case fx.ProbeIdentity(ticket=ticket, targets=targets):
                self.proved = self.good(targets)
                return fx.IdentityProved(ticket) if self.proved else fx.IdentityFailed(ticket)
        raise AssertionError(effect)

    def good(self, targets: fx.Targets) -> bool:
        return all(MODELS[name].index(tier.model or "") == self.oracle.serves[name] for name, tier in targets)

    def both(self, command: fx.Command, expected: object, fates: list[str]) -> None:
        """Let the oracle and the machine carry out one operation."""
        self.oracle.fates = iter(fates)
        self.spent = command
        try:
            code = expected()  # type: ignore[operator]
        except Died:
            with pytest.raises(Died):
                self.give(command, fates)
            self.machine, self.closed = None, set()
        else:
            assert self.give(command, fates) == code

    def fresh(self) -> str:
        self.number += 1
        return f"t{self.number}"

    # --- rules

    @property
    def up(self) -> Machine:
        assert self.machine is not None
        return self.machine

    def can(self, action: str) -> bool:
        return self.machine is not None and action in next_actions(self.machine)

    def is_idle(self) -> bool:
        return self.machine is not None and self.oracle.standing == "idle"

    @precondition(lambda self: self.machine is None)
    @rule(lost=st.booleans(), pick=st.integers(0, 9))
    def come_back(self, lost: bool, pick: int) -> None:
        if lost:
            candidates = sorted({self.oracle.visible, *self.oracle.others}, key=repr)
            survivor = candidates[pick % len(candidates)]
            self.oracle.lose_power(survivor)
            self.shown, self.maybe = self.on_disk[survivor], set()
        self.restart()

    def restart(self) -> None:
        self.oracle.fates = iter(())
        self.oracle.restart()
        self.machine, self.closed, self.spent, self.routes = Machine(), set(), None, None
        self.give(fx.Start(self.shown), [])

    @precondition(lambda self: self.machine is not None)
    @rule(politely=st.booleans())
    def end(self, politely: bool) -> None:
        if politely:
            self.give(fx.Shutdown(), [])
        self.oracle.die()
        self.machine, self.closed = None, set()

    @rule(tier=st.sampled_from(["a", "b"]), model=st.sampled_from([0, 1, 2]))
    def load(self, tier: str, model: int) -> None:
        """What a server really serves; 2 is nothing that any definition names."""
        self.oracle.serves[tier] = model

    @rule(
        tier=st.sampled_from(["a", "b"]),
        act=st.sampled_from(["request", "request", "deliver", "lose row", "reconcile"]),
    )
    def client(self, tier: str, act: str) -> None:
        world = self.oracle
        if act == "reconcile":
            world.rows.clear()
        elif act == "request":
            if self.machine is not None and tier not in self.closed and world.leases[tier] < 2:
                world.leases[tier] += 1
        elif world.leases[tier]:
            world.leases[tier] -= 1
            if act == "lose row":
                world.rows.add(tier)

    def help(self, wanted: Content | None) -> None:
        """Let the servers serve this, and the clients leave: most random worlds are wrong, and few histories go far."""
        if wanted is not None:
            self.oracle.serves = {"a": wanted[1], "b": wanted[2]}
            self.oracle.leases, self.oracle.rows = {"a": 0, "b": 0}, set()

    @precondition(is_idle)
    @rule(fates=FATES)
    def flip(self, fates: list[str]) -> None:
        other = "b" if self.oracle.known.content[0] == "a" else "a"  # type: ignore[union-attr]
        self.both(update(self.up, "x", other, tx=self.fresh()), lambda: self.oracle.aliases(other), fates)

    @precondition(is_idle)
    @rule(scope=SCOPES, prepares=st.booleans(), fates=FATES, helps=st.booleans())
    def replace_tiers(self, scope: tuple[str, ...], prepares: bool, fates: list[str], helps: bool) -> None:
        target, *models = self.oracle.known.content  # type: ignore[union-attr]
        for index, tier in enumerate(("a", "b")):
            if tier in scope:
                models[index] = 1 - models[index]
        proposed: Content = (target, models[0], models[1])
        self.help(proposed if helps else None)
        command = replacement(
            self.up,
            {tier: MODELS[tier][proposed[1 + ("a", "b").index(tier)]] for tier in scope},
            tx=self.fresh(),
            prepares=prepares,
        )
        self.both(
            command,
            lambda: self.oracle.replace_tiers(scope, proposed, prepares=prepares, undoes=False),
            fates,
        )

    @precondition(lambda self: self.is_idle() and self.oracle.known.before is not None)
    @rule(fates=FATES)
    def undo_from_idle(self, fates: list[str]) -> None:
        known, given = self.oracle.known, self.up.record
        assert known is not None
        assert known.before is not None
        assert given is not None
        assert given.previous is not None
        wanted, undone = known.before[1], given.previous.effective_route_sha256
        scope = tuple(tier for i, tier in enumerate(("a", "b")) if wanted[1 + i] != known.content[1 + i])
        if scope:
            self.both(
                fx.RollBack(call(self.up), self.fresh(), undone),
                lambda: self.oracle.replace_tiers(scope, wanted, prepares=False, undoes=True),
                fates,
            )
        else:
            self.both(
                fx.UpdateAliases(call(self.up), self.fresh(), rc.Rollback(), undone),
                lambda: self.oracle.aliases(wanted[0], undoes=True),
                fates,
            )

    def at_hand(self) -> str:
        assert self.up.receipt is not None
        return self.up.receipt.id

    @precondition(lambda self: self.can("drain"))
    @rule()
    def drain(self) -> None:
        self.both(fx.Drain(call(self.up), self.at_hand()), lambda: self.oracle.drain(stops=True), [])

    @precondition(lambda self: self.can("resume"))
    @rule(fates=FATES, helps=st.booleans())
    def resume(self, fates: list[str], helps: bool) -> None:
        self.help(self.oracle.known.proposed if helps else None)  # type: ignore[union-attr, index]
        self.both(fx.Resume(call(self.up), self.at_hand()), lambda: self.oracle.drain(stops=False), fates)

    @precondition(lambda self: self.can("cancel"))
    @rule(fates=FATES, helps=st.booleans())
    def cancel(self, fates: list[str], helps: bool) -> None:
        self.help(self.oracle.known.content if helps else None)  # type: ignore[union-attr, index]
        self.both(fx.Cancel(call(self.up), self.at_hand()), self.oracle.cancel, fates)

    @precondition(lambda self: self.can("verify"))
    @rule(fates=FATES, helps=st.booleans())
    def verify(self, fates: list[str], helps: bool) -> None:
        self.help(self.oracle.known.content if helps else None)  # type: ignore[union-attr, index]
        self.both(fx.Verify(call(self.up), self.at_hand()), self.oracle.verify, fates)

    @precondition(lambda self: self.can("rollback"))
    @rule(fates=FATES, accepts_unready=st.booleans())
    def undo(self, fates: list[str], accepts_unready: bool) -> None:
        given = self.up.fallback if self.oracle.standing == "uncertain" else self.up.record
        assert given is not None
        assert given.previous is not None
        command = fx.RollBack(
            call(self.up),
            self.fresh(),
            given.previous.effective_route_sha256,
            self.at_hand(),
            accepts_unready=accepts_unready,
        )
        self.both(command, lambda: self.oracle.undo(accepts_unready=accepts_unready), fates)

    @precondition(lambda self: self.can("reassert"))
    @rule(fates=FATES, helps=st.booleans())
    def reassert(self, fates: list[str], helps: bool) -> None:
        self.help(self.oracle.published[1] if helps else None)  # type: ignore[union-attr, index]
        receipt = self.shown.transaction
        command = fx.Reassert(call(self.up), receipt and receipt.id, self.shown.write_seq)
        self.both(command, self.oracle.reassert, fates)

    @precondition(lambda self: self.machine is not None)
    @rule(wrong=st.integers(0, 2))
    def misuse(self, wrong: int) -> None:
        """A preview used again, from before the last event, or no recovery where only that counts."""
        machine, mine = self.up, call(self.up)
        bent = (
            replace(mine, write_seq=mine.write_seq - 1),
            replace(mine, attention_seq=mine.attention_seq - 1),
            replace(mine, recovers=False),
        )[wrong]
        tx = machine.receipt.id if machine.receipt is not None else "t"
        refused: list[fx.Command] = []
        if wrong < 2 or machine.attention is not None:
            refused += [kind(bent, tx) for kind in (fx.Drain, fx.Resume, fx.Cancel, fx.Verify)]
            refused += [fx.RollBack(bent, "t", "0" * 64, tx), fx.Reassert(bent, tx, self.shown.write_seq)]
            refused += [replace(update(machine, "y", "a"), call=bent)]
            refused += [replace(replacement(machine, {"a": "m9"}), call=bent)]
        if self.oracle.standing in ("held", "committed"):
            refused.append(update(machine, "y", "a"))
        assert machine.record is not None
        if self.spent is not None and self.spent.call.write_seq != machine.record.write_seq:
            refused.append(self.spent)
        for command in refused:
            after, effects = step(machine, command)
            assert after is machine
            (answer,) = effects
            assert isinstance(answer, fx.Reply)
            assert answer.code is not None

    # --- what must agree

    @invariant()
    def agree(self) -> None:
        oracle, machine = self.oracle, self.machine
        assert disk(self.shown) == oracle.visible
        assert all(oracle.seen <= survivor.revision for survivor in (oracle.visible, *oracle.others))
        if machine is None:
            return
        assert check_machine(machine) == ()
        assert machine.record is not None
        assert machine.published is not None
        assert machine.standing.value == oracle.standing
        assert (machine.attention and machine.attention.code.value) == oracle.attention
        assert (machine.published.route_revision, content(machine.published.projection)) == oracle.published
        assert machine.gated == oracle.gate
        assert self.closed == set(oracle.gate)
        assert machine.max_attempted == oracle.top
        if oracle.standing != "uncertain":
            assert disk(machine.record) == oracle.known == oracle.visible


@pytest.mark.invariant(
    "INV-1", "INV-2", "INV-3", "INV-5", "INV-7", "INV-9", "INV-14", "INV-17", "INV-18", "INV-19", "INV-22"
)
@pytest.mark.req("R12", "R13", "R59", "R61", "R77", "R81", "R82", "R83", "R84", "R85", "R86", "R87", "R89", "R113")
class TestHistories(Histories.TestCase):
    """The histories, as pytest runs them."""

    settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=EXAMPLES <= 300,
        database=None,
    )
