"""Tests stay on this machine: a test process that connects anywhere else fails there and then."""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Callable
from typing import Any


def _is_here(address: Any) -> bool:
    host = address[0]
    try:
        return ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host in ("localhost", "")


def _guarded(connect: Callable[[socket.socket, Any], Any]) -> Callable[[socket.socket, Any], Any]:
    @functools.wraps(connect)
    def connect_here(sock: socket.socket, address: Any) -> Any:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address):
            raise AssertionError(f"a test leaves this machine: {address[0]}")
        return connect(sock, address)

    return connect_here


def stay_here() -> None:
    """From now on, for the life of this process.

    No audit hook: written in Python it may give the interpreter away in the middle of `sys.settrace`, and CPython 3.11
    then lets no other thread that coverage measures start.
    """
    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
