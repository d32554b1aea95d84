"""Forms on their way through: every byte arrives, large ones by way of a file, and nothing is left behind."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forms import FORM, form
from tests.support.gateway import Gateway, unbroken_gateway
from tests.support.raw import Answer, Raw, ask, connected, operator_get, request, wait_idle
from tests.support.raw_upstream import CLOSE, RawUpstream, raw_upstream

BOOT = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"
max_body_bytes = 20000000
body_timeout_s = 3

[router]
first_byte_timeout_s = 20

[[router.tiers]]
id = "unused"
base_url = "{base_url}"
model = "m1"

[[router.audio_routes]]
kind = "stt"
model = "Whisper"
served_model = "openai/whisper-large-v3"
base_url = "{base_url}"

[[router.audio_routes]]
kind = "stt"
model = "same"
base_url = "{base_url}"

[router.model_routes]
unused = "unused"
"""
PATH = "/v1/audio/transcriptions"
TEXT = b'{"text":"good"}'
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(TEXT), TEXT)


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream() as server:
        yield server


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="module")
def gateway(upstream: RawUpstream, spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    boot, directory = BOOT.format(base_url=upstream.base_url), tmp_path_factory.mktemp("uploads")
    with unbroken_gateway(boot, directory, environ={"TMPDIR": str(spool)}) as process:
        yield process
        assert not files_of(process, spool)


def files_of(gateway: Gateway, spool: Path) -> list[str]:
    """Files in the temporary folder that the gateway has open; they have no name. Waits a moment for their end."""
    assert not list(spool.iterdir())
    deadline = time.monotonic() + 5
    while True:
        found = []
        for entry in Path(f"/proc/{gateway.process.pid}/fd").iterdir():
            try:
                found.append(os.readlink(entry))
            except FileNotFoundError:
                continue
        mine = [name for name in found if name.startswith(str(spool))]
        if not mine or time.monotonic() > deadline:
            return mine
        time.sleep(0.02)


def upload(model: str, sound: bytes, request_id: str, **headers: str) -> bytes:
    data = form(model, sound=sound)
    return request(data=data, path=PATH, headers={"content-type": FORM, "x-request-id": request_id, **headers})


def row(gateway: Gateway, request_id: str) -> dict[str, object]:
    wait_idle(gateway.url)
    found: dict[str, object] = operator_get(gateway.url, f"/v1/requests/{request_id}")
    return found


SIZES = [0, 1000, 1_048_000, 1_049_000, 3_000_000, 19_000_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("model", ["same", " WHISPER "])
def test_every_byte_arrives(gateway: Gateway, upstream: RawUpstream, spool: Path, model: str, size: int) -> None:
    sound = hashlib.shake_128(b"%d" % size).digest(size)
    request_id = f"all-{model.strip()}-{size}"
    upstream.script(request_id, [OK])
    answer = ask(gateway.url, upload(model, sound, request_id))
    assert (answer.status, answer.body) == (200, TEXT)
    seen = upstream.wait(request_id)
    served = "same" if model == "same" else "openai/whisper-large-v3"
    assert seen.body == form(served, sound=sound)
    assert seen.head.startswith(b"POST /v1/audio/transcriptions HTTP/1.1\r\n")
    assert seen.fields["content-type"] == FORM
    found = row(gateway, request_id)
    assert (found["outcome"], found["endpoint"]) == ("completed", "transcriptions")
    assert found["request_bytes"] == len(form(model, sound=sound))
    assert not files_of(gateway, spool)


def test_chunked_and_slow_and_reused(gateway: Gateway, upstream: RawUpstream) -> None:
    """A chunked form, then a second one on the same connections: framing holds on both sides."""
    data = form("same", sound=b"\xff\r\n" * 700_000)
    head = request(path=PATH, headers={"content-type": FORM, "transfer-encoding": "chunked", "x-request-id": "c-1"})
    for request_id in ("c-1", "c-2"):
        upstream.script(request_id, [OK])
    with connected(gateway.url) as raw:
        raw.send(head)
        for at in range(0, len(data), 500_000):
            part = data[at : at + 500_000]
            raw.send(b"%x\r\n%b\r\n" % (len(part), part))
        assert raw.send(b"0\r\n\r\n").answer().body == TEXT
        assert raw.send(upload("same", b"x" * 2_000_000, "c-2")).answer().body == TEXT
    assert upstream.wait("c-1").body == data
    assert upstream.wait("c-2").connection == upstream.wait("c-1").connection


def test_head_that_repeats(gateway: Gateway, upstream: RawUpstream) -> None:
    with connected(gateway.url) as raw:
        for number in range(3):
            body = form("same" if number != 1 else "nobody", sound=b"%d" % number)
            answer = raw.send(request(data=body, path=PATH, headers={"content-type": FORM})).answer()
            assert answer.status == (404 if number == 1 else 200)


@pytest.mark.parametrize("size", [100, 2_000_000])
@pytest.mark.parametrize("what", ["two models", "no end", "no form", "too large", "stops", "unknown"])
def test_refused(gateway: Gateway, spool: Path, what: str, size: int) -> None:
    request_id = f"bad-{what.replace(' ', '-')}-{size}"
    data = form("same", sound=b"x" * size)
    status, code, kind = 400, "invalid_request", FORM
    if what == "two models":
        data = form(
            "same", sound=b"x" * size + b"\r\n--frontier\r\nContent-Disposition: form-data; name=model\r\n\r\ny"
        )
    elif what == "no end":
        data = data[:-14]
    elif what == "no form":
        kind = "application/json"
    elif what == "unknown":
        data, status, code = form("unused", sound=b"x" * size), 404, "model_not_found"
    elif what == "too large":
        status, code = 413, "body_too_large"
    elif what == "stops":
        status, code = 408, "invalid_request"
    headers = {"content-type": kind, "x-request-id": request_id}
    raw_data = request(data=data, path=PATH, headers=headers)
    with connected(gateway.url) as raw:
        if what == "too large":
            head = request(path=PATH, headers={**headers, "transfer-encoding": "chunked"})
            raw.send(head + b"%x\r\n" % 30_000_000 + data)
            send_until_answered(raw, b"y" * 1_000_000)
        elif what == "stops":
            raw.send(raw_data[:-1])
        else:
            raw.send(raw_data)
        answer: Answer = raw.answer()
    assert (answer.status, answer.code) == (status, code)
    found = row(gateway, request_id)
    assert (found["outcome"], found["status"], found["error_code"]) == ("refused", status, code)
    assert not files_of(gateway, spool)


def send_until_answered(raw: Raw, data: bytes) -> None:
    for _ in range(40):
        try:
            raw.send(data)
        except OSError:
            return


@pytest.mark.parametrize("size", [200, 3_000_000])
def test_client_leaves_in_the_middle(gateway: Gateway, upstream: RawUpstream, spool: Path, size: int) -> None:
    before = len(upstream.exchanges)
    with connected(gateway.url) as raw:
        raw.send(upload("same", b"x" * size, f"leaves-{size}")[:-10])
    assert not files_of(gateway, spool)
    wait_idle(gateway.url)
    assert len(upstream.exchanges) == before


def test_server_answers_before_the_end(gateway: Gateway, upstream: RawUpstream, spool: Path) -> None:
    """A refusal that comes while the upload still runs reaches the client; the connection is not used again."""
    upstream.answer_early("early", b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
    answer = ask(gateway.url, upload("same", b"x" * 18_000_000, "early"))
    assert (answer.status, answer.body) == (413, b"no")
    assert row(gateway, "early")["outcome"] == "upstream_error"
    assert not files_of(gateway, spool)


@pytest.mark.parametrize("size", [200, 3_000_000])
def test_server_closes_without_an_answer(gateway: Gateway, upstream: RawUpstream, spool: Path, size: int) -> None:
    upstream.script(f"closes-{size}", [CLOSE])
    answer = ask(gateway.url, upload("same", b"x" * size, f"closes-{size}"))
    assert (answer.status, answer.code) == (502, "upstream_reset")
    assert row(gateway, f"closes-{size}")["outcome"] == "upstream_reset"
    assert not files_of(gateway, spool)
