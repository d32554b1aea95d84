"""Owners and access lists, which only root or a certain file system could set up: through the system calls."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sndr.durable import PosixDisk
from sndr.errors import AuthorityError
from sndr.router.store import custody


class Foreign(PosixDisk):
    """Says that one file or directory belongs to somebody else."""

    __slots__ = ("inode", "uid")

    def __init__(self, of: Path) -> None:
        super().__init__()
        self.inode = of.stat().st_ino
        self.uid = os.geteuid() + 1

    def fstat(self, fd: int) -> os.stat_result:
        return self._owned(super().fstat(fd))

    def lstat(self, name: str, *, dir_fd: int | None = None) -> os.stat_result:
        return self._owned(super().lstat(name, dir_fd=dir_fd))

    def _owned(self, found: os.stat_result) -> os.stat_result:
        if found.st_ino != self.inode:
            return found
        members = list(found[:10])
        members[4] = self.uid
        return os.stat_result(members)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "routes.json").touch(mode=0o600)
    return tmp_path / "state"


@pytest.mark.req("R65")
def test_directories_of_others_are_refused(state: Path) -> None:
    for foreign, code, said in (
        (state, "route_custody_directory", f"belongs to uid [0-9]+, this process is uid {os.geteuid()}: both must be"),
        (state.parent, "route_custody_parent", "must belong to root"),
    ):
        with pytest.raises(AuthorityError, match=f"{foreign}: {said}") as refusal:
            custody.open_directory(Foreign(foreign), str(state))
        assert refusal.value.code == code


@pytest.mark.req("R65")
def test_a_file_of_somebody_else_is_refused(state: Path) -> None:
    dir_fd = custody.open_directory(PosixDisk(), str(state))
    with pytest.raises(AuthorityError, match="both must be the gateway's user") as refusal:
        custody.read_file(Foreign(state / "routes.json"), dir_fd, "routes.json", "routes.json", 10)
    os.close(dir_fd)
    assert refusal.value.code == "route_custody_owner"


@pytest.mark.req("R65")
def test_an_access_list_is_refused_and_one_that_cannot_be_looked_at_is_an_error(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: list[int] = [0]

    def getxattr(fd: int, name: str) -> Any:
        if answer[0]:
            raise OSError(answer[0], os.strerror(answer[0]))
        return b""

    monkeypatch.setattr(os, "getxattr", getxattr, raising=False)
    with pytest.raises(AuthorityError, match="POSIX ACL") as refusal:
        custody.open_directory(PosixDisk(), str(state))
    assert refusal.value.code == "route_custody_acl"
    answer[0] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        custody.open_directory(PosixDisk(), str(state))
    answer[0] = errno.ENODATA
    os.close(custody.open_directory(PosixDisk(), str(state)))
    monkeypatch.delattr(os, "getxattr")  # a platform without such lists
    os.close(custody.open_directory(PosixDisk(), str(state)))
