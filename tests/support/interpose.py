"""Faults outside Python: a small library between a process and its C library (`interpose.c`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def library(directory: Path) -> str:
    """Build it; without a compiler or the means to load it the test is skipped, with the reason."""
    compiler = shutil.which("cc")
    if compiler is None or not os.path.exists("/proc/self/fd"):
        pytest.skip("needs a C compiler and Linux")
    made = directory / "interpose.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", os.fspath(made), os.fspath(source), "-ldl"], check=True, timeout=60
    )
    return os.fspath(made)


class Stall:
    """Syncs of the files whose path has `name` in it stand still while it is on."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / "stall"
        self._hits = directory / "stall.hits"
        self.environ = {
            "LD_PRELOAD": library(directory),
            "INTERPOSE_STALL_NAME": name,
            "INTERPOSE_STALL_FILE": os.fspath(self._file),
        }

    def on(self) -> None:
        self._hits.unlink(missing_ok=True)
        self._file.touch()

    @property
    def hits(self) -> int:
        """Syncs that stood still since it was put on."""
        return self._hits.stat().st_size if self._hits.exists() else 0

    def off(self) -> None:
        self._file.unlink(missing_ok=True)


class Clocks:
    """Clocks that can be moved; both start true."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "clocks"
        self.jump()
        self.environ = {"LD_PRELOAD": library(directory), "INTERPOSE_CLOCK_FILE": os.fspath(self._file)}

    def jump(self, *, wall_s: int = 0, suspended_s: int = 0) -> None:
        """Set how far the wall clock, and the one that counts suspended time, are off."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{wall_s} {suspended_s}\n")
        new.replace(self._file)
