"""What the tests of the official SDKs share: what they ask and what they look at."""

from __future__ import annotations

from typing import Any

from tests.support.gateway import Gateway
from tests.support.raw import operator_get, wait_idle

HELLO: Any = [{"role": "user", "content": "hello"}]


def numbered(count: int) -> str:
    """The text of the synthetic server's first `count` tokens."""
    return "".join(f" t{number}" for number in range(count))


def row(gateway: Gateway, request_id: str | None) -> dict[str, Any]:
    """The trace of a request, once nothing runs any more."""
    wait_idle(gateway.url)
    found: dict[str, Any] = operator_get(gateway.url, f"/v1/requests/{request_id}")
    return found
