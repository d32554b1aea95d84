"""What a model server's bytes do to a request: when it is sent again, where an answer ends, how a stream breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import gateway_process
from tests.support.raw import ask, boot_file, chat, connected, operator_get, request, wait_idle
from tests.support.raw_upstream import CLOSE, DEFAULT, DEFAULT_BODY, HOLD, RESET, RawUpstream, raw_upstream

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream() as server:
        yield server


@pytest.fixture(scope="module")
def url(upstream: RawUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path: Path = boot_file(tmp_path_factory.mktemp("gateway"), upstream.base_url, server='usage_path = "usage.sqlite"')
    # The server answers every path alike: no probe would find a model list there.
    path.write_text(path.read_text().replace('health_path = "/health"', "model_identity = false"))
    with gateway_process(path) as gateway:
        yield gateway.url


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_sent_again_only_on_a_connection_that_was_used_before(url: str, upstream: RawUpstream, end: str) -> None:
    wait_idle(url)
    assert ask(url, request(chat())).status == 200  # leaves an idle connection
    upstream.script(f"twice-{end}", [end])
    answer = ask(url, request(chat(), headers={"x-request-id": f"twice-{end}"}))
    assert (answer.status, answer.code) == (502, "upstream_reset")
    first, second = upstream.seen(f"twice-{end}")
    assert first.connection != second.connection
    assert operator_get(url, f"/v1/requests/twice-{end}")["retries"] == 1
    upstream.script(f"once-{end}", [end])
    assert ask(url, request(chat(), headers={"x-request-id": f"once-{end}"})).status == 502
    assert len(upstream.seen(f"once-{end}")) == 1


def test_never_sent_again_after_a_byte(url: str, upstream: RawUpstream) -> None:
    wait_idle(url)
    assert ask(url, request(chat())).status == 200
    upstream.script("byte", [b"H", CLOSE])
    assert ask(url, request(chat(), headers={"x-request-id": "byte"})).status == 502
    assert len(upstream.seen("byte")) == 1


@pytest.mark.parametrize("extra", [b"X", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"])
def test_bytes_after_an_answer_reach_nobody(url: str, upstream: RawUpstream, extra: bytes) -> None:
    upstream.script("extra", [bytes(DEFAULT[0]) + extra])  # type: ignore[arg-type]
    with connected(url) as raw:
        for _ in range(3):
            answer = raw.send(request(chat(), headers={"x-request-id": "extra"})).answer()
            assert (answer.status, answer.body) == (200, DEFAULT_BODY)
            assert raw.buffer == b""
    connections = [exchange.connection for exchange in upstream.seen("extra")]
    assert len(set(connections)) == len(connections)  # such a connection is not used again


def test_a_stream_cut_inside_an_event_still_ends_in_one_that_can_be_read(url: str, upstream: RawUpstream) -> None:
    whole, part = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b'data: {"choi'
    for name, options in (("shown", {"include_usage": True}), ("hidden", {})):
        upstream.script(f"inside-{name}", [STREAM + chunk(whole) + chunk(part), 0.05, RESET])
        with connected(url) as raw:
            body = chat(True, stream_options=options)
            raw.send(request(body, headers={"x-request-id": f"inside-{name}"}))
            events = raw.answer().events
            assert events[0] == whole.decode().strip()[6:]
            assert json.loads(events[-1])["error"]["code"] == "upstream_reset"
            # Where nothing is held back the reader has seen the part, and it must not swallow the error.
            assert len(events) == (3 if name == "shown" else 2)
            assert raw.closed()


def test_malformed_chunks_in_a_stream(url: str, upstream: RawUpstream) -> None:
    upstream.script("chunks", [STREAM + chunk(b"data: 1\n\n"), 0.1, b"zz\r\n"])
    answer = ask(url, request(chat(True), headers={"x-request-id": "chunks"}))
    assert answer.events[0] == "1"
    assert json.loads(answer.events[-1])["error"]["code"] == "upstream_protocol"
    assert operator_get(url, "/v1/requests/chunks")["outcome"] == "upstream_error"


def test_a_stream_that_announced_its_length_ends_in_an_event_that_can_be_read(url: str, upstream: RawUpstream) -> None:
    whole = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % (len(whole) + 5)
    for name, more in (("short", b""), ("whole", b"data:")):
        body = chat(True, stream_options={"include_usage": True})
        upstream.script(f"length-{name}", [head + whole, 0.05, more or RESET])
        with connected(url) as raw:
            answer = raw.send(request(body, headers={"x-request-id": f"length-{name}"})).answer()
            if name == "whole":
                assert answer.body == whole + more
            else:
                assert answer.body.startswith(whole)
                assert json.loads(answer.events[-1])["error"]["code"] == "upstream_reset"
                assert raw.closed()


@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
def test_nothing_is_put_into_an_encoded_stream(url: str, upstream: RawUpstream, options: dict[str, bool]) -> None:
    """It was not asked for; only its client can read it, so what it breaks off with must not be text."""
    packed = b"\x1f\x8b\x08\x00\x00"
    name = f"packed-{len(options)}"
    head = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    upstream.script(name, [head + chunk(packed), 0.05, RESET])
    with connected(url) as raw:
        data = raw.send(request(chat(True, stream_options=options), headers={"x-request-id": name})).rest()
    assert data.endswith(b"\r\n\r\n" + chunk(packed))
    assert operator_get(url, f"/v1/requests/{name}")["outcome"] == "upstream_reset"


def test_framing_without_end_breaks_an_answer_off(url: str, upstream: RawUpstream) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    floods = {
        "extensions": b"1;" + b"x" * 300_000 + b"\r\n{\r\n0\r\n\r\n",
        "trailers": b"1\r\n{\r\n0\r\n" + b"a: b\r\n" * 60_000 + b"\r\n",
        "sizes": b"0" * 300_000 + b"1\r\n{\r\n0\r\n\r\n",
    }
    for name, flood in floods.items():
        upstream.script(name, [head, 0.05, flood, HOLD])
        with connected(url) as raw:
            data = raw.send(request(chat(), headers={"x-request-id": name})).rest()
        assert b"\r\n0\r\n\r\n" not in data
        found = operator_get(url, f"/v1/requests/{name}")
        assert (found["outcome"], found["error_code"]) == ("upstream_error", "upstream_protocol")
    upstream.script("at-once", [head, 0.05, b"1\r\n{\r\n0\r\na: " + b"b" * 60_000 + b"\r\n\r\n"])
    with connected(url) as raw:
        assert b"\r\n0\r\n\r\n" not in raw.send(request(chat(), headers={"x-request-id": "at-once"})).rest()
    assert operator_get(url, "/v1/requests/at-once")["error_code"] == "upstream_protocol"
    # What takes a byte of framing for a byte of body is odd and harmless.
    upstream.script("small", [head + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"])
    assert ask(url, request(chat(), headers={"x-request-id": "small"})).body == b"x" * 20_000


def test_a_servers_fields_for_others_end_here(url: str, upstream: RawUpstream) -> None:
    """What it says to browsers about this address, and what is ours to say, is not passed on."""
    mine = (
        b"Set-Cookie: a=b\r\nLocation: http://inner/\r\nX-Request-Id: fake\r\nX-Sndr-Tier: fake\r\n"
        b"Connection: X-Hop\r\nX-Hop: 1\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Allow-Headers: *\r\n"
        b"Access-Control-Allow-Methods: *\r\nAccess-Control-Max-Age: 1\r\n"
        b"Access-Control-Allow-Private-Network: true\r\nTiming-Allow-Origin: *\r\nX-Passes: yes\r\n"
    )
    upstream.script("fields", [b"HTTP/1.1 200 OK\r\n" + mine + b"Content-Length: 2\r\n\r\n{}"])
    answer = ask(url, request(chat(), headers={"x-request-id": "fields"}))
    assert answer.headers == {"x-passes": "yes", "x-request-id": "fields", "content-length": "2"}


def test_informational_answers_and_answers_that_end_with_the_connection(url: str, upstream: RawUpstream) -> None:
    upstream.script("hints", [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 0.02, *DEFAULT])
    assert ask(url, request(chat(), headers={"x-request-id": "hints"})).body == DEFAULT_BODY
    upstream.script("eof", [b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + DEFAULT_BODY, CLOSE])
    answer = ask(url, request(chat(), headers={"x-request-id": "eof"}))
    assert answer.body == DEFAULT_BODY
    assert answer.headers["transfer-encoding"] == "chunked"
    upstream.script("switch", [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"])
    assert ask(url, request(chat(), headers={"x-request-id": "switch"})).code == "upstream_protocol"
