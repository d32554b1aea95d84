"""Callers with keys of their own: which models each may use, and how much at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.support.forms import FORM, form
from tests.support.gateway import unbroken_gateway
from tests.support.raw import OPERATOR, Answer, ask, connected, operator_get, request, wait_idle
from tests.support.synthetic import Synthetic

KEYS = {"NARROW_KEY": "narrow-key-0123456789", "WIDE_KEY": "wide-key-0123456789"}
BOOT = """
[server]
listen = ["127.0.0.1:0"]
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"

[[server.clients]]
id = "narrow"
auth_env = "NARROW_KEY"
aliases = ["LLM.*", "whis?er"]
max_concurrency = 1

[[server.clients]]
id = "wide"
auth_env = "WIDE_KEY"

[[router.tiers]]
id = "primary"
base_url = "{base_url}"
model = "m1"
serves = ["chat", "responses", "messages", "embeddings"]

[[router.audio_routes]]
kind = "stt"
model = "whisper"
served_model = "m1"
base_url = "{base_url}"

[router.model_routes]
"llm.a" = "primary"
"other" = "primary"
"org/llama-3:8b@q4+x" = "primary"
"""


@pytest.fixture(scope="module")
def url(synthetic: Synthetic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    boot = BOOT.format(base_url=synthetic.base_url)
    with unbroken_gateway(boot, tmp_path_factory.mktemp("keys"), environ=KEYS, secrets=KEYS.values()) as gateway:
        yield gateway.url


def post(url: str, path: str, key: str, model: str, request_id: str = "x", **plan: Any) -> Answer:
    return ask(url, message(path, key, model, request_id, **plan))


def message(path: str, key: str, model: str, request_id: str = "x", **plan: Any) -> bytes:
    headers = {"x-request-id": request_id, "x-synthetic": json.dumps(plan)}
    if path.endswith("transcriptions"):
        headers["content-type"] = FORM
        return request(data=form(model), path=path, key=KEYS[key], headers=headers)
    return request({"model": model, "messages": [], "input": "x"}, path=path, key=KEYS[key], headers=headers)


PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"]


@pytest.mark.parametrize("path", PATHS)
def test_a_client_uses_what_its_globs_match(url: str, synthetic: Synthetic, path: str) -> None:
    assert post(url, path, "NARROW_KEY", "llm.A").status == 200
    before = synthetic.stats()["requests"]
    refused = post(url, path, "NARROW_KEY", "other", f"refused{path.replace('/', '-')}")
    assert refused.status == 403
    assert refused.json["error"]["type"] == "permission_error"
    assert synthetic.stats()["requests"] == before
    row = operator_get(url, f"/v1/requests/refused{path.replace('/', '-')}")
    assert (row["client"], row["alias"], row["outcome"], row["status"]) == ("narrow", "other", "refused", 403)
    assert post(url, path, "WIDE_KEY", "other").status == 200


def test_models_of_speech_and_the_list_follow_the_globs(url: str) -> None:
    assert post(url, "/v1/audio/transcriptions", "NARROW_KEY", "whisper").status == 200
    for key, expected in (("NARROW_KEY", ["llm.a"]), ("WIDE_KEY", ["llm.a", "org/llama-3:8b@q4+x", "other"])):
        for headers in ({}, {"anthropic-version": "2023-06-01"}):
            listed = ask(url, request(method="GET", path="/v1/models", key=KEYS[key], headers=headers)).json
            assert [model["id"] for model in listed["data"]] == expected
    hidden = ask(url, request(method="GET", path="/v1/models/other", key=KEYS["NARROW_KEY"]))
    assert (hidden.status, hidden.code) == (404, "model_not_found")


@pytest.mark.parametrize("path", [*PATHS, "/v1/audio/transcriptions"])
def test_one_request_too_many(url: str, synthetic: Synthetic, path: str) -> None:
    model = "whisper" if path.endswith("transcriptions") else "llm.a"
    before = synthetic.stats()["requests"]
    with connected(url) as first:
        first.send(message(path, "NARROW_KEY", model, stall_after=-1))
        synthetic.wait(requests=before + 1)
        refused = post(url, "/v1/chat/completions", "NARROW_KEY", "llm.a")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "queue_full", "1")
        assert post(url, "/v1/chat/completions", "WIDE_KEY", "llm.a").status == 200
        synthetic.release()
        assert first.answer().status == 200
    wait_idle(url)
    # The slot is free again, after an answer and after a client that left.
    with connected(url) as gone:
        gone.send(message(path, "NARROW_KEY", model, stall_after=-1))
        synthetic.wait(requests=before + 3)
    synthetic.wait(in_flight=0)
    wait_idle(url)
    assert post(url, path, "NARROW_KEY", model).status == 200


def test_a_client_sees_its_own_requests_only(url: str) -> None:
    assert post(url, "/v1/messages", "NARROW_KEY", "llm.a", "mine").status == 200
    wait_idle(url)
    path = "/v1/requests/mine"
    assert ask(url, request(method="GET", path=path, key=KEYS["NARROW_KEY"])).json["endpoint"] == "messages"
    assert ask(url, request(method="GET", path=path, key=KEYS["WIDE_KEY"])).status == 404
    assert ask(url, request(method="GET", path=path, key=OPERATOR)).json["client"] == "narrow"


NAMES = ["org/llama-3:8b@q4+x", "org%2Fllama-3:8b@q4+x", "org%2fllama-3%3A8b%40q4%2Bx", "Org/Llama-3:8B@q4+x"]


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}], ids=["openai", "anthropic"])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_found_by_its_name_in_the_path(url: str, name: str, headers: dict[str, str]) -> None:
    found = ask(url, request(method="GET", path=f"/v1/models/{name}", key=KEYS["WIDE_KEY"], headers=headers))
    assert (found.status, found.json["id"]) == (200, "org/llama-3:8b@q4+x")


@pytest.mark.parametrize("name", ["", "%", "%ff", "org", "org/llama-3", "x%00"])
def test_names_that_are_none(url: str, name: str) -> None:
    found = ask(url, request(method="GET", path=f"/v1/models/{name}", key=KEYS["WIDE_KEY"]))
    assert (found.status, found.code) == (404, "model_not_found")
    headers = {"anthropic-version": "2023-06-01"}
    found = ask(url, request(method="GET", path=f"/v1/models/{name}", key=KEYS["WIDE_KEY"], headers=headers))
    assert (found.status, found.json["error"]["type"]) == (404, "not_found_error")


def test_both_official_clients_find_it(url: str) -> None:
    with openai.OpenAI(api_key=KEYS["WIDE_KEY"], base_url=f"{url}/v1") as one:
        assert one.models.retrieve(NAMES[0]).id == NAMES[0]
    with anthropic.Anthropic(api_key=KEYS["WIDE_KEY"], base_url=url) as other:
        assert other.models.retrieve(NAMES[0]).id == NAMES[0]
