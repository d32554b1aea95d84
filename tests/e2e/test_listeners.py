"""Unix sockets and IPv6, proxies in front, pages of other origins, the service manager, logs and their files."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sndr.router.gateway.relay import _NOT_SENT_BACK
from tests.support.cli import ROOT, environment
from tests.support.gateway import CREDENTIALS, Gateway, gateway_process
from tests.support.raw import KEY, OPERATOR, Raw, ask, boot_file, chat, connected, request, wait_idle
from tests.support.synthetic import Synthetic, synthetic_thread


@pytest.fixture(scope="module")
def upstream() -> Iterator[Synthetic]:
    with synthetic_thread() as running:
        yield running


class UnixRaw(Raw):
    """A raw connection to a unix socket."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(os.fspath(path))
        self.buffer = b""
        self.ended = False


def line_of(gateway: Gateway, request_id: str) -> dict[str, Any]:
    return gateway.wait_event(lambda line: line.get("id") == request_id)


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_unix_socket_belongs_to_user_and_group_and_leaves_with_its_gateway(
    tmp_path: Path, upstream: Synthetic, loop: str
) -> None:
    path = tmp_path / "s.sock"
    config = boot_file(tmp_path, upstream.base_url)
    config.write_text(config.read_text().replace("127.0.0.1:0", f"unix:{path}"))
    left_behind = socket.socket(socket.AF_UNIX)
    left_behind.bind(os.fspath(path))  # of a process that is gone: nobody listens
    left_behind.close()
    with gateway_process(config, SNDR_LOOP=loop) as gateway:
        assert gateway.wait_event(lambda line: line["event"] == "listening")["addresses"] == [f"unix:{path}"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        raw = UnixRaw(path)
        assert raw.send(request(chat())).answer().status == 200
        raw.close()
        second = subprocess.run(
            [sys.executable, "-m", "sndr.cli", "router", "serve", "--config", config],
            capture_output=True, text=True, cwd=ROOT, env=environment(**CREDENTIALS, SNDR_LOOP=loop), timeout=60,
        )  # fmt: skip
        assert second.returncode == 2
        assert "listen_failed" in second.stderr
        raw = UnixRaw(path)  # the second one took nothing from the first
        assert raw.send(request(chat())).answer().status == 200
        raw.close()
        assert gateway.stop() == 0
    assert not path.exists()


def test_what_is_not_a_socket_stays(tmp_path: Path, upstream: Synthetic) -> None:
    path = tmp_path / "s.sock"
    path.write_text("mine")
    config = boot_file(tmp_path, upstream.base_url)
    config.write_text(config.read_text().replace("127.0.0.1:0", f"unix:{path}"))
    with gateway_process(config) as gateway:
        assert gateway.process.wait(30) == 2
    assert path.read_text() == "mine"


def test_a_successors_socket_is_not_removed(tmp_path: Path, upstream: Synthetic) -> None:
    path = tmp_path / "s.sock"
    config = boot_file(tmp_path, upstream.base_url)
    config.write_text(config.read_text().replace("127.0.0.1:0", f"unix:{path}"))
    with gateway_process(config) as gateway:
        gateway.wait_event(lambda line: line["event"] == "listening")
        path.unlink()
        with gateway_process(config) as successor:
            successor.wait_event(lambda line: line["event"] == "listening")
            assert gateway.stop() == 0
            raw = UnixRaw(path)
            assert raw.send(request(chat())).answer().status == 200
            raw.close()


@pytest.mark.skipif(not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"), reason="needs IPv6")
def test_ipv6_beside_ipv4(tmp_path: Path, upstream: Synthetic) -> None:
    config = boot_file(tmp_path, upstream.base_url)
    config.write_text(config.read_text().replace('"127.0.0.1:0"', '"127.0.0.1:0", "[::1]:0"'))
    with gateway_process(config) as gateway:
        four, six = gateway.wait_event(lambda line: line["event"] == "listening")["addresses"]
        assert four.startswith("127.0.0.1:")
        assert re.fullmatch(r"\[::1\]:\d+", six)
        for address in (four, six):
            assert ask(f"http://{address}", request(chat())).status == 200


# -- proxies in front --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trusted", "forwarded", "address", "scheme"),
    [
        ('["127.0.0.0/8"]', {"X-Forwarded-For": "198.51.100.7"}, "198.51.100.7", "http"),
        ('["127.0.0.1"]', {"X-Forwarded-For": "203.0.113.9, 198.51.100.7"}, "198.51.100.7", "http"),
        ('["127.0.0.1", "198.51.100.7"]', {"X-Forwarded-For": "203.0.113.9, 198.51.100.7"}, "203.0.113.9", "http"),
        ('["127.0.0.1"]', {"X-Forwarded-For": "[2001:db8::1]:4", "X-Forwarded-Proto": "https"}, "2001:db8::1", "https"),
        ('["127.0.0.1"]', {"X-Forwarded-For": "nonsense, <b>", "X-Forwarded-Proto": "gopher"}, "127.0.0.1", "http"),
        ('["10.0.0.0/8"]', {"X-Forwarded-For": "198.51.100.7", "X-Forwarded-Proto": "https"}, "127.0.0.1", "http"),
        ('["unix"]', {"X-Forwarded-For": "198.51.100.7"}, "127.0.0.1", "http"),
    ],
)  # fmt: skip
def test_forwarding_fields_count_from_trusted_proxies_only(
    tmp_path: Path, upstream: Synthetic, trusted: str, forwarded: dict[str, str], address: str, scheme: str
) -> None:
    config = boot_file(tmp_path, upstream.base_url, server=f"trusted_proxies = {trusted}")
    with gateway_process(config) as gateway, connected(gateway.url) as raw:
        for name in ("first", "again"):  # a head that repeats is not read again
            answer = raw.send(request(chat(), headers={**forwarded, "x-request-id": name})).answer()
            assert answer.status == 200
            line = line_of(gateway, name)
            assert (line["address"], line["scheme"]) == (address, scheme)
        refused = raw.send(request(chat(model="nobody"), headers={**forwarded, "x-request-id": "refused"})).answer()
        assert refused.status == 404
        assert line_of(gateway, "refused")["address"] == address
        seen = upstream.log("first")[-1]
        assert not {"x-forwarded-for", "x-forwarded-proto"} & {name.lower() for name in seen["headers"]}


def test_through_a_unix_socket_the_proxy_is_trusted_by_name(tmp_path: Path, upstream: Synthetic) -> None:
    path = tmp_path / "s.sock"
    config = boot_file(tmp_path, upstream.base_url, server='trusted_proxies = ["unix"]')
    config.write_text(config.read_text().replace("127.0.0.1:0", f"unix:{path}"))
    with gateway_process(config) as gateway:
        gateway.wait_event(lambda line: line["event"] == "listening")
        raw = UnixRaw(path)
        headers = {"X-Forwarded-For": "198.51.100.7", "X-Forwarded-Proto": "https", "x-request-id": "u"}
        assert raw.send(request(chat(), headers=headers)).answer().status == 200
        raw.close()
        line = line_of(gateway, "u")
        assert (line["address"], line["scheme"]) == ("198.51.100.7", "https")


def test_without_proxies_no_address_is_logged(tmp_path: Path, upstream: Synthetic) -> None:
    with gateway_process(boot_file(tmp_path, upstream.base_url)) as gateway:
        headers = {"X-Forwarded-For": "198.51.100.7", "x-request-id": "quiet"}
        assert ask(gateway.url, request(chat(), headers=headers)).status == 200
        assert not {"address", "scheme"} & set(line_of(gateway, "quiet"))
        assert "198.51.100.7" not in "".join(gateway.raw)


# -- pages of other origins --------------------------------------------------------------------------------------------

PAGE = "https://chat.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def open_to_a_page(upstream: Synthetic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("cors")
    config = boot_file(directory, upstream.base_url)
    text = config.read_text().replace("[router]\n", f'[server.cors]\nallow_origins = ["{PAGE}"]\n[router]\n')
    config.write_text(text)
    with gateway_process(config) as running:
        yield running


def test_a_preflight_needs_no_credential(open_to_a_page: Gateway) -> None:
    with connected(open_to_a_page.url) as raw:
        for _ in range(2):
            data = request(method="OPTIONS", key=None, headers=PREFLIGHT)
            answer = raw.send(data).answer()
            assert (answer.status, answer.body) == (204, b"")
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert answer.headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
def test_the_page_may_read_answers_and_refusals(open_to_a_page: Gateway, stream: bool) -> None:
    with connected(open_to_a_page.url) as raw:
        for body, status in ((chat(stream), 200), (chat(stream, model="nobody"), 404), (chat(stream), 200)):
            answer = raw.send(request(body, headers={"Origin": PAGE})).answer()
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == PAGE
            exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
            assert {name for name in _NOT_SENT_BACK if name.startswith(b"x-sndr-")} <= {n.encode() for n in exposed}
            assert {"x-request-id", "request-id", "retry-after"} <= set(exposed)
        assert (
            raw.send(request(method="GET", path="/v1/models", headers={"Origin": PAGE}))
            .answer()
            .headers["access-control-allow-origin"]
        )
        assert (
            raw.send(request(chat(), key="wrong", headers={"Origin": PAGE}))
            .answer()
            .headers["access-control-allow-origin"]
        )


def test_other_pages_and_the_operators_paths_stay_closed(open_to_a_page: Gateway) -> None:
    with connected(open_to_a_page.url) as raw:
        for origin in ("https://elsewhere.example", "null", PAGE + ":8443", "http://chat.example"):
            answer = raw.send(request(method="OPTIONS", key=None, headers={**PREFLIGHT, "Origin": origin})).answer()
            assert answer.status == 204
            assert "access-control-allow-origin" not in answer.headers
            assert answer.headers["vary"] == "Origin"
        for path in ("/v1/admin/tiers", "/v1/router/status", "/metrics"):
            data = request(method="GET", path=path, key=OPERATOR, headers={"Origin": PAGE})
            answer = raw.send(data).answer()
            assert answer.status == 200
            assert "access-control-allow-origin" not in answer.headers


def test_options_is_answered_only_when_configured(tmp_path: Path, upstream: Synthetic) -> None:
    with gateway_process(boot_file(tmp_path, upstream.base_url)) as gateway:
        assert ask(gateway.url, request(method="OPTIONS", key=None, headers=PREFLIGHT)).status == 401
        assert ask(gateway.url, request(method="OPTIONS", headers=PREFLIGHT)).status == 405
        answer = ask(gateway.url, request(chat(), headers={"Origin": PAGE}))
        assert answer.status == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_origin(tmp_path: Path, upstream: Synthetic) -> None:
    config = boot_file(tmp_path, upstream.base_url)
    config.write_text(config.read_text().replace("[router]\n", '[server.cors]\nallow_origins = ["*"]\n[router]\n'))
    with gateway_process(config) as gateway:
        answer = ask(gateway.url, request(chat(), headers={"Origin": "https://any.example"}))
        assert answer.headers["access-control-allow-origin"] == "*"


# -- the service manager -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_service_manager_is_told(tmp_path: Path, upstream: Synthetic, kind: str) -> None:
    name = os.fspath(tmp_path / "notify") if kind == "path" else f"@sndr-test-{os.getpid()}"
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.settimeout(30)
    manager.bind("\0" + name[1:] if kind == "abstract" else name)
    config = boot_file(tmp_path, upstream.base_url)
    command = [sys.executable, "-m", "sndr.cli", "router", "serve", "--config", os.fspath(config)]
    env = environment(**CREDENTIALS, NOTIFY_SOCKET=name)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT, env=env)
    try:
        assert manager.recv(1000) == b"READY=1"
        process.send_signal(signal.SIGHUP)
        assert manager.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert manager.recv(1000) == b"READY=1"
        process.terminate()
        assert manager.recv(1000) == b"STOPPING=1"
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        manager.close()


# -- logs --------------------------------------------------------------------------------------------------------------


def decisions(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_decision_log_says_where_each_request_went(tmp_path: Path, upstream: Synthetic) -> None:
    log = tmp_path / "decisions.jsonl"
    server = f'decision_log_path = "{log}"\nusage_path = "{tmp_path}/u.db"'
    with gateway_process(boot_file(tmp_path, upstream.base_url, server=server)) as gateway:
        assert ask(gateway.url, request(chat(), headers={"x-request-id": "in"})).status == 200
        assert ask(gateway.url, request(chat(model="nobody"), headers={"x-request-id": "out"})).status == 404
        data = request({"reason": "weights"}, path="/v1/admin/tiers/primary/quiesce", key=OPERATOR)
        assert ask(gateway.url, data).status == 200
        assert ask(gateway.url, request(chat(), headers={"x-request-id": "closed"})).status == 503
        assert gateway.stop() == 0
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    lines = decisions(log)
    routes = {line["id"]: line for line in lines if line["event"] == "route"}
    assert [routes[name]["decision"] for name in ("in", "out", "closed")] == ["admitted", "model_not_found", "quiesced"]
    assert [routes[name]["tier"] for name in ("in", "out", "closed")] == ["primary", None, "primary"]
    assert routes["in"]["tier_generation"] == 1
    assert [line["tier"] for line in lines if line["event"] == "quiesced"] == ["primary"]
    [asked] = [line for line in lines if line["event"] == "management"]
    assert asked["status"] == 200
    text = log.read_text()
    for secret in (KEY, OPERATOR, "hello", upstream.address):
        assert secret not in text


def test_a_hangup_lets_go_of_a_log_that_was_renamed(tmp_path: Path, upstream: Synthetic) -> None:
    log, old = tmp_path / "decisions.jsonl", tmp_path / "decisions.jsonl.1"
    config = boot_file(
        tmp_path, upstream.base_url, server=f'decision_log_path = "{log}"\nusage_path = "{tmp_path}/u.db"'
    )
    with gateway_process(config) as gateway:
        for number in range(3):
            assert ask(gateway.url, request(chat(), headers={"x-request-id": f"before-{number}"})).status == 200
        wait_idle(gateway.url)
        log.rename(old)
        gateway.process.send_signal(signal.SIGHUP)
        said = gateway.wait_event(lambda line: line["event"] == "reloaded")
        assert said["decision_log"] == "reopened"
        for number in range(3):
            assert ask(gateway.url, request(chat(), headers={"x-request-id": f"after-{number}"})).status == 200
        log.parent.joinpath("gone").mkdir()
        assert gateway.stop() == 0
    # A line that waited at the moment of the signal may be in either; none is lost or written twice.
    before, after = [line["id"] for line in decisions(old)], [line["id"] for line in decisions(log)]
    assert sorted(before + after) == [f"after-{n}" for n in range(3)] + [f"before-{n}" for n in range(3)]
    assert not [name for name in before if name.startswith("after")]


def test_a_decision_log_that_cannot_be_opened_is_one_line(tmp_path: Path, upstream: Synthetic) -> None:
    config = boot_file(tmp_path, upstream.base_url, server=f'decision_log_path = "{tmp_path}/none/there.jsonl"')
    with gateway_process(config) as gateway:
        assert gateway.process.wait(30) == 2
    assert len(gateway.raw) == 1
    assert "decision_log_unusable" in gateway.raw[0]


def test_the_log_as_text(tmp_path: Path, upstream: Synthetic) -> None:
    with gateway_process(
        boot_file(tmp_path, upstream.base_url), "--listen", "127.0.0.1:0", "--log-format", "text"
    ) as gateway:
        with gateway._more:
            assert gateway._more.wait_for(lambda: any(" listening " in line for line in gateway.raw), 30)
        url = "http://" + re.findall(r'listening addresses=\["([^"]+)"\]', "".join(gateway.raw))[0]
        assert ask(url, request(chat(), headers={"x-request-id": "plain"})).status == 200
        assert gateway.stop() == 0
    [line] = [line for line in gateway.raw if " id=plain " in line]
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info request id=plain client=default endpoint=chat alias=llm\.primary"
        r" tier=primary outcome=completed status=200 first_byte_ms=\d+ total_ms=\d+ prompt_tokens=\d+"
        r" completion_tokens=\d+\n",
        line,
    )


# -- receipts ----------------------------------------------------------------------------------------------------------


def test_receipt_headers_name_alias_and_tier(tmp_path: Path, upstream: Synthetic) -> None:
    names = ("x-sndr-alias", "x-sndr-tier")
    with gateway_process(boot_file(tmp_path, upstream.base_url, router="receipt_headers = true")) as gateway:
        for stream in (False, True):
            answer = ask(gateway.url, request(chat(stream)))
            assert [answer.headers.get(name) for name in names] == ["llm.primary", "primary"]
    with gateway_process(boot_file(tmp_path, upstream.base_url)) as gateway:
        assert not [name for name in ask(gateway.url, request(chat())).headers if name.startswith("x-sndr")]


def test_an_id_that_the_gateway_makes_is_a_uuid(tmp_path: Path, upstream: Synthetic) -> None:
    with gateway_process(boot_file(tmp_path, upstream.base_url)) as gateway:
        made = {ask(gateway.url, request(chat())).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    assert all(str(uuid.UUID(one, version=4)) == one for one in made)
