"""The nginx snippet in a real nginx: tokens arrive while the server still writes, and a client that leaves is seen."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import ROOT
from tests.support.gateway import CREDENTIALS, gateway_process
from tests.support.synthetic import Synthetic, synthetic_thread

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")

BOOT = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
[[router.tiers]]
id = "a"
base_url = "{url}"
model = "m1"
[router.model_routes]
llm = "a"
"""
NGINX = """
daemon off; pid {tmp}/nginx.pid; error_log {tmp}/error.log notice; worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {tmp}/body; proxy_temp_path {tmp}/proxy; fastcgi_temp_path {tmp}/f; uwsgi_temp_path {tmp}/u;
    scgi_temp_path {tmp}/s;
    server {{ listen unix:{tmp}/front.sock; {location} }}
}}
"""


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


@pytest.fixture
def server() -> Iterator[Synthetic]:
    with synthetic_thread() as running:
        yield running


@pytest.fixture
def front(server: Synthetic, tmp_path: Path) -> Iterator[str]:
    boot = tmp_path / "router.toml"
    boot.write_text(BOOT.format(url=server.base_url))
    [location] = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "operations.md").read_text("utf-8"), re.DOTALL)
    with gateway_process(boot) as gateway:
        location = location.replace("http://127.0.0.1:8710", gateway.url)
        config = tmp_path / "nginx.conf"
        config.write_text(NGINX.format(tmp=tmp_path, location=location))
        nginx = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(config)], stderr=subprocess.PIPE)
        try:
            path = str(tmp_path / "front.sock")
            for _ in range(1000):
                try:
                    with socket.socket(socket.AF_UNIX) as probe:
                        probe.connect(path)
                    break
                except OSError:
                    assert nginx.poll() is None, nginx.stderr and nginx.stderr.read()
                    subprocess.run(["sleep", "0.01"], check=True)
            yield path
        finally:
            nginx.terminate()
            nginx.wait(30)
            assert nginx.stderr is not None
            nginx.stderr.close()


def ask(front: str) -> tuple[UnixConnection, http.client.HTTPResponse]:
    connection = UnixConnection(front)
    body = json.dumps({"model": "llm", "stream": True, "messages": []})
    connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {CREDENTIALS['CLIENT_KEY']}"})
    return connection, connection.getresponse()


def test_tokens_arrive_while_the_server_is_stalled(front: str, server: Synthetic) -> None:
    server.set(next=[{"stall_after": 2}])
    connection, response = ask(front)
    try:
        seen = b""
        while b" t1" not in seen:
            seen += response.readline()
        assert b"[DONE]" not in seen
        server.release()
        assert response.read().endswith(b"data: [DONE]\n\n")
    finally:
        connection.close()


def test_a_client_that_leaves_reaches_the_model_server(front: str, server: Synthetic) -> None:
    server.set(next=[{"stall_after": 1}])
    connection, response = ask(front)
    while b" t0" not in response.readline():
        pass
    response.close()
    connection.close()
    server.wait(in_flight=0, ended=1)
