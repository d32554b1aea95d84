"""Each import contract is broken once, in a copy, and the checker sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.cli import ROOT, environment

#: Contract -> (module, a line that breaks it).
BREAKS = {
    "contract and durable are libraries of their own": ("sndr/contract/table.py", "import yaml"),
    "the command line knows the router's doors, not its rooms": ("sndr/cli/output.py", "import sndr.router.core"),
    "errors and resources import nothing of ours": ("sndr/errors.py", "import sndr.contract"),
    "planes over ports over wire over core": ("sndr/router/core/__init__.py", "import sndr.router.wire"),
    "the control plane touches no socket and no disk; the data plane no disk": (
        "sndr/router/control/__init__.py",
        "import sndr.router.store",
    ),
    "the data plane reaches disk through ports only": ("sndr/router/gateway/__init__.py", "import sqlite3"),
    "core is pure": ("sndr/router/core/__init__.py", "import asyncio"),
    "net and store need no third party but httptools, uvloop": ("sndr/router/store/__init__.py", "import httpx"),
    "the router does not know the command line": ("sndr/router/__init__.py", "import click"),
    "YAML is read in one place": ("sndr/cli/output.py", "import yaml"),
    "jsonschema is asked in one place": ("sndr/cli/output.py", "import jsonschema"),
}


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-logo", "--no-cache"],
        cwd=folder, env={**environment(), "PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "sndr", tmp_path / "sndr", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_broken_below() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert [contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]] != []
    assert {contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]} == set(BREAKS)


def test_the_code_keeps_them_and_each_violation_is_seen(copy: Path) -> None:
    kept = _lint(copy)
    assert kept.returncode == 0, kept.stdout
    assert "0 broken" in kept.stdout
    for file, line in BREAKS.values():
        with open(copy / file, "a", encoding="utf-8") as module:
            module.write(f"\n{line}\n")
    broken = _lint(copy)
    assert broken.returncode == 1
    for name in BREAKS:
        assert f"{name} BROKEN" in broken.stdout, f"{name}\n{broken.stdout[-3000:]}"
    assert os.path.exists(copy / "sndr")
