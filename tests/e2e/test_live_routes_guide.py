"""The operator guide as one play: its transcripts, its scripts and its Python, run in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import ROOT
from tests.support.live_guide import BLOCK, EVENTS, Play, playing

PAGE = ROOT / "docs" / "live-routes.md"
RUN = re.compile(r"<!-- run -->\n```(\w+)\n(.*?)```\n", re.DOTALL)


def run_block(play: Play, kind: str, text: str) -> str:
    command = ["bash", "-euo", "pipefail", "-c"] if kind == "sh" else [sys.executable, "-c"]
    done = subprocess.run(
        [*command, play.real(text)], cwd=play.directory, env=play.env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (text, done)
    return done.stdout


@pytest.mark.req("R82", "R83", "R84", "R85", "R86", "R87", "R92")
def test_the_guide_is_what_happens(tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    [boot] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    with playing(tmp_path / "guide", boot) as play:
        written: list[str] = BLOCK.findall(page)
        played = [play.perform(script) for script in written]
        if os.environ.get("SNDR_REWRITE"):
            texts = iter(played)
            page = BLOCK.sub(lambda _: f"<!-- transcript -->\n```text\n{next(texts)}```\n", page)
            PAGE.write_text(page, "utf-8")
            written = played
        for want, have in zip(written, played, strict=True):
            assert have == want, "SNDR_REWRITE=1 writes it anew"
        play.scrape()
        said = [run_block(play, kind, text) for kind, text in RUN.findall(page)]
    exposed: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(sndr_route_\w+)(?:\{(.*?)\})? \S+$", play.metrics, re.MULTILINE):
        exposed.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    rows = re.findall(r"^\| `(sndr_route_\w+)` \| ?(.*?) ?\|", page, re.MULTILINE)
    assert {name: set(re.findall(r"\w+", labels)) for name, labels in rows} == exposed
    assert said[0] == ""
    assert said[1].startswith("not now: sndr router: precheck_failed:")
    assert "authority file: consistent\nno tier is held\n" in said[1]
    assert re.fullmatch(r"\d+ \['m2', 'n1'\]\n", said[2])


def test_every_event_of_the_transcripts_is_known() -> None:
    named = {line[2:] for script in BLOCK.findall(PAGE.read_text("utf-8")) for line in script.splitlines()
             if line.startswith("# ")}  # fmt: skip
    assert named <= set(EVENTS)
