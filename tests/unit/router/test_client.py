"""The client door against a peer that answers raw bytes."""

from __future__ import annotations

import contextlib
import inspect
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sndr.errors import InputError
from sndr.router import client as door
from sndr.router.client import ANSWER_MAX_BYTES, Client, RefusedError, TransportError, address_of
from sndr.router.wire import boot, operator_api


def response(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


@contextmanager
def peer(answer: bytes, listener: socket.socket | None = None) -> Iterator[tuple[str, list[bytes]]]:
    """Answers one connection; yields its URL and the requests that it saw."""
    requests: list[bytes] = []
    bound = listener or socket.create_server(("127.0.0.1", 0))
    bound.settimeout(20)

    def serve() -> None:
        connection, _ = bound.accept()
        with connection:
            connection.settimeout(20)
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            while length is not None and len(body) < int(length[1]):
                body += connection.recv(65536)
            requests.append(data)
            with contextlib.suppress(OSError):  # the client may have had enough
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}" if listener is None else "", requests
    finally:
        thread.join(20)
        bound.close()


def test_an_answer_keeps_its_bytes() -> None:
    body = b'{ "object" : "router.status" }\n'
    with peer(response(body)) as (url, requests), Client(url, "s3cret-token") as client:
        answer = client.status()
    assert (answer.raw, answer.document) == (body, {"object": "router.status"})
    assert requests[0].startswith(b"GET /v1/router/status HTTP/1.1\r\n")
    assert b"authorization: Bearer s3cret-token\r\n" in requests[0].lower().replace(b"bearer", b"Bearer")


def test_tier_names_cannot_leave_their_place_in_the_path() -> None:
    with peer(response(b"{}")) as (url, requests), Client(url, None) as client:
        client.quiesce("../routes?x", "why")
    assert requests[0].startswith(b"POST /v1/admin/tiers/..%2Froutes%3Fx/quiesce HTTP/1.1\r\n")
    assert b"authorization" not in requests[0].lower()


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (
            response(b'{"code":"not_quiesced","detail":"first quiesce"}', "409 Conflict"),
            "not_quiesced",
            "first quiesce",
        ),
        (
            response(b'{"error":{"code":"invalid_api_key","message":"no"}}', "401 Unauthorized"),
            "invalid_api_key",
            "no",
        ),
        (response(b'{"code":"held","detail":7}', "409 Conflict"), "held", "the gateway answered 409"),
    ],
)
def test_a_refusal_has_the_gateways_code(answer: bytes, code: str, message: str) -> None:
    with peer(answer) as (url, _), Client(url, None) as client, pytest.raises(RefusedError) as caught:
        client.status()
    assert (caught.value.code, caught.value.message) == (code, message)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (response(b"not json"), "broken_answer"),
        (response(b"x" * (ANSWER_MAX_BYTES + 1)), "answer_too_large"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", "broken_answer"),
        (b"SSH-2.0-x\r\n", "broken_answer"),
        (b"", "broken_answer"),
        (
            response(b"<html>", "502 Bad Gateway"),
            "broken_answer",
        ),  # a proxy in front: what the gateway did is not known
        (response(b'{"code":7}', "500 Oops"), "broken_answer"),
        (response(b'{"error":{"message":"a model server"}}', "404 Not Found"), "broken_answer"),
        (response(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n"), "broken_answer"),
    ],
)
def test_no_whole_answer_is_an_unknown_outcome(answer: bytes, code: str) -> None:
    with peer(answer) as (url, _), Client(url, None) as client, pytest.raises(TransportError) as caught:
        client.drain("a", 1)
    assert caught.value.code == code


def test_silence_ends_by_the_bound_and_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_MARGIN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with Client(url, None) as client, pytest.raises(TransportError) as caught:
            client.call("GET", "/v1/router/status", bound_s=0)
    assert caught.value.code == "timeout"


def test_an_answer_that_drips_ends_by_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_MARGIN_S", 0.3)
    is_over = threading.Event()
    drops: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not is_over.wait(0.02):
                    drops.append(connection.send(b" "))

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, None) as client, pytest.raises(TransportError) as caught:
            client.call("GET", "/v1/router/status", bound_s=0)
        is_over.set()
        thread.join(20)
    assert caught.value.code == "timeout"
    assert len(drops) < 500  # 0.3 s of them, and not however many a peer likes to send


def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    with peer(response(b"[]"), listener) as (_, requests), Client(f"unix:{path}", None) as client:
        assert client.models().document == []
    assert requests[0].startswith(b"GET /v1/models ")


@pytest.mark.parametrize(
    "url",
    [
        "http://1.1.1.1",
        "http://u@127.0.0.1",
        "http://127.0.0.1/x",
        "http://127.0.0.1?q",
        "http://[::1",
        "file:///x",
        "",
    ],
)
def test_addresses_that_a_credential_must_not_travel_to(url: str) -> None:
    with pytest.raises(InputError) as caught:
        Client(url, "token")
    assert caught.value.code == "invalid_url"


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:8710", "http://127.0.0.1:8710"),
        ("0.0.0.0:1", "http://127.0.0.1:1"),
        ("[::]:2", "http://[::1]:2"),
        ("[::1]:3", "http://[::1]:3"),
        ("localhost:4", "http://localhost:4"),
        ("unix:/run/s", "unix:/run/s"),
    ],
)
def test_the_address_of_a_boot_file(listen: str, url: str) -> None:
    text = f"""
[server]
listen = ["{listen}"]
auth_env = "K"
[[router.tiers]]
id = "a"
base_url = "http://127.0.0.1:9/v1"
model = "m"
[router.model_routes]
x = "a"
"""
    assert address_of(boot.parse(text, None)) == url


def test_a_wait_that_is_not_named_is_as_long_as_the_gateways() -> None:
    ours = inspect.signature(Client.apply).parameters
    for name in ("drain_timeout_s", "verify_timeout_s"):
        assert ours[name].default == operator_api.Apply.model_fields[name].default
