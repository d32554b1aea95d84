"""Bounds of every number field of the catalog, and the length of text."""

from __future__ import annotations

import pytest

from sndr.cli.table.catalog import parse_yaml
from sndr.cli.table.fields import SCALAR, Block, Field, Finding, Int, MapOf, Node, Number, Prose, Sink, Text, hint, near
from tests.support.catalog import Spot, spots

NUMBERS = [spot for spot in spots() if isinstance(spot.reader, (Int, Number))]


def _read(reader: Int | Number | Text | Prose, text: str) -> tuple[object, list[Finding]]:
    sink = Sink("f", [])
    return reader.read(Node(SCALAR, text, True, 1, 1), "p", sink), sink.findings


@pytest.mark.parametrize("spot", NUMBERS, ids=lambda spot: f"{spot.file}:{spot.path}")
def test_bounds(spot: Spot) -> None:
    reader = spot.reader
    assert isinstance(reader, (Int, Number))
    step = 1 if isinstance(reader, Int) else 0.001
    low_is_in = not (isinstance(reader, Number) and reader.above)
    for value, is_in in (
        (reader.low, low_is_in),
        (reader.low + step, True),
        (reader.high, True),
        (reader.low - step, False),
        (reader.high + step, False),
    ):
        got, found = _read(reader, f"{value}")
        assert (got == value, found == []) == (is_in, is_in), value
        assert all("out of range; write a" in finding.message for finding in found)


def test_whole_numbers_stay_whole_where_fractions_are_allowed() -> None:
    assert [type(_read(Number(0, 10), text)[0]) for text in ("5", "5.0", "5e0")] == [int, float, float]


@pytest.mark.parametrize(("reader", "limit"), [(Text(), 300), (Text(limit=5), 5), (Prose(), 2000)])
def test_length(reader: Text | Prose, limit: int) -> None:
    assert _read(reader, "x" * limit) == ("x" * limit, [])
    got, (finding,) = _read(reader, "x" * (limit + 1))
    assert got is None
    assert f"{limit + 1} characters; at most {limit} are allowed" in finding.message


def test_a_hint_names_twenty_words_and_the_near_one() -> None:
    words = [f"word{number}" for number in range(30)]
    assert hint("wrd29", words) == f"allowed: {', '.join(words[:20])}, ... (30 in all) (did you mean word29?)"
    assert hint("x", []) == "allowed: none"
    assert near("zzz", words) is None


@pytest.mark.parametrize("text", [b"a: 1\na: 2\n", b"a: 1\n? [b]\n: 2\n", b"a: 1\nb: 2\n"])
@pytest.mark.parametrize("reader", [Block([Field("a", Int(0, 9))]), MapOf(Int(0, 9), "a", "the letter a")])
def test_a_block_with_a_fault_in_its_keys_has_no_value(text: bytes, reader: Block | MapOf) -> None:
    sink = Sink("f", [])
    assert reader.read(parse_yaml(text), "", sink) is None
    assert len(sink.findings) == 1
