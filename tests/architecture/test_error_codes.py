"""Every error code that the code can raise is documented, and every documented one can be raised."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import ROOT

#: Area -> (files, page, heading of its table of codes, other tables of codes that count). A new code needs a row there.
AREAS: dict[str, tuple[list[str], str, str, list[tuple[str, str]]]] = {
    "command line": (
        ["sndr/cli/*.py", "sndr/cli/table/*.py", "sndr/cli/preset/*.py"],
        "docs/errors.md",
        "## Codes of the command line",
        [],
    ),
    "router": (
        ["sndr/errors.py", "sndr/router/*.py", "sndr/router/*/*.py", "sndr/cli/router/*.py"],
        "docs/errors.md",
        "## Codes of the router's verbs",
        [
            ("docs/operations.md", "## Management API"),
            ("docs/live-routes.md", "## After a failure"),
            ("docs/runbook-start.md", "## Start-up codes"),
        ],
    ),
}
#: Written by the edge itself, not raised.
_EDGE = {"usage", "io_error", "internal_error"}
_CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")


@functools.cache
def _nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text("utf-8"))))


@functools.cache
def _error_classes() -> set[str]:
    """Return the names of SndrError and of every class under sndr/ that derives from it."""
    bases: dict[str, set[str]] = {}
    for file in ROOT.glob("sndr/**/*.py"):
        for node in _nodes(file):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(b.id for b in node.bases if isinstance(b, ast.Name))
    known = {"SndrError"}
    while more := {name for name, of in bases.items() if of & known} - known:
        known |= more
    return known


def _raised(patterns: list[str]) -> Iterator[str]:
    classes = _error_classes()
    for pattern in patterns:
        for file in ROOT.glob(pattern):
            for node in _nodes(file):
                if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                    continue
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                is_super = name == "__init__" and isinstance(node.func, ast.Attribute)
                code = node.args[0].value
                if (name in classes or is_super) and isinstance(code, str) and _CODE.match(code):
                    yield code


def _documented(page: Path, heading: str) -> list[str]:
    text = page.read_text("utf-8")
    assert text.count(f"\n{heading}\n") == 1
    section = text.split(f"\n{heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([a-z0-9_]+)` \|", section, re.MULTILINE)


def _words(patterns: list[str]) -> set[str]:
    """Return every string constant of the files; some codes get to their error by way of a table or begin its text."""
    return {
        node.value.removesuffix(": ")
        for pattern in patterns
        for file in ROOT.glob(pattern)
        for node in set(_nodes(file)) - _keys(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def _keys(file: Path) -> set[ast.AST]:
    """Keys of tables: what is said about a code raises nothing."""
    return {key for node in _nodes(file) if isinstance(node, ast.Dict) for key in node.keys if key is not None}


@pytest.mark.parametrize("area", AREAS)
def test_codes_are_documented_and_exist(area: str) -> None:
    patterns, page, heading, others = AREAS[area]
    documented = _documented(ROOT / page, heading)
    assert len(documented) == len(set(documented))
    elsewhere = {code for other, at in others for code in _documented(ROOT / other, at)}
    assert set(_raised(patterns)) - _EDGE - set(documented) - elsewhere == set(), "raised, without a row"
    assert (set(documented) | elsewhere) - _EDGE - _words(patterns) == set(), "a row, never raised"
