"""Tests stay on this machine: a test process that connects anywhere else fails there and then."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any


def _is_here(address: Any) -> bool:
    host = address[0]
    try:
        return ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host in ("localhost", "")


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect":
        return
    sock, address = arguments
    if sock.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address):
        raise AssertionError(f"a test leaves this machine: {address[0]}")


def stay_here() -> None:
    """From now on, for the life of this process."""
    sys.addaudithook(_listen)
