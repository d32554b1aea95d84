"""Another model's name in answers: put where the dialects have it, nowhere else, however the bytes are split."""

from __future__ import annotations

import json

import pytest

from sndr.router.wire import sse
from sndr.router.wire.openai_api import rename_model
from sndr.router.wire.sse import AnswerRename, EventRename

NAME = b'"llm.primary"'


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            b'{"id":1,"model" : "m1","x":[1.50, {"model":"m1"}]}',
            b'{"id":1,"model":"llm.primary","x":[1.50, {"model":"m1"}]}',
        ),
        (b'{"mod\\u0065l":"m","a":1,"a":2}', b'{"model":"llm.primary","a":1,"a":2}'),
        (
            b'{"response":{"model":"m","tools":[{"model":"t"}]}}',
            b'{"response":{"model":"llm.primary","tools":[{"model":"t"}]}}',
        ),
        (
            b'{"message":{"model":"m"},"type":"message_start"}',
            b'{"message":{"model":"llm.primary"},"type":"message_start"}',
        ),
        (b'{"model":null}', b'{"model":null}'),
        (
            b'{"choices":[{"message":{"content":"\\"model\\":\\"m\\""}}]}',
            b'{"choices":[{"message":{"content":"\\"model\\":\\"m\\""}}]}',
        ),
        (b"{}", b"{}"),
        (b"[1]", b"[1]"),
        (b'{"model":"m"', b'{"model":"m"'),
        (b'{"response":{"model":}}', b'{"response":{"model":}}'),
        (b"", b""),
    ],
)
def test_answers(given: bytes, expected: bytes) -> None:
    assert rename_model(given, NAME) == expected


EVENTS = (
    b': comment "model":"m"\n\n'
    b'data: {"id":"1","model":"m1","choices":[{"delta":{"content":"\xc3\xa9 \\"model\\""}}],"usage":null}\n\n'
    b'event: message_start\r\ndata:{"type":"message_start","message":{"model":"m1"}}\r\n\r\n'
    b"data: not json\n\n"
    b'data: {"model":"m1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 2, 5, 40, 4096])
@pytest.mark.parametrize("hides", [False, True])
def test_events(size: int, hides: bool) -> None:
    tail = EventRename(NAME, hides_usage=hides)
    out = b"".join(tail.feed(EVENTS[at : at + size]) for at in range(0, len(EVENTS), size)) + tail.flush()
    expected = EVENTS.replace(b'"model":"m1"', b'"model":"llm.primary"')
    if hides:
        first, _, rest = expected.partition(b'data: {"model":"llm.primary","choices":[]')
        expected = first + rest.partition(b"\n\n")[2]
    assert out == expected
    scan = tail.scan(events=True)
    assert (scan.prompt_tokens, scan.completion_tokens) == (3, 1)


def test_an_event_without_its_end_is_passed_on() -> None:
    tail = EventRename(NAME, hides_usage=False)
    assert tail.feed(b'data: {"model":"m1"}') == b""
    assert tail.flush() == b'data: {"model":"llm.primary"}'
    assert tail.flush() == b""


def test_large_events_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventRename, "held_max", 100)
    event = b'data: {"model":"m1","x":"' + b"y" * 300 + b'"}\n\n'
    tail = EventRename(NAME, hides_usage=False)
    assert b"".join(tail.feed(event[at : at + 60]) for at in range(0, len(event), 60)) + tail.flush() == event


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_is_kept_until_its_end(size: int) -> None:
    answer = json.dumps({"model": "m1", "usage": {"prompt_tokens": 5}}).encode()
    tail = AnswerRename(NAME)
    assert not b"".join(tail.feed(answer[at : at + size]) for at in range(0, len(answer), size))
    assert json.loads(tail.flush())["model"] == "llm.primary"
    assert tail.scan(events=False).prompt_tokens == 5


def test_large_answers_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "RENAMED_ANSWER_MAX", 50)
    answer = b'{"model":"m1","x":"' + b"y" * 300 + b'"}'
    tail = AnswerRename(NAME)
    assert b"".join(tail.feed(answer[at : at + 30]) for at in range(0, len(answer), 30)) + tail.flush() == answer
