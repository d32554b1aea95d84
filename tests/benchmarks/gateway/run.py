"""Gateway benchmark: sndr, nginx and vllm-router in front of one mock server, on loopback.

    python tests/benchmarks/gateway/run.py [--rounds 5] [--seconds 3] [--targets sndr,nginx,…] [--json FILE]

The gateway under test is pinned to one core, mock and load to another; targets alternate within every round, so that
what disturbs the machine disturbs all of them. CPU time comes from /proc (children included). Reported are medians over
the rounds, and ratios to nginx within this run. Targets that are not installed are skipped with a remark.

Features are measured by leaving one out: `sndr-noledger`, `sndr-noauth`, `sndr-nolog`, `sndr-asyncio`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
GATEWAY_CORE, LOAD_CORE = 0, 1
KEY = "bench-key"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def tree(pid: int) -> list[int]:
    found = [pid]
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for number in child.read_text().split():
            found += tree(int(number))
    return found


def cpu_s(pid: int) -> float:
    total = 0
    for member in tree(pid):
        # Nanoseconds of every thread where the kernel keeps them, ticks otherwise.
        for task in Path(f"/proc/{member}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def rss_kib(pid: int) -> int:
    total = 0
    for member in tree(pid):
        for line in Path(f"/proc/{member}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total


def syn_retransmits() -> int:
    for line in Path("/proc/net/netstat").read_text().splitlines():
        if line.startswith("TcpExt:") and "TCPSynRetrans" in line:
            names = line.split()
        elif line.startswith("TcpExt:"):
            values = line.split()
    return int(values[names.index("TCPSynRetrans")])


def spawn(core: int, *command: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(["taskset", "-c", str(core), *command], text=True, **options)


def wait_for(url: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).read()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


class Target:
    """A running gateway."""

    def __init__(self, name: str, process: subprocess.Popen[str], url: str, model: str, key: str | None) -> None:
        self.name, self.process, self.url, self.model, self.key = name, process, url, model, key

    @property
    def pid(self) -> int:
        return self.process.pid


def start_nginx(directory: Path, upstream: int) -> Target | None:
    if shutil.which("nginx") is None:
        return None
    port = free_port()
    user = "user root;" if os.geteuid() == 0 else ""  # its worker must be able to write large bodies here
    (directory / "nginx.conf").write_text(
        f"""
{user} worker_processes 1; daemon off; pid {directory}/nginx.pid; error_log {directory}/nginx.err;
worker_rlimit_nofile 20000;
events {{ worker_connections 10000; }}
http {{
  access_log off; client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  client_body_buffer_size 128k; client_max_body_size 0; keepalive_requests 1000000000;
  upstream mock {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""
    )
    process = spawn(GATEWAY_CORE, "nginx", "-c", str(directory / "nginx.conf"), "-p", str(directory))
    wait_for(f"http://127.0.0.1:{port}/health")
    return Target("nginx", process, f"http://127.0.0.1:{port}/v1/chat/completions", "m1", None)


def start_vllm_router(directory: Path, upstream: int) -> Target | None:
    command = os.environ.get("VLLM_ROUTER") or shutil.which("vllm-router")
    if not command:
        return None
    port = free_port()
    process = spawn(
        GATEWAY_CORE, command, "--host", "127.0.0.1", "--port", str(port), "--worker-urls",
        f"http://127.0.0.1:{upstream}", "--policy", "round_robin", "--log-level", "error", "--prometheus-port",
        str(free_port()), stdout=(directory / "vllm-router.out").open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_for(f"http://127.0.0.1:{port}/health", 60)
    return Target("vllm-router", process, f"http://127.0.0.1:{port}/v1/chat/completions", "m1", None)


def start_sndr(name: str, directory: Path, upstream: int) -> Target:
    port = free_port()
    features = set(name.split("-")[1:])
    config = directory / f"{name}.toml"
    auth = "" if "noauth" in features else 'auth_env = "BENCH_KEY"\n'
    ledger = "" if "noledger" in features else f'usage_path = "{directory}/{name}.sqlite"\n'
    config.write_text(
        f'[server]\nlisten = ["127.0.0.1:{port}"]\n{auth}{ledger}'
        f'[[router.tiers]]\nid = "bench"\nbase_url = "http://127.0.0.1:{upstream}/v1"\nmodel = "m1"\n'
        'health_path = "/health"\n[router.model_routes]\n"llm.primary" = "bench"\n'
        '[[router.audio_routes]]\nkind = "stt"\nmodel = "whisper"\nserved_model = "m1"\n'
        f'base_url = "http://127.0.0.1:{upstream}/v1"\n'
    )
    environment = {**os.environ, "BENCH_KEY": KEY, "PYTHONPATH": str(ROOT)}
    if "asyncio" in features:
        environment["SNDR_LOOP"] = "asyncio"
    log = Path(os.devnull) if "nolog" in features else directory / f"{name}.log"
    process = spawn(
        GATEWAY_CORE, sys.executable, str(HERE / "gateway.py"), str(config), *sorted(features),
        env=environment, stderr=log.open("w"),
    )  # fmt: skip
    wait_for(f"http://127.0.0.1:{port}/livez")
    return Target(name, process, f"http://127.0.0.1:{port}/v1/chat/completions", "llm.primary",
                  None if "noauth" in features else KEY)  # fmt: skip


def measure(target: Target, kind: str, options: dict[str, Any]) -> dict[str, Any]:
    options = {**options, "model": target.model, "key": target.key}
    load = spawn(
        LOAD_CORE, sys.executable, str(HERE / "load.py"), kind, target.url, json.dumps(options),
        stdout=subprocess.PIPE, stdin=subprocess.PIPE,
    )  # fmt: skip
    assert load.stdout is not None
    assert load.stdin is not None
    before = after = 0.0
    rss = 0
    if kind != "connects":
        assert load.stdout.readline() == "ready\n"
        before = cpu_s(target.pid)
        assert load.stdout.readline() == "done\n"
        after = cpu_s(target.pid)
        rss = rss_kib(target.pid)
        if options.get("hold"):
            load.stdin.write("\n")
            load.stdin.flush()
    answer: dict[str, Any] = json.loads(load.stdout.read())
    load.wait()
    answer["cpu_s"] = after - before
    answer["rss_kib"] = rss
    return answer


def mock_stats(port: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats") as response:
        stats: dict[str, int] = json.load(response)
        return stats


@contextmanager
def running(names: list[str], directory: Path) -> Iterator[tuple[int, list[Target]]]:
    mock = spawn(LOAD_CORE, sys.executable, str(HERE / "mock.py"), "0", stdout=subprocess.PIPE)
    assert mock.stdout is not None
    port = json.loads(mock.stdout.readline())["port"]
    targets: list[Target] = []
    try:
        for name in names:
            if name == "nginx":
                target = start_nginx(directory, port)
            elif name == "vllm-router":
                target = start_vllm_router(directory, port)
            else:
                target = start_sndr(name, directory, port)
            if target is None:
                print(f"{name}: not installed, skipped", file=sys.stderr)
            else:
                targets.append(target)
        yield port, targets
    finally:
        for target in targets:
            target.process.send_signal(signal.SIGTERM)
        for target in targets:
            try:
                target.process.wait(10)
            except subprocess.TimeoutExpired:
                target.process.kill()
        mock.kill()
        mock.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--targets", default="nginx,sndr,sndr-noledger,vllm-router")
    parser.add_argument("--cases", default="requests,large,single,streams,connects,open,uploads")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--open", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names, cases = options.targets.split(","), options.cases.split(",")
    results: dict[str, dict[str, list[dict[str, Any]]]] = {case: {} for case in cases}
    with tempfile.TemporaryDirectory() as name, running(names, Path(name)) as (mock_port, targets):
        idle = {target.name: rss_kib(target.pid) for target in targets}
        direct = Target("direct", targets[0].process, f"http://127.0.0.1:{mock_port}/v1/chat/completions", "m1", None)
        for number in range(options.rounds):
            for case in cases:
                for target in [*targets, direct] if case == "single" else targets:
                    before = mock_stats(mock_port)["connections"]
                    syns = syn_retransmits()
                    if case == "requests":
                        row = measure(target, "requests", {"connections": 64, "seconds": options.seconds})
                    elif case == "large":
                        large = {"connections": 64, "seconds": options.seconds, "prompt_bytes": 32_768}
                        row = measure(target, "requests", large)
                    elif case == "single":
                        row = measure(target, "requests", {"connections": 1, "seconds": min(2, options.seconds)})
                    elif case == "streams":
                        paced = {"events": 300, "interval_ms": 10, "warm_s": 1.0}
                        row = measure(
                            target, "streams", {"connections": options.streams, "seconds": options.seconds, **paced}
                        )
                    elif case == "uploads":
                        form = {"connections": 4, "seconds": options.seconds, "upload_bytes": 8 << 20}
                        row = measure(target, "requests", form)
                    elif case == "connects":
                        row = measure(target, "connects", {"connections": 256})
                    elif number == 0 and options.open:
                        slow = {"events": 1000, "interval_ms": 1000, "warm_s": 3.0, "hold": True}
                        row = measure(
                            target, "streams", {"connections": options.open, "seconds": options.seconds, **slow}
                        )
                    else:
                        continue
                    row["upstream_connections"] = mock_stats(mock_port)["connections"] - before - 1
                    row["syn_retransmits"] = syn_retransmits() - syns
                    done = row["events"] if case in ("streams", "open") else row["requests"]
                    row["cpu_us"] = row["cpu_s"] * 1e6 / max(1, done)
                    row["rate"] = done / row["elapsed_s"] if row.get("elapsed_s") else 0.0
                    results[case].setdefault(target.name, []).append(row)
                    print(f"round {number} {case:9} {target.name:16} {json.dumps(row)}", file=sys.stderr, flush=True)
    report(results, idle, options.open)
    if options.json:
        options.json.write_text(json.dumps({"results": results, "idle_rss_kib": idle}, indent=1))
    return 0


def median(rows: list[dict[str, Any]], member: str) -> float:
    values = [row[member] for row in rows if row.get(member) is not None]
    return statistics.median(values) if values else float("nan")


def report(results: dict[str, dict[str, list[dict[str, Any]]]], idle: dict[str, int], opened: int) -> None:
    for case, by_target in results.items():
        unit = "event" if case in ("streams", "open") else "request"
        print(f"\n{case}: medians of {max((len(rows) for rows in by_target.values()), default=0)}")
        print(
            f"  {'target':16} {'us/' + unit:>10} {'x nginx':>8} {'rate/s':>9} {'p50 ms':>8} {'p99 ms':>8}"
            f" {'RSS MiB':>8} {'upstream':>8} {'SYN re':>6} {'errors':>6}"
        )
        base = median(by_target["nginx"], "cpu_us") if "nginx" in by_target else float("nan")
        for name, rows in by_target.items():
            cpu = median(rows, "cpu_us")
            what = "gaps" if unit == "event" else "latencies"
            print(
                f"  {name:16} {cpu:10.1f} {cpu / base if base else float('nan'):8.2f} {median(rows, 'rate'):9.0f}"
                f" {median(rows, what + '_p50_ms'):8.3f} {median(rows, what + '_p99_ms'):8.3f}"
                f" {median(rows, 'rss_kib') / 1024:8.1f} {median(rows, 'upstream_connections'):8.0f}"
                f" {sum(row['syn_retransmits'] for row in rows):6} {sum(row['errors'] for row in rows):6}"
            )
            if case == "open":
                each = (median(rows, "rss_kib") - idle[name]) / opened
                print(f"  {'':16} idle RSS {idle[name] / 1024:.1f} MiB, {each:.1f} KiB more per open stream")


if __name__ == "__main__":
    sys.exit(main())
