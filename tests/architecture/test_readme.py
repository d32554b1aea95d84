"""The README's commands are the ones that the gate runs, and each block that is marked to run, runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import ROOT, environment, run_cli

_BLOCK = re.compile(r"(?:<!-- (?P<mark>[a-z: -]+) -->\n)?```sh\n(?P<text>.*?)```", re.DOTALL)
_PAGES = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]


def _blocks(page: Path) -> list[tuple[str | None, str]]:
    return [(found["mark"], found["text"]) for found in _BLOCK.finditer(page.read_text("utf-8"))]


def test_the_gate_runs_exactly_the_two_commands() -> None:
    first, second = (text.strip() for mark, text in _blocks(ROOT / "README.md") if mark is None)
    gate = (ROOT / ".ci" / "run").read_text("utf-8")
    assert second in gate.splitlines()
    assert second.endswith("-m pytest")
    pattern = re.search(r"sed -n 's/(.*)/&/p' README.md", gate)
    assert pattern is not None
    assert re.fullmatch(pattern[1], first)
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert [line for line in lines if re.fullmatch(pattern[1], line)] == [first]


def test_every_other_block_says_whether_it_runs() -> None:
    marks = {mark for page in _PAGES for mark, text in _blocks(page) if "-m pip install" not in text}
    assert marks <= {"run", "needs a service"}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_blocks_that_are_marked_to_run_do(page: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, entry in {
        "python3": f'exec "{sys.executable}" "$@"',
        "sndr": f'exec "{sys.executable}" -c "from sndr.cli.__main__ import console; console()" "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{entry}\n")
        (tools / name).chmod(0o755)
    env = environment(PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    for mark, text in _blocks(page):
        if mark == "run":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=tmp_path, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr}"
            if "explain" in text:  # the tours show the rule at work, not a fallback
                assert "prod-gemma4-26b-multiconc  [rule]" in done.stdout


def test_the_boot_file_of_the_tour_is_a_good_one(tmp_path: Path) -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "router.toml").write_text(toml)
    done = run_cli("router", "check", "--config", "router.toml", "--without-env", cwd=tmp_path)
    assert done.returncode == 0, done
