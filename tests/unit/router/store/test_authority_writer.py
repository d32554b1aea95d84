"""What the authority's thread tells the machine, for every way in which a write can end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sndr.router.core import effects as fx
from sndr.router.store.authority import create, open_authority
from sndr.router.store.authority_writer import AuthorityWriter
from tests.support.fault_disk import FaultDisk
from tests.support.routes_world import routes


def write(
    path: Path, disk: Any, *, before: Callable[[], None] = lambda: None, kind: fx.WriteKind = fx.WriteKind.HOLD
) -> tuple[fx.Fact, AuthorityWriter]:
    async def main() -> tuple[fx.Fact, AuthorityWriter]:
        authority = open_authority(str(path), routes(), disk=disk, allow_volatile=True)
        disk.calls.clear()
        writer = AuthorityWriter(authority, routes())
        before()
        answer: asyncio.Future[fx.Fact] = asyncio.get_running_loop().create_future()
        record = replace(authority.record, write_seq=authority.record.write_seq + 1)
        writer.persist(fx.Persist(7, kind, record), answer.set_result)
        try:
            return await asyncio.wait_for(answer, 20), writer
        finally:
            await writer.close()

    return asyncio.run(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fresh authority."""
    tmp_path.chmod(0o700)
    create(str(tmp_path / "routes.json"), routes(), allow_volatile=True)
    return tmp_path / "routes.json"


def calls_of_a_write(path: Path) -> list[str]:
    disk = FaultDisk()
    fact, writer = write(path, disk)
    assert fact == fx.Written(7, write_seq=3)
    assert (writer.condition, writer.last_write) == ("writable", "done")
    return list(disk.calls)


def failing(number: int) -> Callable[[str, Callable[[], Any]], Any]:
    def fail(_name: str, _call: Callable[[], Any]) -> Any:
        raise OSError(number, "injected")

    return fail


class At(FaultDisk):
    """Counts only once it is told to."""

    def __init__(self, nth: int, number: int) -> None:
        super().__init__(0, failing(number))
        self.armed = nth

    def arm(self) -> None:
        self._nth = self.armed


@pytest.mark.req("R69", "R32")
def test_each_outcome_is_a_fact_of_its_own(path: Path) -> None:
    calls = calls_of_a_write(path)
    last = len(calls) - calls[::-1].index("fsync")  # the directory's
    first = calls.index("fsync") + 1  # the file's
    for nth, number, expected in (
        (first, errno.EIO, fx.WriteFailed(7)),
        (first, errno.ENOSPC, fx.WriteFailed(7, fx.Code.AUTHORITY_NO_SPACE)),
        (last, errno.EIO, fx.WriteUncertain),
    ):
        disk = At(nth, number)
        fact, writer = write(path, disk, before=disk.arm)
        if expected is fx.WriteUncertain:
            assert isinstance(fact, fx.WriteUncertain)
            assert fact.write_seq == writer.record.write_seq + 1
            assert writer.condition == "authority_write_uncertain"
        else:
            assert fact == expected
            assert writer.condition == "writable"


@pytest.mark.req("R70", "R63", "R65")
def test_a_file_that_somebody_else_touched_is_refused(path: Path) -> None:
    def edit() -> None:
        path.write_bytes(path.read_bytes() + b" ")

    def steal() -> None:
        (path.parent / "routes.json.lock").unlink()

    fact, _ = write(path, FaultDisk(), before=edit)
    assert fact == fx.WriteRefused(7, fx.Code.AUTHORITY_CHANGED_EXTERNALLY)
    path.write_bytes(path.read_bytes()[:-1])
    fact, _ = write(path, FaultDisk(), before=steal)
    assert fact == fx.WriteRefused(7, fx.Code.AUTHORITY_LOCK_LOST)


def test_a_store_that_breaks_says_that_it_does_not_know(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        monkeypatch.setattr("sndr.router.store.authority.Authority.write", lambda *_, **__: 1 / 0)

    fact, _ = write(path, FaultDisk(), before=broken)
    assert isinstance(fact, fx.WriteUncertain)


@pytest.mark.req("R69", "R32")
def test_after_an_unknown_outcome_an_ordinary_write_is_refused_and_still_not_known(path: Path) -> None:
    calls = calls_of_a_write(path)
    disk = At(len(calls) - calls[::-1].index("fsync"), errno.EIO)  # the directory's

    async def main() -> list[fx.Fact]:
        authority = open_authority(str(path), routes(), disk=disk, allow_volatile=True)  # type: ignore[arg-type]
        disk.calls.clear()
        disk.arm()
        writer = AuthorityWriter(authority, routes())
        facts: list[fx.Fact] = []
        for ticket, kind in ((1, fx.WriteKind.HOLD), (2, fx.WriteKind.HOLD), (3, fx.WriteKind.REASSERT)):
            answer: asyncio.Future[fx.Fact] = asyncio.get_running_loop().create_future()
            writer.persist(fx.Persist(ticket, kind, authority.record), answer.set_result)
            facts.append(await asyncio.wait_for(answer, 20))
        await writer.close()
        return facts

    first, second, third = asyncio.run(main())
    assert isinstance(first, fx.WriteUncertain)
    assert second == fx.WriteUncertain(2, write_seq=first.write_seq)
    assert third == fx.Written(3, write_seq=first.write_seq + 1)
