"""What `routing-table explain` prints and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sndr.cli.main import module_root, run
from sndr.contract import explain as explain_decision
from sndr.contract import load
from tests.support.contract_vectors import D26, G26, M26, REFERENCE, RULE, T

REQUEST = {"model": "gemma-4-26b-a4b", "tools": [{}], "max_tokens": 100}


def verb(*args: str) -> int:
    return run(module_root(), ["routing-table", "explain", *args], "python3 -m sndr.cli")


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(REFERENCE))
    return str(path)


@pytest.fixture
def request_file(tmp_path: Path) -> str:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUEST))
    return str(path)


Stdin = Callable[[Any], None]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stdin]:
    with (tmp_path / "stdin").open("w+b") as file:

        def give(value: Any) -> None:
            file.seek(0)
            file.truncate()
            file.write(json.dumps(value).encode())
            file.flush()
            file.seek(0)

        monkeypatch.setattr("sys.stdin", file)
        yield give


def test_the_decision_record_with_its_steps(table: str, request_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(request_file, "--table", table, "--in-flight", "2", "--json") == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert err == ""
    assert record == explain_decision(load(REFERENCE), REQUEST, in_flight=2).record()
    steps = record.pop("steps")
    assert record == {
        "workload_class": "tool_call",
        "expected_output_length": "short",
        "concurrency_mode": "multi_conc",
        "model_family": G26,
        "preset_key": M26,
        "outcome": "rule",
        "rule_id": RULE,
        "evidence_tag": "measured",
        "gap": T,
    }
    assert all(list(step) == ["step", "name", "result", "reason"] for step in steps)


def test_the_text_says_the_choice_first(table: str, request_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(request_file, "--table", table, "--in-flight", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{M26}  [rule]"
    assert "5   concurrency_mode = multi_conc: 2 in flight in the family, this request included" in lines


def test_without_a_table_the_shipped_catalog_decides(request_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(request_file, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["preset_key"], record["outcome"]) == (D26, "family_default")


def test_options_reach_the_decision(table: str, stdin: Stdin, capsys: pytest.CaptureFixture[str]) -> None:
    stdin({"max_output_tokens": 10})
    options = [
        "--dialect",
        "responses",
        "--input-tokens",
        "21",
        "--family",
        G26,
        "--header",
        "X-Sndr-Expected-Length:  long",
    ]
    assert verb("-", "--table", table, *options, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["workload_class"], record["expected_output_length"]) == ("summarization", "long")
    assert (record["model_family"], record["preset_key"]) == (G26, D26)


def test_a_table_from_standard_input(request_file: str, stdin: Stdin, capsys: pytest.CaptureFixture[str]) -> None:
    stdin(REFERENCE)
    assert verb(request_file, "--table", "-", "--json", "--header", "X-Sndr-Category: code", "--header", "A: b") == 0
    assert json.loads(capsys.readouterr().out)["preset_key"] == D26


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 2}'])
def test_a_table_that_a_consumer_refuses_is_degraded(
    text: str, request_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    assert verb(request_file, "--table", str(path), "--json") == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert (record["outcome"], record["preset_key"]) == ("degraded", None)
    assert err.startswith("warning: ")
    assert err.count("\n") == 1
    assert verb(request_file, "--table", str(path)) == 0
    assert capsys.readouterr().out.startswith("no preset (route by model)  [degraded]\n")


def test_a_body_that_is_no_object_is_decided_with_a_warning(
    table: str, stdin: Stdin, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin([])
    assert verb("-", "--table", table, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["workload_class"] == "free_chat"
    assert "not an object" in err


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["--table", "/none/such.json"], 1, "/none/such.json"),
        (["--presets", "/none/such"], 1, "/none/such"),
        (["--table", "x", "--presets", "y"], 2, "exclude"),
        (["--in-flight", "-1"], 2, "--in-flight"),
        (["--in-flight", "two"], 2, "--in-flight"),
        (["--input-tokens", "-1"], 2, "--input-tokens"),
        (["--header", "no colon"], 2, "no colon"),
        (["--header", ": empty name"], 2, "Name: value"),
        (["--header", "a b: c"], 2, "Name: value"),
        (["--dialect", "grpc"], 2, "--dialect"),
        (["more"], 2, "more"),
    ],
)
def test_refusals(args: list[str], code: int, text: str, request_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(request_file, *args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--table", "--presets", "--family"])
def test_an_empty_value_does_not_pass_for_none(
    option: str, request_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb(request_file, option, "") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"sndr routing-table: usage: Invalid value for '{option}': empty; leave the option away or give it a value\n"
    )


def test_requests_that_cannot_be_read(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text('{"a": 1, "a": 2}')
    for name in ("bad.json", "none.json", "."):
        assert verb(str(tmp_path / name), "--table", table) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert str(tmp_path) in err
    assert verb("-", "--table", "-") == 2
    assert verb() == 2


def test_the_request_text_is_never_printed(table: str, stdin: Stdin, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "the prompt itself"
    body = {**REQUEST, "messages": [{"role": "user", "content": secret}], "response_format": {"type": "json_object"}}
    for flags in ([], ["--json"]):
        stdin(body)
        assert verb("-", "--table", table, *flags) == 0
        assert secret not in "".join(capsys.readouterr())
