"""Killing real processes, failing their system calls from outside, and cutting the power of their file system."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sndr.errors import AuthorityError
from sndr.router.store import authority as store
from sndr.router.wire.record import encode_record
from tests.support import records

ROOT = Path(__file__).parents[2]
WAIT_S = 60
SYSTEM_CALLS = (
    "openat",
    "fchmod",
    "write",
    "fsync",
    "close",
    "rename",
    "renameat",
    "renameat2",
    "newfstatat",
    "fstat",
    "read",
)
ERRORS = ("EIO", "ENOSPC", "EINTR", "EACCES", "EDQUOT")
OPERATIONS = ("W0", "W1", "W2", "W3", "cancel", "rollback", "alias", "init")


@dataclass
class Tally:
    """Runs made, and what was wrong; `starts` counts processes."""

    starts: int = 0
    runs: int = 0
    told: int = 0
    violations: list[str] = field(default_factory=list)

    def check(self, label: str, path: Path, said: list[str], *, before: bool) -> None:
        """Open what is left and compare it with what the victim was told."""
        self.runs += 1
        told = [line.split()[1:] for line in said if line.startswith("told ")]
        self.told += len(told)
        if not path.exists():
            if told or before:
                self.violations.append(f"{label}: the file is gone")
            return
        try:
            opened = store.open_authority(str(path), records.boot(), allow_volatile=True)
        except AuthorityError as error:
            self.violations.append(f"{label}: a start refuses what is left: {error.code}: {error.message}")
            return
        record = opened.record
        opened.close()
        if told:
            revision, write_seq, sha = int(told[-1][0]), int(told[-1][1]), told[-1][2]
            current = record.current
            if current.route_revision < revision or record.write_seq <= write_seq:
                self.violations.append(f"{label}: told revision {revision}, found {current.route_revision}")
            if current.route_revision == revision and current.effective_route_sha256 != sha:
                self.violations.append(f"{label}: revision {revision} means other routes")
        if any(line.startswith("refused NotWritten") for line in said) and record.write_seq != 3:
            self.violations.append(f"{label}: told that nothing changed, but write {record.write_seq - 1} is there")


def interpreter() -> str:
    """The real interpreter: a shim would be traced instead of it."""
    return os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else sys.executable


def start(tally: Tally, path: Path, operation: str, *more: str) -> subprocess.Popen[str]:
    tally.starts += 1
    return subprocess.Popen(
        [interpreter(), "-m", "tests.support.authority_child", str(path), operation, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def finish(victim: subprocess.Popen[str], text: str = "") -> list[str]:
    try:
        out, _ = victim.communicate(text, timeout=WAIT_S)
    finally:
        victim.kill()
        victim.wait()
    return out.splitlines()


@contextlib.contextmanager
def state(root: Path, operation: str) -> Iterator[Path]:
    """A private directory for one run, with the file that the operation needs to find."""
    directory = Path(tempfile.mkdtemp(dir=root))
    path = directory / "routes.json"
    if operation in ("W0", "flips"):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, encode_record(records.first()))
        os.fsync(fd)
        os.close(fd)
    try:
        yield path
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def kill_at(tally: Tally, root: Path, operation: str, call: int, *more: str) -> bool:
    """SIGKILL before this disk call; False when the operation has no such call and ended by itself."""
    with state(root, operation) as path:
        victim = start(tally, path, operation, "--kill-at", str(call), *more)
        said = finish(victim)
        tally.check(f"{operation} killed at call {call}", path, said, before=operation != "init")
        return victim.returncode == -signal.SIGKILL


# --- failed system calls, from outside


def strace_missing() -> str | None:
    """Why system calls cannot be failed here, or None."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(
        ["strace", "-o", "/dev/null", "-e", "trace=none", "-e", "inject=fsync:error=EIO:when=1", "true"],
        capture_output=True,
        check=False,
        timeout=WAIT_S,
    )
    return None if probe.returncode == 0 else "strace may not trace or inject here"


def inject(tally: Tally, root: Path, operation: str, call: str, action: str, when: int) -> bool:
    """Fail or kill the `when`th system call of this name; False when it was never reached."""
    with state(root, operation) as path:
        victim = start(tally, path, operation, "--wait")
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        log = path.parent.parent / f"{path.parent.name}.strace"
        tracer = subprocess.Popen(
            [
                "strace",
                "-f",
                "-p",
                str(victim.pid),
                "-o",
                str(log),
                "-e",
                f"trace={call}",
                "-e",
                f"inject={call}:{action}:when={when}",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + WAIT_S
            while "TracerPid:\t0\n" in Path(f"/proc/{victim.pid}/status").read_text():
                if victim.poll() is not None:
                    break  # a call in which it waits to be told was the one
                if time.monotonic() > deadline or (tracer.poll() is not None and victim.poll() is None):
                    tracer.kill()
                    raise RuntimeError(f"{operation} {call} {action} {when}: no strace: {tracer.communicate()[1]}")
                time.sleep(0.002)
            said = finish(victim, "\n")
        finally:
            tracer.terminate()
            tracer.communicate(timeout=WAIT_S)
        reached = "INJECTED" in log.read_text() or victim.returncode == -signal.SIGKILL
        log.unlink()
        tally.check(f"{operation} {call} {action} at {when}", path, said, before=operation != "init")
        return reached


# --- power cuts of a real file system


def power_missing(kind: str) -> str | None:
    """Why no power cut can be made here, or None."""
    if os.geteuid() != 0:
        return "mounting needs root"
    for tool in (f"mkfs.{kind}", "xfs_io", "losetup", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices"
    return None


@contextlib.contextmanager
def volume(root: Path, kind: str) -> Iterator[tuple[Path, Path]]:
    """An image file with a fresh file system, mounted: (image, mount point)."""
    image, point = root / f"{kind}.img", root / f"{kind}.mnt"
    with open(image, "wb") as stream:
        stream.truncate(320 << 20)
    quiet = ["-q"] if kind == "ext4" else ["-q", "-f"]
    subprocess.run([f"mkfs.{kind}", *quiet, str(image)], check=True, capture_output=True, timeout=WAIT_S)
    point.mkdir(exist_ok=True)
    _mount(image, point)
    try:
        yield image, point
    finally:
        subprocess.run(["umount", str(point)], check=False, capture_output=True, timeout=WAIT_S)
        image.unlink()


def _mount(image: Path, point: Path) -> None:
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True, capture_output=True, timeout=WAIT_S)


def cut_power(tally: Tally, image: Path, point: Path, rng: random.Random, broken: str | None = None) -> None:
    """Start a victim that changes routes as fast as it can, and cut the power at a random moment."""
    directory = point / "state"
    if not directory.exists():
        directory.mkdir(mode=0o700)
        store.create(str(directory / "routes.json"), records.boot(), allow_volatile=True)
        os.sync()
    path = directory / "routes.json"
    more = [] if broken is None else ["--broken", broken]
    victim = start(tally, path, "flips", "--count", "100000", "--wait", *more)
    try:
        assert victim.stdin is not None
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        victim.stdin.write("\n")
        victim.stdin.flush()
        time.sleep(rng.uniform(0.001, 0.12))
        # Without power nobody speaks. A victim that lived on would be told lies: after a forced shutdown XFS answers
        # the fsync of a directory with success although the rename is not in its log.
        victim.send_signal(signal.SIGSTOP)
        subprocess.run(["xfs_io", "-x", "-c", "shutdown", str(point)], check=True, capture_output=True, timeout=WAIT_S)
    finally:
        victim.kill()
        said = victim.stdout.read().splitlines() if victim.stdout is not None else []
        victim.wait()
        for stream in (victim.stdin, victim.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
    subprocess.run(["umount", str(point)], check=True, capture_output=True, timeout=WAIT_S)
    _mount(image, point)
    said = [line for line in said if line.startswith("told ") and line.count(" ") == 3]
    tally.check(f"power cut {tally.runs}", path, said, before=True)
