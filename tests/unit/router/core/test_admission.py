"""One tier's runtime: who may start, who waits, and how admissions and releases are numbered."""

from __future__ import annotations

from sndr.router.core.admission import Admission, Lease, Refusal, TierRuntime
from sndr.router.core.family import PresetRow, compile_families
from sndr.router.core.projection import Tier, parse


class Waiting:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: Lease | Refusal | None = None

    def admitted(self, lease: Lease) -> None:
        self.told = lease

    def turned_away(self, refusal: Refusal) -> None:
        self.told = refusal


def runtime(owner: Admission, limit: int | None = 1, queue_limit: int = 1, tier_id: str = "t") -> TierRuntime:
    spec = Tier(base_url="http://h:1/v1", max_concurrency=limit)
    return TierRuntime(owner, spec, tier_id=tier_id, generation=1, queue_limit=queue_limit, upstream=None)


def admit(tier: TierRuntime) -> Lease:
    lease = tier.acquire(Waiting())
    assert isinstance(lease, Lease)
    return lease


def test_the_operators_bit_is_named_before_the_transactions() -> None:
    owner = Admission()
    tier = runtime(owner)
    seen = [tier.gate.refusal]
    owner.hold(tier)
    seen.append(tier.gate.refusal)
    owner.quiesce(tier, "maintenance")
    seen.append(tier.gate.refusal)
    assert tier.acquire(Waiting()) is Refusal.QUIESCED
    owner.readmit(tier)
    seen.append(tier.gate.refusal)
    owner.unhold(tier)
    seen.append(tier.gate.refusal)
    assert seen == [None, Refusal.HELD, Refusal.QUIESCED, Refusal.HELD, None]


def test_a_tier_is_full_when_slots_and_queue_are() -> None:
    tier = runtime(Admission())
    seen = [tier.full]
    lease = admit(tier)
    seen.append(tier.full)
    waiter = Waiting()
    assert tier.acquire(waiter) is None
    seen.append(tier.full)
    assert tier.acquire(Waiting()) is Refusal.QUEUE_FULL
    lease.release()
    assert isinstance(waiter.told, Lease)
    seen.append(tier.full)
    assert seen == [False, False, True, False]
    endless = runtime(Admission(), limit=None, queue_limit=0)
    admit(endless)
    assert not endless.full


def test_admissions_and_releases_are_numbered_by_one_count() -> None:
    owner = Admission()
    tier = runtime(owner, limit=None)
    first, second = admit(tier), admit(tier)
    assert (first.admission_seq, second.admission_seq, first.release_seq) == (1, 2, None)
    assert first.next_release_seq() == 3
    first.release()
    third = admit(tier)
    assert (first.release_seq, third.admission_seq, owner.seq) == (3, 4, 4)


def test_a_family_counts_the_leases_of_all_its_tiers_and_the_request_that_asks() -> None:
    owner = Admission()
    tiers = {name: {"base_url": f"http://h:{port}/v1", "preset": name} for port, name in enumerate("abc", 1)}
    alias = {"family": "f", "natural": "a", "on_unready": "refuse"}
    routes = parse({"aliases": {"x": alias}, "tiers": tiers}, fill=True)
    rows = {
        "f": {"a": PresetRow(1, is_default=True, is_chosen=True), "b": PresetRow(4, is_default=False, is_chosen=True)}
    }
    family = compile_families(routes, rows, owner.gate)["x"]
    assert family.in_flight() == 1
    leases = [admit(runtime(owner, tier_id=name)) for name in "abc"]
    assert family.in_flight() == 3
    leases[0].release()
    assert family.in_flight() == 2


def test_a_waiter_that_gives_up_is_passed_over() -> None:
    tier = runtime(Admission(), queue_limit=2)
    lease = admit(tier)
    gone, stays = Waiting(), Waiting()
    assert (tier.acquire(gone), tier.acquire(stays)) == (None, None)
    assert tier.leave(gone)
    assert not tier.leave(gone)
    lease.release()
    assert gone.told is None
    assert isinstance(stays.told, Lease)
    assert not tier.leave(stays)


def test_a_slot_is_passed_on_once_however_often_the_delivery_is_reported() -> None:
    tier = runtime(Admission(), queue_limit=2)
    lease = admit(tier)
    first, second = Waiting(), Waiting()
    tier.acquire(first)
    tier.acquire(second)
    lease.delivered()
    lease.delivered()
    assert isinstance(first.told, Lease)
    assert (second.told, tier.running, tier.leases) == (None, 1, 2)
    lease.release()
    assert (second.told, tier.running, tier.leases) == (None, 1, 1)
