"""The canonical form and the strict decoder, on whatever Hypothesis finds."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sndr.errors import AuthorityError
from sndr.router.core import projection as routes
from sndr.router.core.receipt import Record
from sndr.router.wire import record as wire
from tests.support import records

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-routes.INTEGER_MAX, routes.INTEGER_MAX)
    | st.integers(-999_999, 999_999).map(lambda number: number / 1000)
    | TEXT
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
FREE = st.none() | st.dictionaries(
    TEXT, st.recursive(SCALARS, lambda i: st.lists(i, max_size=3), max_leaves=6), max_size=4
)
IDS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=12)
COUNTS = st.none() | st.integers(1, routes.INTEGER_MAX)
LINES = st.none() | st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)

TIERS = st.fixed_dictionaries(
    {"base_url": st.sampled_from(["http://127.0.0.1:8000/v1", "https://models.example", "http://[::1]:9/v1"])},
    optional={
        "model": LINES,
        "engine": LINES,
        "max_concurrency": COUNTS,
        "context_limit": COUNTS | st.just("upstream"),
        "idle_timeout_ms": COUNTS,
        "extra_body": FREE,
        "extra_body_defaults": FREE,
        "params": FREE,
        "model_identity": st.booleans(),
        "tool_support": st.booleans(),
        "serves": st.lists(st.sampled_from(routes.ENDPOINTS), min_size=1, unique=True),
        "auth_env": st.none() | st.just("KEY_1"),
        "health_path": st.none() | st.just("/health"),
    },
)


@st.composite
def projections(draw: st.DrawFn) -> routes.Projection:
    tiers = draw(st.dictionaries(IDS, TIERS, min_size=1, max_size=4))
    names = st.sampled_from(sorted(tiers))
    direct = names.map(lambda tier: {"tier": tier})
    family = st.builds(
        lambda tier, family, reaction: {"family": family, "natural": tier, "on_unready": reaction},
        names,
        IDS,
        st.sampled_from(["refuse", "family_default"]),
    )
    aliases = draw(st.dictionaries(IDS, direct | family, max_size=4))
    return routes.parse({"aliases": aliases, "tiers": tiers}, fill=True)


@pytest.mark.req("R14")
@given(projections())
def test_the_canonical_form_survives_a_round_trip(projection: routes.Projection) -> None:
    encoded = routes.canonical(routes.to_json(projection))
    assert encoded == projection.encoded
    decoded = wire.decode_strict(encoded)
    assert routes.parse(decoded) == projection
    assert routes.canonical(routes.to_json(routes.parse(decoded))) == encoded
    assert routes.sha256(routes.parse(decoded)) == routes.sha256(projection)


@pytest.mark.req("R13", "R14")
@given(projections(), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(projection: routes.Projection, rng: Any) -> None:
    def shuffle(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            rng.shuffle(items)
            return {key: shuffle(item) for key, item in items}
        return [shuffle(item) for item in value] if isinstance(value, list) else value

    again = routes.parse(shuffle(routes.to_json(projection)))
    assert again == projection
    assert routes.sha256(again) == routes.sha256(projection)
    assert list(again.tiers) == sorted(again.tiers)


@pytest.mark.req("R13")
@given(projections(), projections())
def test_equal_routes_have_equal_hashes_and_others_do_not(one: routes.Projection, other: routes.Projection) -> None:
    assert (one == other) == (routes.sha256(one) == routes.sha256(other))
    assert (routes.diff(one, other) == ()) == (one == other)
    assert routes.diff(one, one) == ()
    tiers = [routes.to_json(projection)["tiers"] for projection in (one, other)]
    assert (routes.changed_tiers(one, other) == ()) == (routes.canonical(tiers[0]) == routes.canonical(tiers[1]))


@given(projections())
def test_a_value_that_was_parsed_is_valid_again(projection: routes.Projection) -> None:
    assert routes.is_valid(projection)
    assert routes.is_valid(projection, (projection,))


@pytest.mark.req("R14", "R57")
@pytest.mark.invariant("INV-14")
@given(projections(), st.integers(1, routes.INTEGER_MAX), st.integers(1, routes.INTEGER_MAX))
def test_every_record_reads_back_as_it_is(projection: routes.Projection, number: int, write_seq: int) -> None:
    record: Record = records.first(projection, number=number, write_seq=write_seq)
    data = wire.encode_record(record)
    assert wire.parse_record(data) == record
    assert wire.encode_record(wire.parse_record(data)) == data
    document = json.loads(data)
    assert routes.canonical(document) == data
    assert document.pop("digest") == wire.content_sha256(document)


@given(JSON)
def test_the_decoder_reads_what_the_standard_one_reads(value: Any) -> None:
    data = routes.canonical(value)
    try:
        decoded = wire.decode_strict(data)
    except wire.StrictJsonError as error:
        assert "digits" in str(error) or "nested" in str(error)
        return
    assert decoded == json.loads(data)
    assert routes.canonical(decoded) == data


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
@example(b'"\\')
@example(b"[" * 20)
@example(b"-")
@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\0123456789.eE+-ntrufalse \n', max_size=80).map(str.encode))
def test_no_bytes_make_the_decoder_raise_anything_else(data: bytes) -> None:
    try:
        value = wire.decode_strict(data)
    except wire.StrictJsonError:
        return
    assert value == json.loads(data)


@settings(max_examples=300)
@given(st.integers(0, 10_000), st.integers(0, 7), st.integers(0, 3))
def test_a_damaged_record_is_never_accepted(at: int, bit: int, how: int) -> None:
    good = wire.encode_record(records.committed(records.managed(records.first())))
    at %= len(good)
    bad = {
        0: good[:at],
        1: good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :],
        2: good[:at] + good[at + 1 :],
        3: good[:at] + good[at : at + 1] + good[at:],
    }[how]
    with pytest.raises(AuthorityError):
        wire.parse_record(bad)


@given(JSON)
def test_no_value_makes_the_parser_of_routes_raise_anything_else(value: Any) -> None:
    for document in (value, {"aliases": value, "tiers": value}, {"aliases": {}, "tiers": {"a": value}}):
        for fill in (False, True):
            try:
                routes.parse(document, fill=fill)
            except routes.ProjectionError as error:
                assert error.findings
                assert all("\n" not in f"{finding.pointer}{finding.message}" for finding in error.findings)


@given(projections(), JSON)
def test_no_value_makes_a_change_raise_anything_else(projection: routes.Projection, value: Any) -> None:
    tier_id = next(iter(projection.tiers))
    for apply in (routes.apply_aliases, routes.apply_tiers):
        for change in (value, {tier_id: value}, {tier_id: {"model": value}}, {tier_id: {"tier": value}}):
            try:
                result = apply(projection, change)
            except routes.ProjectionError as error:
                assert error.findings
            else:
                assert routes.is_valid(result)
                assert result != projection


@given(st.integers(0, 253_402_300_799_999))
def test_instants_survive_a_round_trip(at_ms: int) -> None:
    assert wire.parse_instant(wire.format_instant(at_ms)) == at_ms


@given(st.sampled_from(records.steps()), st.integers(1, 1_000))
def test_the_digest_covers_everything(step: records.Step, write_seq: int) -> None:
    one = wire.encode_record(replace(step.after, write_seq=write_seq))
    other = wire.encode_record(replace(step.after, write_seq=write_seq + 1))
    assert json.loads(one)["digest"] != json.loads(other)["digest"]
