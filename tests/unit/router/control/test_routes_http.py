"""The live routes as requests and answers: methods, roles, preconditions, fences, bounds, gauges."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sndr.router.client import ANSWER_MAX_BYTES
from sndr.router.control.api import Management
from sndr.router.control.quiescence import Quiescence
from sndr.router.core import projection
from sndr.router.core.projection import Projection
from sndr.router.core.readiness import Reason, TierReadiness, judge_models
from sndr.router.metrics import Metrics
from sndr.router.ports import ManagementRequest, ManagementResponse
from sndr.router.wire import boot
from tests.support.control import BOOT, ENV, FakeProcess
from tests.support.routes_world import RoutesWorld

MOVE = {"op": "alias_update", "aliases": {"x": {"tier": "b"}}}


class Api:
    """The management API over a world without disk, sockets or waiting."""

    def __init__(self, routes: Projection | None = None) -> None:
        self.world = RoutesWorld(routes)
        self.audited: list[dict[str, Any]] = []
        self.audit_fails = False
        world = self.world
        self.management = Management(
            config=boot.parse(BOOT, ENV),
            gate=world.gate,
            prober=world.prober,
            ledger=None,
            metrics=Metrics(["x", "y", "z"], ["a", "b"]),
            quiescence=Quiescence(world.gate, world.prober, lambda *_: None),
            process=FakeProcess(),
            audit=self.audit,
        )
        self.management.use_routes(world.routes)

    def audit(self, event: str, fields: Any) -> None:
        assert event == "management"
        self.audited.append(dict(fields))
        if self.audit_fails:
            raise OSError(28, "no space")

    def request(self, method: str, path: str, body: object = None, role: str = "operator", **headers: str) -> Any:
        path, _, query = path.partition("?")
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.management.handle(ManagementRequest(method, path, query, named, data, role, None))

    def call(self, method: str, path: str, body: object = None, **more: str) -> ManagementResponse:
        answer: ManagementResponse = self.world.run(self.request(method, path, body, **more))
        return answer


@pytest.fixture
def api() -> Iterator[Api]:
    """An authority at rest at revision 1."""
    made = Api()
    yield made
    made.world.close()


def code(answer: ManagementResponse) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["code"]


@pytest.mark.req("R20", "R92")
@pytest.mark.invariant("INV-11")
def test_every_admin_answer_carries_the_fence_and_the_entity_tag(api: Api) -> None:
    revision, sha = api.world.fence
    for method, path, body in (
        ("GET", "/v1/admin/routes", None),
        ("GET", "/v1/admin/routes/check", None),
        ("GET", "/v1/admin/tiers", None),
        ("POST", "/v1/admin/tiers/b/quiesce", {}),
        ("POST", "/v1/admin/routes/preview", MOVE),
        ("POST", "/v1/admin/routes/apply", {}),
        ("GET", "/v1/admin/nothing", None),
    ):
        answer = api.call(method, path, body)
        document = json.loads(answer.body)
        assert (document["route_revision"], document["effective_route_sha256"]) == (revision, sha), path
        headers = dict(answer.headers)
        assert (headers["etag"], headers["cache-control"]) == ('"1"', "no-store")
        if answer.status >= 400:
            assert headers["content-type"] == "application/problem+json"
            assert set(document) >= {
                "type", "title", "status", "detail", "code", "authority_id", "transaction_id", "state", "held",
                "attention", "next", "retryable",
            }  # fmt: skip


@pytest.mark.req("R92")
def test_an_entity_tag_is_one_more_precondition(api: Api) -> None:
    for tag in ('"2"', 'W/"1"', "1", '"11"'):
        answer = api.call("POST", "/v1/admin/routes/preview", MOVE, if_match=tag)
        assert code(answer) == (412, "precondition_failed")
        assert dict(answer.headers)["x-sndr-route-sha256"] == api.world.fence[1]
    preview = json.loads(api.call("POST", "/v1/admin/routes/preview", MOVE, if_match='"7", "1"').body)
    body = {"preview_id": preview["preview_id"], "preview_sha256": preview["preview_sha256"]}
    assert code(api.call("POST", "/v1/admin/routes/apply", body, if_match='"1"')) == (428, "confirmation_required")
    body["confirm"] = True
    assert code(api.call("POST", "/v1/admin/routes/apply", body, if_match='"3"')) == (412, "precondition_failed")
    assert api.call("POST", "/v1/admin/routes/apply", body, if_match="*").status == 200


@pytest.mark.req("R91")
@pytest.mark.parametrize("role", ["client", "metrics"])
def test_only_the_operator_may(api: Api, role: str) -> None:
    for path in ("", "/check", "/drain", "/preview", "/apply"):
        answer = api.call("POST", f"/v1/admin/routes{path}", MOVE, role=role)
        assert code(answer) == (403, "operator_required")
        assert b"authority_id" not in answer.body


def test_paths_and_methods(api: Api) -> None:
    assert code(api.call("GET", "/v1/admin/routes/nothing"))[0] == 404
    assert code(api.call("GET", "/v1/admin/routes/"))[0] == 404
    for method, path, allowed in (
        ("POST", "/v1/admin/routes", "GET, HEAD"),
        ("GET", "/v1/admin/routes/preview", "POST"),
        ("DELETE", "/v1/admin/routes/check", "GET, HEAD"),
    ):
        answer = api.call(method, path)
        assert (code(answer)[0], dict(answer.headers)["allow"]) == (405, allowed)


@pytest.mark.req("R96")
@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        (b"", 400, "invalid_request"),
        (b"[]", 400, "invalid_request"),
        (b'{"op":"alias_update","op":"rollback"}', 400, "invalid_request"),
        (b'{"op":"alias_update","aliases":{"x":{"tier":"b"}},"extra":1}', 400, "invalid_request"),
        (b'{"op":"nothing"}', 400, "invalid_request"),
        (b'{"op":["rollback"]}', 400, "invalid_request"),
        (b'{"op":"rollback","ttl_s":9}', 400, "invalid_request"),
        (b'{"op":"rollback","ttl_s":601}', 400, "invalid_request"),
        (b'{"op":"rollback","mode":"force"}', 400, "invalid_request"),
        (b'{"op":"rollback","accept_unready":1}', 400, "invalid_request"),
        (b'{"op":"recover","transaction_id":"t"}', 400, "invalid_request"),
        (b'{"op":"resume"}', 400, "invalid_request"),
        (b'{"op":"alias_update","aliases":{"x":"b"}}', 400, "invalid_change"),
        (b'{"op":"alias_update","aliases":{"x":{"tier":"B"}}}', 400, "invalid_change"),
        (b'{"op":"alias_update","aliases":{}}', 409, "no_effective_change"),
        (b'{"op":"tier_replacement","tiers":{}}', 409, "no_effective_change"),
        (b'{"op":"tier_replacement","tiers":{"a":{"params":{"k":"' + b"v" * 17_000 + b'"}}}}', 413, "change_too_large"),
        (b'{"op":"tier_replacement","tiers":{"a":[]}}', 400, "invalid_change"),
        (b'{"op":"alias_update","aliases":{"\\ud800":{"tier":"b"}}}', 400, "invalid_request"),
        (b'{"op":"tier_replacement","tiers":{"a":{"model":"\\udc00"}}}', 400, "invalid_request"),
        (b'{"op":"cancel","transaction_id":"\\ud800"}', 400, "invalid_request"),
        (b'{"op":"resume","transaction_id":"t","evidence":{"\\ud800":1}}', 400, "invalid_request"),
        (b'{"\\ud800":1}', 400, "invalid_request"),
        (b'{"op":"rollback","\\ud800":1}', 400, "invalid_request"),
        (b'{"op":"resume","transaction_id":"t"}', 409, "no_transaction"),
        (b'{"op":"recover","transaction_id":"t","action":"verify"}', 409, "no_transaction"),
        (b'{"op":"recover","transaction_id":null,"action":"reassert"}', 409, "no_transaction"),
    ],
)
def test_what_is_not_understood_or_not_possible(api: Api, body: bytes, status: int, name: str) -> None:
    assert code(api.call("POST", "/v1/admin/routes/preview", body)) == (status, name)
    assert api.world.routes.view()["previews"] == 0


def test_aliases_are_read_as_clients_write_them(api: Api) -> None:
    answer = api.call("POST", "/v1/admin/routes/preview", {"op": "alias_update", "aliases": {" X ": {"tier": "b"}}})
    assert json.loads(answer.body)["affected"]["aliases"] == ["x"]


@pytest.mark.req("R96")
@pytest.mark.parametrize("query", ["timeout_s=0", "timeout_s=901", "timeout_s=1e3", "timeout_s=", "timeout_s=-1"])
def test_a_drain_is_watched_for_a_bounded_time(api: Api, query: str) -> None:
    assert code(api.call("GET", f"/v1/admin/routes/drain?{query}")) == (400, "invalid_timeout")
    assert code(api.call("GET", "/v1/admin/routes/drain?wait=1")) == (400, "invalid_request")
    assert code(api.call("GET", "/v1/admin/routes/drain?timeout_s=1&timeout_s=2")) == (400, "invalid_request")
    assert code(api.call("GET", "/v1/admin/routes/drain")) == (409, "no_transaction")


@pytest.mark.req("R96", "R116")
def test_four_watchers_at_once_and_the_gauges_of_a_hold(api: Api) -> None:
    world = api.world
    lease = world.request("x")
    world.serving["http://127.0.0.1:8003/v1"] = ("m2",)
    patch = {"a": {"base_url": "http://127.0.0.1:8003/v1", "model": "m2"}}
    task = world.background(world.change(op="tier_replacement", tiers=patch))
    world.pass_time(1)

    async def watch() -> list[ManagementResponse]:
        calls = [api.request("GET", "/v1/admin/routes/drain?timeout_s=5") for _ in range(5)]
        return list(await asyncio.gather(*calls))

    answers = world.run(watch())
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 200, 503]
    watched = json.loads(answers[0].body)
    assert (watched["timed_out"], watched["leases"], watched["unresolved"]) == (True, {"a": 1}, 1)
    text = api.call("GET", "/metrics").body.decode()
    assert "\nsndr_route_state 1\n" in text
    assert 'sndr_route_held{tier="a"} 1.0' in text
    assert 'sndr_route_leases{tier="a",generation="1"} 1' in text
    assert 'sndr_route_writes_total{result="done"} 1' in text
    assert f'sndr_route_info{{sha256="{world.fence[1]}",authority="' in text
    assert "sndr_route_attention{" not in text
    status = json.loads(api.call("GET", "/v1/router/status").body)
    assert status["route_authority"]["held_tiers"] == ["a"]
    assert status["route_authority"]["last_receipt"]["state"] == "held"
    client = json.loads(api.call("GET", "/v1/router/status", role="client").body)
    assert client["route_revision"] == 1
    assert "route_authority" not in client
    world.finish(lease)  # type: ignore[arg-type]  # it was granted
    world.pass_time(1)
    assert task.result()["state"] == "completed"


def test_a_disk_that_does_not_answer_makes_a_check_busy(api: Api) -> None:
    api.world.authority.check = lambda _done: None  # type: ignore[method-assign]  # never answers
    assert code(api.call("GET", "/v1/admin/routes/check")) == (503, "management_busy")
    assert api.call("GET", "/v1/admin/routes").status == 200


@pytest.mark.req("R70")
def test_a_check_says_what_it_found_and_changes_nothing(api: Api) -> None:
    for condition, result in (
        ("writable", "consistent"),
        ("authority_changed_externally", "changed_externally"),
        ("authority_lock_lost", "lock_lost"),
        ("authority_path_moved", "path_moved"),
        ("authority_write_uncertain", "uncertain"),
    ):
        api.world.authority.condition = condition
        before = api.world.coordinator.machine
        answer = json.loads(api.call("GET", "/v1/admin/routes/check").body)
        assert answer["result"] == result
        doubt = {"transaction_id": None, "state": None, "route_revision": 1, "write_seq": 2}
        assert answer["visible"] == (doubt if result == "uncertain" else None)
        assert api.world.coordinator.machine is before


@pytest.mark.req("R117")
@pytest.mark.invariant("INV-24")
def test_every_call_for_a_change_leaves_a_record_of_metadata(api: Api) -> None:
    api.call("GET", "/v1/admin/routes")
    preview = json.loads(api.call("POST", "/v1/admin/routes/preview", MOVE).body)
    body = {"preview_id": preview["preview_id"], "preview_sha256": preview["preview_sha256"], "confirm": True}
    api.audit_fails = True  # a record that is lost is no reason to refuse
    assert api.call("POST", "/v1/admin/routes/apply", body).status == 200
    api.call("POST", "/v1/admin/routes/preview", {"op": "secret", "note": "secret"})
    api.call("POST", "/v1/admin/tiers/a/quiesce", {"reason": "secret"})
    sha = preview["preview_sha256"]
    seen = [(one["call"], one["op"], one["preview_sha256"], one["status"], one["code"]) for one in api.audited]
    assert seen == [
        ("routes/preview", "alias_update", sha, 200, None),
        ("routes/apply", "alias_update", sha, 200, None),
        ("routes/preview", None, None, 400, "invalid_request"),
        ("tiers/a/quiesce", None, None, 200, None),
    ]
    assert [(one["revision_before"], one["revision_after"]) for one in api.audited] == [(1, 1), (1, 2), (2, 2), (2, 2)]
    assert {one["credential"] for one in api.audited} == {"operator"}
    assert "secret" not in str(api.audited)


@pytest.mark.req("R96")
def test_the_largest_view_is_one_that_the_client_reads() -> None:
    """64 tiers as large as the routes may be, before and after a change, and servers that advertise all they can."""
    padding = "p" * (projection.PROJECTION_BYTES_MAX // 64 - 900)
    tiers = {
        f"t{number:02}": {
            "base_url": f"http://127.0.0.1:{9000 + number}/{padding}",
            "model": "m" * 400,
            "health_path": "/health",
        }
        for number in range(64)
    }
    made = Api(projection.parse({"aliases": {"x": {"tier": "t00"}}, "tiers": tiers}, fill=True))
    world = made.world
    assert 0.8 < len(world.boot.encoded) / projection.PROJECTION_BYTES_MAX <= 1
    names = [*(f"{number:02}" + "n" * 1_998 for number in range(99)), "m" * 400]
    models = json.dumps({"data": [{"id": name} for name in names]}).encode()

    def state(tier_id: str, _generation: int) -> TierReadiness:
        return TierReadiness(
            True, Reason.IDENTITY_PASSED, models=judge_models(world.boot.tiers[tier_id], 200, models).models
        )

    world.prober.state = state  # type: ignore[method-assign]
    world.tier_view = made.management.tier_view  # type: ignore[method-assign]
    move = {"op": "alias_update", "aliases": {"x": {"tier": "t01"}}}
    preview = json.loads(made.call("POST", "/v1/admin/routes/preview", move).body)
    wanted = {"preview_id": preview["preview_id"], "preview_sha256": preview["preview_sha256"], "confirm": True}
    assert made.call("POST", "/v1/admin/routes/apply", wanted).status == 200
    view = made.call("GET", "/v1/admin/routes").body
    assert [len(tier["observed_models"]) for tier in json.loads(view)["tiers"]] == [3] * 64
    assert 262_144 < len(view) <= ANSWER_MAX_BYTES
    made.world.close()
