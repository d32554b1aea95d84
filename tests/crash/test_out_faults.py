"""``--out`` under a fault at every call of the write: the file is the old or the new one, and the answer is true."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from sndr.cli.table import target as target_module
from sndr.cli.table.target import Target, resolve_target, write_target
from sndr.errors import InputError
from tests.support.fault_disk import FaultDisk, PowerCut, cut_after, cut_before, fails

OLD = b"old\n" * 1000
NEW = b"new, and longer than the old one\n" * 1000


def _place(folder: Path, *, exists: bool) -> Target:
    file = folder / "routing.json"
    if exists:
        file.write_bytes(OLD)
    else:
        file.unlink(missing_ok=True)
    return resolve_target(str(file), "/nowhere")


def _content(target: Target) -> bytes | None:
    return Path(target.path).read_bytes() if os.path.exists(target.path) else None


def _calls(folder: Path) -> list[str]:
    disk = FaultDisk()
    write_target(_place(folder, exists=True), NEW, disk=disk)
    return disk.calls


@pytest.mark.parametrize("exists", [True, False], ids=["replaced", "new"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_an_error_at_every_call_in_turn(tmp_path: Path, number: int, exists: bool) -> None:
    old = OLD if exists else None
    codes = set()
    for nth in range(1, len(_calls(tmp_path)) + 1):
        target = _place(tmp_path, exists=exists)
        disk = FaultDisk(nth, fails(number))
        try:
            write_target(target, NEW, disk=disk)
        except InputError as error:
            codes.add(error.code)
            assert error.message.startswith(f"{target.given}: {os.strerror(number)}")
            assert _content(target) == (NEW if error.code == "out_uncertain" else old), disk.calls
            assert ("nothing was changed" in error.message) == (error.code == "out_failed")
        else:
            assert _content(target) == NEW, disk.calls
    assert codes == {"out_failed", "out_uncertain"}


@pytest.mark.parametrize("exists", [True, False], ids=["replaced", "new"])
@pytest.mark.parametrize("cut", [cut_before, cut_after])
def test_the_process_dies_at_every_call_in_turn(tmp_path: Path, cut: object, exists: bool) -> None:
    old = OLD if exists else None
    seen = []
    for nth in range(1, len(_calls(tmp_path)) + 1):
        target = _place(tmp_path, exists=exists)
        with contextlib.suppress(PowerCut):
            write_target(target, NEW, disk=FaultDisk(nth, cut))  # type: ignore[arg-type]
        seen.append(_content(target))
    assert set(seen) == {old, NEW}
    assert seen.index(NEW) > 3, "the new content was visible before it was written and synced"


def test_no_temporary_file_stays_behind_an_error(tmp_path: Path) -> None:
    target = _place(tmp_path, exists=True)
    for nth in range(1, len(_calls(tmp_path)) + 1):
        with contextlib.suppress(InputError):
            write_target(target, NEW, disk=FaultDisk(nth, fails(errno.EIO)))
    leftovers = sorted(set(os.listdir(tmp_path)) - {"routing.json", "routing.json.lock"})
    assert len(leftovers) <= 1, leftovers  # the one whose own removal was the call that failed


@contextlib.contextmanager
def _file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_the_system_cuts_short_changes_nothing(tmp_path: Path) -> None:
    target = _place(tmp_path, exists=True)
    with _file_size_limit(len(NEW) - 7), pytest.raises(InputError, match="File too large; nothing was changed"):
        write_target(target, NEW)
    assert _content(target) == OLD


def test_the_lock_is_waited_for_and_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    monkeypatch.setattr(target_module, "LOCK_WAIT_S", 0.1)
    target = _place(tmp_path, exists=True)
    said = r"another writer holds .*routing.json.lock"
    with FileLock(target.path + ".lock"), pytest.raises(InputError, match=said) as caught:
        write_target(target, NEW)
    assert (caught.value.code, _content(target)) == ("out_locked", OLD)
    write_target(target, NEW)
    assert _content(target) == NEW


def test_a_lock_that_cannot_be_released_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    def release(self: object, force: bool = False) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    target = _place(tmp_path, exists=True)
    monkeypatch.setattr(filelock.FileLock, "release", release)
    write_target(target, NEW)
    assert _content(target) == NEW


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_a_lock_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    target = _place(tmp_path, exists=True)
    lock = Path(target.path + ".lock")
    {"fifo": lambda: os.mkfifo(lock), "folder": lock.mkdir, "link": lambda: lock.symlink_to("elsewhere")}[kind]()
    with pytest.raises(InputError, match=r"its lock .* is a"):
        write_target(target, NEW)
    assert _content(target) == OLD


def test_a_file_of_somebody_in_place_of_the_lock_is_left_alone(tmp_path: Path) -> None:
    target = _place(tmp_path, exists=True)
    lock = Path(target.path + ".lock")
    lock.write_text("notes")
    with pytest.raises(InputError, match="holds something"):
        write_target(target, NEW)
    assert lock.read_text() == "notes"
    assert _content(target) == OLD


def test_modes(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        target = _place(tmp_path, exists=False)
        write_target(target, NEW)
        assert os.stat(target.path).st_mode & 0o7777 == 0o644
        os.chmod(target.path, 0o640)
        write_target(target, OLD)
        assert os.stat(target.path).st_mode & 0o7777 == 0o640
    finally:
        os.umask(umask)


def test_a_target_that_turned_into_something_else_is_refused_under_the_lock(tmp_path: Path) -> None:
    target = _place(tmp_path, exists=False)
    os.mkfifo(target.path)
    with pytest.raises(InputError, match="a FIFO, not a regular file"):
        write_target(target, NEW)


def test_a_lock_that_cannot_be_made_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "was-a-folder"
    folder.mkdir()
    target = _place(folder, exists=False)
    folder.rmdir()
    folder.write_text("now a file")
    with pytest.raises(InputError, match=r"; nothing was changed") as caught:
        write_target(target, NEW)
    assert caught.value.code == "out_failed"
    assert folder.read_text() == "now a file"
