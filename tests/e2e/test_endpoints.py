"""Every endpoint through a real gateway to a real model server: how each request may end, and what is left of it.

One table of endpoints, one table of endings. Whatever the pair, the client sees the documented outcome, the ledger has
one row that says it, and every counter is back at 0.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.forms import FORM, form
from tests.support.gateway import gateway_process
from tests.support.raw import KEY, Answer, ask, connected, operator_get, request, wait_idle
from tests.support.synthetic import Synthetic, synthetic_process

BOOT = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"

[router]
probe_interval_s = 0.2
first_byte_timeout_s = {patience_s}
idle_timeout_s = {patience_s}

[[router.tiers]]
id = "primary"
base_url = "{base_url}"
model = "m1"
serves = ["chat", "completions", "responses", "messages", "embeddings", "rerank"]
health_path = "/health"

[[router.tiers]]
id = "chat-only"
base_url = "{base_url}"
model = "m1"
serves = ["chat"]

[[router.purpose_models]]
kind = "embedding"
model = "BAAI/bge"
served_model = "m1"
base_url = "{base_url}"

[[router.purpose_models]]
kind = "rerank"
model = "m1"
base_url = "{base_url}"

[[router.audio_routes]]
kind = "stt"
model = "whisper"
served_model = "m1"
base_url = "{base_url}"

[[router.audio_routes]]
kind = "tts"
model = "voice"
served_model = "m1"
base_url = "{base_url}"

[router.model_routes]
all = "primary"
talk = "chat-only"
"""
HELLO = [{"role": "user", "content": "hello"}]


@dataclass(frozen=True)
class Case:
    """One endpoint: what is sent, what the server sees, and what is counted."""

    name: str
    path: str
    body: dict[str, Any]
    upstream: str
    streams: bool = False
    dialect: str = "openai"
    counts: bool = True
    """Whether answers report tokens."""
    serves: bool = True
    """Whether a tier must list the endpoint."""
    kind: str = "chat"
    model: str = "all"
    headers: dict[str, str] = field(default_factory=dict)


CASES = [
    Case("chat", "/v1/chat/completions", {"messages": HELLO}, "/v1/chat/completions", streams=True),
    Case("completions", "/v1/completions", {"prompt": "once"}, "/v1/completions", streams=True),
    Case("responses", "/v1/responses", {"input": "hello"}, "/v1/responses", streams=True, dialect="responses"),
    Case("messages", "/v1/messages", {"messages": HELLO, "max_tokens": 99}, "/v1/messages", streams=True,
         dialect="anthropic", headers={"anthropic-version": "2023-06-01"}),
    Case("count_tokens", "/v1/messages/count_tokens", {"messages": HELLO}, "/v1/messages/count_tokens",
         dialect="anthropic", counts=False, headers={"anthropic-version": "2023-06-01"}),
    Case("embeddings", "/v1/embeddings", {"input": ["a", "b"]}, "/v1/embeddings"),
    Case("rerank", "/v1/rerank", {"query": "q", "documents": ["a", "b"]}, "/v1/rerank"),
    Case("embeddings", "/v1/embeddings", {"input": ["a", "b"]}, "/v1/embeddings", kind="embedding", model="BAAI/bge"),
    Case("rerank", "/v1/rerank", {"query": "q", "documents": ["a", "b"]}, "/v1/rerank", kind="rerank", model="m1"),
    Case("transcriptions", "/v1/audio/transcriptions", {}, "/v1/audio/transcriptions", streams=True, kind="stt",
         model="whisper"),
    Case("speech", "/v1/audio/speech", {"input": "hello", "voice": "alto"}, "/v1/audio/speech", kind="tts",
         model="voice"),
    Case("tokenize", "/tokenize", {"prompt": "once"}, "/tokenize", counts=False, serves=False),
    Case("detokenize", "/detokenize", {"tokens": [1, 2]}, "/detokenize", counts=False, serves=False),
]  # fmt: skip
FORMS = [(case, stream) for case in CASES for stream in ((False, True) if case.streams else (False,))]
IDS = [f"{case.name}-{case.kind}-{'stream' if stream else 'json'}" for case, stream in FORMS]
each_form = pytest.mark.parametrize(("case", "stream"), FORMS, ids=IDS)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Synthetic]:
    with synthetic_process() as server:
        yield server


@contextmanager
def serving(upstream: Synthetic, tmp_path_factory: pytest.TempPathFactory, patience_s: float) -> Iterator[str]:
    path: Path = tmp_path_factory.mktemp("endpoints") / "gateway.toml"
    path.write_text(BOOT.format(base_url=upstream.base_url, patience_s=patience_s))
    with gateway_process(path) as gateway:
        yield gateway.url
        wait_idle(gateway.url)
        assert not [line for line in gateway.lines if line["event"] == "internal_error"]
        assert gateway.stop() == 0
    check_kinds(path.parent / "usage.sqlite")


def check_kinds(ledger: Path) -> None:
    """Every row says what was routed, and has an end."""
    database = sqlite3.connect(ledger)
    rows = database.execute(
        "SELECT id, kind, endpoint, outcome FROM requests WHERE id LIKE '%-json' OR id LIKE '%-stream'"
    ).fetchall()
    database.close()
    for request_id, kind, endpoint, outcome in rows:
        found = re.fullmatch(r"(.+)-([a-z_]+)-([a-z]+)-(?:json|stream)", request_id)
        assert found is not None
        assert endpoint == found[2]
        assert outcome
        # Of an unknown model nobody knows whether it was meant as an alias, except where there are none.
        assert kind == found[3] or (found[1] == "refused" and kind == "chat" and found[3] not in ("stt", "tts"))


@pytest.fixture(scope="module")
def url(upstream: Synthetic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(upstream, tmp_path_factory, 20) as url:
        yield url


@pytest.fixture(scope="module")
def impatient(upstream: Synthetic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that waits for a server only a moment; for requests that are meant to run out of time."""
    with serving(upstream, tmp_path_factory, 0.3) as url:
        yield url


def name_of(case: Case, stream: bool, what: str) -> str:
    return f"{what}-{case.name}-{case.kind}-{'stream' if stream else 'json'}"


def raw_request(
    case: Case, stream: bool, request_id: str, plan: dict[str, Any], *, model: str | None = None, key: str | None = KEY
) -> bytes:
    body = {"model": model or case.model, **case.body}
    if stream:
        body["stream"] = True
    headers = {"x-request-id": request_id, "x-synthetic": json.dumps(plan), **case.headers}
    if case.kind == "stt":
        data = form(body["model"], stream=stream)
        return request(data=data, path=case.path, headers={**headers, "content-type": FORM}, key=key)
    return request(body, path=case.path, headers=headers, key=key)


def settled(url: str, request_id: str) -> dict[str, Any]:
    """The row, once nothing of any request is left."""
    tier = wait_idle(url)
    assert (tier["in_flight"], tier["queued"]) == (0, 0)
    status = operator_get(url, "/v1/router/status")
    assert all(not one["in_flight"] and not one["queued"] for one in status["purpose_models"])
    row: dict[str, Any] = operator_get(url, f"/v1/requests/{request_id}")
    return row


def error_of(case: Case, answer: Answer) -> tuple[str, str | None]:
    """Type and code of an error body, after a look at its shape."""
    body = answer.json
    if case.dialect == "anthropic":
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        return body["error"]["type"], None
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]["type"], body["error"]["code"]


@each_form
def test_completed(url: str, upstream: Synthetic, case: Case, stream: bool) -> None:
    request_id = name_of(case, stream, "done")
    answer = ask(url, raw_request(case, stream, request_id, {"tokens": 5, "cached_tokens": 2}))
    assert answer.status == 200
    kind = "audio/mpeg" if case.kind == "tts" else "text/event-stream" if stream else "application/json"
    assert answer.headers["content-type"].startswith(kind)
    [seen] = upstream.log(request_id)
    assert (seen["path"], seen["model"], seen["stream"], seen["ended"]) == (case.upstream, "m1", stream, "complete")
    row = settled(url, request_id)
    assert (row["outcome"], row["status"], row["error_code"]) == ("completed", 200, None)
    assert (row["endpoint"], row["stream"], row["alias"]) == (case.name, stream, case.model.lower())
    assert row["tier"] == ("primary" if case.kind == "chat" else f"{case.kind}:{case.model.lower()}")
    assert row["response_bytes"] == len(answer.body)
    tokens = row["tokens"]
    if case.name in ("chat", "completions", "responses", "messages"):
        assert tokens["prompt"] == seen["prompt_tokens"]
        assert (tokens["completion"], tokens["completion_source"]) == (5, "upstream")
        assert (tokens["cached"], tokens["cached_source"]) == (2, "upstream")
        assert row["finish_reason"] == {"messages": "end_turn", "responses": "completed"}.get(case.name, "stop")
    elif case.name == "transcriptions":
        assert (tokens["prompt"], tokens["completion"]) == (seen["prompt_tokens"], 5)
    elif case.name == "embeddings":
        assert (tokens["prompt"], tokens["prompt_source"]) == (seen["prompt_tokens"], "upstream")
        assert (tokens["completion"], tokens["completion_source"]) == (None, "absent")
    else:
        assert (tokens["prompt"], tokens["prompt_source"]) == (None, "absent")


@each_form
def test_client_gone(url: str, upstream: Synthetic, case: Case, stream: bool) -> None:
    request_id = name_of(case, stream, "gone")
    before = upstream.stats()["requests"]
    plan = {"tokens": 50, "stall_after": 3} if stream else {"stall_after": -1}
    with connected(url) as raw:
        raw.send(raw_request(case, stream, request_id, plan))
        if stream:
            raw.until(b" t2")
        else:
            upstream.wait(requests=before + 1)
    upstream.wait(in_flight=0)
    assert upstream.log(request_id)[0]["ended"] == "client_gone"
    row = settled(url, request_id)
    assert (row["outcome"], row["error_code"]) == ("client_gone", None)
    assert row["status"] == (200 if stream else None)


@each_form
@pytest.mark.parametrize("how", ["reset", "truncate"])
def test_upstream_reset(url: str, case: Case, stream: bool, how: str) -> None:
    request_id = name_of(case, stream, how)
    answer = ask(url, raw_request(case, stream, request_id, {f"{how}_after": -1}))
    assert answer.status == 502
    assert error_of(case, answer) == (("api_error", None) if case.dialect == "anthropic" else
                                      ("server_error", "upstream_reset"))  # fmt: skip
    row = settled(url, request_id)
    assert (row["outcome"], row["status"], row["error_code"]) == ("upstream_reset", 502, "upstream_reset")


@each_form
@pytest.mark.parametrize("how", ["reset", "truncate"])
def test_upstream_fails_in_the_middle(url: str, case: Case, stream: bool, how: str) -> None:
    check_middle(url, case, stream, how, "upstream_reset")


@each_form
def test_timeout_in_the_middle(impatient: str, case: Case, stream: bool) -> None:
    check_middle(impatient, case, stream, "stall", "upstream_timeout")


def check_middle(url: str, case: Case, stream: bool, how: str, outcome: str) -> None:
    request_id = name_of(case, stream, f"mid-{how}")
    data = raw_request(case, stream, request_id, {"tokens": 9, "token_delay_ms": 2, f"{how}_after": 4})
    with connected(url) as raw:
        answer = raw.send(data).answer_or_cut()
    assert answer.status == 200
    if stream:
        check_error_event(case, answer, outcome)
    else:
        assert raw.ended
    row = settled(url, request_id)
    assert (row["outcome"], row["status"], row["error_code"]) == (outcome, 200, outcome)


def check_error_event(case: Case, answer: Answer, code: str) -> None:
    """Exactly one error event, the last one, in the dialect of the stream; nothing that looks like an end."""
    parts = answer.body.decode().split("\n\n")
    assert parts[-1] == ""
    events = [dict(line.split(": ", 1) for line in part.split("\n")) for part in parts[:-1]]
    *before, last = events
    assert not [event for event in before if "rror" in event.get("event", "") or '"error":{' in event["data"]]
    assert b"[DONE]" not in answer.body
    body = json.loads(last["data"])
    if case.dialect == "anthropic":
        kind = "timeout_error" if code == "upstream_timeout" else "api_error"
        assert last["event"] == "error"
        assert (body["type"], body["error"]["type"]) == ("error", kind)
        assert b"message_stop" not in answer.body
    elif case.dialect == "responses":
        assert last["event"] == "error"
        numbers = [json.loads(event["data"])["sequence_number"] for event in before]
        assert numbers == list(range(len(numbers)))
        assert body == {"type": "error", "code": code, "message": body["message"], "param": None,
                        "sequence_number": len(numbers)}  # fmt: skip
        assert b"response.completed" not in answer.body
    else:
        assert body == {"error": {"message": body["error"]["message"], "type": "server_error", "param": None,
                                  "code": code}}  # fmt: skip
        assert b'"finish_reason":"' not in answer.body


@each_form
def test_timeout_before_the_first_byte(impatient: str, case: Case, stream: bool) -> None:
    url = impatient
    request_id = name_of(case, stream, "late")
    answer = ask(url, raw_request(case, stream, request_id, {"stall_after": -1}))
    assert answer.status == 504
    assert error_of(case, answer) == (("timeout_error", None) if case.dialect == "anthropic" else
                                      ("server_error", "upstream_timeout"))  # fmt: skip
    row = settled(url, request_id)
    assert (row["outcome"], row["status"], row["error_code"]) == ("upstream_timeout", 504, "upstream_timeout")


@each_form
def test_refused(url: str, upstream: Synthetic, case: Case, stream: bool) -> None:
    before = upstream.stats()["requests"]
    request_id = name_of(case, stream, "refused")
    answer = ask(url, raw_request(case, stream, request_id, {}, model="nobody"))
    assert answer.status == 404
    assert error_of(case, answer) == (("not_found_error", None) if case.dialect == "anthropic" else
                                      ("invalid_request_error", "model_not_found"))  # fmt: skip
    row = settled(url, request_id)
    assert (row["outcome"], row["status"], row["error_code"]) == ("refused", 404, "model_not_found")
    assert (row["endpoint"], row["alias"], row["tier"]) == (case.name, None, None)

    answer = ask(url, raw_request(case, stream, "", {}, key="nope"))
    assert answer.status == 401
    assert error_of(case, answer)[0] == "authentication_error"
    assert ask(url, request(method="GET", path=case.path)).headers["allow"] == "POST"
    if case.kind in ("stt", "tts"):
        assert ask(url, raw_request(case, stream, "", {}, model="all")).code == "model_not_found"
    elif case.serves and case.name != "chat":
        answer = ask(url, raw_request(case, stream, "", {}, model="talk"))
        assert answer.status == 400
        assert error_of(case, answer)[1] == (None if case.dialect == "anthropic" else "endpoint_not_served")
    assert upstream.stats()["requests"] == before


@each_form
def test_the_servers_own_refusal_passes(url: str, case: Case, stream: bool) -> None:
    request_id = name_of(case, stream, "own")
    plan = {"status": 429, "headers": {"retry-after": "3"}}
    answer = ask(url, raw_request(case, stream, request_id, plan))
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")
    assert "synthetic 429" in answer.body.decode()
    assert settled(url, request_id)["outcome"] == "upstream_error"


def test_a_refused_repeat_says_what_it_was(upstream: Synthetic, tmp_path: Path) -> None:
    """Heads that repeat on a connection are judged by what was concluded before; the kind belongs to that."""
    path = tmp_path / "gateway.toml"
    path.write_text(BOOT.format(base_url=upstream.base_url, patience_s=20))
    [case] = [case for case in CASES if case.kind == "tts"]
    ids = ["first", "second", "third"]
    with gateway_process(path) as gateway:
        with connected(gateway.url) as raw:
            for request_id in ids:
                answer = raw.send(raw_request(case, False, request_id, {}, model="nobody")).answer()
                assert answer.status == 404
        assert gateway.stop() == 0
    database = sqlite3.connect(tmp_path / "usage.sqlite")
    rows = database.execute("SELECT id, kind, endpoint FROM requests ORDER BY seq").fetchall()
    database.close()
    assert rows == [(request_id, "tts", "speech") for request_id in ids]
