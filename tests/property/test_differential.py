"""What we accept of HTTP/1, h11 reads alike. For longer: `python -m tests.support.differential --seconds 1800`."""

from __future__ import annotations

import random

import pytest

from sndr.router.wire.http1 import RequestHead
from tests.support import differential


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_difference_without_a_reason(seed: int) -> None:
    report = differential.run(12_000, seed)
    assert report.unexplained == []
    assert report.accepted > 1000
    assert sum(report.excused.values()) < report.accepted / 10


def test_a_difference_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that takes the first of two lengths, say."""
    strict = RequestHead.__init__

    def lenient(self: RequestHead, line: object, headers: list[tuple[bytes, bytes, bytes]]) -> None:
        strict(self, line, [field for field in headers if field[0] != b"transfer-encoding"])  # type: ignore[arg-type]

    monkeypatch.setattr(RequestHead, "__init__", lenient)
    assert differential.run(12_000, 1).unexplained


def test_ends_are_exact() -> None:
    """The bytes that we take for a message are neither short nor long of it."""
    first = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX: y\r\n\r\n"
    second = b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n"
    chance = random.Random(1)
    for _ in range(200):
        found = differential.read_requests(differential.pieces(first + second, chance))
        assert [message.raw for message in found] == [first, second]
