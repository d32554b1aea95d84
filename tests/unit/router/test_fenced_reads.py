"""The fenced reader against a gateway that changes its routes between any two answers."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sndr.router.client import Answer, Client, Fence, UnsettledError


def sha(revision: int) -> str:
    return hashlib.sha256(b"%d" % (revision % 7)).hexdigest()  # contents come back, revisions do not


def fence(revision: int) -> dict[str, Any]:
    return {"route_revision": revision, "effective_route_sha256": sha(revision)}


class Adversary:
    """Publishes as it likes before each answer; every observation also says what was true when it was made."""

    def __init__(self, publishes: Iterator[int], authority: str | None = "a", *, torn: bool = False) -> None:
        self.publishes, self.authority, self.torn = publishes, authority, torn
        self.revision = 1
        self.answers = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.revision += next(self.publishes)
        self.answers += 1
        document = fence(self.revision)
        if request.url.path == "/v1/router/status":
            if self.authority is not None:
                document["route_authority"] = {"authority_id": self.authority}
        else:
            document["oracle"] = self.revision
            if self.torn:  # a server that takes its two fields from different routes
                document["effective_route_sha256"] = sha(self.revision + 1)
        return httpx.Response(200, content=json.dumps(document))


def client_of(server: Any) -> Client:
    client = Client("http://127.0.0.1:9", "token")
    client._http = httpx.Client(transport=httpx.MockTransport(server), base_url="http://gateway")
    return client


def models(client: Client) -> Answer:
    return client.models()


@pytest.mark.req("R20")
@pytest.mark.invariant("INV-11")
@pytest.mark.parametrize("seed", range(30))
def test_nothing_torn_is_ever_accepted(seed: int) -> None:
    chance = random.Random(seed)
    server = Adversary(iter(lambda: chance.choice([0, 0, 0, 1, 2]), None))
    with client_of(server) as client:
        accepted = 0
        for _ in range(60):
            try:
                read = client.read_fenced(models, attempts=5)
            except UnsettledError as error:
                assert error.code == "fence_unsettled"
                continue
            accepted += 1
            assert read.fence == Fence("a", read.answer.document["oracle"], sha(read.answer.document["oracle"]))
    assert accepted


@pytest.mark.req("R20")
def test_a_change_during_every_attempt_ends_after_a_bounded_number_of_answers() -> None:
    server = Adversary(itertools.repeat(1))
    with client_of(server) as client, pytest.raises(UnsettledError) as caught:
        client.read_fenced(models, attempts=7)
    assert caught.value.code == "fence_unsettled"
    assert server.answers == 1 + 2 * 7


@pytest.mark.req("R20")
@pytest.mark.parametrize("changes_at", [1, 2])
def test_a_change_beside_the_observation_costs_one_more_attempt(changes_at: int) -> None:
    server = Adversary(iter([0] * changes_at + [1] + [0] * 9))
    with client_of(server) as client:
        read = client.read_fenced(models)
    assert (read.fence.route_revision, server.answers) == (2, 5)


@pytest.mark.req("R20")
def test_fields_of_two_route_sets_in_one_answer_are_refused() -> None:
    with client_of(Adversary(itertools.repeat(0), torn=True)) as client, pytest.raises(UnsettledError):
        client.read_fenced(models, attempts=3)


def test_another_history_is_another_fence() -> None:
    answers = iter(["a", "b", "b", "b"])

    def server(request: httpx.Request) -> httpx.Response:
        document = fence(5)
        if request.url.path == "/v1/router/status":
            document["route_authority"] = {"authority_id": next(answers)}
        return httpx.Response(200, content=json.dumps(document))

    with client_of(server) as client:
        assert client.read_fenced(models).fence.authority_id == "b"


def test_an_observation_of_another_authority_is_refused() -> None:
    def server(request: httpx.Request) -> httpx.Response:
        is_status = request.url.path == "/v1/router/status"
        more = {"route_authority": {"authority_id": "a"}} if is_status else {"authority_id": "b"}
        return httpx.Response(200, content=json.dumps({**fence(5), **more}))

    with client_of(server) as client, pytest.raises(UnsettledError):
        client.read_fenced(models)


def test_a_clients_status_names_no_authority_and_fences_all_the_same() -> None:
    with client_of(Adversary(itertools.repeat(0), authority=None)) as client:
        assert client.read_fenced(models).fence == Fence(None, 1, sha(1))


@pytest.mark.parametrize("document", [{}, [], {"route_revision": True, "effective_route_sha256": "x"}, None])
def test_a_gateway_without_authority_has_nothing_to_fence_with(document: Any) -> None:
    def server(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps(document) if document is not None else '"text"')

    with client_of(server) as client, pytest.raises(UnsettledError) as caught:
        client.read_fenced(models)
    assert caught.value.code == "fence_missing"
