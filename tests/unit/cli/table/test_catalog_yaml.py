"""What YAML allows and the catalog does not: one place, one sentence, exit 1, nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sndr.cli.main import module_root, run
from sndr.cli.table import catalog as catalog_module
from sndr.cli.table.catalog import CatalogError, load_catalog, parse_yaml
from sndr.cli.table.fields import Node
from sndr.resources import presets_dir
from tests.support.catalog import FULL, Raw, full, holder_of, render, write

FILE = "models/m.yaml"
GOOD = render(FULL[FILE])[0]


def _emit(root: Path, out: Path) -> int:
    return run(module_root(), ["routing-table", "--presets", str(root), "--out", str(out)], "sndr")


BAD_FILES = {
    "anchor": ("title: &t x\n", "1:8", "(document): an anchor (&name)"),
    "anchor on a block": ("title: &t\n  a: 1\n", "1:8", "(document): an anchor (&name)"),
    "alias": ("title: *t\n", "1:8", "(document): an alias (*name)"),
    "standard tag": ("title: !!str x\n", "1:8", "(document): the tag tag:yaml.org,2002:str; tags are not allowed"),
    "object tag": ("title: !!python/object:os.system {}\n", "1:8", "tags are not allowed"),
    "custom tag": ("title: !mine x\n", "1:8", "(document): the tag !mine; tags are not allowed"),
    "tag on a list": ("title: !!set [a]\n", "1:8", "tags are not allowed"),
    "bare tag": ("title: ! x\n", "1:8", "tags are not allowed"),
    "tab indent": ("requires:\n\tmin_gpu_count: 1\n", "2:1", "(document): a tab in the indentation"),
    "tab after blanks": ("requires:\n  a: 1\n \tb: 2\n", "3:2", "(document): a tab in the indentation"),
    "tab before a comment": ("title: x\t# note\n", "1:9", "(document): a tab; write blanks"),
    "tab in a word": ("a: 1\ntitle: x\ty\n", "2:9", "(document): a tab; write blanks"),
    "second document": ("title: x\n---\ntitle: y\n", "2:1", "(document): a second document starts here"),
    "directive": ("%YAML 1.1\n---\ntitle: x\n", "1:1", "(document): a % directive"),
    "tag directive": ("%TAG ! tag:x,2000:\n---\ntitle: x\n", "1:1", "(document): a % directive"),
    "not utf-8": (b"title: x\nlicense: \xff\n", "2:10", "(document): byte 0xff is not UTF-8"),
    "latin-1": ("title: caf\xe9\n".encode("latin-1"), "1:11", "(document): byte 0xe9 is not UTF-8"),
    "utf-8 bom": (b"\xef\xbb\xbftitle: x\n", "1:1", "(document): starts with a byte order mark"),
    "utf-16": ("title: x\n".encode("utf-16"), "1:1", "(document): starts with a byte order mark"),
    "utf-16 without a mark": ("title: \u5f00\n".encode("utf-16-le"), "1:", "(document): "),
    "nul": ("title: a\0b\n", "1:9", "the character U+0000 is not allowed"),
    "bell": ("a: 1\ntitle: a\x07b\n", "2:9", "the character U+0007 is not allowed"),
    "escaped control": ('title: "a\\x1b[31m"\n', "1:8", "title: 'a\\x1b[31m' holds control characters"),
    "escaped surrogate": ('title: "\\ud800"\n', "1:", ""),
    "empty": ("", "1:1", "(document): is empty; a mapping is expected"),
    "comment only": ("# nothing\n", "1:1", "(document): is empty"),
    "bare document": ("---\n", "2:1", "(document): no value where a mapping belongs"),
    "a word": ("hello\n", "1:1", "(document): a single value where a mapping belongs"),
    "a list": ("- a\n", "1:1", "(document): a list where a mapping belongs"),
    "null": ("null\n", "1:1", "(document): a single value where a mapping belongs"),
    "open quote": ('title: "x\n', "2:1", "(document): not YAML: "),
    "open bracket": ("title: [x\n", "2:1", "(document): not YAML: "),
    "two colons": ("title: x: y\n", "1:9", "(document): not YAML: mapping values are not allowed"),
    "bad indent": ("requires:\n  a: 1\n b: 2\n", "3:2", "(document): not YAML: "),
    "merge key": ("<<: {title: x}\n", "1:1", "<<: the key is not known"),
    "list as key": ("? [a]\n: x\n", "1:3", "(document): a list as a key; keys are single words"),
    "mapping as key": ("? {a: b}\n: x\n", "1:3", "(document): a mapping as a key"),
    "deep list": ("title: " + "[" * 100 + "]" * 100, "1:31", "(document): nested deeper than 24 levels"),
    "deep dashes": ("title:\n  " + "- " * 5000 + "x\n", "2:", "(document): nested deeper than 24 levels"),
    "deep mapping": ("{a: " * 5000, "1:", "(document): "),
    "a million braces": ("{" * 1_000_000, "1:", "(document): "),
    "long key": ("x" * 2000 + ": 1\n", "1:", ""),
    "quoted twin": ('title: x\n"title": y\n', "2:1", "title: the key is written twice (first in line 1)"),
    "too long": (b"#" * (1 << 20) + b"\n", "1:1", "(file): has 1048577 bytes; at most 1048576 are allowed"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_kind_of_finding(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, place, said = BAD_FILES[name]
    root = write(tmp_path / "cat", {**full(), FILE: text})
    assert _emit(root, tmp_path / "out.json") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert not (tmp_path / "out.json").exists()
    assert "internal_error" not in printed.err
    assert all(line.startswith(f"{root}/{FILE}:") for line in printed.err.splitlines())
    assert any(line.startswith(f"{root}/{FILE}:{place}") and said in line for line in printed.err.splitlines()), (
        printed.err
    )


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    text = GOOD + "#" * ((1 << 20) - len(GOOD) - 1) + "\n"
    load_catalog(write(tmp_path, {**full(), FILE: text}))


def test_windows_line_ends_and_a_document_start_are_fine(tmp_path: Path) -> None:
    text = "---\n" + GOOD
    catalog = load_catalog(write(tmp_path, {**full(), FILE: text.replace("\n", "\r\n")}))
    assert catalog.models["m"].served_model_name == "m-served"


# The words that YAML 1.1 turns into something else.
SURPRISES = ["no", "NO", "on", "Off", "yes", "y", "true", "1:30", "010", "0x1F", "1_000", "3.10", "1e3", "2026-06-19",
             "0o17", ".5", "=", "12"]  # fmt: skip


@pytest.mark.parametrize("word", [word for word in SURPRISES if word not in (".5", "=", "1:30")])
def test_a_text_field_keeps_its_characters(word: str, tmp_path: Path) -> None:
    docs = full()
    docs[FILE]["served_model_name"] = Raw(word)
    docs[FILE]["title"] = Raw(word)
    catalog = load_catalog(write(tmp_path, docs))
    assert catalog.models["m"].served_model_name == word
    assert catalog.models["m"].title == word


@pytest.mark.parametrize("word", SURPRISES)
def test_an_environment_value_keeps_its_characters(word: str, tmp_path: Path) -> None:
    docs = full()
    docs[FILE]["system_env"] = {"X": Raw(word)}
    assert load_catalog(write(tmp_path, docs)).models["m"].system_env == {"X": word}


@pytest.mark.parametrize(
    "word",
    ["010", "0x1F", "0o17", "1_000", "1:30", "+2", "2.0", "1e0", "true", '"2"', "'2'", "\u0662", "-0", "2 2", ".inf",
     ".nan", "99999999999999999999"],
)  # fmt: skip
def test_a_number_field_takes_plain_digits_only(word: str, tmp_path: Path) -> None:
    docs = full()
    docs["hardware/h.yaml"]["n_gpus"] = Raw(word)
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    assert [f.path for f in caught.value.findings] == ["n_gpus"]


@pytest.mark.parametrize(
    "word", [".inf", "-.inf", ".Inf", ".nan", ".NaN", "nan", "inf", "1e999", "0x1", "1_0.5", "0.5.1", '"0.5"', "00.5",
             "5."]
)  # fmt: skip
def test_a_decimal_field_takes_decimal_numbers_only(word: str, tmp_path: Path) -> None:
    docs = full()
    docs["hardware/h.yaml"]["sizing"]["gpu_memory_utilization"] = Raw(word)
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    assert [f.path for f in caught.value.findings] == ["sizing.gpu_memory_utilization"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("yes", "did you mean true?"),
        ("on", "did you mean true?"),
        ("True", "did you mean true?"),
        ("No", "did you mean false?"),
        ("off", "did you mean false?"),
        ("FALSE", "did you mean false?"),
        ("0", "is not a truth value; allowed: true, false"),
        ('"true"', "the quoted text 'true' is not a truth value"),
    ],
)
def test_a_truth_field_takes_true_and_false_only(word: str, said: str, tmp_path: Path) -> None:
    docs = full()
    docs[FILE]["pin_held"] = Raw(word)
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    (finding,) = caught.value.findings
    assert finding.path == "pin_held"
    assert said in finding.message


@pytest.mark.parametrize("word", ["~", "Null", "NULL"])
def test_only_one_word_is_null(word: str, tmp_path: Path) -> None:
    docs = full()
    docs[FILE]["image"] = Raw(word)
    with pytest.raises(CatalogError, match="1 fault") as caught:
        load_catalog(write(tmp_path, docs))
    assert "is null in some YAML" in caught.value.findings[0].message


def test_null_in_quotes_is_a_word(tmp_path: Path) -> None:
    docs = full()
    docs[FILE]["title"] = "null"
    docs[FILE]["image"] = None
    model = load_catalog(write(tmp_path, docs)).models["m"]
    assert (model.title, model.image) == ("null", None)


@pytest.mark.parametrize("word", ["2026-02-29", "2026-13-01", "2026-00-10", "2026-1-2", "26-01-02", "2026-01-32",
                                  "1999-01-01", "2026-01-02T00:00:00Z", "2100-02-29", "20260102"])  # fmt: skip
def test_a_day_that_is_none(word: str, tmp_path: Path) -> None:
    docs = full()
    docs["profiles/fast.yaml"]["created"] = Raw(word)
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    assert [f.path for f in caught.value.findings] == ["created"]


@pytest.mark.parametrize("word", ["2024-02-29", "2000-02-29", "2026-12-31"])
def test_a_day_stays_text(word: str, tmp_path: Path) -> None:
    docs = full()
    docs["profiles/fast.yaml"]["created"] = Raw(word)
    assert load_catalog(write(tmp_path, docs)).profiles["fast"].created == word


def test_prose_may_be_folded_and_text_may_not(tmp_path: Path) -> None:
    docs = full()
    docs[FILE]["title"] = Raw(">-\n  one\n  two\n\n  three")
    assert load_catalog(write(tmp_path, docs)).models["m"].title == "one two three"
    docs[FILE]["title"] = "x"
    docs[FILE]["quantization_kind"] = Raw("|\n  one\n  two")
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    assert "on one line" in caught.value.findings[0].message


@pytest.mark.parametrize(
    ("file", "path", "value", "at", "said"),
    [
        (
            "presets/quick.yaml",
            "card.concurrency.canonical",
            Raw("9"),
            "card.concurrency.canonical",
            "9 is not between",
        ),
        ("evidence/E1.yaml", "comparison.arms[1].K", Raw("4"), "comparison.arms", "both arms have K=4"),
    ],
)
def test_fields_that_contradict_each_other(
    file: str, path: str, value: object, at: str, said: str, tmp_path: Path
) -> None:
    docs = full()
    holder, key = holder_of(docs[file], path)
    holder[key] = value
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    assert [(f.path, said in f.message) for f in caught.value.findings] == [(at, True)]


def _shape(node: Node) -> object:
    if node.kind == "scalar":
        return (node.line, node.column, node.plain, node.value)
    if node.kind == "sequence":
        return (node.line, node.column, [_shape(child) for child in node.value])
    return (node.line, node.column, [(_shape(key), _shape(child)) for key, child in node.value])


def test_both_parsers_read_the_shipped_catalog_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(Path(presets_dir()).rglob("*.yaml"))
    assert len(files) == 75
    fast = [_shape(parse_yaml(file.read_bytes())) for file in files]
    monkeypatch.setattr(catalog_module, "_PARSER", None)
    assert [_shape(parse_yaml(file.read_bytes())) for file in files] == fast


@pytest.mark.parametrize("name", [name for name in BAD_FILES if name not in ("a million braces", "too long")])
def test_the_slow_parser_refuses_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "_PARSER", None)
    text, place, _ = BAD_FILES[name]
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, {**full(), FILE: text}))
    lines = {f"{f.line}:" for f in caught.value.findings if f.file.endswith(FILE)}
    assert place.partition(":")[0] + ":" in lines or name.startswith(("open", "bare"))


def test_the_fast_parser_is_used_where_it_exists() -> None:
    assert catalog_module._PARSER is yaml.cyaml.CParser


def test_an_error_without_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: bytes) -> Node:
        raise yaml.reader.ReaderError("x", 0, 0, "unicode", "special characters are not allowed")

    monkeypatch.setattr(catalog_module, "_build", fail)
    with pytest.raises(catalog_module._BadFileError, match="not YAML: a character is not allowed"):
        parse_yaml(b"a: 1\n")


_PIECES = st.sampled_from(
    ["title", ": ", ":", "\n", "  ", "- ", "[", "]", "{", "}", ",", "&a", "*a", "!t", "!!int", "?", "|", ">", "'", '"',
     "#", "%", "---", "...", "\t", "null", "true", "1", "é", "\u2028", "\x85", "\x00", "<<", "engine: vllm\n", "@", "`"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(_PIECES, max_size=40).map("".join) | st.text(max_size=60) | st.binary(max_size=60))
def test_no_text_gets_past_the_findings(text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    for parser in (yaml.cyaml.CParser, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog_module, "_PARSER", parser)
            try:
                node = parse_yaml(data)
            except catalog_module._BadFileError as error:
                assert error.line >= 1
                assert error.column >= 1
                assert re.match(r"[^\n]+\Z", error.message)
                continue
            sink_findings: list[object] = []
            from sndr.cli.table.fields import Sink
            from sndr.cli.table.layers import MODEL

            MODEL.read(node, "", Sink("x", sink_findings))  # type: ignore[arg-type]
            assert sink_findings
