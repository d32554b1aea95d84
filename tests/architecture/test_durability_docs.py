"""The durability page and the runbook say what the code does."""

from __future__ import annotations

import ast
import re

import pytest

from sndr.router.core import projection, receipt
from sndr.router.wire import record
from tests.support.broken_writers import BROKEN
from tests.support.cli import ROOT

DURABILITY = (ROOT / "docs" / "durability.md").read_text("utf-8")
RUNBOOK = (ROOT / "docs" / "runbook-start.md").read_text("utf-8")
SOURCES = [*sorted((ROOT / "sndr/router/store").glob("*.py")), ROOT / "sndr/router/wire/record.py"]


def _constants() -> set[str]:
    found = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


@pytest.mark.req("R75")
def test_every_refusal_of_a_start_is_in_the_runbook() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \|", RUNBOOK, re.MULTILINE)
    assert len(rows) == len(set(rows))
    raised = {text for text in _constants() if re.fullmatch(r"route_(state|custody|boot|lock)_[a-z]+(_[a-z]+)?", text)}
    raised |= {text for text in _constants() if re.fullmatch(r"route_[a-z]+_unsupported", text)}
    assert raised - set(rows) == set()
    assert len(raised) >= 17


@pytest.mark.req("R58")
def test_the_bounds_of_the_page_are_those_of_the_code() -> None:
    for number in (
        record.FILE_BYTES_MAX,
        record.RECEIPT_BYTES_MAX,
        record.CHANGE_BYTES_MAX,
        record.EVIDENCE_BYTES_MAX,
        projection.PROJECTION_BYTES_MAX,
        projection.OBJECT_BYTES_MAX,
        projection.STRING_MAX,
    ):
        assert f"{number:,}" in DURABILITY
    assert f"{projection.TIERS_MAX}, {projection.ALIASES_MAX} |" in DURABILITY
    assert f"{projection.NUMBER_DIGITS_MAX} digits" in DURABILITY
    assert projection.INTEGER_MAX == 2**53 - 1
    assert receipt.EVENTS_MAX == 16


def test_the_controls_of_the_page_exist() -> None:
    assert len(BROKEN) == 8
    assert "Eight broken" in DURABILITY
