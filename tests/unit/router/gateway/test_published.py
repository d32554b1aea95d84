"""Snapshots: deeply immutable, one swap, and what becomes of those who wait for a slot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from sndr.router.core.admission import Admission, Lease, Refusal, TierRuntime
from sndr.router.core.projection import Projection, apply_aliases, apply_tiers, parse, sha256
from sndr.router.core.snapshot import Snapshot
from sndr.router.gateway.gate import DataGate
from sndr.router.gateway.published import Published, build_snapshot


def routes() -> Projection:
    return parse(
        {
            "aliases": {"x": {"tier": "a"}, "y": {"tier": "b"}, "z": {"tier": "a"}},
            "tiers": {
                "a": {
                    "base_url": "http://127.0.0.1:8001/v1", "model": "m1", "max_concurrency": 1,
                    "extra_body": {"stop": ["a", {"b": 1}]}, "params": {"fingerprint": "f"},
                },
                "b": {"base_url": "http://127.0.0.1:8002/v1", "model": "n1"},
            },
        },
        fill=True,
    )  # fmt: skip


class Plane:
    def __init__(self) -> None:
        self.admission = Admission()
        self.published = Published(self.build(routes(), 1, None))
        self.gate = DataGate(self.published, self.admission)

    def build(self, projection: Projection, revision: int, previous: Snapshot | None, *replaced: str) -> Snapshot:
        return build_snapshot(
            projection, self.admission, lambda *_: None, queue_limit=8, previous=previous, authority_id="authority",
            route_revision=revision, effective_route_sha256=sha256(projection), replaced=replaced,
        )  # fmt: skip

    def publish(self, projection: Projection, *replaced: str) -> Snapshot:
        before = self.published.snapshot
        after = self.build(projection, (before.route_revision or 0) + 1, before, *replaced)
        self.gate.publish(after)
        return after


class Waiter:
    def __init__(self, plane: Plane, alias: str) -> None:
        self.plane, self.alias = plane, alias
        self.said: list[object] = []

    def ask(self) -> Lease | Refusal | None:
        snapshot = self.plane.gate.snapshot
        target: Any = snapshot.projection.aliases[self.alias]
        return snapshot.runtimes[target.tier].acquire(self)

    def admitted(self, lease: Lease) -> None:
        self.said.append(lease.runtime.tier_id)

    def turned_away(self, refusal: Refusal) -> None:
        self.said.append(refusal)
        if refusal in (Refusal.MOVED, Refusal.RETIRED):
            got = self.ask()
            if isinstance(got, Lease):
                self.admitted(got)


def parts(value: object) -> Iterator[object]:
    """Everything reachable, except the runtimes: those count."""
    yield value
    if isinstance(value, TierRuntime):
        return
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from parts(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from parts(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from parts(item)


@pytest.mark.req("R10")
def test_nothing_of_a_snapshot_can_be_changed() -> None:
    snapshot = Plane().gate.snapshot
    kinds = set()
    for part in parts(snapshot):
        kinds.add(type(part))
        if dataclasses.is_dataclass(part):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, dataclasses.fields(part)[0].name, None)
    allowed = {str, int, bool, type(None), bytes, tuple, MappingProxyType, TierRuntime}
    assert {kind for kind in kinds if not dataclasses.is_dataclass(kind)} <= allowed
    spec = snapshot.projection.tiers["a"]
    for mapping in (snapshot.runtimes, snapshot.projection.tiers, spec.extra_body, spec.params):
        with pytest.raises(TypeError):
            mapping["a"] = None  # type: ignore[index]
    assert sha256(snapshot.projection) == snapshot.effective_route_sha256


@pytest.mark.req("R29", "R48")
def test_what_differs_or_is_named_gets_a_new_runtime_and_nothing_else_does() -> None:
    plane = Plane()
    first = plane.gate.snapshot.runtimes
    second = plane.publish(apply_aliases(routes(), {"x": {"tier": "b"}})).runtimes
    assert all(second[name] is first[name] for name in "ab")
    third = plane.publish(apply_tiers(routes(), {"a": {"extra_body": {"stop": ["a", {"b": True}]}}})).runtimes
    assert (third["a"] is second["a"], third["b"] is second["b"], third["a"].generation) == (False, True, 3)
    fourth = plane.publish(plane.gate.snapshot.projection, "b").runtimes  # the same definition, restarted in place
    assert (fourth["a"] is third["a"], fourth["b"].generation, third["b"].retired) == (True, 4, True)


@pytest.mark.req("R15", "R18")
def test_who_waits_follows_its_alias() -> None:
    plane = Plane()
    running = Waiter(plane, "x").ask()
    assert isinstance(running, Lease)
    waiters = [Waiter(plane, alias) for alias in ("x", "z", "x", "z")]
    for waiter in waiters:
        assert waiter.ask() is None
    plane.publish(apply_aliases(routes(), {"x": {"tier": "b"}}))
    assert [waiter.said for waiter in waiters] == [
        [Refusal.MOVED, "b"], [Refusal.MOVED], [Refusal.MOVED, "b"], [Refusal.MOVED],
    ]  # fmt: skip
    assert plane.gate.snapshot.runtimes["a"].queued == 2
    running.release()  # bound to a, whatever its alias is now; the slot goes to the first who waits for a
    assert [waiters[1].said[-1], waiters[3].said] == ["a", [Refusal.MOVED]]


@pytest.mark.invariant("INV-4", "INV-6")
@pytest.mark.req("R18", "R48")
def test_a_retired_runtime_finishes_what_it_has_and_gives_nothing() -> None:
    plane = Plane()
    old = plane.gate.snapshot.runtimes["a"]
    running = Waiter(plane, "x").ask()
    assert isinstance(running, Lease)
    waiting = Waiter(plane, "x")
    assert waiting.ask() is None
    plane.publish(apply_tiers(routes(), {"a": {"model": "m2"}}))
    assert waiting.said == [Refusal.RETIRED, "a"]
    assert old.acquire(Waiter(plane, "x")) is Refusal.RETIRED
    assert [one.leases for one in plane.gate.runtimes_of("a")] == [1, 1]
    running.release()
    assert [one.generation for one in plane.gate.runtimes_of("a")] == [2]
