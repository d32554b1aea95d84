"""What the tests of the official SDKs share: a gateway that is left idle and unbroken, and what they look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.gateway import Gateway, gateway_process
from tests.support.raw import operator_get, wait_idle

HELLO: Any = [{"role": "user", "content": "hello"}]


@contextmanager
def sdk_gateway(boot: str, directory: Path) -> Iterator[Gateway]:
    """Serve a boot file; at the end it is idle, nothing has failed inside, and it stops cleanly."""
    path = directory / "gateway.toml"
    path.write_text(boot)
    with gateway_process(path) as process:
        yield process
        wait_idle(process.url)
        assert not [line for line in process.lines if line["event"] == "internal_error"]
        assert process.stop() == 0


def numbered(count: int) -> str:
    """The text of the synthetic server's first `count` tokens."""
    return "".join(f" t{number}" for number in range(count))


def row(gateway: Gateway, request_id: str | None) -> dict[str, Any]:
    """The trace of a request, once nothing runs any more."""
    wait_idle(gateway.url)
    found: dict[str, Any] = operator_get(gateway.url, f"/v1/requests/{request_id}")
    return found
