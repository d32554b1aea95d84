"""Each rule of a record, of the machine's memory and of a step, broken once; and the forms of evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.effects import Code
from sndr.router.core.evidence import FUTURE_MS, TRUST, WINDOW_MS, check_evidence, evidence_sha256, parse_instant
from sndr.router.core.invariants import check_machine, check_record, check_step
from sndr.router.core.projection import INTEGER_MAX, parse, to_json
from sndr.router.core.recovery import Attention, AttentionCode
from sndr.router.core.transaction import Machine, State, step
from tests.support.machine import boot, but, call, record, replacement, revision, run, started, update

Bend = Callable[[rc.Record], rc.Record]


def held() -> Machine:
    machine = started()
    return run(machine, replacement(machine, {"a": "m2"}, prepares=True))[0]


def committed() -> Machine:
    machine = started()
    answer = but((fx.ProbeIdentity, fx.IdentityFailed))
    return run(machine, replacement(machine, {"a": "m2"}), answer)[0]


def of(machine: Machine) -> rc.Record:
    assert machine.record is not None
    return machine.record


def receipt(**changes: object) -> Bend:
    def bend(given: rc.Record) -> rc.Record:
        assert given.transaction is not None
        return replace(given, transaction=replace(given.transaction, **changes))  # type: ignore[arg-type]

    return bend


def rollback(machine: Machine) -> rc.Record:
    """The record after a rollback of the committed change."""
    given = of(machine)
    assert given.previous is not None
    undo = fx.RollBack(call(machine), "t2", given.previous.effective_route_sha256, "t1", accepts_unready=True)
    return of(run(machine, undo)[0])


EVIDENCE = rc.Evidence(
    rc.Campaign("spring", "ef" * 32),
    {
        "a": rc.Container(
            "0123456789ab",
            "sha256:" + "cd" * 32,
            "1970-01-01T00:00:00Z",
            "1970-01-01T00:00:01Z",
            "ops",
            "m2",
        )
    },
)
DRAIN = rc.Drain(0, complete=True, cut=0, finished=0, leases_at_hold=0, unresolved=0)

BROKEN: list[tuple[str, Callable[[], rc.Record], Bend, str]] = [
    ("sequence", record, lambda r: replace(r, write_seq=0), "/write_seq"),
    ("hash", record, lambda r: replace(r, current=replace(r.current, effective_route_sha256="0" * 64)),
     "/current/effective_route_sha256"),
    ("revision", record, lambda r: replace(r, current=replace(r.current, route_revision=INTEGER_MAX + 1)),
     "/current/route_revision"),
    ("previous", record, lambda r: replace(r, previous=r.current), "/previous/route_revision"),
    ("boot", record, lambda r: replace(r, boot_sha256="0" * 64), "/boot/projection_sha256"),
    ("hold", lambda: of(held()), receipt(hold=False), "/transaction/hold"),
    ("hold terminal", lambda: of(held()), receipt(state=rc.State.CANCELLED), "/transaction/hold"),
    ("kind", lambda: of(held()), receipt(op=rc.Op.ALIAS_UPDATE), "/transaction/change/kind"),
    ("origin", lambda: of(held()), receipt(origin=rc.Origin.ROLLBACK), "/transaction/origin"),
    ("parent", lambda: of(held()), receipt(parent_id="t0"), "/transaction/parent_id"),
    ("many events", lambda: of(held()), receipt(events=tuple(rc.Event(0, "held", n) for n in range(17))),
     "/transaction/events"),
    ("event order", lambda: of(held()), receipt(events=(rc.Event(0, "held", 2), rc.Event(0, "held", 2))),
     "/transaction/events"),
    ("cut", lambda: of(held()), receipt(drain=replace(DRAIN, cut=1)), "/transaction/drain"),
    ("unresolved", lambda: of(held()), receipt(drain=replace(DRAIN, unresolved=1)), "/transaction/drain"),
    ("observed", lambda: of(held()), receipt(identity=rc.Identity(0, ("m",) * 17)), "/transaction/identity/observed"),
    ("proves", lambda: of(held()), receipt(identity=rc.Identity(0, ("m",), "weights")), "/transaction/identity/proves"),
    ("evidence", lambda: of(held()), receipt(evidence=EVIDENCE), "/transaction/evidence"),
    ("evidence scope", lambda: of(held()), receipt(managed=True, evidence=replace(EVIDENCE, containers={})),
     "/transaction/evidence"),
    ("base", lambda: of(held()), receipt(base=rc.Fence(1, "0" * 64)), "/transaction/base"),
    ("proposed", lambda: of(held()), receipt(proposed_sha256="0" * 64), "/transaction/proposed_sha256"),
    ("change", lambda: of(held()), receipt(change=rc.TierReplacement({"a": {"auth_env": "KEY"}})),
     "/transaction/change"),
    ("early revision", lambda: of(held()), receipt(committed_revision=1), "/transaction/committed_revision"),
    ("scope order", lambda: of(held()), receipt(scope=("a", "a")), "/transaction/scope"),
    ("scope unknown", lambda: of(held()), receipt(scope=("a", "q")), "/transaction/scope"),
    ("no revision", lambda: of(committed()), receipt(committed_revision=None), "/transaction/committed_revision"),
    ("other revision", lambda: of(committed()), receipt(committed_revision=1), "/transaction/committed_revision"),
    ("other content", lambda: of(committed()), receipt(proposed_sha256="0" * 64), "/transaction/proposed_sha256"),
    ("no previous", lambda: of(committed()), lambda r: replace(r, previous=None), "/previous"),
    ("other base", lambda: of(committed()), receipt(base=rc.Fence(1, "0" * 64)), "/previous"),
    ("rollback scope", lambda: rollback(committed()), receipt(scope=("b",)), "/transaction/scope"),
    ("rollback scope alone", lambda: rollback(committed()), receipt(scope=("a", "b"), parent_id=None),
     "/transaction/scope"),
]  # fmt: skip


@pytest.mark.invariant("INV-14")
@pytest.mark.req("R57", "R58", "R59", "R72", "R88")
@pytest.mark.parametrize(("make", "bend", "pointer"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_record_that_contradicts_itself_is_found(make: Callable[[], rc.Record], bend: Bend, pointer: str) -> None:
    sound = make()
    assert check_record(sound, boot()) == ()
    assert pointer in [finding.pointer for finding in check_record(bend(sound), boot())]


def test_an_alias_update_has_no_scope() -> None:
    machine = started()
    given = of(run(machine, update(machine, "x", "b"))[0])
    assert check_record(given, boot()) == ()
    assert [f.pointer for f in check_record(receipt(scope=("a",))(given))] == ["/transaction/scope"]


@pytest.mark.req("R108")
def test_a_locked_field_must_equal_the_boot_file() -> None:
    document = to_json(boot())
    document["tiers"]["a"]["serves"] = ["chat"]  # type: ignore[index]
    other = parse(document)
    given = replace(record(), current=revision(2, other), previous=revision(1, boot()))
    assert "/current/projection/tiers/a/serves" in [f.pointer for f in check_record(given, boot())]


@pytest.mark.req("R80")
def test_a_rebase_may_forget_what_was_before() -> None:
    machine = started()
    given = of(run(machine, replacement(machine, {"a": "m2"}))[0])
    assert check_record(replace(given, previous=None), boot()) == ()
    later = replace(given, current=replace(given.current, route_revision=9), previous=None)
    assert check_record(later, boot()) == ()


def test_a_rollback_long_ago_is_not_judged_by_routes_that_came_later() -> None:
    machine = committed()
    given = of(machine)
    assert given.previous is not None
    undo = fx.RollBack(call(machine), "t2", given.previous.effective_route_sha256, "t1")
    given = of(run(machine, undo)[0])
    assert check_record(given, boot()) == ()
    assert given.transaction is not None
    assert given.transaction.op is rc.Op.ROLLBACK
    later = replace(given, current=replace(given.current, route_revision=9), previous=None)
    assert check_record(later, boot()) == ()


# --- the machine


@pytest.mark.parametrize(
    ("make", "changes", "invariant"),
    [
        (started, {"gated": ("a",)}, "INV-19"),
        (held, {"gated": ()}, "INV-7"),
        (held, {"record": record()}, "INV-7"),
        (held, {"receipt": None}, "INV-7"),
        (held, {"state": State.COMMITTED}, "INV-7"),
        (started, {"published": revision(2, boot())}, "INV-1"),
        (started, {"max_attempted": 0}, "INV-2"),
        (started, {"attention": Attention(1, AttentionCode.VERIFY_FAILED)}, "INV-18"),
        (committed, {"attention": None}, "INV-18"),
    ],
)
def test_a_memory_that_contradicts_itself_is_found(
    make: Callable[[], Machine], changes: dict[str, object], invariant: str
) -> None:
    machine = make()
    assert check_machine(machine) == ()
    findings = check_machine(replace(machine, **changes))  # type: ignore[arg-type]
    assert invariant in {finding.code for finding in findings}


def test_nothing_is_asked_of_a_machine_that_is_not_started() -> None:
    assert check_machine(Machine()) == ()
    assert check_machine(replace(started(), state=State.STARTING, gated=("a",))) == ()


# --- a step


def test_a_step_out_of_order_is_found() -> None:
    machine = started()
    command = replacement(machine, {"a": "m2"})
    after, effects = step(machine, command)
    assert check_step(machine, command, after, effects) == ()
    persist = effects[-1]
    assert isinstance(persist, fx.Persist)

    def codes(before: Machine, event: fx.Event, then: Machine, asked: tuple[fx.Effect, ...]) -> set[str]:
        return {finding.code for finding in check_step(before, event, then, asked)}

    assert check_step(Machine(), fx.Start(record()), *step(Machine(), fx.Start(record()))) == ()
    publish = fx.Publish(persist.record.current)
    assert codes(machine, command, machine, (fx.Reply("call", Code.PREVIEW_STALE),)) == set()
    assert codes(machine, command, machine, effects) == {"INV-22"}
    assert codes(machine, command, replace(after, state=State.HELD), effects) == {"INV-22"}
    assert codes(replace(machine, attention=Attention(1, AttentionCode.LOCK_LOST)), command, after, effects) == {
        "INV-18"
    }
    assert codes(machine, command, after, (persist, fx.CloseGate(("a",)))) == {"INV-1"}
    assert codes(machine, command, after, (publish, persist)) == {"INV-1"}
    assert codes(machine, command, after, (publish,)) == {"INV-1"}
    assert codes(machine, command, after, (fx.OpenGate(("a",)),)) == {"INV-8"}
    assert codes(machine, command, replace(after, task=None), effects) == {"INV-22"}
    failure = fx.WriteFailed(after.ticket)
    reopened, _ = step(after, failure)
    assert codes(after, failure, reopened, (persist,)) == {"INV-22"}
    older = replace(machine, published=revision(2, boot()))
    assert codes(older, command, after, effects) == {"INV-2"}
    assert codes(replace(machine, max_attempted=9), command, after, effects) == {"INV-2"}


# --- evidence


@pytest.mark.req("R104")
@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T00:00:01.5Z", 1_500),
        ("1970-01-01T00:00:01.123456789Z", 1_123),
        ("2026-11-30T09:00:00Z", 1_796_029_200_000),
        ("2026-02-30T00:00:00Z", None),
        ("2026-11-30T09:00:60Z", None),
        ("2026-11-30 09:00:00Z", None),
        ("2026-11-30T09:00:00+00:00", None),
        ("2026-11-30T09:00:00", None),
        ("٢026-11-30T09:00:00Z", None),
        ("", None),
    ],
)
def test_instants_have_one_form(text: str, instant: int | None) -> None:
    assert parse_instant(text) == instant


def _evidence(**changes: str) -> rc.Evidence:
    return replace(EVIDENCE, containers={"a": replace(EVIDENCE.containers["a"], **changes)})  # type: ignore[arg-type]


HOLD_MS = 10_000
CASES = [
    (EVIDENCE, Code.EVIDENCE_INVALID),  # observed long before the hold
    (None, Code.EVIDENCE_REQUIRED),
    (_evidence(observed_at="1970-01-01T00:00:10Z"), None),
    (_evidence(observed_at="1970-01-01T00:00:05Z"), None),
    (_evidence(observed_at="1970-01-01T00:00:04.999Z"), Code.EVIDENCE_INVALID),
    (_evidence(observed_at="1970-01-01T00:05:20Z"), None),
    (_evidence(observed_at="1970-01-01T00:05:20.001Z"), Code.EVIDENCE_INVALID),
    (_evidence(observed_at="yesterday"), Code.EVIDENCE_INVALID),
    (_evidence(started_at="yesterday"), Code.EVIDENCE_INVALID),
    (_evidence(started_at="9999-12-31T23:59:59Z"), Code.EVIDENCE_INVALID),
    (_evidence(container_id="0123"), Code.EVIDENCE_INVALID),
    (_evidence(container_id="0123456789AB"), Code.EVIDENCE_INVALID),
    (_evidence(image_id="cd" * 32), Code.EVIDENCE_INVALID),
    (_evidence(observer=""), Code.EVIDENCE_INVALID),
    (_evidence(observed_at="1970-01-01T00:00:10Z", served_model="m2 "), Code.EVIDENCE_MISMATCH),
    (replace(EVIDENCE, campaign=rc.Campaign("", "ef" * 32)), Code.EVIDENCE_INVALID),
    (replace(EVIDENCE, campaign=rc.Campaign("spring", "EF" * 32)), Code.EVIDENCE_INVALID),
    (replace(EVIDENCE, containers={"b": EVIDENCE.containers["a"]}), Code.EVIDENCE_MISMATCH),
    (replace(EVIDENCE, containers={}), Code.EVIDENCE_MISMATCH),
]


@pytest.mark.req("R104", "R106")
@pytest.mark.parametrize(("given", "code"), CASES)
def test_evidence_is_judged_by_form_scope_model_and_age(given: rc.Evidence | None, code: Code | None) -> None:
    machine = started()
    change = rc.TierReplacement({"a": {"model": "m2"}})
    receipt_held = run(machine, replacement(machine, {"a": "m2"}, managed=True, prepares=True, at_ms=HOLD_MS))[
        0
    ].receipt
    assert receipt_held is not None
    proposed = parse({**to_json(boot()), "tiers": {**_tiers("m2")}})
    assert receipt_held.change == change
    now = HOLD_MS + 10_000
    assert check_evidence(receipt_held, proposed, given, now_ms=now) is code
    if given is not None and code is None:
        used = replace(receipt_held, earlier_evidence_sha256=evidence_sha256(given))
        assert check_evidence(used, proposed, given, now_ms=now) is Code.EVIDENCE_REPLAYED
    unmanaged = replace(receipt_held, managed=False)
    expected = None if given is None else Code.INVALID_CHANGE
    assert check_evidence(unmanaged, proposed, given, now_ms=now) is expected
    assert (WINDOW_MS, FUTURE_MS, TRUST) == (5_000, 300_000, "operator_asserted")


def _tiers(model: str) -> dict[str, object]:
    tiers = to_json(boot())["tiers"]
    assert isinstance(tiers, dict)
    tiers["a"]["model"] = model
    return tiers
