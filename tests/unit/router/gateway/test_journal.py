"""The log's file: what stands in its place is found out without waiting for anybody."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from sndr.router.gateway.journal import Journal


def test_a_pipe_that_nobody_reads_is_an_error_at_once(tmp_path: Path) -> None:
    found: list[object] = []

    def attempt() -> None:
        try:
            found.append(Journal.to_file(str(tmp_path / "log")))
        except OSError as error:
            found.append(error.errno)

    os.mkfifo(tmp_path / "log")
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(20)
    assert found == [6]  # ENXIO


def test_a_pipe_in_the_place_of_the_file_leaves_the_file_in_use(tmp_path: Path) -> None:
    path = tmp_path / "log"
    journal = Journal.to_file(str(path))
    journal.line("one")
    path.rename(tmp_path / "old")
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device"):
        journal.reopen()
    journal.line("two")
    journal.close()
    assert [line.split('"event":')[1] for line in (tmp_path / "old").read_text().splitlines()] == ['"one"}', '"two"}']


def test_a_pipe_with_a_reader_takes_every_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    journal = Journal.to_file(str(tmp_path / "log"))
    for number in range(20_000):  # more than a pipe holds
        journal.line("request", id=number)
    data = b""
    journal.flush()
    while data.count(b"\n") < 20_000:
        data += os.read(reader, 1 << 20)
    journal.close()
    os.close(reader)
    assert not journal.dropped


def test_a_line_that_was_torn_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes half a line, then nothing, then everything again."""
    real, room = os.write, [70]

    def write(descriptor: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = real(descriptor, data[: room[0]])
        room[0] -= taken
        return taken

    path = tmp_path / "log"
    monkeypatch.setattr(os, "write", write)
    journal = Journal.to_file(str(path))
    for batch in range(4):
        if batch == 3:
            deadline = time.monotonic() + 20
            while journal.dropped < 5 and time.monotonic() < deadline:
                time.sleep(0.001)
            # Of the first batch's two lines one is there.
            assert journal.dropped == 5
            room[0] = 1_000_000
        journal.line("first", batch=batch)
        journal.line("second", batch=batch)
        journal.flush()
    journal.close()
    first, torn, *rest = path.read_text().splitlines()
    assert json.loads(first)["event"] == "first"
    assert torn.startswith('{"at":')
    assert [json.loads(line)["batch"] for line in rest] == [3, 3]
