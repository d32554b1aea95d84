"""The gateway's own addresses: how they are written, who can reach them, and whether a URL leads back to one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final

from sndr.router.core.projection import Endpoint, Overlap, compare_endpoints, endpoint

__all__ = ["Listener", "check_origin", "check_proxy", "is_loopback", "is_own_listener", "parse_listener"]

_UNIX_PATH_MAX: Final = 107
_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[1-9][0-9]{0,4}))?"
)
_HOST_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on: TCP (`host`, `port`; port 0 takes a free one) or a unix socket (`path`)."""

    text: str
    host: str | None
    port: int | None
    path: str | None


def parse_listener(text: str) -> Listener:
    """Read ``host:port``, ``[v6]:port`` or ``unix:/path``.

    Raises:
        ValueError: with a text that completes "listen …".
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or path.endswith("/"):
            raise ValueError("must be unix: and an absolute path")
        if len(path.encode()) > _UNIX_PATH_MAX:
            raise ValueError(f"has a path longer than the {_UNIX_PATH_MAX} bytes that a unix socket allows")
        return Listener(text, None, None, path)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise ValueError("must be host:port, [v6]:port or unix:/path, with a port from 0 to 65535")
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise ValueError("must write an IPv6 address in brackets")
    bare = host.removeprefix("[").removesuffix("]").lower()
    if host.startswith("["):
        try:
            ip_address(bare)
        except ValueError as exc:
            raise ValueError("has no IPv6 address between the brackets") from exc
    elif not bare or not set(bare) <= _HOST_CHARACTERS or (bare.replace(".", "").isdigit() and not _is_address(bare)):
        raise ValueError("must name a host or an address before the port")
    return Listener(text, bare, int(port), None)


def check_proxy(text: str) -> None:
    """Judge an entry of `trusted_proxies`: an address, a network, or ``unix``.

    Raises:
        ValueError: with a text that completes "trusted_proxies …".
    """
    if text == "unix":
        return
    try:
        ip_network(text)
    except ValueError as exc:
        raise ValueError(
            "must be an address, a network such as 10.0.0.0/8 without host bits, or unix; names are not looked up"
        ) from exc


def check_origin(text: str) -> None:
    """Judge an entry of `allow_origins`: ``*``, or an origin exactly as browsers send it.

    Raises:
        ValueError: with a text that completes "allow_origins …".
    """
    if text == "*":
        return
    match = _ORIGIN.fullmatch(text)
    if match is None or int(match["port"] or 1) > 65535:
        raise ValueError('must be "*" or an origin as browsers send it: scheme://host[:port], lower case')
    if (match["scheme"], match["port"]) in (("http", "80"), ("https", "443")):
        raise ValueError(f"must leave out :{match['port']}, which browsers do for {match['scheme']}")


def is_loopback(listener: Listener) -> bool:
    """Whether only this machine can reach the listener."""
    if listener.host is None:
        return True
    if _is_address(listener.host):
        return ip_address(listener.host).is_loopback
    return _endpoint(listener.host, 1).host == "loopback"


def is_own_listener(url: str, listener: Listener, own_hosts: frozenset[str] = frozenset()) -> bool:
    """Whether a URL that `projection.parse` accepts leads to the listener, whatever its spelling.

    All loopback addresses count as one. A listener on every address is reached through loopback and `own_hosts`.

    Args:
        own_hosts: Further names and addresses of this machine.
    """
    if listener.host is None or not listener.port:
        return False
    theirs = endpoint(url)
    mine = [_endpoint(listener.host, listener.port)]
    if _is_address(listener.host) and ip_address(listener.host).is_unspecified:
        mine += [_endpoint(host, listener.port) for host in own_hosts]
    return any(compare_endpoints(theirs, one) is Overlap.SAME for one in mine)


def _endpoint(host: str, port: int) -> Endpoint:
    return endpoint(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
