"""Who is at the other end: clients behind proxies that are believed, and browsers of other origins.

Both are decided once per request head; a gateway with neither configured never comes here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sndr.router.wire.http1 import RequestHead

__all__ = ["UNIX", "Cors", "Peer", "Proxies"]

UNIX: Final = "unix"
"""Stands in `trusted_proxies` for whoever connects through a unix socket."""

_ADDRESSES_MAX: Final = 64
_FIELD_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1024}")
_LITERAL: Final = re.compile(
    r"\[([0-9A-Fa-f]*:[0-9A-Fa-f:.]*)(?:%[^\]]*)?\](?::[0-9]{1,5})?"
    r"|([0-9.]+)(?::[0-9]{1,5})?"
    r"|([0-9A-Fa-f]*:[0-9A-Fa-f:.]*)(?:%.*)?"
)
_PREFLIGHT_AGE_S: Final = 600
_CLOSED: Final = ("/v1/admin", "/v1/router/", "/metrics")
"""Paths of those who run the gateway; no page of another origin is let at them."""
_EXPOSED: Final = (
    b"X-Request-Id, Request-Id, Retry-After, X-Sndr-Max-Tokens-Clamped, X-Sndr-Route-Revision, X-Sndr-Route-Sha256,"
    b" X-Sndr-Alias, X-Sndr-Tier, X-Sndr-Workload, X-Sndr-Length, X-Sndr-Mode, X-Sndr-Outcome, X-Sndr-Rule,"
    b" X-Sndr-Evidence-Tag, X-Sndr-Gap"
)
"""What a page may read of an answer beyond what browsers always show: all that is the gateway's own."""


class Peer(NamedTuple):
    """What is known of the other end.

    Attributes:
        address: Of the client, as far as it can be believed; None for a unix socket, and where nobody asked.
        scheme: How the client came: `http` or `https`; None where nobody asked.
        fields: Header lines that let a browser's page read the answer.
    """

    address: str | None
    scheme: str | None
    fields: bytes


class Proxies:
    """Reads `X-Forwarded-For` and `X-Forwarded-Proto` of proxies that are trusted, and of nobody else."""

    def __init__(self, trusted: Sequence[str]) -> None:
        """Take addresses and networks as `listener.check_proxy` accepts them."""
        self._unix = UNIX in trusted
        self._networks = [ip_network(entry) for entry in trusted if entry != UNIX]

    def look(self, head: RequestHead, peername: object, *, is_tls: bool) -> tuple[str | None, str]:
        """Address and scheme of the client.

        From the nearest proxy outwards: the first address that is not a trusted proxy's is the client's. What lies
        behind it could be anybody's claim and is not looked at.
        """
        scheme = "https" if is_tls else "http"
        address: str | None = None
        if isinstance(peername, tuple) and peername:
            found = _address(str(peername[0]))
            address = None if found is None else str(found)
            if found is None or not self._trusts(found):
                return address, scheme
        elif not self._unix:
            return None, scheme
        claims: list[bytes] = []
        for name, value, _ in head.headers:
            if name == b"x-forwarded-for":
                claims += value.split(b",")
        for claim in reversed(claims[-_ADDRESSES_MAX:]):
            claimed = _address(claim.strip().decode("latin-1"))
            if claimed is None:
                break
            address = str(claimed)
            if not self._trusts(claimed):
                break
        proto = head.fields.get(b"x-forwarded-proto", b"").rpartition(b",")[2].strip().lower()
        return address, proto.decode() if proto in (b"http", b"https") else scheme

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """A literal address, with or without brackets and port; IPv4 within IPv6 is IPv4, and a zone is left out."""
    match = _LITERAL.fullmatch(text)
    try:
        address = None if match is None else ip_address(match[1] or match[2] or match[3])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


class Cors:
    """Answers for pages of other origins."""

    def __init__(self, origins: Sequence[str]) -> None:
        """Take origins as browsers write them; `*` is every one."""
        self._any = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def fields(self, head: RequestHead) -> bytes:
        """Header lines of an answer; empty for paths that stay closed."""
        if head.path.startswith(_CLOSED):
            return b""
        origin = head.fields.get(b"origin")
        if self._any:
            allowed = b"*"
        elif origin is not None and origin in self._origins:
            allowed = origin
        else:
            return b"vary: Origin\r\n"
        return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\n%b" % (
            allowed,
            _EXPOSED,
            b"" if self._any else b"vary: Origin\r\n",
        )

    def preflight(self, head: RequestHead) -> bytes:
        """Header lines of the answer to OPTIONS."""
        fields = self.fields(head)
        if not fields.startswith(b"access-control-allow-origin"):
            return fields
        fields += b"access-control-allow-methods: GET, POST\r\naccess-control-max-age: %d\r\n" % _PREFLIGHT_AGE_S
        asked = head.fields.get(b"access-control-request-headers")
        if asked is not None and _FIELD_NAMES.fullmatch(asked) is not None:
            fields += b"access-control-allow-headers: %b\r\n" % asked
        return fields
