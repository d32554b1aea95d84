"""A gateway over its life: start, shutdown with running streams, leaks after aborts, neighbours of a bad server."""

# ruff: noqa: SIM117 - one server per line reads better than all of them in one statement

from __future__ import annotations

import json
import random
import re
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import Gateway, gateway_process
from tests.support.live import OPERATOR
from tests.support.raw import Raw, ask, boot_file, chat, connected, operator_get, request, wait_idle
from tests.support.synthetic import synthetic_process

LEDGER = 'usage_path = "usage.sqlite"'
LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


def descriptors(gateway: Gateway) -> int:
    return len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir()))


@LOOPS
def test_shutdown_lets_streams_finish_and_refuses_new_work(tmp_path: Path, loop: str) -> None:
    with synthetic_process() as upstream:
        path = boot_file(tmp_path, upstream.base_url, server=LEDGER)
        with (
            gateway_process(path, SNDR_LOOP=loop) as gateway,
            connected(gateway.url) as raw,
            connected(gateway.url) as idle,
        ):
            idle.send(request(method="GET", path="/readyz"))
            assert idle.answer().status == 200
            raw.send(request(chat(True, synthetic={"tokens": 20, "token_delay_ms": 30})))
            raw.until(b" t2")
            gateway.process.send_signal(signal.SIGTERM)
            assert idle.closed()
            answer = raw.rest()
            assert b" t19" in answer
            assert b"[DONE]" in answer
            assert gateway.process.wait(20) == 0
            with pytest.raises(OSError):
                Raw(gateway.url)


@LOOPS
def test_the_grace_limit_cuts_with_one_event(tmp_path: Path, loop: str) -> None:
    with synthetic_process() as upstream:
        path = boot_file(tmp_path, upstream.base_url, server=f"{LEDGER}\nshutdown_grace_s = 0.3")
        with (
            gateway_process(path, SNDR_LOOP=loop) as gateway,
            connected(gateway.url) as raw,
            connected(gateway.url) as waiting,
        ):
            raw.send(
                request(chat(True, synthetic={"tokens": 500, "token_delay_ms": 20}), headers={"x-request-id": "c"})
            )
            raw.until(b" t2")
            waiting.send(request(chat(synthetic={"first_delay_ms": 60_000})))
            upstream.wait(requests=2)
            gateway.process.send_signal(signal.SIGTERM)
            late = waiting.answer()
            assert (late.status, late.code) == (503, "shutting_down")
            text = raw.rest()
            assert text.count(b'"shutting_down"') == 1
            assert b"[DONE]" not in text
            assert gateway.process.wait(20) == 0
            line = gateway.wait_event(lambda line: line["event"] == "request" and line["id"] == "c")
            assert (line["outcome"], line["error_code"]) == ("shutdown_cut", "shutting_down")
            upstream.wait(in_flight=0)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with synthetic_process() as upstream:
        with gateway_process(boot_file(tmp_path, upstream.base_url)) as gateway, connected(gateway.url) as raw:
            raw.send(request(chat(True, synthetic={"tokens": 500, "token_delay_ms": 50})))
            raw.until(b" t2")
            gateway.process.send_signal(signal.SIGTERM)
            gateway.wait_event(lambda line: line["event"] == "stopping")
            gateway.process.send_signal(signal.SIGTERM)
            assert gateway.process.wait(5) == 1


@LOOPS
@pytest.mark.req("R16", "R17")
def test_random_aborts_leave_nothing_behind(tmp_path: Path, loop: str) -> None:
    """The small version of `tests/benchmarks/gateway/aborts.py`."""
    chance = random.Random(7)
    with synthetic_process() as upstream:
        path = boot_file(tmp_path, upstream.base_url, server=LEDGER, tier="max_concurrency = 8")
        with gateway_process(path, SNDR_LOOP=loop) as gateway:
            url = gateway.url
            wait_idle(url)
            before = descriptors(gateway)
            for _ in range(250):
                raw = Raw(url)
                plan = {"tokens": chance.randrange(1, 20), "token_delay_ms": chance.choice([0, 1, 5])}
                data = request(chat(chance.random() < 0.7, synthetic=plan))
                raw.send(data[: chance.choice([len(data), len(data), len(data), len(data) - 5, 40])])
                for _ in range(chance.randrange(3)):
                    raw.sock.settimeout(0.02)
                    try:
                        raw.sock.recv(chance.choice([1, 100, 65536]))
                    except TimeoutError:
                        break
                if chance.random() < 0.5:
                    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                raw.close()
            tier = wait_idle(url)
            assert (tier["in_flight"], tier["queued"]) == (0, 0)
            upstream.wait(in_flight=0)
            assert ask(url, request(chat())).status == 200
            deadline = time.monotonic() + 10
            while descriptors(gateway) > before + 10:  # idle upstream connections are closed after four seconds
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert not [line for line in gateway.lines if line["event"] == "internal_error"]
            assert gateway.stop() == 0


@LOOPS
def test_a_reader_that_stops_costs_bounded_memory(tmp_path: Path, loop: str) -> None:
    with synthetic_process() as upstream:
        with gateway_process(boot_file(tmp_path, upstream.base_url, server=LEDGER), SNDR_LOOP=loop) as gateway:
            with connected(gateway.url) as raw:
                raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                raw.send(request(chat(True, synthetic={"tokens": 4000, "pad_bytes": 20_000})))  # 80 MB
                raw.until(b" t0")
                upstream_id = upstream.log()[-1]["n"]
                settled, sent = 0, -1
                while settled < 5:
                    time.sleep(0.1)
                    now = next(row for row in upstream.log() if row["n"] == upstream_id)["bytes_sent"]
                    settled, sent = (settled + 1, sent) if now == sent else (0, now)
                text = Path(f"/proc/{gateway.process.pid}/status").read_text()
                rss_kib = int(text.split("VmRSS:")[1].split()[0])
                assert rss_kib < 120_000
                assert operator_get(gateway.url, "/v1/router/status")["tiers"][0]["in_flight"] == 1
            wait_idle(gateway.url)


@pytest.mark.req("R16")
def test_a_lease_lasts_until_the_client_has_the_last_byte(tmp_path: Path) -> None:
    with synthetic_process() as upstream:
        with gateway_process(boot_file(tmp_path, upstream.base_url, server=LEDGER)) as gateway:
            with connected(gateway.url) as raw:
                raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
                raw.send(request(chat(synthetic={"tokens": 400, "pad_bytes": 20_000}), headers={"x-request-id": "s"}))
                head = raw.until(b"\r\n\r\n").lower()
                tier = operator_get(gateway.url, "/v1/router/status")["tiers"][0]
                assert tier["in_flight"] == 1
                raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                left = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) - len(raw.buffer)
                while left:
                    data = raw.sock.recv(1 << 20)
                    assert data
                    left -= len(data)
            wait_idle(gateway.url)
            assert operator_get(gateway.url, "/v1/requests/s")["outcome"] == "completed"


def test_a_server_that_accepts_and_never_answers_does_not_stop_its_neighbour(tmp_path: Path) -> None:
    with synthetic_process() as upstream, socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        path = boot_file(tmp_path, upstream.base_url)
        path.write_text(
            path.read_text().replace(
                "[router.model_routes]",
                f'[[router.tiers]]\nid = "deaf"\nbase_url = "http://127.0.0.1:{port}/v1"\nmodel = "m1"\n'
                '[router.model_routes]\ndeaf = "deaf"',
            )
        )
        with gateway_process(path) as gateway:
            stuck = [Raw(gateway.url).send(request(chat() | {"model": "deaf"})) for _ in range(50)]
            for _ in range(20):
                assert ask(gateway.url, request(chat())).status == 200
            for raw in stuck:
                raw.close()


class Busy:
    """A model server that streams until told to pause, and from then on answers no probe once it is told to be deaf."""

    def __init__(self) -> None:
        self.deaf = threading.Event()
        self.paused = threading.Event()
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if outer.deaf.is_set():
                    outer.over.wait()
                    return
                body = b'{"object":"list","data":[{"id":"m1"}]}'
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                while not outer.paused.wait(0.02):
                    self.wfile.write(b'data: {"choices":[{"index":0,"delta":{"content":" t"}}]}\n\n')
                outer.over.wait()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __enter__(self) -> Busy:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.paused.set()
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


def test_a_tier_that_streams_is_not_ejected_by_probes_that_time_out(tmp_path: Path) -> None:
    # What counts as lately is two of these timeouts: a stream on a slow machine must not pause that long by itself.
    router = "probe_timeout_s = 2\nprobe_failures = 1\nprobe_interval_s = 0.1"
    with Busy() as upstream:
        path = boot_file(tmp_path, upstream.base_url)
        path.write_text(path.read_text().replace("probe_interval_s = 0.2", router))
        with gateway_process(path) as gateway, connected(gateway.url) as raw:
            raw.send(request(chat(True)))
            raw.until(b" t")
            upstream.deaf.set()
            timed_out = 'sndr_probe_total{tier="primary",result="probe_timeout"}'
            ends = time.monotonic() + 60
            while timed_out not in httpx.get(f"{gateway.url}/metrics", headers=OPERATOR, trust_env=False).text:
                assert time.monotonic() < ends
                raw.sock.recv(1 << 16)
            assert operator_get(gateway.url, "/v1/router/status")["tiers"][0]["ready"]
            assert not [line for line in gateway.lines if line["event"] == "tier_unready"]
            upstream.paused.set()
            gateway.wait_event(lambda line: line["event"] == "tier_unready", 60)


def test_too_many_connections_are_told_so(tmp_path: Path) -> None:
    with synthetic_process() as upstream:
        path = boot_file(tmp_path, upstream.base_url, server="max_connections = 5")
        with gateway_process(path) as gateway:
            held = [Raw(gateway.url) for _ in range(5)]
            assert held[-1].send(request(method="GET", path="/livez")).answer().status == 200
            with connected(gateway.url) as raw:
                assert raw.answer().status == 503
                assert raw.closed()
            for raw in held:
                raw.close()
            deadline = time.monotonic() + 10
            while ask(gateway.url, request(method="GET", path="/livez")).status != 200:
                assert time.monotonic() < deadline


def test_connections_are_as_many_as_the_descriptors_allow(tmp_path: Path) -> None:
    """Two for each, the model server's too, and 64 for everything else; the soft limit is raised to the hard one."""
    with synthetic_process() as upstream:
        path = boot_file(tmp_path, upstream.base_url, server="max_connections = 500")
        with gateway_process(path, shell="ulimit -S -n 90; ulimit -H -n 100") as gateway:
            held = [Raw(gateway.url) for _ in range(18)]
            assert held[-1].send(request(method="GET", path="/livez")).answer().status == 200
            with connected(gateway.url) as raw:
                assert raw.answer().status == 503
            for raw in held:
                raw.close()
            limits = Path(f"/proc/{gateway.process.pid}/limits").read_text()
            assert re.search(r"^Max open files +100 +100 ", limits, re.MULTILINE)


def test_descriptors_running_out_gives_answers_not_a_hang(tmp_path: Path) -> None:
    with synthetic_process() as upstream:
        path = boot_file(tmp_path, upstream.base_url)
        with gateway_process(path) as gateway:
            import resource

            url = gateway.url
            assert ask(url, request(chat())).status == 200
            now = descriptors(gateway)
            resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (now + 3, 4096))
            held: list[Raw] = []
            statuses: list[int] = []

            def press() -> None:
                for _ in range(12):
                    raw = Raw(url)
                    held.append(raw)
                    raw.send(request(chat(True, synthetic={"tokens": 100, "token_delay_ms": 20})))
                    try:
                        raw.sock.settimeout(1)
                        statuses.append(raw.answer_head())
                    except (AssertionError, OSError):
                        statuses.append(0)

            thread = threading.Thread(target=press)
            thread.start()
            thread.join(30)
            assert not thread.is_alive()
            for raw in held:
                raw.close()
            resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (4096, 4096))
            deadline = time.monotonic() + 10
            while True:
                try:
                    if ask(url, request(chat())).status == 200:
                        break
                except (AssertionError, OSError):
                    pass
                assert time.monotonic() < deadline
            assert len(gateway.raw) < 200
            assert 503 in statuses or 0 in statuses


def test_log_lines_hold_no_content(tmp_path: Path) -> None:
    with synthetic_process() as upstream:
        with gateway_process(boot_file(tmp_path, upstream.base_url, server=LEDGER)) as gateway:
            secret = "prompt-text-nobody-may-log"
            ask(gateway.url, request(chat(messages=[{"role": "user", "content": secret}])))
            ask(gateway.url, request({"model": secret}))
            ask(gateway.url, request(chat(), key=secret))
            gateway.wait_event(lambda line: line["event"] == "request" and line["error_code"] == "invalid_api_key")
            assert gateway.stop() == 0
            text = "".join(gateway.raw)
            assert secret not in text
            assert "client-key" not in text
            request_line = next(line for line in gateway.lines if line["event"] == "request")
            assert list(request_line)[:8] == ["at", "level", "event", "id", "client", "endpoint", "alias", "tier"]
            json.dumps(request_line)
