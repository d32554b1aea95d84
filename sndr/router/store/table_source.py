"""Where a routing table comes from: a file, or a command that prints it. Read once, with limits on time and size."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from sndr.router.wire.routing_table import OnTableError, TableState, judge, no_table, stated_sha256, unread

__all__ = ["SourceError", "TableView", "load", "read_file", "run_command", "sha256_on_disk"]

_PIECE: Final = 65_536


class SourceError(Exception):
    """The source gave no table; the text says why, in words that fit behind its name."""


def read_file(path: str, max_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
        SourceError: It cannot be read, is not a regular file, or is too large.
    """
    try:
        # Not blocking: opening a FIFO must not wait for somebody who writes.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise SourceError(getattr(error, "strerror", None) or "not a path") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SourceError("not a regular file")
        data = b""
        while len(data) <= max_bytes and (piece := os.read(descriptor, _PIECE)):
            data += piece
    except OSError as error:
        raise SourceError(error.strerror or "cannot be read") from None
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise SourceError(f"larger than {max_bytes} bytes")
    return data


def run_command(command: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout_s: float, max_bytes: int) -> bytes:
    """What a command prints. It gets no input; its standard error is not looked at. What ends us ends it first.

    Args:
        env: Its environment; the caller leaves out what is secret.

    Raises:
        SourceError: It cannot be started, prints too much, takes too long, or fails. It is gone by then, with
            everything that it started in its process group.
    """
    with _Endings() as endings:
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator's own boot file names it
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SourceError(f"cannot be started: {getattr(error, 'strerror', None) or 'not a command'}") from None
        assert process.stdout is not None
        try:
            endings.interrupt()
            data = _collect(process, time.monotonic() + timeout_s, timeout_s, max_bytes)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            process.wait()
    if process.returncode:
        raise SourceError(f"ended with exit code {process.returncode}")
    return data


class _Endings:
    """Signals that would end this process at once: put off, so that the command in its own session is not left behind.

    Before `interrupt` they are remembered, after it they interrupt; the process ends by them when the context does.
    Handlers that somebody else has set stay.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._caught: int | None = None
        self._interrupts = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._numbers.append(number)
                    signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)
        if self._caught is not None:
            os.kill(os.getpid(), self._caught)

    def interrupt(self) -> None:
        """From here on what is done is interrupted."""
        self._interrupts = True
        if self._caught is not None:
            self._catch(self._caught)

    def _catch(self, number: int, _frame: object = None) -> None:
        self._caught = number
        if self._interrupts:
            self._interrupts = False  # once: cleaning up is not
            raise KeyboardInterrupt


def _collect(process: subprocess.Popen[bytes], deadline: float, timeout_s: float, max_bytes: int) -> bytes:
    assert process.stdout is not None
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise SourceError(f"took longer than {timeout_s:g} s")
            piece = os.read(process.stdout.fileno(), _PIECE)
            if not piece:
                break
            data += piece
            if len(data) > max_bytes:
                raise SourceError(f"printed more than {max_bytes} bytes")
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise SourceError(f"took longer than {timeout_s:g} s") from None
    return data


def load(
    *,
    path: str | None,
    command: Sequence[str] | None,
    cwd: str,
    env: Mapping[str, str],
    timeout_s: float,
    max_bytes: int,
    on_error: OnTableError,
) -> TableState:
    """Read the table from a file, or else from a command, and judge it. Never raises for what the source does."""
    if path is not None:
        source = path
    elif command is not None:
        source = command[0]
    else:
        return no_table()
    try:
        if path is not None:
            data = read_file(path, max_bytes)
        else:
            assert command is not None
            data = run_command(command, cwd=cwd, env=env, timeout_s=timeout_s, max_bytes=max_bytes)
    except SourceError as error:
        return unread(source, str(error), on_error)
    return judge(source, data, on_error)


def sha256_on_disk(path: str, max_bytes: int) -> str | None:
    """Content hash of what the file holds now; None when it holds no table. For a comparison, never to be applied."""
    try:
        return stated_sha256(read_file(path, max_bytes))
    except SourceError:
        return None


class TableView:
    """Shows a table that is in force, and compares it with its file. Implements `RoutingTableView`."""

    def __init__(self, state: TableState, path: str | None, max_bytes: int) -> None:
        """Make it.

        Args:
            path: The file that the table came from; None for a command's.
        """
        self._state = state
        self._path = path
        self._max_bytes = max_bytes
        self._seen: tuple[tuple[int, int, int] | None, str | None] | None = None

    def info(self) -> tuple[str | None, str] | None:
        """Content hash and state; None when no table is configured."""
        state = self._state
        return None if state.source is None else (state.sha256, state.state)

    async def view(self) -> Mapping[str, Any] | None:
        """As the status shows it; the file is read on a thread, and only when it looks different from last time."""
        state, table = self._state, self._state.table
        if state.source is None:
            return None
        view: dict[str, Any] = {
            "source": state.source,
            "state": state.state,
            "reason": table.degraded,
            "content_sha256": state.sha256,
            "generated_by": table.generated_by,
            "vllm_pin": table.vllm_pin,
            "presets": len(table.presets),
            "rules": len(table.routing_rules),
            "coverage_gaps": len(table.coverage_gaps),
            "findings": len(state.findings),
            "on_disk": None,
        }
        if self._path is not None:
            sha256 = await asyncio.to_thread(self._look, self._path)
            view["on_disk"] = {"content_sha256": sha256, "changed": sha256 != state.sha256}
        return view

    def _look(self, path: str) -> str | None:
        try:
            found = os.stat(path)
            mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            mark = None
        seen = self._seen
        if seen is None or seen[0] != mark:
            seen = self._seen = (mark, sha256_on_disk(path, self._max_bytes))
        return seen[1]
