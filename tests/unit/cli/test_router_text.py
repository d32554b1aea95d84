"""Text for people."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sndr.cli.router.advice import Where
from sndr.cli.router.online import _status_text
from sndr.cli.router.text import ago, span, table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.9, "0 s"), (-5, "0 s"), (45, "45 s"), (200, "3 min 20 s"), (3600, "1 h"), (190_000, "2 d 4 h")],
)
def test_a_span_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_how_long_ago() -> None:
    assert ago(None) == "never"
    then = datetime.now(UTC) - timedelta(seconds=3700)
    assert ago(then.strftime("%Y-%m-%dT%H:%M:%SZ")).startswith("1 h 1 min")


def test_a_table_is_aligned_and_leaves_empty_columns_out() -> None:
    assert table([["A", "EMPTY", "C"], ["long", "", "x"], ["b", "", "yes"]]) == ["A     C", "long  x", "b     yes"]
    assert table([["A", "B"]]) == ["A  B"]


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["READY"], ["yes"], ["no: held"], ["other"]]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert [line.count("\x1b") for line in table(rows)] == [2, 2, 2, 0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any("\x1b" in line for line in table(rows))


def test_the_status_says_how_many_log_lines_nobody_took() -> None:
    it: dict[str, Any] = {
        "version": "1", "state": "serving", "listen": ["127.0.0.1:8710"], "uptime_s": 1, "config_sha256": "0" * 64,
        "tiers": [], "aliases": {}, "dropped_log_lines": {"requests": 1, "decisions": 0},
    }  # fmt: skip
    text = _status_text(it, Where(None, None, None))
    assert "log of requests: 1 line dropped that nobody took\n" in text
    assert "decisions" not in text
