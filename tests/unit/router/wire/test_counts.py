"""Token counts of every dialect, of short answers and of ones whose middle is forgotten."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sndr.router.wire.sse import Scan, StreamTail, scan_json


def counts(scan: Scan) -> tuple[int | None, int | None, int | None, str | None]:
    return scan.prompt_tokens, scan.completion_tokens, scan.cached_tokens, scan.finish_reason


def stream(*items: dict[str, Any], filler: int = 0, piece: int = 4096) -> Scan:
    """The first item, some events of no interest, the other items; fed in pieces."""
    texts = [f"event: {item.get('type', 'x')}\ndata: {json.dumps(item)}\n\n".encode() for item in items]
    texts.insert(1, b'data: {"delta":"\\"usage\\": {\\"input_tokens\\": 99}"}\n\n' * filler)
    data = b"".join(texts)
    tail = StreamTail()
    for at in range(0, len(data), piece):
        tail.feed(data[at : at + piece])
    return tail.scan(events=True)


STARTED = {"input_tokens": 12, "cache_read_input_tokens": 5, "cache_creation": {"a": 1}, "output_tokens": 1}
START = {"type": "message_start", "message": {"usage": STARTED, "stop_reason": None}}
DELTA = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 17}}
ENDED = {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3, "total_tokens": 10}
ENDING = {"type": "response.incomplete", "response": {"status": "incomplete", "usage": ENDED}}
CHAT = {"choices": [{"finish_reason": "length"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1,
                                  "prompt_tokens_details": {"cached_tokens": 2}}}  # fmt: skip


@pytest.mark.parametrize("filler", [0, 10, 5000])
@pytest.mark.parametrize("piece", [7, 4096, 1 << 20])
def test_streams(filler: int, piece: int) -> None:
    assert counts(stream(START, DELTA, {"type": "message_stop"}, filler=filler, piece=piece)) == (12, 17, 5, "tool_use")
    first = {"type": "response.created", "response": {"status": "in_progress", "usage": None}}
    assert counts(stream(first, ENDING, filler=filler, piece=piece)) == (7, 3, 4, "incomplete")
    assert counts(stream(first, filler=filler, piece=piece)) == (None, None, None, None)
    assert counts(stream(CHAT, CHAT, USAGE, filler=filler, piece=piece)) == (3, 1, 2, "length")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"usage": STARTED, "stop_reason": "end_turn"}, (12, 1, 5, "end_turn")),
        ({"object": "response", "status": "incomplete", "usage": ENDED}, (7, 3, 4, "incomplete")),
        ({**CHAT, "usage": USAGE["usage"]}, (3, 1, 2, "length")),
        ({"object": "list", "data": [], "usage": {"prompt_tokens": 9, "total_tokens": 9}}, (9, None, None, None)),
        ({"results": [], "usage": {"total_tokens": 9}}, (None, None, None, None)),
        ({"input_tokens": 9}, (None, None, None, None)),
        ({"text": "x", "usage": {"type": "duration", "seconds": 3}}, (None, None, None, None)),
        ({"text": "x", "usage": {"type": "tokens", "input_tokens": 4, "output_tokens": 2}}, (4, 2, None, None)),
        ({"status": "failed"}, (None, None, None, None)),
        ({"usage": {"prompt_tokens": -1, "completion_tokens": True, "input_tokens": "5"}}, (None, None, None, None)),
        ({"usage": {"prompt_tokens": 2**60, "completion_tokens": 1.5}}, (None, None, None, None)),
    ],
)
def test_json_answers(answer: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert counts(scan_json(json.dumps(answer).encode())) == expected


def test_sound_says_nothing() -> None:
    assert counts(scan_json(b"\xff\xfb\x90\0" * 9000)) == (None, None, None, None)
