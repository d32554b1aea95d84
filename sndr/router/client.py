"""Door: a blocking client of a running gateway's management API.

It talks to one address only: no proxy, no redirect, a bounded answer, and a timeout that is longer than what the
gateway itself allows, so that a deadline is normally the gateway's word and not ours.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import httpx

from sndr.errors import ControlError, InputError, SndrError

if TYPE_CHECKING:  # the boot file's models cost a fifth of a second, and a verb with --url reads none
    from sndr.router.wire.boot import BootConfig

__all__ = [
    "DEFAULT_URL",
    "OPERATOR_TOKEN_ENV",
    "Answer",
    "Client",
    "Fence",
    "Fenced",
    "RefusedError",
    "TransportError",
    "UnsettledError",
    "address_of",
]

DEFAULT_URL: Final = "http://127.0.0.1:8710"
OPERATOR_TOKEN_ENV: Final = "SNDR_ROUTER_OPERATOR_TOKEN"  # noqa: S105 - the name of a variable
ANSWER_MAX_BYTES: Final = 1_048_576
"""The largest answer shows an authority file (256 KiB) and 64 tiers, each with what its server advertises (8 KiB)."""
_MARGIN_S: Final = 10.0
_CONNECT_S: Final = 5.0
_APPLY_OVERHEAD_S: Final = 30.0
_FENCED_ATTEMPTS: Final = 10


class TransportError(SndrError):
    """No answer was had; whether the gateway acted is unknown, unless nothing was `sent`."""

    def __init__(self, code: str, message: str, *, sent: bool = True) -> None:
        super().__init__(code, message)
        self.sent = sent


class RefusedError(ControlError):
    """The gateway answered with an error.

    Attributes:
        status: HTTP status.
        body: The answer, as JSON; empty when it was none.
    """

    def __init__(self, status: int, code: str, message: str, body: Mapping[str, Any]) -> None:
        super().__init__(code, message)
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: its exact bytes, and the same as JSON."""

    raw: bytes
    document: Any


class UnsettledError(ControlError):
    """The routes changed during every attempt at a fenced read, or the gateway has none to fence with."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What identifies the routes that were in force: the history, the place in it, and the content.

    Attributes:
        authority_id: None where the credential is a client's, which is not shown it.
    """

    authority_id: str | None
    route_revision: int
    effective_route_sha256: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """An observation, and the one set of routes that was in force while it was made."""

    answer: Answer
    fence: Fence


def address_of(config: BootConfig) -> str:
    """Where a gateway with this configuration is reached from its own machine: its first listener, as URL."""
    listener = config.listeners[0]
    if listener.path is not None:
        return f"unix:{listener.path}"
    scheme = "https" if config.server.tls_cert is not None else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.host or "", listener.host or "")  # noqa: S104 - compared
    return f"{scheme}://[{host}]:{listener.port}" if ":" in host else f"{scheme}://{host}:{listener.port}"


def _check_url(url: str) -> None:
    """A credential travels to this address: it must be this machine, a private network, or TLS.

    Raises:
        InputError: `invalid_url`.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as exc:
        raise InputError("invalid_url", "--url is not a URL with a valid host and port") from exc
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError("invalid_url", "--url must be http://HOST:PORT, https://HOST:PORT or unix:/PATH")
    if parts.path not in ("", "/"):
        raise InputError("invalid_url", "--url takes no path; the verbs know the paths")
    if parts.scheme == "https":
        return
    try:
        found = {
            str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        }
    except OSError as exc:
        raise TransportError("unreachable", f"the host of {url} cannot be resolved", sent=False) from exc
    if not all(
        ipaddress.ip_address(address).is_private or ipaddress.ip_address(address).is_loopback for address in found
    ):
        raise InputError("invalid_url", "--url without TLS must be loopback, a private address or a unix socket")


def _verification(tls_cert: str | None) -> ssl.SSLContext:
    if tls_cert is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(tls_cert)
    except (OSError, ssl.SSLError) as exc:
        raise InputError("tls_unusable", f"server.tls_cert: {tls_cert}: cannot be read as PEM certificates") from exc
    return context


class Client:
    """One gateway, one credential. Use as a context manager."""

    def __init__(self, url: str, token: str | None, *, tls_cert: str | None = None) -> None:
        """Prepare to talk; nothing is sent yet.

        Args:
            url: ``http(s)://host:port`` or ``unix:/path``.
            tls_cert: The gateway's own certificate: it and nothing else is accepted, whatever name is in it. Absent:
                the system's authorities (or `SSL_CERT_FILE`) and the name in the URL decide.

        Raises:
            InputError: `invalid_url`, `tls_unusable`.
            TransportError: The host has no address.
        """
        self.url = url
        self._is_plain = url.startswith("http:")
        uds = url.removeprefix("unix:") if url.startswith("unix:") else None
        if uds is None:
            _check_url(url)
        self._http = httpx.Client(
            base_url="http://localhost" if uds is not None else url,
            transport=httpx.HTTPTransport(uds=uds) if uds is not None else None,
            verify=_verification(tls_cert) if url.startswith("https:") else False,
            headers={"accept": "application/json", **({"authorization": f"Bearer {token}"} if token else {})},
            trust_env=False,
            follow_redirects=False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def status(self) -> Answer:
        """``GET /v1/router/status``."""
        return self.call("GET", "/v1/router/status")

    def models(self) -> Answer:
        """``GET /v1/models``."""
        return self.call("GET", "/v1/models")

    def tiers(self) -> Answer:
        """``GET /v1/admin/tiers``."""
        return self.call("GET", "/v1/admin/tiers")

    def quiesce(self, tier_id: str, reason: str | None = None) -> Answer:
        """Stop new requests to a tier."""
        body = {} if reason is None else {"reason": reason}
        return self.call("POST", f"/v1/admin/tiers/{quote(tier_id, safe='')}/quiesce", body)

    def drain(self, tier_id: str, timeout_s: int) -> Answer:
        """Wait until a quiesced tier is idle."""
        path = f"/v1/admin/tiers/{quote(tier_id, safe='')}/drain"
        return self.call("POST", path, {"timeout_s": timeout_s}, bound_s=timeout_s)

    def readmit(self, tier_id: str) -> Answer:
        """Open a tier again, after a fresh probe by the gateway."""
        return self.call("POST", f"/v1/admin/tiers/{quote(tier_id, safe='')}/readmit", {})

    def reconcile(self) -> Answer:
        """Close the usage rows of runs that are proven dead."""
        return self.call("POST", "/v1/admin/usage/reconcile", {"confirm": True}, bound_s=60)

    def routes(self) -> Answer:
        """``GET /v1/admin/routes``."""
        return self.call("GET", "/v1/admin/routes")

    def preview(self, change: Mapping[str, Any]) -> Answer:
        """``POST /v1/admin/routes/preview``: what a change would do. Changes nothing."""
        return self.call("POST", "/v1/admin/routes/preview", change, bound_s=60)

    def apply(
        self, preview_id: str, sha256: str, *, confirm: bool, drain_timeout_s: int = 60, verify_timeout_s: int = 30
    ) -> Answer:
        """``POST /v1/admin/routes/apply``: do what a preview said. The same call again answers with its receipt."""
        body = {
            "preview_id": preview_id,
            "preview_sha256": sha256,
            "confirm": confirm,
            "drain_timeout_s": drain_timeout_s,
            "verify_timeout_s": verify_timeout_s,
        }
        # the target is proven before the commit and again after it
        bound = drain_timeout_s + 2 * verify_timeout_s + _APPLY_OVERHEAD_S
        return self.call("POST", "/v1/admin/routes/apply", body, bound_s=bound)

    def drain_wait(self, timeout_s: int) -> Answer:
        """``GET /v1/admin/routes/drain``: wait for the drain of the change at hand. Changes nothing."""
        return self.call("GET", f"/v1/admin/routes/drain?timeout_s={timeout_s}", bound_s=timeout_s)

    def check_authority(self) -> Answer:
        """``GET /v1/admin/routes/check``: compare the authority file with the gateway's memory of it."""
        return self.call("GET", "/v1/admin/routes/check")

    def read_fenced(self, observe: Callable[[Client], Answer], *, attempts: int = _FENCED_ATTEMPTS) -> Fenced:
        """A live observation that belongs to one set of routes.

        Reads the status, the observation and the status again, and takes the observation only if all three carry the
        same fence. Revisions never come back, so nothing was published between the two statuses.

        Args:
            observe: Reads what is wanted (`Client.models`, `Client.tiers`); its answer carries the fence as members.
            attempts: How often to start over while routes change.

        Raises:
            UnsettledError: `fence_missing` where an answer has no fence (the gateway has no route authority, or the
                observation is none of live state); `fence_unsettled` when no attempt saw one set of routes.
            RefusedError: The gateway answered with an error.
            TransportError: There was no whole answer.
        """
        before = _status_fence(self.status())
        for _ in range(attempts):
            answer = observe(self)
            after = _status_fence(self.status())
            if before == after and _is_under(answer.document, after):
                return Fenced(answer, after)
            before = after
        raise UnsettledError("fence_unsettled", f"the routes changed during each of {attempts} reads")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, bound_s: float = 30) -> Answer:
        """One request.

        Args:
            bound_s: Longest time that the gateway may take by its own rules.

        Raises:
            RefusedError: The gateway answered with an error.
            TransportError: There was no whole answer.
        """
        timeout = httpx.Timeout(bound_s + _MARGIN_S, connect=_CONNECT_S)
        deadline = time.monotonic() + bound_s + _MARGIN_S
        try:
            with self._http.stream(method, path, json=body, timeout=timeout) as response:
                raw = bytearray()
                for piece in response.iter_bytes():
                    raw += piece
                    if len(raw) > ANSWER_MAX_BYTES:
                        raise TransportError("answer_too_large", f"the answer of {self.url} is too large")
                    if time.monotonic() > deadline:  # httpx bounds each read; a peer may send a byte now and then
                        raise TransportError("timeout", f"{self.url} did not answer in time")
        except (httpx.ConnectTimeout, httpx.ConnectError) as exc:
            raise TransportError("unreachable", f"{self.url} cannot be reached{_tls_reason(exc)}", sent=False) from exc
        except httpx.TimeoutException as exc:
            raise TransportError("timeout", f"{self.url} did not answer in time") from exc
        except httpx.HTTPError as exc:
            hint = " (where the gateway speaks TLS, its address begins with https://)" if self._is_plain else ""
            raise TransportError("broken_answer", f"{self.url} broke off its answer{hint}") from exc
        document = _decode(bytes(raw))
        if response.status_code != 200:
            raise self._refusal(response.status_code, document)
        if document is None:
            raise TransportError("broken_answer", f"{self.url} answered with something that is not JSON")
        return Answer(bytes(raw), document)

    def _refusal(self, status: int, document: Any) -> SndrError:
        """Problem+json of the management paths, or the error body of the OpenAI paths; both have a code."""
        body = document if isinstance(document, dict) else {}
        error = body.get("error")
        inner: Mapping[str, Any] = error if isinstance(error, dict) else body
        code = inner.get("code")
        if not isinstance(code, str):
            return TransportError(
                "broken_answer", f"{self.url} answered {status}, and not as the gateway does: is it what listens there?"
            )
        detail = inner.get("detail") or inner.get("message") or inner.get("title")
        return RefusedError(status, code, detail if isinstance(detail, str) else f"the gateway answered {status}", body)


def _fence_of(document: Any, authority_id: object) -> Fence:
    """The fence that an answer carries as its members.

    Raises:
        UnsettledError: `fence_missing`.
    """
    members = document if isinstance(document, dict) else {}
    revision, sha256 = members.get("route_revision"), members.get("effective_route_sha256")
    if type(revision) is not int or not isinstance(sha256, str) or not isinstance(authority_id, str | None):
        raise UnsettledError("fence_missing", "the answer carries no route_revision and effective_route_sha256")
    return Fence(authority_id, revision, sha256)


def _status_fence(answer: Answer) -> Fence:
    authority = answer.document.get("route_authority") if isinstance(answer.document, dict) else None
    return _fence_of(answer.document, authority.get("authority_id") if isinstance(authority, dict) else None)


def _is_under(document: Any, fence: Fence) -> bool:
    """Whether an observation was made under these routes; it need not repeat the authority's id."""
    own = document.get("authority_id") if isinstance(document, dict) else None
    return _fence_of(document, fence.authority_id if own is None else own) == fence


def _decode(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _tls_reason(error: BaseException | None) -> str:
    """What TLS said, where it was TLS that failed: the address is then right, the scheme or the certificate is not."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if error is None:
        return ""
    reason = getattr(error, "verify_message", None)
    return f" over TLS ({reason})" if reason else " over TLS"
