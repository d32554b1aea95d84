"""`sndr demo` as a user runs it: it ends well, in bounds, and leaves nothing behind, however it is ended."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sndr.contract import check_table
from sndr.router import demo as door
from sndr.router import demo_workload
from tests.support.cli import CONSOLE, environment, run_cli


def processes_of(directory: Path) -> list[int]:
    """Processes that were started with a file in the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.fsencode(directory) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def left_behind(directory: Path) -> tuple[list[str], list[int]]:
    return [entry.name for entry in directory.iterdir()], processes_of(directory)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """Where the demonstration makes its temporary directory."""
    room = tmp_path / "room"
    room.mkdir(mode=0o700)
    yield room
    for pid in processes_of(room):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def running(room: Path) -> Iterator[subprocess.Popen[str]]:
    """A demonstration whose gateway serves."""
    process = subprocess.Popen(
        [*CONSOLE, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(TMPDIR=str(room))
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        while not process.stdout.readline().strip().endswith("fast -> small"):
            assert process.poll() is None
        assert processes_of(room)
        yield process
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
        process.stderr.close()


def test_no_byte_is_lost_and_nothing_is_left(room: Path) -> None:
    done = run_cli("demo", entry=CONSOLE, env=environment(TMPDIR=str(room)))
    assert done.returncode == 0, done
    assert done.stderr == ""
    for sign in (
        "1. An alias moves",
        "the server says m2-draft: held",
        "has the content of before; m1 proved itself",
        "is published and the server says m2\n",
        ", 0 cut\n",
        "revision 5 as before, big still held",
        "recover   resumed: revision 6, big serves m1",
    ):
        assert sign in done.stdout, done.stdout
    [(got, sent)] = re.findall(r"No byte was lost: the clients got (\d+) of the (\d+) tokens sent\.", done.stdout)
    assert got == sent
    assert int(got) > 500
    assert "\x1b" not in done.stdout
    assert set(re.findall(r"(?<![\d.])\d+(?:\.\d+){3}", done.stdout)) == {"127.0.0.1"}
    assert left_behind(room) == ([], [])


def test_colour_is_for_terminals(room: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*CONSOLE, "demo"], stdout=theirs, stderr=subprocess.PIPE, env=environment(TMPDIR=str(room), TERM="xterm")
        ) as process:
            seen = b""
            while b"fast -> small" not in seen:
                seen += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == -signal.SIGINT
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"\x1b[36mgateway  \x1b[0m" in seen
    assert left_behind(room) == ([], [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_without_a_trace(running: subprocess.Popen[str], room: Path, number: signal.Signals) -> None:
    running.send_signal(number)
    _, said = running.communicate(timeout=30)
    assert running.returncode == -signal.SIGINT
    assert said == ""
    assert left_behind(room) == ([], [])


def test_a_reader_that_leaves_ends_it_without_a_trace(room: Path) -> None:
    ours, theirs = os.pipe()
    with subprocess.Popen(
        [*CONSOLE, "demo"], stdout=theirs, stderr=subprocess.PIPE, env=environment(TMPDIR=str(room))
    ) as process:
        os.close(theirs)
        assert os.read(ours, 1)
        os.close(ours)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (-signal.SIGPIPE, b"")
    assert left_behind(room) == ([], [])


def test_the_gateway_does_not_survive_even_a_kill(running: subprocess.Popen[str], room: Path) -> None:
    running.kill()
    running.wait(30)
    deadline = time.monotonic() + 30
    while processes_of(room):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "plan",
    [{"truncate_after": 20}, {"tokens": 59}],
)
def test_a_stream_that_is_not_whole_fails_it(monkeypatch: pytest.MonkeyPatch, plan: dict[str, int]) -> None:
    chat = door._chat

    def broken(alias: str) -> dict[str, object]:
        body = chat(alias)
        return {**body, "synthetic": {**body["synthetic"], **plan}}

    monkeypatch.setattr(door, "_chat", broken)
    said: list[str] = []
    with pytest.raises(door.DemoError):
        door.run(lambda *line: said.append(line[1]))
    assert not any("each came once" in line for line in said)


def test_the_workload_demonstration_sends_tool_calls_where_they_are_fast(room: Path) -> None:
    done = run_cli("demo", "--workload", entry=CONSOLE, env=environment(TMPDIR=str(room)))
    assert done.returncode == 0, done.stderr
    assert "tool calls found the family busy and went to k4; chat stayed on k1" in done.stdout
    assert "rule short-structured-under-concurrency" in done.stdout
    assert "single-stream-structured-or-tool-short" in done.stdout
    assert left_behind(room) == ([], [])


def test_the_table_of_the_demonstration_is_valid() -> None:
    assert check_table(demo_workload.example_table()) == []
