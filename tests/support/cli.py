"""Running the command line as a user does: a process of its own, from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE = (sys.executable, "-m", "sndr.cli")
CONSOLE = (sys.executable, "-c", "from sndr.cli.__main__ import console; console()")


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with the checkout importable from anywhere, and `more`.

    How Python buffers is a test's own choice: a shell that sets it would hide what others see.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "PYTHONPATH": str(ROOT), **more}


def run_cli(
    *args: str,
    entry: tuple[str, ...] = MODULE,
    stdin: str | bytes = b"",
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end and return exit code, standard output and standard error."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*entry, *args], input=data, capture_output=True, cwd=cwd, env=env or environment(), timeout=120, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def refused(done: subprocess.CompletedProcess[str], code: int, lines: int = 1) -> list[str]:
    """Check that a command refused: exit code, nothing on standard output, ASCII lines without a traceback.

    Returns:
        The lines.
    """
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.isascii()
    assert "Traceback" not in done.stderr
    said = done.stderr.splitlines()
    assert len(said) == lines, said
    return said
