"""Every field of every layer, spoiled in every way: the finding stands exactly at the fault, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sndr.cli.main import module_root, run
from sndr.cli.table.catalog import CatalogError, load_catalog
from sndr.cli.table.fields import (
    Block,
    Bool,
    Capability,
    Choice,
    Date,
    Int,
    ListOf,
    MapOf,
    Number,
    Pointer,
    Prose,
    Text,
)
from tests.support.catalog import FULL, TABLES, Raw, Spot, full, holder_of, render, spots, write

SPOTS = list(spots())


def _fields(table: Block) -> Iterator[str]:
    for field in table.fields:
        yield field.name
        inner = field.reader.item if isinstance(field.reader, ListOf) else field.reader
        if isinstance(inner, Block):
            yield from _fields(inner)


def test_the_sample_catalog_is_good_and_writes_out_every_field(tmp_path: Path) -> None:
    catalog = load_catalog(write(tmp_path, full()), archive=True)
    assert list(catalog.presets) == ["plain", "quick"]
    assert list(catalog.archived) == ["old"]
    for table in {id(table): table for table in TABLES.values()}.values():
        files = [file for file, other in TABLES.items() if other is table]
        reached = [spot.field.name for spot in SPOTS if spot.file in files]
        assert sorted(set(_fields(table)) - set(reached)) == []


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample catalog; a test rewrites one file of it and puts it back."""
    return write(tmp_path_factory.mktemp("fields") / "cat", full())


Check = Callable[..., None]


@pytest.fixture
def check(root: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Emit from the spoiled catalog: exit 1, the finding in its form, no output, no file, no traceback."""

    def run_and_look(docs: dict[str, Any], file: str, line: str, *parts: str) -> None:
        out = root.parent / "out.json"
        write(root, {file: docs[file]})
        try:
            code = run(module_root(), ["routing-table", "--json", "--presets", str(root), "--out", str(out)], "sndr")
        finally:
            write(root, {file: FULL[file]})
        printed = capsys.readouterr()
        assert code == 1
        assert printed.out == ""
        assert not out.exists()
        lines = printed.err.splitlines()
        form = re.compile(re.escape(str(root)) + r"/[^:]+\.yaml:[1-9]\d*:[1-9]\d*: [^ ].*: .+")
        assert [text for text in lines if not form.fullmatch(text)] == []
        found = [text for text in lines if text.startswith(f"{root}/{file}:{line}: ")]
        assert found, printed.err
        for part in parts:
            assert any(part in text for text in found), (part, found)

    return run_and_look


def _id(spot: Spot) -> str:
    return f"{spot.file}:{spot.path}"


REQUIRED = [spot for spot in SPOTS if spot.field.required]


@pytest.mark.parametrize("spot", REQUIRED, ids=_id)
def test_missing(spot: Spot, check: Check) -> None:
    docs = full()
    holder, key = holder_of(docs[spot.file], spot.path)
    del holder[key]
    if not holder:  # YAML cannot write an empty block mapping
        holder["unknown_key"] = 1
    places = render(docs[spot.file])[1]
    parent = spot.path.rpartition(".")[0]
    line, column = places[parent].value if parent else (1, 1)
    check(docs, spot.file, f"{line}:{column}: {spot.path}", "the key is missing; write ")


@pytest.mark.parametrize("spot", SPOTS, ids=_id)
def test_wrong_type(spot: Spot, check: Check) -> None:
    docs = full()
    holder, key = holder_of(docs[spot.file], spot.path)
    scalar = not isinstance(spot.reader, (Block, ListOf, MapOf, Capability))
    holder[key] = Raw("[[a], b]") if scalar else Raw("word")
    line, column = render(docs[spot.file])[1][spot.path].value
    what = "a list where" if scalar else "a single value where"
    check(docs, spot.file, f"{line}:{column}: {spot.path}", what, "belongs")


@pytest.mark.parametrize("spot", SPOTS, ids=_id)
def test_null_only_where_it_is_allowed(spot: Spot, tmp_path: Path, check: Check) -> None:
    docs = full()
    holder, key = holder_of(docs[spot.file], spot.path)
    holder[key] = None
    if spot.field.nullable:
        try:
            load_catalog(write(tmp_path, docs))
        except CatalogError as error:  # another field may need it; then that one says so
            assert all(finding.path != spot.path for finding in error.findings)
        return
    line, column = render(docs[spot.file])[1][spot.path].value
    check(docs, spot.file, f"{line}:{column}: {spot.path}")


@pytest.mark.parametrize("spot", SPOTS, ids=_id)
def test_empty(spot: Spot, check: Check) -> None:
    docs = full()
    holder, key = holder_of(docs[spot.file], spot.path)
    holder[key] = Raw("")
    line = render(docs[spot.file])[1][spot.path].value[0]
    column = render(docs[spot.file])[1][spot.path].value[1] - 1  # the blank after the colon holds nothing
    check(docs, spot.file, f"{line}:{column}: {spot.path}", "no value")


@pytest.mark.parametrize("spot", SPOTS, ids=_id)
def test_duplicate(spot: Spot, check: Check) -> None:
    docs = full()
    holder, key = holder_of(docs[spot.file], spot.path)
    holder[f"{key}#2"] = Raw("again")
    places = render(docs[spot.file])[1]
    line, column = places[f"{spot.path}#2"].key
    first = places[spot.path].key[0]
    message = f"the key is written twice (first in line {first})"
    check(docs, spot.file, f"{line}:{column}: {spot.path}", message)


@pytest.mark.parametrize("spot", SPOTS, ids=_id)
def test_unknown_key_with_the_near_one(spot: Spot, check: Check) -> None:
    docs = full()
    holder, key = holder_of(docs[spot.file], spot.path)
    wrong = f"{key}x" if len(key) < 4 else f"{key[:-1]}"
    items = [(wrong if name == key else name, value) for name, value in holder.items()]
    holder.clear()
    holder.update(items)
    path = spot.path[: len(spot.path) - len(key)] + wrong
    line, column = render(docs[spot.file])[1][path].key
    suggestion = "(did you mean " if len(key) > 2 else "allowed: "
    check(docs, spot.file, f"{line}:{column}: {path}", "the key is not known; allowed: ", suggestion)


def _out_of_range(spot: Spot) -> tuple[Any, str, Callable[[str], str]] | None:
    """Return a value that is of the right type and not allowed, what is said about it, and at which path."""
    reader, here = spot.reader, lambda path: path
    match reader:
        case Int():
            return Raw(str(reader.high + 1)), f"out of range; write a whole number from {reader.low}", here
        case Number():
            return Raw("1e9"), "out of range; write a number", here
        case Bool():
            return Raw("yes"), "allowed: true, false (did you mean true?)", here
        case Date():
            return Raw("2026-02-30"), "is not in the calendar", here
        case Choice():
            return reader.words[0] + "x", f"(did you mean {reader.words[0]}?)", here
        case Pointer():
            return "no-such-id", "there is no ", here
        case Text() if reader.pattern is not None:
            return "! !", f"'! !' is not {reader.what}", here
        case Text() | Prose():
            return "x" * 2001, "characters; at most", here
        case Capability():
            return [8], "1 items; exactly 2 are allowed", here
        case MapOf():
            return {"bad key": "1"}, "'bad key' is not ", lambda path: f"{path}.bad key"
        case ListOf() if reader.low:
            return [], "0 items; from 1 to 1000 are allowed" if reader.low == 1 else "0 items; exactly 2", here
        case ListOf() if isinstance(reader.item, Block):
            return None
        case ListOf():
            holder, key = holder_of(FULL[spot.file], spot.path)
            return [holder[key][0], holder[key][0]], "is listed twice; list each item once", lambda path: f"{path}[1]"
    return None


RANGED = [(spot, case) for spot in SPOTS if (case := _out_of_range(spot)) is not None]


@pytest.mark.parametrize(("spot", "case"), RANGED, ids=[_id(spot) for spot, _ in RANGED])
def test_out_of_range_or_dangling(spot: Spot, case: tuple[Any, str, Callable[[str], str]], check: Check) -> None:
    docs = full()
    value, said, where = case
    holder, key = holder_of(docs[spot.file], spot.path)
    holder[key] = value
    path = where(spot.path)
    place = render(docs[spot.file])[1].get(path)
    if place is None:
        place = render(docs[spot.file])[1][spot.path]
    line, column = place.key if isinstance(spot.reader, MapOf) else place.value
    check(docs, spot.file, f"{line}:{column}: {path}", said)


def test_every_pointer_of_every_layer_is_checked() -> None:
    pointers = {_id(spot) for spot in SPOTS if isinstance(spot.reader, Pointer)}
    assert {name.partition(":")[2] for name in pointers} == {
        "parent_model",
        "target_hardware",
        "model",
        "hardware",
        "profile",
        "card.fallback_preset",
        "rules[0].preset_key",
        "rules[0].evidence",
        "coverage_gaps[0].fallback_preset",
        "coverage_gaps[0].was",
        "comparison.arms[0].preset",
    }


DANGLING_WORDS = [
    ("models/m.yaml", "model_family", "gam", "there is no family 'gam'; allowed: fam, lone (did you mean fam?)"),
    ("evidence/E1.yaml", "model_family", "gam", "there is no family 'gam'"),
    ("routing/rules.yaml", "rules[0].model_family", "gam", "there is no family 'gam'"),
    ("routing/gaps.yaml", "coverage_gaps[0].model_family", "gam", "there is no family 'gam'"),
    ("routing/rules.yaml", "rules[0].preset_key", "old", "there is no active (it is archived) preset 'old'"),
    ("routing/rules.yaml", "rules[0].preset_key", "quik", "(did you mean quick?)"),
    ("presets/quick.yaml", "card.workload_allow[2]", "odd_jib", "(did you mean odd_job?)"),
    ("presets/quick.yaml", "card.workload_deny[0]", "fre_chat", "(did you mean free_chat?)"),
]


@pytest.mark.parametrize(("file", "path", "word", "said"), DANGLING_WORDS)
def test_dangling_words(file: str, path: str, word: str, said: str, check: Check) -> None:
    docs = full()
    if path.endswith("]") and "." in path and path.rpartition("[")[2][:-1].isdigit():
        stem, _, index = path[:-1].rpartition("[")
        holder, key = holder_of(docs[file], stem)
        holder[key][int(index)] = word
    else:
        holder, key = holder_of(docs[file], path)
        holder[key] = word
    line, column = render(docs[file])[1][path].value
    check(docs, file, f"{line}:{column}: {path}", said)


@pytest.mark.parametrize("path", ["title", "quantization_kind"])
def test_blank_text(path: str, check: Check) -> None:
    docs = full()
    docs["models/m.yaml"][path] = "  "
    line, column = render(docs["models/m.yaml"])[1][path].value
    check(docs, "models/m.yaml", f"{line}:{column}: {path}", "blank; write ")


@pytest.mark.parametrize("preset", ["quick", "plain"])
def test_a_dangling_pointer_is_the_only_fault_named(preset: str, tmp_path: Path) -> None:
    docs = full()
    docs[f"presets/{preset}.yaml"]["model"] = "n"
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    assert [(f.path, f.message) for f in caught.value.findings] == [
        ("model", "there is no model 'n'; allowed: drafting, m")
    ]


def test_all_faults_of_all_files_come_together(tmp_path: Path) -> None:
    docs = full()
    docs["models/m.yaml"]["engine"] = "vlm"
    docs["models/m.yaml"]["dtype"] = Raw("12")
    docs["hardware/h.yaml"]["n_gpus"] = Raw("two")
    docs["presets/quick.yaml"]["card"]["status"] = "prod"
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    assert [(f.file.removeprefix(f"{tmp_path}/"), f.path) for f in caught.value.findings] == [
        ("hardware/h.yaml", "n_gpus"),
        ("models/m.yaml", "engine"),
        ("models/m.yaml", "dtype"),
        ("presets/quick.yaml", "card.status"),
    ]
    assert caught.value.message == "the catalog has 4 faults"


def test_an_archived_file_is_checked_when_the_archive_is_asked_for(tmp_path: Path) -> None:
    docs = full()
    docs["archive/presets/old.yaml"]["card"]["status"] = "prod"
    docs["archive/profiles/older.yaml"]["parent_model"] = "n"
    root = write(tmp_path, docs)
    load_catalog(root)
    with pytest.raises(CatalogError) as caught:
        load_catalog(root, archive=True)
    assert [f.path for f in caught.value.findings] == ["card.status"]
    docs["archive/presets/old.yaml"] = FULL["archive/presets/old.yaml"]
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs), archive=True)
    assert [f.path for f in caught.value.findings] == ["parent_model"]
