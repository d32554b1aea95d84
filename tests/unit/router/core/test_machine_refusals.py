"""What the machine refuses, what it stops at, and how each of these goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.effects import Code
from sndr.router.core.invariants import check_machine, check_record
from sndr.router.core.projection import INTEGER_MAX, TierTarget, parse, sha256, to_json
from sndr.router.core.recovery import READ_ONLY, RECOVERY, AttentionCode, Standing
from sndr.router.core.transaction import STANDINGS, TRANSITIONS, Machine, State, next_actions, step
from tests.support.machine import (
    Answer,
    boot,
    but,
    call,
    names,
    record,
    replacement,
    revision,
    run,
    started,
    update,
)

COMMANDS = (fx.UpdateAliases, fx.ReplaceTiers, fx.RollBack, fx.Drain, fx.Resume, fx.Cancel, fx.Verify, fx.Reassert)


def reply(effects: list[fx.Effect]) -> Code | None:
    """The one answer that was given."""
    (answer,) = [effect for effect in effects if isinstance(effect, fx.Reply)]
    return answer.code


def fails(effect: type, fact: type, **values: object) -> Answer:
    return but((effect, lambda ticket: fact(ticket, **values)))


def write(kind: fx.WriteKind, fact: type, **values: object) -> Answer:
    """Only writes of one kind end so."""
    willing = but()

    def answer(machine: Machine, effect: fx.Effect) -> fx.Fact | None:
        if isinstance(effect, fx.Persist) and effect.kind is kind:
            return fact(effect.ticket, **values)  # type: ignore[no-any-return]
        return willing(machine, effect)

    return answer


def prepared(**changes: object) -> Machine:
    machine = started()
    machine, effects = run(machine, replacement(machine, {"a": "m2"}, prepares=True, **changes))  # type: ignore[arg-type]
    assert reply(effects) is None
    return machine


def completed() -> Machine:
    machine = started()
    return run(machine, replacement(machine, {"a": "m2"}))[0]


def unverified() -> Machine:
    """Committed, published, and serving something else."""
    machine = started()
    machine, effects = run(machine, replacement(machine, {"a": "m2"}), fails(fx.ProbeIdentity, fx.IdentityFailed))
    assert reply(effects) is Code.IDENTITY_MISMATCH
    return machine


def doubtful(kind: fx.WriteKind) -> Machine:
    machine = started()
    machine, effects = run(machine, replacement(machine, {"a": "m2"}), write(kind, fx.WriteUncertain))
    assert reply(effects) is Code.AUTHORITY_WRITE_UNCERTAIN
    assert machine.standing is Standing.UNCERTAIN
    return machine


def undo(machine: Machine, *, tx: str = "t2", **changes: object) -> fx.RollBack:
    given = machine.fallback if machine.state is State.UNCERTAIN else machine.record
    assert given is not None
    proposed = given.previous.effective_route_sha256 if given.previous is not None else "0" * 64
    parent = None if machine.state is State.IDLE or machine.receipt is None else machine.receipt.id
    return fx.RollBack(call(machine), tx, proposed, parent, **changes)  # type: ignore[arg-type]


def at_hand(machine: Machine) -> str:
    assert machine.receipt is not None
    return machine.receipt.id


# --- totality


@pytest.mark.parametrize("state", State)
def test_an_illegal_event_changes_nothing(state: State) -> None:
    """Every absent cell, for every event; commands are answered, facts dropped."""
    machine = replace(started(), state=state, ticket=9)
    commands: list[fx.Event] = [
        update(machine, "x", "b"),
        replacement(machine, {"a": "m2"}),
        fx.RollBack(call(machine), "t", "0" * 64),
        *(kind(call(machine), "t") for kind in (fx.Drain, fx.Resume, fx.Cancel, fx.Verify)),
        fx.Reassert(call(machine), "t", 1),
    ]
    facts: list[fx.Event] = [
        *(
            kind(9)
            for kind in (
                fx.Written, fx.WriteFailed, fx.WriteUncertain, fx.TargetsReady, fx.TargetsUnready, fx.TargetsAdmitting,
                fx.TargetsNotAdmitting, fx.PrecheckPassed, fx.PrecheckFailed, fx.LeasesReleased, fx.DrainProgressed,
                fx.DrainTimedOut, fx.RowsResolved, fx.RowsUnresolved, fx.IdentityProved, fx.IdentityFailed,
                fx.Continued, fx.FoundTerminal, fx.FoundHeld, fx.FoundCommitted,
            )
        ),
        fx.WriteRefused(9, Code.AUTHORITY_LOCK_LOST),
        fx.Start(record()),
        fx.Open(record()),
        fx.Shutdown(),
    ]  # fmt: skip
    for event in (*commands, *facts):
        if type(event) in TRANSITIONS[state]:
            continue
        after, effects = step(machine, event)
        assert after is machine
        if isinstance(event, COMMANDS):
            (answer,) = effects
            assert isinstance(answer, fx.Reply)
            assert answer.code is not None
        else:
            assert effects == ()


@pytest.mark.parametrize("state", State)
def test_a_stale_fact_changes_nothing(state: State) -> None:
    machine = replace(started(), state=state, ticket=9)
    for kind in TRANSITIONS[state]:
        if kind in (fx.Start, fx.Open, fx.Shutdown, *COMMANDS):
            continue
        fact = fx.WriteRefused(8, Code.AUTHORITY_LOCK_LOST) if kind is fx.WriteRefused else kind(8)
        assert step(machine, fact) == (machine, ())


@pytest.mark.req("R83")
def test_recovery_is_total_and_says_what_the_design_says() -> None:
    held, committed = RECOVERY[Standing.HELD], RECOVERY[Standing.COMMITTED]
    assert held[AttentionCode.INTERRUPTED] == ("resume", "cancel")
    assert held[AttentionCode.DRAIN_TIMEOUT] == ("drain", "resume", "cancel")
    assert committed[AttentionCode.INTERRUPTED] == ("verify", "rollback")
    assert RECOVERY[Standing.UNCERTAIN][AttentionCode.WRITE_UNCERTAIN] == ("reassert", "rollback")
    for row in RECOVERY.values():
        assert {code for code in row if row[code] == ()} == READ_ONLY
    assert {code for row in RECOVERY.values() for code in row} == set(AttentionCode)
    assert set(RECOVERY) == set(STANDINGS.values()) - {Standing.STOPPED}


# --- start


@pytest.mark.req("R71", "R75")
@pytest.mark.parametrize(
    ("fact", "values", "code"),
    [
        (fx.WriteFailed, {}, Code.AUTHORITY_WRITE_FAILED),
        (fx.WriteFailed, {"code": Code.AUTHORITY_NO_SPACE}, Code.AUTHORITY_NO_SPACE),
        (fx.WriteUncertain, {}, Code.AUTHORITY_WRITE_UNCERTAIN),
        (fx.WriteRefused, {"code": Code.AUTHORITY_LOCK_LOST}, Code.AUTHORITY_LOCK_LOST),
    ],
)
def test_a_start_that_cannot_write_is_refused(fact: type, values: dict[str, object], code: Code) -> None:
    machine, effects = run(Machine(), fx.Start(record()), fails(fx.Persist, fact, **values))
    assert names(effects) == ["W0", "Refuse"]
    assert effects[-1] == fx.Refuse(code)
    assert machine.state is State.STOPPED


@pytest.mark.req("R61", "R76", "R77")
@pytest.mark.parametrize("event", [fx.Start, fx.Open])
def test_restart_keeps_the_hold_and_asks_a_person(event: type) -> None:
    for stopped, standing, actions in (
        (prepared(), Standing.HELD, ("resume", "cancel")),
        (unverified(), Standing.COMMITTED, ("verify", "rollback")),
    ):
        assert stopped.record is not None
        machine, effects = run(Machine(), event(stopped.record))
        assert names(effects)[-3:] == ["CloseGate", "Publish", "Serve"]
        assert machine.standing is standing
        assert machine.gated == ("a",)
        assert machine.attention is not None
        assert machine.attention.code is AttentionCode.INTERRUPTED
        assert next_actions(machine) == actions


# --- alias updates


@pytest.mark.req("R22", "R24", "R25")
def test_alias_update_is_refused_for_what_its_target_is() -> None:
    machine = started()
    command = update(machine, "x", "b")
    for answer, code in (
        (fails(fx.ProbeReady, fx.TargetsUnready), Code.TARGET_NOT_READY),
        (fails(fx.CheckAdmitting, fx.TargetsNotAdmitting), Code.TARGET_NOT_ADMITTING),
        (fails(fx.Persist, fx.WriteFailed), Code.AUTHORITY_WRITE_FAILED),
        (fails(fx.Persist, fx.WriteFailed, code=Code.AUTHORITY_NO_SPACE), Code.AUTHORITY_NO_SPACE),
    ):
        after, effects = run(machine, command, answer)
        assert reply(effects) is code
        assert (after.state, after.record, after.published, after.attention) == (
            State.IDLE,
            machine.record,
            machine.published,
            None,
        )
        assert after.receipt is None


@pytest.mark.req("R22", "R28")
def test_alias_update_is_refused_for_what_it_says() -> None:
    machine = started()

    def tried(change: rc.AliasUpdate | rc.Rollback, proposed: str = "0" * 64) -> Code | None:
        return reply(run(machine, fx.UpdateAliases(call(machine), "t1", change, proposed))[1])

    assert tried(rc.AliasUpdate({"nobody": TierTarget("b")})) is Code.UNKNOWN_ALIAS
    assert tried(rc.AliasUpdate({"x": TierTarget("nowhere")})) is Code.UNKNOWN_TIER
    assert tried(rc.AliasUpdate({"x": TierTarget("a")})) is Code.NO_EFFECTIVE_CHANGE
    assert tried(rc.AliasUpdate({"x": TierTarget("b")})) is Code.PREVIEW_STALE
    assert tried(rc.Rollback()) is Code.NO_PREVIOUS
    for alias in ("x", "z"):
        machine = run(machine, update(machine, alias, "b", tx=f"t-{alias}"))[0]
    assert machine.record is not None
    assert set(machine.record.current.projection.aliases.values()) == {TierTarget("b")}


@pytest.mark.req("R84")
def test_an_alias_rollback_is_an_alias_update() -> None:
    machine = started()
    machine, _ = run(machine, update(machine, "x", "b"))
    assert machine.record is not None
    assert machine.record.previous is not None
    back = fx.UpdateAliases(call(machine), "t2", rc.Rollback(), machine.record.previous.effective_route_sha256)
    machine, effects = run(machine, back)
    assert reply(effects) is None
    assert machine.record is not None
    assert machine.record.current.route_revision == 3
    assert machine.record.current.effective_route_sha256 == sha256(boot())
    assert machine.receipt is not None
    assert (machine.receipt.op, machine.receipt.origin) == (rc.Op.ROLLBACK, rc.Origin.ROLLBACK)
    assert check_record(machine.record, boot()) == ()
    # What was undone differs in aliases only: as a rollback of tiers there is nothing to do.
    assert reply(run(machine, undo(machine, tx="t3"))[1]) is Code.NO_EFFECTIVE_CHANGE


def test_a_rollback_of_tiers_is_no_alias_update() -> None:
    machine = completed()
    assert machine.record is not None
    assert machine.record.previous is not None
    back = fx.UpdateAliases(call(machine), "t2", rc.Rollback(), machine.record.previous.effective_route_sha256)
    assert reply(run(machine, back)[1]) is Code.INVALID_CHANGE


def test_nothing_moves_where_the_previous_routes_are_the_same() -> None:
    """A server restarted in place leaves two revisions with one content."""
    machine = started()
    machine, _ = run(machine, replacement(machine, {"a": "m1"}, managed=True, prepares=True))
    machine, effects = run(machine, fx.Resume(call(machine), "t1", evidence()))
    assert reply(effects) is None
    assert machine.record is not None
    assert machine.record.previous is not None
    assert machine.record.current.effective_route_sha256 == machine.record.previous.effective_route_sha256
    back = fx.UpdateAliases(call(machine), "t2", rc.Rollback(), machine.record.previous.effective_route_sha256)
    assert reply(run(machine, back)[1]) is Code.NO_EFFECTIVE_CHANGE


@pytest.mark.req("R24")
def test_a_target_without_a_health_path_has_no_evidence_of_readiness() -> None:
    document = to_json(boot())
    document["tiers"]["b"]["health_path"] = None  # type: ignore[index]
    machine = started(record(parse(document)))
    assert reply(run(machine, update(machine, "x", "b"))[1]) is Code.READINESS_NOT_CONFIGURED
    assert reply(run(machine, replacement(machine, {"b": "n2"}))[1]) is Code.IDENTITY_REQUIRED


@pytest.mark.req("R12")
def test_counters_end_before_they_overflow() -> None:
    machine = replace(started(), max_attempted=INTEGER_MAX - 1)
    assert reply(run(machine, update(machine, "x", "b"))[1]) is Code.REVISION_EXHAUSTED
    assert reply(run(machine, replacement(machine, {"a": "m2"}))[1]) is Code.REVISION_EXHAUSTED
    assert reply(run(replace(completed(), max_attempted=INTEGER_MAX), undo(completed()))[1]) is Code.REVISION_EXHAUSTED
    machine = replace(unverified(), max_attempted=INTEGER_MAX)
    assert reply(run(machine, undo(machine))[1]) is Code.REVISION_EXHAUSTED
    machine = replace(doubtful(fx.WriteKind.COMMIT), max_attempted=INTEGER_MAX)
    assert reply(run(machine, undo(machine))[1]) is Code.REVISION_EXHAUSTED


# --- previews


@pytest.mark.req("R23", "R93", "R95")
@pytest.mark.invariant("INV-17")
def test_a_preview_from_before_anything_is_stale() -> None:
    machine = started()
    for changes in (
        {"base": rc.Fence(9, "0" * 64)},
        {"write_seq": 1},
        {"attention_seq": 5},
    ):
        after, effects = run(machine, update(machine, "x", "b", **changes))
        assert reply(effects) is Code.PREVIEW_STALE
        assert after is machine
    command = update(machine, "x", "b")
    machine, _ = run(machine, command)
    assert reply(run(machine, command)[1]) is Code.PREVIEW_STALE


@pytest.mark.req("R82")
@pytest.mark.invariant("INV-18")
def test_under_attention_only_a_fresh_recover_preview_counts() -> None:
    machine = unverified()
    verify = fx.Verify(call(machine), at_hand(machine))
    for changes, code in (
        ({"recovers": False}, Code.RECOVERY_REQUIRED),
        ({"attention_seq": 0}, Code.PREVIEW_STALE),
    ):
        assert reply(run(machine, replace(verify, call=replace(verify.call, **changes)))[1]) is code
    assert reply(run(machine, update(machine, "x", "b"))[1]) is Code.RECOVERY_REQUIRED
    assert reply(run(machine, fx.Verify(call(machine), "other"))[1]) is Code.TRANSACTION_CHANGED


@pytest.mark.req("R83", "R86")
def test_each_standing_refuses_what_belongs_to_another() -> None:
    idle, held, committed, doubt = started(), prepared(), unverified(), doubtful(fx.WriteKind.COMMIT)
    for kind in (fx.Drain, fx.Resume, fx.Cancel, fx.Verify):
        assert reply(run(idle, kind(call(idle), "t1"))[1]) is Code.NO_TRANSACTION
        assert reply(run(doubt, kind(call(doubt), "t1"))[1]) is Code.RECOVERY_REQUIRED
    for kind in (fx.Drain, fx.Resume, fx.Cancel):
        assert reply(run(committed, kind(call(committed), "t1"))[1]) is Code.ALREADY_COMMITTED
    assert reply(run(held, fx.Verify(call(held), "t1"))[1]) is Code.NOT_COMMITTED
    assert reply(run(held, undo(held))[1]) is Code.NOT_COMMITTED
    assert reply(run(held, fx.Reassert(call(held), "t1", 1))[1]) is Code.TRANSACTION_CHANGED
    assert reply(run(held, update(held, "x", "b"))[1]) is Code.TRANSACTION_IN_PROGRESS
    assert reply(run(held, fx.Drain(call(held), "t1"))[1]) is Code.INVALID_CHANGE
    assert next_actions(held) == ("resume", "cancel")
    assert next_actions(idle) == ()


def waits(*kinds: type) -> Answer:
    return but(*((kind, lambda _: None) for kind in kinds))


@pytest.mark.req("R49")
def test_while_something_is_awaited_other_mutations_are_told_so() -> None:
    machine = started()
    probing, _ = run(machine, update(machine, "x", "b"), waits(fx.ProbeReady))
    assert reply(run(probing, update(probing, "x", "b"))[1]) is Code.MANAGEMENT_BUSY
    draining, _ = run(machine, replacement(machine, {"a": "m2"}), waits(fx.AwaitLeases))
    assert reply(run(draining, update(draining, "x", "b"))[1]) is Code.TRANSACTION_IN_PROGRESS
    assert reply(run(draining, fx.Resume(call(draining), "t1"))[1]) is Code.MANAGEMENT_BUSY
    assert next_actions(draining) == ("cancel",)
    assert next_actions(probing) == ()


# --- holds and drains


@pytest.mark.req("R32")
@pytest.mark.parametrize("code", [Code.AUTHORITY_WRITE_FAILED, Code.AUTHORITY_NO_SPACE, Code.CHANGE_TOO_LARGE])
def test_a_hold_that_was_not_written_is_taken_back(code: Code) -> None:
    machine = started()
    after, effects = run(machine, replacement(machine, {"a": "m2"}), fails(fx.Persist, fx.WriteFailed, code=code))
    assert names(effects) == ["CloseGate", "W1", "OpenGate", "Reply"]
    assert reply(effects) is code
    assert (after.state, after.gated, after.attention) == (State.IDLE, (), None)


@pytest.mark.req("R35", "R37")
def test_a_drain_that_runs_out_stops_there_and_can_be_waited_for_again() -> None:
    machine = started()
    machine, effects = run(
        machine, replacement(machine, {"a": "m2"}), fails(fx.AwaitLeases, fx.DrainTimedOut, at_hold=3, finished=2)
    )
    assert reply(effects) is Code.DRAIN_TIMEOUT
    assert machine.receipt is not None
    assert machine.receipt.drain == rc.Drain(0, complete=False, cut=0, finished=2, leases_at_hold=3, unresolved=0)
    assert next_actions(machine) == ("drain", "resume", "cancel")
    machine, effects = run(machine, fx.Drain(call(machine), "t1"))
    assert reply(effects) is None
    assert machine.state is State.HELD
    assert machine.receipt.state is rc.State.HELD
    machine, effects = run(machine, fx.Resume(call(machine), "t1"))
    assert reply(effects) is None
    assert machine.state is State.IDLE


@pytest.mark.req("R36", "R38", "R100")
@pytest.mark.parametrize(
    ("left", "code"),
    [
        ({"unresolved": 2}, Code.DRAIN_BLOCKED_USAGE),
        ({"unresolved": 2, "legacy": 1}, Code.DRAIN_BLOCKED_LEGACY),
        ({"leases": 1}, Code.DRAIN_TIMEOUT),
    ],
)
def test_rows_left_open_block_the_commit(left: dict[str, int], code: Code) -> None:
    machine = started()
    command = replacement(machine, {"a": "m2"})
    blocked, effects = run(machine, command, fails(fx.CountRows, fx.RowsUnresolved, **left))
    assert reply(effects) is code
    assert blocked.state is State.HELD
    assert blocked.record is not None
    assert blocked.record.current.route_revision == 1
    # A proof given earlier is no authority: the count is taken again right before the commit.
    counts = iter([fx.RowsResolved, lambda ticket: fx.RowsUnresolved(ticket, **left)])
    again, effects = run(machine, command, but((fx.CountRows, lambda ticket: next(counts)(ticket))))
    assert reply(effects) is code
    assert again.record is not None
    assert again.record.current.route_revision == 1


def test_progress_is_seen_and_changes_nothing_else() -> None:
    machine = started()
    machine, _ = run(machine, replacement(machine, {"a": "m2"}), waits(fx.AwaitLeases))
    ticket = machine.ticket
    machine, more = step(machine, fx.DrainProgressed(ticket, at_hold=4, finished=1))
    assert more == ()
    assert (machine.state, machine.ticket) == (State.DRAINING, ticket)
    assert machine.receipt is not None
    assert machine.receipt.drain is not None
    assert machine.receipt.drain.finished == 1


@pytest.mark.req("R46")
def test_a_wrong_target_is_found_before_the_commit() -> None:
    machine = started()
    machine, effects = run(machine, replacement(machine, {"a": "m2"}), fails(fx.Precheck, fx.PrecheckFailed))
    assert reply(effects) is Code.PRECHECK_FAILED
    assert machine.standing is Standing.HELD
    assert machine.record is not None
    assert machine.record.current.route_revision == 1
    assert next_actions(machine) == ("resume", "cancel")


@pytest.mark.req("R30")
def test_a_change_must_still_fit_and_be_the_one_previewed() -> None:
    machine = started()
    command = replacement(machine, {"a": "m2"})
    assert reply(run(machine, replace(command, proposed_sha256="0" * 64))[1]) is Code.PREVIEW_STALE
    locked = replace(command, change=rc.TierReplacement({"a": {"auth_env": "KEY"}}))
    assert reply(run(machine, locked)[1]) is Code.RESTART_ONLY
    assert reply(run(machine, replace(command, managed=True))[1]) is Code.INVALID_CHANGE


@pytest.mark.req("R31")
def test_two_tiers_are_one_transaction() -> None:
    machine = started()
    machine, effects = run(machine, replacement(machine, {"a": "m2", "b": "n2"}))
    assert reply(effects) is None
    assert machine.receipt is not None
    assert machine.receipt.scope == ("a", "b")
    assert machine.receipt.identity is not None
    assert machine.receipt.identity.observed == ("m2", "n2")
    assert machine.receipt.identity.proves == "advertised_name"
    assert machine.record is not None
    assert machine.record.current.route_revision == 2


# --- writes that fail later


@pytest.mark.req("R39", "R44")
@pytest.mark.parametrize(
    ("kind", "standing"), [(fx.WriteKind.COMMIT, Standing.HELD), (fx.WriteKind.READMIT, Standing.COMMITTED)]
)
def test_a_later_write_that_failed_leaves_the_step_before(kind: fx.WriteKind, standing: Standing) -> None:
    machine = started()
    for code in (Code.AUTHORITY_WRITE_FAILED, Code.AUTHORITY_NO_SPACE):
        after, effects = run(machine, replacement(machine, {"a": "m2"}), write(kind, fx.WriteFailed, code=code))
        assert reply(effects) is code
        assert after.standing is standing
        assert after.gated == ("a",)
        assert after.attention is not None
        assert after.attention.code is AttentionCode.WRITE_FAILED
        action = fx.Resume if standing is Standing.HELD else fx.Verify
        after, effects = run(after, action(call(after), "t1"))
        assert reply(effects) is None
        assert after.state is State.IDLE


@pytest.mark.req("R63", "R65", "R70")
@pytest.mark.parametrize(
    "code", [Code.AUTHORITY_CHANGED_EXTERNALLY, Code.AUTHORITY_PATH_MOVED, Code.AUTHORITY_LOCK_LOST]
)
@pytest.mark.parametrize("kind", [fx.WriteKind.HOLD, fx.WriteKind.COMMIT, fx.WriteKind.READMIT])
def test_a_file_that_is_no_longer_ours_is_never_written_again(kind: fx.WriteKind, code: Code) -> None:
    machine = started()
    after, effects = run(machine, replacement(machine, {"a": "m2"}), write(kind, fx.WriteRefused, code=code))
    assert reply(effects) is code
    assert after.attention is not None
    assert after.attention.code.value == code.value
    assert next_actions(after) == ()
    assert reply(run(after, update(after, "x", "b"))[1]) is Code.AUTHORITY_READ_ONLY
    assert check_machine(after) == ()


# --- cancel


@pytest.mark.req("R86", "R87")
def test_cancel_proves_the_original_first() -> None:
    machine = prepared()
    cancel = fx.Cancel(call(machine), "t1")
    stuck, effects = run(machine, cancel, fails(fx.ProbeIdentity, fx.IdentityFailed, code=Code.IDENTITY_UNAVAILABLE))
    assert reply(effects) is Code.CANCEL_TARGET_UNVERIFIED
    assert (stuck.standing, stuck.gated) == (Standing.HELD, ("a",))
    after, effects = run(machine, cancel)
    assert names(effects) == ["ProbeIdentity", "Wx", "OpenGate", "Reply"]
    assert after.record is not None
    assert after.record.transaction is not None
    assert after.record.transaction.state is rc.State.CANCELLED
    assert after.record.current.route_revision == 1
    assert check_record(after.record, boot()) == ()
    failed, effects = run(machine, cancel, write(fx.WriteKind.CANCEL, fx.WriteFailed))
    assert reply(effects) is Code.AUTHORITY_WRITE_FAILED
    assert failed.standing is Standing.HELD


@pytest.mark.req("R86")
@pytest.mark.parametrize("wait", [fx.AwaitLeases, fx.CountRows])
def test_cancel_ends_a_drain_that_somebody_waits_for(wait: type) -> None:
    machine = started()
    machine, _ = run(machine, replacement(machine, {"a": "m2"}, id="first"), waits(wait))
    machine, effects = run(machine, fx.Cancel(call(machine, id="second"), "t1"))
    answers = {effect.call_id: effect.code for effect in effects if isinstance(effect, fx.Reply)}
    assert answers == {"first": Code.TRANSACTION_CHANGED, "second": None}
    assert names(effects)[0] == "AbandonWait"
    assert machine.state is State.IDLE


# --- rollback


@pytest.mark.req("R84", "R85")
@pytest.mark.invariant("INV-2", "INV-3")
def test_rollbacks_alternate_two_contents_under_rising_revisions() -> None:
    machine = completed()
    hashes, revisions = [], []
    for number in range(10):
        machine, effects = run(machine, undo(machine, tx=f"r{number}"))
        assert reply(effects) is None
        assert names(effects)[:2] == ["Precheck", "CloseGate"]
        assert machine.record is not None
        assert check_record(machine.record, boot()) == ()
        hashes.append(machine.record.current.effective_route_sha256)
        revisions.append(machine.record.current.route_revision)
    assert revisions == list(range(3, 13))
    assert hashes[:2] * 5 == hashes
    assert len(set(hashes)) == 2


@pytest.mark.req("R84")
def test_rollback_from_idle_is_refused_for_dead_servers_and_for_nothing() -> None:
    fresh = started()
    assert reply(run(fresh, undo(fresh))[1]) is Code.NO_PREVIOUS
    machine = completed()
    after, effects = run(machine, undo(machine), fails(fx.Precheck, fx.PrecheckFailed))
    assert names(effects) == ["Precheck", "Reply"]
    assert reply(effects) is Code.PRECHECK_FAILED
    assert (after.state, after.attention, after.receipt) == (State.IDLE, None, machine.receipt)
    assert reply(run(machine, replace(undo(machine), proposed_sha256="0" * 64))[1]) is Code.PREVIEW_STALE
    assert reply(run(machine, replace(undo(machine), parent_id="t1"))[1]) is Code.NOT_COMMITTED
    assert reply(run(machine, undo(machine, accepts_unready=True))[1]) is Code.NOT_COMMITTED
    stopped, effects = run(machine, undo(machine, prepares=True))
    assert reply(effects) is None
    assert stopped.state is State.HELD


def test_rollback_from_idle_needs_earlier_servers_that_can_be_identified() -> None:
    document = to_json(boot())
    document["tiers"]["a"]["health_path"] = None  # type: ignore[index]
    earlier = parse(document)
    given = replace(record(), current=revision(2, boot()), previous=revision(1, earlier))
    machine = started(given)
    assert reply(run(machine, undo(machine))[1]) is Code.IDENTITY_REQUIRED


@pytest.mark.req("R84")
def test_rollback_of_a_commit_reuses_its_hold() -> None:
    machine = unverified()
    after, effects = run(machine, undo(machine))
    assert names(effects) == ["Precheck", "Wr", "Publish", "Retire", "ProbeIdentity", "W3", "OpenGate", "Reply"]
    assert after.record is not None
    assert after.record.current.route_revision == 3
    assert after.record.current.effective_route_sha256 == sha256(boot())
    assert after.receipt is not None
    assert (after.receipt.parent_id, after.receipt.scope) == ("t1", ("a",))
    assert check_record(after.record, boot()) == ()
    assert reply(run(machine, replace(undo(machine), proposed_sha256="0" * 64))[1]) is Code.PREVIEW_STALE
    assert reply(run(machine, undo(machine, prepares=True))[1]) is Code.INVALID_CHANGE
    failed, effects = run(machine, undo(machine), fails(fx.Precheck, fx.PrecheckFailed))
    assert reply(effects) is Code.PRECHECK_FAILED
    assert failed.standing is Standing.COMMITTED
    failed, effects = run(machine, undo(machine), write(fx.WriteKind.ROLLBACK, fx.WriteFailed))
    assert reply(effects) is Code.AUTHORITY_WRITE_FAILED
    assert failed.standing is Standing.COMMITTED


@pytest.mark.req("R84")
def test_a_rollback_may_accept_a_dead_server_and_waits_for_verify() -> None:
    machine = unverified()
    machine, effects = run(machine, undo(machine, accepts_unready=True))
    assert names(effects) == ["Wr", "Publish", "Retire", "Reply"]
    assert reply(effects) is None
    assert machine.standing is Standing.COMMITTED
    assert machine.gated == ("a",)
    assert next_actions(machine) == ("verify", "rollback")
    machine, effects = run(machine, fx.Verify(call(machine), "t2"))
    assert reply(effects) is None
    assert machine.state is State.IDLE


# --- writes of unknown outcome


def reassert(machine: Machine, shown: rc.Record | None) -> fx.Reassert:
    assert shown is not None
    return fx.Reassert(call(machine), shown.transaction and shown.transaction.id, shown.write_seq)


@pytest.mark.req("R43", "R69", "R89")
@pytest.mark.parametrize(
    ("kind", "standing"),
    [
        (fx.WriteKind.HOLD, Standing.HELD),
        (fx.WriteKind.COMMIT, Standing.COMMITTED),
        (fx.WriteKind.READMIT, Standing.IDLE),
    ],
)
def test_reassert_makes_the_visible_record_certain(kind: fx.WriteKind, standing: Standing) -> None:
    machine = doubtful(kind)
    published = machine.published
    after, effects = run(machine, reassert(machine, machine.maybe[-1]))
    assert reply(effects) is None
    assert after.standing is standing
    assert "reassert" in names(effects)
    assert ("ProbeIdentity" in names(effects)) == (standing is Standing.IDLE)
    assert ("Publish" in names(effects)) == (kind is fx.WriteKind.COMMIT)
    assert machine.published is published
    assert check_machine(after) == ()
    for fact, code in (
        (fx.WriteUncertain, Code.AUTHORITY_WRITE_UNCERTAIN),
        (fx.WriteFailed, Code.AUTHORITY_WRITE_FAILED),
    ):
        again, effects = run(machine, reassert(machine, machine.maybe[-1]), write(fx.WriteKind.REASSERT, fact))
        assert reply(effects) is code
        assert again.standing is Standing.UNCERTAIN
        assert next_actions(again) == next_actions(machine)
    refused = write(fx.WriteKind.REASSERT, fx.WriteRefused, code=Code.AUTHORITY_LOCK_LOST)
    again, effects = run(machine, reassert(machine, machine.maybe[-1]), refused)
    assert reply(effects) is Code.AUTHORITY_LOCK_LOST
    assert next_actions(again) == ()


@pytest.mark.req("R43", "R89")
@pytest.mark.invariant("INV-9")
def test_a_reassertion_that_would_open_a_gate_keeps_the_hold_if_nothing_is_proved() -> None:
    machine = doubtful(fx.WriteKind.READMIT)
    after, effects = run(machine, reassert(machine, machine.maybe[-1]), fails(fx.ProbeIdentity, fx.IdentityFailed))
    assert reply(effects) is Code.IDENTITY_MISMATCH
    assert (after.standing, after.gated) == (Standing.COMMITTED, ("a",))
    assert after.attention is not None
    assert after.attention.code is AttentionCode.VERIFY_FAILED
    machine = doubtful(fx.WriteKind.HOLD)
    after, effects = run(machine, reassert(machine, machine.maybe[0]), fails(fx.ProbeIdentity, fx.IdentityFailed))
    assert reply(effects) is Code.CANCEL_TARGET_UNVERIFIED
    assert (after.standing, after.gated) == (Standing.HELD, ("a",))
    after, effects = run(machine, reassert(machine, machine.maybe[0]))
    assert reply(effects) is None
    assert (after.state, after.gated) == (State.IDLE, ())


@pytest.mark.req("R89")
def test_an_alias_update_in_doubt_needs_no_gate() -> None:
    machine = started()
    machine, effects = run(machine, update(machine, "x", "b"), fails(fx.Persist, fx.WriteUncertain, write_seq=7))
    assert reply(effects) is Code.AUTHORITY_WRITE_UNCERTAIN
    assert (machine.gated, machine.fallback) == ((), None)
    assert next_actions(machine) == ("reassert",)
    assert machine.published is not None
    assert machine.published.route_revision == 1
    assert machine.maybe[-1].write_seq == 7
    for shown, number in ((machine.maybe[0], 1), (machine.maybe[-1], 2)):
        after, effects = run(machine, reassert(machine, shown))
        assert reply(effects) is None
        assert after.published is not None
        assert after.published.route_revision == number
    other = fx.Reassert(call(machine), None, 99)
    assert reply(run(machine, other)[1]) is Code.AUTHORITY_CHANGED_EXTERNALLY
    other = fx.Reassert(call(machine), "t9", machine.maybe[-1].write_seq)
    assert reply(run(machine, other)[1]) is Code.TRANSACTION_CHANGED
    # A number that was attempted is not used for other content in this process.
    machine, _ = run(machine, reassert(machine, machine.maybe[0]))
    machine, _ = run(machine, update(machine, "z", "b", tx="t2"))
    assert machine.record is not None
    assert machine.record.current.route_revision == 3


@pytest.mark.req("R84", "R89")
def test_a_commit_in_doubt_can_be_overtaken_by_its_rollback() -> None:
    machine = doubtful(fx.WriteKind.COMMIT)
    assert next_actions(machine) == ("reassert", "rollback")
    after, effects = run(machine, undo(machine))
    assert names(effects) == ["Wr", "Publish", "Retire", "Reply"]
    assert after.record is not None
    assert (after.record.current.route_revision, after.standing) == (3, Standing.COMMITTED)
    assert check_record(after.record, boot()) == ()
    assert reply(run(machine, undo(machine, prepares=True))[1]) is Code.INVALID_CHANGE
    assert reply(run(machine, replace(undo(machine), proposed_sha256="0" * 64))[1]) is Code.PREVIEW_STALE
    # Whatever becomes of that write, each record that may be visible can still be made certain.
    for fact, shown in ((fx.WriteFailed, 1), (fx.WriteUncertain, 1), (fx.WriteUncertain, 2)):
        again, _ = run(machine, undo(machine), write(fx.WriteKind.ROLLBACK, fact))
        assert again.max_attempted == (2 if fact is fx.WriteFailed else 3)
        again, effects = run(again, reassert(again, again.maybe[shown]))
        assert reply(effects) is None
        assert again.standing is Standing.COMMITTED
    hold = doubtful(fx.WriteKind.READMIT)
    assert next_actions(hold) == ("reassert",)
    assert reply(run(hold, undo(hold))[1]) is Code.INVALID_CHANGE


# --- managed


def evidence(**changes: str) -> rc.Evidence:
    values = {
        "container_id": "0123456789ab",
        "image_id": "sha256:" + "cd" * 32,
        "started_at": "1970-01-01T00:00:00Z",
        "observed_at": "1970-01-01T00:00:01.5Z",
        "observer": "ops@host",
        "served_model": "m1",
    }
    return rc.Evidence(rc.Campaign("spring", "ef" * 32), {"a": rc.Container(**{**values, **changes})})


@pytest.mark.req("R103", "R104", "R105")
def test_a_managed_change_is_prepared_and_resumed_with_evidence() -> None:
    machine = prepared(managed=True)
    assert machine.receipt is not None
    assert machine.receipt.drain is not None
    assert machine.receipt.drain.complete
    assert machine.record is not None
    assert machine.record.current.route_revision == 1
    assert reply(run(machine, fx.Resume(call(machine), "t1"))[1]) is Code.EVIDENCE_REQUIRED
    assert reply(run(machine, fx.Resume(call(machine), "t1", evidence()))[1]) is Code.EVIDENCE_MISMATCH
    given = evidence(served_model="m2")
    machine, effects = run(machine, fx.Resume(call(machine), "t1", given))
    assert reply(effects) is None
    assert machine.receipt is not None
    assert machine.receipt.evidence == given
    assert machine.record is not None
    assert check_record(machine.record, boot()) == ()
    machine, _ = run(machine, replacement(machine, {"a": "m2"}, tx="t2", managed=True, prepares=True))
    assert reply(run(machine, fx.Resume(call(machine), "t2", given))[1]) is Code.EVIDENCE_REPLAYED


def test_resume_needs_a_change_that_still_fits() -> None:
    machine = prepared()
    assert machine.receipt is not None
    odd = replace(machine, receipt=replace(machine.receipt, proposed_sha256="0" * 64))
    assert reply(run(odd, fx.Resume(call(odd), "t1"))[1]) is Code.PREVIEW_STALE
    assert reply(run(machine, fx.Resume(call(machine), "t1", evidence()))[1]) is Code.INVALID_CHANGE


# --- shutdown


@pytest.mark.req("R118")
@pytest.mark.parametrize("wait", [fx.Persist, fx.AwaitLeases, fx.CountRows, fx.Precheck, fx.ProbeIdentity])
def test_shutdown_ends_waits_and_lets_a_write_finish(wait: type) -> None:
    machine = started()
    machine, _ = run(machine, replacement(machine, {"a": "m2"}), waits(wait))
    before = machine.record
    machine, effects = run(machine, fx.Shutdown())
    if wait is fx.Persist:
        assert effects == []
        assert machine.stopping
        assert reply(run(machine, update(machine, "x", "b"))[1]) is Code.SHUTTING_DOWN
        machine, effects = run(machine, fx.Written(machine.ticket))
    else:
        assert machine.record is before
    assert reply(effects) is Code.SHUTTING_DOWN
    assert names(effects)[-1] == "Stop"
    assert machine.state is State.STOPPED
    assert reply(run(machine, update(machine, "x", "b"))[1]) is Code.SHUTTING_DOWN


@pytest.mark.req("R118")
@pytest.mark.parametrize("fact", [fx.Written, fx.WriteFailed, fx.WriteUncertain])
def test_a_last_write_is_answered_before_the_end(fact: type) -> None:
    machine = started()
    machine, _ = run(machine, update(machine, "x", "b"), waits(fx.Persist))
    machine, _ = run(machine, fx.Shutdown())
    machine, effects = run(machine, fact(machine.ticket))
    assert names(effects)[-2:] == ["Reply", "Stop"]
    assert machine.state is State.STOPPED


def test_shutdown_at_rest_and_during_the_start() -> None:
    machine, effects = run(started(), fx.Shutdown())
    assert names(effects) == ["Stop"]
    machine, _ = run(Machine(), fx.Start(record()), waits(fx.Persist))
    machine, _ = run(machine, fx.Shutdown())
    machine, effects = run(machine, fx.Written(machine.ticket))
    assert names(effects) == ["Stop"]


def test_the_receipt_keeps_the_latest_events() -> None:
    machine = started()
    timeout = fails(fx.AwaitLeases, fx.DrainTimedOut)
    machine, _ = run(machine, replacement(machine, {"a": "m2"}), timeout)
    for _ in range(20):
        machine, _ = run(machine, fx.Drain(call(machine), "t1"), timeout)
    assert machine.receipt is not None
    events = machine.receipt.events
    assert len(events) == rc.EVENTS_MAX
    assert [event.seq for event in events] == list(range(events[0].seq, events[0].seq + 16))
    machine, _ = run(machine, fx.Resume(call(machine), "t1"))
    assert machine.record is not None
    assert check_record(machine.record, boot()) == ()
