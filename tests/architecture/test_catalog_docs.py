"""The catalog's pages say what the code does: the field reference is current, the how-to works as it is written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from sndr.cli.table import layers
from sndr.cli.table.catalog import _MAX_DEPTH, MAX_FILE_BYTES
from sndr.resources import presets_dir
from tests.support.catalog_doc import PAGE, current
from tests.support.cli import ROOT, environment

HOWTO = ROOT / "docs" / "howto-presets.md"
_BLOCK = re.compile(r"(?:<!-- (?P<mark>[^>]+) -->\n)?```(?P<kind>sh|yaml)\n(?P<text>.*?)```", re.DOTALL)


def test_the_field_reference_is_current() -> None:
    page = PAGE.read_text("utf-8")
    assert current(page) == page, "run: python -m tests.support.catalog_doc"


def test_the_limits_in_the_page_are_the_codes() -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    assert f"no nesting beyond {_MAX_DEPTH} levels" in page
    assert MAX_FILE_BYTES == 1 << 20
    assert "at most 1 MiB" in page
    assert all(f"`{word}`" in page for word in layers.STANDARD_WORKLOADS)


def test_the_layout_in_the_page_is_the_shipped_one() -> None:
    layout = PAGE.read_text("utf-8").split("```\npresets/\n")[1].split("```")[0]
    named = {line.split("/")[0].strip() for line in layout.splitlines()}
    assert named == {entry.name for entry in Path(presets_dir()).iterdir() if entry.is_dir()}
    routing = {word for word in layout.split() if word.endswith(".yaml")}
    assert routing == {file.name for file in (Path(presets_dir()) / "routing").iterdir()}


def test_the_howto_works_as_it_is_written(tmp_path: Path) -> None:
    shutil.copytree(presets_dir(), tmp_path / "presets")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, entry in {"python3": "", "sndr": '-c "from sndr.cli.__main__ import console; console()"'}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {entry} "$@"\n')
        (tools / name).chmod(0o755)
    env = environment(PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    ran = 0
    output = ""
    for found in _BLOCK.finditer(HOWTO.read_text("utf-8")):
        mark, kind, text = found["mark"], found["kind"], found["text"]
        if kind == "yaml" and mark is None:
            (tmp_path / text.split("\n")[0].removeprefix("# ")).write_text(text)
        elif kind == "yaml":
            file = tmp_path / mark.removeprefix("delete from ")
            before = file.read_text()
            assert before.count(text) == 1, "the entry that the page deletes is no longer in the catalog"
            file.write_text(before.replace(text, ""))
        else:
            assert mark == "run"
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr}"
            ran += 1
            output = done.stdout
    assert ran == 4
    assert "1.  prod-gemma4-31b-multiconc" in output
    assert "measured rule gemma4-31b-multiconc-structured-short" in output
    assert "(+20.0 %)" in output
