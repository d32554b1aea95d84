"""``--out`` as a real process: killed before every system call of the write, failed at each, full disks, other users.

The sweep over system calls needs strace and is skipped without it; `test_out_faults` sweeps the same writes inside the
process and needs nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import MODULE, environment, refused, run_cli

_STEPS = "openat,flock,fchmod,write,fsync,rename,renameat,renameat2,unlink,unlinkat,close"
_ENV = {"SOURCE_DATE_EPOCH": "0", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
OLD = "the old table\n"


def _can_trace() -> bool:
    strace = shutil.which("strace")
    if strace is None:
        return False
    probe = subprocess.run([strace, "-f", "-o", "/dev/null", "true"], capture_output=True, timeout=30)
    return probe.returncode == 0


needs_strace = pytest.mark.skipif(not _can_trace(), reason="strace is not here or may not trace")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")


def _strace(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "routing.json").write_text(OLD)
    strace = ("strace", "-f", "-qq", "-o", str(folder / "trace"))
    return subprocess.run(
        [*strace, *options, *MODULE, "routing-table", "--out", "routing.json"],
        cwd=folder, env=environment(**_ENV), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_cli("routing-table", env=environment(**_ENV), cwd=tmp_path_factory.mktemp("new")).stdout


def _steps_of_the_write(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield (system call, its ordinal in the whole run) from the opening of the lock to the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    assert _strace(folder, "-e", f"trace={_STEPS}").returncode == 0  # makes the lock file, as later runs find it
    assert _strace(folder, "-e", f"trace={_STEPS}").returncode == 0
    seen: Counter[str] = Counter()
    is_writing = False
    for line in (folder / "trace").read_text("utf-8", "replace").splitlines():
        call = re.match(r"\d+ +([a-z0-9_]+)\(", line)
        if call is None:
            continue
        seen[call[1]] += 1
        is_writing = is_writing or "routing.json.lock" in line
        if is_writing:
            yield call[1], seen[call[1]]


@needs_strace
def test_killed_before_every_system_call(tmp_path: Path, new: str) -> None:
    folder = tmp_path / "run"
    steps = list(_steps_of_the_write(folder))
    assert {"openat", "flock", "write", "fsync", "close"} <= {name for name, _ in steps}
    found = []
    for name, nth in steps:
        done = _strace(folder, "-e", f"trace={name}", "-e", f"inject={name}:signal=SIGKILL:when={nth}")
        assert done.returncode == -signal.SIGKILL, (name, nth, done)
        assert done.stdout == ""
        content = (folder / "routing.json").read_text()
        assert content in (OLD, new), (name, nth)
        found.append(content == new)
    assert found == sorted(found), "new, then old again"
    assert {True, False} == set(found)
    done = run_cli("routing-table", "--out", "routing.json", cwd=folder, env=environment(**_ENV))
    assert done.returncode == 0, "leftovers of the killed ones are in the way"
    assert (folder / "routing.json").read_text() == new


@needs_strace
def test_every_system_call_of_the_write_fails_in_turn(tmp_path: Path, new: str) -> None:
    folder = tmp_path / "run"
    steps = [step for step in _steps_of_the_write(folder) if step[0] not in ("close", "unlink", "unlinkat")]
    codes = Counter[str]()
    for name, nth in steps:
        done = _strace(folder, "-e", f"trace={name}", "-e", f"inject={name}:error=EIO:when={nth}")
        content = (folder / "routing.json").read_text()
        if done.returncode == 0:
            assert content == new, (name, nth)
            codes["good"] += 1
            continue
        (line,) = refused(done, 1)
        code = line.split(": ")[1]
        codes[code] += 1
        assert content == (new if code == "out_uncertain" else OLD), (name, nth, line)
    assert codes["out_uncertain"] == 1, codes
    assert codes["out_failed"] >= 5, codes


@needs_root
def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("may not mount a tmpfs")
    try:
        file = disk / "routing.json"
        file.write_text(OLD)
        (disk / "ballast").write_bytes(b"x" * 52 * 1024)
        (line,) = refused(run_cli("routing-table", "--out", str(file)), 1)
        assert line == f"sndr routing-table: out_failed: {file}: No space left on device; nothing was changed"
        assert file.read_text() == OLD
        assert not [name for name in os.listdir(disk) if name.endswith(".tmp")]
        (disk / "ballast").unlink()
        assert run_cli("routing-table", "--out", str(file)).returncode == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1


def _be_bound_by_file_modes() -> None:
    """Between fork and exec: root gives up its right to ignore file modes; for other users there is nothing to do."""
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0) == 0


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    file = folder / "routing.json"
    file.write_text(OLD)
    folder.chmod(0o555)
    try:
        done = subprocess.run(
            [*MODULE, "routing-table", "--out", str(file)], env=environment(), capture_output=True, text=True,
            timeout=60, preexec_fn=_be_bound_by_file_modes,
        )  # fmt: skip
    finally:
        folder.chmod(0o755)
    (line,) = refused(done, 1)
    assert line.startswith(f"sndr routing-table: out_failed: {file}: ")
    assert line.endswith("Permission denied; nothing was changed")
    assert file.read_text() == OLD
    assert os.listdir(folder) == ["routing.json"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "none" / "routing.json"
    (line,) = refused(run_cli("routing-table", "--out", str(file)), 1)
    assert line == f"sndr routing-table: out_refused: {file}: there is no folder {file.parent}"
    assert os.listdir(tmp_path) == []


def test_two_emitters_at_once(tmp_path: Path) -> None:
    """Eight processes with tables of different sizes write one file; a reader never sees anything but a whole table."""
    file = tmp_path / "routing.json"
    whole = {
        run_cli("routing-table", "--vllm-pin", pin, env=environment(**_ENV)).stdout for pin in ("", "1", "2" * 200)
    }
    processes = [
        subprocess.Popen(
            [*MODULE, "routing-table", "--vllm-pin", pin, "--out", str(file)], env=environment(**_ENV),
            stderr=subprocess.DEVNULL,
        )
        for pin in ("", "1", "2" * 200, "") * 2
    ]  # fmt: skip
    try:
        while any(process.poll() is None for process in processes):
            if file.exists():
                assert file.read_text() in whole
        assert [process.wait(60) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait(60)
    assert file.read_text() in whole
    assert sorted(os.listdir(tmp_path)) == ["routing.json", "routing.json.lock"]


def test_an_emitter_waits_for_the_other(tmp_path: Path) -> None:
    from filelock import FileLock

    file = tmp_path / "routing.json"
    with FileLock(f"{file}.lock"):
        process = subprocess.Popen(
            [*MODULE, "routing-table", "--out", str(file)], env=environment(), stderr=subprocess.PIPE, text=True
        )
        _wait_until_it_has_the_lock_file_open(process, f"{file}.lock")
        assert not file.exists()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, file.exists()) == (0, True), said


def _wait_until_it_has_the_lock_file_open(process: subprocess.Popen[str], path: str) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    for _ in range(200_000):
        assert process.poll() is None, "it did not wait"
        try:
            fds = os.listdir(f"/proc/{process.pid}/fd")
            if any(os.readlink(f"/proc/{process.pid}/fd/{fd}") == path for fd in fds):
                return
        except OSError:
            continue
    raise AssertionError("it never looked at the lock")
