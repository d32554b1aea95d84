"""Gateway benchmark: sndr, nginx, HAProxy and vllm-router in front of one mock server, on loopback.

    python tests/benchmarks/gateway/run.py [--rounds 5] [--seconds 3] [--cases …] [--targets …] [--json FILE]

Prints Markdown, checks the bars and exits 1 when one is missed. The gateway under test is pinned to one core, mock and
load to another; targets alternate within every round, so that what disturbs the machine disturbs all of them. CPU time
comes from /proc (all threads, children included). Reported are medians over the rounds; ratios and differences are
medians of those within a round. Targets that are not installed are skipped with a remark, and so are their bars.
vllm-router goes into an environment of its own: `python -m venv V && V/bin/pip install vllm-router`, then
`VLLM_ROUTER=V/bin/vllm-router`. Likewise, when asked for with `--targets`: `sglang-router` (`SGLANG_ROUTER`) and
`litellm` (`pip install 'litellm[proxy]'`, `LITELLM`). `nginx-tls` and `sndr-tls` are the same servers behind TLS 1.3.

Parts of sndr are measured by leaving one out (or adding one): `sndr-noledger`, `-noauth`, `-nolease`, `-nometrics`,
`-nolog`, `-asyncio`, `-authority`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sqlite3
import ssl
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
OPERATOR_KEY = "bench-operator-key"
EVERYWHERE = ("nginx", "haproxy", "vllm-router", "sndr", "sndr-noledger")
PARTS = ("sndr-noauth", "sndr-nolease", "sndr-nometrics", "sndr-nolog", "sndr-authority", "sndr-asyncio")
CASES = {
    "requests": "64 connections, 552-byte answers",
    "fresh": "the same; every request has an `X-Request-Id` and a `traceparent` of its own",
    "large": "the same with a prompt of 32 KB",
    "single": "one connection",
    "streams": "{streams} streams, one event each 10 ms",
    "connects": "256 connects at once, time to the first byte",
    "open": "{open} open streams, one event a second each",
    "uploads": "8 connections, forms of 8 MiB that name their model after the file",
}
NO_UPLOADS = ("vllm-router", "sglang-router", "litellm")


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
            unverified = ssl._create_unverified_context()
            urllib.request.urlopen(url, timeout=2, context=unverified).read()
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


def certificate(directory: Path) -> tuple[Path, Path]:
    cert, key = directory / "bench.crt", directory / "bench.key"
    if not cert.exists():
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"],
            check=True, capture_output=True,
        )  # fmt: skip
    return cert, key


def start_nginx(directory: Path, upstream: int, *, tls: bool = False) -> Target | None:
    if shutil.which("nginx") is None:
        return None
    name, scheme, secure = ("nginx-tls", "https", " ssl") if tls else ("nginx", "http", "")
    pair = certificate(directory) if tls else None
    directory = directory / name
    directory.mkdir()
    tls_lines = f"ssl_certificate {pair[0]}; ssl_certificate_key {pair[1]}; ssl_protocols TLSv1.3;" if pair else ""
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
    listen 127.0.0.1:{port} backlog=4096{secure}; {tls_lines}
    location / {{
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""
    )
    process = spawn(GATEWAY_CORE, "nginx", "-c", str(directory / "nginx.conf"), "-p", str(directory))
    wait_for(f"{scheme}://127.0.0.1:{port}/health")
    return Target(name, process, f"{scheme}://127.0.0.1:{port}/v1/chat/completions", "m1", None)


def start_haproxy(directory: Path, upstream: int) -> Target | None:
    if shutil.which("haproxy") is None:
        return None
    port = free_port()
    (directory / "haproxy.cfg").write_text(
        f"""global
  nbthread 1
  maxconn 4096
defaults
  mode http
  option http-keep-alive
  http-reuse always
  timeout connect 5s
  timeout client 600s
  timeout server 600s
listen bench
  bind 127.0.0.1:{port} backlog 4096
  server mock 127.0.0.1:{upstream} pool-max-conn 1024
"""
    )
    process = spawn(GATEWAY_CORE, "haproxy", "-db", "-q", "-f", str(directory / "haproxy.cfg"))
    wait_for(f"http://127.0.0.1:{port}/health")
    return Target("haproxy", process, f"http://127.0.0.1:{port}/v1/chat/completions", "m1", None)


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


def start_sglang_router(directory: Path, upstream: int) -> Target | None:
    command = os.environ.get("SGLANG_ROUTER") or shutil.which("sglang-router")
    if not command:
        return None
    port = free_port()
    process = spawn(
        GATEWAY_CORE, command, "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls",
        f"http://127.0.0.1:{upstream}", "--policy", "round_robin", "--log-level", "error", "--prometheus-port",
        str(free_port()), stdout=(directory / "sglang-router.out").open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_for(f"http://127.0.0.1:{port}/health", 60)
    return Target("sglang-router", process, f"http://127.0.0.1:{port}/v1/chat/completions", "m1", None)


def start_litellm(directory: Path, upstream: int) -> Target | None:
    command = os.environ.get("LITELLM") or shutil.which("litellm")
    if not command:
        return None
    port = free_port()
    secret = f"sk-{os.urandom(24).hex()}"
    config = directory / "litellm.yaml"
    config.write_text(
        "model_list:\n- model_name: m1\n  litellm_params:\n    model: openai/m1\n    api_key: none\n"
        f"    api_base: http://127.0.0.1:{upstream}/v1\n"
    )
    process = spawn(
        GATEWAY_CORE, command, "--config", str(config), "--host", "127.0.0.1", "--port", str(port),
        "--num_workers", "1", stdout=(directory / "litellm.out").open("w"), stderr=subprocess.STDOUT,
        env={
            **os.environ,
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MASTER_KEY": secret,  # it does not start without a strong one
        },
    )  # fmt: skip
    wait_for(f"http://127.0.0.1:{port}/health/liveliness", 180)
    return Target("litellm", process, f"http://127.0.0.1:{port}/v1/chat/completions", "m1", secret)


def start_sndr(name: str, directory: Path, upstream: int) -> Target:
    port = free_port()
    features = set(name.split("-")[1:])
    config = directory / f"{name}.toml"
    auth = "" if "noauth" in features else 'auth_env = "BENCH_KEY"\n'
    ledger = "" if "noledger" in features else f'usage_path = "{directory}/{name}.sqlite"\n'
    if "authority" in features:
        ledger += f'operator_auth_env = "BENCH_OPERATOR"\nroute_state_path = "{directory}/{name}.routes"\n'
    scheme = "https" if "tls" in features else "http"
    if "tls" in features:
        cert, key = certificate(directory)
        ledger += f'tls_cert = "{cert}"\ntls_key = "{key}"\n'
    config.write_text(
        f'[server]\nlisten = ["127.0.0.1:{port}"]\n{auth}{ledger}'
        f'[[router.tiers]]\nid = "bench"\nbase_url = "http://127.0.0.1:{upstream}/v1"\nmodel = "m1"\n'
        'health_path = "/health"\n[router.model_routes]\n"llm.primary" = "bench"\n'
        '[[router.audio_routes]]\nkind = "stt"\nmodel = "whisper"\nserved_model = "m1"\n'
        f'base_url = "http://127.0.0.1:{upstream}/v1"\n'
    )
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "BENCH_KEY": KEY, "BENCH_OPERATOR": OPERATOR_KEY, "PYTHONPATH": path}
    if "authority" in features:
        subprocess.run(
            [sys.executable, "-m", "sndr.cli", "router", "init", "--config", str(config), "--confirm"],
            env=environment, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    if "asyncio" in features:
        environment["SNDR_LOOP"] = "asyncio"
    log = Path(os.devnull) if "nolog" in features else directory / f"{name}.log"
    process = spawn(
        GATEWAY_CORE, sys.executable, str(HERE / "gateway.py"), str(config), *sorted(features),
        env=environment, stderr=log.open("w"),
    )  # fmt: skip
    wait_for(f"{scheme}://127.0.0.1:{port}/livez")
    return Target(name, process, f"{scheme}://127.0.0.1:{port}/v1/chat/completions", "llm.primary",
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
            if name in ("nginx", "nginx-tls"):
                target = start_nginx(directory, port, tls=name == "nginx-tls")
            elif name == "sglang-router":
                target = start_sglang_router(directory, port)
            elif name == "litellm":
                target = start_litellm(directory, port)
            elif name == "haproxy":
                target = start_haproxy(directory, port)
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


Rows = dict[str, list[dict[str, Any]]]


def options_of(case: str, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """What the load generator is asked to do."""
    many: dict[str, Any] = {"connections": 64, "seconds": options.seconds}
    if case == "fresh":
        return "requests", {**many, "fresh": True}
    if case == "large":
        return "requests", {**many, "prompt_bytes": 32_768}
    if case == "uploads":
        return "requests", {**many, "connections": 8, "upload_bytes": 8 << 20}
    if case == "single":
        return "requests", {"connections": 1, "seconds": min(2, options.seconds)}
    if case == "streams":
        return "streams", {**many, "connections": options.streams, "events": 300, "interval_ms": 10, "warm_s": 1.0}
    if case == "open":
        slow = {"events": 1000, "interval_ms": 1000, "warm_s": 3.0, "hold": True}
        return "streams", {**many, "connections": options.open, **slow}
    return ("connects", {"connections": 256}) if case == "connects" else ("requests", many)


def commit_ms(directory: Path) -> float:
    """The disk's own time for a commit: SQLite with the ledger's settings, one small row."""
    db = sqlite3.connect(directory / "commit.sqlite", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t(x)")
    times = []
    for number in range(300):
        at = time.perf_counter()
        db.execute("INSERT INTO t VALUES(?)", (number,))
        times.append((time.perf_counter() - at) * 1000)
    db.close()
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--targets", default=",".join((*EVERYWHERE, *PARTS)))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--open", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names, cases = options.targets.split(","), options.cases.split(",")
    results: dict[str, Rows] = {case: {} for case in cases}
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as name, running(names, Path(name)) as (mock_port, targets):
        time.sleep(1)
        idle = {target.name: rss_kib(target.pid) for target in targets}
        direct = Target("direct", targets[0].process, f"http://127.0.0.1:{mock_port}/v1/chat/completions", "m1", None)
        for number in range(options.rounds):
            for case in cases:
                kind, asked = options_of(case, options)
                left_out = () if case == "requests" else (*PARTS, *NO_UPLOADS) if case == "uploads" else PARTS
                wanted = [target for target in targets if target.name not in left_out]
                for target in [*wanted, direct] if case == "single" else wanted:
                    if case == "open" and number:
                        continue
                    before, syns = mock_stats(mock_port)["connections"], syn_retransmits()
                    commit = commit_ms(Path(tempfile.mkdtemp(dir=name))) if case == "single" else None
                    row = measure(target, kind, asked)
                    row["upstream_connections"] = mock_stats(mock_port)["connections"] - before - 1
                    row["syn_retransmits"] = syn_retransmits() - syns
                    row["commit_ms"] = commit
                    done = row["events"] if kind == "streams" else row["requests"]
                    row["cpu_us"] = row["cpu_s"] * 1e6 / max(1, done)
                    row["rate"] = done / row["elapsed_s"] if row.get("elapsed_s") else None
                    results[case].setdefault(target.name, []).append(row)
                    print(f"round {number} {case:9} {target.name:16} {json.dumps(row)}", file=sys.stderr, flush=True)
            loads.append(os.getloadavg()[0])
    if options.json:
        options.json.write_text(json.dumps({"results": results, "idle_rss_kib": idle, "loads": loads}, indent=1))
    return report(results, idle, options, loads)


def median(rows: list[dict[str, Any]], member: str) -> float | None:
    values = [row[member] for row in rows if row.get(member) is not None]
    return statistics.median(values) if values else None


def paired(results: dict[str, Rows], member: str, one: str, other: str, case: str, *, minus: bool = False,
           other_case: str = "") -> float | None:  # fmt: skip
    """Median over the rounds of a ratio (or difference) within the round."""
    pairs = zip(results.get(case, {}).get(one, ()), results.get(other_case or case, {}).get(other, ()), strict=False)
    values = [
        a[member] - b[member] if minus else a[member] / b[member]
        for a, b in pairs
        if a[member] is not None and b[member] is not None and (minus or b[member])
    ]
    return statistics.median(values) if values else None


def shown(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def version(command: str, *arguments: str) -> str:
    found = os.environ.get("VLLM_ROUTER") if command == "vllm-router" else None
    path = found or shutil.which(command)
    if path is None:
        return f"no {command}"
    if command == "vllm-router":
        listed = [*Path(path).resolve().parents[1].glob("lib/*/site-packages/vllm_router-*.dist-info")]
        return f"vllm-router {listed[0].name.removesuffix('.dist-info').split('-')[1]}" if listed else "vllm-router"
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    words = (done.stdout + done.stderr).split("\n", 1)[0].replace("/", " ").split()
    return f"{command} {next((word.split('-')[0] for word in words if word[:1].isdigit()), '')}"


def report(results: dict[str, Rows], idle: dict[str, int], options: argparse.Namespace, loads: list[float]) -> int:
    """Print everything as Markdown; 1 when a bar is missed or a request failed."""
    print(
        f"CPython {sys.version.split()[0]}, {version('nginx', '-v')}, {version('haproxy', '-v')},"
        f" {version('vllm-router')}; {os.cpu_count()} cores, Linux {os.uname().release.split('-')[0]}; median of"
        f" {options.rounds} alternating rounds of {options.seconds:g} s; load average while it ran {min(loads):.1f} to"
        f" {max(loads):.1f}"
    )
    errors = 0
    for case, by_target in results.items():
        unit = "event" if case in ("streams", "open") else "request"
        what = "gaps" if unit == "event" else "latencies"
        title = CASES[case].format(streams=options.streams, open=options.open)
        print(f"\n**{case}**: {title}\n")
        print(f"| | CPU us/{unit} | x nginx | {unit}s/s | p50 ms | p99 ms | RSS MiB | new upstream connections |")
        print("|---|---|---|---|---|---|---|---|")
        for name, rows in by_target.items():
            errors += sum(row["errors"] for row in rows)
            if name in PARTS:
                continue
            has_cpu = case != "connects" and name != "direct"
            print(
                f"| {name} | {shown(median(rows, 'cpu_us')) if has_cpu else ''} |"
                f" {shown(paired(results, 'cpu_us', name, 'nginx', case), 2) if has_cpu else ''} |"
                f" {shown(median(rows, 'rate'), 0)} | {shown(median(rows, what + '_p50_ms'), 2)} |"
                f" {shown(median(rows, what + '_p99_ms'), 2)} |"
                f" {shown((median(rows, 'rss_kib') or 0) / 1024) if has_cpu else ''} |"
                f" {shown(median(rows, 'upstream_connections'), 0)} |"
            )
    costs = {
        "ledger, its thread included": ("sndr", "sndr-noledger"),
        "credential": ("sndr", "sndr-noauth"),
        "lease and concurrency slot": ("sndr", "sndr-nolease"),
        "metrics": ("sndr", "sndr-nometrics"),
        "log line": ("sndr", "sndr-nolog"),
        "route authority": ("sndr-authority", "sndr"),
        "asyncio's own loop instead of uvloop": ("sndr-asyncio", "sndr"),
    }
    measured = {what: paired(results, "cpu_us", *pair, "requests", minus=True) for what, pair in costs.items()}
    if any(value is not None for value in measured.values()):
        print("\n| part | CPU us/request |\n|---|---|")
        for what, value in measured.items():
            if value is not None:
                print(f"| {what} | {value:+.1f} |")
        fresh = paired(results, "cpu_us", "sndr", "sndr", "fresh", minus=True, other_case="requests")
        if fresh is not None:
            print(f"| an id and a trace of its own in each request | {fresh:+.1f} |")
    missed = bars(results, idle, options)
    if errors:
        print(f"\n{errors} requests failed")
    return int(missed or errors > 0)


def bars(results: dict[str, Rows], idle: dict[str, int], options: argparse.Namespace) -> bool:
    """Print each bar that could be measured; whether one is missed."""

    def ratio(case: str, one: str, other: str, member: str = "cpu_us") -> float | None:
        return paired(results, member, one, other, case)

    def added(name: str) -> float | None:
        return paired(results, "latencies_p50_ms", name, "direct", "single", minus=True)

    commit = median(results.get("single", {}).get("sndr", []), "commit_ms")
    with_ledger = added("sndr")
    opened = results.get("open", {}).get("sndr", [])
    more = ((median(opened, "rss_kib") or 0) - idle["sndr"]) / options.open if opened else None
    bursts = results.get("connects", {}).get("sndr", [])
    table: list[tuple[str, float | None, float, bool]] = [
        ("CPU/request, everything on, x nginx", ratio("requests", "sndr", "nginx"), 3.0, True),
        ("CPU/request, ledger off, x nginx", ratio("requests", "sndr-noledger", "nginx"), 2.5, True),
        ("CPU/request, everything on, x vllm-router", ratio("requests", "sndr", "vllm-router"), 0.7, True),
        ("CPU/event, x nginx", ratio("streams", "sndr", "nginx"), 1.4, True),
        ("requests/s at 64 connections, x vllm-router", ratio("requests", "sndr", "vllm-router", "rate"), 1.4, False),
        ("a 32 KB prompt, us more than a small one",
         paired(results, "cpu_us", "sndr", "sndr", "large", minus=True, other_case="requests"), 25, True),
        ("p50 added at 1 connection, ledger off, ms", added("sndr-noledger"), 0.15, True),
        ("the same, ledger on, less the disk's commit, ms",
         None if with_ledger is None or commit is None else with_ledger - commit, 0.3, True),
        ("256 connects, p99 to the first byte, x nginx", ratio("connects", "sndr", "nginx", "latencies_p99_ms"), 2.5,
         True),
        ("256 connects, SYN retransmits", sum(row["syn_retransmits"] for row in bursts) if bursts else None, 0, True),
        ("RSS idle, MiB", idle["sndr"] / 1024 if "sndr" in idle else None, 60, True),
        ("RSS per open stream, KiB", more, 40, True),
    ]  # fmt: skip
    print("\n| bar | measured | limit | |\n|---|---|---|---|")
    missed = False
    for what, value, limit, at_most in table:
        if value is None:
            continue
        met = value <= limit if at_most else value >= limit
        missed = missed or not met
        print(f"| {what} | {value:.2f} | {'<=' if at_most else '>='} {limit:g} | {'' if met else 'missed'} |")
    if commit is not None:
        print(f"\nOne commit of the disk: {commit:.2f} ms.")
    return missed


if __name__ == "__main__":
    sys.exit(main())
