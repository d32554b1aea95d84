"""LiteLLM's client library against a gateway: makes the calls, prints what came of each. Argument: the base URL.

Runs under an interpreter that has `litellm`; imports nothing else of this repository.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import litellm

URL = sys.argv[1]
KEY = os.environ["CLIENT_KEY"]
OPENAI: dict[str, Any] = {"api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0}
ANTHROPIC: dict[str, Any] = {"api_base": URL, "api_key": KEY, "num_retries": 0}
HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def chat() -> Any:
    answer = litellm.completion(model="openai/all", messages=HELLO, tools=TOOLS, **OPENAI)
    return [answer.choices[0].message.content, answer.usage.completion_tokens]


def stream() -> Any:
    parts = litellm.completion(
        model="openai/all", messages=HELLO, stream=True, stream_options={"include_usage": True}, **OPENAI
    )
    return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)


def messages() -> Any:
    answer = litellm.completion(model="anthropic/all", messages=HELLO, max_tokens=50, **ANTHROPIC)
    return [answer.choices[0].message.content, answer.usage.completion_tokens]


def messages_stream() -> Any:
    parts = litellm.completion(model="anthropic/all", messages=HELLO, max_tokens=50, stream=True, **ANTHROPIC)
    return "".join(part.choices[0].delta.content or "" for part in parts)


def responses() -> Any:
    answer = litellm.responses(model="openai/all", input="hello", **OPENAI)
    return answer.output[0].content[0].text


def embedding() -> Any:
    return len(litellm.embedding(model="openai/all", input=["a", "b"], encoding_format="float", **OPENAI).data)


def transcription() -> Any:
    file = ("a.wav", b"RIFF" * 1000)
    return litellm.transcription(model="openai/whisper", file=file, **OPENAI).text


def unknown_model() -> Any:
    try:
        litellm.completion(model="openai/nobody", messages=HELLO, **OPENAI)
    except litellm.exceptions.NotFoundError as error:
        return error.status_code
    return None


def wrong_key() -> Any:
    try:
        litellm.completion(model="openai/all", messages=HELLO, **{**OPENAI, "api_key": "wrong"})
    except litellm.exceptions.AuthenticationError as error:
        return error.status_code
    return None


CALLS: list[Callable[[], Any]] = [
    chat, stream, messages, messages_stream, responses, embedding, transcription, unknown_model, wrong_key,
]  # fmt: skip


def main() -> None:
    litellm.suppress_debug_info = True
    results: dict[str, Any] = {}
    for call in CALLS:
        try:
            results[call.__name__] = call()
        except Exception as error:
            results[call.__name__] = f"{type(error).__name__}: {error}"[:500]
    sys.stdout.write(json.dumps(results))


main()
