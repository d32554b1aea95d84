"""The management API: exact shapes, who sees what, every refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sndr import __version__
from sndr.router.core.readiness import Observation, Reason
from sndr.router.ports import ManagementResponse
from sndr.router.wire.http1 import reason_phrase
from sndr.router.wire.operator_api import PROBLEMS
from tests.support.control import BOOT, FakeLedger, Plane

TIER_KEYS = [
    "id", "generation", "base_url", "model", "serves", "ready", "reason", "checked_at", "admitting", "quiesced",
    "quiesce_reason", "held", "in_flight", "queued", "max_concurrency", "context_limit", "observed_models",
]  # fmt: skip
STATUS_KEYS = [
    "object", "version", "started_at", "uptime_s", "state", "listen", "config_sha256", "aliases", "tiers",
    "purpose_models", "ledger", "dropped_log_lines", "routing_table",
]  # fmt: skip
OPERATORS_OWN = ("purpose_models", "ledger", "dropped_log_lines")


def run(script: Callable[[Plane], Awaitable[None]], text: str = BOOT, *, ledger: bool = True) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await script(Plane(text, ledger=FakeLedger() if ledger else None))

    asyncio.run(main())


def document(answer: ManagementResponse) -> Any:
    return json.loads(answer.body)


def refused(answer: ManagementResponse, code: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(answer.body)
    problem = PROBLEMS[code]
    assert (answer.status, body["code"], body["status"]) == (problem.status, code, problem.status)
    assert body["type"] == f"urn:sndr:router:problem:{code}"
    assert set(body) >= {"type", "title", "status", "detail", "code", "retryable"}
    assert dict(answer.headers)["content-type"] == "application/problem+json"
    assert dict(answer.headers)["cache-control"] == "no-store"
    return body


def test_an_operator_sees_everything_in_status() -> None:
    async def script(plane: Plane) -> None:
        plane.gate.lease("a")
        answer = await plane.call("GET", "/v1/router/status")
        status = document(answer)
        assert (answer.status, list(status)) == (200, STATUS_KEYS)
        assert status["object"] == "router.status"
        assert (status["version"], status["state"], status["uptime_s"]) == (__version__, "serving", 12)
        assert status["started_at"] == "2026-05-28T20:26:40Z"
        assert status["aliases"] == {"llm.primary": {"tier": "a"}, "small": {"tier": "b"}}
        assert status["ledger"] == {"enabled": True, "unresolved": 3, "lag_ms": 2, "rows": 10}
        assert status["dropped_log_lines"] == {"requests": 7}
        first, second = status["tiers"]
        assert list(first) == TIER_KEYS
        assert (first["id"], first["in_flight"], first["reason"]) == ("a", 1, "identity_passed")
        assert (first["base_url"], first["observed_models"]) == ("http://127.0.0.1:9001/v1", ["m1"])
        assert (second["context_limit"], second["max_concurrency"]) == (4096, None)

    run(script)


def test_a_client_sees_its_own_routes_and_no_address() -> None:
    async def script(plane: Plane) -> None:
        await plane.call("POST", "/v1/admin/tiers/b/quiesce", b'{"reason":"inside"}')
        answer = await plane.call("GET", "/v1/router/status", role="client", client="narrow")
        status = document(answer)
        assert list(status) == [key for key in STATUS_KEYS if key not in OPERATORS_OWN]
        assert status["aliases"] == {"small": {"tier": "b"}}
        assert [tier["id"] for tier in status["tiers"]] == ["b"]
        hidden = {"base_url", "observed_models", "quiesce_reason"}
        assert list(status["tiers"][0]) == [key for key in TIER_KEYS if key not in hidden]
        assert b"inside" not in answer.body
        assert b"127.0.0.1:9002" not in answer.body
        whole = document(await plane.call("GET", "/v1/router/status", role="client", client="default"))
        assert list(whole["aliases"]) == ["llm.primary", "small"]

    run(script)


def test_quiesce_drain_readmit() -> None:
    async def script(plane: Plane) -> None:
        lease = plane.gate.lease("a")
        tier = document(await plane.call("POST", "/v1/admin/tiers/a/quiesce", b'{"reason":"promotion"}'))
        assert list(tier) == TIER_KEYS
        assert (tier["quiesced"], tier["quiesce_reason"], tier["admitting"]) == (True, "promotion", False)
        assert plane.store.saved == [{"a": "promotion"}]
        draining = asyncio.create_task(plane.call("POST", "/v1/admin/tiers/a/drain", b'{"timeout_s":20}'))
        await asyncio.sleep(0)
        lease.release()
        drained = document(await draining)
        assert list(drained) == ["drained", "timed_out", "tier"]
        assert (drained["drained"], drained["timed_out"], drained["tier"]["in_flight"]) == (True, False, 0)
        readmitted = document(await plane.call("POST", "/v1/admin/tiers/a/readmit", b"{}"))
        assert list(readmitted) == ["readmitted", "reason", "tier"]
        assert (readmitted["readmitted"], readmitted["reason"]) == (True, "identity_passed")
        assert readmitted["tier"]["admitting"]
        assert plane.prober.proved == [("a", 1)]
        assert plane.store.saved[-1] == {}
        assert [event for event, _ in plane.events] == ["quiesced", "readmitted"]

    run(script)


def test_a_readmit_without_proof_is_refused_with_the_probes_reason() -> None:
    async def script(plane: Plane) -> None:
        await plane.call("POST", "/v1/admin/tiers/a/quiesce")
        plane.prober.answer = Observation(False, Reason.IDENTITY_MISMATCH, ("other",))
        body = refused(await plane.call("POST", "/v1/admin/tiers/a/readmit", b"{}"), "readmit_refused")
        assert body["reason"] == "identity_mismatch"
        assert plane.gate.snapshot.runtimes["a"].gate.quiesced

    run(script)


def test_a_drain_needs_a_quiesced_tier() -> None:
    async def script(plane: Plane) -> None:
        refused(await plane.call("POST", "/v1/admin/tiers/a/drain", b"{}"), "not_quiesced")

    run(script)


@pytest.mark.parametrize("timeout", [b"0", b"901", b"1e9", b"true", b'"30"', b"1.5", b"null", b"-1"])
@pytest.mark.req("R96")
def test_a_drains_timeout_is_bounded(timeout: bytes) -> None:
    async def script(plane: Plane) -> None:
        answer = await plane.call("POST", "/v1/admin/tiers/a/drain", b'{"timeout_s":' + timeout + b"}")
        refused(answer, "invalid_timeout")

    run(script)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/admin/tiers/a/quiesce", b"[]"),
        ("/v1/admin/tiers/a/quiesce", b"{"),
        ("/v1/admin/tiers/a/quiesce", b"\xff"),
        ("/v1/admin/tiers/a/quiesce", b'{"reason":"a","reason":"b"}'),
        ("/v1/admin/tiers/a/quiesce", b'{"reason":1}'),
        ("/v1/admin/tiers/a/quiesce", b'{"reason":"line\\nbreak"}'),
        ("/v1/admin/tiers/a/quiesce", b'{"reson":"a"}'),
        ("/v1/admin/tiers/a/readmit", b'{"force":true}'),
        ("/v1/admin/usage/reconcile", b'{"confirm":1}'),
        ("/v1/admin/usage/reconcile", b"[" * 60_000),
    ],
)
def test_a_body_that_is_not_understood_changes_nothing(path: str, body: bytes) -> None:
    async def script(plane: Plane) -> None:
        refused(await plane.call("POST", path, body), "invalid_request")
        assert not plane.gate.snapshot.runtimes["a"].gate.quiesced
        assert plane.store.saved == []

    run(script)


@pytest.mark.parametrize("role", ["client", "metrics"])
@pytest.mark.req("R91")
def test_admin_paths_take_the_operators_credential_only(role: str) -> None:
    async def script(plane: Plane) -> None:
        for path in ("/v1/admin/tiers", "/v1/admin/nothing", "/v1/admin/tiers/a/quiesce"):
            refused(await plane.call("POST", path, role=role, client="default"), "operator_required")

    run(script)


def test_without_an_operator_credential_there_is_no_admin_path() -> None:
    async def script(plane: Plane) -> None:
        for path in ("/v1/admin", "/v1/admin/tiers", "/v1/admin/tiers/a/quiesce", "/v1/admin/usage/reconcile"):
            refused(await plane.call("GET", path, role="client", client="default"), "not_found")

    run(script, BOOT.replace('operator_auth_env = "OPERATOR_KEY"\n', ""))


def test_unknown_paths_tiers_and_methods() -> None:
    async def script(plane: Plane) -> None:
        for path in ("/v1/admin/tier", "/v1/admin/tiers/a", "/v1/admin/tiers/a/explode", "/v1/admin/routes"):
            refused(await plane.call("POST", path), "not_found")
        refused(await plane.call("POST", "/v1/admin/tiers/none/quiesce"), "not_found")
        answer = await plane.call("DELETE", "/v1/admin/tiers")
        refused(answer, "method_not_allowed")
        assert dict(answer.headers)["allow"] == "GET, HEAD"
        answer = await plane.call("GET", "/v1/admin/tiers/a/drain")
        assert dict(answer.headers)["allow"] == "POST"

    run(script)


def test_the_tier_list() -> None:
    async def script(plane: Plane) -> None:
        listed = document(await plane.call("GET", "/v1/admin/tiers"))
        assert (list(listed), listed["object"]) == (["object", "data"], "list")
        assert [tier["id"] for tier in listed["data"]] == ["a", "b"]

    run(script)


def test_a_trace_belongs_to_its_client() -> None:
    async def script(plane: Plane) -> None:
        assert document(await plane.call("GET", "/v1/requests/r1"))["id"] == "r1"
        assert (await plane.call("GET", "/v1/requests/r1", role="client", client="default")).status == 200
        refused(await plane.call("GET", "/v1/requests/r1", role="client", client="narrow"), "not_found")
        refused(await plane.call("GET", "/v1/requests/r2"), "not_found")

    run(script)


def test_reconcile_is_explicit() -> None:
    async def script(plane: Plane) -> None:
        refused(await plane.call("POST", "/v1/admin/usage/reconcile", b"{}"), "confirmation_required")
        done = document(await plane.call("POST", "/v1/admin/usage/reconcile", b'{"confirm":true}'))
        assert (list(done), done["reconciled"], done["left"]) == (["reconciled", "left", "runs"], 3, 0)
        assert done["runs"][0]["started_at"] == "2026-05-28T20:26:40Z"

    run(script)


def test_without_a_ledger() -> None:
    async def script(plane: Plane) -> None:
        refused(await plane.call("POST", "/v1/admin/usage/reconcile", b'{"confirm":true}'), "ledger_disabled")
        refused(await plane.call("GET", "/v1/requests/r1"), "not_found")
        status = document(await plane.call("GET", "/v1/router/status"))
        assert status["ledger"] == {"enabled": False, "unresolved": None, "lag_ms": None, "rows": None}

    run(script, ledger=False)


def test_metrics_take_their_credential_or_the_operators() -> None:
    async def script(plane: Plane) -> None:
        plane.gate.lease("a")
        for role in ("operator", "metrics"):
            answer = await plane.call("GET", "/metrics", role=role)
            assert answer.status == 200
            assert dict(answer.headers)["content-type"].startswith("text/plain")
        text = answer.body.decode()
        for line in (
            'sndr_requests_in_flight{tier="a"} 1',
            'sndr_tier_ready{tier="a"} 1.0',
            'sndr_route_leases{tier="a",generation="1"} 1',
            'sndr_connections{side="upstream_idle"} 2',
            "sndr_ledger_lag_seconds 0.002",
            'sndr_log_lines_dropped_total{log="requests"} 7',
            'sndr_usage_unresolved{tier="b"} 0',
            f'sndr_build_info{{version="{__version__}"}} 1',
            f'sndr_config_info{{sha256="{plane.config.config_sha256}"}} 1',
        ):
            assert f"\n{line}\n" in text
        refused(await plane.call("GET", "/metrics", role="client", client="default"), "operator_required")
        refused(await plane.call("GET", "/v1/router/status", role="metrics"), "operator_required")

    run(script)


def test_metrics_are_open_where_nobody_needs_a_key() -> None:
    async def script(plane: Plane) -> None:
        assert (await plane.call("GET", "/metrics", role="client", client="default")).status == 200

    text = "[[router.tiers]]" + BOOT.partition("[[router.tiers]]")[2]
    run(script, text)


@pytest.mark.req("R96")
def test_commands_are_bounded_and_drains_do_not_lock_out_the_rest() -> None:
    async def script(plane: Plane) -> None:
        plane.gate.lease("a")
        await plane.call("POST", "/v1/admin/tiers/a/quiesce")
        drains = [asyncio.create_task(plane.call("POST", "/v1/admin/tiers/a/drain")) for _ in range(4)]
        await asyncio.sleep(0)
        refused(await plane.call("POST", "/v1/admin/tiers/a/drain"), "management_busy")
        assert (await plane.call("POST", "/v1/admin/tiers/b/quiesce")).status == 200
        plane.quiescence.stop()
        for drain in drains:
            refused(await drain, "shutting_down")
        refused(await plane.call("POST", "/v1/admin/tiers/a/drain"), "shutting_down")

    run(script)


def test_every_status_has_its_registered_phrase() -> None:
    assert {problem.status for problem in PROBLEMS.values() if reason_phrase(problem.status) == "Status"} == set()
