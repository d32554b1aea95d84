"""Requests through a real gateway to a real (synthetic) model server: what passes, what is refused, in which words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import gateway_process
from tests.support.raw import KEY, OPERATOR, ask, boot_file, chat, connected, operator_get, request, wait_idle
from tests.support.synthetic import Synthetic

SERVER = 'usage_path = "usage.sqlite"\nheader_timeout_s = 1\nbody_timeout_s = 1\nmax_body_bytes = 100000'
ROUTER = "admission_timeout_s = 3\nfirst_byte_timeout_s = 3\nidle_timeout_s = 3\ntotal_timeout_s = 8\nqueue_limit = 1"
TIER = "max_concurrency = 2\nmax_output_tokens = 64\ncontext_limit = 1000\ntool_support = false"


@pytest.fixture(scope="module")
def url(synthetic: Synthetic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path: Path = boot_file(
        tmp_path_factory.mktemp("gateway"), synthetic.base_url, server=SERVER, router=ROUTER, tier=TIER
    )
    with gateway_process(path) as gateway:
        yield gateway.url
        assert gateway.stop() == 0


def trace(url: str, request_id: str) -> dict[str, object]:
    found: dict[str, object] = operator_get(url, f"/v1/requests/{request_id}")
    return found


def test_json_answer_passes_and_is_accounted_for(url: str) -> None:
    answer = ask(url, request(chat(), headers={"x-request-id": "json-1"}))
    assert answer.status == 200
    assert answer.headers["x-request-id"] == "json-1"
    assert answer.json["choices"][0]["message"]["content"] == " t0 t1 t2 t3 t4 t5 t6 t7"
    row = trace(url, "json-1")
    assert (row["outcome"], row["status"], row["alias"], row["tier"]) == ("completed", 200, "llm.primary", "primary")
    assert row["tokens"]["completion"] == 8  # type: ignore[index]
    assert row["finish_reason"] == "stop"
    assert row["response_bytes"] == len(answer.body)


@pytest.mark.parametrize("write_bytes", [0, 1, 7, 64])
def test_stream_is_whole_and_hides_usage_nobody_asked_for(url: str, write_bytes: int) -> None:
    plan = {"tokens": 20, "write_bytes": write_bytes}
    answer = ask(url, request(chat(True, synthetic=plan), headers={"x-request-id": f"stream-{write_bytes}"}))
    assert answer.status == 200
    assert answer.events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in answer.events[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "".join(
        f" t{number}" for number in range(20)
    )
    assert trace(url, f"stream-{write_bytes}")["tokens"]["completion"] == 20  # type: ignore[index]


def test_usage_is_shown_to_whoever_asks(url: str) -> None:
    answer = ask(url, request(chat(True, stream_options={"include_usage": True})))
    assert json.loads(answer.events[-2])["usage"]["completion_tokens"] == 8


def test_unknown_members_reach_the_server_as_sent(url: str, synthetic: Synthetic) -> None:
    body = b'{"model":" LLM.primary ","x_odd" : [1.50, {"a":"\\u00e9"}],"messages":[],"x_odd":2}'
    answer = ask(url, request(data=body, headers={"x-request-id": "odd-1"}))
    assert answer.status == 200
    seen = synthetic.log("odd-1")[0]
    assert seen["model"] == "m1"
    # Only the alias was replaced (and blanks between members are nobody's value): every other byte is counted.
    sent = b'{"model":"m1","x_odd":[1.50, {"a":"\\u00e9"}],"messages":[],"x_odd":2}'
    assert seen["bytes"] == len(sent)


def test_limits_on_output_are_lowered_and_said(url: str) -> None:
    answer = ask(url, request(chat(max_tokens=500, synthetic={"tokens": 100})))
    assert answer.headers["x-sndr-max-tokens-clamped"] == "500->64"
    assert answer.json["usage"]["completion_tokens"] == 64


REFUSALS = [
    ("no credential", request(chat(), key=None), 401, "invalid_api_key"),
    ("wrong credential", request(chat(), key="nope"), 401, "invalid_api_key"),
    ("two credentials", request(chat(), headers={"x-api-key": "other"}), 401, "invalid_api_key"),
    ("operator's credential", request(chat(), key=OPERATOR), 403, "operator_key_not_allowed"),
    ("unknown path", request(chat(), path="/v1/nothing"), 404, "not_found"),
    ("unknown path without credential", request(chat(), path="/v1/nothing", key=None), 401, "invalid_api_key"),
    ("realtime", request(method="GET", path="/v1/realtime"), 404, "not_found"),
    ("wrong method", request(method="GET"), 405, "method_not_allowed"),
    ("too large by length", request(headers={"content-length": "100001"}), 413, "body_too_large"),
    ("encoded body", request(chat(), headers={"content-encoding": "gzip"}), 415, "unsupported_content_encoding"),
    ("not JSON", request(data=b"{"), 400, "invalid_json"),
    ("not an object", request(data=b"[]"), 400, "invalid_json"),
    ("not UTF-8", request(data=b'{"model":"llm.primary","x":"\xff"}'), 400, "invalid_json"),
    ("lone surrogate", request(data=b'{"model":"llm.primary","x":"\\udc00"}'), 400, "invalid_json"),
    ("too deep", request(data=b'{"x":' + b"[" * 40000 + b"]" * 40000 + b"}"), 400, "invalid_json"),
    ("two models", request(data=b'{"model":"llm.primary","model":"llm.primary"}'), 400, "invalid_request"),
    ("two models, one escaped", request(data=b'{"model":"a","mod\\u0065l":"b"}'), 400, "invalid_request"),
    ("no model", request({"messages": []}), 400, "invalid_request"),
    ("model of another type", request({"model": 1}), 400, "invalid_request"),
    ("stream of another type", request(chat(stream="yes") | {"stream": "yes"}), 400, "invalid_request"),
    ("unknown model", request(chat() | {"model": "other"}), 404, "model_not_found"),
    ("tools", request(chat(tools=[{"type": "function"}])), 400, "tools_unsupported"),
    ("more tokens than context", request(chat(max_tokens=1001)), 400, "context_length_exceeded"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "status", "code"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_refusals(url: str, data: bytes, status: int, code: str) -> None:
    answer = ask(url, data)
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers["x-request-id"]
    assert "127.0.0.1" not in answer.body.decode()


def test_refusal_tells_what_is_allowed(url: str) -> None:
    assert ask(url, request(method="PUT", data=b"{}")).headers["allow"] == "POST"
    assert "bearer" in ask(url, request(chat(), key=None)).headers["www-authenticate"].lower()


MALFORMED = [
    ("both lengths", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ("two lengths", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    ("listed length", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc", 400),
    ("signed length", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", 400),
    ("huge length", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
    ("gzip, chunked", b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
    ("identity", b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n", 400),
    ("chunked, chunked", b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400),
    ("chunked on 1.0", b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ("folded", b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    ("space before colon", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    ("bare LF", b"GET / HTTP/1.1\nHost: x\n\n", 400),
    ("bare LF in head", b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400),
    ("bare CR", b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n", 400),
    ("NUL", b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", 400),
    ("no host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("two hosts", b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
    ("odd host", b"GET / HTTP/1.1\r\nHost: x y\r\n\r\n", 400),
    ("two spaces", b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("tab", b"GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("no version", b"GET /\r\nHost: x\r\n\r\n", 400),
    ("0.9", b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", 505),
    ("2.0", b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    ("preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("1.2", b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 400),
    ("lower case protocol", b"GET / http/1.1\r\nHost: x\r\n\r\n", 400),
    ("RTSP", b"GET / RTSP/1.0\r\nHost: x\r\n\r\n", 400),
    ("CONNECT", b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n", 400),
    ("unknown method", b"FROB / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("lower case method", b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("fragment", b"GET /#a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("control in target", b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("eight bits in target", b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ("long target", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    ("large head", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"b" * 33000 + b"\r\n\r\n", 431),
    ("many fields", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 120 + b"\r\n", 431),
    ("other expectation", b"POST / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n", 417),
]  # fmt: skip


@pytest.mark.parametrize(("data", "status"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_malformed_requests_end_the_connection(url: str, data: bytes, status: int) -> None:
    with connected(url) as raw:
        answer = raw.send(data).answer()
        assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert raw.closed()


CHUNKS = [b"3 \r\nabc\r\n0\r\n\r\n", b"3\nabc\n0\n\n", b"0x3\r\nabc\r\n0\r\n\r\n", b"-3\r\nabc\r\n0\r\n\r\n",
          b"3\r\nabcd\r\n0\r\n\r\n", b"fffffffffffffffff\r\nabc", b"\r\n3\r\nabc\r\n0\r\n\r\n"]  # fmt: skip


@pytest.mark.parametrize("body", CHUNKS)
def test_malformed_chunks(url: str, body: bytes) -> None:
    with connected(url) as raw:
        answer = raw.send(request(headers={"transfer-encoding": "chunked"}) + body).answer()
        assert answer.status == 400
        assert raw.closed()


def chunked(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nX-Trailer: 1\r\n\r\n"


@pytest.mark.parametrize("size", [1, 5, 4096])
def test_chunked_request_followed_by_another(url: str, size: int) -> None:
    first = request(headers={"transfer-encoding": "chunked"}) + chunked(json.dumps(chat()).encode(), size)
    with connected(url) as raw:
        raw.send(first + request(chat()))
        assert raw.answer().status == 200
        assert raw.answer().status == 200


def test_chunked_request_beyond_the_limit(url: str) -> None:
    with connected(url) as raw:
        raw.send(request(headers={"transfer-encoding": "chunked"}) + b"%x\r\n" % 200_000 + b"a" * 150_000)
        assert raw.answer().status == 413


def test_pipelined_requests_are_answered_in_order(url: str) -> None:
    slow = request(chat(synthetic={"first_delay_ms": 200}), headers={"x-request-id": "p-1"})
    with connected(url) as raw:
        raw.send(slow + request(method="GET", path="/livez") + request(chat(), headers={"x-request-id": "p-3"}))
        assert raw.answer().headers["x-request-id"] == "p-1"
        assert raw.answer().body == b"ok\n"
        assert raw.answer().headers["x-request-id"] == "p-3"


def test_expect_continue(url: str) -> None:
    body = json.dumps(chat()).encode()
    with connected(url) as raw:
        raw.send(request(data=body, headers={"expect": "100-continue"})[: -len(body)])
        assert raw.answer().status == 100
        assert raw.send(body).answer().status == 200
    with connected(url) as raw:
        raw.send(request(data=body, key=None, headers={"expect": "100-continue"})[: -len(body)])
        assert raw.answer().status == 401


def test_head_and_http10(url: str) -> None:
    with connected(url) as raw:
        answer = raw.send(request(method="HEAD", path="/v1/models")).answer(head_only=True)
        assert answer.status == 200
        assert int(answer.headers["content-length"]) > 100
        assert raw.send(request(method="GET", path="/livez")).answer().body == b"ok\n"
    with connected(url) as raw:
        answer = raw.send(request(chat(True), version="1.0")).answer()
        assert "transfer-encoding" not in answer.headers
        assert answer.events[-1] == "[DONE]"
        assert raw.closed()
    with connected(url) as raw:
        raw.send(request(chat(), version="1.0", headers={"connection": "keep-alive"}))
        assert raw.answer().headers["connection"] == "keep-alive"
        assert raw.send(request(chat(), version="1.0")).answer().status == 200


def test_refusal_before_the_body_keeps_a_connection_only_when_the_body_is_there(url: str) -> None:
    with connected(url) as raw:
        raw.send(request(chat(), key="nope") + request(chat()))
        assert raw.answer().status == 401
        assert raw.answer().status == 200
    with connected(url) as raw:
        raw.send(request(data=b"a" * 90_000, key="nope")[:-80_000])
        answer = raw.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")


def test_slow_heads_and_bodies_end(url: str) -> None:
    with connected(url) as raw:
        assert raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n").answer().status == 408
    with connected(url) as raw:
        assert raw.send(request(headers={"content-length": "10"}) + b"{").answer().status == 408
    with connected(url) as raw:
        assert raw.closed()


def test_credentials_and_hop_by_hop_fields_stop_here(url: str, synthetic: Synthetic) -> None:
    headers = {"x-request-id": "hop-1", "connection": "x-private", "x-private": "1", "cookie": "a=b",
               "traceparent": "00-1-2-01", "openai-beta": "x", "te": "trailers", "accept-encoding": "gzip"}  # fmt: skip
    assert ask(url, request(chat(), headers=headers)).status == 200
    seen = synthetic.log("hop-1")[0]["headers"]
    names = {name.lower(): value for name, value in seen.items()}
    assert names["traceparent"] == "00-1-2-01"
    assert names["openai-beta"] == "x"
    assert names.get("accept-encoding") == "identity"
    assert not {"x-private", "cookie", "te", "authorization"} & set(names)
    assert KEY not in str(synthetic.log("hop-1"))


UPSTREAM = [
    ("error relayed", {"status": 429, "body": "slow down", "headers": {"retry-after": "7"}}, 429, None),
    ("validation relayed", {"status": 422}, 422, None),
    ("unavailable relayed", {"status": 503}, 503, None),
    ("unauthorized hidden", {"status": 401}, 502, "upstream_error"),
    ("internal error hidden", {"status": 500}, 502, "upstream_error"),
    ("redirect hidden", {"status": 302}, 502, "upstream_error"),
    ("reset before the head", {"reset_after": -1}, 502, "upstream_reset"),
    ("close before the head", {"truncate_after": -1}, 502, "upstream_reset"),
    ("silent", {"stall_after": -1}, 504, "upstream_timeout"),
    ("two lengths", {"breakage": "two_content_lengths"}, 502, "upstream_protocol"),
    ("length and chunked", {"breakage": "content_length_and_chunked"}, 502, "upstream_protocol"),
    ("folded", {"breakage": "folded_header"}, 502, "upstream_protocol"),
    ("gzip coding", {"breakage": "gzip_transfer"}, 502, "upstream_protocol"),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "status", "code"), [row[1:] for row in UPSTREAM], ids=[row[0] for row in UPSTREAM])
def test_upstream_failures_before_the_answer(url: str, plan: dict[str, object], status: int, code: str | None) -> None:
    answer = ask(url, request(chat(synthetic=plan)))
    assert answer.status == status
    if code is not None:
        assert answer.code == code
    elif status == 429:
        assert answer.headers["retry-after"] == "7"
    wait_idle(url)


MIDSTREAM = [
    ("reset", {"reset_after": 3}, "upstream_reset"),
    ("cut short", {"truncate_after": 3}, "upstream_reset"),
    ("silent", {"stall_after": 3}, "upstream_timeout"),
]


@pytest.mark.parametrize(("plan", "code"), [row[1:] for row in MIDSTREAM], ids=[row[0] for row in MIDSTREAM])
def test_a_stream_that_fails_says_so_once(url: str, plan: dict[str, object], code: str) -> None:
    request_id = f"mid-{code}-{time.monotonic_ns()}"
    with connected(url) as raw:
        raw.send(request(chat(True, synthetic={"tokens": 9, "token_delay_ms": 5, **plan}),
                         headers={"x-request-id": request_id}))  # fmt: skip
        answer = raw.answer()
        assert answer.status == 200
        errors = [event for event in answer.events if '"error"' in event]
        assert [json.loads(event)["error"]["code"] for event in errors] == [code]
        assert answer.events[-1] == errors[0]
        assert 'finish_reason":"' not in answer.body.decode()
        assert raw.closed()
    row = trace(url, request_id)
    assert (row["outcome"], row["error_code"]) == (code, code)


def test_a_body_that_fails_is_not_completed(url: str) -> None:
    with connected(url) as raw:
        raw.send(request(chat(synthetic={"tokens": 500, "pad_bytes": 2000, "truncate_after": 3})))
        head = raw.until(b"\r\n\r\n").lower()
        assert b" 200 " in head or b" 502 " in head
        if b" 200 " in head:
            rest = raw.rest()
            assert not rest.endswith(b"0\r\n\r\n")
            if b"content-length:" in head:
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                assert len(rest) < length


def test_a_stream_without_done_is_relayed_as_it_is(url: str) -> None:
    answer = ask(url, request(chat(True, synthetic={"done": False})))
    assert "[DONE]" not in answer.events
    assert not any("error" in event for event in answer.events)


def test_a_closed_reused_connection_is_tried_once_more(url: str, synthetic: Synthetic) -> None:
    assert ask(url, request(chat(synthetic={"hangup": True}))).status == 200
    answer = ask(url, request(chat(), headers={"x-request-id": "again-1"}))
    assert answer.status == 200
    assert len(synthetic.log("again-1")) == 1


def test_total_time_is_limited(url: str) -> None:
    answer = ask(url, request(chat(True, synthetic={"tokens": 60, "token_delay_ms": 200})))
    assert json.loads(answer.events[-1])["error"]["code"] == "upstream_timeout"


CANCELS = [
    ("before the answer", {"first_delay_ms": 900}, True, b""),
    ("mid-stream", {"tokens": 60, "token_delay_ms": 50}, True, b" t3"),
    ("not a stream", {"first_delay_ms": 900}, False, b""),
]


@pytest.mark.parametrize("half", [False, True], ids=["closed", "half closed"])
@pytest.mark.parametrize(("plan", "stream", "mark"), [row[1:] for row in CANCELS], ids=[row[0] for row in CANCELS])
def test_client_gone_closes_the_upstream(
    url: str, synthetic: Synthetic, plan: dict[str, object], stream: bool, mark: bytes, half: bool
) -> None:
    wait_idle(url)
    request_id = f"gone-{time.monotonic_ns()}"
    before = synthetic.stats()["requests"]
    with connected(url) as raw:
        raw.send(request(chat(stream, synthetic=plan), headers={"x-request-id": request_id}))
        if mark:
            raw.until(mark)
        else:
            synthetic.wait(requests=before + 1)
        if half:
            raw.sock.shutdown(1)
        else:
            raw.close()
        # Within milliseconds, as `tests/benchmarks/gateway/bars.py cancel` measures; here it is the server's word.
        synthetic.wait(in_flight=0)
        assert synthetic.log(request_id)[0]["ended"] == "client_gone"
    wait_idle(url)
    row = trace(url, request_id)
    assert row["outcome"] == "client_gone"


def test_queue_limits_and_admission_timeout(url: str, synthetic: Synthetic) -> None:
    wait_idle(url)
    before = synthetic.stats()["requests"]
    with connected(url) as one, connected(url) as two, connected(url) as three:
        for raw in (one, two):
            raw.send(request(chat(True, synthetic={"tokens": 60, "token_delay_ms": 110})))
        synthetic.wait(requests=before + 2)
        three.send(request(chat()))
        deadline = time.monotonic() + 10
        while operator_get(url, "/v1/router/status")["tiers"][0]["queued"] != 1:
            assert time.monotonic() < deadline
        answer = ask(url, request(chat()))
        assert (answer.status, answer.code) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        answer = three.answer()
        assert (answer.status, answer.code) == (503, "admission_timeout")
    wait_idle(url)


def test_a_freed_slot_goes_to_the_longest_waiter(url: str, synthetic: Synthetic) -> None:
    wait_idle(url)
    before = synthetic.stats()["requests"]
    with connected(url) as one, connected(url) as two, connected(url) as three:
        for raw in (one, two):
            raw.send(request(chat(synthetic={"first_delay_ms": 300})))
        synthetic.wait(requests=before + 2)
        three.send(request(chat()))
        assert [raw.answer().status for raw in (one, two, three)] == [200, 200, 200]


def test_upstream_connections_are_reused(url: str, synthetic: Synthetic) -> None:
    wait_idle(url)
    with connected(url) as raw:
        for number in range(50):
            assert raw.send(request(chat(), headers={"x-request-id": f"reuse-{number}"})).answer().status == 200
    assert len({synthetic.log(f"reuse-{number}")[0]["connection"] for number in range(50)}) == 1


def test_a_body_that_was_long_on_its_way_may_wait_as_long_as_any(url: str) -> None:
    wait_idle(url)
    data = request(chat(), headers={"x-request-id": "slow-body"})
    with connected(url) as slow:
        began = time.monotonic()
        slow.send(data[:-40])
        for at in range(len(data) - 40, len(data) - 1):
            slow.send(data[at : at + 1])
            time.sleep(0.09)
        assert time.monotonic() - began > 3  # beyond admission_timeout_s
        with connected(url) as first, connected(url) as second:
            for raw in (first, second):
                raw.send(request(chat(True, synthetic={"tokens": 3, "stall_after": 1})))
                raw.until(b"t0")
            slow.send(data[-1:])
            while not operator_get(url, "/v1/router/status")["tiers"][0]["queued"]:
                assert not trace_or_none(url, "slow-body")
            first.close()
            assert slow.answer().status == 200
    assert int(str(trace(url, "slow-body")["queue_ms"])) < 3000


def trace_or_none(url: str, request_id: str) -> object:
    answer = ask(url, request(method="GET", path=f"/v1/requests/{request_id}", key=OPERATOR))
    return answer.json if answer.status == 200 else None
