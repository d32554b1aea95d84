"""Lines and streams: one ASCII line per remark, and the whole answer or an error."""

from __future__ import annotations

import io

import pytest

from sndr.cli import output


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two\\nlines\\tand a tab"),
        ("caf\u00e9 \u2192 \U0001f600", "caf\\xe9 \\u2192 \\U0001f600"),
        ("\x1b[31mred\x7f", "\\x1b[31mred\\x7f"),
        ("\udcff", "\\udcff"),
    ],
)
def test_a_remark_is_one_printable_ascii_line(text: str, line: str) -> None:
    assert output.one_line(text) == line


def test_a_broken_standard_error_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, open("/dev/full", "w"), io.StringIO()):  # noqa: SIM115  # closed below
        if isinstance(stream, io.StringIO):
            stream.close()
        monkeypatch.setattr("sys.stderr", stream)
        output.write_err("lost")
        if isinstance(stream, io.TextIOWrapper):
            stream.close()  # nothing was left in its buffer to fail once more at exit


def test_an_answer_to_an_in_memory_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    output.write_out("{}\n")
    assert stream.getvalue() == "{}\n"


def test_a_missing_standard_output_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(output.OutputError, match="closed"):
        output.write_out("{}\n")
    output.close_stdout()
