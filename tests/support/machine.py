"""Routes, records and calls that every test of the machine starts from, and the plain loop that performs effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.projection import Projection, TierTarget, parse, sha256
from sndr.router.core.proposal import propose
from sndr.router.core.transaction import Machine, State, step

AUTHORITY = "6f0c8f3e-2f6c-4f0e-9b57-0d7c1a3c1a11"
PREVIEW = "ab" * 32


def boot() -> Projection:
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


def revision(number: int, projection: Projection) -> rc.Revision:
    return rc.Revision(number, sha256(projection), projection)


def record(projection: Projection | None = None) -> rc.Record:
    """What `init` writes."""
    routes = boot() if projection is None else projection
    return rc.Record(
        authority_id=AUTHORITY,
        boot_sha256=sha256(boot()),
        current=revision(1, routes),
        previous=None,
        transaction=None,
        write_seq=1,
    )


def call(machine: Machine, **changes: object) -> fx.Call:
    """A call whose preview was made right now."""
    assert machine.published is not None
    assert machine.record is not None
    values: dict[str, object] = {
        "id": "call",
        "preview_sha256": PREVIEW,
        "base": machine.published.fence,
        "write_seq": machine.record.write_seq,
        "attention_seq": machine.attention_seq,
        "recovers": machine.attention is not None,
        "at_ms": 1_000,
    }
    return fx.Call(**{**values, **changes})  # type: ignore[arg-type]


def update(machine: Machine, alias: str, tier: str, *, tx: str = "t1", **changes: object) -> fx.UpdateAliases:
    assert machine.record is not None
    change = rc.AliasUpdate({alias: TierTarget(tier)})
    return fx.UpdateAliases(call(machine, **changes), tx, change, sha256(propose(machine.record, change)))


def replacement(
    machine: Machine,
    models: dict[str, str],
    *,
    tx: str = "t1",
    managed: bool = False,
    prepares: bool = False,
    **changes: object,
) -> fx.ReplaceTiers:
    """Give each named tier another model."""
    assert machine.record is not None
    change = rc.TierReplacement({tier: {"model": model} for tier, model in models.items()})
    proposed = sha256(propose(machine.record, change, managed=managed))
    return fx.ReplaceTiers(call(machine, **changes), tx, change, proposed, managed, prepares)


Answer = Callable[[Machine, fx.Effect], "fx.Fact | None"]


def willing(machine: Machine, effect: fx.Effect) -> fx.Fact | None:
    """A world in which everything works."""
    match effect:
        case fx.Persist(ticket=ticket):
            return fx.Written(ticket)
        case fx.ProbeReady(ticket=ticket):
            return fx.TargetsReady(ticket)
        case fx.CheckAdmitting(ticket=ticket):
            return fx.TargetsAdmitting(ticket)
        case fx.Precheck(ticket=ticket):
            return fx.PrecheckPassed(ticket)
        case fx.AwaitLeases(ticket=ticket):
            return fx.LeasesReleased(ticket)
        case fx.CountRows(ticket=ticket):
            return fx.RowsResolved(ticket)
        case fx.ProbeIdentity(ticket=ticket, targets=targets):
            return fx.IdentityProved(ticket, tuple(tier.model or "" for _, tier in targets))
        case _:
            return None


def run(machine: Machine, event: fx.Event, answer: Answer = willing) -> tuple[Machine, list[fx.Effect]]:
    """Perform one event and all that follows from it; None as the answer to a question leaves it open."""
    performed: list[fx.Effect] = []
    queue: list[fx.Event] = [event]
    while queue:
        machine, effects = step(machine, queue.pop(0))
        for effect in effects:
            performed.append(effect)
            if isinstance(effect, fx.Proceed):
                queue.append(effect.event)
            else:
                fact = answer(machine, effect)
                if fact is not None:
                    queue.append(fact)
    return machine, performed


def but(*exceptions: tuple[type, Callable[[int], fx.Fact | None]]) -> Answer:
    """A willing world but for the named effects: each is answered by what the function makes of its ticket."""
    table = dict(exceptions)

    def answer(machine: Machine, effect: fx.Effect) -> fx.Fact | None:
        found = table.get(type(effect))
        return willing(machine, effect) if found is None else found(effect.ticket)  # type: ignore[union-attr]

    return answer


def started(given: rc.Record | None = None) -> Machine:
    """A machine at rest after its start."""
    machine, _ = run(Machine(), fx.Start(record() if given is None else given))
    return machine


def names(effects: Iterable[fx.Effect]) -> list[str]:
    """Effects by name, writes by kind; what only feeds the loop is left out."""
    return [
        effect.kind.value if isinstance(effect, fx.Persist) else type(effect).__name__
        for effect in effects
        if not isinstance(effect, fx.Proceed)
    ]


__all__ = [
    "AUTHORITY",
    "PREVIEW",
    "Answer",
    "State",
    "boot",
    "but",
    "call",
    "names",
    "record",
    "replacement",
    "revision",
    "run",
    "started",
    "update",
    "willing",
]
