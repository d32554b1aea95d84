"""Where a TLS listener listens: every address that the host has and the machine can, or none."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from sndr.router.net.tls import TlsListener

BOTH = [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]


def listen(monkeypatch: pytest.MonkeyPatch, fault: int, family: int | None) -> tuple[int, list[socket.socket]]:
    """How many sockets the listener has, and all that were made; `family` cannot be had."""
    made: list[socket.socket] = []
    real = socket.create_server

    def create(address: Any, *, family: int, backlog: int) -> socket.socket:
        del address
        if family == refused or refused is None:
            raise OSError(fault, "no")
        made.append(real(("127.0.0.1", 0), backlog=backlog))
        return made[-1]

    async def main() -> int:
        async def found(*_: object, **__: object) -> list[Any]:
            return BOTH

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "getaddrinfo", found)
        anything: Any = None
        listener = await TlsListener.bind(loop, anything, anything, "name", 0, backlog=5, timeout_s=1)
        count = len(listener.sockets)
        listener.close()
        return count

    refused = family
    monkeypatch.setattr(socket, "create_server", create)
    try:
        return asyncio.run(main()), made
    except OSError:
        return 0, made


@pytest.mark.parametrize(
    ("fault", "family", "count"),
    [
        (0, -1, 2),
        (errno.EAFNOSUPPORT, socket.AF_INET6, 1),
        (errno.EAFNOSUPPORT, None, 0),
        (errno.EADDRINUSE, socket.AF_INET, 0),
    ],
)
def test_every_address_or_none(monkeypatch: pytest.MonkeyPatch, fault: int, family: int | None, count: int) -> None:
    listening, made = listen(monkeypatch, fault, family)
    assert listening == count
    assert [one.fileno() for one in made] == [-1] * len(made)
