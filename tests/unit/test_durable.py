"""The replace primitive: every answer, and what it leaves."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sndr import durable
from sndr.durable import Definite, Done, PosixDisk, Uncertain


class OneFault(PosixDisk):
    """The real disk, whose call of one name does something else once."""

    def __init__(self, call: str, instead: Callable[..., Any], *, skip: int = 0) -> None:
        super().__init__()
        self._call = call
        self._instead = instead
        self._skip = skip
        self.made: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_") or name == "made" or not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self.made.append(name)
            if name == self._call:
                self._skip -= 1
                if self._skip == -1:
                    return self._instead(value, *args, **kwargs)
            return value(*args, **kwargs)

        return call


def _raise(number: int) -> Callable[..., Any]:
    def instead(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return instead


def _after(number: int) -> Callable[..., Any]:
    def instead(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise OSError(number, os.strerror(number))

    return instead


@pytest.fixture
def where(tmp_path: Path) -> Any:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield tmp_path, fd
    os.close(fd)


@pytest.mark.req("R67")
@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_a_new_file_has_its_mode_whatever_the_umask(umask: int, where: tuple[Path, int]) -> None:
    directory, fd = where
    before = os.umask(umask)
    try:
        outcome = durable.replace_file(PosixDisk(), fd, "a", b"x")
    finally:
        os.umask(before)
    assert isinstance(outcome, Done)
    assert stat.S_IMODE((directory / "a").stat().st_mode) == 0o600
    assert outcome.file == durable.file_id((directory / "a").stat())


@pytest.mark.req("R68", "R69")
@pytest.mark.parametrize(
    ("call", "instead", "expected"),
    [
        ("lstat", _raise(errno.EIO), ("inspect", errno.EIO)),
        ("open", _raise(errno.EROFS), ("open", errno.EROFS)),
        ("open", _raise(errno.EMFILE), ("open", errno.EMFILE)),
        ("fchmod", _raise(errno.EPERM), ("chmod", errno.EPERM)),
        ("write", _raise(errno.ENOSPC), ("write", errno.ENOSPC)),
        ("write", _raise(errno.EDQUOT), ("write", errno.EDQUOT)),
        ("write", lambda real, fd, data: 0, ("write", errno.EIO)),
        ("fsync", _raise(errno.EIO), ("fsync", errno.EIO)),
        ("fstat", _raise(errno.EIO), ("size", errno.EIO)),
        ("close", _after(errno.EIO), ("close", errno.EIO)),
        ("rename", _raise(errno.EACCES), ("rename", errno.EACCES)),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_before_the_rename_changes_nothing(
    call: str, instead: Callable[..., Any], expected: tuple[str, int], exists: bool, where: tuple[Path, int]
) -> None:
    directory, fd = where
    if exists:
        (directory / "a").write_bytes(b"old")
    before = sorted(os.listdir(directory))
    disk = OneFault(call, instead)
    outcome = durable.replace_file(disk, fd, "a", b"new content")
    assert outcome == Definite(*expected)
    assert sorted(os.listdir(directory)) == before
    assert not exists or (directory / "a").read_bytes() == b"old"
    assert disk.made.count("fsync") <= 1


def test_a_file_of_another_size_or_mode_than_written_is_not_used(where: tuple[Path, int]) -> None:
    directory, fd = where

    def grow(real: Callable[..., Any], handle: int) -> None:
        os.write(handle, b"more")
        real(handle)

    assert durable.replace_file(OneFault("fsync", grow), fd, "a", b"x") == Definite("size", errno.EIO)

    def reopen(real: Callable[..., Any], handle: int) -> None:
        os.fchmod(handle, 0o644)
        real(handle)

    assert durable.replace_file(OneFault("fsync", reopen), fd, "a", b"x") == Definite("size", errno.EIO)
    assert os.listdir(directory) == []


@pytest.mark.req("R69")
def test_a_rename_that_failed_after_it_happened_is_uncertain(where: tuple[Path, int]) -> None:
    directory, fd = where
    (directory / "a").write_bytes(b"old")
    outcome = durable.replace_file(OneFault("rename", _after(errno.EIO)), fd, "a", b"new")
    assert isinstance(outcome, Uncertain)
    assert (outcome.step, outcome.errno) == ("rename", errno.EIO)
    assert outcome.file == durable.file_id((directory / "a").stat())
    assert (directory / "a").read_bytes() == b"new"


def test_a_rename_that_failed_is_uncertain_if_the_target_cannot_be_looked_at(where: tuple[Path, int]) -> None:
    _, fd = where
    disk = OneFault("lstat", _raise(errno.EIO), skip=1)
    disk.rename = _raise(errno.EIO).__get__(disk.rename)  # type: ignore[method-assign]
    assert isinstance(durable.replace_file(disk, fd, "a", b"new"), Uncertain)


@pytest.mark.req("R69")
def test_a_failed_directory_sync_is_uncertain_and_the_next_write_makes_a_new_file(where: tuple[Path, int]) -> None:
    directory, fd = where
    disk = OneFault("fsync", _raise(errno.EIO), skip=1)
    outcome = durable.replace_file(disk, fd, "a", b"new")
    assert isinstance(outcome, Uncertain)
    assert outcome.step == "fsync_dir"
    assert disk.made.count("fsync") == 2
    again = durable.replace_file(disk, fd, "a", b"new")
    assert isinstance(again, Done)
    assert again.file.inode != outcome.file.inode
    assert os.listdir(directory) == ["a"]


@pytest.mark.req("R68")
def test_short_writes_are_continued(where: tuple[Path, int]) -> None:
    directory, fd = where

    class Stutter(PosixDisk):
        def write(self, handle: int, data: memoryview) -> int:
            return super().write(handle, data[:3])

    assert isinstance(durable.replace_file(Stutter(), fd, "a", b"0123456789"), Done)
    assert (directory / "a").read_bytes() == b"0123456789"


def test_cleaning_up_never_hides_the_failure(where: tuple[Path, int]) -> None:
    directory, fd = where

    class Hopeless(PosixDisk):
        def fsync(self, handle: int) -> None:
            raise OSError(None, "no number")

        def close(self, handle: int) -> None:
            super().close(handle)
            raise OSError(errno.EIO, "close")

        def unlink(self, name: str, *, dir_fd: int) -> None:
            raise OSError(errno.EIO, "unlink")

    assert durable.replace_file(Hopeless(), fd, "a", b"x") == Definite("fsync", errno.EIO)
    (left,) = os.listdir(directory)
    assert durable.is_temp_name(left, "a")


def test_an_interrupted_call_is_cleaned_up(where: tuple[Path, int]) -> None:
    directory, fd = where

    def interrupt(real: Callable[..., Any], *args: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        durable.replace_file(OneFault("fsync", interrupt), fd, "a", b"x")
    assert os.listdir(directory) == []


@pytest.mark.req("R56")
def test_only_our_own_temporary_names_are_recognised() -> None:
    token = PosixDisk().token()
    name = durable.temp_name("routes.json", token)
    assert durable.is_temp_name(name, "routes.json")
    assert not durable.is_temp_name(name, "other.json")
    assert not durable.is_temp_name(name, "routes")
    for other in (
        "routes.json",
        ".routes.json.tmp",
        f".routes.json.{token[:-1]}.tmp",
        f".routes.json.{token[:-1]}G.tmp",
    ):
        assert not durable.is_temp_name(other, "routes.json")
    long = "é" * 127
    assert len(os.fsencode(durable.temp_name(long, token))) <= 255


# --- by path


def test_a_new_file_gets_exactly_the_bytes_and_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    durable.write_atomic(target, b"one", 0o640)
    assert target.read_bytes() == b"one"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["out.json"]


def test_without_a_mode_the_umask_decides(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        durable.write_atomic(tmp_path / "out.json", b"one")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o640


def test_a_replaced_file_is_a_new_inode_and_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_bytes(b"old")
    target.chmod(0o604)
    before = target.stat()
    durable.write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert target.stat().st_ino != before.st_ino
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


def test_a_plain_name_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    durable.write_atomic("out.json", b"x")
    assert (tmp_path / "out.json").read_bytes() == b"x"


def test_something_else_than_a_regular_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dir").mkdir()
    for name in ("pipe", "dir", "dir/"):
        with pytest.raises(durable.ReplaceFailed):
            durable.write_atomic(f"{tmp_path}/{name}", b"x")
    with pytest.raises(durable.ReplaceFailed) as failure:
        durable.write_atomic(tmp_path / "absent" / "x", b"x")
    assert failure.value.errno == errno.ENOENT
    assert sorted(os.listdir(tmp_path)) == ["dir", "pipe"]


def test_an_uncertain_outcome_is_an_error_of_its_own(tmp_path: Path) -> None:
    disk = OneFault("fsync", _raise(errno.EIO), skip=1)
    with pytest.raises(durable.ReplaceUncertain) as failure:
        durable.write_atomic(tmp_path / "a", b"x", disk=disk)
    assert failure.value.errno == errno.EIO
    assert failure.value.filename == str(tmp_path / "a")


def test_macos_is_asked_to_wait_for_the_drive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fcntl

    asked = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, request: asked.append(request))
    durable.write_atomic(tmp_path / "a", b"x", disk=PosixDisk())
    assert asked == [51, 51]


def test_a_platform_without_fcntl_can_still_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    durable.write_atomic(tmp_path / "a", b"x", disk=PosixDisk())
    assert (tmp_path / "a").read_bytes() == b"x"
