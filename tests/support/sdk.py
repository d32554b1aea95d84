"""What the tests of the official SDKs share: what they ask and what they look at."""

from __future__ import annotations

import json
from typing import Any

from tests.support.gateway import Gateway
from tests.support.raw import operator_get, wait_idle

_HEAD = """
[server]
listen = ["127.0.0.1:0"]
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"
SERVER

[[server.clients]]
id = "sdk"
auth_env = "CLIENT_KEY"
aliases = ALIASES

[router]
probe_interval_s = 0.2
first_byte_timeout_s = 3
idle_timeout_s = 3
"""

HELLO: Any = [{"role": "user", "content": "hello"}]


def boot_for(aliases: list[str], routes: str, server: str = "") -> str:
    """A boot file for one client that may use these aliases; `server` is one more line for the server."""
    return _HEAD.replace("ALIASES", json.dumps(aliases)).replace("SERVER", server) + routes


def numbered(count: int) -> str:
    """The text of the synthetic server's first `count` tokens."""
    return "".join(f" t{number}" for number in range(count))


def row(gateway: Gateway, request_id: str | None) -> dict[str, Any]:
    """The trace of a request, once nothing runs any more."""
    wait_idle(gateway.url)
    found: dict[str, Any] = operator_get(gateway.url, f"/v1/requests/{request_id}")
    return found
