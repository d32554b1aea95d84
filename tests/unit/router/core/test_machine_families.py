"""The live-route machine over family aliases: every state that it reaches keeps the record's invariants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.invariants import check_machine, check_record
from sndr.router.core.projection import FamilyTarget, OnUnready, Target, TierTarget, parse, sha256, to_json
from sndr.router.core.proposal import propose
from tests.support.machine import Machine, boot, but, call, names, record, replacement, run, started

FAMILY = FamilyTarget("f", "b", OnUnready.REFUSE)


def move(machine: Machine, target: Target) -> fx.UpdateAliases:
    assert machine.record is not None
    change = rc.AliasUpdate({"x": target})
    return fx.UpdateAliases(call(machine), "t1", change, sha256(propose(machine.record, change)))


def of_family() -> Machine:
    """A machine whose alias x is a family's."""
    machine, _ = run(started(), move(started(), FAMILY))
    return machine


def sound(machine: Machine) -> rc.Record:
    """The machine's record, after every invariant was looked at."""
    assert machine.record is not None
    assert check_machine(machine) == ()
    assert check_record(machine.record, boot()) == ()
    return machine.record


def test_an_alias_becomes_a_familys_and_the_natural_tier_is_asked() -> None:
    machine, effects = run(started(), move(started(), FAMILY))
    assert names(effects) == ["ProbeReady", "CheckAdmitting", "alias", "Publish", "Reply"]
    [asked] = [effect for effect in effects if isinstance(effect, fx.ProbeReady)]
    assert [tier_id for tier_id, _ in asked.targets] == ["b"]
    now = sound(machine)
    assert now.current.projection.aliases["x"] == FAMILY
    machine, effects = run(machine, move(machine, FamilyTarget("f", "a", OnUnready.FAMILY_DEFAULT)))
    assert names(effects)[-1] == "Reply"
    machine, _ = run(machine, move(machine, TierTarget("a")))
    assert sound(machine).current.projection.aliases["x"] == TierTarget("a")


@pytest.mark.parametrize(
    ("effect", "fact"),
    [
        (fx.ProbeReady, lambda ticket: fx.TargetsUnready(ticket, fx.Code.TARGET_NOT_READY)),
        (fx.CheckAdmitting, fx.TargetsNotAdmitting),
    ],
)
def test_a_natural_tier_that_cannot_serve_changes_nothing(effect: type, fact: object) -> None:
    before = started()
    machine, effects = run(before, move(before, FAMILY), but((effect, fact)))  # type: ignore[arg-type]  # a tuple's member
    assert "alias" not in names(effects)
    assert sound(machine) == before.record


def test_a_replacement_changes_and_keeps_presets_under_a_family_alias() -> None:
    machine = of_family()
    assert machine.record is not None
    change = rc.TierReplacement({"b": {"preset": "deep"}})
    wanted = fx.ReplaceTiers(call(machine), "t2", change, sha256(propose(machine.record, change)), False, False)
    machine, effects = run(machine, wanted)
    assert names(effects)[-2:] == ["OpenGate", "Reply"]
    assert sound(machine).current.projection.tiers["b"].preset == "deep"
    machine, _ = run(machine, replacement(machine, {"b": "m9"}, tx="t3"))
    after = sound(machine).current.projection
    assert (after.tiers["b"].preset, after.tiers["b"].model, after.aliases["x"]) == ("deep", "m9", FAMILY)


def test_a_restart_finds_the_family_alias_and_it_is_no_fault_against_the_boot_file() -> None:
    now = sound(of_family())
    again = started(now)
    assert again.published is not None
    assert again.published.projection.aliases["x"] == FAMILY
    assert sound(again).current == now.current


def test_a_boot_file_with_a_family_alias_may_lose_it_live() -> None:
    document = to_json(boot())
    aliases = document["aliases"]
    assert isinstance(aliases, dict)
    aliases["x"] = {"family": "f", "natural": "a", "on_unready": "refuse"}
    projection = parse(document)
    before = started(replace(record(projection), boot_sha256=sha256(projection)))
    machine, _ = run(before, move(before, TierTarget("b")))
    assert machine.record is not None
    assert check_record(machine.record, projection) == ()
    assert machine.record.current.projection.aliases["x"] == TierTarget("b")
