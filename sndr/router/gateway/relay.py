"""One routed request from admission to its last byte.

An `Exchange` is called by the admission queue, the ledger, the upstream connection, the client's connection and the
ticker, always on the loop. It has one state; whatever ends it passes through `_finish`, once: the concurrency slot is
freed, the terminal row is handed to the ledger, the lease is released, in this order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sndr.router.core.admission import Lease, Refusal, TierRuntime
from sndr.router.core.projection import thaw
from sndr.router.core.usage import FinishRow, StartRow, refusal
from sndr.router.gateway.fence import FENCE_FIELDS
from sndr.router.gateway.journal import RequestLine
from sndr.router.gateway.workload import HINT_FIELDS
from sndr.router.net.upstream import Call, Failure
from sndr.router.wire.openai_api import Dialect, Refused, encode_error_event
from sndr.router.wire.sse import AnswerRename, EventRename, Scan, StreamTail, UsageFilter, scan_json

if TYPE_CHECKING:
    from sndr.router.core.projection import Tier
    from sndr.router.core.snapshot import Snapshot
    from sndr.router.gateway.endpoints import Context, Gateway
    from sndr.router.gateway.upload import FormRequest
    from sndr.router.net.server import Connection
    from sndr.router.net.upstream import UpstreamPool
    from sndr.router.wire.http1 import RequestHead, ResponseHead
    from sndr.router.wire.openai_api import ChatRequest, Piece

__all__ = ["ANY", "Exchange", "Timeouts", "Upstream"]

ANY: Final = "any"
"""What an endpoint asks a tier to serve when every server may be asked; the server itself says whether it can."""

RETRIES_MAX: Final = 3
"""How often a request resolves its alias again because the tier was replaced between two of its steps."""

EVIDENCE_S: Final = 0.1
"""How often the prober hears that a tier answers; it only asks whether that was within the last probe interval."""

RELAYED_STATUSES: Final = frozenset((400, 404, 409, 413, 415, 422, 429, 503))
WHOLE_MAX: Final = 32_768
"""Answers that arrive in one piece are read for their counts as they are, up to this size; of others the ends are."""

_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_SENT_ON: Final = _HOP_BY_HOP | {
    b"host", b"content-length", b"expect", b"accept-encoding", b"authorization", b"x-api-key", b"api-key", b"cookie",
    b"x-request-id", b"http2-settings", b"origin", b"forwarded", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-proto",
    b"x-forwarded-host", b"x-forwarded-port", *FENCE_FIELDS,
}  # fmt: skip
_NOT_SENT_BACK: Final = _HOP_BY_HOP | {
    b"content-length", b"x-request-id", b"request-id", b"set-cookie", b"location", b"refresh", b"www-authenticate",
    b"alt-svc", b"access-control-allow-origin", b"access-control-allow-credentials", b"access-control-expose-headers",
    b"access-control-allow-headers", b"access-control-allow-methods", b"access-control-max-age",
    b"access-control-allow-private-network", b"timing-allow-origin",
    b"x-sndr-route-revision", b"x-sndr-route-sha256", b"x-sndr-max-tokens-clamped", b"x-sndr-alias", b"x-sndr-tier",
    b"x-sndr-workload", b"x-sndr-length", b"x-sndr-mode", b"x-sndr-outcome", b"x-sndr-rule", b"x-sndr-evidence-tag",
    b"x-sndr-gap",
}  # fmt: skip
_ABSENT: Final = Scan()
_ANTHROPIC: Final = Dialect.ANTHROPIC  # an enum's member costs 0.3 us each time it is asked for by its class
_row: Final = tuple.__new__
"""Makes a named tuple from its members without the call in between that the class's own constructor would be."""


class Timeouts:
    """Deadlines of a tier in seconds."""

    __slots__ = ("admission_s", "first_byte_s", "idle_s", "total_s")

    def __init__(self, tier: Tier, defaults: Mapping[str, float]) -> None:
        self.admission_s = _seconds(tier.admission_timeout_ms, defaults["admission"])
        self.first_byte_s = _seconds(tier.first_byte_timeout_ms, defaults["first_byte"])
        self.idle_s = _seconds(tier.idle_timeout_ms, defaults["idle"])
        self.total_s = _seconds(tier.total_timeout_ms, defaults["total"])


def _seconds(given_ms: int | None, default_s: float) -> float:
    return default_s if given_ms is None else given_ms / 1000


class Upstream:
    """Everything about a tier that its definition decides, ready to be used per request.

    Attributes:
        pool: Connections to the tier's server.
        model: The served model's name as JSON; None leaves the client's name in place.
        force, default: `extra_body` and `extra_body_defaults`, each member as JSON.
        serves: Endpoint names.
        timeouts: Deadlines.
        is_probed: Readiness is known; False outside the routes, where nobody asks.
        evidence_due: From when on the next answer is told to the prober as a sign of life.
    """

    __slots__ = (
        "_base",
        "_origin_line",
        "_tail",
        "default",
        "evidence_due",
        "force",
        "is_probed",
        "model",
        "pool",
        "serves",
        "timeouts",
    )

    def __init__(
        self,
        tier: Tier,
        pool: UpstreamPool,
        *,
        host: str,
        prefix: str,
        credential: str | None,
        timeouts: Timeouts,
        is_probed: bool = True,
    ) -> None:
        self.is_probed = is_probed
        self.pool = pool
        self.timeouts = timeouts
        self.evidence_due = 0.0
        self.model = None if tier.model is None else msgspec.json.encode(tier.model)
        self.force = _members(tier.extra_body)
        self.default = _members(tier.extra_body_defaults)
        self.serves = frozenset(tier.serves) | {ANY}
        self._base = b"POST " + prefix.encode()
        self._origin_line = b"POST "
        tail = b" HTTP/1.1\r\nhost: " + host.encode() + b"\r\naccept-encoding: identity\r\n"
        if credential is not None:
            tail += b"authorization: Bearer " + credential.encode() + b"\r\n"
        self._tail = tail

    def request(self, context: Context, body: Sequence[Piece], more: int = 0) -> bytes:
        """Head and body as they go to the server; `more` bytes of the body follow from elsewhere."""
        head = context.head
        memo = head.memo
        sent: tuple[Upstream, bool, bytes] | None = memo.sent
        if sent is None or sent[0] is not self or sent[1] is not context.family:
            sent = memo.sent = (self, context.family, self._lasting(context))
        lines = sent[2]
        for name, _, line in head.own:
            if name not in _NOT_SENT_ON:
                lines += line
        length = sum(map(len, body)) + more
        own = b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (context.request_id.encode(), length)
        return b"".join((lines, own, *body))

    def _lasting(self, context: Context) -> bytes:
        """The lines that are the same for every head that repeats this one."""
        head, endpoint = context.head, context.endpoint
        assert endpoint is not None
        return b"%b%b%b%b%b" % (
            self._origin_line if endpoint.at_origin else self._base,
            endpoint.upstream_path,
            b"?" + head.query.encode() if head.query else b"",
            self._tail,
            _sent_on(head, HINT_FIELDS if context.family else frozenset()),
        )


def _upstream(runtime: TierRuntime) -> Upstream:
    upstream = runtime.upstream
    assert isinstance(upstream, Upstream)
    return upstream


def _sent_on(head: RequestHead, ours: frozenset[bytes]) -> bytes:
    """The client's fields that the server gets to see; none of `ours`."""
    dropped = _NOT_SENT_ON | head.options | ours
    return b"".join([line for name, _, line in head.lasting if name not in dropped])


def _members(value: Mapping[str, Any] | None) -> dict[str, bytes] | None:
    if not value:
        return None
    return {name: msgspec.json.encode(thaw(item)) for name, item in value.items()}


class _Passed:
    """What follows from an answer's head.

    Attributes:
        fields: Its lines that the client gets to see.
        is_stream, is_json: What the body is, where the gateway can read it.
    """

    __slots__ = ("fields", "is_json", "is_stream")

    def __init__(self, head: ResponseHead) -> None:
        dropped = _NOT_SENT_BACK | head.options
        self.fields = b"".join([line for name, _, line in head.headers if name not in dropped])
        content_type = head.fields.get(b"content-type", b"")[:17].lower()
        coding = head.fields.get(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            content_type = b""  # bytes that only the client can read: nothing is put into them, and none held back
        self.is_stream = content_type == b"text/event-stream"
        self.is_json = content_type[:16] == b"application/json"


# Where an exchange is.
_QUEUED, _STARTING, _SENT, _RELAYING, _ENDING, _OVER = range(6)


class Exchange:
    """A routed request. Implements `Waiter`, `UpstreamClient` and `Responder`."""

    __slots__ = (
        "_alias",
        "_answer",
        "_arrived",
        "_body",
        "_call",
        "_clamped",
        "_connection",
        "_context",
        "_deadline",
        "_error_code",
        "_first_byte_at",
        "_gateway",
        "_heard_at",
        "_hides_usage",
        "_key",
        "_lease",
        "_outcome",
        "_paused",
        "_request",
        "_resolves",
        "_response_bytes",
        "_retries",
        "_runtime",
        "_snapshot",
        "_state",
        "_status",
        "_stream",
        "_tail",
        "_tier_id",
        "_upstream",
    )  # fmt: skip

    def __init__(
        self,
        gateway: Gateway,
        connection: Connection,
        context: Context,
        request: ChatRequest | FormRequest,
        alias: str,
        tier_id: str,
        snapshot: Snapshot,
        runtime: TierRuntime,
    ) -> None:
        self._gateway = gateway
        self._connection = connection
        self._context = context
        self._request = request
        self._alias = alias
        self._tier_id = tier_id
        self._snapshot = snapshot
        self._runtime = runtime
        self._upstream = _upstream(runtime)
        self._lease: Lease | None = None
        self._call: Call | None = None
        self._body = b""
        self._clamped: bytes = b""
        self._key: int | None = None
        self._state = _QUEUED
        self._resolves = 0
        self._arrived = 0.0
        self._deadline = 0.0
        self._heard_at = 0.0
        self._first_byte_at: float | None = None
        self._retries = 0
        self._response_bytes = 0
        self._status: int | None = None
        self._error_code: str | None = None
        self._outcome = ""
        self._paused = False
        self._stream = False
        self._hides_usage = False
        self._tail: StreamTail | None = None
        self._answer = b""

    # -- admission -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask for admission.

        Raises:
            Refused: Before anything was counted.
        """
        self._connection.answer_later(self)
        # The wait begins when the whole request is here, and its body may have been long on its way.
        self._arrived = max(self._context.started, self._gateway.ticker.now)
        self._deadline = self._arrived + self._upstream.timeouts.admission_s
        try:
            self._acquire()
        except Refused:
            self._state = _OVER
            raise

    def _acquire(self) -> None:
        while True:
            runtime = self._runtime
            gate = runtime.gate
            if (
                not (gate.quiesced or gate.held)
                and not self._gateway.readiness.is_ready(self._tier_id, runtime.generation)
                and self._upstream.is_probed
            ):
                raise Refused(503, "not_ready", "the model server is not ready", retry_after_s=5)
            result = runtime.acquire(self)
            if isinstance(result, Lease):
                self.admitted(result)
                return
            if result is None:
                return
            if result is not Refusal.RETIRED:
                raise closed_error(result)
            self._resolve_again()

    def _resolve_again(self) -> None:
        self._resolves += 1
        if self._resolves >= RETRIES_MAX:
            raise Refused(503, "held", "the model is being changed", retry_after_s=1)
        self._resolve()

    def _resolve(self) -> None:
        self._snapshot, self._tier_id, self._runtime = self._gateway.resolve(self._alias, self._context, self._request)
        self._upstream = _upstream(self._runtime)
        self._gateway.check_request(self._context, self._request, self._runtime)

    def admitted(self, lease: Lease) -> None:
        """A lease was granted: write the start row, or go on without one."""
        gateway, context = self._gateway, self._context
        self._lease = lease
        now = gateway.time()
        queue_ms = int((now - self._arrived) * 1000)
        gateway.exchanges.add(self)
        if gateway.decisions is not None:
            gateway.decide(context, self._alias, self._tier_id, self._snapshot, self._runtime, "admitted")
        ledger = gateway.ledger
        if ledger is None:
            self._dispatch()
            return
        self._state = _STARTING
        snapshot, runtime = self._snapshot, self._runtime
        endpoint = context.endpoint
        assert endpoint is not None
        self._key = ledger.start(
            _row(
                StartRow,
                (
                    context.wall_ms,
                    context.request_id,
                    queue_ms,
                    context.request_bytes,
                    lease.admission_seq,
                    context.client_id,
                    context.kind,
                    endpoint.name,
                    1 if self._request.stream else 0,
                    self._alias,
                    self._tier_id,
                    runtime.generation,
                    snapshot.authority_id,
                    snapshot.route_revision,
                    snapshot.effective_route_sha256,
                    None if context.routing is None else context.routing.text,
                ),
            ),
            self._accounted,
        )

    def turned_away(self, refusal: Refusal) -> None:
        """The queue was emptied."""
        try:
            if refusal is Refusal.MOVED:
                self._resolve()
            elif refusal is Refusal.RETIRED:
                self._resolve_again()
            elif self._context.family and self._gateway.falls_back(self._alias):
                self._resolve()
            else:
                raise closed_error(refusal)
            self._acquire()
        except Refused as refused:
            self._refuse(refused)

    def _accounted(self, error: Exception | None) -> None:
        if self._state != _STARTING:
            return
        if error is not None:
            self._refuse(Refused(503, "accounting_unavailable", "usage cannot be recorded", retry_after_s=5))
            return
        self._dispatch()

    # -- upstream ------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        request, upstream, spec = self._request, self._upstream, self._runtime.spec
        limit = spec.max_output_tokens
        if limit is not None and request.max_tokens is not None and request.max_tokens > limit:
            self._clamped = b"x-sndr-max-tokens-clamped: %d->%d\r\n" % (request.max_tokens, limit)
        else:
            limit = None
        ask_usage = request.stream and spec.stream_usage and not request.include_usage and self._asks_usage
        body = request.pieces(
            upstream.model,
            force=upstream.force,
            default=upstream.default,
            output_limit=limit,
            ask_usage=ask_usage,
            without_hints=self._context.family,
        )
        self._hides_usage = ask_usage
        self._body = upstream.request(self._context, body, request.source_bytes)
        self._state = _SENT
        self._deadline = self._gateway.ticker.now + upstream.timeouts.first_byte_s
        self._call = upstream.pool.request(self, self._body, source=request.source)

    @property
    def _asks_usage(self) -> bool:
        endpoint = self._context.endpoint
        return endpoint is not None and endpoint.stream_options

    def response_head(self, head: ResponseHead, body: bytes, *, complete: bool) -> None:
        """The upstream answered."""
        gateway, context, connection = self._gateway, self._context, self._connection
        self._first_byte_at = gateway.time()
        self._body = b""
        status = head.status
        if not 200 <= status < 300 and status not in RELAYED_STATUSES:
            self._cancel_upstream()
            self._refuse(Refused(502, "upstream_error", "the model server failed"), outcome="upstream_error")
            return
        if status < 300:
            self._outcome = "completed"
            if self._first_byte_at >= self._upstream.evidence_due:
                self._show_life(self._first_byte_at)
        else:
            self._outcome = "upstream_error"
            self._error_code = "upstream_error"
        self._status = status
        passed: _Passed | None = head.memo
        if passed is None:
            passed = head.memo = _Passed(head)
        fields = b"%bx-request-id: %b\r\n%b" % (passed.fields, context.request_id.encode(), self._clamped)
        if context.dialect is _ANTHROPIC:
            fields += b"request-id: %b\r\n" % context.request_id.encode()
        if gateway.receipts or self._snapshot.route_revision is not None:
            fields += gateway.receipt_fields(context, self._snapshot, self._alias, self._tier_id)
        if context.peer is not None:
            fields += context.peer.fields
        length = head.content_length
        self._stream = is_stream = passed.is_stream
        if is_stream and not complete:
            length = None  # an event may be hidden, or be added where the stream breaks
        numbered = context.endpoint is not None and context.endpoint.numbered
        tail: StreamTail
        if gateway.renames and status < 300 and (is_stream or passed.is_json):
            name = msgspec.json.encode(self._alias)
            tail = (
                EventRename(name, hides_usage=self._hides_usage, numbered=numbered) if is_stream else AnswerRename(name)
            )
            length = None
        elif is_stream and self._hides_usage:
            tail = UsageFilter()
        elif complete and not is_stream and len(body) <= WHOLE_MAX and status != 204:
            # The whole answer is here and passes as it is.
            self._answer = body
            self._response_bytes = len(body)
            self._call = None
            self._state = _ENDING
            connection.respond(status, fields, body)
            return
        else:
            tail = StreamTail(numbered=numbered and is_stream)
        self._tail = tail
        self._state = _RELAYING
        self._heard_at = gateway.ticker.now
        if body:
            body = tail.feed(body)
        if complete:
            body += tail.flush()
            length = len(body)
        self._response_bytes = len(body)
        connection.start(status, fields, length, body)
        if complete:
            self._complete()

    def _show_life(self, now: float) -> None:
        """Tell the prober that the tier answers, now and then."""
        upstream = self._upstream
        if now >= upstream.evidence_due:
            upstream.evidence_due = now + EVIDENCE_S
            self._gateway.readiness.served(self._tier_id, self._runtime.generation)

    def response_data(self, data: bytes, chunk: bytes | None = None) -> None:
        """Bytes of the body."""
        tail = self._tail
        assert tail is not None
        self._heard_at = self._gateway.ticker.now
        passed = tail.feed(data)
        if passed:
            self._response_bytes += len(passed)
            self._connection.write(passed, chunk if passed is data else None)

    def response_end(self) -> None:
        """The upstream's body is complete."""
        self._complete()

    def _complete(self) -> None:
        self._call = None
        tail = self._tail
        assert tail is not None
        held = tail.flush()
        if held:
            self._response_bytes += len(held)
            self._connection.write(held)
        self._state = _ENDING
        self._connection.end()

    def upstream_failed(self, failure: Failure, *, may_retry: bool) -> None:
        """The upstream will not complete its response."""
        self._call = None
        if self._state == _SENT:
            if may_retry and not self._retries:
                self._retries = 1
                self._call = self._upstream.pool.request(self, self._body, source=self._request.source, fresh=True)
                return
            code, status, message = _FAILURES[failure]
            outcome = "upstream_reset" if failure is Failure.RESET else "upstream_error"
            self._refuse(Refused(status, code, message), outcome=outcome)
        elif self._state == _RELAYING:
            if failure is Failure.PROTOCOL:
                self._break_off("upstream_error", 502, "upstream_protocol", "the model server broke off its answer")
            else:
                self._break_off("upstream_reset", 502, "upstream_reset", "the model server broke off its answer")

    def _cancel_upstream(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    # -- the client's connection ---------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """The client left."""
        if self._state == _QUEUED and self._lease is None:
            self._runtime.leave(self)
            self._state = _OVER
            self._gateway.refused(self._context, self._alias, self._tier_id, "client_gone", None, None, self._snapshot)
            return
        self._cancel_upstream()
        if self._state != _OVER:
            if self._state != _ENDING or self._outcome == "completed":
                self._outcome = "client_gone"
                self._error_code = None
            self._finish()

    def client_stalled(self) -> None:
        """Stop reading from the upstream."""
        self._paused = True
        if self._call is not None:
            self._call.pause()

    def client_ready(self) -> None:
        """Read on."""
        self._paused = False
        self._heard_at = self._gateway.ticker.now
        if self._call is not None:
            self._call.resume()

    def delivered(self) -> None:
        """The socket has the last byte."""
        if self._state != _OVER:
            self._finish()

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look at deadlines."""
        state = self._state
        if state == _RELAYING:
            timeouts = self._upstream.timeouts
            if now - self._heard_at < 2 * EVIDENCE_S:
                self._show_life(now)
            if not self._paused and now - self._heard_at > timeouts.idle_s:
                self._time_out("the model server sent nothing for too long")
            elif now - self._context.started > timeouts.total_s:
                self._time_out("the answer took too long")
        elif state == _SENT:
            if now > self._deadline or now - self._context.started > self._upstream.timeouts.total_s:
                self._time_out("the model server did not answer in time")
        elif state == _QUEUED:
            if now > self._deadline and self._runtime.leave(self):
                self._refuse(Refused(503, "admission_timeout", "no slot became free in time", retry_after_s=1))
        elif state == _STARTING and now > self._deadline:
            self._refuse(Refused(503, "accounting_unavailable", "usage cannot be recorded", retry_after_s=5))

    def _time_out(self, message: str) -> None:
        self._cancel_upstream()
        if self._state == _SENT:
            self._refuse(Refused(504, "upstream_timeout", message), outcome="upstream_timeout")
        else:
            self._break_off("upstream_timeout", 504, "upstream_timeout", message)

    def cut(self) -> None:
        """The gateway stops: end now."""
        if self._state in (_QUEUED, _STARTING, _SENT):
            self._cancel_upstream()
            if self._state == _QUEUED:
                self._runtime.leave(self)
            self._refuse(
                Refused(503, "shutting_down", "the gateway is shutting down"),
                outcome="shutdown_cut" if self._lease is not None else "refused",
            )
        elif self._state == _RELAYING:
            self._cancel_upstream()
            self._break_off("shutdown_cut", 503, "shutting_down", "the gateway is shutting down")

    # -- the end -------------------------------------------------------------------------------------------------

    def _break_off(self, outcome: str, status: int, code: str, message: str) -> None:
        """End a response that has begun: an event where events can say it, else a cut connection."""
        self._cancel_upstream()
        self._outcome = outcome
        self._error_code = code
        self._state = _ENDING
        connection, tail, endpoint = self._connection, self._tail, self._context.endpoint
        assert tail is not None
        assert endpoint is not None
        if not self._stream:
            connection.cut()
            return
        event = encode_error_event(
            endpoint.dialect, status, code, message, tail.next_sequence_number() if endpoint.numbered else 0
        )
        if tail.ends_inside_event():
            event = b"\n\n" + event
        self._response_bytes += len(event)
        connection.write(event)
        connection.end(close=True)

    def _refuse(self, refused: Refused, *, outcome: str = "refused") -> None:
        """Answer with an error; nothing of a response has been written yet."""
        context = self._context
        lease = self._lease
        self._status = refused.status
        self._error_code = refused.code
        self._outcome = outcome
        if lease is None:
            self._state = _OVER
            self._gateway.refused(
                context, self._alias, self._tier_id, "refused", refused.status, refused.code, self._snapshot
            )
            self._gateway.send_refusal(
                self._connection, context, refused, snapshot=self._snapshot, receipt=self._receipt()
            )
            return
        self._state = _ENDING
        self._gateway.send_refusal(
            self._connection, context, refused, on_length=self._count_bytes, snapshot=self._snapshot,
            receipt=self._receipt(),
        )  # fmt: skip

    def _receipt(self) -> bytes:
        """Header lines of a refusal, where they are asked for."""
        gateway = self._gateway
        if not gateway.receipts:
            return b""
        return gateway.receipt_fields(self._context, self._snapshot, self._alias, self._tier_id)

    def _count_bytes(self, length: int) -> None:
        self._response_bytes = length

    def _finish(self) -> None:
        """Slot, row, lease: in this order, once."""
        self._state = _OVER
        gateway, context, lease = self._gateway, self._context, self._lease
        assert lease is not None
        gateway.exchanges.discard(self)
        lease.delivered()
        now = gateway.time()
        total_s = now - context.started
        first = self._first_byte_at
        first_s = None if first is None else first - context.started
        tail = self._tail
        if self._answer:
            scan = scan_json(self._answer)
        else:
            scan = _ABSENT if tail is None or not self._response_bytes else tail.scan(events=self._stream)
        prompt, completion, cached = scan.prompt_tokens, scan.completion_tokens, scan.cached_tokens
        first_ms = None if first_s is None else int(first_s * 1000)
        total_ms = int(total_s * 1000)
        wall_ms = context.wall_ms + total_ms
        if self._key is not None:
            assert gateway.ledger is not None
            gateway.ledger.finish(
                self._key,
                _row(
                    FinishRow,
                    (
                        wall_ms,
                        prompt,
                        completion,
                        cached,
                        first_ms,
                        total_ms,
                        self._response_bytes,
                        lease.next_release_seq(),
                        self._outcome,
                        self._status,
                        self._error_code,
                        scan.finish_reason,
                        "absent" if prompt is None else "upstream",
                        "absent" if completion is None else "upstream",
                        "absent" if cached is None else "upstream",
                        self._retries,
                    ),
                ),
            )
        lease.release()
        if context.routing is not None:
            gateway.count_decision(context)
        endpoint = context.endpoint
        assert endpoint is not None
        if gateway.metrics is not None:
            gateway.metrics.finished(
                self._alias, self._tier_id, endpoint.name, self._outcome, first_s, total_s, prompt, completion, cached
            )
        journal = gateway.journal
        if journal is not None:
            line = RequestLine(
                journal.timestamp(wall_ms), "info", "request", context.request_id, context.client_id,
                endpoint.name, self._alias, self._tier_id, self._snapshot.route_revision, self._outcome,
                self._status, self._error_code, first_ms, total_ms, prompt, completion,
            )  # fmt: skip
            if context.peer is not None:
                line.address, line.scheme = context.peer.address, context.peer.scheme
            journal.request(line)
        if context.counted or context.upload is not None:
            context.release()


_FAILURES: Final = {
    Failure.UNREACHABLE: ("upstream_unreachable", 502, "the model server cannot be reached"),
    Failure.EXHAUSTED: ("upstream_unreachable", 503, "the gateway has no free connection to the model server"),
    Failure.RESET: ("upstream_reset", 502, "the model server closed the connection without an answer"),
    Failure.PROTOCOL: ("upstream_protocol", 502, "the model server's answer cannot be read"),
    Failure.SOURCE: ("upload_failed", 503, "the upload cannot be read back"),
}


def closed_error(refusal_: Refusal) -> Refused:
    """The public error of a refusal by a gate."""
    if refusal_ is Refusal.QUIESCED:
        return Refused(503, "quiesced", "the model takes no new requests", retry_after_s=5)
    if refusal_ is Refusal.QUEUE_FULL:
        return Refused(429, "queue_full", "too many requests wait for this model", retry_after_s=1)
    return Refused(503, "held", "the model is being changed", retry_after_s=1)


def refused_row(context: Context, alias: str | None, tier_id: str | None, end_ms: int, snapshot: Snapshot) -> StartRow:
    """The start part of a request that never got a lease."""
    endpoint = context.endpoint
    assert endpoint is not None
    return StartRow(
        context.wall_ms, context.request_id, end_ms, context.request_bytes, None, context.client_id, context.kind,
        endpoint.name, 0, alias, tier_id, None, snapshot.authority_id, snapshot.route_revision,
        snapshot.effective_route_sha256, None if context.routing is None else context.routing.text,
    )  # fmt: skip


def refused_end(context: Context, outcome: str, status: int | None, code: str | None, total_ms: int) -> FinishRow:
    """The end part of a request that never got a lease."""
    return refusal(context.wall_ms + total_ms, status, code, total_ms, outcome)
