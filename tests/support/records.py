"""Authority records for tests: one per durable write of the design, each accepted by the validator of start-up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from sndr.router.core import projection as routes
from sndr.router.core.projection import Projection, TierTarget
from sndr.router.core.receipt import (
    AliasUpdate,
    Campaign,
    Container,
    Drain,
    Event,
    Evidence,
    Identity,
    Op,
    Origin,
    Receipt,
    Record,
    Revision,
    Rollback,
    State,
    TierReplacement,
)

AUTHORITY_ID = "6f0c1d2e-3a4b-4c5d-8e6f-708192a3b4c5"
TRANSACTION_ID = "0a1b2c3d-4e5f-4a6b-9c7d-8e9fa0b1c2d3"
ROLLBACK_ID = "1b2c3d4e-5f60-4b7c-8d9e-afb0c1d2e3f4"
AT_MS = 1_780_000_000_123


def boot(**primary: object) -> Projection:
    """Two tiers, two aliases; keyword arguments change the tier `primary`."""
    tiers = {
        "primary": {"base_url": "http://127.0.0.1:8000/v1", "model": "m1", "health_path": "/health", **primary},
        "secondary": {"base_url": "http://127.0.0.1:8001/v1", "model": "s1", "health_path": "/health"},
    }
    aliases = {"llm.primary": {"tier": "primary"}, "llm.secondary": {"tier": "secondary"}}
    return routes.parse({"aliases": aliases, "tiers": tiers}, fill=True)


def many_tiers(count: int) -> Projection:
    """`count` tiers t0, t1, … with an alias a0, a1, … each."""
    tiers = {
        f"t{i}": {
            "base_url": f"http://127.0.0.1:{8000 + i}/v1",
            "model": f"model-{i}",
            "health_path": "/health",
            "max_concurrency": 8,
            "context_limit": 131_072,
        }
        for i in range(count)
    }
    return routes.parse({"aliases": {f"a{i}": {"tier": f"t{i}"} for i in range(count)}, "tiers": tiers}, fill=True)


def revision(number: int, projection: Projection) -> Revision:
    return Revision(number, routes.sha256(projection), projection)


def first(projection: Projection | None = None, *, number: int = 1, write_seq: int = 1) -> Record:
    """What `init` writes."""
    projection = boot() if projection is None else projection
    return Record(
        authority_id=AUTHORITY_ID,
        boot_sha256=routes.sha256(projection),
        current=revision(number, projection),
        previous=None,
        transaction=None,
        write_seq=write_seq,
    )


def _receipt(base: Record, proposed: Projection, **members: object) -> Receipt:
    values: dict[str, object] = {
        "id": TRANSACTION_ID,
        "op": Op.TIER_REPLACEMENT,
        "origin": Origin.CHANGE,
        "state": State.HELD,
        "hold": True,
        "base": base.current.fence,
        "change": TierReplacement(MappingProxyType({"primary": MappingProxyType({"model": "m2"})})),
        "scope": ("primary",),
        "proposed_sha256": routes.sha256(proposed),
        "committed_revision": None,
        "preview_sha256": "ab" * 32,
        "parent_id": None,
        "managed": False,
        "evidence": None,
        "drain": None,
        "identity": None,
        "events": (Event(AT_MS, "held", 1),),
        "created_at_ms": AT_MS,
        "updated_at_ms": AT_MS,
        **members,
    }
    return Receipt(**values)  # type: ignore[arg-type]


def alias_update(base: Record, alias: str = "llm.primary", tier: str = "secondary") -> Record:
    """The one write of an alias-only change."""
    proposed = routes.apply_aliases(base.current.projection, {alias: {"tier": tier}})
    number = base.current.route_revision + 1
    receipt = _receipt(
        base,
        proposed,
        op=Op.ALIAS_UPDATE,
        state=State.COMPLETED,
        hold=False,
        change=AliasUpdate(MappingProxyType({alias: TierTarget(tier)})),
        scope=(),
        committed_revision=number,
        events=(Event(AT_MS, "completed", 1),),
    )
    return replace(base, current=revision(number, proposed), previous=base.current, transaction=receipt)


def held(base: Record, **members: object) -> Record:
    """W1 of replacing the model of `primary`."""
    proposed = routes.apply_tiers(base.current.projection, {"primary": {"model": "m2"}})
    return replace(base, transaction=_receipt(base, proposed, **members))


def managed(base: Record) -> Record:
    """A held, managed replacement that already has its evidence."""
    container = Container(
        container_id="0123456789ab",
        image_id="sha256:" + "cd" * 32,
        started_at="2026-11-30T09:00:00Z",
        observed_at="2026-11-30T09:01:00.5Z",
        observer="operator",
        served_model="m2",
    )
    evidence = Evidence(Campaign("campaign-7", "ef" * 32), MappingProxyType({"primary": container}))
    return held(base, managed=True, evidence=evidence)


def committed(base: Record) -> Record:
    """W2 after `held`."""
    receipt = base.transaction
    assert receipt is not None
    proposed = routes.apply_tiers(base.current.projection, {"primary": {"model": "m2"}})
    number = base.current.route_revision + 1
    after = replace(
        receipt,
        state=State.COMMITTED,
        committed_revision=number,
        drain=Drain(AT_MS + 1, True, 0, 2, 2, 0),
        events=(*receipt.events, Event(AT_MS + 2, "committed", 2)),
        updated_at_ms=AT_MS + 2,
    )
    return replace(base, current=revision(number, proposed), previous=base.current, transaction=after)


def completed(base: Record) -> Record:
    """W3 after `committed`."""
    receipt = base.transaction
    assert receipt is not None
    after = replace(
        receipt,
        state=State.COMPLETED,
        hold=False,
        identity=Identity(AT_MS + 3, ("m2", "m2-lora")),
        events=(*receipt.events, Event(AT_MS + 3, "completed", 3)),
        updated_at_ms=AT_MS + 3,
    )
    return replace(base, transaction=after)


def cancelled(base: Record) -> Record:
    """Wx after `held`."""
    receipt = base.transaction
    assert receipt is not None
    after = replace(
        receipt, state=State.CANCELLED, hold=False, events=(*receipt.events, Event(AT_MS + 4, "cancelled", 2))
    )
    return replace(base, transaction=after)


def rolled_back(base: Record) -> Record:
    """Wr after `committed`: the previous routes as a newer revision, the hold kept."""
    assert base.previous is not None
    assert base.transaction is not None
    number = base.current.route_revision + 1
    proposed = base.previous.projection
    receipt = _receipt(
        base,
        proposed,
        id=ROLLBACK_ID,
        op=Op.ROLLBACK,
        origin=Origin.ROLLBACK,
        state=State.COMMITTED,
        change=Rollback(),
        committed_revision=number,
        parent_id=base.transaction.id,
        events=(Event(AT_MS + 5, "committed", 1),),
    )
    return replace(base, current=revision(number, proposed), previous=base.current, transaction=receipt)


@dataclass(frozen=True, slots=True)
class Step:
    """One durable write of a running router: the record before and the record after."""

    name: str
    before: Record
    after: Record


def steps() -> tuple[Step, ...]:
    """Every durable write that a running router makes, by the name that the crash table gives it."""
    start = first()
    hold = held(start)
    commit = committed(hold)
    complete = completed(commit)
    return (
        Step("W1", start, hold),
        Step("W2", hold, commit),
        Step("W3", commit, complete),
        Step("cancel", hold, cancelled(hold)),
        Step("rollback", commit, rolled_back(commit)),
        Step("alias", complete, alias_update(complete)),
    )
