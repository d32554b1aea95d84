"""The same job through three front doors: this gateway, `nginx -s reload`, and HAProxy's runtime API.

    python tests/benchmarks/routes/proxies.py [--seconds 40] [--moves 10] [--replacements 4] [--clients 80]

Each door in turn, over the same model servers and under the same streams: alias `q` moves between two servers, the
server behind `p` is replaced by another, `r` and `s` are left alone. Told are requests that failed, were cut or
refused; how long a change takes until a new request is answered by the new server; requests that reached the old
server after the change had been reported done, and streams that it still had then; and what is left of the last change
after a kill -9 of everything.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path

from tests.support.changes import kinds
from tests.support.cli import ROOT, environment
from tests.support.gateway import CREDENTIALS, Gateway
from tests.support.live import CLIENT, Operator, boot_text, init, private
from tests.support.synthetic import Synthetic, synthetic_process
from tests.support.traffic import Traffic

SERVES = {"a1": "p", "a2": "p", "b1": "q", "b2": "q", "r": "r", "s": "s"}
"""Server -> the model that it serves: the alias itself, since the proxies hand bodies on as they are."""
AT_FIRST = {"p": "a1", "q": "b1", "r": "r", "s": "s"}
BEHIND = {"a": "a1", "b1": "b1", "b2": "b2", "r": "r", "s": "s"}


class Door(ABC):
    """A way in, and how its operator changes where an alias leads."""

    name: str
    url: str

    def __init__(self, directory: Path, servers: dict[str, Synthetic]) -> None:
        self.directory = directory
        self.servers = servers
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Serve; what was started before is gone."""

    @abstractmethod
    def point(self, alias: str, server: str) -> None:
        """Lead an alias to another server; returns when the tool says that it is done."""

    def end(self) -> None:
        """Kill -9 of all of its processes."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
            self.process = None

    def _run(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        host, port = self.url.removeprefix("http://").split(":")
        ends = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if not probe.connect_ex((host, int(port))):
                    return
            assert time.monotonic() < ends, self.name
            time.sleep(0.02)


class Sndr(Door):
    """This gateway: alias updates, and tier replacements that hold, drain, commit and verify."""

    name = "sndr router"
    gateway: Gateway | None = None

    def start(self) -> None:
        place = private(self.directory / "sndr")
        config = place / "gateway.toml"
        if not config.exists():
            tiers = {
                tier_id: {"base_url": self.servers[name].base_url, "model": SERVES[name]}
                for tier_id, name in BEHIND.items()
            }
            config.write_text(boot_text(place, tiers, {"p": "a", "q": "b1", "r": "r", "s": "s", "unused": "b2"}))
            init(config)
        command = [sys.executable, "-m", "sndr.cli", "router", "serve", "--config", os.fspath(config)]
        process = subprocess.Popen(
            [*command, "--allow-volatile-filesystem"],
            stderr=subprocess.PIPE, cwd=ROOT, env=environment(**CREDENTIALS), start_new_session=True,
        )  # fmt: skip
        self.process = process
        self.gateway = Gateway(config, process)
        self.url = self.gateway.url

    def point(self, alias: str, server: str) -> None:
        assert self.gateway is not None
        with Operator(self.gateway) as operator:
            if alias == "q":
                operator.change(op="alias_update", aliases={"q": {"tier": server}})
            else:
                target = {"base_url": self.servers[server].base_url, "model": SERVES[server]}
                operator.change({"drain_timeout_s": 60}, op="tier_replacement", tiers={"a": target})

    def end(self) -> None:
        super().end()
        if self.gateway is not None:
            self.gateway.kill()
            self.gateway = None


class Nginx(Door):
    """A map from alias to address, rewritten, and a reload."""

    name = "nginx -s reload"

    def start(self) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.config = self.directory / "nginx.conf"
        if not self.config.exists():
            self.routes = dict(AT_FIRST)
        self._write()
        self._run("nginx", "-p", os.fspath(self.directory), "-c", os.fspath(self.config))

    def _write(self) -> None:
        lines = "".join(f"{alias} {self.servers[server].address};" for alias, server in self.routes.items())
        text = (
            f"daemon off; pid {self.directory}/nginx.pid; error_log {self.directory}/nginx.log; worker_processes 2;\n"
            f"events {{ worker_connections 4096; }} http {{ access_log off; map $http_x_alias $door {{ {lines} }}\n"
            f"server {{ listen {self.url.removeprefix('http://')}; location / {{ proxy_pass http://$door;"
            ' proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;'
            " proxy_read_timeout 120s; }}}\n"
        )
        new = self.config.with_suffix(".new")
        new.write_text(text)
        new.replace(self.config)

    def point(self, alias: str, server: str) -> None:
        self.routes[alias] = server
        self._write()
        command = ["nginx", "-p", os.fspath(self.directory), "-c", os.fspath(self.config), "-s", "reload"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


class HAProxy(Door):
    """A map entry, and a server's address, set over the runtime API."""

    name = "HAProxy runtime API"

    def start(self) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.socket = self.directory / "haproxy.sock"
        self.map = self.directory / "haproxy.map"
        self.map.write_text("p a\nq b1\nr r\ns s\n")
        backends = "".join(
            f"backend {name}\n  server s {self.servers[server].address}\n" for name, server in BEHIND.items()
        )
        config = self.directory / "haproxy.cfg"
        config.write_text(
            f"global\n  stats socket {self.socket} level admin\ndefaults\n  mode http\n  timeout connect 5s\n"
            "  timeout client 120s\n  timeout server 120s\n"
            f"frontend f\n  bind {self.url.removeprefix('http://')}\n"
            f"  use_backend %[req.hdr(x-alias),map({self.map})]\n{backends}"
        )
        self._run("haproxy", "-db", "-f", os.fspath(config))

    def point(self, alias: str, server: str) -> None:
        if alias == "q":
            command = f"set map {self.map} q {server}\n"
        else:
            host, port = self.servers[server].address.split(":")
            command = f"set server a/s addr {host} port {port}\n"
        with socket.socket(socket.AF_UNIX) as runtime:
            runtime.settimeout(10)
            runtime.connect(os.fspath(self.socket))
            runtime.sendall(command.encode())
            while runtime.recv(4096):
                pass


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def who(url: str, alias: str) -> str | None:
    """The server that answers now; None when nobody does."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    try:
        body = {"model": alias, "messages": []}
        headers = {**CLIENT, "content-type": "application/json", "x-alias": alias, "x-request-id": "who"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        document = json.loads(answer.read())
        return str(document["model"]) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Report:
    """What one door's run showed."""

    def __init__(self) -> None:
        self.effect: dict[str, list[float]] = {"p": [], "q": []}
        self.late: dict[str, int] = {"p": 0, "q": 0}
        self.still: dict[str, int] = {"p": 0, "q": 0}


def change(door: Door, alias: str, server: str, report: Report) -> tuple[str, float]:
    """Make one change; when it was reported done (epoch)."""
    began = time.monotonic()
    effective = threading.Event()

    def watch() -> None:
        while who(door.url, alias) != server and time.monotonic() - began < 30:
            time.sleep(0.005)
        report.effect[alias].append(time.monotonic() - began)
        effective.set()

    watching = threading.Thread(target=watch)
    watching.start()
    door.point(alias, server)
    done = time.time()
    watching.join()
    return server, done


def run(door: Door, asked: argparse.Namespace) -> Report:
    report = Report()
    for server in door.servers.values():
        server.call("POST", "/synthetic/clear")
    door.start()
    at = dict(AT_FIRST)
    other = {"a1": "a2", "a2": "a1", "b1": "b2", "b2": "b1"}
    spans: list[tuple[str, str, float, float]] = []
    load = kinds(clients=asked.clients, delay_ms=100, outside_s=asked.seconds / 3)
    with Traffic(door.url, load) as traffic:
        time.sleep(2)
        began = time.monotonic()
        due = sorted(
            [((n + 0.5) / asked.moves, "q") for n in range(asked.moves)]
            + [((n + 0.3) / asked.replacements, "p") for n in range(asked.replacements)]
        )
        retired: dict[str, tuple[str, float]] = {}
        for share, alias in due:
            time.sleep(max(0.0, began + share * asked.seconds - time.monotonic()))
            if alias in retired:
                spans.append((alias, *retired.pop(alias), time.time()))
            old, at[alias] = at[alias], other[at[alias]]
            _, done = change(door, alias, at[alias], report)
            retired[alias] = (old, done)
        time.sleep(max(0.0, began + asked.seconds - time.monotonic()))
        spans += [(alias, *span, time.time()) for alias, span in retired.items()]
    for alias, old, since, until in spans:
        for entry in door.servers[old].log():
            if entry["method"] == "POST" and entry["id"] != "who":
                report.late[alias] += since < entry["received_at"] < until
                report.still[alias] += entry["received_at"] <= since < (entry["ended_at"] or since)
    # Everything dies right after one more change of each kind has been reported done and answers as it should.
    for alias in ("q", "p"):
        for _ in range(2 if other[at[alias]] == AT_FIRST[alias] else 1):  # away from what it starts with
            at[alias] = other[at[alias]]
            change(door, alias, at[alias], Report())
    door.end()
    door.start()
    survived = {alias: who(door.url, alias) == at[alias] for alias in ("q", "p")}
    door.end()
    counts = {alias: traffic.counts(alias) for alias in "pqrs"}
    held = sum(one.code == "held" for one in traffic.done)

    def total(how: str, aliases: str) -> int:
        return sum(counts[alias][how] for alias in aliases)

    print(f"\n{door.name}: {total('whole', 'pqrs')} whole streams")
    lost = ", ".join(f"{how} {total(how, 'pqrs')}" for how in ("cut", "failed", "refused"))
    print(f"  {lost} ({held} of them held)")
    print(f"  of r and s: cut {total('cut', 'rs')}, failed {total('failed', 'rs')}, refused {total('refused', 'rs')}")
    for alias, what in (("q", "alias update"), ("p", "replacement")):
        times = report.effect[alias]
        print(
            f"  {what}: in effect after {statistics.median(times) * 1e3:.0f} ms (at most {max(times) * 1e3:.0f}); "
            f"{report.late[alias]} requests reached the old server after it was reported done, "
            f"{report.still[alias]} streams still ran there; survives kill -9: {'yes' if survived[alias] else 'NO'}"
        )
    return report


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--moves", type=int, default=10)
    parser.add_argument("--replacements", type=int, default=4)
    parser.add_argument("--clients", type=int, default=80)
    asked = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=os.getcwd())))
        servers = {name: stack.enter_context(synthetic_process("--model", model)) for name, model in SERVES.items()}
        for name, server in servers.items():
            server.set(plan={"model": name})  # who it was, in the answer
        for kind, tool in ((Sndr, "python3"), (Nginx, "nginx"), (HAProxy, "haproxy")):
            if shutil.which(tool) is None:
                print(f"\n{kind.name}: not installed")
                continue
            door = kind(directory, servers)
            try:
                run(door, asked)
            finally:
                door.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
