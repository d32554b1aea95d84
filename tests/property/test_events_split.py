"""However a stream of events arrives, the same bytes go to the client and the same is read from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sndr.router.wire.sse import EventRename, StreamTail, UsageFilter

ENDS = st.sampled_from(["\n", "\n", "\r\n", "\r"])
COUNTS = {"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}
TEXTS = ["a", "é☃", '"usage":{"prompt_tokens":9}', "\n\n", "data: {", '"model":"srv"']
VALUES = st.one_of(
    st.builds(
        lambda text, reason: {"model": "srv", "choices": [{"delta": {"content": text}, "finish_reason": reason}]},
        st.sampled_from(TEXTS), st.sampled_from([None, "stop"]),
    ),
    st.builds(lambda text: {"choices": [{"delta": text}], "usage": None, "model": "srv"}, st.sampled_from(TEXTS)),
    st.just({"choices": [], "usage": COUNTS, "model": "srv"}),
    st.just({"choices": [{}], "usage": {"prompt_tokens": 7}}),
)  # fmt: skip
BLANKS = st.sampled_from([(",", ":"), (", ", ": ")])


@st.composite
def events(draw: st.DrawFn) -> tuple[str, bool]:
    """An event, and whether it carries usage alone."""
    end = draw(ENDS)
    before = draw(st.sampled_from(["", "", f"event: message{end}", f"id: 1{end}"]))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        text = draw(st.sampled_from([": alive", "data: [DONE]", 'data: {not json "model":"srv"']))
        return f"{before}{text}{end}{end}", False
    value = draw(VALUES)
    text = json.dumps(value, separators=draw(BLANKS), ensure_ascii=draw(st.booleans()))
    return f"{before}data: {text}{end}{end}", value["choices"] == []


def relayed(stream: StreamTail, data: bytes, cuts: list[int]) -> tuple[object, ...]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    passed = b"".join([stream.feed(data[start:end]) for start, end in pairwise(places)]) + stream.flush()
    scan = stream.scan(events=True)
    return passed, scan.prompt_tokens, scan.completion_tokens, scan.cached_tokens, scan.finish_reason


def models(data: bytes) -> list[object]:
    """The models that a client reads, event by event."""
    lines = [line for line in data.decode().splitlines() if line.startswith('data: {"')]
    return [json.loads(line[6:]).get("model") for line in lines]


MAKERS: list[Callable[[], StreamTail]] = [
    StreamTail,
    lambda: StreamTail(numbered=True),
    UsageFilter,
    lambda: EventRename(b'"alias"', hides_usage=True),
    lambda: EventRename(b'"alias"', hides_usage=False),
]


@pytest.mark.parametrize("make", MAKERS)
@given(
    st.lists(events(), max_size=8), st.lists(st.integers(0, 3000), max_size=12), st.none() | st.integers(0, 3000),
)  # fmt: skip
@example([('data: {"model":"srv","choices":[{}]}\r\r', False)] * 2, [40], None)
def test_events_split_anywhere(
    make: Callable[[], StreamTail], sent: list[tuple[str, bool]], cuts: list[int], end: int | None
) -> None:
    data = "".join(event for event, _ in sent).encode()[:end]
    whole = relayed(make(), data, [])
    assert relayed(make(), data, cuts) == whole
    assert relayed(make(), data, list(range(len(data)))) == whole


@given(st.lists(events(), max_size=8), st.booleans(), st.booleans())
@example([('data: {"model":"srv","choices":[{}]}\r\r', False)] * 2, False, True)
def test_usage_alone_is_hidden_and_every_model_has_the_alias_s_name(
    sent: list[tuple[str, bool]], hides: bool, renames: bool
) -> None:
    data = "".join(event for event, _ in sent).encode()
    expected = "".join(event for event, alone in sent if not (alone and hides)).encode()
    if renames:
        passed = relayed(EventRename(b'"alias"', hides_usage=hides), data, [])[0]
        assert isinstance(passed, bytes)
        assert models(passed) == [None if name is None else "alias" for name in models(expected)]
    elif hides:
        assert relayed(UsageFilter(), data, [])[0] == expected
    else:
        assert relayed(StreamTail(), data, [])[0] == data
