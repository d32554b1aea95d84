"""The official `openai` client beyond chat: answers of the Responses API, embeddings, speech in both directions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pydantic
import pytest

from tests.support.gateway import Gateway
from tests.support.raw import KEY, ask, request
from tests.support.raw_upstream import CLOSE, RawUpstream
from tests.support.sdk import boot_for, numbered, row
from tests.support.synthetic import Synthetic

BOOT = boot_for(
    ["gpt-*", "raw", "whisper-*", "bge"],
    """
[[router.tiers]]
id = "primary"
base_url = "{synthetic}"
model = "m1"
serves = ["chat", "responses", "embeddings"]
health_path = "/health"
max_output_tokens = 64

[[router.tiers]]
id = "raw"
base_url = "{raw}"
model = "served/name"
serves = ["responses"]

[[router.purpose_models]]
kind = "embedding"
model = "BGE"
served_model = "m1"
base_url = "{synthetic}"
max_concurrency = 1

[[router.audio_routes]]
kind = "stt"
model = "whisper-1"
served_model = "m1"
base_url = "{synthetic}"

[[router.audio_routes]]
kind = "tts"
model = "gpt-tts"
served_model = "m1"
base_url = "{synthetic}"

[[router.audio_routes]]
kind = "tts"
model = "private-tts"
served_model = "m1"
base_url = "{synthetic}"

[router.model_routes]
gpt-4o = "primary"
raw = "raw"
""",
)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0, timeout=20) as client:
        yield client


def plan(**members: Any) -> dict[str, str]:
    return {"x-synthetic": json.dumps(members)}


# -- responses -------------------------------------------------------------------------------------------------------


def test_response(client: openai.OpenAI, gateway: Gateway, synthetic: Synthetic) -> None:
    answer = client.responses.create(
        model="gpt-4o", input="hello", instructions="be kind", store=False, previous_response_id="resp_0",
        max_output_tokens=100, extra_headers=plan(cached_tokens=2, tokens=70),
    )  # fmt: skip
    assert (answer.output_text, answer.status) == (numbered(64), "incomplete")
    assert answer.usage is not None
    [seen] = synthetic.log(answer._request_id)
    assert seen["body"]["previous_response_id"] == "resp_0"
    assert seen["body"]["max_output_tokens"] == 64
    found = row(gateway, answer._request_id)
    assert (found["endpoint"], found["outcome"], found["finish_reason"]) == ("responses", "completed", "incomplete")
    tokens = found["tokens"]
    assert (tokens["prompt"], tokens["completion"], tokens["cached"]) == (answer.usage.input_tokens, 64, 2)


def test_response_stream(client: openai.OpenAI, gateway: Gateway) -> None:
    with client.responses.stream(
        model="gpt-4o", input="hello", extra_headers={**plan(tokens=30, token_delay_ms=1), "x-request-id": "r-stream"}
    ) as stream:
        events = list(stream)
        answer = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert answer.output_text == numbered(30)
    found = row(gateway, "r-stream")
    assert (found["stream"], found["tokens"]["completion"], found["finish_reason"]) == (True, 30, "completed")


@pytest.mark.parametrize("how", ["reset_after", "stall_after"])
def test_a_response_stream_that_fails_says_so(client: openai.OpenAI, gateway: Gateway, how: str) -> None:
    stream = client.responses.create(
        model="gpt-4o", input="hello", stream=True,
        extra_headers={**plan(tokens=9, token_delay_ms=5, **{how: 3}), "x-request-id": f"r-{how}"},
    )  # fmt: skip
    events: list[Any] = []
    outcome = "upstream_timeout" if how == "stall_after" else "upstream_reset"
    try:
        events.extend(stream)
    except openai.APIError as error:
        assert error.code == outcome
    else:
        assert (events[-1].type, events[-1].code) == ("error", outcome)
        assert [event.sequence_number for event in events] == list(range(len(events)))
    assert not [event for event in events if event.type == "response.completed"]
    assert row(gateway, f"r-{how}")["outcome"] == outcome


@pytest.mark.parametrize("value", [True, "true", 1, "on"])
def test_an_answer_cannot_outlive_its_connection(client: openai.OpenAI, synthetic: Synthetic, value: Any) -> None:
    before = synthetic.stats()["requests"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="gpt-4o", input="hello", background=value)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "background")
    assert synthetic.stats()["requests"] == before
    assert client.responses.create(model="gpt-4o", input="hello", background=False).output_text == numbered(8)


@pytest.mark.parametrize("verb", ["retrieve", "delete", "cancel"])
def test_answers_are_not_kept(client: openai.OpenAI, verb: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        getattr(client.responses, verb)("resp_1")
    assert caught.value.code == "not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_1")


class Place(pydantic.BaseModel):
    at: str


FINAL: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "m", "error": None,
    "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True,
    "tool_choice": "auto", "tools": [], "output": [
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "shell", "status": "completed",
         "arguments": '{"command":["ls"]}'},
        {"type": "message", "id": "m_1", "role": "assistant", "status": "completed", "content": [
            {"type": "output_text", "text": '{"at":"Zürich"}', "annotations": []}]},
    ],
    "usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3,
              "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 10},
}  # fmt: skip


def test_structured_output_and_tools(client: openai.OpenAI, raw: RawUpstream, gateway: Gateway) -> None:
    body = json.dumps(FINAL).encode()
    raw.script("parse", [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body),
                         body])  # fmt: skip
    answer = client.responses.parse(
        model="raw", input=[{"role": "user", "content": [
            {"type": "input_text", "text": "käse 👋"},
            {"type": "input_image", "detail": "low", "image_url": "data:image/png;base64,iVBORw0KGgo="}]}],
        text_format=Place, tools=[{"type": "function", "name": "shell", "strict": True, "parameters": {
            "type": "object", "properties": {}, "additionalProperties": False}}],
        extra_body={"vendor": 1.50}, extra_headers={"x-request-id": "parse"},
    )  # fmt: skip
    assert answer.output_parsed == Place(at="Zürich")
    call = answer.output[0]
    assert call.type == "function_call"
    seen = json.loads(raw.wait("parse").body)
    assert (seen["model"], seen["vendor"], seen["tools"][0]["name"]) == ("served/name", 1.5, "shell")
    assert seen["text"]["format"]["type"] == "json_schema"
    tokens = row(gateway, "parse")["tokens"]
    assert (tokens["prompt"], tokens["completion"], tokens["cached"]) == (7, 3, 4)


# What a coding agent (Codex) sends: AGENT the form of its release 0.46, AGENT_2 what release 0.171 sent through a
# gateway to a server that wrote it down. Ids are replaced, long texts and lists cut.
AGENT: dict[str, Any] = {
    "model": "raw",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_0"},
        {"type": "function_call_output", "call_id": "call_0", "output": '{"output":"","metadata":{"exit_code":0}}'},
    ],
    "tools": [
        {"type": "function", "name": "shell", "strict": False, "parameters": {"type": "object", "properties": {
            "command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"]}},
        {"type": "custom", "name": "apply_patch",
         "format": {"type": "grammar", "syntax": "lark", "definition": "s: x"}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-abc",
}  # fmt: skip
AGENT_HEADERS = {"accept": "text/event-stream", "user-agent": "codex_cli_rs/0.46.0", "originator": "codex_cli_rs",
                 "session_id": "0199-abc", "conversation_id": "0199-abc", "version": "0.46.0",
                 "openai-beta": "responses=experimental"}  # fmt: skip


_THREAD = "01a22cdc-b72c-7ce1-b464-cc16ace66e33"
_TURN = json.dumps({"installation_id": "79", "session_id": _THREAD, "agent_name": "/root", "window_number": 0})
AGENT_2: dict[str, Any] = {
    "model": "raw",
    "stream": True,
    "input": [
        {"type": "message", "id": "msg_1", "role": "developer", "content": [
            {"type": "input_text", "text": "You are a coding agent."}]},
        {"type": "message", "id": "msg_2", "role": "user", "content": [
            {"type": "input_text", "text": "<environment_context>\n  <shell>bash</shell>\n</environment_context>"}]},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "description": "Runs a command in a PTY", "strict": False,
         "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"],
                        "additionalProperties": False}},
        {"type": "namespace", "name": "multi_agent_v1", "description": "x", "tools": [
            {"type": "function", "name": "spawn_agent", "parameters": {"type": "object", "properties": {}}}]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": _THREAD,
    "client_metadata": {"turn_id": "t", "session_id": _THREAD, "x-codex-turn-metadata": _TURN, "thread_id": _THREAD},
}  # fmt: skip
AGENT_HEADERS_2 = {"accept": "text/event-stream", "content-type": "application/json", "originator": "codex_exec",
                   "user-agent": "codex_exec/0.171.0 (Debian 12.0.0; x86_64) xterm (codex_exec; 0.171.0)",
                   "session-id": _THREAD, "thread-id": _THREAD, "x-client-request-id": _THREAD,
                   "x-codex-beta-features": "remote_compaction_v2", "x-codex-turn-metadata": _TURN,
                   "x-codex-window-id": f"{_THREAD}:0"}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "sent"), [(AGENT, AGENT_HEADERS), (AGENT_2, AGENT_HEADERS_2)], ids=["codex-0.46", "codex-0.171"]
)
def test_a_coding_agents_request(
    gateway: Gateway, raw: RawUpstream, body: dict[str, Any], sent: dict[str, str]
) -> None:
    items = [
        {"type": "response.created", "sequence_number": 0,
         "response": {**FINAL, "status": "in_progress", "usage": None}},
        {"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": FINAL["output"][0]},
        {"type": "response.completed", "sequence_number": 2, "response": FINAL},
    ]  # fmt: skip
    text = "".join(f"event: {item['type']}\ndata: {json.dumps(item)}\n\n" for item in items).encode()
    name = f"codex-{len(sent)}"
    raw.script(name, [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", text[:99], 0.01, text[99:],
                         CLOSE])  # fmt: skip
    answer = ask(gateway.url, request(body, path="/v1/responses", headers={**sent, "x-request-id": name}))
    assert (answer.status, answer.body) == (200, text)
    seen = raw.wait(name)
    assert json.loads(seen.body) == {**body, "model": "served/name"}
    assert {field: seen.fields[field] for field in sent} == sent
    found = row(gateway, name)
    assert (found["outcome"], found["finish_reason"], found["tokens"]["cached"]) == ("completed", "completed", 4)


# -- embeddings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["gpt-4o", "bge", "BGE"])
@pytest.mark.parametrize("encoding", [openai.NOT_GIVEN, "float", "base64"])
def test_embeddings(client: openai.OpenAI, gateway: Gateway, synthetic: Synthetic, model: str, encoding: Any) -> None:
    answer = client.embeddings.create(model=model, input=["a", "b"], encoding_format=encoding)
    vectors: list[Any] = [item.embedding for item in answer.data]
    if encoding == "base64":
        assert vectors == ["AAAAAAAAgD4AAMC/", "AACAPwAAgD4AAMC/"]
    else:
        assert vectors == [[0.0, 0.25, -1.5], [1.0, 0.25, -1.5]]
    seen = synthetic.log()[-1]
    assert seen["path"] == "/v1/embeddings"
    assert seen["body"].get("encoding_format") == ("float" if encoding == "float" else "base64")
    found = row(gateway, seen["id"])
    assert (found["endpoint"], found["outcome"]) == ("embeddings", "completed")
    assert found["tier"] == ("primary" if model == "gpt-4o" else "embedding:bge")
    assert found["tokens"]["prompt"] == answer.usage.prompt_tokens


def test_the_limit_of_a_purpose_model_queues(client: openai.OpenAI, gateway: Gateway, synthetic: Synthetic) -> None:
    """One slot: the second request waits for the first, and both are served."""
    ids = ["q-1", "q-2"]

    def embed(name: str) -> openai.types.CreateEmbeddingResponse:
        headers = {**plan(first_delay_ms=150), "x-request-id": name}
        return client.embeddings.create(model="bge", input="a", extra_headers=headers)

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(embed, ids))
    assert len(answers) == 2
    first, second = sorted((synthetic.log(name)[0] for name in ids), key=lambda seen: seen["received_at"])
    assert second["received_at"] >= first["ended_at"]
    assert sorted(row(gateway, name)["outcome"] for name in ids) == ["completed", "completed"]


# -- speech ----------------------------------------------------------------------------------------------------------

SOUND = ("speech.wav", b"RIFF\r\n--\0\xff" * 20_000, "audio/wav")


def test_transcription(client: openai.OpenAI, gateway: Gateway, synthetic: Synthetic) -> None:
    answer = client.audio.transcriptions.with_raw_response.create(
        model="whisper-1", file=SOUND, language="de", timestamp_granularities=["word"], response_format="json"
    )
    request_id = answer.headers["x-request-id"]
    assert answer.parse().text == numbered(8)
    [seen] = synthetic.log(request_id)
    body = seen["body"]
    assert (body["model"], body["language"], body["file"]) == ("m1", "de", len(SOUND[1]))
    assert body["timestamp_granularities[]"] == "word"
    found = row(gateway, request_id)
    assert (found["endpoint"], found["tier"], found["outcome"]) == ("transcriptions", "stt:whisper-1", "completed")
    assert found["tokens"]["completion"] == 8


def test_transcription_stream_of_a_large_file(client: openai.OpenAI, gateway: Gateway, synthetic: Synthetic) -> None:
    sound = ("long.wav", b"\0\1\2\3" * 700_000, "audio/wav")
    stream = client.audio.transcriptions.create(
        model="whisper-1", file=sound, stream=True, extra_headers={**plan(tokens=12), "x-request-id": "t-stream"}
    )
    events = list(stream)
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == numbered(12)
    assert synthetic.log("t-stream")[0]["body"]["file"] == 2_800_000
    found = row(gateway, "t-stream")
    assert (found["stream"], found["outcome"], found["tokens"]["completion"]) == (True, "completed", 12)


def test_speech(client: openai.OpenAI, gateway: Gateway) -> None:
    expected = b"".join(b"\xff\xfb\x90 t%d" % number for number in range(8))
    answer = client.audio.speech.create(model="gpt-tts", voice="alloy", input="hello")
    assert answer.read() == expected
    with client.audio.speech.with_streaming_response.create(
        model="gpt-tts", voice="alloy", input="hello",
        extra_headers={**plan(token_delay_ms=2), "x-request-id": "s-stream"},
    ) as stream:  # fmt: skip
        assert stream.headers["content-type"] == "audio/mpeg"
        assert b"".join(stream.iter_bytes()) == expected
    found = row(gateway, "s-stream")
    assert (found["endpoint"], found["tier"], found["outcome"]) == ("speech", "tts:gpt-tts", "completed")
    assert found["response_bytes"] == len(expected)


def test_a_clients_globs_hold_for_models_outside_the_routes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.PermissionDeniedError) as caught:
        client.audio.speech.create(model="private-tts", voice="alloy", input="hello")
    assert caught.value.code == "model_not_allowed"
    with pytest.raises(openai.NotFoundError):
        client.audio.speech.create(model="gpt-4o", voice="alloy", input="hello")


# -- a chat front end ------------------------------------------------------------------------------------------------


def test_a_front_ends_list_and_chat(gateway: Gateway, synthetic: Synthetic) -> None:
    """Open WebUI asks for the list, then streams with members of its own and reads usage from the last chunk."""
    browser = {"accept": "*/*", "accept-encoding": "gzip, deflate, br", "user-agent": "Python/3.11 aiohttp/3.12.15",
               "x-openwebui-user-name": "A%20B", "x-openwebui-user-role": "admin"}  # fmt: skip
    answer = ask(gateway.url, request(method="GET", path="/v1/models", headers=browser))
    assert answer.headers["content-type"] == "application/json"
    assert {model["id"] for model in answer.json["data"]} == {"gpt-4o", "raw"}
    assert all(model["object"] == "model" and model["owned_by"] for model in answer.json["data"])
    body = {
        "stream": True, "model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}],
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    answer = ask(gateway.url, request(body, headers={**browser, "x-request-id": "webui"}))
    chunks = [json.loads(event) for event in answer.events if event != "[DONE]"]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]) == numbered(8)
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    seen = synthetic.log("webui")[0]
    assert seen["headers"]["x-openwebui-user-name"] == "A%20B"
    task = {"model": "gpt-4o", "messages": [{"role": "user", "content": "### Task: a title"}], "stream": False,
            "max_completion_tokens": 1000}  # fmt: skip
    assert ask(gateway.url, request(task, headers=browser)).json["choices"][0]["message"]["role"] == "assistant"
