"""Every requirement, scenario and invariant of live routes has a test, and the page says which."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.cli import ROOT
from tests.support.traceability import KINDS, shown, tables, wanted

PAGE = ROOT / "docs" / "traceability.md"
OPEN, CLOSE = "<!-- tables -->\n", "<!-- end of tables -->\n"


def test_the_lists_are_whole() -> None:
    assert list(wanted("req")) == [f"R{n}" for n in range(1, 119)]
    assert list(wanted("scenario")) == [f"S{n}" for n in range(1, 26)]
    assert list(wanted("invariant")) == [f"INV-{n}" for n in range(1, 25)]


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_is_required_has_a_test(kind: str) -> None:
    found = shown()[kind]
    assert sorted(wanted(kind).keys() - found.keys()) == [], "nobody shows this"
    assert sorted(found.keys() - wanted(kind).keys()) == [], "nobody requires this"


def listed(text: str) -> dict[str, set[tuple[str, str]]]:
    """Name -> (file, test) as the page says it."""
    rows: dict[str, set[tuple[str, str]]] = {}
    for name, cell in re.findall(r"^\| ((?:R|S|INV-)\d+) \| .*? \| (.*) \|$", text, re.MULTILINE):
        rows[name] = {
            (file, test)
            for file, tests in re.findall(r"\]\(\.\./([^)]+)\): ([^;]+)", cell)
            for test in tests.split(", ")
        }
    return rows


def test_the_page_names_a_test_for_everything_and_none_that_is_gone() -> None:
    text = PAGE.read_text("utf-8")
    before, rest = text.split(OPEN)
    _, after = rest.split(CLOSE)
    if os.environ.get("SNDR_REWRITE"):
        PAGE.write_text(f"{before}{OPEN}\n{tables()}{CLOSE}{after}", "utf-8")
        return
    rows, now = listed(text), listed(tables())
    assert list(rows) == list(now)
    assert [name for name, tests in rows.items() if not tests] == []
    gone = {name: tests - now[name] for name, tests in rows.items() if tests - now[name]}
    assert gone == {}, "SNDR_REWRITE=1 writes it anew"


def test_a_marker_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("@pytest.mark.req(*NAMES)\ndef test_it(): ...\n")
    with pytest.raises(ValueError, match=r"test_it\.py, test_it"):
        shown(tmp_path)
