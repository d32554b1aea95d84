"""The ledger's page names every column, outcome and verb that there is, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from sndr.cli.router.usage import usage
from sndr.router.core.usage import Outcome
from sndr.router.store.usage_db import COLUMNS

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()


def _cells(heading: str) -> set[str]:
    """Names in the first cells of the table whose head begins with `heading`."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return {name for line in table.splitlines()[2:] for name in re.findall(r"`([a-z0-9_]+)`", line.split("|")[1])}


def test_columns() -> None:
    sources = {name for name in COLUMNS if name.endswith("_source")}
    assert _cells("column") == set(COLUMNS) - sources
    assert sources == {f"{kind}_source" for kind in ("prompt", "completion", "cached")}


def test_outcomes() -> None:
    assert _cells("outcome") == {outcome.value for outcome in Outcome}


def test_verbs() -> None:
    assert set(re.findall(r"^\| `sndr router usage (\w+)", PAGE, re.MULTILINE)) == set(usage.commands)
