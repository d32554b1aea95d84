"""What the gateway answers: paths, credentials, the order of refusals, and where a request goes from here.

An endpoint that is routed by alias is one row of `ROUTED`: its dialect, what a tier must serve, and how its path maps
to the server's. Everything else is answered here or handed to the management API.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from sndr.contract import degraded
from sndr.router.core.client_scope import may_use
from sndr.router.core.projection import TierTarget
from sndr.router.core.usage import Kind
from sndr.router.gateway.fence import Fence, read_fence
from sndr.router.gateway.journal import Journal, RequestLine
from sndr.router.gateway.peers import Cors, Peer, Proxies
from sndr.router.gateway.relay import ANY, Exchange, Upstream, refused_end, refused_row
from sndr.router.gateway.upload import FormRequest, Upload
from sndr.router.gateway.workload import Workload
from sndr.router.ports import ManagementRequest, ManagementResponse
from sndr.router.wire.openai_api import ChatRequest, Dialect, Refused, encode_error, parse

if TYPE_CHECKING:
    from sndr.contract import Table
    from sndr.router.core.admission import TierRuntime
    from sndr.router.core.snapshot import Snapshot
    from sndr.router.gateway.gate import DataGate
    from sndr.router.gateway.workload import Routing
    from sndr.router.net.flow import Ticker
    from sndr.router.net.server import Connection
    from sndr.router.ports import Ledger, ManagementApi, Metrics, Readiness, Spool, Thread
    from sndr.router.wire.http1 import RequestHead

__all__ = ["ROUTED", "Client", "Context", "Credentials", "Endpoint", "Gateway"]

MANAGEMENT_BODY_MAX: Final = 65_536
SETTLE_S: Final = 30.0
"""How long the disk may take for the last piece of a form."""
_CHAT: Final = Kind.CHAT.value
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Endpoint(NamedTuple):
    """A path that is routed by the alias in its body.

    Attributes:
        name: As in the ledger, the log and the metrics.
        serves: What the tier must list in `serves`, or `ANY`.
        dialect: Error bodies.
        upstream_path: Path after the tier's API prefix (or after its origin).
        purpose: Kind of the models outside the routes that are looked for first; `chat` where there are none.
        aliases: The alias is looked for as well.
        form: The body is a form, not JSON.
        at_origin: The path belongs to the server's origin, not to its API prefix.
        stream_options: The dialect has `stream_options.include_usage`.
        numbered: Events of a stream carry `sequence_number`.
    """

    name: str
    serves: str
    dialect: Dialect
    upstream_path: bytes
    purpose: str = Kind.CHAT.value
    aliases: bool = True
    form: bool = False
    at_origin: bool = False
    stream_options: bool = False
    numbered: bool = False


ROUTED: Final[Mapping[str, Endpoint]] = {
    "/v1/chat/completions": Endpoint("chat", "chat", Dialect.OPENAI, b"/chat/completions", stream_options=True),
    "/v1/completions": Endpoint("completions", "completions", Dialect.OPENAI, b"/completions", stream_options=True),
    "/v1/responses": Endpoint("responses", "responses", Dialect.RESPONSES, b"/responses", numbered=True),
    "/v1/messages": Endpoint("messages", "messages", Dialect.ANTHROPIC, b"/messages"),
    "/v1/messages/count_tokens": Endpoint("count_tokens", "messages", Dialect.ANTHROPIC, b"/messages/count_tokens"),
    "/v1/embeddings": Endpoint("embeddings", "embeddings", Dialect.OPENAI, b"/embeddings", Kind.EMBEDDING.value),
    "/v1/rerank": Endpoint("rerank", "rerank", Dialect.OPENAI, b"/rerank", Kind.RERANK.value),
    "/v1/audio/transcriptions": Endpoint(
        "transcriptions",
        "transcriptions",
        Dialect.OPENAI,
        b"/audio/transcriptions",
        Kind.STT.value,
        aliases=False,
        form=True,
    ),
    "/v1/audio/speech": Endpoint("speech", "speech", Dialect.OPENAI, b"/audio/speech", Kind.TTS.value, aliases=False),
    "/tokenize": Endpoint("tokenize", ANY, Dialect.OPENAI, b"/tokenize", at_origin=True),
    "/detokenize": Endpoint("detokenize", ANY, Dialect.OPENAI, b"/detokenize", at_origin=True),
}


class Client:
    """A caller with a credential.

    Attributes:
        id: As in the ledger and the log.
        max_concurrency: Requests at the same time; None is no limit.
        running: Requests now.
    """

    __slots__ = ("_globs", "_may", "id", "max_concurrency", "running")

    def __init__(self, client_id: str, globs: Sequence[str] | None, max_concurrency: int | None = None) -> None:
        self.id = client_id
        self.max_concurrency = max_concurrency
        self.running = 0
        self._globs = None if globs is None or "*" in globs else tuple(globs)
        self._may: dict[str, bool] = {}

    def may_use(self, alias: str) -> bool:
        """Whether the alias is among the client's; `alias` must be a configured one."""
        if self._globs is None:
            return True
        known = self._may.get(alias)
        if known is None:
            known = self._may[alias] = may_use(self._globs, alias)
        return known


class Credentials:
    """Who presents which secret. Secrets are kept as keyed digests, so that a look-up tells nothing by its timing."""

    def __init__(
        self, clients: Sequence[tuple[str, Client]], *, operator: str | None, metrics: str | None, anonymous: Client
    ) -> None:
        self._salt = os.urandom(16)
        self._clients = {self._digest(secret.encode()): client for secret, client in clients}
        self._operator = None if operator is None else self._digest(operator.encode())
        self._metrics = None if metrics is None else self._digest(metrics.encode())
        self.anonymous = anonymous

    @property
    def has_operator(self) -> bool:
        """Whether there is an operator credential; without one there are no admin paths."""
        return self._operator is not None

    @property
    def is_open(self) -> bool:
        """Whether inference needs no credential."""
        return not self._clients

    def identify(self, head: RequestHead) -> tuple[str | None, Client | None]:
        """Role and client of a request; the role is None when the credential is missing or wrong."""
        fields = head.fields
        authorization, api_key = fields.get(b"authorization"), fields.get(b"x-api-key")
        token = api_key
        if authorization is not None:
            scheme, _, token = authorization.partition(b" ")
            token = token.strip()
            if scheme.lower() != b"bearer" or not token:
                token = None
            elif api_key is not None and self._digest(api_key) != self._digest(token):
                return None, None
        if token is None:
            if authorization is None and not self._clients:
                return "client", self.anonymous
            return None, None
        digest = self._digest(token)
        client = self._clients.get(digest)
        if client is not None:
            return "client", client
        if digest == self._operator:
            return "operator", None
        if digest == self._metrics:
            return "metrics", None
        # Where no credential is asked for, one that means nothing here is no reason to refuse.
        return ("client", self.anonymous) if not self._clients else (None, None)

    def _digest(self, secret: bytes) -> bytes:
        return hashlib.blake2s(secret, digest_size=16, key=self._salt).digest()


class Context:
    """What is known of a request from its head on.

    Attributes:
        head: The head.
        request_id: Accepted from the client, or made.
        role: `client`, `operator`, `metrics` or None.
        client: For role `client`.
        client_id: Its id, `operator` or `metrics` for the others; empty when unknown.
        endpoint: For routed paths.
        kind: Value of the ledger's `kind`.
        upload: A body that is read by the way; closed with the request.
        dialect: Of error bodies.
        started: Loop time at the end of the head.
        wall_ms: Wall clock at the end of the head.
        request_bytes: Length of the body.
        family: The alias leads to a model family.
        routing: What was decided for it, where it is.
        peer: The other end, where proxies or other origins are configured.
    """

    __slots__ = ("client", "client_id", "counted", "dialect", "endpoint", "family", "head", "kind", "peer",
                 "request_bytes", "request_id", "role", "routing", "started", "upload", "wall_ms")  # fmt: skip

    def __init__(
        self,
        head: RequestHead,
        request_id: str,
        started: float,
        role: str | None = None,
        client: Client | None = None,
        endpoint: Endpoint | None = None,
        dialect: Dialect = Dialect.OPENAI,
    ) -> None:
        self.head = head
        self.request_id = request_id
        self.role = role
        self.client = client
        self.client_id = "" if client is None else client.id
        self.endpoint = endpoint
        self.dialect = dialect
        self.started = started
        self.wall_ms = time.time_ns() // 1_000_000
        self.request_bytes = 0
        self.counted = False
        self.kind = _CHAT
        self.upload: Upload | None = None
        self.family = False
        self.routing: Routing | None = None
        self.peer: Peer | None = None

    def release(self) -> None:
        """Give back the client's concurrency slot and the upload's file, if there are any."""
        if self.upload is not None:
            self.upload.close()
        if self.counted:
            self.counted = False
            assert self.client is not None
            self.client.running -= 1


def _given_id(head: RequestHead) -> str | None:
    given = head.fields.get(b"x-request-id")
    return given.decode() if given is not None and _REQUEST_ID.fullmatch(given) is not None else None


class _Accepted:
    """What followed from a head that was accepted, its length aside.

    Attributes:
        fence: What the client requires of the routes.
        sent: What the last tier's server got of it, for whom, and whether as for a family alias.
    """

    __slots__ = ("client", "endpoint", "fence", "peer", "request_id", "sent")

    def __init__(
        self, endpoint: Endpoint, client: Client, request_id: str | None, fence: Fence | None, peer: Peer | None
    ) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.client = client
        self.request_id = request_id
        self.fence = fence
        self.sent: tuple[Upstream, bool, bytes] | None = None


class Gateway:
    """The data plane: implements the server's `Application`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        gate: DataGate,
        ticker: Ticker,
        readiness: Readiness,
        credentials: Credentials,
        ledger: Ledger | None = None,
        metrics: Metrics | None = None,
        journal: Journal | None = None,
        management: ManagementApi | None = None,
        purposes: Mapping[tuple[str, str], TierRuntime] | None = None,
        spool: Callable[[], Spool] | None = None,
        spool_thread: Thread | None = None,
        max_body_bytes: int = 33_554_432,
        receipts: bool = False,
        proxies: Proxies | None = None,
        cors: Cors | None = None,
        decisions: Journal | None = None,
        renames: bool = False,
        table: Table | None = None,
    ) -> None:
        self._loop = loop
        self.gate: Final = gate
        self.ticker: Final = ticker
        self.readiness: Final = readiness
        self.credentials: Final = credentials
        self.ledger: Final = ledger
        self.metrics: Final = metrics
        self.journal: Final = journal
        self.management = management
        self.purposes: Final = purposes or {}
        self._spool = spool
        self._spool_thread = spool_thread
        self.receipts: Final = receipts
        self.decisions: Final = decisions
        self._proxies = proxies
        self._cors = cors
        self._looks: Final = proxies is not None or cors is not None
        self.renames: Final = renames
        self.workload: Final = Workload(
            degraded("there is no routing table") if table is None else table, self.can_take
        )
        self.exchanges: set[Exchange] = set()
        self.stopping = False
        self.time: Callable[[], float] = time.monotonic
        self._max_body_bytes = max_body_bytes
        self._created = int(time.time())
        # The form of a random UUID: there are model servers that answer 400 to any other.
        self._id_prefix = str(uuid.uuid4())[:-12]
        self._id_count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # -- Application ---------------------------------------------------------------------------------------------

    def accept_head(self, connection: Connection, head: RequestHead) -> int:
        """Check everything that needs no body, in the documented order."""
        memo = head.memo
        if memo is not None and not memo.endpoint.form and not self.stopping:
            # The same head as last time, but for its length: the same verdict.
            length = head.content_length
            if length is not None and length <= self._max_body_bytes:
                endpoint = memo.endpoint
                context = connection.context = Context(
                    head,
                    (memo.request_id if not head.own else _given_id(head)) or self._new_id(),
                    time.monotonic(),
                    "client",
                    memo.client,
                    endpoint,
                    endpoint.dialect,
                )
                context.peer = memo.peer
                if not endpoint.aliases:
                    context.kind = endpoint.purpose
                return self._max_body_bytes
        given_id = _given_id(head)
        context = connection.context = Context(head, given_id or self._new_id(), time.monotonic())
        path = head.path
        if self._looks:
            context.peer = self._look(connection, head)
            if self._cors is not None and head.method == "OPTIONS":
                self._preflight(connection, context, self._cors)
                return -1
        try:
            endpoint = ROUTED.get(path)
            if endpoint is None:
                return self._accept_other(context, path)
            context.dialect = endpoint.dialect
            self._authenticate(context)
            if context.role != "client":
                raise Refused(
                    403, "operator_key_not_allowed", "the operator's credential is not accepted for inference"
                )
            if head.method != "POST":
                raise Refused(405, "method_not_allowed", "this path takes POST", allow="POST")
            length = head.content_length
            if length is not None and length > self._max_body_bytes:
                raise Refused(413, "body_too_large", f"the body is larger than {self._max_body_bytes} bytes")
            coding = head.fields.get(b"content-encoding")
            if coding is not None and coding.lower() != b"identity":
                raise Refused(
                    415, "unsupported_content_encoding", "the body must not be encoded", param="content-encoding"
                )
            if self.stopping:
                raise Refused(503, "shutting_down", "the gateway is shutting down", retry_after_s=1)
            context.endpoint = endpoint
            if not endpoint.aliases:
                context.kind = endpoint.purpose
            if endpoint.form:
                assert self._spool is not None
                assert self._spool_thread is not None
                content_type = head.fields.get(b"content-type", b"")
                context.upload = Upload(self._spool_thread, connection, content_type, self._spool)
                connection.collect(context.upload)
            assert context.client is not None
            lasting_id = given_id if not head.own else None
            head.conclude(
                _Accepted(endpoint, context.client, lasting_id, read_fence(head), context.peer),
                everywhere=not self._looks,
            )
        except Refused as refused:
            self.refused(context, None, None, "refused", refused.status, refused.code)
            self.send_refusal(connection, context, refused)
            return -1
        return self._max_body_bytes

    def accept_request(self, connection: Connection, body: bytes | memoryview) -> None:
        """Answer a complete request."""
        context: Context = connection.context
        context.request_bytes = len(body)
        if context.endpoint is None:
            self._answer_other(connection, context, bytes(body))
            return
        upload = context.upload
        if upload is not None:
            waiting = _Settling(connection, self.time() + SETTLE_S, lambda: self._give_up(waiting, context))
            connection.answer_later(waiting)
            upload.settle(lambda: self._route_upload(waiting, context, upload))
            return
        try:
            request = parse(body)
        except Refused as refused:
            self.refused(context, None, None, "refused", refused.status, refused.code)
            self.send_refusal(connection, context, refused)
            return
        self._route(connection, context, request)

    def _route_upload(self, waiting: _Settling, context: Context, upload: Upload) -> None:
        """A form has arrived, and what is in a file is there."""
        connection = waiting.connection
        context.request_bytes = upload.length
        if connection is None:
            self.refused(context, None, None, "client_gone", None, None)
            return
        try:
            request = FormRequest(upload)
        except Refused as refused:
            self.refused(context, None, None, "refused", refused.status, refused.code)
            self.send_refusal(connection, context, refused)
            return
        self._route(connection, context, request)

    def _give_up(self, waiting: _Settling, context: Context) -> None:
        """The disk has not taken a form in time."""
        connection, waiting.connection = waiting.connection, None
        if connection is not None:
            refused = Refused(503, "upload_failed", "the upload cannot be kept", retry_after_s=5)
            self.refused(context, None, None, "refused", refused.status, refused.code)
            self.send_refusal(connection, context, refused)

    def _route(self, connection: Connection, context: Context, request: ChatRequest | FormRequest) -> None:
        """Find the model of a request whose body is read, and leave it to an exchange."""
        alias: str | None = None
        tier_id: str | None = None
        endpoint, client = context.endpoint, context.client
        assert endpoint is not None
        assert client is not None
        try:
            snapshot = self.gate.snapshot
            wanted = request.model
            if wanted not in snapshot.projection.aliases:
                wanted = wanted.strip().lower()
            purpose = endpoint.purpose
            special = self.purposes.get((purpose, wanted)) if purpose is not _CHAT else None
            if special is None and (not endpoint.aliases or wanted not in snapshot.projection.aliases):
                raise Refused(404, "model_not_found", "the model does not exist", param="model")
            alias = wanted
            if not client.may_use(alias):
                raise Refused(403, "model_not_allowed", "this credential may not use the model", param="model")
            if special is None:
                snapshot, tier_id, runtime = self.resolve(alias, context, request)
            else:
                if context.head.memo.fence is not None:
                    context.head.memo.fence.check(snapshot)
                tier_id, runtime, context.kind = special.tier_id, special, purpose
            self.check_request(context, request, runtime)
            if client.max_concurrency is not None:
                if client.running >= client.max_concurrency:
                    raise Refused(429, "queue_full", "this credential has too many requests running", retry_after_s=1)
                client.running += 1
                context.counted = True
            Exchange(self, connection, context, request, alias, tier_id, snapshot, runtime).begin()
        except Refused as refused:
            self.refused(context, alias, tier_id, "refused", refused.status, refused.code)
            receipt = b""
            if self.receipts and alias is not None and tier_id is not None:
                receipt = self.receipt_fields(context, snapshot, alias, tier_id)
            self.send_refusal(connection, context, refused, receipt=receipt)

    def refuse_malformed(self, connection: Connection, head: RequestHead | None, status: int, message: str) -> None:
        """A request that cannot be read."""
        context: Context | None = connection.context
        if head is None or context is None or context.head is not head:
            context = Context(_NO_HEAD, self._new_id(), time.monotonic())
        code = {413: "body_too_large", 503: "not_ready"}.get(status, "invalid_request")
        if status == 503 and context.upload is not None:
            code = "upload_failed"
        refused = Refused(status, code, message, retry_after_s=1 if status == 503 else None)
        self.refused(context, None, None, "refused", status, code)
        self.send_refusal(connection, context, refused, close=True)

    # -- shared with exchanges -----------------------------------------------------------------------------------

    def resolve(
        self, alias: str, context: Context, request: ChatRequest | FormRequest
    ) -> tuple[Snapshot, str, TierRuntime]:
        """The current snapshot, the tier that the alias selects, and its runtime: one consistent view.

        For a family alias the tier is decided here, from the request and the family's leases at this instant, and the
        decision is left in the context.

        Raises:
            Refused: 412, the routes are not those that the client requires.
        """
        snapshot = self.gate.snapshot
        fence: Fence | None = context.head.memo.fence
        if fence is not None:
            fence.check(snapshot)
        target = snapshot.projection.aliases[alias]
        if type(target) is TierTarget:
            tier_id = target.tier
            context.family, context.routing = False, None
        else:
            assert context.endpoint is not None
            assert isinstance(request, ChatRequest)
            context.family = True
            tier_id, context.routing = self.workload.choose(
                snapshot.families[alias], snapshot, context.endpoint.name, request, context.head
            )
        return snapshot, tier_id, snapshot.runtimes[tier_id]

    def falls_back(self, alias: str) -> bool:
        """Whether the alias asks for another tier where the chosen one cannot serve."""
        route = self.gate.snapshot.families.get(alias)
        return route is not None and bool(route.fallback_of)

    def can_take(self, runtime: TierRuntime) -> bool:
        """Whether the tier could start or queue a request now."""
        return (
            runtime.gate.refusal is None
            and self.readiness.is_ready(runtime.tier_id, runtime.generation)
            and not runtime.full
        )

    def check_request(self, context: Context, request: ChatRequest | FormRequest, runtime: TierRuntime) -> None:
        """What the tier's definition forbids.

        Raises:
            Refused: 400.
        """
        endpoint, spec, upstream = context.endpoint, runtime.spec, runtime.upstream
        assert endpoint is not None
        assert isinstance(upstream, Upstream)
        if endpoint.serves not in upstream.serves:
            raise Refused(400, "endpoint_not_served", "the model does not serve this endpoint", param="model")
        if endpoint.numbered and request.background:
            raise Refused(
                400, "invalid_request", "answers are bound to their connection: `background` is not accepted",
                param="background",
            )  # fmt: skip
        if request.has_tools and not spec.tool_support:
            raise Refused(400, "tools_unsupported", "the model does not support tools", param="tools")
        if request.max_tokens is not None:
            limit = self._context_limit(runtime)
            if limit is not None and request.max_tokens > limit:
                raise Refused(
                    400, "context_length_exceeded", f"more output tokens than the context holds ({limit})",
                    param="model",
                )  # fmt: skip

    def _context_limit(self, runtime: TierRuntime) -> int | None:
        limit = runtime.spec.context_limit
        if limit is not None and not isinstance(limit, int):
            return self.readiness.context_limit(runtime.tier_id, runtime.generation)
        return limit

    def refused(
        self, context: Context, alias: str | None, tier_id: str | None, outcome: str, status: int | None,
        code: str | None, snapshot: Snapshot | None = None,
    ) -> None:  # fmt: skip
        """Account for a request that never got a lease; `snapshot` is the one it was judged against."""
        if snapshot is None:
            snapshot = self.gate.snapshot
        total_s = time.monotonic() - context.started
        total_ms = int(total_s * 1000)
        endpoint = context.endpoint
        self.count_decision(context)
        if self.ledger is not None and endpoint is not None and context.client is not None:
            self.ledger.refuse(
                refused_row(context, alias, tier_id, total_ms, snapshot),
                refused_end(context, outcome, status, code, total_ms),
            )
        if self.metrics is not None:
            self.metrics.finished(
                alias or "", tier_id or "", endpoint.name if endpoint is not None else "", outcome, None, total_s,
                None, None, None,
            )  # fmt: skip
        if self.journal is not None:
            line = RequestLine(
                self.journal.timestamp(context.wall_ms + total_ms), "info", "request", context.request_id,
                context.client_id or None, endpoint.name if endpoint is not None else None, alias, tier_id,
                snapshot.route_revision, outcome, status, code, None, total_ms, None, None,
            )  # fmt: skip
            if context.peer is not None:
                line.address, line.scheme = context.peer.address, context.peer.scheme
            self.journal.request(line)
        if self.decisions is not None and endpoint is not None and context.client is not None:
            self.decide(context, alias, tier_id, snapshot, None, code or outcome)
        context.release()

    def decide(
        self,
        context: Context,
        alias: str | None,
        tier_id: str | None,
        snapshot: Snapshot,
        runtime: TierRuntime | None,
        decision: str,
    ) -> None:
        """Write down where a request was sent, or why it was not; only with a decision log."""
        decisions, endpoint, client = self.decisions, context.endpoint, context.client
        assert decisions is not None
        decisions.line(
            "route",
            id=context.request_id,
            client=None if client is None else client.id,
            endpoint=None if endpoint is None else endpoint.name,
            alias=alias,
            decision=decision,
            tier=tier_id,
            tier_generation=None if runtime is None else runtime.generation,
            route_revision=snapshot.route_revision,
            effective_route_sha256=snapshot.effective_route_sha256,
            routing=None if context.routing is None else msgspec.Raw(context.routing.text.encode()),
        )

    def send_refusal(
        self,
        connection: Connection,
        context: Context,
        refused: Refused,
        *,
        close: bool = False,
        on_length: Callable[[int], None] | None = None,
        snapshot: Snapshot | None = None,
        receipt: bytes = b"",
    ) -> None:
        """Write an error in the caller's dialect.

        Args:
            receipt: Header lines about the route that the request took as far as it came.
            on_length: Learns the length of its body before it is written.
            snapshot: The routes that the request was judged against; None is the current ones.
        """
        body = encode_error(context.dialect, refused.status, refused.code, refused.message, refused.param, refused.more)
        fields = b"content-type: %b\r\nx-request-id: %b\r\n" % (
            b"application/problem+json" if context.dialect is Dialect.PROBLEM else b"application/json",
            context.request_id.encode(),
        )
        fields += receipt or revision_field(self.gate.snapshot if snapshot is None else snapshot)
        if context.dialect is Dialect.ANTHROPIC:
            fields += b"request-id: %b\r\n" % context.request_id.encode()
        if refused.status == 412 and b"\r\nx-sndr-route-sha256:" not in fields:
            snapshot = self.gate.snapshot if snapshot is None else snapshot
            if snapshot.effective_route_sha256 is not None:
                fields += b"x-sndr-route-sha256: %b\r\n" % snapshot.effective_route_sha256.encode()
        if context.peer is not None:
            fields += context.peer.fields
        if refused.status == 401:
            fields += b"www-authenticate: Bearer\r\n"
        if refused.retry_after_s is not None:
            fields += b"retry-after: %d\r\n" % refused.retry_after_s
        if refused.allow is not None:
            fields += b"allow: %b\r\n" % refused.allow.encode()
        if on_length is not None:
            on_length(len(body))
        connection.respond(refused.status, fields, body, close=close)

    def count_decision(self, context: Context) -> None:
        """Count what was decided about a request that is over; nothing for other aliases than a family's."""
        routing = context.routing
        if routing is not None and self.metrics is not None:
            decision = routing.decision
            self.metrics.decided(decision.model_family, decision.outcome, decision.rule_id, decision.gap)

    def receipt_fields(self, context: Context, snapshot: Snapshot, alias: str, tier_id: str) -> bytes:
        """Header lines about the route that a request took."""
        fields = revision_field(snapshot)
        if self.receipts:
            fields += b"x-sndr-alias: %b\r\nx-sndr-tier: %b\r\n" % (alias.encode(), tier_id.encode())
            if snapshot.effective_route_sha256 is not None:
                fields += b"x-sndr-route-sha256: %b\r\n" % snapshot.effective_route_sha256.encode()
            if context.routing is not None:
                fields += context.routing.fields
        return fields

    def cut_all(self) -> int:
        """End every running exchange; returns how many there were."""
        running = tuple(self.exchanges)
        for exchange in running:
            exchange.cut()
        return len(running)

    # -- inside --------------------------------------------------------------------------------------------------

    def _new_id(self) -> str:
        self._id_count += 1
        return f"{self._id_prefix}{self._id_count:012x}"

    def _look(self, connection: Connection, head: RequestHead) -> Peer:
        address: str | None = None
        scheme: str | None = None
        if self._proxies is not None:
            address, scheme = self._proxies.look(head, connection.peername, is_tls=connection.is_tls)
        return Peer(address, scheme, b"" if self._cors is None else self._cors.fields(head))

    def _preflight(self, connection: Connection, context: Context, cors: Cors) -> None:
        """OPTIONS comes without credentials, by the browser's rules; its answer tells nothing that is not public."""
        fields = b"x-request-id: %b\r\n%b" % (context.request_id.encode(), cors.preflight(context.head))
        connection.start(204, fields, None)
        connection.end()

    def _authenticate(self, context: Context) -> None:
        role, client = self.credentials.identify(context.head)
        if role is None:
            raise Refused(401, "invalid_api_key", "a valid credential is required")
        context.role = role
        context.client = client
        context.client_id = client.id if client is not None else role

    def _accept_other(self, context: Context, path: str) -> int:
        head = context.head
        if path in ("/livez", "/readyz"):
            self._need_get(head)
            return 0
        admin = path.startswith("/v1/admin/") or path == "/v1/admin"
        if path.startswith("/v1/messages"):
            context.dialect = Dialect.ANTHROPIC
        elif path.startswith("/v1/models"):
            if b"anthropic-version" in head.fields:
                context.dialect = Dialect.ANTHROPIC
        elif admin or path.startswith("/v1/router/") or path == "/metrics":
            context.dialect = Dialect.PROBLEM
        if path == "/metrics" and self.credentials.is_open and head.fields.get(b"authorization") is None:
            context.role = "metrics"
            self._need_get(head)
            return 0
        self._authenticate(context)
        role = context.role
        if path.startswith("/v1/responses/"):
            raise Refused(404, "not_found", "answers are not kept: there is nothing under this id")
        if path == "/v1/models" or path.startswith("/v1/models/"):
            if role == "metrics":
                raise Refused(403, "model_not_allowed", "this credential may not list models")
            self._need_get(head)
            return 0
        if self.management is not None:
            if admin:
                if not self.credentials.has_operator:
                    raise _not_found()
                if role != "operator":
                    raise Refused(403, "operator_required", "the operator's credential is required")
                if head.content_length is not None and head.content_length > MANAGEMENT_BODY_MAX:
                    raise Refused(413, "body_too_large", f"the body is larger than {MANAGEMENT_BODY_MAX} bytes")
                return MANAGEMENT_BODY_MAX
            if path == "/metrics":
                if role == "client":
                    raise Refused(403, "operator_required", "the metrics credential is required")
                self._need_get(head)
                return 0
            if path == "/v1/router/status" or path.startswith("/v1/requests/"):
                if role == "metrics":
                    raise Refused(403, "operator_required", "this credential is only for metrics")
                self._need_get(head)
                return 0
        raise _not_found()

    @staticmethod
    def _need_get(head: RequestHead) -> None:
        if head.method not in ("GET", "HEAD"):
            raise Refused(405, "method_not_allowed", "this path takes GET", allow="GET, HEAD")
        if head.has_body and head.chunked:
            raise Refused(413, "body_too_large", "this path takes no body")

    def _answer_other(self, connection: Connection, context: Context, body: bytes) -> None:
        path = context.head.path
        try:
            if path == "/livez":
                self._answer(connection, context, 200, b"text/plain; charset=utf-8", b"ok\n")
            elif path == "/readyz":
                ready = not self.stopping
                self._answer(
                    connection, context, 200 if ready else 503, b"text/plain; charset=utf-8",
                    b"ready\n" if ready else b"stopping\n",
                )  # fmt: skip
            elif path.startswith("/v1/models"):
                fence = read_fence(context.head)
                if fence is not None:
                    fence.check(self.gate.snapshot)
                self._answer(connection, context, 200, b"application/json", self._models(context, path))
            else:
                self._manage(connection, context, body)
        except Refused as refused:
            self.send_refusal(connection, context, refused)

    def _answer(self, connection: Connection, context: Context, status: int, content_type: bytes, body: bytes) -> None:
        fields = b"content-type: %b\r\nx-request-id: %b\r\n" % (content_type, context.request_id.encode())
        fields += revision_field(self.gate.snapshot)
        if context.dialect is Dialect.ANTHROPIC:
            fields += b"request-id: %b\r\n" % context.request_id.encode()
        if context.peer is not None:
            fields += context.peer.fields
        connection.respond(status, fields, body)

    def _models(self, context: Context, path: str) -> bytes:
        snapshot = self.gate.snapshot
        anthropic = b"anthropic-version" in context.head.fields
        allowed = [
            alias for alias in snapshot.projection.aliases if context.client is None or context.client.may_use(alias)
        ]
        if path != "/v1/models":
            wanted = unquote(path[len("/v1/models/") :]).lower()
            if wanted not in allowed:
                raise Refused(404, "model_not_found", "the model does not exist", param="model")
            return msgspec.json.encode({**self._model(wanted, snapshot, anthropic=anthropic), **_fence(snapshot)})
        data = [self._model(alias, snapshot, anthropic=anthropic) for alias in allowed]
        answer: dict[str, Any]
        if anthropic:
            answer = {
                "data": data,
                "has_more": False,
                "first_id": allowed[0] if allowed else None,
                "last_id": allowed[-1] if allowed else None,
            }
        else:
            answer = {"object": "list", "data": data}
        return msgspec.json.encode({**answer, **_fence(snapshot)})

    def _model(self, alias: str, snapshot: Snapshot, *, anthropic: bool) -> dict[str, Any]:
        target = snapshot.projection.aliases[alias]
        tiers = (target.tier,) if isinstance(target, TierTarget) else snapshot.families[alias].serving
        runtimes = [snapshot.runtimes[tier_id] for tier_id in tiers]
        state = self.readiness.state(tiers[0], runtimes[0].generation)
        # What every one of them takes: a client cannot know which of them gets its request.
        window = _least(map(self._context_limit, runtimes))
        output = _least(runtime.spec.max_output_tokens for runtime in runtimes)
        if anthropic:
            return {
                "type": "model",
                "id": alias,
                "display_name": alias,
                "created_at": _instant(self._created),
                "lifecycle": "active",
                "max_input_tokens": window,
                "max_tokens": output,
            }
        return {
            "id": alias,
            "object": "model",
            "created": self._created,
            "owned_by": "sndr",
            "context_window": window,
            "max_model_len": window,
            "max_output_tokens": output,
            "ready": state.ready,
            "ready_checked_at": None if state.checked_at is None else _instant(state.checked_at),
        }

    def _manage(self, connection: Connection, context: Context, body: bytes) -> None:
        management = self.management
        assert management is not None
        head = context.head
        hidden = (b"authorization", b"x-api-key", b"cookie")
        headers: dict[str, str] = {}
        for name, value, _ in head.headers:
            if name not in hidden:
                headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        request = ManagementRequest(
            "GET" if head.method == "HEAD" else head.method,
            head.path,
            head.query,
            headers,
            body,
            context.role or "",
            context.client.id if context.client is not None else None,
        )
        waiting = _Waiting(connection)
        connection.answer_later(waiting)
        task = self._loop.create_task(self._managed(management, request, waiting, context))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _managed(
        self, management: ManagementApi, request: ManagementRequest, waiting: _Waiting, context: Context
    ) -> None:
        try:
            response = await management.handle(request)
        except Refused as refused:
            if waiting.connection is not None:
                self.send_refusal(waiting.connection, context, refused)
            return
        except Exception as error:  # noqa: BLE001 - the edge: whatever the control plane raises becomes a 500
            if self.journal is not None:
                self.journal.event("management_failure", level="error", path=request.path, error=type(error).__name__)
            response = ManagementResponse(
                500,
                (("content-type", "application/problem+json"),),
                encode_error(Dialect.PROBLEM, 500, "internal_error", "the request failed"),
            )
        if waiting.connection is None:
            return
        fields = b"".join(
            b"%b: %b\r\n" % (name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers
        )
        fields += b"x-request-id: %b\r\n%b" % (context.request_id.encode(), revision_field(self.gate.snapshot))
        if context.peer is not None:
            fields += context.peer.fields
        waiting.connection.respond(response.status, fields, response.body)


class _Waiting:
    """Responder of a management request: remembers whether the client is still there."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection

    def client_gone(self) -> None:
        self.connection = None

    def client_stalled(self) -> None:
        """The answer is one write; nothing to hold back."""

    def client_ready(self) -> None:
        """See `client_stalled`."""

    def delivered(self) -> None:
        self.connection = None

    def tick(self, now: float) -> None:
        """Management calls end by themselves."""


class _Settling(_Waiting):
    """Responder of a form whose last piece is being written."""

    __slots__ = ("_deadline", "_expired")

    def __init__(self, connection: Connection, deadline: float, expired: Callable[[], None]) -> None:
        super().__init__(connection)
        self._deadline = deadline
        self._expired = expired

    def tick(self, now: float) -> None:
        if now > self._deadline:
            self._expired()


class _NoHead:
    """Stands for the head of a request that could not be read."""

    fields: Mapping[bytes, bytes] = {}
    headers: tuple[tuple[bytes, bytes, bytes], ...] = ()
    method = ""
    path = ""
    query = ""


_NO_HEAD: Final[Any] = _NoHead()


def _fence(snapshot: Snapshot) -> dict[str, Any]:
    """Members of an answer that let consumers tell one set of routes from another; none without authority."""
    if snapshot.route_revision is None:
        return {}
    return {"route_revision": snapshot.route_revision, "effective_route_sha256": snapshot.effective_route_sha256}


def revision_field(snapshot: Snapshot) -> bytes:
    """The header line that names the revision of an answer's routes; empty without authority."""
    revision = snapshot.route_revision
    return b"" if revision is None else b"x-sndr-route-revision: %d\r\n" % revision


def _least(limits: Iterable[int | None]) -> int | None:
    """The smallest of the limits that are known."""
    return min((limit for limit in limits if limit is not None), default=None)


def _instant(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _not_found() -> Refused:
    return Refused(404, "not_found", "no such path")
