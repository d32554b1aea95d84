"""A small model server for tests, demonstrations and benchmarks.

It speaks the OpenAI and Anthropic dialects (speech included) well enough for their SDKs, streams numbered tokens
(` t0 t1 t2`, so that a reader can prove that none is missing, doubled or out of order), reports usage, and misbehaves
on request: it can be slow to start, stall, reset, truncate, break its framing, lie about its model, answer with an
error. It keeps a log of the requests it saw and of how each of them ended, which is the other side's word when a
gateway's books are checked.

How a request is answered is a `Plan`. Its members come from, later ones winning: the server's default plan, the next
plan of the queue set by `POST /synthetic/set`, the header `x-synthetic` or `openai-synthetic` (JSON), the member
`synthetic` of the request's JSON body.

The control paths, JSON in and out:

- `GET /synthetic/log`: `{"requests": [...]}`; `?id=` picks one request id.
- `GET /synthetic/stats`: counters of connections and requests.
- `POST /synthetic/set`: any of `plan` (default plan), `next` (list of plans, one per coming request), `model`,
  `models` (what the model list shows), `next_models` (lists shown once each before that), `health` (status of
  `/health`), `models_status`, `listening`.
- `POST /synthetic/release`: lets stalled requests go on.
- `POST /synthetic/wait`: `{"requests": 3, "in_flight": 0, "ended": 3, "connections": 0, "timeout_s": 10}`: answers when
  every named counter has its value (`requests` and `ended`: at least), 408 when it does not in time.
- `POST /synthetic/clear`: empties log and counters.

It is a test double: it listens where it is told and trusts whoever reaches it.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import re
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import httptools
import msgspec

from sndr.errors import InputError, cannot_listen

__all__ = ["BREAKAGES", "Options", "Plan", "Record", "SyntheticServer", "parse_plan", "serve"]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

_CREATED: Final = 1780000000

BREAKAGES: Final[Mapping[str, bytes]] = {
    "content_length_and_chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n0\r\n\r\n",
    "two_content_lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "signed_content_length": b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
    "bad_chunk_size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\noops\r\n0\r\n\r\n",
    "gzip_transfer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
    "identity_transfer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello",
    "folded_header": b"HTTP/1.1 200 OK\r\nX-A: 1\r\n folded\r\nContent-Length: 5\r\n\r\nhello",
    "space_before_colon": b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
    "nul_in_header": b"HTTP/1.1 200 OK\r\nX-A: a\x00b\r\nContent-Length: 5\r\n\r\nhello",
    "http_0_9": b"hello\n",
    "http_2_preface": b"HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "not_http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "endless_head": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(200)),
    "bytes_after_the_end": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond",
    "switching_protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello",
}
"""Responses that no HTTP peer may accept as they are, by name: `Plan.breakage`, written verbatim before a close."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is answered.

    Attributes:
        tokens: Length of the answer; a smaller limit in the request wins (finish reason `length`).
        first_delay_ms: Wait before the response head.
        prefill_ms: Wait between the head and the first token (streams), added to the wait before the head otherwise.
        token_delay_ms: Wait before each token but the first; an answer that is not streamed waits for all of them.
        status: Anything but 200 answers with an error body of the dialect, or with `body`.
        body: JSON value or text to answer with instead of the dialect's own body (not streamed).
        headers: Additional response headers.
        stall_after: Send nothing more after this many tokens until released or closed; -1 stalls before the head.
        reset_after: TCP reset after this many tokens; -1 before the head.
        truncate_after: Orderly close after this many tokens without the end of the body; -1 before the head.
        error_after: In-band error event after this many tokens of a stream, then an orderly end.
        breakage: Key of `BREAKAGES`.
        model: Name in the answer, when it is to differ from the served one.
        usage: Whether usage is reported (streams: when the request asks for it).
        cached_tokens: Reported as cached prompt tokens when not None.
        done: Whether a stream of the OpenAI dialects ends with `[DONE]`.
        finish_reason: The answer's finish reason.
        pad_bytes: Filler in every token.
        write_bytes: Split the response into writes of at most this many bytes (0: as it comes).
        gather: Events per write when there is no delay between them.
        close: Announce `Connection: close` and close after the response.
        hangup: Close after the response without having announced it.
        length: Answer with Content-Length where possible; False: chunked.
    """

    tokens: int = 8
    first_delay_ms: float = 0
    prefill_ms: float = 0
    token_delay_ms: float = 0
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stall_after: int | None = None
    reset_after: int | None = None
    truncate_after: int | None = None
    error_after: int | None = None
    breakage: str | None = None
    model: str | None = None
    usage: bool = True
    cached_tokens: int | None = None
    done: bool = True
    finish_reason: str = "stop"
    pad_bytes: int = 0
    write_bytes: int = 0
    gather: int = 1
    close: bool = False
    hangup: bool = False
    length: bool = True


_PLAN_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    f.name: {
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
        "str": (str,),
        "int | None": (int, type(None)),
        "str | None": (str, type(None)),
        "Mapping[str, str]": (dict,),
        "Any": (object,),
    }[str(f.type)]
    for f in dataclasses.fields(Plan)
}


def parse_plan(value: object, base: Plan) -> Plan:
    """A plan from JSON members over a base plan.

    Raises:
        InputError: An unknown member or a wrong type (`invalid_plan`).
    """
    if not isinstance(value, dict):
        raise InputError("invalid_plan", "a plan is a JSON object")
    for name, member in value.items():
        allowed = _PLAN_TYPES.get(name)
        if allowed is None:
            raise InputError("invalid_plan", f"unknown plan member {name!r}; known: {', '.join(sorted(_PLAN_TYPES))}")
        if not isinstance(member, allowed) or (
            isinstance(member, bool) and bool not in allowed and object not in allowed
        ):
            raise InputError("invalid_plan", f"plan member {name!r} has the wrong type")
    if value.get("breakage") is not None and value["breakage"] not in BREAKAGES:
        raise InputError("invalid_plan", f"unknown breakage; known: {', '.join(sorted(BREAKAGES))}")
    return dataclasses.replace(base, **value)


@dataclass(frozen=True, slots=True)
class Options:
    """What the server is.

    Attributes:
        host: Address to listen on.
        port: 0 picks a free one.
        model: Served model name.
        token: Credential that inference and the model list require (`Authorization: Bearer`); None: no check.
        plan: The default plan.
        keepalive_idle_s: Idle connections are closed after this time; 0: never.
        log_limit: Requests kept in the log.
        depth: Speculative depth that it plays: above 1, tokens of tool calls and structured answers come sooner
            (they are easy to guess) and all others later, and `/metrics` shows vLLM's counters for it.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "m1"
    token: str | None = None
    plan: Plan = Plan()
    keepalive_idle_s: float = 0
    log_limit: int = 250_000
    depth: int = 1


EASY_FACTOR: Final = 209.1 / 235.9
HARD_FACTOR: Final = 1.25
"""Time of a token with speculation over that without: the measured gain of short answers, and a made-up loss."""


def _is_easy_to_guess(request: Mapping[str, Any]) -> bool:
    response_format = request.get("response_format")
    return bool(request.get("tools")) or (isinstance(response_format, dict) and response_format.get("type") != "text")


def _vllm_metrics(model: str, depth: int) -> bytes:
    lines = [f'vllm:num_requests_running{{model_name="{model}"}} 0']
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{{model_name="{model}",position="{n}"}} 0' for n in range(depth if depth > 1 else 0)]
    return "\n".join([*lines, ""]).encode()


@dataclass(slots=True)
class Record:
    """What the server saw of one request. Times are seconds since the epoch."""

    n: int
    connection: int
    id: str | None
    method: str
    path: str
    model: str | None
    stream: bool
    bytes: int
    headers: dict[str, str]
    received_at: float
    first_byte_at: float | None = None
    ended_at: float | None = None
    closed_at: float | None = None
    """When the connection that carried the request was lost."""
    ended: str | None = None
    """`complete, error, client_gone, reset, truncated, broken`; None while it runs."""
    status: int | None = None
    tokens: int = 0
    prompt_tokens: int = 0
    usage_sent: bool = False
    bytes_sent: int = 0
    body: Any = None


# --- dialects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reply:
    """Everything a dialect needs to write an answer."""

    number: int
    model: str
    tokens: tuple[str, ...]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int | None
    usage: bool
    include_usage: bool
    done: bool
    request: Mapping[str, Any]


def _event(value: object, name: str | None = None) -> bytes:
    data = b"data: " + _encode(value) + b"\n\n"
    return data if name is None else b"event: " + name.encode() + b"\n" + data


def _openai_usage(reply: _Reply) -> dict[str, Any]:
    n = len(reply.tokens)
    usage: dict[str, Any] = {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": n,
        "total_tokens": reply.prompt_tokens + n,
    }
    if reply.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": reply.cached_tokens}
    return usage


class _Chat:
    """`chat/completions`, and the base of the other dialects."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    stream_type = "text/event-stream; charset=utf-8"
    prefix = "chatcmpl"

    def _whole(self, text: str, finish: str) -> dict[str, Any]:
        return {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}

    def _part(self, text: str | None, finish: str | None) -> dict[str, Any]:
        delta = {} if text is None else {"content": text}
        return {"index": 0, "delta": delta, "finish_reason": finish}

    def whole(self, reply: _Reply) -> bytes:
        answer: dict[str, Any] = {
            "id": f"{self.prefix}-{reply.number}",
            "object": self.object,
            "created": _CREATED,
            "model": reply.model,
            "choices": [self._whole("".join(reply.tokens), reply.finish_reason)],
        }
        if reply.usage:
            answer["usage"] = _openai_usage(reply)
        return _encode(answer)

    def opening(self, reply: _Reply) -> bytes:  # noqa: ARG002 -- dialects with an opening need it
        return b""

    def events(self, reply: _Reply) -> Iterator[bytes]:
        """One item per token."""
        head = (
            b'data: {"id":"%s-%d","object":"%s","created":%d,"model":%s,"choices":'
            % (self.prefix.encode(), reply.number, self.chunk_object.encode(), _CREATED, _encode(reply.model))
        )  # fmt: skip
        tail = b',"usage":null}\n\n' if reply.include_usage and reply.usage else b"}\n\n"
        for token in reply.tokens:
            yield head + _encode([self._part(token, None)]) + tail

    def closing(self, reply: _Reply) -> bytes:
        head: dict[str, Any] = {
            "id": f"{self.prefix}-{reply.number}",
            "object": self.chunk_object,
            "created": _CREATED,
            "model": reply.model,
        }
        out = _event({**head, "choices": [self._part(None, reply.finish_reason)]})
        if reply.include_usage and reply.usage:
            out += _event({**head, "choices": [], "usage": _openai_usage(reply)})
        return out + (b"data: [DONE]\n\n" if reply.done else b"")

    def error(self, status: int) -> bytes:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return _encode({"error": {"message": f"synthetic {status}", "type": kind, "param": None, "code": None}})

    def in_band_error(self) -> bytes:
        return _event({"error": {"message": "synthetic failure", "type": "server_error", "param": None, "code": None}})

    def reports_usage(self, reply: _Reply, stream: bool) -> bool:
        return reply.usage and (reply.include_usage or not stream)


class _Completions(_Chat):
    object = "text_completion"
    chunk_object = "text_completion"
    prefix = "cmpl"

    def _whole(self, text: str, finish: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}

    def _part(self, text: str | None, finish: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish}


class _Messages(_Chat):
    """Anthropic's `messages`."""

    def _stop(self, reply: _Reply) -> str:
        return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}.get(
            reply.finish_reason, reply.finish_reason
        )

    def _usage(self, reply: _Reply) -> dict[str, Any]:
        usage: dict[str, Any] = {"input_tokens": reply.prompt_tokens, "output_tokens": len(reply.tokens)}
        if reply.cached_tokens is not None:
            usage["cache_read_input_tokens"] = reply.cached_tokens
        return usage

    def _message(self, reply: _Reply, content: list[dict[str, Any]], stop: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {
            "id": f"msg_{reply.number}",
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
        }
        if reply.usage:
            message["usage"] = self._usage(reply) if stop else {**self._usage(reply), "output_tokens": 0}
        return message

    def whole(self, reply: _Reply) -> bytes:
        return _encode(self._message(reply, [{"type": "text", "text": "".join(reply.tokens)}], self._stop(reply)))

    def opening(self, reply: _Reply) -> bytes:
        return _event(
            {"type": "message_start", "message": self._message(reply, [], None)}, "message_start"
        ) + _event(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            "content_block_start",
        )  # fmt: skip

    def events(self, reply: _Reply) -> Iterator[bytes]:
        for token in reply.tokens:
            delta = {"type": "text_delta", "text": token}
            yield _event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")

    def closing(self, reply: _Reply) -> bytes:
        delta: dict[str, Any] = {
            "type": "message_delta",
            "delta": {"stop_reason": self._stop(reply), "stop_sequence": None},
        }
        if reply.usage:
            delta["usage"] = self._usage(reply)
        return (
            _event({"type": "content_block_stop", "index": 0}, "content_block_stop")
            + _event(delta, "message_delta")
            + _event({"type": "message_stop"}, "message_stop")
        )

    def _error(self, status: int) -> dict[str, Any]:
        kinds = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}
        return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": f"synthetic {status}"}}

    def error(self, status: int) -> bytes:
        return _encode(self._error(status))

    def in_band_error(self) -> bytes:
        return _event(self._error(500), "error")

    def reports_usage(self, reply: _Reply, stream: bool) -> bool:  # noqa: ARG002 -- reported in both forms
        return reply.usage


class _Responses(_Chat):
    """OpenAI's `responses`, stateless."""

    def _usage(self, reply: _Reply) -> dict[str, Any]:
        n = len(reply.tokens)
        return {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens or 0},
            "output_tokens": n,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + n,
        }

    def _item(self, reply: _Reply, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [{"type": "output_text", "text": text, "annotations": []}]
        return {
            "type": "message",
            "id": f"item_{reply.number}",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, reply: _Reply, status: str) -> dict[str, Any]:
        ended = status != "in_progress"
        cut = {"reason": "max_output_tokens"} if ended and reply.finish_reason == "length" else None
        return {
            "id": f"resp_{reply.number}",
            "object": "response",
            "created_at": _CREATED,
            "status": "incomplete" if cut else status,
            "model": reply.model,
            "output": [self._item(reply, "".join(reply.tokens), "completed")] if ended else [],
            "error": None,
            "incomplete_details": cut,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": self._usage(reply) if ended and reply.usage else None,
        }

    def whole(self, reply: _Reply) -> bytes:
        return _encode(self._response(reply, "completed"))

    def _place(self, reply: _Reply) -> dict[str, Any]:
        return {"item_id": f"item_{reply.number}", "output_index": 0, "content_index": 0}

    def _numbered(self, first: int, *events: dict[str, Any]) -> bytes:
        return b"".join(_event({**e, "sequence_number": first + i}, e["type"]) for i, e in enumerate(events))

    def opening(self, reply: _Reply) -> bytes:
        response = self._response(reply, "in_progress")
        part = {"type": "output_text", "text": "", "annotations": []}
        return self._numbered(
            0,
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": self._item(reply, None, "in_progress"),
            },
            {"type": "response.content_part.added", **self._place(reply), "part": part},
        )

    def events(self, reply: _Reply) -> Iterator[bytes]:
        for i, token in enumerate(reply.tokens):
            delta = {"type": "response.output_text.delta", **self._place(reply), "delta": token, "logprobs": []}
            yield self._numbered(4 + i, delta)

    def closing(self, reply: _Reply) -> bytes:
        text = "".join(reply.tokens)
        final = self._response(reply, "completed")
        part = {"type": "output_text", "text": text, "annotations": []}
        return self._numbered(
            4 + len(reply.tokens),
            {"type": "response.output_text.done", **self._place(reply), "text": text, "logprobs": []},
            {"type": "response.content_part.done", **self._place(reply), "part": part},
            {
                "type": "response.output_item.done",
                "output_index": 0,
                "item": self._item(reply, text, "completed"),
            },
            {"type": f"response.{final['status']}", "response": final},
        )

    def in_band_error(self) -> bytes:
        return _event({"type": "error", "code": "server_error", "message": "synthetic failure", "param": None}, "error")

    def reports_usage(self, reply: _Reply, stream: bool) -> bool:  # noqa: ARG002 -- reported in both forms
        return reply.usage


class _Embeddings(_Chat):
    def whole(self, reply: _Reply) -> bytes:
        given = reply.request.get("input", "")
        inputs = given if isinstance(given, list) else [given]
        data = [{"object": "embedding", "index": i, "embedding": self._vector(i, reply)} for i, _ in enumerate(inputs)]
        answer: dict[str, Any] = {"object": "list", "data": data, "model": reply.model}
        if reply.usage:
            answer["usage"] = {"prompt_tokens": reply.prompt_tokens, "total_tokens": reply.prompt_tokens}
        return _encode(answer)

    @staticmethod
    def _vector(index: int, reply: _Reply) -> str | list[float]:
        vector = [float(index), 0.25, -1.5]
        if reply.request.get("encoding_format") == "base64":
            return base64.b64encode(struct.pack("<3f", *vector)).decode()
        return vector


class _Rerank(_Chat):
    def whole(self, reply: _Reply) -> bytes:
        documents = reply.request.get("documents", [])
        count = len(documents) if isinstance(documents, list) else 0
        results = [{"index": i, "relevance_score": 1.0 / (i + 1)} for i in range(count)]
        answer: dict[str, Any] = {"id": f"rerank-{reply.number}", "model": reply.model, "results": results}
        if reply.usage:
            answer["usage"] = {"total_tokens": reply.prompt_tokens}
        return _encode(answer)


class _CountTokens(_Messages):
    def whole(self, reply: _Reply) -> bytes:
        return _encode({"input_tokens": reply.prompt_tokens})


class _Tokenize(_Chat):
    def whole(self, reply: _Reply) -> bytes:
        n = reply.prompt_tokens
        return _encode({"count": n, "max_model_len": 4096, "tokens": list(range(n))})


class _Detokenize(_Chat):
    def whole(self, reply: _Reply) -> bytes:
        return _encode({"prompt": "".join(reply.tokens)})


class _Transcriptions(_Chat):
    """Speech to text: a form in, JSON or events out."""

    def _usage(self, reply: _Reply) -> dict[str, Any]:
        n = len(reply.tokens)
        return {
            "type": "tokens",
            "input_tokens": reply.prompt_tokens,
            "output_tokens": n,
            "total_tokens": reply.prompt_tokens + n,
        }

    def whole(self, reply: _Reply) -> bytes:
        answer: dict[str, Any] = {"text": "".join(reply.tokens)}
        if reply.usage:
            answer["usage"] = self._usage(reply)
        return _encode(answer)

    def events(self, reply: _Reply) -> Iterator[bytes]:
        for token in reply.tokens:
            yield _event({"type": "transcript.text.delta", "delta": token})

    def closing(self, reply: _Reply) -> bytes:
        done: dict[str, Any] = {"type": "transcript.text.done", "text": "".join(reply.tokens)}
        if reply.usage:
            done["usage"] = self._usage(reply)
        return _event(done) + (b"data: [DONE]\n\n" if reply.done else b"")

    def reports_usage(self, reply: _Reply, stream: bool) -> bool:  # noqa: ARG002 -- reported in both forms
        return reply.usage


class _Speech(_Chat):
    """Text to speech: JSON in, bytes out as they are made."""

    stream_type = "audio/mpeg"

    def events(self, reply: _Reply) -> Iterator[bytes]:
        for token in reply.tokens:
            yield b"\xff\xfb\x90" + token.encode()

    def closing(self, reply: _Reply) -> bytes:  # noqa: ARG002 -- sound has no closing words
        return b""

    def reports_usage(self, reply: _Reply, stream: bool) -> bool:  # noqa: ARG002 -- never
        return False


_DIALECTS: Final[Mapping[str, _Chat]] = {
    "chat/completions": _Chat(),
    "completions": _Completions(),
    "responses": _Responses(),
    "messages": _Messages(),
    "messages/count_tokens": _CountTokens(),
    "embeddings": _Embeddings(),
    "rerank": _Rerank(),
    "tokenize": _Tokenize(),
    "detokenize": _Detokenize(),
    "audio/transcriptions": _Transcriptions(),
    "audio/speech": _Speech(),
}
_STREAMING: Final = frozenset({"chat/completions", "completions", "responses", "messages", "audio/transcriptions"})


def _form(content_type: str, body: bytes) -> dict[str, Any] | None:
    """The members of a form, files as their length; None when it cannot be read."""
    _, _, boundary = content_type.partition("boundary=")
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.strip('"').encode())
    if not boundary or pieces[0] or not pieces[-1].startswith(b"--"):
        return None
    members: dict[str, Any] = {}
    for piece in pieces[1:-1]:
        head, _, value = piece.partition(b"\r\n\r\n")
        named = re.search(rb'[ ;]name="?([^"\r\n;]*)', head)
        if named is not None:
            members[named[1].decode("latin-1")] = (
                len(value) if b"filename" in head else value.decode("utf-8", "replace")
            )
    members["stream"] = members.get("stream") == "true"
    return members


# --- connections ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class _Stall:
    pass


@dataclass(frozen=True, slots=True)
class _Until:
    future: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _Cut:
    how: str
    """`reset`, `truncated` or `broken`."""


_Script = Generator[bytes | _Sleep | _Stall | _Until | _Cut, None, None]


def _head(status: int, content_type: str, plan: Plan, length: int | None) -> bytes:
    reason = {200: "OK", 401: "Unauthorized", 404: "Not Found", 408: "Request Timeout"}.get(status, "Synthetic")
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Type: {content_type}"]
    lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
    if plan.close:
        lines.append("Connection: close")
    lines += [f"{name}: {value}" for name, value in plan.headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class _Connection(asyncio.Protocol):
    """One client connection: parses requests, plays their scripts one after the other."""

    __slots__ = (
        "_after",
        "_body",
        "_closed",
        "_headers",
        "_idle",
        "_parser",
        "_paused",
        "_queue",
        "_record",
        "_script",
        "_timer",
        "_transport",
        "_url",
        "number",
        "seen",
        "server",
    )  # fmt: skip

    def __init__(self, server: SyntheticServer) -> None:
        self.server = server
        self.number = 0
        self.seen: list[Record] = []
        self._parser = httptools.HttpRequestParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._url = b""
        self._queue: deque[tuple[str, str, dict[str, str], bytes, bool]] = deque()
        self._script: _Script | None = None
        self._record: Record | None = None
        self._after: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._paused = False
        self._closed = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.opened(self)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio.Protocol
        self._closed = True
        for timer in (self._timer, self._idle):
            if timer is not None:
                timer.cancel()
        if self._record is not None:
            self._end("client_gone")
        self.server.lost(self)

    def data_received(self, data: bytes) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self._transport.close()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._script is not None and self._timer is None:
            self._play()

    # httptools

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        keep = self._parser.should_keep_alive()
        request = (method, self._url.decode("latin-1"), self._headers, b"".join(self._body), keep)
        self._url, self._headers, self._body = b"", {}, []
        self._queue.append(request)
        if self._script is None:
            self._next()

    # playing

    def _rest(self) -> None:
        """Between requests: arm the idle close."""
        idle = self.server.options.keepalive_idle_s
        if idle > 0:
            self._idle = self.server.loop.call_later(idle, self._transport.close)

    def _next(self) -> None:
        while self._queue and self._script is None and not self._closed:
            method, url, headers, body, keep = self._queue.popleft()
            self._script, self._record, self._after = self.server.answer(self, method, url, headers, body, keep)
            self._play()
        if self._script is None and not self._closed and not self._queue:
            self._rest()

    def _play(self) -> None:
        """Write until the script ends, sleeps, stalls, or the transport's buffer is full."""
        self._timer = None
        script, record = self._script, self._record
        assert script is not None
        for step in script:
            if isinstance(step, bytes):
                if record is not None:
                    if record.first_byte_at is None:
                        record.first_byte_at = time.time()
                    record.bytes_sent += len(step)
                self._transport.write(step)
                if self._closed or self._paused or self._transport.is_closing():
                    return
            elif isinstance(step, _Sleep):
                self._timer = self.server.loop.call_later(step.seconds, self._play)
                return
            elif isinstance(step, _Stall):
                self.server.stalled.append(self)
                return
            elif isinstance(step, _Until):
                step.future.add_done_callback(lambda _: self.resume())
                return
            else:
                self._cut(step.how)
                return
        after = self._after
        if record is not None:
            self._end("complete" if record.status == 200 else "error")
        self._script = self._record = self._after = None
        if after is not None:
            after()
        elif self._queue:
            # From a fresh callback: a long pipeline must not recurse through _next and _play.
            self.server.loop.call_soon(self._next)
        else:
            self._rest()

    def resume(self) -> None:
        """Go on after a stall."""
        if not self._closed and self._script is not None:
            self._play()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _cut(self, how: str) -> None:
        self._end(how)
        self._script = self._record = None
        if how == "reset":
            sock = self._transport.get_extra_info("socket")
            if sock is not None and sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def _end(self, how: str) -> None:
        record, self._record = self._record, None
        if record is not None:
            record.ended = how
            record.ended_at = time.time()
            self.server.ended()


class SyntheticServer:
    """The server; everything happens on the loop that called `start`."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.plan = self.options.plan
        self.plans: deque[Plan] = deque()
        self.model = self.options.model
        self.models: list[str] | None = None
        self.next_models: deque[list[str]] = deque()
        self.health = 200
        self.models_status = 200
        self.log: deque[Record] = deque(maxlen=self.options.log_limit)
        self.stalled: list[_Connection] = []
        self.counters = {"connections_opened": 0, "connections": 0, "requests": 0, "in_flight": 0, "ended": 0}
        self.counters |= {"health_checks": 0, "model_lists": 0}
        self.loop: asyncio.AbstractEventLoop
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._waiters: list[tuple[dict[str, int], asyncio.Future[None]]] = []
        self._port = self.options.port
        self._empty = asyncio.Event()

    @property
    def port(self) -> int:
        """The port it listens on, stable over `listening` off and on."""
        return self._port

    @property
    def address(self) -> str:
        host = self.options.host
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    @property
    def base_url(self) -> str:
        """What a tier's `base_url` is set to."""
        return f"http://{self.address}/v1"

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address is in use or not ours.
        """
        self.loop = asyncio.get_running_loop()
        self._server = await self.loop.create_server(
            lambda: _Connection(self), self.options.host, self._port, backlog=4096, reuse_address=True
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop every connection; returns when all of them are gone."""
        await self._listen(False)
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            self._empty.clear()
            await self._empty.wait()

    async def _listen(self, on: bool) -> None:
        if not on and self._server is not None:
            server, self._server = self._server, None
            server.close()
        elif on and self._server is None:
            await self.start()

    # callbacks of connections

    def opened(self, connection: _Connection) -> None:
        self.counters["connections_opened"] += 1
        self.counters["connections"] += 1
        connection.number = self.counters["connections_opened"]
        self._connections.add(connection)
        self._check_waiters()

    def lost(self, connection: _Connection) -> None:
        now = time.time()
        self.counters["connections"] -= 1
        for record in connection.seen:
            record.closed_at = now
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
        if connection in self.stalled:
            self.stalled.remove(connection)
        self._check_waiters()

    def ended(self) -> None:
        self.counters["in_flight"] -= 1
        self.counters["ended"] += 1
        self._check_waiters()

    # requests

    def answer(
        self, connection: _Connection, method: str, url: str, headers: dict[str, str], body: bytes, keep: bool
    ) -> tuple[_Script, Record | None, Callable[[], None] | None]:
        """Script of a request, its log record (None for control and health requests), what follows the last byte."""
        path, _, query = url.partition("?")
        path = unquote(path)
        hang_up = None if keep else connection.close
        if path.startswith("/synthetic/"):
            return self._control(method, path[11:], parse_qs(query), body), None, hang_up
        if path == "/metrics" and method == "GET":
            return (
                _bytes(200, "text/plain; version=0.0.4", _vllm_metrics(self.model, self.options.depth)),
                None,
                hang_up,
            )
        if path == "/health":
            self.counters["health_checks"] += 1
            return _plain(self.health, {"status": self.health}), None, hang_up
        tail = path.partition("/v1/")[2] if "/v1/" in path else path.lstrip("/")
        authorized = self.options.token is None or headers.get("authorization") == f"Bearer {self.options.token}"
        if tail == "models" and method == "GET":
            self.counters["model_lists"] += 1
            return self._model_list(authorized), None, hang_up
        return self._infer(connection, method, path, tail, headers, body, authorized, hang_up)

    def _model_list(self, authorized: bool) -> _Script:
        if not authorized:
            return _plain(401, {"error": {"message": "unauthorized", "type": "authentication_error"}})
        names = [self.model] if self.models is None else self.models
        if self.next_models:
            names = self.next_models.popleft()
        data = [
            {"id": n, "object": "model", "created": _CREATED, "owned_by": "synthetic", "max_model_len": 4096}
            for n in names
        ]
        return _plain(self.models_status, {"object": "list", "data": data})

    def _infer(
        self, connection: _Connection, method: str, path: str, tail: str, headers: dict[str, str], body: bytes,
        authorized: bool, hang_up: Callable[[], None] | None,
    ) -> tuple[_Script, Record | None, Callable[[], None] | None]:  # fmt: skip
        counters = self.counters
        counters["requests"] += 1
        counters["in_flight"] += 1
        content_type = headers.get("content-type", "")
        try:
            if content_type.startswith("multipart/form-data"):
                parsed: Any = _form(content_type, body)
            else:
                parsed = _decode(body) if body else {}
        except msgspec.DecodeError:
            parsed = None
        request: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
        model = request.get("model")
        record = Record(
            n=counters["requests"],
            connection=connection.number,
            id=headers.get("x-request-id"),
            method=method,
            path=path,
            model=model if isinstance(model, str) else None,
            stream=request.get("stream") is True,
            bytes=len(body),
            headers=headers,
            received_at=time.time(),
            body=parsed if len(body) <= 4096 or "boundary" in content_type else None,
        )
        self.log.append(record)
        connection.seen.append(record)
        self._check_waiters()
        dialect = _DIALECTS.get(tail)
        refusal = None
        try:
            plan = self._plan(headers, request)
        except InputError as error:
            plan, refusal = Plan(status=400, body={"error": {"message": error.message, "type": "invalid_plan"}}), 400
        if refusal is None:
            if not authorized:
                refusal = 401
            elif dialect is None or method != "POST":
                refusal = 404
            elif parsed is None or not isinstance(parsed, dict):
                refusal = 400
            elif model != self.model:
                refusal = 404
        if refusal is not None and plan.status != 400:
            plan = Plan(status=refusal)
        if plan.hangup or plan.close:
            hang_up = connection.close
        record.status = plan.status
        return self._script(dialect or _DIALECTS["chat/completions"], tail, request, record, plan), record, hang_up

    def _plan(self, headers: Mapping[str, str], request: Mapping[str, Any]) -> Plan:
        plan = self.plans.popleft() if self.plans else self.plan
        text = headers.get("x-synthetic") or headers.get("openai-synthetic")
        if text is not None:
            try:
                plan = parse_plan(_decode(text), plan)
            except msgspec.DecodeError:
                raise InputError("invalid_plan", "the plan in the header is not JSON") from None
        if "synthetic" in request:
            plan = parse_plan(request["synthetic"], plan)
        if self.options.depth > 1 and plan.token_delay_ms:
            factor = EASY_FACTOR if _is_easy_to_guess(request) else HARD_FACTOR
            plan = dataclasses.replace(plan, token_delay_ms=plan.token_delay_ms * factor)
        return plan

    def _reply(self, request: Mapping[str, Any], record: Record, plan: Plan) -> _Reply:
        count, finish = plan.tokens, plan.finish_reason
        for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
            limit = request.get(name)
            if isinstance(limit, int) and limit < count:
                count, finish = limit, "length"
        options = request.get("stream_options")
        pad = "x" * plan.pad_bytes
        record.prompt_tokens = max(1, record.bytes // 4)
        return _Reply(
            number=record.n,
            model=self.model if plan.model is None else plan.model,
            tokens=tuple(f" t{i}{pad}" for i in range(count)),
            finish_reason=finish,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=plan.cached_tokens,
            usage=plan.usage,
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
            done=plan.done,
            request=request,
        )

    def _script(
        self, dialect: _Chat, tail: str, request: Mapping[str, Any], record: Record, plan: Plan
    ) -> _Script:  # fmt: skip
        script = self._acts(dialect, tail, request, record, plan)
        return _split(script, plan.write_bytes) if plan.write_bytes > 0 else script

    def _acts(self, dialect: _Chat, tail: str, request: Mapping[str, Any], record: Record, plan: Plan) -> _Script:
        if plan.first_delay_ms > 0:
            yield _Sleep(plan.first_delay_ms / 1000)
        if plan.stall_after == -1:
            yield _Stall()
        if plan.reset_after == -1:
            yield _Cut("reset")
        if plan.truncate_after == -1:
            yield _Cut("truncated")
        if plan.breakage is not None:
            yield BREAKAGES[plan.breakage]
            yield _Cut("broken")
        if plan.status != 200 or plan.body is not None:
            body = dialect.error(plan.status) if plan.body is None else plan.body
            if not isinstance(body, bytes):
                body = body.encode() if isinstance(body, str) else _encode(body)
            yield _head(plan.status, "application/json", plan, len(body)) + body
            return
        reply = self._reply(request, record, plan)
        stream = (record.stream and tail in _STREAMING) or isinstance(dialect, _Speech)
        record.usage_sent = dialect.reports_usage(reply, stream)
        if stream:
            yield from self._stream(dialect, reply, record, plan)
        else:
            yield from self._whole(dialect, reply, record, plan)

    def _whole(self, dialect: _Chat, reply: _Reply, record: Record, plan: Plan) -> _Script:
        wait = plan.prefill_ms + plan.token_delay_ms * max(0, len(reply.tokens) - 1)
        if wait > 0:
            yield _Sleep(wait / 1000)
        body = dialect.whole(reply)
        head = _head(200, "application/json", plan, len(body) if plan.length else None)
        # Cuts within an answer that is not streamed fall on the share of its bytes that so many tokens make up.
        for point, act in (
            (plan.stall_after, _Stall()),
            (plan.reset_after, _Cut("reset")),
            (plan.truncate_after, _Cut("truncated")),
        ):
            if point is not None and point >= 0:
                at = min(len(body) - 1, len(body) * point // max(1, len(reply.tokens)))
                part, body = body[:at], body[at:]
                yield head + (part if plan.length else (_chunk(part) if part else b""))
                head = b""
                yield act
        record.tokens = len(reply.tokens)
        yield head + (body if plan.length else _chunk(body) + b"0\r\n\r\n")

    def _stream(self, dialect: _Chat, reply: _Reply, record: Record, plan: Plan) -> _Script:
        head = _head(200, dialect.stream_type, plan, None)
        opening = dialect.opening(reply)
        pending = head + (_chunk(opening) if opening else b"")
        if plan.prefill_ms > 0:
            yield pending
            pending = b""
            yield _Sleep(plan.prefill_ms / 1000)
        special = {plan.stall_after, plan.reset_after, plan.truncate_after, plan.error_after} - {None}
        gathered = 0
        count = 0
        for event in dialect.events(reply):
            if special and count in special:
                if pending:
                    yield pending
                    pending = b""
                yield from self._incident(dialect, count, plan)
                if plan.error_after == count:
                    return
            if plan.token_delay_ms > 0 and count > 0:
                yield _Sleep(plan.token_delay_ms / 1000)
            count += 1
            record.tokens = count
            pending += _chunk(event)
            gathered += 1
            if gathered >= plan.gather or plan.token_delay_ms > 0:
                yield pending
                pending, gathered = b"", 0
        if special and count in special:
            if pending:
                yield pending
                pending = b""
            yield from self._incident(dialect, count, plan)
            if plan.error_after == count:
                return
        yield pending + _chunk(dialect.closing(reply)) + b"0\r\n\r\n"

    def _incident(self, dialect: _Chat, count: int, plan: Plan) -> _Script:
        if plan.stall_after == count:
            yield _Stall()
        if plan.reset_after == count:
            yield _Cut("reset")
        if plan.truncate_after == count:
            yield _Cut("truncated")
        if plan.error_after == count:
            yield _chunk(dialect.in_band_error()) + b"0\r\n\r\n"

    # control

    def _control(
        self, method: str, verb: str, query: Mapping[str, list[str]], body: bytes
    ) -> _Script:  # fmt: skip
        try:
            value = _decode(body) if body else {}
        except msgspec.DecodeError:
            return _plain(400, {"error": "the body is not JSON"})
        if not isinstance(value, dict):
            return _plain(400, {"error": "the body is not a JSON object"})
        match method, verb:
            case "GET", "log":
                ids = query.get("id")
                return _plain(200, {"requests": [r for r in self.log if ids is None or r.id in ids]})
            case "GET", "stats":
                return _plain(200, {**self.counters, "stalled": len(self.stalled)})
            case "POST", "release":
                released, self.stalled = self.stalled, []
                for one in released:
                    one.resume()
                return _plain(200, {"released": len(released)})
            case "POST", "clear":
                self.log.clear()
                self.counters |= {"connections_opened": 0, "requests": self.counters["in_flight"], "ended": 0}
                self.counters |= {"health_checks": 0, "model_lists": 0}
                return _plain(200, {"cleared": True})
            case "POST", "set":
                return self._set(value)
            case "POST", "wait":
                return self._wait(value)
            case _:
                return _plain(404, {"error": "no such control path"})

    def _set(self, value: dict[str, Any]) -> _Script:
        known = {"plan", "next", "model", "models", "next_models", "health", "models_status", "listening"}
        if unknown := sorted(set(value) - known):
            return _plain(400, {"error": f"unknown member {unknown[0]!r}; known: {', '.join(sorted(known))}"})
        try:
            plan = parse_plan(value["plan"], self.options.plan) if "plan" in value else self.plan
            plans = [parse_plan(p, plan) for p in value.get("next", [])]
        except InputError as error:
            return _plain(400, {"error": error.message})
        self.plan = plan
        self.plans.extend(plans)
        self.model = value.get("model", self.model)
        self.models = value.get("models", self.models)
        self.next_models.extend(value.get("next_models", []))
        self.health = value.get("health", self.health)
        self.models_status = value.get("models_status", self.models_status)
        if "listening" in value:
            return self._set_listening(bool(value["listening"]))
        return _plain(200, {"set": sorted(value)})

    def _set_listening(self, on: bool) -> _Script:
        task = self.loop.create_task(self._listen(on))
        while not task.done():
            yield _Sleep(0)
        failed = task.exception()
        yield from _plain(200 if failed is None else 500, {"listening": self._server is not None})

    def _wait(self, value: dict[str, Any]) -> _Script:
        timeout_s = value.pop("timeout_s", 10)
        if not value or not set(value) <= set(self.counters) or not all(isinstance(v, int) for v in value.values()):
            yield from _plain(400, {"error": f"name counters among {', '.join(sorted(self.counters))}"})
            return
        future: asyncio.Future[None] = self.loop.create_future()
        timer = self.loop.call_later(timeout_s, future.cancel)
        waiter = (value, future)
        self._waiters.append(waiter)
        self._check_waiters()
        yield _Until(future)
        timer.cancel()
        self._waiters.remove(waiter)
        yield from _plain(408 if future.cancelled() else 200, dict(self.counters))

    def _check_waiters(self) -> None:
        for wanted, future in self._waiters:
            if not future.done() and all(self._reached(name, count) for name, count in wanted.items()):
                future.set_result(None)

    def _reached(self, name: str, count: int) -> bool:
        have = self.counters[name]
        return have >= count if name in ("requests", "ended", "connections_opened") else have == count


async def serve(options: Options, announce: Callable[[SyntheticServer], None]) -> None:
    """Run a server until SIGINT or SIGTERM; `announce` is called once it listens.

    Raises:
        InputError: `listen_failed`; the address is in use or not ours.
    """
    server = SyntheticServer(options)
    try:
        await server.start()
    except OSError as error:
        raise cannot_listen(f"{options.host}:{options.port}", error) from error
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        server.loop.add_signal_handler(number, stopped.set)
    announce(server)
    await stopped.wait()
    await server.stop()


def _plain(status: int, value: object) -> _Script:
    return _bytes(status, "application/json", _encode(value))


def _bytes(status: int, content_type: str, body: bytes) -> _Script:
    yield _head(status, content_type, Plan(), len(body)) + body


def _split(script: _Script, size: int) -> _Script:
    """The same script with every write cut into pieces that leave in separate loop iterations."""
    for step in script:
        if isinstance(step, bytes):
            for at in range(0, len(step), size):
                yield step[at : at + size]
                yield _Sleep(0)
        else:
            yield step
