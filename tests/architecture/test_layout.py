"""The package imports, and says its version once; its files and its messages are in no one's way."""

from __future__ import annotations

import ast
import sys

import sndr
from tests.support.cli import ROOT


def test_version_is_a_release_number() -> None:
    assert [part.isdigit() for part in sndr.__version__.split(".")] == [True, True, True]


def test_no_file_beside_a_script_hides_a_module_of_python() -> None:
    """A script's own folder comes first in its search path, for all that it imports."""
    for folder in ("tests/support", "tests/real", "docs/examples"):
        names = {path.stem for path in (ROOT / folder).glob("*.py")}
        assert not names & sys.stdlib_module_names, folder


def test_messages_are_ascii() -> None:
    """A line on standard error is ASCII: what is not comes out as an escape, and a message of ours should not."""
    for path in sorted((ROOT / "sndr").rglob("*.py")):
        text = path.read_text("utf-8")
        if text.isascii():
            continue
        tree = ast.parse(text)
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        documentation |= {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "description"
        }
        said = [
            ast.get_source_segment(text, node) or "" for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
        ]  # fmt: skip
        assert [literal for literal in said if not literal.isascii()] == [], path
