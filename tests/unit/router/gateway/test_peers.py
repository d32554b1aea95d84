"""What proxies say about a client: addresses as they are written, and nothing that only begins like one."""

from __future__ import annotations

from typing import Any

import pytest

from sndr.router.gateway.peers import Proxies

OWN = ("127.0.0.1", 1234)


class Head:
    """A head with these lines of `X-Forwarded-For`."""

    def __init__(self, *values: str) -> None:
        self.headers = [(b"x-forwarded-for", value.encode("latin-1"), b"") for value in values]
        self.fields: dict[bytes, bytes] = {}


def address(*values: str, peer: object = OWN) -> str | None:
    head: Any = Head(*values)
    return Proxies(["127.0.0.1", "10.0.0.0/8"]).look(head, peer, is_tls=False)[0]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("192.0.2.1", "192.0.2.1"), ("192.0.2.1:80", "192.0.2.1"), ("2001:DB8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"), ("[2001:db8::1]:443", "2001:db8::1"), ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1"), ("[fe80::1%25eth0]:1", "fe80::1"), (" 192.0.2.1\t", "192.0.2.1"),
    ],
)  # fmt: skip
def test_ways_to_write_an_address(said: str, meant: str) -> None:
    assert address(said) == meant
    assert address(f"203.0.113.9, {said}, 10.0.0.1") == meant
    assert address("203.0.113.9", said, "10.0.0.1, 10.0.0.2") == meant


@pytest.mark.parametrize(
    "said",
    ["", "unknown", "_hidden", "192.0.2.1%eth0", "192.0.2.1:http", "192.0.2.1:", "192.0.2.1:123456", "[192.0.2.1]",
     "[2001:db8::1", "2001:db8::1]", "[2001:db8::1]x", "[2001:db8::1]:", "192.0.2.1 x", "127.1", "0x7f.0.0.1", "1",
     "010.0.0.1", "192.0.2.256", '192.0.2.1"', "\xb9.2.3.4"],
)  # fmt: skip
def test_what_is_no_address_is_not_believed(said: str) -> None:
    """Nothing beyond it is either: the nearest proxy that could be read is what is known."""
    assert address(f"192.0.2.7, {said}") == "127.0.0.1"
    assert address(f"192.0.2.7, {said}, 10.0.0.1") == "10.0.0.1"


def test_only_trusted_peers_are_asked() -> None:
    assert address("192.0.2.1", peer=("198.51.100.1", 5)) == "198.51.100.1"
    assert address("192.0.2.1", peer=("::ffff:10.0.0.1", 5, 0, 0)) == "192.0.2.1"
    assert address("192.0.2.1", peer="") is None
