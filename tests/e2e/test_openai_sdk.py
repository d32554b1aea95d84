"""The official `openai` client against real processes: what it sends arrives, what it raises is what we said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.gateway import Gateway
from tests.support.raw import KEY, OPERATOR, ask, request, wait_idle
from tests.support.raw_upstream import RawUpstream
from tests.support.sdk import HELLO, boot_for, numbered, row
from tests.support.synthetic import Synthetic

BOOT = boot_for(
    ["llm.*", "raw", "dead"],
    """
[[router.tiers]]
id = "primary"
base_url = "{synthetic}"
model = "m1"
health_path = "/health"
context_limit = 4096
max_output_tokens = 64

[[router.tiers]]
id = "plain"
base_url = "{synthetic}"
model = "m1"
serves = ["chat"]
tool_support = false

[[router.tiers]]
id = "raw"
base_url = "{raw}"
model = "served/name"

[[router.tiers]]
id = "dead"
base_url = "http://127.0.0.1:1/v1"
model = "m1"

[router.model_routes]
"llm.primary" = "primary"
"llm.plain" = "plain"
raw = "raw"
dead = "dead"
"other.team" = "plain"
""",
    server="max_body_bytes = 200000",
)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0, timeout=20) as client:
        yield client


def plan(**members: Any) -> dict[str, Any]:
    """What the model server does with the request."""
    return {"openai-synthetic": json.dumps(members)}


def test_chat(client: openai.OpenAI, gateway: Gateway) -> None:
    raw_answer = client.chat.completions.with_raw_response.create(model="llm.primary", messages=HELLO)
    answer = raw_answer.parse()
    assert answer.choices[0].message.content == numbered(8)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.model == "m1"  # the response's bytes are the server's
    assert answer._request_id == raw_answer.headers["x-request-id"]
    assert row(gateway, answer._request_id)["outcome"] == "completed"


@pytest.mark.parametrize("asks", [None, True, False])
def test_stream(client: openai.OpenAI, asks: bool | None) -> None:
    options: Any = openai.NOT_GIVEN if asks is None else {"include_usage": asks}
    chunks = list(client.chat.completions.create(model="llm.primary", messages=HELLO, stream=True,
                                                 stream_options=options, extra_headers=plan(tokens=30)))  # fmt: skip
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == numbered(30)
    usage = [chunk for chunk in chunks if not chunk.choices]
    assert len(usage) == (1 if asks else 0)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="llm.primary", prompt="once", max_tokens=5)
    assert answer.choices[0].text == numbered(5)
    assert answer.choices[0].finish_reason == "length"
    stream = client.completions.create(model="llm.primary", prompt="once", stream=True)
    assert "".join(part.choices[0].text for part in stream if part.choices) == numbered(8)


def test_models(client: openai.OpenAI) -> None:
    page = client.models.list()
    assert {model.id for model in page} == {"llm.plain", "llm.primary", "raw", "dead"}
    model = client.models.retrieve("llm.primary")
    assert (model.id, model.object, model.owned_by) == ("llm.primary", "model", "sndr")
    assert model.model_extra is not None
    assert model.model_extra["context_window"] == model.model_extra["max_model_len"] == 4096
    assert model.model_extra["ready"] is True
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other.team")
    assert caught.value.code == "model_not_found"


def test_limit_is_lowered_and_said(client: openai.OpenAI) -> None:
    answer = client.chat.completions.with_raw_response.create(
        model="llm.primary", messages=HELLO, max_completion_tokens=100, extra_headers=plan(tokens=200)
    )
    assert answer.headers["x-sndr-max-tokens-clamped"] == "100->64"
    usage = answer.parse().usage
    assert usage is not None
    assert usage.completion_tokens == 64


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
RICH: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "käse 👋 ﷽"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "1.50"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "a pixel"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "look", "strict": True, "parameters": {"type": "object", "properties": {"at": {}}}},
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "logprobs": True,
    "top_logprobs": 3,
    "logit_bias": {"50256": -100},
    "temperature": 0.1,
    "seed": 2**53 + 1,
    "stop": ["\n", "</s>"],
}
EXTRA = {"guided_regex": "[a-z]+", "chat_template_kwargs": {"enable_thinking": False}, "min_p": 1e-05}


def test_tools_vision_and_unknown_members_pass_untouched(client: openai.OpenAI, raw: RawUpstream) -> None:
    answer = client.chat.completions.create(
        model="raw", extra_body=EXTRA, extra_headers={"x-request-id": "rich", "openai-organization": "o"}, **RICH
    )
    assert answer.choices[0].message.content == "good"
    seen = raw.wait("rich")
    assert json.loads(seen.body) == {**RICH, **EXTRA, "model": "served/name"}
    assert seen.fields["openai-organization"] == "o"
    assert seen.fields["accept-encoding"] == "identity"
    assert "authorization" not in seen.fields
    assert KEY.encode() not in seen.head + seen.body


TOOL_CHUNKS = [
    {"role": "assistant", "content": None, "tool_calls": [
        {"index": 0, "id": "call_9", "type": "function", "function": {"name": "look", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"at":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ' "Zürich"}'}}]},
    {"reasoning_content": "hm"},
]  # fmt: skip


def test_streamed_tool_calls_and_vendor_fields_pass(client: openai.OpenAI, raw: RawUpstream) -> None:
    events = [
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m1", "vendor": {"x": 1},
         "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in TOOL_CHUNKS
    ]  # fmt: skip
    events[-1]["choices"][0]["finish_reason"] = "tool_calls"  # type: ignore[index]
    text = ": a comment\n\n" + "".join(f"data: {json.dumps(e, ensure_ascii=False)}\r\n\r\n" for e in events)
    text += "event: odd\nid: 7\nretry: 10\ndata: [DONE]\n\n"
    raw.script("tools", [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n", text.encode(),
                         "close"])  # fmt: skip
    headers = {"x-request-id": "tools"}
    with client.chat.completions.with_streaming_response.create(
        model="raw", messages=HELLO, stream=True, extra_headers=headers
    ) as answer:
        assert b"".join(answer.iter_bytes()) == text.encode()
    raw.script("tools-2", [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", text.encode(), "close"])
    chunks = list(client.chat.completions.create(model="raw", messages=HELLO, stream=True,
                                                 extra_headers={"x-request-id": "tools-2"}))  # fmt: skip
    arguments = "".join(
        call.function.arguments or ""
        for chunk in chunks
        for call in chunk.choices[0].delta.tool_calls or ()
        if call.function is not None
    )
    assert json.loads(arguments) == {"at": "Zürich"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].choices[0].delta.model_extra == {"reasoning_content": "hm"}
    assert chunks[0].model_extra == {"vendor": {"x": 1}}


ERRORS: list[tuple[str, dict[str, Any], type[openai.APIStatusError], int, str | None, str | None]] = [
    ("unknown model", {"model": "nobody"}, openai.NotFoundError, 404, "model_not_found", "invalid_request_error"),
    ("alias of others", {"model": "other.team"}, openai.PermissionDeniedError, 403, "model_not_allowed",
     "permission_error"),
    ("tools", {"model": "llm.plain", "tools": RICH["tools"]}, openai.BadRequestError, 400, "tools_unsupported",
     "invalid_request_error"),
    ("context", {"max_tokens": 5000}, openai.BadRequestError, 400, "context_length_exceeded",
     "invalid_request_error"),
    ("too large", {"messages": [{"role": "user", "content": "x" * 200_001}]}, openai.APIStatusError, 413,
     "body_too_large", "invalid_request_error"),
    ("nobody there", {"model": "dead"}, openai.InternalServerError, 502, "upstream_unreachable", "server_error"),
    ("server failed", {"extra_headers": plan(status=500)}, openai.InternalServerError, 502, "upstream_error",
     "server_error"),
    ("gateway's own credential refused", {"extra_headers": plan(status=401)}, openai.InternalServerError, 502,
     "upstream_error", "server_error"),
    ("no answer", {"extra_headers": plan(stall_after=-1)}, openai.InternalServerError, 504, "upstream_timeout",
     "server_error"),
    ("reset", {"extra_headers": plan(reset_after=-1)}, openai.InternalServerError, 502, "upstream_reset",
     "server_error"),
    ("not readable", {"extra_headers": plan(breakage="two_content_lengths")}, openai.InternalServerError, 502,
     "upstream_protocol", "server_error"),
    ("server's own 400", {"extra_headers": plan(status=400)}, openai.BadRequestError, 400, None,
     "invalid_request_error"),
    ("server's own 422", {"extra_headers": plan(status=422)}, openai.UnprocessableEntityError, 422, None, None),
    ("server's own 429", {"extra_headers": plan(status=429)}, openai.RateLimitError, 429, None, None),
    ("server's own 503", {"extra_headers": plan(status=503)}, openai.InternalServerError, 503, None, None),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("given", "error", "status", "code", "kind"), [row[1:] for row in ERRORS],
                         ids=[row[0] for row in ERRORS])  # fmt: skip
def test_errors(
    client: openai.OpenAI, given: dict[str, Any], error: type[openai.APIStatusError], status: int, code: str | None,
    kind: str | None, stream: bool,
) -> None:  # fmt: skip
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": "llm.primary", "messages": HELLO, "stream": stream, **given})
    assert caught.value.status_code == status
    assert caught.value.request_id
    if code is not None:
        assert caught.value.code == code
    if kind is not None:
        assert caught.value.type == kind


def test_credentials(gateway: Gateway) -> None:
    for key, error, code in [
        ("wrong", openai.AuthenticationError, "invalid_api_key"),
        (OPERATOR, openai.PermissionDeniedError, "operator_key_not_allowed"),
    ]:
        with openai.OpenAI(api_key=key, base_url=f"{gateway.url}/v1", max_retries=0) as client:
            with pytest.raises(error) as caught:
                client.chat.completions.create(model="llm.primary", messages=HELLO)
            assert isinstance(caught.value, openai.APIStatusError)
            assert caught.value.code == code


def test_endpoint_that_the_tier_does_not_serve(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="llm.plain", prompt="x")
    assert caught.value.code == "endpoint_not_served"


def test_a_quiesced_tier_says_so(client: openai.OpenAI, gateway: Gateway) -> None:
    assert ask(gateway.url, request({"reason": "x"}, path="/v1/admin/tiers/plain/quiesce", key=OPERATOR)).status == 200
    try:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="llm.plain", messages=HELLO)
        assert (caught.value.status_code, caught.value.code) == (503, "quiesced")
        assert int(caught.value.response.headers["retry-after"]) >= 1
    finally:
        assert ask(gateway.url, request({}, path="/v1/admin/tiers/plain/readmit", key=OPERATOR)).status == 200


@pytest.mark.parametrize("how", ["reset_after", "truncate_after", "stall_after"])
def test_a_stream_that_fails_raises_and_does_not_finish(client: openai.OpenAI, gateway: Gateway, how: str) -> None:
    stream = client.chat.completions.create(
        model="llm.primary", messages=HELLO, stream=True, extra_headers=plan(tokens=9, token_delay_ms=5, **{how: 3})
    )
    request_id = stream.response.headers["x-request-id"]
    text, finishes = "", []

    def read() -> None:
        nonlocal text
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            finishes.append(chunk.choices[0].finish_reason)

    with pytest.raises(openai.APIError) as caught:
        read()
    assert numbered(9).startswith(text)
    assert text
    assert set(finishes) == {None}
    outcome = "upstream_timeout" if how == "stall_after" else "upstream_reset"
    assert caught.value.code == outcome
    assert row(gateway, request_id)["outcome"] == outcome


def test_leaving_mid_stream_reaches_the_server(client: openai.OpenAI, gateway: Gateway, synthetic: Synthetic) -> None:
    stream = client.chat.completions.create(
        model="llm.primary", messages=HELLO, stream=True,
        extra_headers={**plan(tokens=60, token_delay_ms=100), "x-request-id": "sync-leaves"},
    )  # fmt: skip
    for chunk in stream:
        if chunk.choices[0].delta.content == " t3":
            break
    stream.close()
    synthetic.wait(in_flight=0)
    assert synthetic.log("sync-leaves")[0]["ended"] == "client_gone"
    wait_idle(gateway.url)
    assert row(gateway, "sync-leaves")["outcome"] == "client_gone"


def test_async_client(gateway: Gateway, synthetic: Synthetic) -> None:
    async def many() -> None:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0) as client:
            answers = await asyncio.gather(*(
                client.chat.completions.create(model="llm.primary", messages=HELLO,
                                               extra_headers=plan(tokens=n, prefill_ms=20)) for n in range(1, 17)
            ))  # fmt: skip
            for n, answer in enumerate(answers, 1):
                assert answer.choices[0].message.content == numbered(n)

            async def read(n: int) -> str:
                text = ""
                async for chunk in await client.chat.completions.create(
                    model="llm.primary", messages=HELLO, stream=True, extra_headers=plan(tokens=n, token_delay_ms=1)
                ):
                    text += chunk.choices[0].delta.content or "" if chunk.choices else ""
                return text

            assert await asyncio.gather(*(read(n) for n in range(1, 17))) == [numbered(n) for n in range(1, 17)]
            # A task that is cancelled while it waits for the first byte, and one in the middle of a stream.
            before = synthetic.stats()["requests"]
            waiting = asyncio.create_task(
                client.chat.completions.create(
                    model="llm.primary", messages=HELLO,
                    extra_headers={**plan(first_delay_ms=900), "x-request-id": "async-waits"},
                )
            )  # fmt: skip
            await asyncio.to_thread(synthetic.wait, requests=before + 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            stream = await client.chat.completions.create(
                model="llm.primary", messages=HELLO, stream=True,
                extra_headers={**plan(tokens=60, token_delay_ms=100), "x-request-id": "async-leaves"},
            )  # fmt: skip
            async for _ in stream:
                break
            await stream.close()
            await asyncio.to_thread(synthetic.wait, in_flight=0)

    asyncio.run(many())
    wait_idle(gateway.url)
    for request_id in ("async-waits", "async-leaves"):
        assert synthetic.log(request_id)[0]["ended"] == "client_gone"
        assert row(gateway, request_id)["outcome"] == "client_gone"


def test_retries_are_the_clients_own(gateway: Gateway, synthetic: Synthetic) -> None:
    """The client repeats a 503 with its idempotency fields; each attempt is one request at the server."""
    synthetic.set(next=[{"status": 503, "headers": {"retry-after": "0"}}])
    with openai.OpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=1) as client:
        answer = client.chat.completions.create(
            model="llm.primary", messages=HELLO, extra_headers={"x-request-id": "retried"}
        )
    assert answer.choices[0].message.content == numbered(8)
    assert [entry["status"] for entry in synthetic.log("retried")] == [503, 200]
