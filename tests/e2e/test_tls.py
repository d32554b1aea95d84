"""TLS at the listeners and towards model servers, with real handshakes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.cli import ROOT, environment
from tests.support.gateway import CREDENTIALS, Gateway, gateway_process
from tests.support.raw import Raw, boot_file, chat, connected, request
from tests.support.synthetic import Synthetic, synthetic_thread
from tests.support.tls import Pair, TlsRaw, client_context, make_pair, needs_openssl, tls_front

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def upstream() -> Iterator[Synthetic]:
    with synthetic_thread() as running:
        yield running


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def served(
    request: pytest.FixtureRequest, upstream: Synthetic, pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    config = boot_file(directory, upstream.base_url, server=pair.toml + f'usage_path = "{directory}/u.db"')
    with gateway_process(config, SNDR_LOOP=request.param) as running:
        assert running.url
        yield running


def secure(gateway: Gateway, context: ssl.SSLContext) -> TlsRaw:
    return TlsRaw(gateway.url, context)


def test_answers_and_streams(served: Gateway, pair: Pair) -> None:
    raw = secure(served, client_context(pair))
    assert raw.send(request(chat())).answer().status == 200
    answer = raw.send(request(chat(stream=True, synthetic={"tokens": 200}))).answer()
    assert answer.status == 200
    assert answer.events[-1] == "[DONE]"
    assert len(answer.events) > 200
    raw.close()


def test_http_1_1_is_what_alpn_agrees_on(served: Gateway, pair: Pair) -> None:
    context = client_context(pair)
    context.set_alpn_protocols(["h2", "http/1.1"])
    raw = secure(served, context)
    assert raw.tls.selected_alpn_protocol() == "http/1.1"
    raw.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(served: Gateway, pair: Pair) -> None:
    context = client_context(pair)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)):
        secure(served, context)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    secure(served, context).close()


def test_plain_text_gets_nothing(served: Gateway, pair: Pair) -> None:
    with connected(served.url) as raw:
        assert b"HTTP/" not in raw.send(request(chat())).rest()
    with connected(served.url):  # never says a word
        raw = secure(served, client_context(pair))
        assert raw.send(request(chat())).answer().status == 200
        raw.close()


def test_a_client_that_leaves_is_noticed(served: Gateway, upstream: Synthetic, pair: Pair) -> None:
    for politely in (False, True):
        raw = secure(served, client_context(pair))
        name = f"leaves-{politely}-{served.process.pid}"
        raw.send(request(chat(stream=True, synthetic={"tokens": 3, "stall_after": 2}), headers={"x-request-id": name}))
        raw.until(b"t1")
        if politely:
            with suppress(OSError):
                raw.tls.unwrap()  # says that it closes its side: nothing of the stream need follow
        raw.close()
        line = served.wait_event(lambda it, name=name: it.get("id") == name)
        assert line["outcome"] == "client_gone"
    upstream.wait(in_flight=0)


def test_a_long_answer_arrives_whole(served: Gateway, pair: Pair) -> None:
    raw = secure(served, client_context(pair))
    answer = raw.send(request(chat(stream=True, synthetic={"tokens": 20_000}))).answer()
    assert answer.events[-1] == "[DONE]"
    assert len(answer.events) >= 20_000
    raw.close()


def test_large_bodies_arrive_whole(served: Gateway, upstream: Synthetic, pair: Pair) -> None:
    raw = secure(served, client_context(pair))
    for size in (100_000, 5_000_000):
        name = f"large-{size}-{served.process.pid}"
        data = request(chat(messages=[{"role": "user", "content": "x" * size}]), headers={"x-request-id": name})
        assert raw.send(data + request(chat())).answer().status == 200
        assert raw.answer().status == 200  # the one that was sent ahead
        [seen] = upstream.log(name)
        assert seen["bytes"] > size
    raw.close()


def test_a_refused_upload_is_told_why(served: Gateway, pair: Pair) -> None:
    raw = secure(served, client_context(pair))
    head = request(chat(), headers={"content-length": str(1 << 30)}, data=b"")
    raw.send(head + b"x" * 200_000)
    assert raw.answer().status == 413
    assert raw.closed()
    raw.close()


def test_one_certificate_for_the_verbs(tmp_path: Path, upstream: Synthetic) -> None:
    """They trust the certificate that the boot file names, whatever name is in it, and no other."""
    pair = make_pair(tmp_path, names="DNS:router.example")
    other = make_pair(tmp_path, "other")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = boot_file(tmp_path, upstream.base_url, server=pair.toml)
    config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    with gateway_process(config) as gateway:
        assert gateway.url

        def status(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "sndr.cli", "router", "status", "--config", config, *arguments],
                capture_output=True, text=True, cwd=ROOT, env=environment(**CREDENTIALS, **environ), timeout=60,
            )  # fmt: skip

        assert status().returncode == 0
        untrusted = status("--url", f"https://127.0.0.1:{port}")
        assert (untrusted.returncode, "cannot be reached over TLS (self" in untrusted.stderr) == (5, True)
        plain = status("--url", f"http://127.0.0.1:{port}")
        assert (plain.returncode, "its address begins with https://" in plain.stderr) == (5, True)
        config.write_text(config.read_text().replace(str(pair.cert), str(other.cert)))
        assert status().returncode == 5


def test_a_hangup_reloads_the_pair_and_keeps_the_old_one_when_it_is_broken(tmp_path: Path, upstream: Synthetic) -> None:
    pair, fresh = make_pair(tmp_path), make_pair(tmp_path, "fresh")
    config = boot_file(tmp_path, upstream.base_url, server=pair.toml)
    first = pair.der

    def shown(gateway: Gateway) -> bytes | None:
        raw = secure(gateway, client_context())
        assert raw.send(request(chat())).answer().status == 200
        der = raw.tls.getpeercert(binary_form=True)
        raw.close()
        return der

    def hang_up(gateway: Gateway, count: int) -> dict[str, object]:
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_event(lambda _: sum(line["event"] == "reloaded" for line in gateway.lines) == count)
        return [line for line in gateway.lines if line["event"] == "reloaded"][-1]

    with gateway_process(config) as gateway:
        old = secure(gateway, client_context())
        assert old.send(request(chat())).answer().status == 200
        assert shown(gateway) == first
        shutil.copy(fresh.cert, pair.cert)  # the key does not belong to it
        said = hang_up(gateway, 1)
        assert said["level"] == "error"
        files = f"server.tls_cert and server.tls_key: {pair.cert}, {pair.key}"
        assert said["tls"] == f"kept: {files}: the key does not belong to the certificate"
        assert shown(gateway) == first
        shutil.copy(fresh.key, pair.key)
        assert hang_up(gateway, 2)["tls"] == "reloaded"
        assert shown(gateway) == fresh.der
        pair.key.write_text("nothing")
        assert str(hang_up(gateway, 3)["tls"]).startswith("kept: ")
        assert shown(gateway) == fresh.der
        assert old.send(request(chat())).answer().status == 200  # a connection outlives its certificate
        old.close()
        assert gateway.stop() == 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("missing", "No such file or directory"),
        ("pipe", "not a regular file"),
        ("garbage", "not a PEM certificate chain and its key without a passphrase"),
        ("swapped", "the key does not belong to the certificate"),
        ("passphrase", "not a PEM certificate chain and its key without a passphrase"),
    ],
)
def test_a_pair_that_cannot_be_used_is_one_line(tmp_path: Path, spoil: str, said: str) -> None:
    pair = make_pair(tmp_path)
    if spoil == "missing":
        pair.key.unlink()
    elif spoil == "pipe":
        pair.key.unlink()
        os.mkfifo(pair.key)
    elif spoil == "garbage":
        pair.key.write_bytes(b"\0\xff not a key")
    elif spoil == "swapped":
        shutil.copy(make_pair(tmp_path, "other").key, pair.key)
    else:
        command = ["openssl", "ec", "-in", pair.key, "-aes256", "-passout", "pass:x1y2", "-out", tmp_path / "locked"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        shutil.copy(tmp_path / "locked", pair.key)
    config = boot_file(tmp_path, "http://127.0.0.1:1/v1", server=pair.toml)
    done = subprocess.run(
        [sys.executable, "-m", "sndr.cli", "router", "serve", "--config", config],
        capture_output=True, text=True, cwd=ROOT, env=environment(**CREDENTIALS), timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "tls_unusable" in done.stderr
    assert said in done.stderr

    def check(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sndr.cli", "router", "check", "--config", config, *options],
            capture_output=True, text=True, cwd=ROOT, env=environment(**CREDENTIALS), timeout=60,
        )  # fmt: skip

    judged = check()
    key = "tls_key" if spoil in ("missing", "pipe") else "tls_cert"
    number = config.read_text().splitlines().index(next(line for line in pair.toml.splitlines() if key in line)) + 1
    assert (judged.returncode, judged.stdout, len(judged.stderr.splitlines())) == (2, "", 1)
    assert judged.stderr.startswith(f"{config}:{number}: server.")
    assert said in judged.stderr
    assert check("--without-env").returncode == 0


# -- handshakes -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["uvloop", "asyncio"])
def crowded(request: pytest.FixtureRequest, upstream: Synthetic, pair: Pair, tmp_path: Path) -> Iterator[Gateway]:
    """Few connections, and handshakes that soon take too long."""
    config = boot_file(tmp_path, upstream.base_url, server=pair.toml + "max_connections = 12\nheader_timeout_s = 3")
    with gateway_process(config, SNDR_LOOP=request.param) as running:
        assert running.url
        yield running
        assert not [line for line in running.lines if line["event"] == "internal_error"]
        assert running.stop() == 0


def descriptors(gateway: Gateway) -> int:
    return sum(1 for _ in Path(f"/proc/{gateway.process.pid}/fd").iterdir())


def hello() -> bytes:
    """The first bytes of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        client_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def secured(gateway: Gateway, pair: Pair) -> TlsRaw:
    """A connection, once there is room for one: places become free a moment after their connections are closed."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return secure(gateway, client_context(pair))
        except OSError:
            assert time.monotonic() < deadline


def ended(raw: Raw) -> bool:
    """Whether the other side closes without having said anything but an alert."""
    return len(raw.rest()) <= 7


@pytest.mark.parametrize("first", [b"", hello()[:50], hello()], ids=["silent", "half a hello", "hello"])
def test_handshakes_count_as_connections_and_end_in_time(crowded: Gateway, pair: Pair, first: bytes) -> None:
    at_rest = descriptors(crowded)
    waiting = [Raw(crowded.url) for _ in range(40)]
    for raw in waiting:
        raw.send(first)
    began = time.monotonic()
    # Those beyond the limit are told at once.
    for raw in waiting[12:]:
        assert ended(raw)
    assert time.monotonic() - began < 2
    assert descriptors(crowded) <= at_rest + 12 + 2  # probes may be under way
    for raw in waiting[:12]:
        raw.rest()
        raw.close()
    assert time.monotonic() - began > 2
    for raw in waiting[12:]:
        raw.close()
    for _ in range(30):  # nobody's place is lost
        one = secured(crowded, pair)
        assert one.send(request(chat())).answer().status == 200
        one.close()


def test_what_is_no_handshake_costs_nothing_that_lasts(crowded: Gateway, pair: Pair) -> None:
    say = hello()
    odd = [
        b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 70_000, say * 3,
        say[:-1] + b"\xff" + b"z" * 50, b"\x15\x03\x01\x00\x02\x02\x28", b"\x80\x2e\x01\x00\x02",
        b"\x16\x03\x01\x00\x00" * 10_000,
    ]  # fmt: skip
    for data in odd * 5:
        with connected(crowded.url) as raw:
            with suppress(OSError):
                raw.send(data)
                raw.sock.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                raw.rest()
    for data in (say, say[:20], b"") * 10:  # gone in the middle
        with connected(crowded.url) as raw, suppress(OSError):
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.send(data)
    for one in [secured(crowded, pair) for _ in range(12)]:  # all places are there
        assert one.send(request(chat())).answer().status == 200
        one.close()


def test_open_connections_leave_the_rest_to_handshakes(crowded: Gateway, pair: Pair) -> None:
    held = [secure(crowded, client_context(pair)) for _ in range(12)]
    for raw in held:
        assert raw.send(request(chat())).answer().status == 200
    with connected(crowded.url) as more:
        assert ended(more)
    held.pop().close()
    held.append(secured(crowded, pair))
    assert held[-1].send(request(chat())).answer().status == 200
    for raw in held:
        raw.close()


def test_a_stop_does_not_wait_for_handshakes(upstream: Synthetic, pair: Pair, tmp_path: Path) -> None:
    config = boot_file(tmp_path, upstream.base_url, server=pair.toml)
    for loop in ("uvloop", "asyncio"):
        with gateway_process(config, SNDR_LOOP=loop) as gateway:
            assert gateway.url
            raw = [Raw(gateway.url).send(hello()[:9]) for _ in range(5)]
            began = time.monotonic()
            assert gateway.stop() == 0
            assert time.monotonic() - began < 8  # shutdown_grace_s is 30, header_timeout_s 10
            for one in raw:
                assert ended(one)
                one.close()


def test_a_client_that_does_not_agree_to_the_end_is_left(served: Gateway, pair: Pair) -> None:
    at_rest = descriptors(served)
    raw = secure(served, client_context(pair))
    assert raw.send(request(chat(), headers={"connection": "close"})).answer().status == 200
    deadline = time.monotonic() + 10
    while descriptors(served) > at_rest + 2:  # the idle connection to the server, and a probe
        assert time.monotonic() < deadline
        time.sleep(0.05)
    raw.close()


def test_ipv6_and_names_with_several_addresses(upstream: Synthetic, pair: Pair, tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    config = boot_file(tmp_path, upstream.base_url, server=pair.toml)
    config.write_text(config.read_text().replace('"127.0.0.1:0"', '"[::1]:0", "127.0.0.1:0"'))
    with gateway_process(config) as gateway:
        addresses = gateway.wait_event(lambda line: line["event"] == "listening")["addresses"]
        assert len(addresses) == 2
        for address in addresses:
            raw = TlsRaw(f"http://{address}", client_context(pair))
            assert raw.send(request(chat())).answer().status == 200
            raw.close()


# -- model servers ----------------------------------------------------------------------------------------------------


def to_upstream(tmp_path: Path, url: str, trusted: Path) -> Iterator[Gateway]:
    config = boot_file(tmp_path, url, server=f'usage_path = "{tmp_path}/u.db"')
    with gateway_process(config, SSL_CERT_FILE=str(trusted)) as gateway:
        yield gateway


def test_a_model_server_behind_tls(tmp_path: Path, upstream: Synthetic) -> None:
    pair = make_pair(tmp_path)
    with tls_front(pair, upstream.address) as front:
        for gateway in to_upstream(tmp_path, f"https://localhost:{front.port}/v1", pair.cert):
            with connected(gateway.url) as raw:
                for _ in range(3):
                    assert raw.send(request(chat())).answer().status == 200
                answer = raw.send(request(chat(stream=True, synthetic={"tokens": 50}))).answer()
            assert answer.events[-1] == "[DONE]"
            assert set(front.names) == {"localhost"}  # probes as well
            assert front.protocols.count("http/1.1") >= 1
            ready = front.handshakes
            with connected(gateway.url) as raw:
                for _ in range(20):
                    assert raw.send(request(chat())).answer().status == 200
            assert front.handshakes - ready < 10  # requests share a connection; probes do not


@pytest.mark.parametrize("fault", ["authority", "name"])
def test_a_model_server_that_is_not_who_it_should_be_gets_no_request(
    tmp_path: Path, upstream: Synthetic, fault: str
) -> None:
    pair = make_pair(tmp_path, names="DNS:localhost" if fault == "authority" else "DNS:elsewhere.example")
    trusted = make_pair(tmp_path, "other") if fault == "authority" else pair
    before = upstream.stats()["requests"]
    with tls_front(pair, upstream.address) as front:
        url = f"https://localhost:{front.port}/v1"
        for gateway in to_upstream(tmp_path, url, trusted.cert):
            assert gateway.url
            with connected(gateway.url) as raw:
                answer = raw.send(request(chat())).answer()
                assert (answer.status, answer.code) == (503, "not_ready")
        config = tmp_path / "gateway.toml"
        config.write_text(config.read_text().replace('health_path = "/health"', ""))
        with gateway_process(config, SSL_CERT_FILE=str(trusted.cert)) as gateway:
            with connected(gateway.url) as raw:
                answer = raw.send(request(chat())).answer()
            assert (answer.status, answer.code) == (502, "upstream_unreachable")
            assert urlsplit(url).hostname not in answer.body.decode()
    assert upstream.stats()["requests"] == before


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_model_server_that_does_not_agree_to_the_end_is_left(tmp_path: Path, loop: str) -> None:
    pair = make_pair(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    listening = socket.create_server(("127.0.0.1", 0))
    kept: list[ssl.SSLSocket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                secure = context.wrap_socket(listening.accept()[0], server_side=True)
                kept.append(secure)
                while not secure.recv(65536).endswith(b"}"):
                    pass
                secure.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")

    threading.Thread(target=serve, daemon=True).start()
    config = boot_file(tmp_path, f"https://localhost:{listening.getsockname()[1]}/v1")
    config.write_text(config.read_text().replace('health_path = "/health"', ""))
    with gateway_process(config, SSL_CERT_FILE=str(pair.cert), SNDR_LOOP=loop) as gateway:
        assert gateway.url
        at_rest = descriptors(gateway)
        for _ in range(10):
            with connected(gateway.url) as raw:
                assert raw.send(request(chat())).answer().status == 200
        deadline = time.monotonic() + 15
        while descriptors(gateway) > at_rest:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    listening.close()
    for one in kept:
        one.close()
