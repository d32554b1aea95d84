"""Server-sent events as they pass: token counts read from the end, one kind of event hidden, the rest untouched.

Nothing is parsed while a stream runs. A bounded tail of what passed is kept, and read once at the end. Only where the
gateway asked for usage on its own account is an event that is still incomplete held back (64 KiB at most), because the
event that carries nothing but usage must not reach a client that did not ask for it.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from itertools import islice
from typing import Any, ClassVar, Final

import msgspec

from sndr.router.wire.openai_api import Usage, rename_model

__all__ = ["AnswerRename", "EventRename", "Scan", "StreamTail", "UsageFilter", "scan_json", "scan_text"]

TAIL_BYTES: Final = 16_384
LOOK_BYTES: Final = 8_192
PARTS_MAX: Final = 256
HELD_MAX: Final = 65_536
COUNT_MAX: Final = 2**53
RENAMED_EVENT_MAX: Final = 1_048_576
RENAMED_ANSWER_MAX: Final = 16_777_216
_BOUNDARY: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_MARKS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_REASON: Final = re.compile(rb'\s*:\s*"([A-Za-z0-9_.-]{1,64})"')
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_USUAL: Final = frozenset(("stop", "length", "tool_calls", "end_turn", "max_tokens", "tool_use", "completed"))
_SEQUENCE: Final = re.compile(rb'"sequence_number"\s*:\s*([0-9]{1,15})')
_FINAL: Final = re.compile(rb'"type"\s*:\s*"response\.(completed|incomplete|failed)"')
_OWN_OBJECT: Final = re.compile(rb'"object"\s*:\s*"([A-Za-z0-9_.-]{1,64})"')
_OWN_STATUS: Final = re.compile(rb'"status"\s*:\s*"([A-Za-z0-9_.-]{1,64})"')
_OWN_TRIES: Final = 16
_EMPTY_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_DATA_LINE: Final = re.compile(rb'(data:(?<![^\r\n]data:) ?)(\{[^\r\n]*"model"[^\r\n]*)')
_USAGE_OBJECT: Final = re.compile(rb'"usage"\s*:\s*\{')
_DECODER: Final = msgspec.json.Decoder(Usage)


class Scan(msgspec.Struct, eq=False, gc=False):
    """What a response says about itself.

    Attributes:
        prompt_tokens, completion_tokens, cached_tokens: None where the server did not say.
        finish_reason: The server's word; None when there was none.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None

    def add_usage(self, usage: Usage) -> None:
        """Take over what this report says. Some servers count prompt and answer in different events."""
        count: Any = usage.prompt_tokens
        if count is None:
            count = usage.input_tokens
        if type(count) is int and 0 <= count < COUNT_MAX:
            self.prompt_tokens = count
        count = usage.completion_tokens
        if count is None:
            count = usage.output_tokens
        if type(count) is int and 0 <= count < COUNT_MAX:
            self.completion_tokens = count
        details = usage.prompt_tokens_details or usage.input_tokens_details
        count = details.get("cached_tokens") if isinstance(details, dict) else usage.cache_read_input_tokens
        if type(count) is int and 0 <= count < COUNT_MAX:
            self.cached_tokens = count


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class _Answer(msgspec.Struct):
    usage: Usage | None = None
    choices: list[_Choice] | None = None
    stop_reason: Any = None
    object: Any = None
    status: Any = None


class _AnyObject(msgspec.Struct):
    pass


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_ANY_OBJECT: Final = msgspec.json.Decoder(_AnyObject)


def scan_json(text: bytes) -> Scan:
    """Read the counts of a JSON answer (all of it, or its last bytes)."""
    try:
        answer = _ANSWER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return scan_text(text)
    scan = Scan()
    if answer.usage is not None:
        scan.add_usage(answer.usage)
    if answer.choices:
        reason = answer.choices[-1].finish_reason
    else:
        reason = answer.status if answer.object == "response" else answer.stop_reason
    if isinstance(reason, str) and (reason in _USUAL or _WORD.fullmatch(reason) is not None):
        scan.finish_reason = reason
    return scan


def scan_text(text: bytes) -> Scan:
    """Read the counts in a stream's events, or in a piece of an answer: the last ones that are there count."""
    scan = Scan()
    at = text.find(b'"usage"')
    while at >= 0:
        found = _USAGE.match(text, at)
        if found is not None:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                scan.add_usage(_DECODER.decode(found[1]))
        at = text.find(b'"usage"', at + 7)
    for name in (b'"finish_reason"', b'"stop_reason"'):
        at = text.rfind(name)
        while at >= 0 and scan.finish_reason is None:
            found = _REASON.match(text, at + len(name))
            if found is not None:
                scan.finish_reason = found[1].decode()
            at = text.rfind(name, 0, at)
    if scan.finish_reason is None and b'"response.' in text:
        for final in _FINAL.finditer(text):
            scan.finish_reason = final[1].decode()
    return scan


def _own(name: re.Pattern[bytes], first: bytes, last: bytes) -> str | None:
    """A word that an answer says of itself, and not of something in it, in what is left of its beginning or its end.

    What stands before a member of the answer's own is an object as soon as it is closed; what follows one is an object
    as soon as it is opened. Of a member of anything inside, neither is true.
    """
    for found in islice(name.finditer(first), _OWN_TRIES):
        if _is_object(first[: found.start()] + b'"":0}'):
            return found[1].decode()
    for found in list(name.finditer(last))[: -_OWN_TRIES - 1 : -1]:
        if _is_object(b"{" + last[found.start() :]):
            return found[1].decode()
    return None


def _is_object(text: bytes) -> bool:
    try:
        _ANY_OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


class StreamTail:
    """The first and the last bytes of a body that passes through."""

    __slots__ = ("_bytes", "_final", "_first", "_look_at", "_numbered", "_parts", "_sequence")

    def __init__(self, *, numbered: bool = False) -> None:
        """Start.

        Args:
            numbered: The events are those of the Responses API: what the last ones say about themselves stands at their
                beginning, however long they are.
        """
        self._first = b""
        self._parts: deque[bytes] = deque()
        self._bytes = 0
        self._look_at = LOOK_BYTES
        self._numbered = numbered
        self._final: str | None = None
        self._sequence = -1

    def feed(self, data: bytes) -> bytes:
        """Remember; returns the data unchanged."""
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes > self._look_at:
            self._trim()
        return data

    def flush(self) -> bytes:
        """Bytes that were held back: none."""
        return b""

    def _trim(self) -> None:
        if self._bytes <= 2 * TAIL_BYTES:
            # Pieces of two bytes take twenty times their length, each in an object of its own.
            if len(self._parts) > PARTS_MAX:
                self._parts = deque((b"".join(self._parts),))
            self._look_at = min(self._bytes + LOOK_BYTES, 2 * TAIL_BYTES)
            return
        if not self._first:
            first = self._parts[0]
            self._first = (first if len(first) >= TAIL_BYTES else b"".join(self._parts))[:TAIL_BYTES]
        last = self._parts[-1]
        if self._numbered:
            last = b"".join(self._parts)
            self._note(last)
        text = (last if len(last) >= TAIL_BYTES else b"".join(self._parts))[-TAIL_BYTES:]
        self._parts.clear()
        self._parts.append(text)
        self._bytes = len(text)
        self._look_at = self._bytes + LOOK_BYTES

    def _note(self, text: bytes) -> None:
        """Keep what events say about themselves before their beginnings are forgotten."""
        for found in _FINAL.finditer(text):
            self._final = found[1].decode()
        for found in _SEQUENCE.finditer(text):
            self._sequence = int(found[1])

    def text(self) -> bytes:
        """What is remembered."""
        return self._first + b"".join(self._parts)

    def scan(self, *, events: bool) -> Scan:
        """Read what the response said about itself: in its events, or as one JSON value."""
        if not events:
            scan = scan_json(self.text())
            if scan.finish_reason is None and self._first:
                last = b"".join(self._parts)
                if _own(_OWN_OBJECT, self._first, last) == "response":
                    scan.finish_reason = _own(_OWN_STATUS, self._first, last)
            return scan
        scan = scan_text(self.text())
        if scan.finish_reason is None:
            scan.finish_reason = self._final
        return scan

    def next_sequence_number(self) -> int:
        """One more than the last event's number, for streams that number their events."""
        last = self._sequence
        for found in _SEQUENCE.finditer(b"".join(self._parts)):
            last = int(found[1])
        return last + 1

    def ends_inside_event(self) -> bool:
        """Whether the client has seen part of an event whose end never came."""
        text = b"".join(self._parts)[-4:]
        return bool(text) and not text.endswith((b"\n\n", b"\r\r", b"\r\n\r\n"))


class UsageFilter(StreamTail):
    """A tail that also hides the event that carries only usage, and holds back what is not yet a whole event."""

    __slots__ = ("_held",)

    held_max: ClassVar[int] = HELD_MAX

    def __init__(self, *, numbered: bool = False) -> None:
        super().__init__(numbered=numbered)
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Returns what may go to the client now."""
        if self._held:
            data = self._continued(data)
            if not data:
                return b""
        if not data.endswith(b"\n\n"):
            data = self._hold(data)
            if not data:
                return b""
        named = data.count(b'"usage"')
        if named and named != data.count(b'"usage":null') and _USAGE_OBJECT.search(data) is not None:
            return self._hide(data)
        return StreamTail.feed(self, data)

    def flush(self) -> bytes:
        """The stream ended: an event that was never finished is passed on as it is."""
        held, self._held = bytes(self._held), bytearray()
        return StreamTail.feed(self, held) if held else b""

    def _continued(self, data: bytes) -> bytes:
        """What is held and `data`, as soon as an event ends in it or it is too much; until then nothing.

        Bytes are looked at once, however small the pieces are that an event comes in.
        """
        held = self._held
        edge = held[-3:] + data
        held += data
        if len(held) <= self.held_max and not any(mark in edge for mark in _MARKS):
            return b""
        self._held = bytearray()
        return bytes(held)

    def _hold(self, data: bytes) -> bytes:
        """Keep the trailing incomplete event; returns the whole events before it."""
        # Looked for from the end, and no further back than an event may reach: a flood of bytes costs no search of all.
        low, end = max(0, len(data) - self.held_max), 0
        for mark in _MARKS:
            found = data.rfind(mark, max(low, end))
            if found >= 0:
                end = found + len(mark)
        if len(data) - end > self.held_max:
            # Larger than any usage event: not worth holding back.
            return data
        self._held = bytearray(data[end:])
        return data[:end]

    def _hide(self, data: bytes) -> bytes:
        kept: list[bytes] = []
        start = 0
        while start < len(data):
            found = _BOUNDARY.search(data, start)
            end = found.end() if found is not None else len(data)
            event = data[start:end]
            if _is_usage_only(event):
                # Remembered for the counts, not sent.
                StreamTail.feed(self, event)
            else:
                kept.append(StreamTail.feed(self, event))
            start = end
        return b"".join(kept)


class EventRename(UsageFilter):
    """A tail that also puts another model's name into events. What it remembers is what the server sent.

    Events of more than 1 MiB pass as they are.
    """

    __slots__ = ("_hides", "_name")

    held_max: ClassVar[int] = RENAMED_EVENT_MAX

    def __init__(self, name: bytes, *, hides_usage: bool, numbered: bool = False) -> None:
        super().__init__(numbered=numbered)
        self._name = name
        self._hides = hides_usage

    def feed(self, data: bytes) -> bytes:
        """Returns what may go to the client now."""
        if self._hides:
            return self._renamed(UsageFilter.feed(self, data))
        if self._held:
            data = self._continued(data)
        data = self._hold(data) if data else b""
        return self._renamed(StreamTail.feed(self, data)) if data else b""

    def flush(self) -> bytes:
        """The stream ended."""
        return self._renamed(UsageFilter.flush(self))

    def _renamed(self, data: bytes) -> bytes:
        if b'"model"' not in data:
            return data
        return _DATA_LINE.sub(lambda line: line[1] + rename_model(line[2], self._name), data)


class AnswerRename(StreamTail):
    """A tail that keeps a JSON answer until its end, to put another model's name into it.

    Answers of more than 16 MiB pass as they are.
    """

    __slots__ = ("_kept", "_kept_bytes", "_name")

    def __init__(self, name: bytes) -> None:
        super().__init__()
        self._name = name
        self._kept: list[bytes] | None = []
        self._kept_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Returns nothing, or what has become too much."""
        StreamTail.feed(self, data)
        kept = self._kept
        if kept is None:
            return data
        kept.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes <= RENAMED_ANSWER_MAX:
            return b""
        self._kept = None
        return b"".join(kept)

    def flush(self) -> bytes:
        """The answer ended."""
        kept, self._kept = self._kept, None
        return rename_model(b"".join(kept), self._name) if kept else b""


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: Any = None


_EVENT: Final = msgspec.json.Decoder(_Event)


def _is_usage_only(event: bytes) -> bool:
    if _EMPTY_CHOICES.search(event) is None or _USAGE_OBJECT.search(event) is None:
        return False
    lines = [line[5:].strip() for line in re.split(rb"\r\n|\n|\r", event) if line.startswith(b"data:")]
    try:
        value = _EVENT.decode(b"\n".join(lines))
    except (msgspec.DecodeError, RecursionError):
        return False
    return value.choices == [] and isinstance(value.usage, dict)
