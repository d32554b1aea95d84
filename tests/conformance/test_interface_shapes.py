"""Every member that clients, operators and scripts may count on, looked for in the answers of a gateway process.

A shape names the members that must be there and the type of each; more members may be there. `None` in a union means
that the member is null where it does not apply: present all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import UnionType
from typing import Any

import pytest

from tests.support.gateway import Gateway
from tests.support.live import CLIENT, OPERATOR, Live, Operator, User, live, refused, until

Shape = Any  # a type, a union of types, a pattern, a list of one shape, a mapping of members to shapes


@dataclass(frozen=True)
class OrNull:
    """A shape, or null."""

    shape: Shape


@dataclass(frozen=True)
class Each:
    """A mapping whose values all have a shape."""

    shape: Shape


SHA = re.compile(r"[0-9a-f]{64}")
AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

FENCE = {"route_revision": int, "effective_route_sha256": SHA}

MODELS = {
    "object": "list",
    "data": [
        {
            "id": str,
            "object": "model",
            "created": int,
            "owned_by": "sndr",
            "context_window": int | None,
            "max_model_len": int | None,
            "max_output_tokens": int | None,
            "ready": bool,
            "ready_checked_at": OrNull(AT),
        }
    ],
}

TIER = {
    "id": str,
    "generation": int,
    "base_url": str,
    "model": str,
    "serves": [str],
    "ready": bool,
    "reason": str | None,
    "checked_at": OrNull(AT),
    "admitting": bool,
    "quiesced": bool,
    "quiesce_reason": str | None,
    "held": bool,
    "in_flight": int,
    "queued": int,
    "max_concurrency": int | None,
    "context_limit": int | None,
    "observed_models": [str],
}
OPERATOR_ONLY = {"base_url", "observed_models", "quiesce_reason"}

STATUS = {
    "object": "router.status",
    "version": str,
    "started_at": AT,
    "uptime_s": int,
    "state": "serving",
    "listen": [str],
    "config_sha256": SHA,
    "aliases": Each({"tier": str}),
    "tiers": [TIER],
    "ledger": {"enabled": True, "unresolved": int, "lag_ms": int, "rows": int},
    "dropped_log_lines": {"requests": int},
    "routing_table": None,
    **FENCE,
    "route_authority": {
        "authority_id": UUID,
        "state": "idle",
        "attention": str | None,
        "transaction_id": str | None,
        "held_tiers": [str],
        "writable": True,
    },
}

REQUEST = {
    "object": "request",
    "id": str,
    "client": str,
    "started_at": AT,
    "ended_at": OrNull(AT),
    "endpoint": "chat",
    "stream": bool,
    "alias": str,
    "tier": str,
    "tier_generation": int,
    **FENCE,
    "outcome": "completed",
    "status": 200,
    "error_code": None,
    "finish_reason": str | None,
    "tokens": {
        "prompt": int | None,
        "prompt_source": str,
        "completion": int | None,
        "completion_source": str,
        "cached": int | None,
        "cached_source": str,
    },
    "queue_ms": int,
    "first_byte_ms": int,
    "total_ms": int,
    "request_bytes": int,
    "response_bytes": int,
    "retries": int,
    "routing": None,
}

PREVIEW = {
    "object": "route.preview",
    "preview_id": UUID,
    "preview_sha256": SHA,
    "expires_at": AT,
    "ttl_s": int,
    "op": str,
    "applicable": True,
    "base": {"authority_id": UUID, **FENCE},
    "proposed": {"effective_route_sha256": SHA, "next_revision_at_least": int},
    "scope": [str],
    "diff": [{"path": str, "from": object, "to": object}],
    "affected": {"aliases": [str], "in_flight": int},
    "checks": [{"name": str, "ok": bool, "code": str | None}],
    "requires": [str],
    "will": [str],
}

RECEIPT = {
    "object": "route.receipt",
    "transaction_id": UUID,
    "op": str,
    "state": str,
    "replayed": bool,
    "changed": {"from": FENCE, "to": OrNull(FENCE)},
    "scope": [str],
    "held": bool,
    "drain": OrNull({"at": AT, "complete": bool, "cut": 0, "finished": int, "leases_at_hold": int, "unresolved": int}),
    "identity": OrNull({"at": AT, "observed": object, "proves": "advertised_name"}),
    "streams": {"in_scope_finished": int, "cut": 0},
    "attention": str | None,
    "next": [str],
    "authorizes": [],
    "proves": str | None,
    **FENCE,
}

ROUTES_AT = {**FENCE, "projection": {"aliases": Each({"tier": str}), "tiers": Each({"base_url": str, "model": str})}}

VIEW = {
    "object": "route.view",
    "authority_id": UUID,
    **FENCE,
    "boot": {"projection_sha256": SHA},
    "current": ROUTES_AT,
    "previous": OrNull(ROUTES_AT),
    "transaction": OrNull(
        {
            "base": FENCE,
            "change": {"kind": str},
            "committed_revision": int | None,
            "created_at": AT,
            "updated_at": AT,
            "events": [{"at": AT, "code": str, "seq": int}],
            "drain": object,
            "evidence": None,
            "hold": bool,
            "identity": object,
            "id": UUID,
            "managed": bool,
            "op": str,
            "origin": str,
            "parent_id": str | None,
            "preview_sha256": SHA,
            "proposed_sha256": SHA,
            "scope": [str],
            "state": str,
        }
    ),
    "tiers": [{"id": str, "held": bool}],
    "attention": object,
    "previews": int,
    "writable": True,
}

PROBLEM = {
    "type": re.compile("urn:sndr:router:problem:[a-z_]+"),
    "title": str,
    "status": int,
    "detail": str,
    "code": str,
    **FENCE,
    "authority_id": UUID,
    "transaction_id": str | None,
    "state": str,
    "held": bool,
    "attention": str | None,
    "next": [str],
    "retryable": bool,
}

LOG_LINE = {
    "at": AT,
    "level": "info",
    "event": "request",
    "id": str,
    "client": str,
    "endpoint": "chat",
    "alias": str,
    "tier": str,
    "revision": int,
    "outcome": "completed",
    "status": 200,
    "first_byte_ms": int,
    "total_ms": int,
    "prompt_tokens": int | None,
    "completion_tokens": int | None,
}

METRICS = {
    "sndr_requests_total": {"alias", "tier", "endpoint", "outcome"},
    "sndr_requests_in_flight": {"tier"},
    "sndr_queue_depth": {"tier"},
    "sndr_tokens_total": {"alias", "tier", "kind"},
    "gen_ai_server_request_duration_seconds_bucket": {"alias", "tier", "le"},
    "gen_ai_server_time_to_first_token_seconds_bucket": {"alias", "tier", "le"},
    "sndr_tier_ready": {"tier"},
    "sndr_probe_total": {"tier", "result"},
    "sndr_connections": {"side"},
    "sndr_ledger_lag_seconds": set(),
    "sndr_ledger_failures_total": set(),
    "sndr_ledger_bytes": set(),
    "sndr_usage_unresolved": {"tier"},
    "sndr_log_lines_dropped_total": {"log"},
    "sndr_build_info": {"version"},
    "sndr_config_info": {"sha256"},
    "sndr_route_revision": set(),
    "sndr_route_state": set(),
    "sndr_route_info": {"sha256", "authority"},
    "sndr_route_held": {"tier"},
    "sndr_route_attention": {"code"},
    "sndr_route_writes_total": {"result"},
    "sndr_route_leases": {"tier", "generation"},
}


def mismatches(value: object, shape: Shape, at: str = "") -> Iterator[str]:
    """Where a value has not the shape."""
    match shape:
        case OrNull(inner):
            if value is not None:
                yield from mismatches(value, inner, at)
        case Each(inner):
            if not isinstance(value, dict) or not value:
                yield f"{at}: {value!r} is no mapping with members"
                return
            for name, each in value.items():
                yield from mismatches(each, inner, f"{at}/{name}")
        case dict():
            if not isinstance(value, dict):
                yield f"{at}: {value!r} is no mapping"
                return
            for name, inner in shape.items():
                if name in value:
                    yield from mismatches(value[name], inner, f"{at}/{name}")
                else:
                    yield f"{at}/{name}: is missing"
        case [inner]:
            if not isinstance(value, list):
                yield f"{at}: {value!r} is no list"
                return
            for index, each in enumerate(value):
                yield from mismatches(each, inner, f"{at}/{index}")
        case re.Pattern():
            if not isinstance(value, str) or not shape.fullmatch(value):
                yield f"{at}: {value!r} is not {shape.pattern}"
        case type() | UnionType():
            if not isinstance(value, shape) or (isinstance(value, bool) and shape not in (bool, object)):
                yield f"{at}: {value!r} is no {shape}"
        case _:
            if value != shape or type(value) is not type(shape):
                yield f"{at}: {value!r} is not {shape!r}"


def assert_shape(value: object, shape: Shape) -> None:
    found = list(mismatches(value, shape))
    assert not found, "\n".join(found)


@dataclass
class Plane:
    live: Live
    gateway: Gateway
    operator: Operator
    user: User


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    directory = tmp_path_factory.mktemp("shapes")
    tiers = {
        "a": {"model": "m1", "max_output_tokens": 4096, "context_limit": 131072, "max_concurrency": 8},
        "b": {"model": "n1"},
    }
    with ExitStack() as stack:
        lived = stack.enter_context(
            live(directory, tiers=tiers, spare=["m2"], router="receipt_headers = true", probe_interval_s="0.2")
        )
        gateway, operator, user = stack.enter_context(lived.serving())
        until(lambda: all(tier["ready"] for tier in operator.status()["tiers"]))
        yield Plane(lived, gateway, operator, user)


@pytest.mark.req("R20")
def test_the_list_of_models(plane: Plane) -> None:
    answer = plane.user.http.get("/v1/models").json()
    assert_shape(answer, {**MODELS, **FENCE})
    assert all(model["max_model_len"] == model["context_window"] for model in answer["data"])
    assert {model["id"]: model["context_window"] for model in answer["data"]} == {"x": 131072, "y": None}
    one = plane.user.http.get("/v1/models/x").json()
    assert_shape(one, MODELS["data"][0])


@pytest.mark.req("R20")
def test_the_status_of_an_operator_and_of_a_client(plane: Plane) -> None:
    whole = plane.operator.status()
    assert_shape(whole, STATUS)
    part = plane.user.http.get("/v1/router/status").json()
    assert all(not OPERATOR_ONLY & tier.keys() for tier in part["tiers"])
    tier = {name: shape for name, shape in TIER.items() if name not in OPERATOR_ONLY}
    hidden = {"ledger", "dropped_log_lines", "route_authority"}
    assert not hidden & part.keys()
    assert_shape(part, {name: shape for name, shape in STATUS.items() if name not in hidden} | {"tiers": [tier]})


@pytest.mark.parametrize("stream", [False, True])
def test_the_trace_of_a_request_and_its_headers_and_log_line(plane: Plane, stream: bool) -> None:
    request_id = f"shape-{stream}"
    answer = plane.user.ask("x", request_id, stream=stream, max_tokens=8192)
    assert answer.status_code == 200
    answer.read()
    assert answer.headers["x-request-id"] == request_id
    assert answer.headers["x-sndr-max-tokens-clamped"] == "8192->4096"
    assert answer.headers["x-sndr-route-revision"] == str(plane.operator.view()["route_revision"])
    assert answer.headers["x-sndr-route-sha256"] == plane.operator.view()["effective_route_sha256"]
    assert (answer.headers["x-sndr-alias"], answer.headers["x-sndr-tier"]) == ("x", "a")
    until(lambda: plane.user.http.get(f"/v1/requests/{request_id}").status_code == 200)
    for reader in (plane.user.http, plane.operator.http):
        until(lambda reader=reader: reader.get(f"/v1/requests/{request_id}").json()["ended_at"])
        assert_shape(reader.get(f"/v1/requests/{request_id}").json(), REQUEST)
    line = plane.gateway.wait_event(lambda line: line["event"] == "request" and line["id"] == request_id)
    assert_shape(line, LOG_LINE)


@pytest.mark.req("R51", "R93")
def test_the_tiers_of_an_operator(plane: Plane) -> None:
    call = plane.operator.call
    assert_shape(call("GET", "/v1/admin/tiers"), {"object": "list", "data": [TIER], **FENCE})
    refusal = refused("not_quiesced", 409, call, "POST", "/v1/admin/tiers/b/drain", {"timeout_s": 1})
    assert_shape(refusal, PROBLEM)
    quiesced = call("POST", "/v1/admin/tiers/b/quiesce", {"reason": "promotion"})
    assert_shape(quiesced, {**TIER, **FENCE})
    assert (quiesced["quiesced"], quiesced["quiesce_reason"], quiesced["admitting"]) == (True, "promotion", False)
    drained = call("POST", "/v1/admin/tiers/b/drain", {"timeout_s": 60})
    assert_shape(drained, {"drained": True, "timed_out": False, "tier": TIER, **FENCE})
    plane.live.servers["b"].set(health=503)
    assert_shape(refused("readmit_refused", 409, call, "POST", "/v1/admin/tiers/b/readmit", {}), PROBLEM)
    plane.live.servers["b"].set(health=200)
    readmitted = call("POST", "/v1/admin/tiers/b/readmit", {})
    assert_shape(readmitted, {"readmitted": True, "reason": "identity_passed", "tier": TIER, **FENCE})


def test_a_reconcile_of_the_ledger(plane: Plane) -> None:
    answer = plane.operator.call("POST", "/v1/admin/usage/reconcile", {"confirm": True})
    assert_shape(answer, {"reconciled": 0, "left": int, "runs": [object], **FENCE})


@pytest.mark.req("R92", "R93", "R106", "R107")
def test_previews_receipts_and_the_view(plane: Plane) -> None:
    operator = plane.operator
    assert_shape(operator.view(), VIEW)
    changes: list[dict[str, object]] = [
        {"op": "alias_update", "aliases": {"x": {"tier": "b"}}},
        {
            "op": "tier_replacement",
            "tiers": {"a": {"base_url": plane.live.servers["m2"].base_url, "model": "m2"}},
            "mode": "apply",
            "managed": False,
        },
        {"op": "rollback", "mode": "apply"},
        {"op": "tier_replacement", "tiers": {"a": {"max_concurrency": 4}}, "mode": "prepare"},
    ]
    for change in changes:
        preview = operator.preview(**change)
        assert_shape(preview, PREVIEW)
        receipt = operator.apply(preview, drain_timeout_s=60, verify_timeout_s=30)
        assert_shape(receipt, RECEIPT)
        assert_shape(operator.apply(preview), {**RECEIPT, "replayed": True})
        assert_shape(operator.view(), VIEW)
    assert_shape(
        operator.call("GET", "/v1/admin/routes/drain?timeout_s=1"), {"complete": True, "timed_out": False, **FENCE}
    )
    transaction = operator.view()["transaction"]["id"]
    for op in ("resume", "cancel"):
        preview = operator.preview(op=op, transaction_id=transaction)
        assert_shape(preview, PREVIEW)
    assert_shape(operator.apply(preview), {**RECEIPT, "state": "cancelled"})
    operator.change(op="alias_update", aliases={"x": {"tier": "a"}})
    assert_shape(operator.call("GET", "/v1/admin/routes/check"), {"result": "consistent", **FENCE})
    until(lambda: any(line["event"] == "transaction" for line in plane.gateway.lines))
    for line in plane.gateway.lines:
        if line["event"] == "transaction":
            assert_shape(line, {"at": AT, "level": str, "id": UUID, "op": str, "state": str, "code": str})


def test_every_refusal_of_the_management_api_is_a_problem(plane: Plane) -> None:
    http = plane.operator.http
    wanted = {
        "operator_required": plane.user.http.get("/v1/admin/routes"),
        "method_not_allowed": http.put("/v1/admin/routes"),
        "body_too_large": http.post("/v1/admin/routes/preview", content=b"a" * 70_000),
        "not_found": http.get("/v1/admin/nothing"),
        "invalid_change": http.post("/v1/admin/routes/preview", json={"op": "alias_update", "aliases": {"x": "b"}}),
    }
    shape = {"type": str, "title": str, "status": int, "detail": str, "code": str, "retryable": False}
    for code, answer in wanted.items():
        assert answer.headers["content-type"] == "application/problem+json", code
        assert_shape(answer.json(), {**shape, "code": code, "type": f"urn:sndr:router:problem:{code}"})
        assert answer.json()["status"] == answer.status_code
    assert "/aliases/x" in wanted["invalid_change"].json()["detail"]


@pytest.mark.req("R92")
def test_a_precondition_that_is_not_met_says_where_the_routes_are(plane: Plane) -> None:
    body = {"op": "alias_update", "aliases": {"y": {"tier": "a"}}}
    answer = plane.operator.http.post("/v1/admin/routes/preview", json=body, headers={"if-match": '"999999"'})
    assert answer.status_code == 412
    assert_shape(answer.json(), {**PROBLEM, "code": "precondition_failed"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-sndr-route-sha256"] == answer.json()["effective_route_sha256"]
    assert answer.headers["x-sndr-route-revision"] == str(answer.json()["route_revision"])


def test_the_etag_and_the_cache_of_every_admin_answer(plane: Plane) -> None:
    for path in ("/v1/admin/routes", "/v1/admin/tiers", "/v1/admin/routes/check", "/v1/admin/nothing"):
        answer = plane.operator.http.get(path)
        assert answer.headers["cache-control"] == "no-store", path
        assert answer.headers["x-request-id"], path
        assert answer.headers["etag"] == f'"{plane.operator.view()["route_revision"]}"', path


@pytest.mark.req("R116")
def test_the_names_and_labels_of_the_metrics(plane: Plane) -> None:
    plane.user.ask("x").read()
    change = {"op": "tier_replacement", "tiers": {"a": {"max_concurrency": 5}}}
    with plane.user.stream("x", tokens=3, stall_after=1):
        refused("drain_timeout", 504, plane.operator.change, {"drain_timeout_s": 1}, **change)
        text = plane.operator.http.get("/metrics").text  # one of them is there only while a person must choose
    plane.operator.recover("cancel")
    labels: dict[str, set[str]] = {}
    for name, inside in re.findall(r"^([a-z_]+)(?:\{(.*?)\})? [^ ]+$", text, re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r'([a-z_0-9]+)="', inside or ""))
    assert METRICS.keys() <= labels.keys(), METRICS.keys() - labels.keys()
    assert {name: labels[name] for name in METRICS} == METRICS


def _authentication(user: User) -> Any:
    return user.http.get("/v1/models", headers={"authorization": "Bearer wrong"})


OPENAI_ERRORS: list[tuple[int, str, str, Callable[[User], Any]]] = [
    (401, "authentication_error", "invalid_api_key", _authentication),
    (
        403,
        "permission_error",
        "operator_key_not_allowed",
        lambda user: user.http.post("/v1/chat/completions", json={"model": "x"}, headers=OPERATOR),
    ),
    (403, "permission_error", "operator_required", lambda user: user.http.get("/v1/admin/tiers", headers=CLIENT)),
    (404, "invalid_request_error", "model_not_found", lambda user: user.ask("nothing")),
    (404, "invalid_request_error", "not_found", lambda user: user.http.get("/v1/nothing")),
    (405, "invalid_request_error", "method_not_allowed", lambda user: user.http.get("/v1/chat/completions")),
    (400, "invalid_request_error", "invalid_json", lambda user: user.http.post("/v1/chat/completions", content=b"{")),
    (
        400,
        "invalid_request_error",
        "endpoint_not_served",
        lambda user: user.http.post("/v1/embeddings", json={"model": "x", "input": "a"}),
    ),
    (400, "invalid_request_error", "context_length_exceeded", lambda user: user.ask("x", max_tokens=200_000)),
    (
        415,
        "invalid_request_error",
        "unsupported_content_encoding",
        lambda user: user.http.post("/v1/chat/completions", content=b"{}", headers={"content-encoding": "br"}),
    ),
]


@pytest.mark.parametrize(("status", "kind", "code", "call"), OPENAI_ERRORS, ids=[row[2] for row in OPENAI_ERRORS])
def test_the_errors_of_inference(plane: Plane, status: int, kind: str, code: str, call: Callable[[User], Any]) -> None:
    answer = call(plane.user)
    assert answer.status_code == status, answer.text
    if answer.headers["content-type"] == "application/problem+json":
        assert_shape(answer.json(), {"code": code, "status": status})
        return
    error = {"message": str, "type": kind, "param": str | None, "code": code}
    assert_shape(answer.json(), {"error": error})


def test_an_error_in_the_dialect_of_messages(plane: Plane) -> None:
    answer = plane.user.http.post("/v1/messages", json={"model": "nothing", "max_tokens": 1, "messages": []})
    assert answer.status_code == 404
    assert_shape(answer.json(), {"type": "error", "error": {"type": "not_found_error", "message": str}})
