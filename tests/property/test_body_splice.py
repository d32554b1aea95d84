"""The body for the server, compared with what a slow and plain reading of the client's says that it must be."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from sndr.contract import HINT_MEMBERS
from sndr.router.wire.openai_api import Refused, parse

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
BLANK = b" \t\r\n"
Members = list[tuple[str, bytes]]


def behind_blanks(text: bytes, at: int) -> int:
    while text[at : at + 1] and text[at] in BLANK:
        at += 1
    return at


def end_of_text(text: bytes, at: int) -> int:
    at += 1
    while text[at] != ord('"'):
        at += 2 if text[at] == ord("\\") else 1
    return at + 1


def end_of_value(text: bytes, at: int) -> int:
    depth = 0
    while True:
        char = text[at : at + 1]
        if char == b'"':
            at = end_of_text(text, at)
        elif char in (b"{", b"["):
            depth, at = depth + 1, at + 1
        elif char in (b"}", b"]"):
            depth, at = depth - 1, at + 1
        elif depth:
            at += 1
            continue
        else:
            while text[at] not in b",}" + BLANK:
                at += 1
        if not depth:
            return at


def members_of(text: bytes) -> Members:
    """Names and values as they are written, in order, repeated ones included."""
    found: Members = []
    at = behind_blanks(text, behind_blanks(text, 0) + 1)
    while text[at] != ord("}"):
        end = end_of_text(text, at)
        name = json.loads(text[at:end])
        at = behind_blanks(text, behind_blanks(text, end) + 1)
        end = end_of_value(text, at)
        found.append((name, text[at:end]))
        at = behind_blanks(text, end)
        if text[at] == ord(","):
            at = behind_blanks(text, at + 1)
    return found


def joined(members: Members) -> bytes:
    return b"{" + b",".join([msgspec.json.encode(name) + b":" + value for name, value in members]) + b"}"


def expected(
    body: bytes,
    model: bytes | None,
    force: Mapping[str, bytes],
    default: Mapping[str, bytes],
    limit: int | None,
    ask_usage: bool,
    without_hints: bool,
) -> bytes:
    sent: Members = []
    for name, value in members_of(body):
        if name in force or (without_hints and name in HINT_MEMBERS):
            continue
        if without_hints and name == "extra_body" and value.startswith(b"{"):
            inner = members_of(value)
            kept = [member for member in inner if member[0] not in HINT_MEMBERS]
            value = value if kept == inner else joined(kept)
        elif name == "model" and model is not None:
            value = model
        elif ask_usage and name == "stream_options":
            options = {} if value == b"null" else dict(members_of(value))
            value = joined(list({**options, "include_usage": b"true"}.items()))
        elif limit is not None and name in LIMITS and value != b"null" and int(float(value)) > limit:
            value = b"%d" % limit
        sent.append((name, value))
    if ask_usage and "stream_options" not in dict(sent):
        sent.append(("stream_options", b'{"include_usage":true}'))
    asked = dict(members_of(body))
    sent += [(name, value) for name, value in default.items() if name not in asked and name not in force]
    return joined([*sent, *force.items()])


BLANKS = st.sampled_from(["", "", "", " ", "\n", "\t \r\n"])
NAMES = ["messages", "max_tokens", "stream_options", "extra_body", "category", "é", "\U0001f600", 'q"q', "Model", "foo"]
VALUES = st.sampled_from([
    "1", "-0", "1E400", "123456789012345678901234567890.5", "true", "null", '""', '"model"', '"\\u006f\\ud83d\\ude00"',
    '"é☃"', '"a\\"b\\\\"', '{"model":"x", "model" : [ {"model":"}"} ] }', '[ "]", {} ]', '"' + "p" * 5000 + '"',
])  # fmt: skip
PLAIN = {
    "max_tokens": st.sampled_from(["null", "5", "100", "9223372036854775807"]),
    "stream_options": st.sampled_from(["null", "{}", '{"a":[1, 2],"include_usage" : null}', '{ "a" : 1,"a":2 }']),
    "extra_body": st.sampled_from(["null", "[1]", '{"category" : "x", "k" : 1, "k":2}', '{"z":{"model":"q"}}']),
}


@st.composite
def names(draw: st.DrawFn, name: str) -> str:
    way = draw(st.integers(0, 5))
    if way == 0:
        return '"' + "".join(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else char for char in name) + '"'
    return json.dumps(name, ensure_ascii=way > 2)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    wanted = draw(st.lists(st.sampled_from(NAMES), max_size=5))
    wanted.insert(draw(st.integers(0, len(wanted))), "model")
    blank = BLANKS if draw(st.booleans()) else st.just("")
    written = []
    for name in wanted:
        value = draw(names("m é")) if name == "model" else draw(PLAIN.get(name, VALUES))
        written.append(f"{draw(blank)}{draw(names(name))}{draw(blank)}:{draw(blank)}{value}{draw(blank)}")
    return f"{draw(blank)}{{{','.join(written)}}}{draw(blank)}".encode()


@given(
    bodies(),
    st.sampled_from([None, b'"srv"', b'"' + b"s" * 100 + b'"']),
    st.dictionaries(st.sampled_from(["foo", "max_tokens", "é"]), st.just(b"[9]"), max_size=1),
    st.dictionaries(st.sampled_from(["foo", "max_tokens", "é", "new"]), st.just(b"8"), max_size=2),
    st.none() | st.sampled_from([1, 50]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@example(b'{"model":"m"}', b'"srv"', {}, {}, None, False, False, False)
@example(b'{"m\\u006fdel":"m","a":1}', b'"srv"', {}, {}, None, False, False, False)
@example(b'{"a":"\\"model\\":","model":"m","model ":1}', b'"srv"', {}, {}, None, False, False, True)
def test_nothing_but_what_is_documented_changes(
    body: bytes,
    model: bytes | None,
    force: dict[str, bytes],
    default: dict[str, bytes],
    limit: int | None,
    ask_usage: bool,
    without_hints: bool,
    in_place: bool,
) -> None:
    asked = parse(memoryview(b"head\xff" + body)[5:] if in_place else body)
    assert asked.model == json.loads(dict(members_of(body))["model"])
    changed = b"".join(
        asked.pieces(
            model, force=force, default=default, output_limit=limit, ask_usage=ask_usage, without_hints=without_hints
        )
    )
    assert changed == expected(body, model, force, default, limit, ask_usage, without_hints)
    # With no change but the model's name, the body may pass as it is: blanks are then what the client wrote.
    plain = b"".join(asked.pieces(model))
    assert members_of(plain) == members_of(expected(body, model, {}, {}, None, False, False))


MARKS = [b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x00", b",", b"}", b"{", b'"', b"\\", b"\\ud800", b"\xc3", b"1"]


@given(bodies(), st.integers(0, 10_000), st.sampled_from(MARKS), st.booleans(), st.booleans())
def test_what_is_accepted_is_one_text_to_everybody(
    body: bytes, at: int, mark: bytes, instead: bool, in_place: bool
) -> None:
    at %= len(body) + 1
    body = body[:at] + mark + body[at + instead :]
    try:
        asked = parse(memoryview(b"head" + body)[4:] if in_place else body)
    except Refused as refused:
        assert refused.status == 400
        return
    members = members_of(body)
    decoded = json.loads(body.decode())
    json.dumps(decoded, ensure_ascii=False).encode()  # no lone surrogate
    assert [name for name, _ in members].count("model") == 1
    assert decoded["model"] == asked.model
    assert members_of(b"".join(asked.pieces(b'"srv"'))) == [
        (name, b'"srv"' if name == "model" else value) for name, value in members
    ]
