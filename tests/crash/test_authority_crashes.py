"""Every disk call of every durable operation of the authority, stopped or failed, and every image of a power cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from sndr.durable import PosixDisk
from sndr.errors import AuthorityError
from sndr.router.store import authority as store
from tests.support import broken_writers, crashes, records
from tests.support.disks import FaultKind

OPERATIONS = tuple(operation.name for operation in crashes.operations())


def test_every_durable_operation_is_swept() -> None:
    expected = {"W0", "W1", "W2", "W3", "cancel", "rollback", "alias", "init", "rebase", "rebase_keep"}
    assert set(OPERATIONS) == expected


@pytest.mark.req("R12", "R39", "R68", "R69", "R71", "R78", "R89")
@pytest.mark.invariant("INV-1", "INV-2", "INV-3", "INV-7", "INV-12", "INV-14", "INV-16")
@pytest.mark.scenario("S10", "S11", "S12")
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_crash_and_no_failed_call_loses_or_tears_anything(name: str, tmp_path: Path) -> None:
    report = crashes.sweep_all(str(tmp_path), only=(name,))
    print(f"{name}: {report.points} crash points, {report.images} power-cut images, {report.opened} opened again")
    assert report.violations == []
    assert report.points > 60
    assert report.images > 2_000


@pytest.mark.parametrize("name", sorted(broken_writers.BROKEN))
def test_a_broken_writer_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "replace_file", broken_writers.BROKEN[name])
    kinds = (FaultKind.KILL, FaultKind.EIO, FaultKind.SHORT)
    report = crashes.sweep_all(str(tmp_path), only=("W2",), kinds=kinds, stop_at_first=True)
    print(f"{name}: caught after {report.points} points: {report.violations[:1]}")
    assert report.violations


def test_a_start_that_does_not_write_again_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_first_write", lambda authority, record, boot: None)
    monkeypatch.setattr(store._Place, "check_directory_sync", lambda self: None)
    report = crashes.sweep_all(str(tmp_path), only=("W2",), kinds=(FaultKind.KILL,), stop_at_first=True)
    assert any("after a restart" in violation for violation in report.violations)


@pytest.mark.req("R63")
def test_a_deleted_lock_is_caught_before_two_holders_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _authority(tmp_path)
    one = store.open_authority(path, records.boot(), allow_volatile=True)
    Path(f"{path}.lock").unlink()
    answer = one.write(records.alias_update(one.record), records.boot())
    assert isinstance(answer, store.Refused)
    assert answer.code == "authority_lock_lost"
    one.close()
    # The control: a router that does not look has company.
    monkeypatch.setattr("sndr.router.store.lock.Lock.is_intact", lambda self: True)
    two = store.open_authority(path, records.boot(), allow_volatile=True)
    Path(f"{path}.lock").unlink()
    three = store.open_authority(path, records.boot(), allow_volatile=True)
    assert isinstance(three.write(records.alias_update(three.record), records.boot()), store.Written)
    assert two.check() is store.Condition.CHANGED
    two.close()
    three.close()


@pytest.mark.req("R68")
def test_temporary_names_cannot_be_predicted_or_followed(tmp_path: Path) -> None:
    path = _authority(tmp_path)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")

    class Fixed(PosixDisk):
        """The control: a writer with one name for every temporary file."""

        __slots__ = ()

        def token(self) -> str:
            return "0" * 32

    tokens = {PosixDisk().token() for _ in range(64)}
    assert len(tokens) == 64
    authority = store.open_authority(path, records.boot(), disk=Fixed(), allow_volatile=True)
    planted = Path(path).parent / f".routes.json.{'0' * 32}.tmp"
    planted.symlink_to(victim)
    answer = authority.write(records.alias_update(authority.record), records.boot())
    assert isinstance(answer, store.NotWritten)  # caught: the predictable name is taken, and never followed
    assert victim.read_bytes() == b"precious"
    authority.close()
    again = store.open_authority(path, records.boot(), allow_volatile=True)
    assert not planted.is_symlink()
    assert isinstance(again.write(records.alias_update(again.record), records.boot()), store.Written)
    again.close()


def _authority(tmp_path: Path) -> str:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    path = str(directory / "routes.json")
    store.create(path, records.boot(), allow_volatile=True)
    return path


def test_a_second_start_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    path = _authority(tmp_path)
    one = store.open_authority(path, records.boot(), allow_volatile=True)
    with pytest.raises(AuthorityError) as refusal:
        store.open_authority(path, records.boot(), allow_volatile=True)
    assert refusal.value.code == "route_lock_held"
    one.close()
