"""What forbids a replacement: shared servers in every spelling, own listeners, identity that cannot be proved."""

from __future__ import annotations

from typing import Any

import pytest

from sndr.router.core.exclusions import exclusions
from sndr.router.core.listener import Listener, parse_listener
from sndr.router.core.projection import Projection, apply_tiers, parse


def routes(**more: dict[str, Any]) -> Projection:
    tiers = {
        "a": {"base_url": "http://127.0.0.1:8001/v1", "model": "m1", "health_path": "/health"},
        "b": {"base_url": "http://127.0.0.1:8002/v1", "model": "n1", "health_path": "/health"},
        **more,
    }
    return parse({"aliases": {f"x{name}": {"tier": name} for name in tiers}, "tiers": tiers}, fill=True)


def codes(
    before: Projection,
    patch: dict[str, Any],
    *,
    others: dict[str, str] | None = None,
    listeners: tuple[Listener, ...] = (),
    own_hosts: frozenset[str] = frozenset(),
) -> list[str]:
    after = apply_tiers(before, patch)
    found = exclusions(before, after, list(patch), others=others or {}, listeners=listeners, own_hosts=own_hosts)
    assert all(one.pointer.startswith("/tiers/") for one in found)
    return sorted({one.code for one in found})


def move(url: str) -> dict[str, Any]:
    return {"a": {"base_url": url, "model": "m2"}}


@pytest.mark.req("R110")
@pytest.mark.parametrize(
    ("url", "other", "code"),
    [
        ("http://127.0.0.1:9000/v1", "http://127.0.0.1:9000/v1", "shared_endpoint"),
        ("http://localhost:9000/v1", "http://127.0.0.1:9000", "shared_endpoint"),
        ("http://[::1]:9000/v1", "http://127.0.0.1:9000/v1", "shared_endpoint"),
        ("https://127.0.0.1:9000/v1", "http://localhost:9000/v1", "shared_endpoint"),
        ("http://model.internal:9000/v1", "http://MODEL.internal:9000/other", "shared_endpoint"),
        ("http://model.internal:9000/v1", "http://10.0.0.7:9000/v1", "shared_endpoint_unprovable"),
        ("http://model.internal:9000/v1", "http://other.internal:9000/v1", "shared_endpoint_unprovable"),
        ("http://127.0.0.1:9000/v1", "http://model.internal:9000/v1", "shared_endpoint_unprovable"),
        ("http://10.0.0.8:9000/v1", "http://10.0.0.7:9000/v1", None),
        ("http://model.internal:9001/v1", "http://model.internal:9000/v1", None),
    ],
)
def test_a_server_that_answers_for_something_else_is_not_moved_to(url: str, other: str, code: str | None) -> None:
    assert codes(routes(), move(url), others={"the embedding model e": other}) == ([] if code is None else [code])


@pytest.mark.req("R110")
def test_nor_is_it_left() -> None:
    others = {"the stt route s": "http://localhost:8001/audio"}
    assert codes(routes(), move("http://127.0.0.1:9000/v1"), others=others) == ["shared_endpoint"]
    assert codes(routes(), {"a": {"max_concurrency": 3}}, others=others) == ["shared_endpoint"]


@pytest.mark.req("R110")
def test_a_tier_that_embeds_is_such_a_server_and_is_not_replaced_itself() -> None:
    embeds = {"base_url": "http://127.0.0.1:8003/v1", "model": "e", "health_path": "/h", "serves": ["embeddings"]}
    before = routes(e=embeds)
    assert codes(before, move("http://localhost:8003/v1")) == ["shared_endpoint"]
    assert codes(before, {"e": {"model": "e2"}}) == ["shared_endpoint"]


@pytest.mark.req("R111")
def test_a_server_of_another_tier_is_taken_together_with_it_only() -> None:
    shared = routes(c={"base_url": "http://localhost:8001/v1", "model": "m3", "health_path": "/health"})
    assert codes(routes(), move("http://localhost:8002/v1")) == ["endpoint_overlap"]
    assert codes(shared, move("http://127.0.0.1:9000/v1")) == ["endpoint_overlap"]
    both = {"a": {"model": "m2"}, "c": {"model": "m4"}}
    assert codes(shared, both) == []
    assert codes(routes(), move("http://model.internal:8002/v1")) == []  # names of chat servers are not second-guessed


@pytest.mark.req("R47")
def test_the_gateway_itself_is_no_server() -> None:
    listeners = (parse_listener("0.0.0.0:8710"), parse_listener("unix:/run/gateway"))
    hosts = frozenset({"gateway.internal"})
    for host in ("127.0.0.1", "localhost", "[::1]", "gateway.internal"):
        assert codes(routes(), move(f"http://{host}:8710/v1"), listeners=listeners, own_hosts=hosts) == [
            "endpoint_invalid"
        ]
    assert codes(routes(), move("http://10.0.0.9:8710/v1"), listeners=listeners, own_hosts=hosts) == []


@pytest.mark.req("R42")
@pytest.mark.parametrize("patch", [{"model": None}, {"health_path": None}])
def test_identity_must_be_provable(patch: dict[str, Any]) -> None:
    assert codes(routes(), {"a": patch}) == ["identity_required"]
    vague = routes(
        v={"base_url": "http://127.0.0.1:8009/v1", "model": "v", "health_path": "/", "model_identity": False}
    )
    assert codes(vague, {"v": {"model": "w"}}) == ["identity_required"]


def test_everything_is_said_at_once() -> None:
    found = codes(routes(), {"a": {"base_url": "http://127.0.0.1:8002/v1", "model": None}})
    assert found == ["endpoint_overlap", "identity_required"]
