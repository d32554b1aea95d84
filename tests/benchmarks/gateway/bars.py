"""What the gateway promises under bad company, measured: `python tests/benchmarks/gateway/bars.py [NAME…]`.

`cancel`: from a client's leaving to the closed connection at the server. `isolation`: another alias's p99 beside a
server that never answers, trickles, or floods, in paired runs. `scrape`: p99 with a metrics scrape every second at 64
aliases, paired with runs without. `stall`: ten seconds of a disk that does not answer (needs strace). `streams`: 2,000
open streams. `deaf`: clients that never read. `descriptors`: more clients than descriptors. Exit 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.support.gateway import Gateway, gateway_process  # noqa: E402 - the path comes first
from tests.support.raw import KEY, OPERATOR, Raw, ask, boot_file, chat, request, wait_idle  # noqa: E402
from tests.support.synthetic import Synthetic, synthetic_process  # noqa: E402

LEDGER = 'usage_path = "usage.sqlite"'
LOAD = Path(__file__).with_name("load.py")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def rss_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


@contextmanager
def served(upstream: Synthetic, *, aliases: str = "", tiers: str = "", **parts: str) -> Iterator[Gateway]:
    """A gateway with a ledger in front of one synthetic server, and what else the boot file says."""
    with tempfile.TemporaryDirectory() as name:
        path = boot_file(Path(name), upstream.base_url, **{"server": LEDGER, **parts})
        text = path.read_text().replace("[router.model_routes]", f"{tiers}\n[router.model_routes]\n{aliases}")
        path.write_text(text)
        with gateway_process(path) as gateway:
            wait_idle(gateway.url)
            yield gateway
            assert not [line for line in gateway.lines if line["event"] == "internal_error"]
            assert gateway.stop() == 0


# -- cancel ------------------------------------------------------------------------------------------------------------


def leave(raw: Raw, way: str) -> float:
    now = time.time()
    if way == "half-closed":
        raw.sock.shutdown(socket.SHUT_WR)
    else:
        if way == "reset":
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        raw.close()
    return now


def cancel() -> bool:
    """Upstream sees the close within a second of the client's going."""
    good = True
    where: dict[str, tuple[bool, dict[str, Any], bytes]] = {
        "prefill, stream": (True, {"first_delay_ms": 20_000}, b""),
        "prefill, after the head": (True, {"prefill_ms": 20_000}, b"\r\n\r\n"),
        "mid-stream": (True, {"tokens": 2000, "token_delay_ms": 10}, b" t3"),
        "not a stream": (False, {"first_delay_ms": 20_000}, b""),
        "not a stream, in the body": (False, {"tokens": 60, "stall_after": 30, "length": False}, b"\r\n\r\n"),
    }
    with synthetic_process() as upstream, served(upstream) as gateway:
        say("| moment | way | median ms | worst ms |\n|---|---|---|---|")
        for moment, (stream, plan, mark) in where.items():
            for way in ("closed", "reset", "half-closed"):
                times = []
                for number in range(20):
                    request_id = f"{len(times)}-{moment}-{way}".replace(" ", "").replace(",", "")
                    seen = upstream.stats()["requests"]
                    raw = Raw(gateway.url)
                    raw.send(request(chat(stream, synthetic=plan), headers={"x-request-id": request_id}))
                    if mark:
                        raw.until(mark)
                    else:
                        upstream.wait(requests=seen + 1)
                    time.sleep(0.002 * (number % 5))
                    left = leave(raw, way)
                    upstream.wait(in_flight=0, timeout_s=10)
                    raw.close()
                    times.append((upstream.log(request_id)[0]["ended_at"] - left) * 1000)
                good &= max(times) <= 1000
                say(f"| {moment} | {way} | {statistics.median(times):.1f} | {max(times):.1f} |")
        wait_idle(gateway.url)
    return good


# -- paired runs -------------------------------------------------------------------------------------------------------


def p99(url: str, seconds: float, connections: int, model: str = "llm.primary") -> tuple[float, int]:
    """p99 in ms and the number of requests of a closed loop in a process of its own."""
    options = {"connections": connections, "seconds": seconds, "model": model, "key": KEY, "warm_s": 0.3}
    done = subprocess.run(
        [sys.executable, str(LOAD), "requests", f"{url}/v1/chat/completions", json.dumps(options)],
        capture_output=True, text=True, timeout=seconds + 60, check=True,
    )  # fmt: skip
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert not summary["errors"], summary
    return summary["latencies_p99_ms"], summary["requests"]


Trouble = Callable[[], contextlib.AbstractContextManager[None]]


def paired(name: str, url: str, trouble: Trouble, *, pairs: int, seconds: float, control: Trouble | None = None,
           connections: int = 4) -> bool:  # fmt: skip
    """Runs with and without in turn; the bar is on the medians. `control` costs the machine the same elsewhere."""
    without, with_ = [], []
    for turn in range(pairs):
        for troubled in ((False, True), (True, False))[turn % 2]:
            with trouble() if troubled else (control or contextlib.nullcontext)():
                value, _ = p99(url, seconds, connections)
            (with_ if troubled else without).append(value)
    base, more = statistics.median(without), statistics.median(with_)
    good = more - base <= max(0.1 * base, 2.0)
    spread = f"{min(without):.2f} to {max(without):.2f} | {more:.2f} | {min(with_):.2f} to {max(with_):.2f}"
    say(f"| {name} | {base:.2f} | {spread} | {more - base:+.2f} | {'yes' if good else 'no'} |")
    return good


PAIRED_HEAD = (
    "| beside | p99 ms without | range | p99 ms with | range | difference | within max(10 %, 2 ms) |\n"
    "|---|---|---|---|---|---|---|"
)


class Peer(asyncio.Protocol):
    """A bad server: never answers, trickles a byte, or floods, as the port says."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.open = True
        self.paused = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False

    def data_received(self, data: bytes) -> None:
        if self.kind == "silent":
            return
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        asyncio.get_running_loop().call_soon(self.more)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.more()

    def more(self) -> None:
        if not self.open or self.paused:
            return
        if self.kind == "trickle":
            self.transport.write(b":")
            asyncio.get_running_loop().call_later(0.01, self.more)
        else:
            self.transport.write(b"data: " + b"x" * 16_000 + b"\n\n")
            asyncio.get_running_loop().call_soon(self.more)


def peers() -> None:
    """The process of the bad servers: prints their ports, runs until its input ends."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ports = {}
        for kind in ("silent", "trickle", "flood"):
            server = await loop.create_server(lambda kind=kind: Peer(kind), "127.0.0.1", 0, backlog=512)  # type: ignore[misc]
            ports[kind] = server.sockets[0].getsockname()[1]
        say(json.dumps(ports))
        await loop.run_in_executor(None, sys.stdin.read)

    asyncio.run(main())


def readers() -> None:
    """A process of clients that hold bad requests and read all that comes: `--readers URL ALIAS COUNT`."""
    url, alias, count = sys.argv[2], sys.argv[3], int(sys.argv[4])
    socks = [Raw(url).send(request({"model": alias, "messages": [], "stream": True})).sock for _ in range(count)]
    say("ready")
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    for sock in socks:
        sock.setblocking(False)
    buffer = bytearray(1 << 18)
    while not stop.is_set():
        idle = True
        for sock in socks:
            with contextlib.suppress(BlockingIOError):
                idle &= not sock.recv_into(buffer)
        # A client that reads a few megabytes a second, not one that burns a core.
        time.sleep(0.02 if idle else 0.005)


@contextmanager
def child(*arguments: str) -> Iterator[str]:
    """A process of this file; its first line."""
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield process.stdout.readline()
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def isolation(pairs: int, seconds: float) -> bool:
    """A bad server beside a good one; without: the same clients at the bad server itself."""
    good = True
    with child("--peers") as line, synthetic_process() as upstream:
        ports = json.loads(line)
        tiers = "\n".join(
            f'[[router.tiers]]\nid = "{kind}"\nbase_url = "http://127.0.0.1:{port}/v1"\nmodel = "m"\n'
            for kind, port in ports.items()
        )
        aliases = "\n".join(f'{kind} = "{kind}"' for kind in ports)
        with served(upstream, tiers=tiers, aliases=aliases) as gateway:
            say(PAIRED_HEAD)
            for kind, count in (("silent", 100), ("trickle", 100), ("flood", 8)):

                @contextmanager
                def trouble(kind: str = kind, count: int = count, url: str = gateway.url) -> Iterator[None]:
                    with child("--readers", url, kind, str(count)):
                        yield

                @contextmanager
                def control(kind: str = kind, count: int = count) -> Iterator[None]:
                    with child("--readers", f"http://127.0.0.1:{ports[kind]}", kind, str(count)):
                        yield

                name = {"silent": "100 requests that are never answered", "trickle": "100 streams of a byte per 10 ms",
                        "flood": "8 streams that flood"}[kind]  # fmt: skip
                good &= paired(name, gateway.url, trouble, pairs=pairs, seconds=seconds, control=control)
            wait_idle(gateway.url, 20)
    return good


def scrape(pairs: int, seconds: float) -> bool:
    """A scrape every second at 64 aliases, each with series of its own."""
    aliases = "\n".join(f'"alias-{number}" = "primary"' for number in range(63))
    with synthetic_process() as upstream, served(upstream, aliases=aliases) as gateway:
        url = gateway.url
        for number in range(63):
            assert ask(url, request(chat() | {"model": f"alias-{number}"})).status == 200
        sizes: list[int] = []

        @contextmanager
        def scraping() -> Iterator[None]:
            stop = threading.Event()

            def run() -> None:
                while not stop.wait(1.0):
                    answer = ask(url, request(method="GET", path="/metrics", key=OPERATOR))
                    assert answer.status == 200
                    sizes.append(len(answer.body))

            thread = threading.Thread(target=run)
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()

        say(PAIRED_HEAD)
        good = paired("a scrape each second, 64 aliases", url, scraping, pairs=pairs, seconds=seconds)
        say(f"{len(sizes)} scrapes of {max(sizes) // 1024} KiB")
    return good


# -- stall -------------------------------------------------------------------------------------------------------------


def stall() -> bool:
    """Ten seconds without the disk; `admission_timeout_s = 2`."""
    with synthetic_process() as upstream, served(upstream, router="admission_timeout_s = 2") as gateway:
        url, pid = gateway.url, gateway.process.pid
        raws = [
            Raw(url).send(request(chat(True, synthetic={"tokens": 700, "token_delay_ms": 20}))) for _ in range(20)
        ]  # fmt: skip
        for raw in raws:
            raw.until(b" t0")
        gaps: list[float] = []
        counts: list[int] = []

        def read(raw: Raw) -> None:
            text, last = raw.buffer, time.monotonic()
            while b"[DONE]" not in text[-400:] and raw.more():
                now = time.monotonic()
                gaps.append(now - last)
                last = now
                text += raw.buffer
                raw.buffer = b""
            counts.append(text.count(b'"content":" t'))

        pool = ThreadPoolExecutor(len(raws))
        for raw in raws:
            raw.buffer = b""
            pool.submit(read, raw)
        tracer = subprocess.Popen(
            ["strace", "-f", "-p", str(pid), "-e", "trace=fsync,fdatasync", "-o", "/dev/null", "-e",
             "inject=fsync,fdatasync:delay_enter=10000000:when=1"], stderr=subprocess.PIPE,
        )  # fmt: skip
        assert tracer.stderr is not None
        assert b"attached" in tracer.stderr.readline(), "strace cannot attach"
        time.sleep(0.5)
        stalled = time.monotonic()
        waits: list[float] = []
        codes: list[str | None] = []
        other = 0

        def late() -> None:
            nonlocal other
            asked = time.monotonic()
            answer = ask(url, request(chat()))
            waits.append(time.monotonic() - asked)
            codes.append(answer.code if answer.status == 503 else None)

        while time.monotonic() - stalled < 7:
            threads = [threading.Thread(target=late) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        while ask(url, request(chat())).status != 200:
            assert time.monotonic() - stalled < 60
        recovered = time.monotonic() - stalled
        tracer.terminate()
        tracer.wait()
        pool.shutdown()
        wait_idle(url, 20)
        say(
            f"{len(codes)} requests while the disk stood still: {codes.count('accounting_unavailable')} got 503 "
            f"accounting_unavailable after {min(waits):.2f} to {max(waits):.2f} s; served again after "
            f"{recovered:.1f} s; "
            f"20 running streams: {sum(counts)} of {20 * 699} tokens, longest gap {max(gaps) * 1000:.0f} ms"
        )
        return set(codes) == {"accounting_unavailable"} and sum(counts) >= 20 * 699 and max(waits) < 3


# -- many --------------------------------------------------------------------------------------------------------------


def streams() -> bool:
    """2,000 open streams of an event each second."""
    count, tokens = 2000, 10
    raise_descriptors()
    with synthetic_process() as upstream, served(upstream) as gateway:
        pid = gateway.process.pid
        idle = rss_mib(pid)
        before = cpu_s(pid)
        result = asyncio.run(open_streams(gateway.url, count, tokens, lambda: rss_mib(pid)))
        used = cpu_s(pid) - before
        wait_idle(gateway.url, 30)
        say(
            f"{result['complete']} of {count} streams complete ({result['tokens']} of {count * tokens} tokens); "
            f"gateway's RSS {idle:.0f} MiB idle, {result['peak']:.0f} MiB with all open "
            f"({(result['peak'] - idle) * 1024 / count:.0f} KiB a stream); "
            f"{used:.1f} s CPU for {count * tokens} events, connects included"
        )
        return result["complete"] == count and result["tokens"] == count * tokens


async def open_streams(url: str, count: int, tokens: int, rss: Callable[[], float]) -> dict[str, Any]:
    host, port = url.removeprefix("http://").split(":")
    plan = {"tokens": tokens, "token_delay_ms": 1000}
    data = request(chat(True, synthetic=plan))
    result = {"complete": 0, "tokens": 0, "peak": 0.0}

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        text = b""
        while piece := await reader.read(65536):
            text += piece
            if text.endswith(b"0\r\n\r\n"):
                break
        result["complete"] += b"[DONE]" in text
        result["tokens"] += text.count(b'"content":" t')
        writer.close()

    async def watch() -> None:
        while True:
            result["peak"] = max(result["peak"], rss())
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    gate = asyncio.Semaphore(200)

    async def paced() -> None:
        async with gate:
            await asyncio.sleep(0)
        await one()

    await asyncio.wait_for(asyncio.gather(*(paced() for _ in range(count))), 120)
    watching.cancel()
    return result


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def raise_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000) if hard > 0 else 20_000, hard))


def deaf() -> bool:
    """Clients that ask for 40 MB each and read none of it."""
    count = 100
    with synthetic_process() as upstream, served(upstream) as gateway:
        pid = gateway.process.pid
        idle = rss_mib(pid)
        raws = []
        for _ in range(count):
            raw = Raw(gateway.url)
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raws.append(raw.send(request(chat(True, synthetic={"tokens": 2000, "pad_bytes": 20_000}))))
        settled, last = 0, -1.0
        while settled < 10:
            time.sleep(0.2)
            now = rss_mib(pid)
            settled, last = (settled + 1, last) if abs(now - last) < 0.5 else (0, now)
        slow = max(wait for _ in range(20) for wait in [timed(gateway.url)])
        for raw in raws:
            raw.close()
        wait_idle(gateway.url, 20)
        each = (last - idle) * 1024 / count
        say(
            f"{count} clients that never read: {each:.0f} KiB each in the gateway; a request beside them took at most "
            f"{slow * 1000:.0f} ms"
        )
        return each < 1024


def timed(url: str) -> float:
    asked = time.monotonic()
    assert ask(url, request(chat())).status == 200
    return time.monotonic() - asked


def descriptors() -> bool:
    """A hard limit of 256 descriptors and 600 clients at once."""
    with synthetic_process() as upstream, tempfile.TemporaryDirectory() as name:
        path = boot_file(Path(name), upstream.base_url, server=LEDGER)
        raise_descriptors()
        with gateway_process(path) as gateway:
            url = gateway.url
            resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (256, 256))
            chance = random.Random(1)
            raws, statuses = [], {"200": 0, "503": 0, "closed": 0, "waits": 0}
            for _ in range(600):
                with contextlib.suppress(OSError):
                    raws.append(Raw(url))
            for raw in raws:
                with contextlib.suppress(OSError):
                    raw.send(request(chat(chance.random() < 0.5, synthetic={"tokens": 20, "token_delay_ms": 20})))
            started = time.monotonic()
            for raw in raws:
                raw.sock.settimeout(0.5 if time.monotonic() - started < 5 else 0.01)
                try:
                    statuses[str(raw.answer_head())] += 1
                except TimeoutError:
                    statuses["waits"] += 1
                except (AssertionError, OSError):
                    statuses["closed"] += 1
            lines = len(gateway.raw)
            for raw in raws:
                raw.close()
            deadline = time.monotonic() + 20
            while True:
                with contextlib.suppress(AssertionError, OSError):
                    if ask(url, request(chat())).status == 200:
                        break
                assert time.monotonic() < deadline, "no service after the pressure"
            back = time.monotonic() - deadline + 20
            events = {line["event"] for line in gateway.lines}
            say(
                f"600 clients at 256 descriptors: {statuses}; {lines} log lines ({', '.join(sorted(events))}); "
                f"served again {back:.1f} s after they left"
            )
            return lines < 2 * len(raws) + 50


BARS: dict[str, Callable[[argparse.Namespace], bool]] = {
    "cancel": lambda _: cancel(),
    "isolation": lambda options: isolation(options.pairs, options.seconds),
    "scrape": lambda options: scrape(options.pairs, options.seconds),
    "stall": lambda _: stall(),
    "streams": lambda _: streams(),
    "deaf": lambda _: deaf(),
    "descriptors": lambda _: descriptors(),
}


def main() -> int:
    if sys.argv[1:2] == ["--peers"]:
        peers()
        return 0
    if sys.argv[1:2] == ["--readers"]:
        readers()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BARS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    missed = []
    for name in options.names or BARS:
        say(f"\n{name}: {next(iter((globals()[name].__doc__ or '').splitlines()))}")
        if not BARS[name](options):
            missed.append(name)
    say(f"\nmissed: {', '.join(missed) if missed else 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
