"""Request bodies: what is read, what is replaced, and that everything else stays as it was sent."""

from __future__ import annotations

import json
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sndr.router.wire.openai_api import Dialect, Refused, encode_error, encode_error_event, parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
SPECIAL = {"model", "stream", "stream_options", "tools", "functions", "background", "max_tokens",
           "max_completion_tokens", "max_output_tokens"}  # fmt: skip


def sent_on(data: bytes, model: bytes | None, **changes: Any) -> bytes:
    return b"".join(parse(data).pieces(model, **changes))


@given(st.dictionaries(st.text(max_size=6).filter(lambda name: name not in SPECIAL), JSON, max_size=5), st.booleans())
def test_other_members_arrive_unchanged_and_in_order(members: dict[str, object], escape: bool) -> None:
    body = json.dumps({**members, "model": "A"}, ensure_ascii=escape)
    try:
        data = body.encode()
    except UnicodeEncodeError:
        data = json.dumps({**members, "model": "A"}).encode()
    try:
        sent = sent_on(data, b'"m1"')
    except Refused as refused:
        assert refused.code == "invalid_json"  # a lone surrogate
        assert b"\\ud" in data.lower()
        return
    assert json.loads(sent, object_pairs_hook=list) == json.loads(
        json.dumps({**members, "model": "m1"}), object_pairs_hook=list
    )


def test_values_keep_their_bytes_and_repeats() -> None:
    body = b'{"x" : [1.500,  {"a":"\\u00e9\xc3\xa9"}], "model":"A","x":1e3,"\\u0078":2}'
    assert sent_on(body, b'"m1"') == b'{"x":[1.500,  {"a":"\\u00e9\xc3\xa9"}],"model":"m1","x":1e3,"x":2}'
    assert sent_on(body, None).count(b'"model":"A"') == 1


@pytest.mark.parametrize("size", [1, 9000])
@given(
    before=st.lists(st.tuples(st.sampled_from(["x", "é", "mod\u0000el", 'a"b', "x"]), JSON), max_size=3),
    after=st.lists(st.tuples(st.sampled_from(["x", "metadata", "é"]), JSON), max_size=3),
    blanks=st.lists(st.sampled_from(["", " ", "\n"]), min_size=1, max_size=8),
    compact=st.booleans(),
    escape=st.booleans(),
)
def test_only_the_model_is_exchanged_however_the_body_is_spaced(
    size: int,
    before: list[tuple[str, object]],
    after: list[tuple[str, object]],
    blanks: list[str],
    compact: bool,
    escape: bool,
) -> None:
    """A body without blanks between its members is sent on around the model's value, any other member by member."""

    def text(name: str) -> list[tuple[str, str]]:
        members = [*before, ("model", name), ("y", {"model": "A", "z": "x" * size}), *after]
        return [(json.dumps(n, ensure_ascii=escape), json.dumps(v, ensure_ascii=escape)) for n, v in members]

    space = cycle(blanks)
    body = "{" + ",".join(
        name + ":" + value if compact else f"{next(space)}{name}{next(space)}:{next(space)}{value}{next(space)}"
        for name, value in text("A")
    ) + "}"  # fmt: skip
    try:
        sent = sent_on(body.encode(), b'"m1"').decode()
    except (Refused, UnicodeEncodeError):
        return  # a lone surrogate
    wanted = "{" + ",".join(f"{name}:{value}" for name, value in text("m1")) + "}"
    if compact and all(name.isascii() and "\\" not in name for name, _ in text("A")):
        assert sent == wanted
    assert json.loads(sent, object_pairs_hook=list) == json.loads(wanted, object_pairs_hook=list)
    assert all(value in sent for _, value in text("m1"))


def test_usage_is_asked_for_beside_what_the_client_said() -> None:
    ask = sent_on(b'{"model":"a","stream":true,"stream_options":{"x": [1]}}', None, ask_usage=True)
    assert json.loads(ask)["stream_options"] == {"x": [1], "include_usage": True}
    ask = sent_on(b'{"model":"a","stream":true,"stream_options":null}', None, ask_usage=True)
    assert json.loads(ask)["stream_options"] == {"include_usage": True}
    assert json.loads(sent_on(b'{"model":"a"}', None, ask_usage=True))["stream_options"]["include_usage"]


def test_extra_members_hard_and_soft() -> None:
    body = sent_on(
        b'{"temperature":1,"model":"a","top_k":5}',
        b'"m"',
        force={"temperature": b"0", "seed": b"7"},
        default={"top_k": b"1", "min_p": b"0.1", "seed": b"8"},
    )
    assert json.loads(body) == {"model": "m", "top_k": 5, "min_p": 0.1, "temperature": 0, "seed": 7}
    assert body.count(b"temperature") == body.count(b"seed") == 1


def test_every_limit_on_output_is_lowered() -> None:
    request = parse(b'{"model":"a","max_tokens":5,"max_completion_tokens":900,"max_output_tokens":null}')
    assert request.max_tokens == 900
    assert json.loads(b"".join(request.pieces(None, output_limit=100))) == {
        "model": "a", "max_tokens": 5, "max_completion_tokens": 100, "max_output_tokens": None,
    }  # fmt: skip


BAD = [
    (b"", "invalid_json"), (b"null", "invalid_json"), (b"[]", "invalid_json"), (b'{"model":"a"} x', "invalid_json"),
    (b'\xef\xbb\xbf{"model":"a"}', "invalid_json"), (b'{"model":"a","x":NaN}', "invalid_json"),
    (b'{"model":"a","x":01}', "invalid_json"), (b'{"model":"a",}', "invalid_json"),
    (b'{"model":"a","x":"\xed\xa0\x80"}', "invalid_json"), (b'{"model":"a","x":"\xc0\xaf"}', "invalid_json"),
    (b'{"model":"a","x":"\\ud800"}', "invalid_json"), (b'{"model":"a","\\udc00":1}', "invalid_json"),
    (b'{"model":"a","x":"\n"}', "invalid_json"), (b'{"x":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "invalid_json"),
    (b"{}", "invalid_request"), (b'{"model":null}', "invalid_request"),
    (b'{"model":"a","model":"a"}', "invalid_request"),
    (b'{"model":"a","stream":1}', "invalid_request"), (b'{"model":"a","stream_options":[]}', "invalid_request"),
    (b'{"model":"a","stream_options":{"include_usage":"x"}}', "invalid_request"),
    (b'{"model":"a","max_tokens":1.5}', "invalid_request"), (b'{"model":"a","max_tokens":"5"}', "invalid_request"),
    (b'{"model":"a","max_tokens":true}', "invalid_request"),
    (b'{"model":"a","max_tokens":9223372036854775808}', "invalid_request"),
    (b'{"model":"a","max_tokens":1' + b"0" * 4000 + b"}", "invalid_request"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "code"), BAD)
def test_what_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(body)
    assert (caught.value.status, caught.value.code) == (400, code)


@pytest.mark.parametrize(("tools", "has"), [(b"null", False), (b"[ ]", False), (b"[{}]", True)])
def test_tools(tools: bytes, has: bool) -> None:
    assert parse(b'{"model":"a","tools":' + tools + b"}").has_tools is has


def test_error_bodies_follow_the_dialect() -> None:
    assert json.loads(encode_error(Dialect.OPENAI, 404, "model_not_found", "no", "model")) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    }
    assert json.loads(encode_error(Dialect.ANTHROPIC, 404, "x", "no")) == {
        "type": "error", "error": {"type": "not_found_error", "message": "no"},
    }  # fmt: skip
    assert json.loads(encode_error(Dialect.PROBLEM, 404, "not_found", "no"))["code"] == "not_found"
    kinds = [
        json.loads(encode_error(Dialect.OPENAI, status, "c", "m"))["error"]["type"] for status in (401, 403, 429, 502)
    ]
    assert kinds == ["authentication_error", "permission_error", "rate_limit_error", "server_error"]
    assert encode_error_event(Dialect.OPENAI, 502, "c", "m").startswith(b'data: {"error":')
    assert encode_error_event(Dialect.ANTHROPIC, 502, "c", "m").startswith(b"event: error\ndata: ")
    assert b'"sequence_number":8' in encode_error_event(Dialect.RESPONSES, 502, "c", "m", 8)


@pytest.mark.parametrize("content", ["x" * 9000, "é" * 9000])
def test_a_body_is_read_and_sent_on_from_the_middle_of_what_came(content: str) -> None:
    body = json.dumps({"messages": content, "model": "A", "x": 1}, ensure_ascii=False, separators=(",", ":")).encode()
    viewed = memoryview(b"\xe9 head\r\n\r\n" + body)[10:]
    assert viewed == body
    assert b"".join(parse(viewed).pieces(b'"m1"')) == body.replace(b'"A"', b'"m1"')
    assert b"".join(parse(viewed).pieces(None)) == body


def test_bad_characters_are_refused_wherever_the_body_is() -> None:
    with pytest.raises(Refused) as caught:
        parse(memoryview(b'head{"model":"a","x":"\xff"}')[4:])
    assert caught.value.code == "invalid_json"
