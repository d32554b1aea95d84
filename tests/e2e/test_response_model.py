"""`response_model = "alias"`: answers name the model that was asked for, in every dialect and form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import gateway_process
from tests.support.raw import ask, boot_file, connected, operator_get, request, wait_idle
from tests.support.synthetic import Synthetic

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def url(synthetic: Synthetic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path: Path = boot_file(
        tmp_path_factory.mktemp("renames"), synthetic.base_url, server='usage_path = "usage.sqlite"',
        router='response_model = "alias"',
        tier='serves = ["chat", "completions", "responses", "messages", "embeddings"]',
    )  # fmt: skip
    with gateway_process(path) as gateway:
        yield gateway.url
        assert gateway.stop() == 0


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize("write_bytes", [0, 5])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "members"),
    [("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "x"}),
     ("/v1/responses", {"input": "x"}), ("/v1/messages", {"messages": HELLO}), ("/v1/embeddings", {"input": "x"})],
)  # fmt: skip
def test_the_alias_is_named(
    url: str, path: str, members: dict[str, Any], stream: bool, write_bytes: int, length: bool
) -> None:
    request_id = f"{path[4:].replace('/', '-')}-{stream}-{write_bytes}-{length}"
    plan = {"tokens": 6, "write_bytes": write_bytes, "length": length, "model": 'odd "served" name'}
    headers = {"x-request-id": request_id, "x-synthetic": json.dumps(plan)}
    answer = ask(url, request({"model": "LLM.Primary", "stream": stream, **members}, path=path, headers=headers))
    assert answer.status == 200
    assert b"odd" not in answer.body
    assert b'"model":"llm.primary"' in answer.body
    wait_idle(url)
    row = operator_get(url, f"/v1/requests/{request_id}")
    assert (row["outcome"], row["response_bytes"]) == ("completed", len(answer.body))
    assert row["tokens"]["prompt_source"] == "upstream"
    if stream and path != "/v1/embeddings":
        assert b" t5" in answer.body
        assert row["tokens"]["completion"] == 6


def test_errors_of_the_server_pass_as_they_are(url: str) -> None:
    plan = {"status": 400, "body": {"error": {"message": "no"}, "model": "m1"}}
    answer = ask(url, request({"model": "llm.primary", "synthetic": plan, "messages": []}))
    assert (answer.status, answer.json) == (400, plan["body"])


def test_an_answer_that_breaks_off_is_not_completed(url: str) -> None:
    plan = {"tokens": 9, "truncate_after": 4}
    with connected(url) as raw:
        raw.send(request({"model": "llm.primary", "synthetic": plan, "messages": []}))
        assert raw.answer_head() == 200
        assert not raw.rest().endswith(b"0\r\n\r\n")
