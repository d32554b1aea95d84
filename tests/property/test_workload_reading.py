"""The gateway decides from a few members of a body what the library decides from all of it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sndr.contract import READ_MEMBERS, decide, load, strip_hints
from sndr.router.gateway.workload import _DIALECTS, _READ, _header
from sndr.router.wire.openai_api import Refused, parse
from tests.support.contract_vectors import G26, REFERENCE

TABLE = load(REFERENCE)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 600), st.just(10**30), st.floats(0, 600), st.text(max_size=3),
    st.sampled_from(["short", "medium", "long", "code", "json_object", "json_schema", "text", "Short"]),
)  # fmt: skip
NAMES = st.sampled_from(
    ["type", "format", "expected_length", "category", "max_tokens", "json_schema", "x", "tools", "\u00e9"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
MEMBERS = sorted({name for names in READ_MEMBERS.values() for name in names} - {"model"})
BODIES = st.dictionaries(st.sampled_from([*MEMBERS, "messages", "temperature"]), VALUES, max_size=6)


@settings(max_examples=400, deadline=None)
@given(BODIES, st.sampled_from(sorted(_DIALECTS)), st.sampled_from([1, 2]))
def test_reading_a_few_members_decides_the_same(body: dict[str, Any], endpoint: str, in_flight: int) -> None:
    data = json.dumps({"model": "m", **body}).encode()
    try:
        request = parse(data)
    except Refused:
        return
    dialect = _DIALECTS[endpoint]
    whole = decide(TABLE, json.loads(data), in_flight=in_flight, dialect=dialect, family=G26)
    read = decide(TABLE, request.read(_READ[dialect]), in_flight=in_flight, dialect=dialect, family=G26)
    assert read == whole


@settings(max_examples=200, deadline=None)
@given(BODIES)
def test_what_is_forwarded_is_what_the_library_leaves(body: dict[str, Any]) -> None:
    data = json.dumps({"model": "m", **body}).encode()
    try:
        request = parse(data)
    except Refused:
        return
    assert json.loads(b"".join(request.pieces(None, without_hints=True))) == strip_hints(json.loads(data))
    assert json.loads(b"".join(request.pieces(None))) == json.loads(data)


@given(st.text())
def test_no_word_of_a_table_breaks_a_header(text: str) -> None:
    value = _header(text)
    assert value.isascii()
    assert value.isprintable() or value == ""
    assert len(value) <= 256
