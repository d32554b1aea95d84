"""How the gateway's own addresses are written, and which URLs lead back to them."""

from __future__ import annotations

import pytest

from sndr.router.core.listener import (
    Listener,
    check_origin,
    check_proxy,
    is_loopback,
    is_own_listener,
    parse_listener,
)


@pytest.mark.parametrize(
    ("text", "host", "port", "path"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, None),
        ("[::1]:0", "::1", 0, None),
        ("Box-1.lan:65535", "box-1.lan", 65535, None),
        ("unix:/run/sndr.sock", None, None, "/run/sndr.sock"),
    ],
)
def test_an_address_is_read(text: str, host: str | None, port: int | None, path: str | None) -> None:
    assert parse_listener(text) == Listener(text, host, port, path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("unix:run/sock", "absolute path"),
        ("unix:/run/", "absolute path"),
        ("unix:/" + "x" * 107, "longer than the 107 bytes"),
        ("localhost", "must be host:port"),
        ("h:", "must be host:port"),
        ("h:80x", "must be host:port"),
        ("h:٨", "must be host:port"),
        ("h:123456", "must be host:port"),
        ("h:65536", "must be host:port"),
        ("::1:80", "in brackets"),
        ("[::1:80", "in brackets"),
        ("::1]:80", "in brackets"),
        ("[box]:80", "no IPv6 address between"),
        (":80", "must name a host"),
        ("a/b:80", "must name a host"),
        ("1.2.3:80", "must name a host"),
    ],
)
def test_what_is_no_address_is_said_to_be(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_listener(text)
    assert parse_listener("unix:/" + "x" * 106).path == "/" + "x" * 106


def test_proxies_are_addresses_networks_or_unix() -> None:
    for text in ("unix", "10.0.0.1", "10.0.0.0/8", "fd00::/8"):
        check_proxy(text)
    for text in ("10.0.0.1/8", "proxy.lan", ""):
        with pytest.raises(ValueError, match="names are not looked up"):
            check_proxy(text)


def test_origins_are_written_as_browsers_send_them() -> None:
    for text in ("*", "https://chat.example", "http://[::1]:3000", "http://h:65535"):
        check_origin(text)
    for text in ("chat.example", "HTTPS://h", "https://h/", "http://h:65536", "http://h:0"):
        with pytest.raises(ValueError, match="as browsers send it"):
            check_origin(text)
    for text in ("http://h:80", "https://h:443"):
        with pytest.raises(ValueError, match="must leave out"):
            check_origin(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.2:1", True),
        ("[::1]:1", True),
        ("unix:/s", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("box:1", False),
    ],
)
def test_only_this_machine_reaches_loopback(text: str, expected: bool) -> None:
    assert is_loopback(parse_listener(text)) is expected


@pytest.mark.parametrize(
    ("url", "text", "expected"),
    [
        ("http://localhost:80/v1", "127.0.0.1:80", True),
        ("http://[::1]:80/v1", "0.0.0.0:80", True),
        ("http://box:80/v1", "0.0.0.0:80", True),
        ("http://box:80/v1", "127.0.0.1:80", False),
        ("http://other:80/v1", "0.0.0.0:80", False),
        ("http://127.0.0.1:81/v1", "127.0.0.1:80", False),
        ("http://127.0.0.1:80/v1", "127.0.0.1:0", False),
        ("http://127.0.0.1:80/v1", "unix:/s", False),
    ],
)
def test_a_url_that_leads_back_is_recognised(url: str, text: str, expected: bool) -> None:
    assert is_own_listener(url, parse_listener(text), frozenset({"box"})) is expected
