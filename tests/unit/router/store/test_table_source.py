"""Where a table comes from; how the one in force is shown and compared with its file."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sndr.contract import content_sha256
from sndr.router.store import table_source
from sndr.router.store.table_source import SourceError, TableView, load, read_file, run_command, sha256_on_disk
from sndr.router.wire.routing_table import no_table
from tests.support.cli import environment
from tests.support.contract_vectors import REFERENCE
from tests.support.live import until

GIVEN: dict[str, Any] = {"cwd": "/", "env": {}, "timeout_s": 10, "max_bytes": 1 << 20, "on_error": "natural"}
DATA = json.dumps(REFERENCE).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "table.json").write_bytes(DATA)
    return tmp_path / "table.json"


def test_a_table_comes_from_its_file_or_its_command_or_nowhere(path: Path) -> None:
    from_file = load(path=str(path), command=None, **GIVEN)
    printed = load(path=None, command=["/bin/cat", str(path)], **GIVEN)
    assert (from_file.source, printed.source) == (str(path), "/bin/cat")
    assert from_file.sha256 == printed.sha256 == content_sha256(REFERENCE)
    nowhere = load(path=None, command=None, **GIVEN)
    assert (nowhere.source, nowhere.state, nowhere.presets) == (None, "degraded", {})
    failed = load(path=None, command=["/bin/sh", "-c", "exit 3"], **GIVEN)
    assert (failed.state, failed.sha256) == ("degraded", None)
    assert "exit code 3" in str(failed.table.degraded)


def test_a_disk_that_fails_gives_no_table(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, size: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "read", fail)
    with pytest.raises(SourceError, match="Input/output error"):
        read_file(str(path), 1 << 20)


def test_files_that_are_none_are_said_to_be(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "big").write_bytes(b" " * 101)
    for name, said in (("gone", "No such file"), ("fifo", "not a regular file"), (".", "not a regular file")):
        with pytest.raises(SourceError, match=said):
            read_file(str(tmp_path / name), 100)
    with pytest.raises(SourceError, match="larger than 100 bytes"):
        read_file(str(tmp_path / "big"), 100)
    assert read_file(str(tmp_path / "big"), 101) == b" " * 101
    gone = load(path=str(tmp_path / "gone"), command=None, **GIVEN)
    assert "No such file" in str(gone.table.degraded)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "exit code -9"),
        ("sleep 60", "longer than 2 s"),
        ("echo x; exec >&-; sleep 60", "longer than 2 s"),
        ("sleep 60 & echo x", "longer than 2 s"),
        ("yes", "more than 1000 bytes"),
    ],
)
def test_commands_that_fail_are_gone_afterwards(tmp_path: Path, script: str, said: str) -> None:
    started = time.monotonic()
    command = ["/bin/sh", "-c", f"echo $$ > pid; {script}"]
    with pytest.raises(SourceError, match=said):
        run_command(command, cwd=str(tmp_path), env={"PATH": os.environ["PATH"]}, timeout_s=2, max_bytes=1000)
    assert time.monotonic() - started < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_command_prints_its_table_in_its_folder_with_its_environment(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(DATA)
    data = run_command(["/bin/cat", "t.json"], cwd=str(tmp_path), env={}, timeout_s=10, max_bytes=1 << 20)
    assert data == DATA
    seen = run_command(["/usr/bin/env"], cwd="/", env={"A": "b"}, timeout_s=10, max_bytes=1000)
    assert seen == b"A=b\n"
    for command in (["/nowhere/x"], ["a\0b"]):
        with pytest.raises(SourceError, match="cannot be started"):
            run_command(command, cwd="/", env={}, timeout_s=1, max_bytes=10)


COMMAND = """
from sndr.router.store.table_source import run_command
run_command(["/bin/sh", "-c", "echo $$ > started; exec sleep 60"], cwd={cwd!r}, env={{}}, timeout_s=60, max_bytes=10)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_whoever_is_ended_while_the_command_runs_ends_it_too(tmp_path: Path, number: signal.Signals) -> None:
    """It is in a session of its own, and would go on for as long as it likes."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(cwd=str(tmp_path))], env=environment(), stderr=subprocess.DEVNULL
    )
    try:
        started = tmp_path / "started"
        until(lambda: started.exists() and started.read_text().strip())
        process.send_signal(number)
        assert process.wait(30) == -number
        until(lambda: not Path(f"/proc/{int(started.read_text())}/stat").exists())
    finally:
        process.kill()
        process.wait()


def test_what_the_file_holds_now_is_hashed_and_never_applied(path: Path) -> None:
    assert sha256_on_disk(str(path), 1 << 20) == content_sha256(REFERENCE)
    assert sha256_on_disk(str(path), 10) is None
    path.unlink()
    assert sha256_on_disk(str(path), 1 << 20) is None


def test_no_table_is_shown_as_nothing() -> None:
    view = TableView(no_table(), None, 10)
    assert (view.info(), asyncio.run(view.view())) == (None, None)


def test_a_commands_table_is_compared_with_no_file(path: Path) -> None:
    view = TableView(load(path=None, command=["/bin/cat", str(path)], **GIVEN), None, 1 << 20)
    shown = asyncio.run(view.view())
    assert shown is not None
    assert (shown["source"], shown["state"], shown["on_disk"]) == ("/bin/cat", "in_force", None)
    assert shown["presets"] == len(REFERENCE["presets"])


def test_the_file_is_read_again_only_when_it_looks_different(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = TableView(load(path=str(path), command=None, **GIVEN), str(path), 1 << 20)
    reads: list[str] = []

    def counted(path: str, max_bytes: int) -> bytes:
        reads.append(path)
        return read_file(path, max_bytes)

    monkeypatch.setattr(table_source, "read_file", counted)

    def on_disk() -> Any:
        shown = asyncio.run(view.view())
        assert shown is not None
        assert view.info() == (content_sha256(REFERENCE), "in_force")  # what is in force never changes
        return shown["on_disk"]

    same = {"content_sha256": content_sha256(REFERENCE), "changed": False}
    assert [on_disk(), on_disk(), len(reads)] == [same, same, 1]
    path.with_name("next").write_bytes(json.dumps({**REFERENCE, "vllm_pin": "other"}).encode())
    path.with_name("next").replace(path)
    assert (on_disk()["changed"], len(reads)) == (True, 2)
    path.unlink()
    assert on_disk() == {"content_sha256": None, "changed": True}


@pytest.fixture
def ended_by(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals by which this process would have ended itself."""
    numbers: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: numbers.append(number) if pid == os.getpid() else None)
    return numbers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("before", [True, False])
def test_an_end_waits_for_the_command_and_then_comes(before: bool, number: int, ended_by: list[int]) -> None:
    """Once the command runs, an end interrupts the wait for it; one that came earlier does so as soon as it runs."""
    assert signal.getsignal(number) is signal.SIG_DFL
    cleaned: list[bool] = []

    def waiting() -> None:
        with table_source._Endings() as endings:
            try:
                if before:
                    signal.raise_signal(number)
                endings.interrupt()
                signal.raise_signal(number)
            finally:
                signal.raise_signal(number)  # cleaning up is not interrupted
                cleaned.append(not ended_by)

    with pytest.raises(KeyboardInterrupt):
        waiting()
    assert (cleaned, ended_by) == ([True], [number])
    assert signal.getsignal(number) is signal.SIG_DFL


def test_handlers_of_others_and_other_threads_stay_as_they_are(ended_by: list[int]) -> None:
    seen: list[int] = []

    def catch(number: int, _frame: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGHUP, catch)
    try:
        with table_source._Endings() as endings:
            endings.interrupt()
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is catch
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def aside() -> None:
        with table_source._Endings():
            seen.append(int(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL))

    thread = threading.Thread(target=aside)
    thread.start()
    thread.join()
    assert (seen, ended_by) == ([signal.SIGHUP, 1], [])
