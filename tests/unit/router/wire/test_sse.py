"""Streams as they pass: the usage event is hidden, everything else is untouched, and the counts are read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sndr.router.wire.sse import (
    HELD_MAX,
    LOOK_BYTES,
    PARTS_MAX,
    TAIL_BYTES,
    AnswerRename,
    EventRename,
    StreamTail,
    UsageFilter,
    scan_json,
)

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"\\"usage\\":{"},"finish_reason":null}],"usage":null}'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
COUNTS = b'"usage":{"prompt_tokens":3,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}'
USAGE = b'data: {"choices":[],' + COUNTS + b"}"
BOTH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":{"completion_tokens":6}}'
EVENTS = [CHUNK, LAST, BOTH, b": comment", b"event: x\nid: 1\ndata: a\ndata: b", b"data: [DONE]", b'data: {"usage":{}}']


@given(
    st.lists(st.sampled_from([*EVENTS, USAGE]), max_size=8),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 2000), max_size=10),
    st.sampled_from([b"", b"data: unfinis", b"data: x\n"]),
)
def test_only_the_usage_event_is_hidden(events: list[bytes], eol: bytes, cuts: list[int], tail: bytes) -> None:
    def encode(chosen: list[bytes]) -> bytes:
        return b"".join(event.replace(b"\n", eol) + eol + eol for event in chosen)

    data = encode(events) + tail
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    stream = UsageFilter()
    found = b"".join(stream.feed(data[start:end]) for start, end in pairwise(places) if end > start)
    assert found + stream.flush() == encode([event for event in events if event != USAGE]) + tail
    if USAGE in events and BOTH not in events:
        scan = stream.scan(events=True)
        assert (scan.prompt_tokens, scan.completion_tokens, scan.cached_tokens) == (3, 5, 2)


def test_a_plain_tail_changes_nothing_and_stays_small() -> None:
    stream = StreamTail()
    for _ in range(2000):
        assert stream.feed(CHUNK + b"\n\n") == CHUNK + b"\n\n"
    stream.feed(LAST + b"\n\n" + USAGE + b"\n\n")
    assert len(stream.text()) < 80_000
    scan = stream.scan(events=True)
    assert (scan.prompt_tokens, scan.completion_tokens, scan.finish_reason) == (3, 5, "stop")


def test_an_event_too_large_to_hold_passes() -> None:
    stream = UsageFilter()
    large = b"data: " + b"x" * (HELD_MAX + 10)
    assert stream.feed(large) == large
    assert stream.feed(b"y\n\n") == b"y\n\n"
    assert stream.feed(USAGE + b"\n\n") == b""


def test_an_event_in_tiny_pieces_is_copied_once() -> None:
    """One of nearly a megabyte, four bytes at a time: copied with each piece, that would take minutes."""
    event = b'data: {"model":"m","text":"' + b"x" * 1_000_000 + b'"}\n\n'
    for hides in (True, False):
        stream = EventRename(b'"alias"', hides_usage=hides)
        pieces = [event[at : at + 4] for at in range(0, len(event), 4)]
        found = [stream.feed(piece) for piece in pieces]
        assert not any(found[:-1])
        assert found[-1] == event.replace(b'"m"', b'"alias"')
        assert stream.feed(b"data: b") == b""
        assert stream.feed(b"\r\n\r") == b""
        assert stream.feed(b"\ndata: c") == b"data: b\r\n\r\n"
        assert stream.flush() == b"data: c"


def test_what_the_reader_has_seen_of_an_event() -> None:
    stream = StreamTail()
    assert not stream.ends_inside_event()
    stream.feed(b"data: a\n")
    assert stream.ends_inside_event()
    stream.feed(b"\n")
    assert not stream.ends_inside_event()
    stream.feed(b'data: {"sequence_number": 41}\n\n')
    assert stream.next_sequence_number() == 42


def test_json_answers() -> None:
    scan = scan_json(b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}')
    assert (scan.prompt_tokens, scan.completion_tokens, scan.finish_reason) == (1, 2, "stop")
    scan = scan_json(
        b'{"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":2,"cache_read_input_tokens":1}}'
    )
    assert (scan.prompt_tokens, scan.completion_tokens, scan.cached_tokens, scan.finish_reason) == (1, 2, 1, "end_turn")
    scan = scan_json(b'ing"},"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":8}}')
    assert (scan.prompt_tokens, scan.completion_tokens, scan.finish_reason) == (7, 8, "length")
    for odd in (
        b"",
        b"[]",
        b"{",
        b'{"usage":[]}',
        b'{"usage":{"prompt_tokens":-1}}',
        b'{"usage":{"prompt_tokens":true}}',
    ):
        assert scan_json(odd).prompt_tokens is None


@pytest.mark.parametrize("step", [100, 3000, 40_000, 1_000_000])
def test_what_a_long_last_event_says_at_its_beginning(step: int) -> None:
    """The final event of a Responses stream repeats the whole answer between its type and its counts."""
    words = b"x" * 60_000
    text = b"".join(
        b'data: {"type":"response.output_text.delta","sequence_number":%d,"delta":"%b"}\n\n' % (number, b"y" * 400)
        for number in range(200)
    )
    text += (
        b'data: {"type":"response.incomplete","sequence_number":200,"response":{"output":["%b"],'
        b'"usage":{"input_tokens":7,"output_tokens":9}}}\n\n' % words
    )
    for stream in (StreamTail(numbered=True), EventRename(b'"m"', hides_usage=False, numbered=True)):
        seen = b"".join([stream.feed(text[at : at + step]) for at in range(0, len(text), step)])
        assert seen + stream.flush() == text
        scan = stream.scan(events=True)
        assert (scan.finish_reason, scan.prompt_tokens, scan.completion_tokens) == ("incomplete", 7, 9)
        assert stream.next_sequence_number() == 201
        assert len(stream.text()) < 80_000


@pytest.mark.parametrize("numbered", [False, True])
def test_tiny_pieces_take_little_more_than_their_bytes(numbered: bool) -> None:
    """Two bytes are an object of forty: a thousand streams of them must not take twenty times what they carry."""
    text = b"".join(b"data: %d\n\n" % number for number in range(20_000))
    stream, most = StreamTail(numbered=numbered), 0
    for at in range(0, len(text), 2):
        stream.feed(text[at : at + 2])
        most = max(most, len(stream._parts))
    assert most <= PARTS_MAX + LOOK_BYTES // 2 + 1
    assert stream.text().startswith(text[:TAIL_BYTES])
    assert stream.text().endswith(text[-TAIL_BYTES:])


ITEM = b'{"type":"message","id":"m","status":"completed","content":[{"type":"output_text","text":"%b"}]}'
COUNTED = b'"usage":{"input_tokens":7,"output_tokens":9}'
SAID = b' says \\"status\\":\\"failed\\", } ] '


def long_answers() -> dict[str, bytes]:
    """Answers of /v1/responses whose text is large; the items in it have a status of their own."""
    output = b'"output":[%b]' % b",".join(ITEM % (SAID + b"x" * size) for size in (30, 90_000, 30))
    # The beginning ends in a text and the end begins among numbers: together they are no JSON.
    output = output[:-1] + b',{"type":"reasoning","status":"completed","weights":[%b0]}]' % (b"0," * 20_000)
    schema = b'"text":{"format":{"schema":{"status":{"type":"string"},"x":{"status":"odd"}}}}'
    status = b'"status": "incomplete","incomplete_details":{"reason":"max_output_tokens"}'
    return {
        "said first": b'{"id":"r","object":"response",%b,%b,%b,%b}' % (status, output, schema, COUNTED),
        "said last": b'{"id":"r","object":"response",%b,%b,%b,%b}\n' % (output, status, schema, COUNTED),
        "all of it last": b'{%b,%b,%b,%b,"object" : "response"}' % (output, schema, COUNTED, status),
    }


@pytest.mark.parametrize("step", [100, 40_000, 1_000_000])
@pytest.mark.parametrize("name", sorted(long_answers()))
def test_the_status_of_a_long_answer_is_its_own_and_not_that_of_an_item(name: str, step: int) -> None:
    text = long_answers()[name]
    for tail in (StreamTail(), AnswerRename(b'"m"')):
        for at in range(0, len(text), step):
            tail.feed(text[at : at + step])
        tail.flush()
        scan = tail.scan(events=False)
        assert (scan.finish_reason, scan.prompt_tokens, scan.completion_tokens) == ("incomplete", 7, 9)


def test_where_a_long_answer_does_not_say_its_status_nothing_is_made_up() -> None:
    long = ITEM % (b"x" * 90_000)
    for text in (
        b'{"object":"response","output":[%b,%b],%b}' % (ITEM % b"", long, COUNTED),
        b'{"object":"response","output":[%b,[%b0]],"usage":{}}' % (long, b"0," * 20_000),
        b'{"object":"response","output":[%b,%b],%b}' % (long, ITEM % b"", COUNTED),
        b'{"object":"list","status":"completed","data":[%b]}' % long,
        b'{"object":"response","output":[%b],"status":"completed"' % long,
        b'[{"object":"response","status":"completed","output":[%b]}]' % long,
        b'{"object":"response","output":[%b]}' % b",".join([ITEM % b""] * 2_000),
    ):
        tail = StreamTail()
        tail.feed(text)
        assert tail.scan(events=False).finish_reason is None
