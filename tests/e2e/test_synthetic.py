"""The synthetic model server does what it says: tests of the gateway stand on it."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.support.synthetic import Synthetic, synthetic_process, synthetic_thread

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def server() -> Iterator[Synthetic]:
    with synthetic_thread() as running:
        yield running


def post(server: Synthetic, path: str = "chat/completions", **members: Any) -> httpx.Response:
    body = {"model": "m1", "messages": MESSAGES, **members}
    return httpx.post(f"{server.base_url}/{path}", json=body, headers={"X-Request-Id": "r1"}, timeout=10)


def events(response: httpx.Response) -> list[Any]:
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_json_answer(server: Synthetic) -> None:
    answer = post(server).json()
    assert answer["choices"][0]["message"]["content"] == " t0 t1 t2 t3 t4 t5 t6 t7"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 8
    (seen,) = server.log("r1")
    assert (seen["model"], seen["ended"], seen["tokens"], seen["status"]) == ("m1", "complete", 8, 200)
    assert seen["usage_sent"] is True


def test_stream_reports_usage_only_when_asked(server: Synthetic) -> None:
    got = events(post(server, stream=True, max_tokens=3))
    assert [e["choices"][0]["delta"].get("content") for e in got[:-1]] == [" t0", " t1", " t2", None]
    assert got[-2]["choices"][0]["finish_reason"] == "length"
    assert got[-1] == "[DONE]"
    asked = events(post(server, stream=True, stream_options={"include_usage": True}))
    assert asked[-2]["usage"]["completion_tokens"] == 8
    assert asked[-2]["choices"] == []
    without = events(post(server, stream=True, stream_options={"include_usage": True}, synthetic={"usage": False}))
    assert all(not e.get("usage") for e in without[:-1])


def test_official_client(server: Synthetic) -> None:
    client = OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
    assert [m.id for m in client.models.list()] == ["m1"]
    stream = client.chat.completions.create(model="m1", messages=MESSAGES, stream=True)  # type: ignore[call-overload]
    assert "".join(c.choices[0].delta.content or "" for c in stream) == " t0 t1 t2 t3 t4 t5 t6 t7"
    response = client.responses.create(model="m1", input="hello")
    assert response.output_text == " t0 t1 t2 t3 t4 t5 t6 t7"
    with client.responses.stream(model="m1", input="hello") as streamed:
        assert streamed.get_final_response().output_text == response.output_text
    assert client.completions.create(model="m1", prompt="x").choices[0].text.endswith(" t7")
    assert len(client.embeddings.create(model="m1", input=["a", "b"], encoding_format="float").data) == 2
    client.close()


def test_messages_dialect(server: Synthetic) -> None:
    answer = post(server, "messages", max_tokens=2).json()
    assert (answer["content"][0]["text"], answer["stop_reason"]) == (" t0 t1", "max_tokens")
    names = [line[7:] for line in post(server, "messages", stream=True).text.splitlines() if line[:7] == "event: "]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert names.count("content_block_delta") == 8
    assert post(server, "messages/count_tokens").json()["input_tokens"] > 0


def test_wrong_model_and_paths(server: Synthetic) -> None:
    assert post(server, model="m2").status_code == 404
    assert post(server, "nothing").status_code == 404
    server.set(model="m2", models=["m2", "m3"], health=503)
    assert post(server, model="m2").status_code == 200
    assert [m["id"] for m in httpx.get(f"{server.base_url}/models").json()["data"]] == ["m2", "m3"]
    assert httpx.get(f"http://{server.address}/health").status_code == 503


def test_errors_and_lies(server: Synthetic) -> None:
    answer = post(server, synthetic={"status": 429, "headers": {"Retry-After": "7"}})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "7")
    assert post(server, synthetic={"status": 500, "body": "boom"}).text == "boom"
    assert post(server, synthetic={"model": "other"}).json()["model"] == "other"
    refused = post(server, synthetic={"tokenz": 1})
    assert (refused.status_code, "tokenz" in refused.text) == (400, True)


def test_plans_queue_up(server: Synthetic) -> None:
    server.set(next=[{"tokens": 1}, {"status": 500}])
    assert post(server).json()["usage"]["completion_tokens"] == 1
    assert post(server).status_code == 500
    assert post(server).json()["usage"]["completion_tokens"] == 8


def open_stream(server: Synthetic, plan: dict[str, Any], stream: bool = True) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    body = {"model": "m1", "messages": MESSAGES, "stream": stream, "synthetic": plan}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"X-Request-Id": "r1"})
    return connection


def test_stall_until_released(server: Synthetic) -> None:
    connection = open_stream(server, {"stall_after": 3})
    response = connection.getresponse()
    assert b" t2" in b"".join(response.readline() for _ in range(5))
    server.wait(in_flight=1)
    assert server.log("r1")[0]["tokens"] == 3
    assert server.release() == 1
    assert b"[DONE]" in response.read()
    connection.close()


def test_client_that_leaves_is_noticed(server: Synthetic) -> None:
    connection = open_stream(server, {"stall_after": -1})
    server.wait(in_flight=1, requests=1)
    connection.close()
    server.wait(in_flight=0)
    (seen,) = server.log("r1")
    assert seen["ended"] == "client_gone"
    server.wait(connections=1)  # its own
    assert server.log("r1")[0]["closed_at"] is not None


@pytest.mark.parametrize("stream", [True, False])
def test_cuts(server: Synthetic, stream: bool) -> None:
    for plan, error in (
        ({"reset_after": 2}, ConnectionResetError),
        ({"reset_after": -1}, ConnectionResetError),
        ({"truncate_after": 2}, http.client.IncompleteRead),
        ({"truncate_after": -1}, http.client.RemoteDisconnected),
    ):
        connection = open_stream(server, plan, stream)
        with pytest.raises(error):
            connection.getresponse().read()
        connection.close()
    assert [r["ended"] for r in server.log()] == ["reset", "reset", "truncated", "truncated"]


def test_breakage_is_verbatim(server: Synthetic) -> None:
    connection = open_stream(server, {"breakage": "two_content_lengths"})
    sock = connection.sock
    data = b""
    while part := sock.recv(65536):
        data += part
    connection.close()
    assert data.count(b"Content-Length") == 2


def test_in_band_error_and_missing_done(server: Synthetic) -> None:
    got = events(post(server, stream=True, synthetic={"error_after": 2}))
    assert "error" in got[-1]
    assert len(got) == 3
    assert "[DONE]" not in events(post(server, stream=True, synthetic={"done": False}))


def test_keep_alive_hangup_and_close(server: Synthetic) -> None:
    with httpx.Client() as client:
        for _ in range(3):
            client.post(f"{server.base_url}/chat/completions", json={"model": "m1"})
        assert server.stats()["connections_opened"] == 2
        plan = {"model": "m1", "synthetic": {"close": True}}
        assert client.post(f"{server.base_url}/chat/completions", json=plan).headers["connection"] == "close"
    assert "connection" not in post(server, synthetic={"hangup": True}).headers


def test_pipelined_requests_are_answered_in_order(server: Synthetic) -> None:
    body = b'{"model":"m1","synthetic":{"tokens":%d}}'
    raw = b"".join(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body % n), body % n)
        for n in range(1, 6)
    )
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(raw)
        counts = []
        reader = sock.makefile("rb")
        for _ in range(5):
            length = 0
            while (line := reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            counts.append(json.loads(reader.read(length))["usage"]["completion_tokens"])
        reader.close()
    assert counts == [1, 2, 3, 4, 5]


def test_listener_off_and_on(server: Synthetic) -> None:
    with httpx.Client(base_url=f"http://{server.address}") as control:
        control.get("/health")
        control.post("/synthetic/set", json={"listening": False})
        with pytest.raises(httpx.ConnectError):
            post(server)
        control.post("/synthetic/set", json={"listening": True})
    assert post(server).status_code == 200


def test_slow_reader_costs_bounded_memory(server: Synthetic) -> None:
    host, _, port = server.address.rpartition(":")
    body = json.dumps({"model": "m1", "stream": True, "synthetic": {"tokens": 100_000, "pad_bytes": 1000}}).encode()
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nX-Request-Id: r1\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        sock.sendall(body)
        server.wait(requests=1)
        sock.recv(1000)
        server.stats()
        assert server.log("r1")[0]["tokens"] < 20_000  # 10 MB of kernel buffers at most, of 100 MB
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.wait(in_flight=0)


def test_split_writes_change_nothing(server: Synthetic) -> None:
    assert events(post(server, stream=True, synthetic={"write_bytes": 3, "tokens": 4}))[-1] == "[DONE]"


def test_process_prints_its_address_and_checks_the_credential() -> None:
    with synthetic_process("--model", "m9", "--tokens", "2", "--auth-env", "SYN_KEY", env={"SYN_KEY": "k"}) as server:
        assert post(server, model="m9").status_code == 401
        got = httpx.post(
            f"{server.base_url}/chat/completions", json={"model": "m9"}, headers={"Authorization": "Bearer k"}
        )
        assert got.json()["usage"]["completion_tokens"] == 2
