"""The good paths of the machine: what is asked for, in which order, and what the record says in the end."""

from __future__ import annotations

import pytest

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.invariants import check_record
from sndr.router.core.recovery import Standing
from sndr.router.core.transaction import _ACTIONS, STANDINGS, TRANSITIONS, State
from tests.support.machine import Machine, boot, names, record, replacement, run, started, update


def test_tables_are_total_and_agree() -> None:
    assert set(TRANSITIONS) == set(State) == set(STANDINGS)
    assert {(state, event) for state, row in TRANSITIONS.items() for event in row} == set(_ACTIONS)


@pytest.mark.req("R71", "R76")
def test_start_makes_the_visible_record_durable_before_anything_is_published() -> None:
    machine, effects = run(Machine(), fx.Start(record()))
    assert names(effects) == ["W0", "Publish", "Serve"]
    assert machine.standing is Standing.IDLE
    assert machine.record is not None
    assert machine.record.write_seq == 2


@pytest.mark.req("R26", "R27")
def test_alias_update_writes_then_publishes_and_holds_nothing() -> None:
    machine = started()
    machine, effects = run(machine, update(machine, "x", "b"))
    assert names(effects) == ["ProbeReady", "CheckAdmitting", "alias", "Publish", "Reply"]
    assert machine.published is not None
    assert machine.published.route_revision == 2
    assert machine.receipt is not None
    assert machine.receipt.state is rc.State.COMPLETED
    assert check_record(machine.record, boot()) == ()  # type: ignore[arg-type]


@pytest.mark.req("R32", "R39", "R40", "R41", "R43", "R44")
def test_replacement_follows_the_whole_order() -> None:
    machine = started()
    machine, effects = run(machine, replacement(machine, {"a": "m2"}))
    assert names(effects) == [
        "CloseGate",
        "W1",
        "AwaitLeases",
        "CountRows",
        "Precheck",
        "CountRows",
        "W2",
        "Publish",
        "Retire",
        "ProbeIdentity",
        "W3",
        "OpenGate",
        "Reply",
    ]
    assert machine.state is State.IDLE
    assert machine.gated == ()
    for effect in effects:
        if isinstance(effect, fx.Persist):
            assert check_record(effect.record, boot()) == ()
