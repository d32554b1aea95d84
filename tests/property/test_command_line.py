"""Whatever words follow ``routing-table`` or ``preset``: an exit code, no fault of ours, and whole JSON if any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sndr.cli.main import module_root, run

_WORDS = st.sampled_from(
    [
        *("routing-table", "preset", "check", "diff", "explain", "list", "show", "recommend", "validate"),
        *("--json", "--validate", "--out", "--vllm-pin", "--presets", "--workload", "--top", "--field", "--in-flight"),
        *("", "-", "--", "=", "out.json", "in.json", "none/x", "folder", "tool_call.short", "0", "-1", "prod-gemma4"),
    ]
)
_TEXT = st.text(st.characters(min_codepoint=1), max_size=8).map(lambda text: f"x{text}".replace("/", ""))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(verb=st.sampled_from(["routing-table", "preset"]), words=st.lists(_WORDS | _TEXT, max_size=5))
@example(verb="routing-table", words=["check", "folder"])
@example(verb="routing-table", words=["--out", "folder/../folder"])
@example(verb="routing-table", words=["explain", "in.json", "--in-flight", "99999999999999999999"])
def test_any_words_end_in_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir(exist_ok=True)
    (tmp_path / "in.json").write_text("{}")
    with open("/dev/null") as nothing, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", nothing)
        code = run(module_root(), [verb, *words], "x")
    out, err = capsys.readouterr()
    assert code in (0, 1, 2)
    assert "internal_error" not in err
    assert "Traceback" not in err
    assert err.isascii()
    if code != 0 and "diff" not in words:
        assert err
    if out.startswith("{"):
        json.loads(out)
