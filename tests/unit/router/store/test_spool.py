"""The nameless file of an upload: what is written is read, and its descriptor outlives every call that uses it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sndr.router.store.spool import TemporarySpool


def test_what_is_written_anywhere_is_read_and_nothing_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    spool = TemporarySpool()
    spool.write(b"world", 5)
    spool.write(b"hello", 0)
    assert spool.read(0, 100) == b"helloworld"
    assert spool.read(7, 2) == b"rl"
    assert spool.read(10, 1) == b""
    assert os.listdir(tmp_path) == []
    spool.close()


def test_short_writes_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:3], offset))
    spool = TemporarySpool()
    spool.write(b"in pieces of three", 0)
    assert spool.read(0, 100) == b"in pieces of three"
    spool.close()


def test_a_closed_file_is_used_no_more() -> None:
    spool = TemporarySpool()
    spool.close()
    spool.close()
    with pytest.raises(OSError, match="closed"):
        spool.write(b"x", 0)
    with pytest.raises(OSError, match="closed"):
        spool.read(0, 1)


def test_the_descriptor_stays_until_the_last_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = TemporarySpool()
    spool.write(b"mine", 0)
    entered, go_on = threading.Event(), threading.Event()
    real, used, seen = os.pread, [], []

    def slow(fd: int, size: int, offset: int) -> bytes:
        used.append(fd)
        entered.set()
        assert go_on.wait(10)
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", slow)
    thread = threading.Thread(target=lambda: seen.append(spool.read(0, 4)))
    thread.start()
    assert entered.wait(10)
    spool.close()
    os.fstat(used[0])  # not given back: a stranger's file could take its number
    go_on.set()
    thread.join(10)
    assert seen == [b"mine"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(used[0])


def test_no_other_folder_takes_the_place_of_one_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    with pytest.raises(OSError, match="missing"):
        TemporarySpool()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    spool = TemporarySpool()
    assert os.readlink(f"/proc/self/fd/{spool._enter()}").startswith(str(tmp_path))
    spool._leave()
    spool.close()
