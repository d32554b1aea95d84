"""Every durable write of a transaction against a disk that fails, through the real store and its thread."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sndr.durable import PosixDisk
from sndr.errors import AuthorityError
from sndr.router.store.authority import Authority, create, open_authority
from sndr.router.store.authority_writer import AuthorityWriter
from tests.support.routes_world import FakeClock, FakeLedger, RefusedError, RoutesWorld, routes

NEW = "http://127.0.0.1:8003/v1"
REPLACE: dict[str, Any] = {"op": "tier_replacement", "tiers": {"a": {"base_url": NEW, "model": "m2"}}}
MOVE: dict[str, Any] = {"op": "alias_update", "aliases": {"x": {"tier": "b"}}}


class SickDisk:
    """Fails the n-th call of one name once it is armed; everything else is the real thing."""

    def __init__(self) -> None:
        self._disk = PosixDisk()
        self._name, self._left, self._number = "", 0, 0

    def arm(self, name: str, nth: int, number: int) -> None:
        self._name, self._left, self._number = name, nth, number

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._disk, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if name == self._name and self._left:
                self._left -= 1
                if not self._left:
                    raise OSError(self._number, "injected")
            return call(*args, **kwargs)

        return counted


class DiskWorld(RoutesWorld):
    """As `RoutesWorld`, over a file in a directory and with a clock that takes its time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk = SickDisk()
        directory.chmod(0o700)
        self.path = str(directory / "routes.json")
        create(self.path, routes(), allow_volatile=True)
        self.loop = asyncio.new_event_loop()
        self.boot = routes()
        self.clock = FakeClock(self.loop)
        self.ledger = FakeLedger()
        self.serving = {tier.base_url: (tier.model or "",) for tier in self.boot.tiers.values()}
        self.serving[NEW] = ("m2",)
        self.log = []
        self.leases = []
        self._numbers = iter(range(1 << 30))
        self._ids = self._numbers  # type: ignore[assignment]  # only ever asked for the next one
        self.real: Authority | None = None
        self.open_again()

    def open_again(self) -> None:
        """What a new process does with the same file."""
        self.real = open_authority(self.path, self.boot, disk=self.disk, allow_volatile=True)  # type: ignore[arg-type]

        async def make() -> AuthorityWriter:
            assert self.real is not None
            return AuthorityWriter(self.real, self.boot)

        self.authority = self.run(make())  # type: ignore[assignment]  # the real one
        self.leases = []
        self._build(self.real.record)

    def crash(self) -> None:
        """The process is gone: what was in flight on its thread has ended, nothing else is done."""
        self.cancel_all()
        self.run(self.authority.close())  # type: ignore[attr-defined]  # the real one

    @property
    def on_disk(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(Path(self.path).read_bytes())
        return document

    def end(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any] | str:
        async def limited() -> dict[str, Any]:
            async with asyncio.timeout(20):
                return await work

        try:
            return self.run(limited())
        except RefusedError as refusal:
            return refusal.code


def finish(world: DiskWorld) -> None:
    """The legal way on, whatever happened, until nothing is open."""
    for _ in range(6):
        actions = world.routes.standing()["next"]
        if not actions:
            return
        action = next(one for one in ("reassert", "resume", "verify", "cancel", *actions) if one in actions)
        if action == "reassert":
            visible = world.on_disk["transaction"]
            named = None if visible is None else visible["id"]
            answer = world.end(world.change(op="recover", transaction_id=named, action="reassert"))
        else:
            answer = world.end(world.recover(action))
        assert isinstance(answer, dict), (action, answer)
    raise AssertionError("it never ended")


FAULTS = [
    ("write", 1, errno.ENOSPC, "authority_no_space"),
    ("write", 1, errno.EIO, "authority_write_failed"),
    ("fsync", 1, errno.EIO, "authority_write_failed"),
    ("rename", 1, errno.EIO, None),
    ("fsync", 2, errno.EIO, "authority_write_uncertain"),
]


@pytest.mark.scenario("S11", "S12")
@pytest.mark.req("R32", "R69", "R89", "R44", "R81")
@pytest.mark.invariant("INV-1", "INV-7", "INV-14", "INV-16")
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize(("name", "nth", "number", "code"), FAULTS)
@pytest.mark.parametrize("write", ["W1", "W2", "W3", "Wx", "alias"])
def test_a_write_that_fails_is_recovered_from_in_the_same_process_or_the_next(
    tmp_path: Path, write: str, name: str, nth: int, number: int, code: str | None, crashes: bool
) -> None:
    world = DiskWorld(tmp_path)
    try:
        change, before = REPLACE, {"W1": 0, "W2": 1, "W3": 2, "Wx": 0, "alias": 0}[write]
        if write == "alias":
            change = MOVE
        elif write == "Wx":
            prepared = world.end(world.change(**REPLACE, mode="prepare"))
            assert isinstance(prepared, dict)
            change = {"op": "cancel", "transaction_id": prepared["transaction_id"]}
        per_write = 2 if name == "fsync" else 1
        world.disk.arm(name, per_write * before + nth, number)
        answer = world.end(world.change(**change))
        assert isinstance(answer, str)
        assert answer in ((code,) if code else ("authority_write_failed", "authority_write_uncertain"))
        published = world.fence[0]
        assert published <= world.on_disk["current"]["route_revision"]
        hold = world.on_disk["transaction"]
        if hold is not None and hold["hold"]:
            assert world.held == {"a"}
        if crashes:
            world.crash()
            world.open_again()
            assert world.fence[0] >= published
        finish(world)
        assert world.held == set()
        transaction = world.on_disk["transaction"]
        assert transaction is None or transaction["state"] in ("completed", "cancelled")
        assert (world.on_disk["current"]["route_revision"], world.routes.view()["writable"]) == (world.fence[0], True)
        moved = world.end(world.change(op="alias_update", aliases={"z": {"tier": "b"}}))  # and it is usable again
        assert isinstance(moved, dict)
    finally:
        world.crash()
        world.loop.close()


@pytest.mark.scenario("S12")
@pytest.mark.req("R69", "R71")
def test_a_start_whose_first_write_fails_does_not_serve(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path)
    try:
        world.end(world.change(**REPLACE))
        world.crash()
        for name, nth in (("fsync", 1), ("fsync", 2), ("fsync", 3), ("write", 1)):
            world.disk.arm(name, nth, errno.EIO)
            with pytest.raises(AuthorityError):
                world.open_again()
        world.open_again()
        assert world.fence[0] == 2
    finally:
        world.crash()
        world.loop.close()
