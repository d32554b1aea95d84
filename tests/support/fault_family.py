"""One system call failed from outside in every durable operation at once: a process with one child per operation.

strace counts the calls of each child by itself: `fsync:error=EIO:when=2` fails the second fsync of each of them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from sndr.errors import AuthorityError
from sndr.router.store import authority as store
from sndr.router.wire.record import encode_record
from tests.support import records
from tests.support.victims import OPERATIONS, WAIT_S, Tally


def _prepare(directory: Path, operation: str) -> Callable[[], str]:
    """Everything up to the operation; calling what comes back does it and says what it was told."""
    directory.mkdir(mode=0o700)
    path = str(directory / "routes.json")
    boot = records.boot()
    step = next((step for step in records.steps() if step.name == operation), None)
    if operation != "init":
        before = records.first() if step is None else step.before
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            stream.write(encode_record(before))
            stream.flush()
            os.fsync(stream.fileno())

    def told(record: store.Record) -> str:
        return f"told {record.current.route_revision} {record.write_seq} {record.current.effective_route_sha256}"

    if step is None:
        opens = store.create if operation == "init" else store.open_authority

        def start() -> str:
            answer = opens(path, boot, allow_volatile=True)
            return told(answer.record if isinstance(answer, store.Authority) else answer)

        return start
    authority = store.open_authority(path, boot, allow_volatile=True)

    def write() -> str:
        result = authority.write(step.after, boot)
        if isinstance(result, store.Written):
            return told(result.record)
        return f"refused {type(result).__name__} {result.code}"

    return write


def _victim(root: Path) -> None:
    works = [(operation, _prepare(root / operation, operation)) for operation in OPERATIONS]
    says = {operation: os.open(root / f"{operation}.said", os.O_WRONLY | os.O_CREAT, 0o600) for operation, _ in works}
    ends = os.open(root / "ends", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(1, b"ready\n")
    select.select([0], [], [])  # no read, no write: this process itself makes none of the calls that are failed
    children = {}
    for operation, work in works:
        pid = os.fork()
        if pid == 0:
            try:
                said = work()
            except AuthorityError as error:
                said = f"refused AuthorityError {error.code}"
            except OSError as error:
                said = f"failed {error.errno}"
            os.pwrite(says[operation], f"{said}\n".encode(), 0)
            os._exit(0)
        children[operation] = (pid, os.waitpid(pid, 0)[1])
    os.pwrite(ends, json.dumps(children).encode(), 0)
    os._exit(0)


def inject(tally: Tally, root: Path, call: str, action: str, when: int) -> int:
    """Fail or kill the `when`th system call of this name in every operation.

    Forks this process, which should have one thread.

    Returns:
        How many of the operations got that far.

    Raises:
        RuntimeError: strace did not attach, or the victim did not end.
    """
    log = root / "strace"
    ready, go = os.pipe(), os.pipe()
    victim = os.fork()
    if victim == 0:
        os.dup2(go[0], 0)
        os.dup2(ready[1], 1)
        for fd in (*ready, *go):
            os.close(fd)
        try:
            _victim(root)
        finally:
            os._exit(1)
    os.close(ready[1])
    os.close(go[0])
    tally.starts += 1
    tracer: subprocess.Popen[bytes] | None = None
    try:
        if os.read(ready[0], 6) != b"ready\n":
            raise RuntimeError("the victim is not ready")
        tracer = subprocess.Popen(
            ["strace", "-f", "-p", str(victim), "-o", str(log), "-e", f"trace={call}",
             "-e", f"inject={call}:{action}:when={when}"],
            stderr=subprocess.PIPE,
        )  # fmt: skip
        ends_at = time.monotonic() + WAIT_S
        while "TracerPid:\t0\n" in Path(f"/proc/{victim}/status").read_text():
            if time.monotonic() > ends_at or tracer.poll() is not None:
                tracer.kill()
                raise RuntimeError(f"no strace: {tracer.communicate()[1]!r}")
            time.sleep(0.002)
        os.write(go[1], b"go\n")
        while os.waitpid(victim, os.WNOHANG)[0] == 0:
            if time.monotonic() > ends_at:
                raise RuntimeError(f"{call} {action} {when}: the victim does not end")
            time.sleep(0.002)
        victim = 0
    finally:
        os.close(ready[0])
        os.close(go[1])
        if victim:
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
        if tracer is not None:
            tracer.terminate()
            tracer.communicate(timeout=WAIT_S)
    injected = {line.split()[0] for line in log.read_text().splitlines() if "INJECTED" in line}
    reached = 0
    for operation, (pid, status) in json.loads((root / "ends").read_text()).items():
        said = (root / f"{operation}.said").read_text().splitlines()
        reached += str(pid) in injected or os.WIFSIGNALED(status)
        label = f"{operation} {call} {action} at {when}"
        tally.check(label, root / operation / "routes.json", said, before=operation != "init")
    return reached
