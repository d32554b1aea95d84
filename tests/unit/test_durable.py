"""The replace primitive on a real file system."""

import os
import stat
from pathlib import Path

import pytest

from sndr import durable


def test_a_new_file_gets_exactly_the_bytes_and_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    durable.write_atomic(target, b"one", 0o640)
    assert target.read_bytes() == b"one"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_replaced_file_is_a_new_inode_and_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_bytes(b"old")
    target.chmod(0o604)
    before = target.stat()
    durable.write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert target.stat().st_ino != before.st_ino
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


def test_something_else_than_a_regular_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(durable.ReplaceFailed):
        durable.write_atomic(tmp_path / "pipe", b"x")
    assert os.listdir(tmp_path) == ["pipe"]
