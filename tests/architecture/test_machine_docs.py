"""The page about the live-route machine says what its tables say."""

from __future__ import annotations

from sndr.router.core.recovery import AttentionCode
from tests.support.machine_docs import ADVICE, PAGE, render
from tests.support.machine_mutants import MUTANTS, WHAT


def test_generated_parts_are_current() -> None:
    text = PAGE.read_text("utf-8")
    assert render(text) == text, "write them again with: python -m tests.support.machine_docs"


def test_every_attention_has_advice_and_every_mutant_words() -> None:
    assert set(ADVICE) == set(AttentionCode)
    assert list(WHAT) == [mutant.name for mutant in MUTANTS]
    assert len(MUTANTS) >= 20


def test_a_changed_table_is_noticed() -> None:
    text = PAGE.read_text("utf-8")
    stale = text.replace("| held | held |", "| held | idle |")
    assert stale != text == render(stale)
