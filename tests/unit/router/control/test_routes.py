"""The coordinator and its API over fakes: every write that can fail, every wait, every clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from sndr.router.control.coordinator import Coordinator
from sndr.router.core import effects as fx
from sndr.router.core.admission import Lease, Refusal
from tests.support.routes_world import RefusedError, RoutesWorld

NEW = {"a": {"base_url": "http://127.0.0.1:8003/v1", "model": "m2"}}
REPLACE: dict[str, Any] = {"op": "tier_replacement", "tiers": NEW}
PREPARE = {**REPLACE, "mode": "prepare"}
MOVE: dict[str, Any] = {"op": "alias_update", "aliases": {"x": {"tier": "b"}}}


@pytest.fixture
def world() -> Iterator[RoutesWorld]:
    """Two tiers, and a third server that could become either."""
    made = RoutesWorld()
    made.serving["http://127.0.0.1:8003/v1"] = ("m2",)
    yield made
    made.check()
    made.close()


def lease(world: RoutesWorld, alias: str = "x") -> Lease:
    got = world.request(alias)
    assert isinstance(got, Lease)
    return got


@pytest.mark.invariant("INV-1")
@pytest.mark.req("R27", "R40", "R32", "R116")
def test_durable_then_published_then_answered(world: RoutesWorld) -> None:
    seen: list[tuple[str, int, bool]] = []
    world.authority.on_write = lambda effect: seen.append((effect.kind.value, world.fence[0], "a" in world.held))
    receipt = world.run(world.change(**REPLACE))
    assert seen == [("W1", 1, True), ("W2", 1, True), ("W3", 2, True)]
    assert (world.held, receipt["state"], world.fence[0]) == (set(), "completed", 2)
    assert [event["code"] for event in receipt["events"]] == ["held", "drained", "committed", "completed"]
    codes = [fields["code"] for event, fields in world.log if event == "transaction"]
    assert codes == ["held", "drained", "committed", "completed"]


@pytest.mark.req("R27")
def test_an_alias_is_published_after_its_write(world: RoutesWorld) -> None:
    seen: list[int] = []
    world.authority.on_write = lambda _effect: seen.append(world.fence[0])
    world.run(world.change(**MOVE))
    assert (seen, world.fence[0]) == ([1], 2)


@pytest.mark.req("R32", "R25")
@pytest.mark.parametrize(
    ("fault", "code"),
    [("failed", "authority_write_failed"), ("no_space", "authority_no_space")],
)
def test_a_write_that_certainly_failed_changes_nothing(world: RoutesWorld, fault: str, code: str) -> None:
    for change in (MOVE, REPLACE):
        world.authority.faults.append(fault)
        assert world.do(world.change(**change)) == code
        assert (world.fence[0], world.held, world.coordinator.machine.standing.value) == (1, set(), "idle")
        assert isinstance(world.request("x"), Lease)
        world.finish(world.leases[-1])
    assert world.run(world.change(**MOVE))["state"] == "completed"


@pytest.mark.req("R89", "R82", "R83")
@pytest.mark.parametrize("seen", ["new", "old"])
@pytest.mark.parametrize(
    ("writes", "after_new", "after_old"),
    [
        (0, ("held", "interrupted"), ("idle", None)),
        (1, ("committed", "interrupted"), ("held", "interrupted")),
        (2, ("idle", None), ("committed", "interrupted")),
    ],
)
def test_an_unknown_outcome_is_asserted_again_and_then_goes_on(
    world: RoutesWorld, writes: int, seen: str, after_new: tuple[str, str | None], after_old: tuple[str, str | None]
) -> None:
    world.authority.faults.extend(["done"] * writes + [seen])
    published = world.fence
    assert world.do(world.change(**REPLACE)) == "authority_write_uncertain"
    machine = world.coordinator.machine
    assert (machine.standing.value, world.held) == ("uncertain", {"a"})
    assert world.fence == published or writes == 2
    assert world.request("x") is Refusal.HELD
    assert world.do(world.preview(**MOVE)) == "recovery_required"
    world.check()
    asserted = world.do(world.recover("reassert"))
    assert isinstance(asserted, dict)
    machine = world.coordinator.machine
    state, attention = after_new if seen == "new" else after_old
    assert machine.standing.value == state
    assert (None if machine.attention is None else machine.attention.code.value) == attention
    assert world.held == (set() if state == "idle" else {"a"})
    if state == "held":
        world.run(world.recover("resume"))
    elif state == "committed":
        world.run(world.recover("verify"))
    if (writes, seen) != (0, "old"):
        assert world.gate.snapshot.projection.tiers["a"].model == "m2"
    assert world.held == set()


@pytest.mark.req("R84", "R89")
def test_a_rollback_overtakes_a_commit_of_unknown_outcome(world: RoutesWorld) -> None:
    world.authority.faults.extend(["done", "old"])
    world.do(world.change(**REPLACE))
    assert list(world.routes.standing()["next"]) == ["reassert", "rollback"]
    receipt = world.run(world.recover("rollback"))
    assert (receipt["state"], receipt["next"]) == ("committed", ["verify", "rollback"])
    assert world.run(world.recover("verify"))["state"] == "completed"
    assert world.fence[0] == 3  # 2 may be on a disk somewhere, and is never used for anything else
    assert world.gate.snapshot.projection.tiers["a"].model == "m1"


@pytest.mark.req("R70", "R63", "R65")
@pytest.mark.parametrize("code", ["authority_changed_externally", "authority_lock_lost", "authority_path_moved"])
def test_a_file_that_is_no_longer_ours_is_left_alone(world: RoutesWorld, code: str) -> None:
    world.authority.faults.append(code)
    assert world.do(world.change(**MOVE)) == code
    assert (world.fence[0], world.routes.view()["writable"]) == (1, False)
    assert world.do(world.preview(**MOVE)) == "authority_read_only"
    assert isinstance(world.request("x"), Lease)
    assert world.run(world.routes.check())["result"] in ("changed_externally", "lock_lost", "path_moved")


@pytest.mark.req("R35", "R36", "R37")
@pytest.mark.scenario("S3")
def test_a_drain_waits_for_leases_and_then_for_rows(world: RoutesWorld) -> None:
    first, second = lease(world), lease(world)
    task = world.background(world.change({"drain_timeout_s": 30}, **REPLACE))
    world.pass_time(1)
    assert (world.coordinator.machine.state.value, world.request("x")) == ("draining", Refusal.HELD)
    world.finish(first)
    world.pass_time(1)
    drain = world.coordinator.machine.receipt
    assert drain is not None
    assert drain.drain is not None
    assert (drain.drain.finished, drain.drain.leases_at_hold) == (1, 2)
    world.finish(second, "ending")
    world.pass_time(1)
    assert world.coordinator.machine.state.value == "counting"
    world.ledger.ending.clear()
    receipt = world.run(_result(task))
    assert receipt["streams"] == {"in_scope_finished": 2, "cut": 0}


async def _result(task: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
    return await task


@pytest.mark.req("R36", "R38", "R100")
def test_rows_that_nobody_will_close_block_a_commit_at_once(world: RoutesWorld) -> None:
    got = lease(world)
    task = world.background(world.change({"drain_timeout_s": 900}, **REPLACE))
    world.pass_time(1)
    world.finish(got, "failed")
    with pytest.raises(RefusedError, match="drain_blocked_usage"):
        world.run(_result(task))
    assert world.loop.time() < 10
    assert (world.fence[0], world.held) == (1, {"a"})
    world.reconcile()
    assert world.run(world.recover("resume"))["state"] == "completed"


@pytest.mark.req("R38")
def test_a_row_that_appears_between_prepare_and_resume_blocks_the_commit(world: RoutesWorld) -> None:
    prepared = world.run(world.change(**PREPARE))
    resume = world.run(world.preview(op="resume", transaction_id=prepared["transaction_id"]))
    assert resume["applicable"]
    world.ledger.failed.append("a")
    assert world.do(world.apply(resume)) == "drain_blocked_usage"
    assert world.fence[0] == 1


@pytest.mark.req("R100", "R26")
def test_rows_of_an_unknown_tier_block_drains_and_no_alias_update(world: RoutesWorld) -> None:
    world.ledger.loose = 1
    preview = world.run(world.preview(**REPLACE))
    assert [check["code"] for check in preview["checks"] if not check["ok"]] == ["drain_blocked_legacy"]
    assert world.do(world.apply(preview)) == "drain_blocked_legacy"
    assert world.run(world.change(**MOVE))["state"] == "completed"


@pytest.mark.req("R24", "R25")
def test_a_target_is_looked_at_again_right_before_the_write(world: RoutesWorld) -> None:
    preview = world.run(world.preview(**MOVE))
    task = world.background(world.apply(preview))
    world.pass_time(0.005)  # the probe runs
    world.gate.quiesce("b", "mine")
    with pytest.raises(RefusedError, match="target_not_admitting"):
        world.run(_result(task))
    world.gate.readmit("b")
    preview = world.run(world.preview(**MOVE))
    world.serving["http://127.0.0.1:8002/v1"] = None
    assert world.do(world.apply(preview)) == "target_not_ready"
    assert world.authority.kinds == []


def test_everything_that_stands_against_a_change_is_said_at_once(world: RoutesWorld) -> None:
    world.gate.quiesce("b", "mine")
    world.serving["http://127.0.0.1:8002/v1"] = ("other",)
    preview = world.run(world.preview(**MOVE))
    failed = [(check["name"], check["code"]) for check in preview["checks"] if not check["ok"]]
    assert failed == [("target_ready", "target_not_ready"), ("target_admitting", "target_not_admitting")]
    assert not preview["applicable"]
    assert world.do(world.apply(preview)) == "target_not_ready"


@pytest.mark.req("R94")
@pytest.mark.scenario("S15", "S22")
@pytest.mark.parametrize(
    ("waits_s", "jump_s", "expired"),
    [(119, 0, False), (121, 0, True), (0, 86_400, True), (121, -86_400, True), (100, -86_400, False)],
)
def test_a_preview_expires_by_the_earlier_of_two_clocks(
    world: RoutesWorld, waits_s: float, jump_s: int, expired: bool
) -> None:
    preview = world.run(world.preview(**MOVE))
    world.pass_time(waits_s)
    world.clock.jump_ms += jump_s * 1000
    assert world.routes.view()["previews"] == (0 if expired else 1)
    answer = world.do(world.apply(preview))
    assert (answer == "preview_expired") is expired


@pytest.mark.req("R96")
def test_sixteen_previews_are_kept(world: RoutesWorld) -> None:
    previews = [world.run(world.preview(**MOVE)) for _ in range(40)]
    assert world.routes.view()["previews"] == 16
    assert world.do(world.apply(previews[0])) == "preview_unknown"
    assert isinstance(world.do(world.apply(previews[-1])), dict)


@pytest.mark.invariant("INV-17", "INV-18")
@pytest.mark.req("R93", "R82", "R95")
def test_what_happened_since_makes_a_preview_stale(world: RoutesWorld) -> None:
    early = world.run(world.preview(**REPLACE))
    world.run(world.change(**MOVE))
    assert world.do(world.apply(early)) == "preview_stale"
    prepared = world.run(world.change(**PREPARE))
    cancel = world.run(world.preview(op="cancel", transaction_id=prepared["transaction_id"]))
    world.serving["http://127.0.0.1:8001/v1"] = None
    recover = {"op": "recover", "transaction_id": prepared["transaction_id"], "action": "cancel"}
    before = world.run(world.preview(**recover))
    apply = {"verify_timeout_s": 0}
    assert world.do(world.apply(cancel, **apply)) == "cancel_target_unverified"
    assert world.do(world.apply(before, **apply)) == "preview_stale"  # made before the failure
    assert world.do(world.preview(op="cancel", transaction_id=prepared["transaction_id"])) == "recovery_required"
    world.serving["http://127.0.0.1:8001/v1"] = ("m1",)
    assert world.run(world.change(**recover))["state"] == "cancelled"


@pytest.mark.req("R95")
def test_two_applies_of_one_preview_are_one_transaction(world: RoutesWorld) -> None:
    preview = world.run(world.preview(**REPLACE))

    async def both() -> list[dict[str, Any]]:
        return list(await asyncio.gather(world.apply(preview), world.apply(preview)))

    first, second = world.run(both())
    assert (first["replayed"], second["replayed"]) == (False, True)
    assert {**second, "replayed": False} == first
    assert world.authority.kinds == ["W1", "W2", "W3"]


@pytest.mark.req("R95", "R49")
def test_a_caller_that_leaves_leaves_the_transaction_alone(world: RoutesWorld) -> None:
    got = lease(world)
    preview = world.run(world.preview(**REPLACE))
    task = world.background(world.apply(preview))
    world.pass_time(1)
    task.cancel()
    world.pass_time(1)
    world.finish(got)
    world.pass_time(1)
    assert world.coordinator.machine.standing.value == "idle"
    assert world.fence[0] == 2


@pytest.mark.req("R2")
def test_commands_wait_a_moment_for_each_other_and_no_longer(world: RoutesWorld) -> None:
    world.authority.delay_s = 60
    task = world.background(world.change(**MOVE))
    world.pass_time(1)
    assert world.do(world.preview(**MOVE)) == "management_busy"
    assert world.loop.time() < 10
    world.routes.view()
    assert world.run(_result(task))["state"] == "completed"


@pytest.mark.req("R118")
@pytest.mark.parametrize("phase", ["probing", "draining", "writing"])
def test_a_shutdown_ends_waits_and_lets_a_write_end(world: RoutesWorld, phase: str) -> None:
    if phase == "draining":
        lease(world)
    change = MOVE if phase == "probing" else REPLACE
    preview = world.run(world.preview(**change))
    world.authority.delay_s = 5 if phase == "writing" else 0
    task = world.background(world.apply(preview))
    world.pass_time(0.005 if phase == "probing" else 1)
    world.run(world.coordinator.stop())
    with pytest.raises(RefusedError, match="shutting_down"):
        world.run(_result(task))
    assert world.authority.kinds == ([] if phase == "probing" else ["W1"])
    assert world.do(world.preview(**MOVE)) == "shutting_down"
    world.restart()
    assert world.held == (set() if phase == "probing" else {"a"})


@pytest.mark.req("R29", "R48")
@pytest.mark.invariant("INV-4", "INV-6", "INV-23")
def test_unchanged_tiers_keep_their_runtime_and_replaced_ones_get_a_new_one(world: RoutesWorld) -> None:
    a, b = (world.gate.snapshot.runtimes[tier_id] for tier_id in ("a", "b"))
    world.run(world.change(**MOVE))
    assert world.gate.snapshot.runtimes["a"] is a
    world.run(world.change(**REPLACE))
    after = world.gate.snapshot.runtimes
    assert (after["b"] is b, after["a"] is a, after["a"].generation) == (True, False, 3)
    assert a.retired
    assert a.acquire(_nobody()) is Refusal.RETIRED


def _nobody() -> Any:
    raise_ = AssertionError
    return type("Nobody", (), {"admitted": raise_, "turned_away": raise_})()


@pytest.mark.req("R85", "R59")
def test_ten_rollbacks_only_ever_go_forward(world: RoutesWorld) -> None:
    world.run(world.change(**REPLACE))
    seen = [world.fence]
    for _ in range(10):
        assert world.run(world.change(op="rollback"))["state"] == "completed"
        seen.append(world.fence)
    assert [revision for revision, _ in seen] == list(range(2, 13))
    assert len({sha for _, sha in seen}) == 2
    assert all(one[1] != other[1] for one, other in itertools.pairwise(seen))


@pytest.mark.req("R84")
def test_a_rollback_without_a_past_or_to_a_dead_server_is_refused(world: RoutesWorld) -> None:
    assert world.do(world.preview(op="rollback")) == "no_previous"
    world.run(world.change(**REPLACE))
    world.serving["http://127.0.0.1:8001/v1"] = None
    preview = world.run(world.preview(op="rollback"))
    assert not preview["applicable"]
    assert world.do(world.apply(preview)) == "precheck_failed"
    assert (world.fence[0], world.held) == (2, set())


@pytest.mark.req("R84")
def test_a_committed_change_rolls_back_to_a_server_that_is_still_down(world: RoutesWorld) -> None:
    world.prober.script.extend([("m2",), ("m2",), ("wrong",)])
    assert world.do(world.change(**REPLACE)) == "identity_mismatch"
    world.serving["http://127.0.0.1:8001/v1"] = None
    assert world.do(world.recover("rollback")) == "precheck_failed"
    receipt = world.run(world.recover("rollback", accept_unready=True))
    assert (receipt["state"], receipt["held"], receipt["next"]) == ("committed", True, ["verify", "rollback"])
    assert world.do(world.recover("verify", {"verify_timeout_s": 0})) == "identity_unavailable"
    world.serving["http://127.0.0.1:8001/v1"] = ("m1",)
    assert world.run(world.recover("verify"))["state"] == "completed"
    assert world.fence[0] == 3


def evidence(**changes: object) -> dict[str, Any]:
    container = {
        "container_id": "0123456789ab", "image_id": "sha256:" + "0" * 64, "started_at": "2026-11-30T00:00:00Z",
        "observed_at": "2026-11-30T02:00:00Z", "observer": "ops", "served_model": "m2", **changes,
    }  # fmt: skip
    return {"campaign": {"id": "c1", "sha256": "ab" * 32}, "containers": {"a": container}}


@pytest.mark.scenario("S4")
@pytest.mark.req("R103", "R104", "R105", "R106")
def test_a_managed_change_resumes_with_evidence_only(world: RoutesWorld) -> None:
    from sndr.router.wire.record import format_instant

    assert world.do(world.preview(**REPLACE, managed=True)) == "invalid_change"
    prepare = world.run(world.preview(**PREPARE, managed=True))
    assert prepare["requires"] == ["confirm", "evidence"]
    prepared = world.run(world.apply(prepare))
    resume = {"op": "resume", "transaction_id": prepared["transaction_id"]}
    now = format_instant(world.clock.wall_ms())
    assert world.do(world.preview(**resume)) == "evidence_required"
    assert world.do(world.preview(**resume, evidence={})) == "evidence_invalid"
    assert (
        world.do(world.preview(**resume, evidence=evidence(observed_at="2020-01-01T00:00:00Z"))) == "evidence_invalid"
    )
    wrong = evidence(observed_at=now, served_model="m9")
    assert world.do(world.preview(**resume, evidence=wrong)) == "evidence_mismatch"
    receipt = world.run(world.change(**resume, evidence=evidence(observed_at=now)))
    assert (receipt["state"], receipt["proves"], receipt["authorizes"]) == ("completed", "advertised_name", [])
    assert receipt["evidence"]["trust"] == "operator_asserted"


@pytest.mark.scenario("S22")
@pytest.mark.req("R103", "R104")
@pytest.mark.parametrize("way", ["the clock is right again", "cancel"])
def test_a_clock_that_goes_back_under_a_hold_stops_evidence_and_no_cancel(world: RoutesWorld, way: str) -> None:
    from sndr.router.wire.record import format_instant

    prepared = world.run(world.change(**PREPARE, managed=True))
    named = {"transaction_id": prepared["transaction_id"]}
    world.clock.jump_ms -= 3_600_000
    now = format_instant(world.clock.wall_ms())
    assert world.do(world.preview(op="resume", **named, evidence=evidence(observed_at=now))) == "evidence_invalid"
    if way == "cancel":
        world.prober.script.append(("m1",))
        receipt = world.run(world.change(op="cancel", **named))
        assert (receipt["state"], world.fence[0], world.held) == ("cancelled", 1, set())
        return
    world.clock.jump_ms += 3_600_000
    now = format_instant(world.clock.wall_ms())
    receipt = world.run(world.change(op="resume", **named, evidence=evidence(observed_at=now)))
    assert receipt["state"] == "completed"


@pytest.mark.req("R112", "R113")
@pytest.mark.invariant("INV-22")
@pytest.mark.scenario("S24")
def test_nothing_happens_by_itself(world: RoutesWorld) -> None:
    def quiet() -> None:
        before, written = world.coordinator.machine, list(world.authority.kinds)
        world.pass_time(600)
        assert (world.coordinator.machine is before, world.authority.kinds) == (True, written)

    quiet()
    world.run(world.change(**PREPARE))
    quiet()
    world.restart()
    world.prober.script.extend([("m2",), ("m2",), ("wrong",)])
    assert world.do(world.recover("resume")) == "identity_mismatch"
    quiet()


def test_a_prepared_rollback_also_needs_its_earlier_servers(world: RoutesWorld) -> None:
    world.run(world.change(**REPLACE))
    world.serving["http://127.0.0.1:8001/v1"] = ("m9",)
    preview = world.run(world.preview(op="rollback", mode="prepare"))
    assert not preview["applicable"]
    world.serving["http://127.0.0.1:8001/v1"] = ("m1",)
    assert world.run(world.change(op="rollback", mode="prepare"))["state"] == "held"


@pytest.mark.parametrize("attribute", ["probe", "prove"])
def test_what_breaks_inside_is_a_failure_like_any_other(world: RoutesWorld, attribute: str) -> None:
    preview = world.run(world.preview(**(MOVE if attribute == "probe" else REPLACE)))

    async def breaks(*_: object) -> Any:
        raise ZeroDivisionError

    setattr(world.prober, attribute, breaks)
    code = world.do(world.apply(preview))
    assert code == ("target_not_ready" if attribute == "probe" else "identity_unavailable")
    assert ("internal_error", {"kind": "ZeroDivisionError", "where": "coordinator"}) in world.log
    assert world.held == (set() if attribute == "probe" else {"a"})


@pytest.mark.req("R43", "R49")
def test_verification_waits_for_a_server_that_does_not_answer_yet(world: RoutesWorld) -> None:
    world.prober.script.extend([("m2",), ("m2",), None, None, None])
    receipt = world.run(world.change({"verify_timeout_s": 5}, **REPLACE))
    assert (receipt["state"], world.loop.time() < 5) == ("completed", True)


@pytest.mark.req("R37", "R49", "R83")
@pytest.mark.scenario("S3")
def test_a_drain_that_ran_out_can_be_waited_for_again(world: RoutesWorld) -> None:
    got = lease(world)
    assert world.do(world.change({"drain_timeout_s": 1}, **REPLACE)) == "drain_timeout"
    assert list(world.routes.standing()["next"]) == ["drain", "resume", "cancel"]
    assert world.do(world.recover("drain", {"drain_timeout_s": 2})) == "drain_timeout"
    task = world.background(world.recover("drain", {"drain_timeout_s": 60}))
    world.pass_time(3)
    world.finish(got)
    drained = world.run(_result(task))
    assert (drained["state"], drained["drain"]["complete"], drained["attention"]) == ("held", True, None)
    resumed = world.run(world.change(op="resume", transaction_id=drained["transaction_id"]))
    assert (resumed["state"], resumed["streams"]["in_scope_finished"]) == ("completed", 1)


def test_a_recovery_takes_only_what_belongs_to_its_action(world: RoutesWorld) -> None:
    prepared = world.run(world.change(**PREPARE))
    recover = {"op": "recover", "transaction_id": prepared["transaction_id"]}
    assert world.do(world.preview(**recover, action="cancel", evidence={})) == "invalid_change"
    assert world.do(world.preview(**recover, action="cancel", accept_unready=True)) == "invalid_change"
    assert world.do(world.preview(op="recover", transaction_id=None, action="cancel")) == "transaction_changed"
    assert world.do(world.preview(op="recover", transaction_id="other", action="cancel")) == "transaction_changed"
    assert world.do(world.preview(**recover, action="verify")) == "not_committed"
    assert world.do(world.preview(**recover, action="drain")) == "invalid_change"
    assert world.do(world.preview(**recover, action="reassert")) == "transaction_changed"
    assert world.do(world.preview(op="resume", transaction_id="other")) == "transaction_changed"
    assert world.run(world.recover("cancel"))["state"] == "cancelled"
    assert world.do(world.preview(op="rollback")) == "no_previous"


@pytest.mark.req("R118", "R86")
@pytest.mark.parametrize(("ending", "code"), [("cancel", None), ("stop", "shutting_down")])
def test_whoever_watches_a_drain_is_told_how_it_ended(world: RoutesWorld, ending: str, code: str | None) -> None:
    from sndr.errors import ControlError

    lease(world)
    task = world.background(world.change(**REPLACE))
    world.pass_time(1)
    watching = world.background(world.routes.watch_drain(900))
    world.pass_time(1)
    if ending == "stop":
        world.run(world.coordinator.stop())
    else:
        receipt = world.coordinator.machine.receipt
        assert receipt is not None
        world.run(world.change(op="cancel", transaction_id=receipt.id))
    if code is None:
        seen = world.run(_result(watching))
        assert (seen["state"], seen["complete"], seen["timed_out"]) == ("cancelled", False, False)
    else:
        with pytest.raises(ControlError, match="stopping"):
            world.run(_result(watching))
    with pytest.raises(RefusedError):
        world.run(_result(task))


@pytest.mark.req("R84", "R28")
def test_a_rollback_of_aliases_needs_no_hold(world: RoutesWorld) -> None:
    world.run(world.change(op="alias_update", aliases={"y": {"tier": "a"}}))
    got = lease(world, "y")
    assert world.do(world.preview(op="rollback", mode="prepare")) == "invalid_change"
    assert world.do(world.preview(op="rollback", accept_unready=True)) == "not_committed"
    receipt = world.run(world.change(op="rollback"))
    assert (receipt["op"], receipt["scope"], world.authority.kinds) == ("rollback", [], ["alias", "alias"])
    world.finish(got)


# --- deliberate faults: each must fail the test that is about it


def _gates_stay_open(self: Coordinator, effect: fx.Effect, *, changed: bool) -> None:
    if not isinstance(effect, fx.CloseGate):
        _perform(self, effect, changed=changed)


def _publishes_first(self: Coordinator, effect: fx.Effect, *, changed: bool) -> None:
    if isinstance(effect, fx.Persist) and effect.kind is fx.WriteKind.ALIAS:
        self._publisher.publish(effect.record.current, ())
    _perform(self, effect, changed=changed)


def _opens_before_the_write(self: Coordinator, effect: fx.Effect, *, changed: bool) -> None:
    if isinstance(effect, fx.Persist) and effect.kind is fx.WriteKind.READMIT:
        for tier_id in self.machine.gated:
            self._gate.unhold(tier_id)
    _perform(self, effect, changed=changed)


async def _counts_nothing(self: Coordinator, effect: fx.CountRows) -> fx.Fact:
    return fx.RowsResolved(effect.ticket)


async def _waits_for_nobody(self: Coordinator, effect: fx.AwaitLeases) -> fx.Fact:
    return fx.LeasesReleased(effect.ticket)


async def _believes(self: Coordinator, effect: fx.ProbeIdentity) -> fx.Fact:
    return fx.IdentityProved(effect.ticket, ("m1",))


_perform = Coordinator._perform


@pytest.mark.parametrize(
    ("name", "wrong", "caught_by"),
    [
        ("_perform", _gates_stay_open, test_durable_then_published_then_answered),
        ("_perform", _publishes_first, test_an_alias_is_published_after_its_write),
        ("_perform", _opens_before_the_write, test_durable_then_published_then_answered),
        ("_count_rows", _counts_nothing, test_rows_that_nobody_will_close_block_a_commit_at_once),
        ("_await_leases", _waits_for_nobody, test_a_drain_waits_for_leases_and_then_for_rows),
        ("_probe_identity", _believes, test_a_committed_change_rolls_back_to_a_server_that_is_still_down),
    ],
)
def test_a_coordinator_with_one_fault_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any, caught_by: Any
) -> None:
    monkeypatch.setattr(Coordinator, name, wrong)
    made = RoutesWorld()
    made.serving["http://127.0.0.1:8003/v1"] = ("m2",)
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            caught_by(made)
    finally:
        made.close()
