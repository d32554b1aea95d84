"""The management API: HTTP requests to commands, state to JSON. The data plane has authenticated whoever asks.

What a client may not see is left out here, in one place: addresses, observed names, reasons, the ledger, and the routes
of other clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import unquote

from sndr import __version__
from sndr.errors import ControlError, RequestError
from sndr.router.control.quiescence import Quiescence, ReadmitRefusedError
from sndr.router.control.routes import ChangeRefusedError, Routes
from sndr.router.core import projection
from sndr.router.core.admission import TierRuntime
from sndr.router.core.client_scope import may_use
from sndr.router.core.projection import target_json, tier_of
from sndr.router.metrics import CONTENT_TYPE, Family, Metrics
from sndr.router.ports import (
    EventLog,
    Gate,
    Ledger,
    ManagementRequest,
    ManagementResponse,
    Prober,
    Process,
    RoutingTableView,
)
from sndr.router.wire import operator_api as wire
from sndr.router.wire.boot import BootConfig

__all__ = ["Management"]

_MUTATIONS_MAX: Final = 4
_HIDDEN_FROM_CLIENTS: Final = frozenset({"base_url", "observed_models", "quiesce_reason"})
_TIER_COMMANDS: Final = frozenset({"quiesce", "drain", "readmit"})
_STANDINGS: Final = {"stopped": -1, "idle": 0, "held": 1, "committed": 2, "uncertain": 3}
"""Values of `sndr_route_state`."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """A JSON answer that is not bytes yet."""

    status: int
    document: Mapping[str, Any]
    headers: tuple[tuple[str, str], ...]


_Response = _Answer | ManagementResponse
_Handler = Callable[[ManagementRequest], Awaitable[_Response]]


class Management:
    """Answers `/v1/router/status`, `/v1/requests/{id}`, `/v1/admin/*` and `/metrics`."""

    def __init__(
        self,
        *,
        config: BootConfig,
        gate: Gate,
        prober: Prober,
        ledger: Ledger | None,
        metrics: Metrics,
        quiescence: Quiescence,
        process: Process,
        routing_table: RoutingTableView | None = None,
        audit: EventLog | None = None,
    ) -> None:
        """Make the API.

        Args:
            audit: Told of every call that asks for a change: who asked for what, and what came of it; never content.
        """
        self._audit = audit
        self._config = config
        self._gate = gate
        self._prober = prober
        self._ledger = ledger
        self._metrics = metrics
        self._quiescence = quiescence
        self._process = process
        self._table = routing_table
        self._globs = {client.id: tuple(client.aliases) for client in config.clients}
        self._has_operator = config.server.operator_auth_env is not None
        self._metrics_open = not config.clients and config.server.metrics_auth_env is None and not self._has_operator
        self._running = {"drain": 0, "other": 0}
        self._routes: Routes | None = None

    def use_routes(self, routes: Routes) -> None:
        """Answer for the live routes too."""
        self._routes = routes

    async def handle(self, request: ManagementRequest) -> ManagementResponse:
        """Answer one request; refusals are answers too."""
        before = self._gate.snapshot.route_revision
        answer = await self._answer(request)
        if self._audit is not None and request.method == "POST" and request.path.startswith("/v1/admin/"):
            # Whatever becomes of the record, the outcome is what it is.
            with contextlib.suppress(Exception):
                self._audit("management", _audit_record(request, answer, before, self._gate.snapshot.route_revision))
        return self._fenced(request, answer)

    async def _answer(self, request: ManagementRequest) -> _Response:
        try:
            return await self._route(request)
        except (RequestError, ControlError) as exc:
            extra: dict[str, object] = {}
            if isinstance(exc, ReadmitRefusedError):
                extra["reason"] = exc.observation.reason.value
            elif isinstance(exc, ChangeRefusedError):
                extra["findings"] = [
                    {"pointer": one.pointer, "code": one.code, "message": one.message} for one in exc.findings
                ]
            detail = exc.message if isinstance(exc, RequestError | ChangeRefusedError) else None
            return _problem(exc.code, detail, extra)

    def _fenced(self, request: ManagementRequest, answer: _Response) -> ManagementResponse:
        """The bytes; of an admin answer with the fence of the routes as they are now, and that as its entity tag."""
        if isinstance(answer, ManagementResponse):
            return answer
        if self._routes is None or request.role != "operator" or not request.path.startswith("/v1/admin"):
            return ManagementResponse(answer.status, answer.headers, wire.encode(answer.document))
        snapshot = self._gate.snapshot
        document = answer.document
        fence = {
            "route_revision": snapshot.route_revision,
            "effective_route_sha256": snapshot.effective_route_sha256,
        }
        standing = self._routes.standing() if answer.status >= 400 else {}
        headers = (*answer.headers, ("etag", f'"{snapshot.route_revision}"'))
        if answer.status == 412:
            headers = (*headers, ("x-sndr-route-sha256", snapshot.effective_route_sha256 or ""))
        return ManagementResponse(answer.status, headers, wire.encode({**document, **fence, **standing}))

    # -- routing ------------------------------------------------------------------------------------------------------

    async def _route(self, request: ManagementRequest) -> _Response:
        path = request.path
        if path == "/metrics":
            if request.role not in ("metrics", "operator") and not self._metrics_open:
                return _problem("operator_required")
            return await self._dispatch(request, {"GET": self._scrape})
        if path.startswith("/v1/admin/") or path == "/v1/admin":
            return await self._admin(request)
        if request.role == "metrics":
            return _problem("operator_required")
        if path == "/v1/router/status":
            return await self._dispatch(request, {"GET": self._status})
        if path.startswith("/v1/requests/") and len(path) > len("/v1/requests/"):
            return await self._dispatch(request, {"GET": self._trace})
        return _problem("not_found")

    async def _admin(self, request: ManagementRequest) -> _Response:
        if not self._has_operator:
            return _problem("not_found")
        if request.role != "operator":
            return _problem("operator_required")
        if request.path == "/v1/admin/tiers":
            return await self._dispatch(request, {"GET": self._list_tiers})
        if request.path == "/v1/admin/usage/reconcile":
            return await self._dispatch(request, {"POST": self._reconcile})
        if request.path == "/v1/admin/routes" or request.path.startswith("/v1/admin/routes/"):
            return await self._live(request)
        parts = request.path.split("/")
        if len(parts) == 6 and parts[3] == "tiers" and parts[5] in _TIER_COMMANDS:
            return await self._dispatch(request, {"POST": self._command_tier})
        return _problem("not_found")

    async def _dispatch(self, request: ManagementRequest, methods: Mapping[str, _Handler]) -> _Response:
        handler = methods.get(request.method)
        if handler is None:
            answer = _problem("method_not_allowed")
            allowed = ", ".join(sorted({*methods, *({"HEAD"} if "GET" in methods else ())}))
            return _Answer(answer.status, answer.document, (*answer.headers, ("allow", allowed)))
        waits = request.path.endswith(("/drain", "/check"))
        if request.method == "GET" and not waits:
            return await handler(request)
        kind = "drain" if waits else "other"
        if self._running[kind] >= _MUTATIONS_MAX:
            return _problem("management_busy")
        self._running[kind] += 1
        try:
            return await handler(request)
        finally:
            self._running[kind] -= 1

    # -- reads --------------------------------------------------------------------------------------------------------

    async def _status(self, request: ManagementRequest) -> _Response:
        is_operator = request.role == "operator"
        snapshot = self._gate.snapshot
        aliases = [name for name in snapshot.projection.aliases if is_operator or self._may_see(request, name)]
        tiers = self._tiers_of(aliases) if not is_operator else list(snapshot.runtimes)
        document: dict[str, Any] = {
            "object": "router.status",
            "version": __version__,
            "started_at": wire.instant(self._process.started_at),
            "uptime_s": self._process.uptime_s,
            "state": self._process.state,
            "listen": self._process.listen,
            "config_sha256": self._config.config_sha256,
            "aliases": {name: target_json(snapshot.projection.aliases[name]) for name in aliases},
            "tiers": [self.tier_view(tier_id, hide=not is_operator) for tier_id in tiers],
        }
        if is_operator:
            document["purpose_models"] = [_purpose(*key, runtime) for key, runtime in self._gate.purposes.items()]
            document["ledger"] = self._ledger_status()
            document["dropped_log_lines"] = self._process.dropped_log_lines
        table = None if self._table is None else await self._table.view()
        if table is not None and not is_operator:
            table = {name: table[name] for name in ("state", "content_sha256")}
        document["routing_table"] = table
        if self._routes is not None:
            document["route_revision"] = snapshot.route_revision
            document["effective_route_sha256"] = snapshot.effective_route_sha256
            if is_operator:
                document["route_authority"] = self._routes.status()
        return _json(document)

    async def _list_tiers(self, _request: ManagementRequest) -> _Response:
        return _json({"object": "list", "data": [self.tier_view(tier_id) for tier_id in self._gate.snapshot.runtimes]})

    async def _trace(self, request: ManagementRequest) -> _Response:
        request_id = unquote(request.path.removeprefix("/v1/requests/"))
        owner = None if request.role == "operator" else request.client_id
        if self._ledger is None or (request.role != "operator" and owner is None):
            return _problem("not_found")
        row = await self._ledger.trace(request_id, owner)
        return _problem("not_found") if row is None else _json(dict(row))

    async def _scrape(self, _request: ManagementRequest) -> _Response:
        body = await self._metrics.render(self._gauges())
        return ManagementResponse(200, (("content-type", CONTENT_TYPE), ("cache-control", "no-store")), body)

    # -- live routes --------------------------------------------------------------------------------------------------

    async def _live(self, request: ManagementRequest) -> _Response:
        if self._routes is None:
            return _problem("not_found")
        handlers: dict[str, Mapping[str, _Handler]] = {
            "": {"GET": self._view_routes},
            "/preview": {"POST": self._preview},
            "/apply": {"POST": self._apply},
            "/drain": {"GET": self._watch_drain},
            "/check": {"GET": self._check_routes},
        }
        methods = handlers.get(request.path.removeprefix("/v1/admin/routes"))
        return _problem("not_found") if methods is None else await self._dispatch(request, methods)

    async def _view_routes(self, _request: ManagementRequest) -> _Response:
        assert self._routes is not None
        return _json(self._routes.view())

    async def _preview(self, request: ManagementRequest) -> _Response:
        assert self._routes is not None
        self._require_match(request)
        return _json(await self._routes.preview(request.body))

    async def _apply(self, request: ManagementRequest) -> _Response:
        assert self._routes is not None
        self._require_match(request)
        return _json(await self._routes.apply(request.body))

    async def _watch_drain(self, request: ManagementRequest) -> _Response:
        assert self._routes is not None
        return _json(await self._routes.watch_drain(wire.parse_drain_query(request.query)))

    async def _check_routes(self, _request: ManagementRequest) -> _Response:
        assert self._routes is not None
        return _json(await self._routes.check())

    def _require_match(self, request: ManagementRequest) -> None:
        """`If-Match` is one more precondition; it never replaces the preview.

        Raises:
            ControlError: `precondition_failed`.
        """
        wanted = request.headers.get("if-match")
        if wanted is None or wanted.strip() == "*":
            return
        if f'"{self._gate.snapshot.route_revision}"' not in [tag.strip() for tag in wanted.split(",")]:
            raise ControlError("precondition_failed", "the current revision is another one")

    # -- commands -----------------------------------------------------------------------------------------------------

    async def _command_tier(self, request: ManagementRequest) -> _Response:
        _, _, _, _, name, command = request.path.split("/")
        tier_id = unquote(name)
        if tier_id not in self._gate.snapshot.runtimes:
            return _problem("not_found", "There is no tier with this name.")
        if command == "quiesce":
            quiesce = wire.parse_body(wire.Quiesce, request.body)
            await self._quiescence.quiesce(tier_id, quiesce.reason)
            return _json(self.tier_view(tier_id))
        if command == "drain":
            drain = wire.parse_body(wire.Drain, request.body)
            drained = await self._quiescence.drain(tier_id, drain.timeout_s)
            return _json({"drained": drained, "timed_out": not drained, "tier": self.tier_view(tier_id)})
        wire.parse_body(wire.Readmit, request.body)
        seen = await self._quiescence.readmit(tier_id)
        return _json({"readmitted": True, "reason": seen.reason.value, "tier": self.tier_view(tier_id)})

    async def _reconcile(self, request: ManagementRequest) -> _Response:
        body = wire.parse_body(wire.Reconcile, request.body)
        if not body.confirm:
            return _problem("confirmation_required")
        if self._ledger is None:
            return _problem("ledger_disabled")
        done = await self._ledger.reconcile()
        runs = [{**asdict(run), "started_at": wire.instant(run.started_at / 1000)} for run in done.runs]
        return _json({"reconciled": done.reconciled, "left": done.left, "runs": runs})

    # -- views --------------------------------------------------------------------------------------------------------

    def _may_see(self, request: ManagementRequest, alias: str) -> bool:
        globs = self._globs.get(request.client_id or "")
        return globs is None or may_use(globs, alias)

    def _tiers_of(self, aliases: Collection[str]) -> list[str]:
        snapshot = self._gate.snapshot
        named: set[str] = set()
        for name in aliases:
            family = snapshot.families.get(name)
            named.update((tier_of(snapshot.projection.aliases[name]),) if family is None else family.tiers)
        return [tier_id for tier_id in snapshot.runtimes if tier_id in named]

    def tier_view(self, tier_id: str, *, hide: bool = False) -> dict[str, Any]:
        """A tier as its operator sees it; `hide` leaves out what clients may not know."""
        runtime = self._gate.snapshot.runtimes[tier_id]
        spec, gate = runtime.spec, runtime.gate
        known = self._prober.state(tier_id, runtime.generation)
        view: dict[str, Any] = {
            "id": tier_id,
            "generation": runtime.generation,
            "base_url": spec.base_url,
            "model": spec.model,
            "serves": list(spec.serves),
            "ready": known.ready,
            "reason": known.reason.value,
            "checked_at": wire.instant(known.checked_at),
            "admitting": runtime.admitting,
            "quiesced": gate.quiesced,
            "quiesce_reason": gate.quiesce_reason,
            "held": gate.held,
            "in_flight": self._gate.leases(tier_id),
            "queued": runtime.queued,
            "max_concurrency": spec.max_concurrency,
            "context_limit": known.context_limit if spec.context_limit == projection.UPSTREAM else spec.context_limit,
            "observed_models": list(known.models),
        }
        return {key: value for key, value in view.items() if key not in _HIDDEN_FROM_CLIENTS} if hide else view

    def _ledger_status(self) -> dict[str, Any]:
        if self._ledger is None:
            return {"enabled": False, "unresolved": None, "lag_ms": None, "rows": None}
        status = self._ledger.status()
        return {"enabled": True, "unresolved": status.unresolved, "lag_ms": status.lag_ms, "rows": status.rows}

    def _gauges(self) -> list[Family]:
        gate, runtimes = self._gate, self._gate.snapshot.runtimes
        tier = ("tier",)
        every = [runtime for tier_id in runtimes for runtime in gate.runtimes_of(tier_id)]
        families = [
            Family("sndr_requests_in_flight", "gauge", "Requests that hold a lease.", tier,
                   [((name,), gate.leases(name)) for name in runtimes]
                   + [((runtime.tier_id,), runtime.leases) for runtime in gate.purposes.values()]),
            Family("sndr_queue_depth", "gauge", "Requests that wait for a slot.", tier,
                   [((runtime.tier_id,), runtime.queued)
                    for runtime in (*runtimes.values(), *gate.purposes.values())]),
            Family("sndr_tier_ready", "gauge", "1 when the tier may be chosen.", tier,
                   [((name,), float(self._prober.state(name, runtime.generation).ready))
                    for name, runtime in runtimes.items()]),
            Family("sndr_tier_quiesced", "gauge", "1 while the operator keeps new requests away.", tier,
                   [((name,), float(runtime.gate.quiesced)) for name, runtime in runtimes.items()]),
            Family("sndr_route_leases", "gauge", "Leases per generation of a tier.", ("tier", "generation"),
                   [((runtime.tier_id, str(runtime.generation)), runtime.leases) for runtime in every]),
            Family("sndr_connections", "gauge", "Open connections.", ("side",),
                   [((side,), count) for side, count in gate.connections().items()]),
            Family("sndr_log_lines_dropped_total", "counter", "Log lines that nobody took.", ("log",),
                   [((name,), count) for name, count in self._process.dropped_log_lines.items()]),
            Family("sndr_build_info", "gauge", "The running release.", ("version",), [((__version__,), 1)]),
            Family("sndr_config_info", "gauge", "The boot configuration.", ("sha256",),
                   [((self._config.config_sha256,), 1)]),
        ]  # fmt: skip
        info = None if self._table is None else self._table.info()
        if info is not None:
            families.append(
                Family("sndr_routing_table_info", "gauge", "The routing table.", ("sha256", "state"),
                       [((info[0] or "", info[1]), 1)])
            )  # fmt: skip
        if self._routes is not None:
            families += _route_gauges(self._routes, gate)
        if self._ledger is not None:
            status, open_rows = self._ledger.status(), self._ledger.unresolved(None).by_tier
            families += [
                Family("sndr_ledger_lag_seconds", "gauge", "Age of the oldest row part that is not durable yet.", (),
                       [((), status.lag_ms / 1000)]),
                Family("sndr_ledger_failures_total", "counter", "Row parts that could not be written.", (),
                       [((), status.failures)]),
                Family("sndr_ledger_bytes", "gauge", "Size of the ledger's files.", (), [((), status.bytes)]),
                Family("sndr_usage_unresolved", "gauge", "Started requests without a durable end.", tier,
                       [((name,), open_rows.get(name, 0)) for name in sorted({*runtimes, *open_rows})]),
            ]  # fmt: skip
        return families


def _audit_record(
    request: ManagementRequest, answer: _Response, before: int | None, after: int | None
) -> dict[str, object]:
    """Metadata of one call: ids, codes and numbers."""
    document = answer.document if isinstance(answer, _Answer) else {}
    return {
        "call": request.path.removeprefix("/v1/admin/"),
        "op": document.get("op"),
        "preview_sha256": document.get("preview_sha256") or wire.named_preview(request.body),
        "transaction_id": document.get("transaction_id"),
        "status": answer.status,
        "code": document.get("code") if answer.status >= 400 else None,
        "revision_before": before,
        "revision_after": after,
        "credential": request.role,
    }


def _route_gauges(routes: Routes, gate: Gate) -> list[Family]:
    snapshot, standing = gate.snapshot, routes.standing()
    attention = standing["attention"]
    return [
        Family("sndr_route_revision", "gauge", "The published revision.", (), [((), snapshot.route_revision or 0)]),
        Family("sndr_route_state", "gauge", "0 idle, 1 held, 2 committed, 3 uncertain, -1 stopped.", (),
               [((), _STANDINGS[standing["state"]])]),
        Family("sndr_route_info", "gauge", "The published routes.", ("sha256", "authority"),
               [((snapshot.effective_route_sha256 or "", snapshot.authority_id or ""), 1)]),
        Family("sndr_route_held", "gauge", "1 while a transaction keeps new requests away.", ("tier",),
               [((name,), float(runtime.gate.held)) for name, runtime in snapshot.runtimes.items()]),
        Family("sndr_route_attention", "gauge", "1 while a person must choose.", ("code",),
               [] if attention is None else [((attention,), 1)]),
        Family("sndr_route_writes_total", "counter", "Durable writes of the authority.", ("result",),
               [((result,), count) for result, count in sorted(routes.writes.items())]),
    ]  # fmt: skip


def _purpose(kind: str, name: str, runtime: TierRuntime) -> dict[str, Any]:
    return {
        "id": runtime.tier_id,
        "kind": kind,
        "name": name,
        "base_url": runtime.spec.base_url,
        "model": runtime.spec.model,
        "in_flight": runtime.leases,
        "queued": runtime.queued,
        "max_concurrency": runtime.spec.max_concurrency,
    }


def _json(document: Mapping[str, Any]) -> _Answer:
    return _Answer(200, document, (("content-type", "application/json"), ("cache-control", "no-store")))


def _problem(code: str, detail: str | None = None, extra: Mapping[str, object] | None = None) -> _Answer:
    headers = (("content-type", "application/problem+json"), ("cache-control", "no-store"))
    return _Answer(wire.PROBLEMS[code].status, wire.problem(code, detail, extra), headers)
