"""JSON of the model APIs: what the gateway reads of a request, the few members it changes, and error bodies.

A request body is decoded once, into its top-level members with their values left as raw bytes. Only the members named
here are read or replaced; every other value goes to the model server byte for byte, in order, repeated members
included. What JSON libraries disagree about (invalid UTF-8, lone surrogates, depth without limit, two `model`s) is
refused, so that the gateway and the server cannot read two different requests in the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from sndr.contract import HINT_MEMBERS
from sndr.errors import RequestError
from sndr.router.wire.http1 import VIEWED_FROM

__all__ = ["ChatRequest", "Dialect", "Piece", "Refused", "Usage", "encode_error", "encode_error_event", "error_type",
           "parse", "rename_model"]  # fmt: skip


class Dialect(StrEnum):
    """Whose error bodies and stream errors a path speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    RESPONSES = "responses"
    PROBLEM = "problem"


class Refused(RequestError):  # noqa: N818 - says what happened to the request
    """A request that gets an error body instead of an answer.

    Attributes:
        status: HTTP status.
        param: Name of the offending member, where there is one.
        retry_after_s: Value of `Retry-After`, where waiting helps.
        allow: Value of `Allow`, for a 405.
        more: Further members of the error body.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        allow: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code, message)
        self.more = more or {}
        self.status = status
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow


TOKENS_MAX: Final = 2**63 - 1
"""Larger limits are no numbers to most servers, and would make a header field of any length where they are lowered."""
# A member's name is kept as the one argument of a `partial`: an object that the decoder makes by calling its hook with
# type and name without running Python code, and that is compared by identity, so that a dictionary keeps repeated
# members.
_Members = dict[partial[Any], msgspec.Raw]
Piece = bytes | memoryview | msgspec.Raw
"""A part of a body."""
_MEMBERS: Final[msgspec.json.Decoder[_Members]] = msgspec.json.Decoder(dict[partial, msgspec.Raw], dec_hook=partial)  # type: ignore[type-arg]
_TEXT: Final = msgspec.json.Decoder(str)
_INTEGER: Final = msgspec.json.Decoder(int)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode: Final = msgspec.json.encode
_TOKENS_MEMBERS: Final = frozenset(("max_tokens", "max_completion_tokens", "max_output_tokens"))
_READ: Final = _TOKENS_MEMBERS | {"model", "stream", "stream_options", "tools", "functions", "background"}
_HINTS: Final = frozenset(HINT_MEMBERS)


class _Typed(msgspec.Struct):
    """What routing looks at in a response format."""

    type: Any = None


class _Formatted(msgspec.Struct):
    format: _Typed | None = None


class _Extra(msgspec.Struct):
    expected_length: Any = None
    category: Any = None


_TYPED: Final = msgspec.json.Decoder(_Typed)
_FORMATTED: Final = msgspec.json.Decoder(_Formatted)
_EXTRA: Final = msgspec.json.Decoder(_Extra)
_ANYTHING: Final = msgspec.json.Decoder()
_OPENING: Final = {
    name: b'"' + name.encode() + b'":'
    for name in (
        "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p",
        "tools", "tool_choice", "response_format", "stop", "seed", "n", "prompt", "input", "user", "logprobs",
        "presence_penalty", "frequency_penalty", "system", "metadata", "instructions", "max_output_tokens",
    )
}  # fmt: skip


class ChatRequest:
    """A decoded request body.

    Attributes:
        model: The model name as sent.
        stream: The client asked for a stream.
        include_usage: What the client said about usage in the stream; None when it said nothing.
        max_tokens: The largest of the limits on output tokens that the client gave; None when it gave none.
        has_tools: A non-empty list of tools (or functions) is present.
        background: The client asked for an answer detached from the connection, or said something else than no.
    """

    __slots__ = (
        "_body", "_members", "_place", "background", "has_tools", "include_usage", "max_tokens", "model", "stream",
    )  # fmt: skip

    source: ClassVar[None] = None
    source_bytes: ClassVar[int] = 0

    def __init__(self, body: bytes | memoryview, members: _Members) -> None:
        self._body = body
        self._members = members
        model: msgspec.Raw | None = None
        place = 0
        at = 1
        self.stream = False
        self.include_usage: bool | None = None
        self.max_tokens: int | None = None
        self.has_tools = False
        self.background = False
        for key, raw in members.items():
            (name,) = key.args
            at += len(name) + len(raw) + 4  # quotes, colon, and what follows the value
            if name not in _READ:
                continue
            if name == "model":
                if model is not None:
                    raise Refused(400, "invalid_request", "the member `model` is present twice", param="model")
                model = raw
                place = at - 1 - len(raw)
            elif name == "stream":
                self.stream = _flag(raw, name)
            elif name == "stream_options":
                self.include_usage = _include_usage(raw)
            elif name == "background":
                # Servers take "true", 1 or "on" for yes as well, so only a plain no is one.
                self.background = self.background or bytes(raw) not in (b"false", b"null")
            elif name in _TOKENS_MEMBERS:
                self._limit(raw, name)
            elif bytes(raw).translate(None, b" \t\r\n") not in (b"null", b"[]"):
                self.has_tools = True
        if model is None:
            raise Refused(400, "invalid_request", "the member `model` is missing", param="model")
        # Where the model's value is, if nothing but the members and what must be between them is in the body: a blank
        # or an escape in a name would make it longer.
        self._place = (place, place + len(model)) if at == len(body) else None
        try:
            self.model = _TEXT.decode(model)
        except msgspec.DecodeError:
            raise Refused(400, "invalid_request", "the member `model` is not a string", param="model") from None

    def _limit(self, raw: msgspec.Raw, name: str) -> None:
        text = bytes(raw)
        if text == b"null":
            return
        try:
            value = _INTEGER.decode(text)
        except msgspec.DecodeError:
            raise Refused(400, "invalid_request", f"the member `{name}` is not an integer", param=name) from None
        if value > TOKENS_MAX:
            raise Refused(400, "invalid_request", f"the member `{name}` is out of range", param=name)
        if self.max_tokens is None or value > self.max_tokens:
            self.max_tokens = value

    def pieces(
        self,
        served_model: bytes | None,
        *,
        force: Mapping[str, bytes] | None = None,
        default: Mapping[str, bytes] | None = None,
        output_limit: int | None = None,
        ask_usage: bool = False,
        without_hints: bool = False,
    ) -> Sequence[Piece]:
        """The body for the model server, as pieces to be joined.

        Args:
            served_model: The model's name at the server, as JSON; None leaves the client's.
            force: Members (as JSON) that replace what the client sent.
            default: Members (as JSON) for those that the client did not send.
            output_limit: Upper bound for every limit on output tokens that is present.
            ask_usage: Ask for the token counts of the stream.
            without_hints: Leave out the hints about the workload, which only the gateway reads.
        """
        place = self._place
        if place is not None and not (force or default or ask_usage or without_hints) and output_limit is None:
            body = self._body
            if served_model is None:
                return (body,)
            start, end = place
            return (body[:start], served_model, body[end:] if len(body) < VIEWED_FROM else memoryview(body)[end:])
        parts: list[Any] = [b"{"]
        add = parts.append
        present: set[str] | None = set() if force or default else None
        asked = False
        for key, raw in self._members.items():
            (name,) = key.args
            if without_hints:
                if name in _HINTS:
                    continue
                if name == "extra_body":
                    raw = _without_hints(raw)
            if present is not None:
                if force and name in force:
                    continue
                present.add(name)
            add(_OPENING.get(name) or _encode(name) + b":")
            if name == "model" and served_model is not None:
                add(served_model)
            elif ask_usage and name == "stream_options":
                add(_with_usage(raw))
                asked = True
            elif output_limit is not None and name in _TOKENS_MEMBERS and self._exceeds(raw, output_limit):
                add(b"%d" % output_limit)
            else:
                add(raw)
            add(b",")
        if ask_usage and not asked:
            add(b'"stream_options":{"include_usage":true},')
        if present is not None:
            for name, value in (default or {}).items():
                if name not in present and not (force and name in force):
                    add(_encode(name) + b":" + value + b",")
            for name, value in (force or {}).items():
                add(_encode(name) + b":" + value + b",")
        if len(parts) == 1:
            return (b"{}",)
        parts[-1] = parts[-1][:-1] + b"}"  # instead of the last comma
        return parts

    def read(self, names: frozenset[str]) -> dict[str, Any]:
        """Values of these members, decoded as far as the decision about the workload looks; of repeated ones the last.

        A value that cannot be decoded is None: every JSON library sees something else in it.
        """
        found: dict[str, Any] = {}
        for key, raw in self._members.items():
            (name,) = key.args
            if name in names:
                found[name] = _look(name, raw)
        return found

    @staticmethod
    def _exceeds(raw: msgspec.Raw, limit: int) -> bool:
        text = bytes(raw)
        return text != b"null" and int(_INTEGER.decode(text)) > limit


def _look(name: str, raw: msgspec.Raw) -> Any:
    """A member as far as the decision about the workload looks at it; prompts and schemas are not decoded."""
    try:
        if name == "tools":
            text = bytes(raw)
            return [None] if text[:1] == b"[" and text[1:-1].strip(b" \t\r\n") else None
        if name == "response_format":
            return {"type": _TYPED.decode(raw).type}
        if name == "extra_body":
            extra = _EXTRA.decode(raw)
            return {"expected_length": extra.expected_length, "category": extra.category}
        if name in ("text", "output_config"):
            inner = _FORMATTED.decode(raw).format
            return {"format": None if inner is None else {"type": inner.type}}
        return _ANYTHING.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None if name in ("extra_body", "tools") else _other(name, raw)


def _other(name: str, raw: msgspec.Raw) -> Any:
    """A member that is not of its usual shape, whole."""
    try:
        return _ANYTHING.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {} if name in ("response_format", "text", "output_config") else None


def _without_hints(raw: msgspec.Raw) -> Any:
    """An `extra_body` without hints; every other member keeps its bytes, and so does a value without any."""
    if bytes(raw)[:1] != b"{":
        return raw
    members = _MEMBERS.decode(raw)
    kept = [(key.args[0], value) for key, value in members.items() if key.args[0] not in _HINTS]
    if len(kept) == len(members):
        return raw
    return b"{" + b",".join([_encode(name) + b":" + bytes(value) for name, value in kept]) + b"}"


def parse(body: bytes | memoryview) -> ChatRequest:
    """Decode a request body.

    Args:
        body: As bytes, or where it is in the bytes that came.

    Raises:
        Refused: 400 with `invalid_json` or `invalid_request`.
    """
    try:
        around = body if isinstance(body, bytes) else body.obj
        if not (isinstance(around, bytes) and around.isascii()):
            str(body, "utf-8")
        members = _MEMBERS.decode(body)
    except msgspec.ValidationError:
        raise Refused(400, "invalid_json", "the request body is not a JSON object") from None
    except UnicodeDecodeError:
        raise Refused(400, "invalid_json", "the request body is not UTF-8") from None
    except msgspec.DecodeError:
        raise Refused(400, "invalid_json", "the request body is not valid JSON") from None
    except RecursionError:
        raise Refused(400, "invalid_json", "the request body is nested too deeply") from None
    return ChatRequest(body, members)


def rename_model(answer: bytes, name: bytes) -> bytes:
    """An answer or an event's data with another `model`; as it is where it has none, or is no JSON object.

    Args:
        answer: JSON text.
        name: The model's name as JSON. Replaced are the member `model`, and the same one inside `response` (events of
            the Responses API) and `message` (the first event of the Messages API). All else keeps its bytes.
    """
    try:
        members = _MEMBERS.decode(answer)
        return _renamed(members, name, nested=True)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return answer


def _renamed(members: _Members, name: bytes, *, nested: bool) -> bytes:
    parts: list[Any] = []
    for key, raw in members.items():
        (member,) = key.args
        value: Any = raw
        if member == "model":
            if bytes(raw)[:1] == b'"':
                value = name
        elif nested and member in ("response", "message") and bytes(raw)[:1] == b"{":
            value = _renamed(_MEMBERS.decode(raw), name, nested=False)
        parts += (_OPENING.get(member) or _encode(member) + b":", value, b",")
    return b"{" + b"".join(parts[:-1]) + b"}"


def _flag(raw: msgspec.Raw, name: str) -> bool:
    text = bytes(raw)
    if text == b"true":
        return True
    if text in (b"false", b"null"):
        return False
    raise Refused(400, "invalid_request", f"the member `{name}` is not a boolean", param=name)


def _include_usage(raw: msgspec.Raw) -> bool | None:
    text = bytes(raw)
    if text == b"null":
        return None
    try:
        value = _OBJECT.decode(text).get("include_usage")
    except msgspec.DecodeError:
        raise Refused(
            400, "invalid_request", "the member `stream_options` is not an object", param="stream_options"
        ) from None
    return None if value is None else _flag(value, "stream_options.include_usage")


def _with_usage(raw: msgspec.Raw) -> bytes:
    text = bytes(raw)
    members = {} if text == b"null" else _OBJECT.decode(text)
    members["include_usage"] = msgspec.Raw(b"true")
    return _encode(members)


class Usage(msgspec.Struct):
    """Token counts as model servers report them, in any of the dialects."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    prompt_tokens_details: Any = None
    input_tokens_details: Any = None
    cache_read_input_tokens: Any = None


_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


def error_type(dialect: Dialect, status: int) -> str:
    """The `type` of an error in a dialect's vocabulary."""
    if dialect is Dialect.ANTHROPIC:
        return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def encode_error(
    dialect: Dialect,
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """An error body in the caller's dialect; `more` are further members of the error."""
    more = more or {}
    kind = error_type(dialect, status)
    if dialect is Dialect.ANTHROPIC:
        return _encode({"type": "error", "error": {"type": kind, "message": message, **more}})
    if dialect is Dialect.PROBLEM:
        return _encode(
            {
                "type": f"urn:sndr:router:problem:{code}",
                "title": code.replace("_", " ").capitalize(),
                "status": status,
                "detail": message,
                "code": code,
                "retryable": status in (408, 503),
                **more,
            }
        )
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": code, **more}})


def encode_error_event(dialect: Dialect, status: int, code: str, message: str, sequence_number: int = 0) -> bytes:
    """The one event that tells a stream's reader that the stream failed."""
    if dialect is Dialect.RESPONSES:
        body = _encode(
            {"type": "error", "code": code, "message": message, "param": None, "sequence_number": sequence_number}
        )
        return b"event: error\ndata: " + body + b"\n\n"
    body = encode_error(dialect, status, code, message)
    return (b"event: error\ndata: " if dialect is Dialect.ANTHROPIC else b"data: ") + body + b"\n\n"
