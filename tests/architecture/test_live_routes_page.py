"""The operator guide knows every code that a route change can end with, and says what the command line says."""

from __future__ import annotations

import os
import re

import pytest

from sndr.cli.router.advice import ADVICE, exit_code
from sndr.router.core.effects import Code
from sndr.router.core.recovery import AttentionCode
from sndr.router.wire.operator_api import PROBLEMS
from tests.support.cli import ROOT

PAGE = ROOT / "docs" / "live-routes.md"
OPEN, CLOSE = "<!-- codes -->\n", "<!-- end of codes -->\n"

#: Refusals of operator quiescence and of paths in general; docs/operations.md has them.
ELSEWHERE = {
    "accounting_unavailable",
    "admission_state_failed",
    "ledger_disabled",
    "method_not_allowed",
    "not_quiesced",
    "readmit_refused",
}


def table() -> str:
    lines = ["| code | status | exit | what is the case, and what to do |", "|---|---|---|---|"]
    for code, text in ADVICE.items():
        problem = PROBLEMS.get(code)
        ends = "" if problem is None else str(exit_code(problem.status, code))
        lines.append(f"| `{code}` | {'attention' if problem is None else problem.status} | {ends} | {text} |")
    return "\n".join(lines) + "\n"


def test_every_code_has_its_advice() -> None:
    known = set(PROBLEMS) - ELSEWHERE | {code.value for code in AttentionCode} | {code.value for code in Code}
    assert known - set(ADVICE) == set(), "a code without advice"
    assert set(ADVICE) - known == set(), "advice for a code that does not exist"


def test_the_pages_table_is_what_the_command_line_says() -> None:
    text = PAGE.read_text("utf-8")
    before, rest = text.split(OPEN)
    shown, after = rest.split(CLOSE)
    wanted = f"\n{table()}\n"
    if os.environ.get("SNDR_REWRITE"):
        PAGE.write_text(f"{before}{OPEN}{wanted}{CLOSE}{after}", "utf-8")
        return
    assert shown == wanted, "SNDR_REWRITE=1 writes it anew"


@pytest.mark.parametrize("code", sorted(ADVICE))
def test_advice_is_one_ascii_line(code: str) -> None:
    assert ADVICE[code].isascii()
    assert not re.search(r"[\n|`]", ADVICE[code])
    assert len(ADVICE[code]) <= 100
