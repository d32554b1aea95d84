"""The official `anthropic` client against real processes, and the requests of a coding agent as it makes them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.support.gateway import Gateway
from tests.support.raw import KEY, OPERATOR, ask, request
from tests.support.raw_upstream import CLOSE, RawUpstream
from tests.support.sdk import HELLO, boot_for, numbered, row
from tests.support.synthetic import Synthetic

BOOT = boot_for(
    ["claude-*", "raw", "dead"],
    """
[[router.tiers]]
id = "primary"
base_url = "{synthetic}"
model = "m1"
serves = ["messages"]
health_path = "/health"
context_limit = 100000
max_output_tokens = 64

[[router.tiers]]
id = "raw"
base_url = "{raw}"
model = "served/name"
serves = ["messages"]
tool_support = true

[[router.tiers]]
id = "plain"
base_url = "{raw}"
model = "m"
serves = ["chat"]

[[router.tiers]]
id = "dead"
base_url = "http://127.0.0.1:1/v1"
model = "m1"
serves = ["messages"]

[router.model_routes]
claude-sonnet = "primary"
claude-chat = "plain"
raw = "raw"
dead = "dead"
"other.team" = "plain"
""",
    server="max_body_bytes = 200000",
)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key=KEY, base_url=gateway.url, max_retries=0, timeout=20) as client:
        yield client


def plan(**members: Any) -> dict[str, str]:
    return {"x-synthetic": json.dumps(members)}


def test_message(client: anthropic.Anthropic, gateway: Gateway, synthetic: Synthetic) -> None:
    message = client.messages.create(
        model="claude-sonnet", max_tokens=50, messages=HELLO, extra_headers=plan(cached_tokens=3)
    )
    assert [block.text for block in message.content if block.type == "text"] == [numbered(8)]
    assert (message.stop_reason, message.model) == ("end_turn", "m1")
    assert message.usage.output_tokens == 8
    assert message._request_id
    [seen] = synthetic.log(message._request_id)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", seen["headers"]["anthropic-version"])
    assert "x-api-key" not in seen["headers"]
    found = row(gateway, message._request_id)
    assert (found["endpoint"], found["alias"], found["outcome"]) == ("messages", "claude-sonnet", "completed")
    assert found["finish_reason"] == "end_turn"
    tokens = found["tokens"]
    assert (tokens["prompt"], tokens["completion"], tokens["cached"]) == (message.usage.input_tokens, 8, 3)


def test_stream(client: anthropic.Anthropic, gateway: Gateway) -> None:
    with client.messages.stream(
        model="claude-sonnet", max_tokens=50, messages=HELLO, extra_headers=plan(tokens=30, token_delay_ms=1)
    ) as stream:
        assert "".join(stream.text_stream) == numbered(30)
        message = stream.get_final_message()
        request_id = stream.request_id
    assert message.usage.output_tokens == 30
    found = row(gateway, request_id)
    assert (found["stream"], found["outcome"], found["finish_reason"]) == (True, "completed", "end_turn")
    assert found["tokens"]["prompt"] == message.usage.input_tokens
    assert (found["tokens"]["completion"], found["tokens"]["completion_source"]) == (30, "upstream")


def test_limit_is_lowered_and_said(client: anthropic.Anthropic) -> None:
    answer = client.messages.with_raw_response.create(
        model="claude-sonnet", max_tokens=99, messages=HELLO, extra_headers=plan(tokens=200)
    )
    assert answer.headers["x-sndr-max-tokens-clamped"] == "99->64"
    message = answer.parse()
    assert (message.usage.output_tokens, message.stop_reason) == (64, "max_tokens")


def test_count_tokens(client: anthropic.Anthropic, gateway: Gateway, synthetic: Synthetic) -> None:
    answer = client.messages.with_raw_response.count_tokens(model="claude-sonnet", messages=HELLO)
    request_id = answer.headers["request-id"]
    [seen] = synthetic.log(request_id)
    assert seen["path"] == "/v1/messages/count_tokens"
    assert answer.parse().input_tokens == seen["prompt_tokens"]
    found = row(gateway, request_id)
    assert (found["endpoint"], found["outcome"]) == ("count_tokens", "completed")
    assert found["tokens"]["prompt"] is None  # counted, not used


def test_models(client: anthropic.Anthropic) -> None:
    page = client.models.list(limit=2)
    assert [model.id for model in page] == ["claude-chat", "claude-sonnet", "dead", "raw"]
    model = client.models.retrieve("claude-sonnet")
    assert (model.id, model.type, model.display_name) == ("claude-sonnet", "model", "claude-sonnet")
    assert model._request_id
    raw = client.models.with_raw_response.list()
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    assert model.created_at.year >= 2024
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("other.team")
    assert caught.value.type == "not_found_error"


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
RICH: dict[str, Any] = {
    "max_tokens": 1024,
    "system": [{"type": "text", "text": "käse 👋", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                {"type": "text", "text": "what is this?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "tool_use", "id": "tu_1", "name": "look", "input": {"at": 1.5}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "tu_1", "content": "a pixel"}]},
    ],
    "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object", "properties": {"at": {}}}}],
    "tool_choice": {"type": "tool", "name": "look"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["\n"],
}
TOOL_EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("message_start", {"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 12, "cache_read_input_tokens": 5, "output_tokens": 1,
                                         "cache_creation": {"ephemeral_5m_input_tokens": 0}}}}),
    ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": {
        "type": "tool_use", "id": "tu_9", "name": "look", "input": {}}}),
    ("ping", {"type": "ping"}),
    ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": {
        "type": "input_json_delta", "partial_json": '{"at":'}}),
    ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": {
        "type": "input_json_delta", "partial_json": ' "Zürich"}'}}),
    ("content_block_stop", {"type": "content_block_stop", "index": 0}),
    ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                       "usage": {"output_tokens": 17}}),
    ("message_stop", {"type": "message_stop"}),
]  # fmt: skip


def events(items: list[tuple[str, dict[str, Any]]]) -> bytes:
    return "".join(f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n" for name, data in items).encode()


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nrequest-id: the-servers-own\r\n\r\n"


def test_tools_vision_and_beta_features_pass_untouched(
    client: anthropic.Anthropic, raw: RawUpstream, gateway: Gateway
) -> None:
    raw.script("rich", [STREAM_HEAD, events(TOOL_EVENTS), CLOSE])
    with client.beta.messages.stream(
        model="raw", betas=["context-1m-2025-08-07", "files-api-2025-04-14"],
        extra_headers={"x-request-id": "rich"}, extra_body={"temperature": 0.1, "vendor": [1.50]}, **RICH,
    ) as stream:  # fmt: skip
        message = stream.get_final_message()
        assert stream.request_id == "rich"
    [block] = message.content
    assert block.type == "tool_use"
    assert (block.name, block.input) == ("look", {"at": "Zürich"})
    assert message.stop_reason == "tool_use"
    seen = raw.wait("rich")
    assert seen.head.split(b" ")[1] in (b"/v1/messages?beta=true", b"/v1/messages")  # the client's releases differ
    assert seen.fields["anthropic-beta"] == "context-1m-2025-08-07,files-api-2025-04-14"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", seen.fields["anthropic-version"])
    assert KEY.encode() not in seen.head + seen.body
    assert json.loads(seen.body) == {
        **RICH,
        "temperature": 0.1,
        "vendor": [1.50],
        "model": "served/name",
        "stream": True,
    }
    tokens = row(gateway, "rich")["tokens"]
    assert (tokens["prompt"], tokens["completion"], tokens["cached"]) == (12, 17, 5)


def test_events_pass_byte_for_byte(client: anthropic.Anthropic, raw: RawUpstream) -> None:
    text = events(TOOL_EVENTS) + b": odd\n\nevent: later\ndata: {}\n\n"
    raw.script("bytes", [STREAM_HEAD, text[:77], 0.02, text[77:], CLOSE])
    with client.messages.with_streaming_response.create(
        model="raw", max_tokens=9, messages=HELLO, stream=True, extra_headers={"x-request-id": "bytes"}
    ) as answer:
        assert b"".join(answer.iter_bytes()) == text


# What a coding agent (Claude Code) sends: AGENT the form of its release 1.0, AGENT_2 what release 2.1 sent through a
# gateway to a server that wrote it down. Ids are replaced, long texts and lists cut.
AGENT = {
    "accept": "application/json",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-version": "2023-06-01",
    "content-type": "application/json",
    "user-agent": "claude-cli/1.0.83 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
}
AGENT_BODY: dict[str, Any] = {
    "model": "raw",
    "max_tokens": 32000,
    "stream": True,
    "temperature": 1,
    "metadata": {"user_id": "user_0_account__session_1"},
    "system": [
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Environment:\n- cwd: /x", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nx\n</system-reminder>"},
            {"type": "text", "text": "do it", "cache_control": {"type": "ephemeral"}}]},
    ],
    "tools": [
        {"name": "Bash", "description": "Runs a command", "input_schema": {
            "type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
            "required": ["command"], "additionalProperties": False, "$schema": "http://json-schema.org/draft-07/schema#"}},
    ],
}  # fmt: skip


AGENT_2 = {
    "accept": "application/json",
    "accept-encoding": "gzip, deflate, br, zstd",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,thinking-token-count-2026-05-13,"
    "context-management-2025-06-27,prompt-caching-scope-2026-01-05,mid-conversation-system-2026-04-07,effort-2025-11-24",
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-version": "2023-06-01",
    "content-type": "application/json",
    "user-agent": "claude-cli/2.1.197 (external, sdk-cli)",
    "x-app": "cli",
    "x-claude-code-session-id": "2d33560f-0457-4a76-b1b5-0146f6a04b06",
    "x-stainless-arch": "x64",
    "x-stainless-lang": "js",
    "x-stainless-os": "Linux",
    "x-stainless-package-version": "0.94.0",
    "x-stainless-retry-count": "0",
    "x-stainless-runtime": "node",
    "x-stainless-runtime-version": "v26.3.0",
    "x-stainless-timeout": "600",
}
AGENT_BODY_2: dict[str, Any] = {
    "model": "raw",
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nx\n</system-reminder>\n"},
            {"type": "text", "text": "say hello", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Available agent types for the Agent tool:\n- claude: x"},
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.1c0; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "\nYou help users.\n", "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [
        {"name": "Agent", "description": "Launch a new agent", "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "properties": {"prompt": {"description": "The task", "type": "string"},
                           "model": {"type": "string", "enum": ["sonnet", "opus", "haiku"]}},
            "required": ["prompt"], "additionalProperties": False}},
    ],
    "metadata": {"user_id": '{"device_id":"81","account_uuid":"","session_id":"2d33560f-0457-4a76-b1b5-0146f6a04b06"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}  # fmt: skip


@pytest.mark.parametrize(("sent", "body"), [(AGENT, AGENT_BODY), (AGENT_2, AGENT_BODY_2)], ids=["1.0", "2.1"])
@pytest.mark.parametrize("credential", [{"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"},
                                        {"x-api-key": KEY, "authorization": f"Bearer {KEY}"}])  # fmt: skip
def test_a_coding_agents_request(
    gateway: Gateway, raw: RawUpstream, credential: dict[str, str], sent: dict[str, str], body: dict[str, Any]
) -> None:
    request_id = f"agent-{len(credential)}-{min(credential)}-{len(sent)}"
    raw.script(request_id, [STREAM_HEAD, events(TOOL_EVENTS), CLOSE])
    headers = {**sent, **credential, "x-request-id": request_id}
    answer = ask(gateway.url, request(body, path="/v1/messages?beta=true", key=None, headers=headers))
    assert (answer.status, answer.body) == (200, events(TOOL_EVENTS))
    assert answer.headers["request-id"] == request_id
    seen = raw.wait(request_id)
    assert seen.head.startswith(b"POST /v1/messages?beta=true HTTP/1.1\r\n")
    assert json.loads(seen.body) == {**body, "model": "served/name"}
    assert {name: seen.fields[name] for name in [*sent, "accept-encoding"]} == {**sent, "accept-encoding": "identity"}
    assert not {"x-api-key", "authorization"} & set(seen.fields)
    count = request({**body, "model": "claude-sonnet"}, path="/v1/messages/count_tokens?beta=true", key=None,
                    headers={**sent, **credential})  # fmt: skip
    assert ask(gateway.url, count).json["input_tokens"] > 0


@pytest.mark.parametrize("version", [{"anthropic-version": "2023-06-01"}, {}])
def test_a_coding_agent_finds_the_models(gateway: Gateway, version: dict[str, str]) -> None:
    """At its start it asks for the list, and takes `id` and `display_name` of each entry, whatever else is there."""
    headers = {"authorization": f"Bearer {KEY}", "user-agent": AGENT_2["user-agent"], **version}
    answer = ask(gateway.url, request(method="GET", path="/v1/models?limit=1000", key=None, headers=headers))
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert {"claude-chat", "claude-sonnet"} <= {entry["id"] for entry in answer.json["data"]}
    [entry] = [entry for entry in answer.json["data"] if entry["id"] == "claude-sonnet"]
    if version:
        assert entry["display_name"] == "claude-sonnet"
        assert (entry["max_input_tokens"], entry["max_tokens"]) == (100000, 64)
        assert answer.headers["request-id"] == answer.headers["x-request-id"]


ERRORS: list[tuple[str, dict[str, Any], int, str]] = [
    ("unknown model", {"model": "nobody"}, 404, "not_found_error"),
    ("alias of others", {"model": "other.team"}, 403, "permission_error"),
    ("endpoint", {"model": "claude-chat"}, 400, "invalid_request_error"),
    ("context", {"max_tokens": 100_001}, 400, "invalid_request_error"),
    ("too large", {"messages": [{"role": "user", "content": "x" * 200_001}]}, 413, "request_too_large"),
    ("nobody there", {"model": "dead"}, 502, "api_error"),
    ("server failed", {"extra_headers": plan(status=500)}, 502, "api_error"),
    ("gateway's own credential refused", {"extra_headers": plan(status=401)}, 502, "api_error"),
    ("no answer", {"extra_headers": plan(stall_after=-1)}, 504, "timeout_error"),
    ("reset", {"extra_headers": plan(reset_after=-1)}, 502, "api_error"),
    ("server's own 400", {"extra_headers": plan(status=400)}, 400, "invalid_request_error"),
    ("server's own 429", {"extra_headers": plan(status=429)}, 429, "rate_limit_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("given", "status", "kind"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS])
def test_errors(client: anthropic.Anthropic, given: dict[str, Any], status: int, kind: str, stream: bool) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(
            **{"model": "claude-sonnet", "max_tokens": 9, "messages": HELLO, "stream": stream, **given}
        )
    assert (caught.value.status_code, caught.value.type) == (status, kind)
    assert caught.value.request_id


@pytest.mark.parametrize(("key", "status", "kind"), [("wrong", 401, "authentication_error"),
                                                     (OPERATOR, 403, "permission_error")])  # fmt: skip
def test_credentials(gateway: Gateway, key: str, status: int, kind: str) -> None:
    for given in ({"api_key": key}, {"auth_token": key}):
        with (
            anthropic.Anthropic(base_url=gateway.url, max_retries=0, **given) as client,
            pytest.raises(anthropic.APIStatusError) as caught,
        ):
            client.messages.create(model="claude-sonnet", max_tokens=9, messages=HELLO)
        assert (caught.value.status_code, caught.value.type) == (status, kind)
    with anthropic.Anthropic(base_url=gateway.url, auth_token=KEY) as client:
        assert client.messages.create(model="claude-sonnet", max_tokens=9, messages=HELLO).stop_reason == "end_turn"


@pytest.mark.parametrize("how", ["reset_after", "truncate_after", "stall_after"])
def test_a_stream_that_fails_raises_and_does_not_finish(
    client: anthropic.Anthropic, gateway: Gateway, how: str
) -> None:
    seen: list[str] = []
    request_id = f"fails-{how}"
    headers = {**plan(tokens=9, token_delay_ms=5, **{how: 3}), "x-request-id": request_id}
    stream = client.messages.create(
        model="claude-sonnet", max_tokens=50, messages=HELLO, stream=True, extra_headers=headers
    )
    with pytest.raises(anthropic.APIStatusError) as caught:
        seen.extend(event.type for event in stream)
    assert caught.value.type == ("timeout_error" if how == "stall_after" else "api_error")
    assert "message_delta" not in seen
    assert seen.count("content_block_delta") == 3
    outcome = "upstream_timeout" if how == "stall_after" else "upstream_reset"
    assert row(gateway, request_id)["outcome"] == outcome


def test_leaving_mid_stream_reaches_the_server(
    client: anthropic.Anthropic, gateway: Gateway, synthetic: Synthetic
) -> None:
    headers = {**plan(tokens=60, token_delay_ms=100), "x-request-id": "leaves"}
    with client.messages.stream(model="claude-sonnet", max_tokens=60, messages=HELLO, extra_headers=headers) as stream:
        for text in stream.text_stream:
            if text == " t2":
                break
    synthetic.wait(in_flight=0)
    assert synthetic.log("leaves")[0]["ended"] == "client_gone"
    found = row(gateway, "leaves")
    assert found["outcome"] == "client_gone"
    assert found["tokens"]["prompt_source"] == "upstream"


def test_async_client(gateway: Gateway) -> None:
    async def many() -> None:
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=gateway.url, max_retries=0) as client:

            async def read(n: int) -> str:
                async with client.messages.stream(
                    model="claude-sonnet", max_tokens=64, messages=HELLO,
                    extra_headers=plan(tokens=n, token_delay_ms=1),
                ) as stream:  # fmt: skip
                    return "".join([text async for text in stream.text_stream])

            assert await asyncio.gather(*(read(n) for n in range(1, 17))) == [numbered(n) for n in range(1, 17)]

    asyncio.run(many())
