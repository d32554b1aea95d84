"""Words for the tables: what a case is, and the well-formed request that each case spoils in one place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tests.support.raw import KEY
from tests.support.raw_upstream import Step

__all__ = ["AUTH", "BODY", "HALF_CLOSE", "Case", "Lie", "chunks", "get", "post", "refused"]

BODY: Final = b'{"model":"m","messages":[]}'
AUTH: Final = b"Authorization: Bearer " + KEY.encode()
HALF_CLOSE: Final = "half close"
"""The client shuts its sending side."""


@dataclass(frozen=True)
class Case:
    """Bytes to the gateway.

    Attributes:
        name: What is odd about them.
        sends: Bytes, seconds to wait, `HALF_CLOSE`.
        statuses: Of every response, 1xx included, in order.
        closes: Whether the gateway then closes. If not, the connection must serve another request. None: either.
        code: Of the last response's error.
        reaches: How many requests reach the model server.
        arrives: The body of the last one.
        path: And its request target.
        head: No response has a body.
    """

    name: str
    sends: tuple[bytes | float | str, ...]
    statuses: tuple[int, ...] = (400,)
    closes: bool | None = True
    code: str | None = None
    reaches: int = 0
    arrives: bytes | None = None
    path: str | None = None
    head: bool = False


@dataclass(frozen=True)
class Lie:
    """Bytes from a model server.

    Attributes:
        name: What is odd about them.
        steps: What the server does once it has the request. `SMUGGLED` in it must never reach a client.
        status: What the client gets.
        code: Of the error in its body, or in the one event of its stream.
        body: Exactly the body that the client gets; None does not say.
        outcome: In the ledger.
        stream: Whether the request asks for a stream.
        drops: The gateway closes its connection to the server.
        cut: The client's response is not complete, which it can see from the framing.
        fields: Response fields that the client must get, with their values; None: must not get.
        retries: How often the request may be repeated, once.
    """

    name: str
    steps: tuple[Step, ...]
    status: int = 502
    code: str | None = None
    body: bytes | None = None
    outcome: str | None = None
    stream: bool = False
    drops: bool = True
    cut: bool = False
    fields: tuple[tuple[str, str | None], ...] = ()
    retries: int = 0


def post(
    *lines: bytes,
    start: bytes = b"POST /v1/chat/completions HTTP/1.1",
    host: bytes | None = b"Host: gateway",
    auth: bytes | None = AUTH,
    length: bool = True,
    body: bytes = BODY,
) -> bytes:
    """A request that is served, but for what the arguments change; `lines` come before the length."""
    head = [start, *([host] if host is not None else []), *([auth] if auth is not None else []), *lines]
    if length:
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*head, b"", body])


def get(path: bytes, *lines: bytes, method: bytes = b"GET", auth: bytes | None = AUTH) -> bytes:
    """A request without a body."""
    return post(*lines, start=b"%b %b HTTP/1.1" % (method, path), auth=auth, length=False, body=b"")


def chunks(*parts: bytes, last: bytes = b"0\r\n\r\n") -> bytes:
    """A chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + last


def refused(status: int, cases: Iterable[tuple[str, bytes]]) -> list[Case]:
    """Requests that get one response and lose their connection."""
    return [Case(name, (data,), (status,)) for name, data in cases]
