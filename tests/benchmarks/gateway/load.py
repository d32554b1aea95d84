"""The benchmark's clients: closed-loop requests, paced streams, and a burst of connects. Prints one JSON object.

Usage: `load.py requests|streams|connects URL '{"connections": 64, "seconds": 3, …}'`
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from typing import Any
from urllib.parse import urlsplit

HEAD_END = b"\r\n\r\n"


def percentile(values: list[float], share: float) -> float | None:
    return None if not values else sorted(values)[min(len(values) - 1, int(len(values) * share))]


def upload_bytes(url: str, options: dict[str, Any]) -> bytes:
    """A transcription's form, the model after the file."""
    parts = urlsplit(url)
    data = (
        b'--frontier\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + b"\0\xff" * (options["upload_bytes"] // 2)
        + b'\r\n--frontier\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--frontier--\r\n'
    )
    key = f"Authorization: Bearer {options['key']}\r\n" if options.get("key") else ""
    return (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: {parts.netloc}\r\n{key}Accept: */*\r\nUser-Agent: bench\r\n"
        f"Content-Type: multipart/form-data; boundary=frontier\r\nContent-Length: {len(data)}\r\n\r\n"
    ).encode() + data


def request_bytes(url: str, options: dict[str, Any], stream: bool) -> bytes:
    if options.get("upload_bytes"):
        return upload_bytes(url, options)
    parts = urlsplit(url)
    body: dict[str, Any] = {
        "model": options.get("model", "m1"),
        "messages": [{"role": "user", "content": "x" * options.get("prompt_bytes", 40)}],
    }
    if stream:
        body |= {"stream": True}
        body |= {"bench": {"events": options["events"], "interval_ms": options["interval_ms"]}}
    data = json.dumps(body, separators=(",", ":")).encode()
    key = f"Authorization: Bearer {options['key']}\r\n" if options.get("key") else ""
    return (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n{key}"
        f"Accept: */*\r\nUser-Agent: bench\r\nContent-Length: {len(data)}\r\n\r\n"
    ).encode() + data


class Requests(asyncio.Protocol):
    """Sends the next request when the answer to the last one is complete."""

    def __init__(self, request: bytes, result: dict[str, Any]) -> None:
        self.request, self.result = request, result
        self.buffer = b""
        self.need = -1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.at = time.perf_counter()
        request = self.request
        if self.result["fresh"]:
            self.result["fresh"] += 1
            number = self.result["fresh"]
            names = b"X-Request-Id: req-%016x\r\ntraceparent: 00-%032x-%016x-01\r\nAccept:" % (number, number, number)
            request = request.replace(b"Accept:", names, 1)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.need < 0:
            end = self.buffer.find(HEAD_END)
            if end < 0:
                return
            head = self.buffer[:end].lower()
            if not head.startswith(b"http/1.1 200"):
                self.result["errors"] += 1
            at = head.find(b"content-length:")
            self.need = end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 1 << 60
        if self.need == 1 << 60:
            if not self.buffer.endswith(b"0\r\n\r\n"):
                return
        elif len(self.buffer) < self.need:
            return
        self.buffer, self.need = b"", -1
        self.result["latencies"].append(time.perf_counter() - self.at)
        if not self.result["stop"]:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.result["stop"]:
            self.result["errors"] += 1


class Stream(asyncio.Protocol):
    """Reads one stream after the other and counts its events."""

    def __init__(self, request: bytes, result: dict[str, Any]) -> None:
        self.request, self.result = request, result

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.at = time.perf_counter()
        self.last = 0.0
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        result = self.result
        events = data.count(b"data: ")
        result["events"] += events
        now = time.perf_counter()
        if events:
            if self.last:
                if result["events"] % 16 == 0:
                    result["gaps"].append(now - self.last)
            else:
                result["first"].append(now - self.at)
            self.last = now
        if data.endswith(b"0\r\n\r\n"):
            result["streams"] += 1
            if not result["stop"]:
                self.send()
        elif not events and not data.startswith(b"HTTP/1.1 200"):
            result["errors"] += data.startswith(b"HTTP/1.1 ")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.result["stop"]:
            self.result["errors"] += 1


async def run(kind: str, url: str, options: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    request = request_bytes(url, options, kind == "streams")
    result: dict[str, Any] = {
        "errors": 0, "stop": False, "latencies": [], "events": 0, "streams": 0, "gaps": [], "first": [],
        "fresh": int(bool(options.get("fresh"))),
    }  # fmt: skip
    factory = Stream if kind == "streams" else Requests
    if kind == "connects":
        result["stop"] = True  # one request per connection, all at once
    connections = options["connections"]
    transports = []
    tls = ssl._create_unverified_context() if parts.scheme == "https" else None
    for start in range(0, connections, 128 if kind != "connects" else connections):
        made = await asyncio.gather(
            *(
                loop.create_connection(lambda: factory(request, result), parts.hostname, parts.port, ssl=tls)
                for _ in range(min(128 if kind != "connects" else connections, connections - start))
            )
        )
        transports += [transport for transport, _ in made]
    if kind == "connects":
        for _ in range(500):
            if len(result["latencies"]) >= connections:
                break
            await asyncio.sleep(0.01)
        result["errors"] += connections - len(result["latencies"])
    else:
        await asyncio.sleep(options.get("warm_s", 0.5))
        print("ready", flush=True)
        started = time.perf_counter()
        for name in ("latencies", "gaps", "first"):
            result[name].clear()
        before = result["events"]
        await asyncio.sleep(options["seconds"])
        result["events"] -= before
        result["elapsed_s"] = time.perf_counter() - started
        result["requests"] = len(result["latencies"])
        print("done", flush=True)
        if options.get("hold"):
            await loop.run_in_executor(None, sys.stdin.readline)
        result["stop"] = True
    for transport in transports:
        transport.abort()
    summary = {name: result[name] for name in ("errors", "events", "streams") if name in result}
    summary["requests"] = result.get("requests", len(result["latencies"]))
    summary["elapsed_s"] = result.get("elapsed_s")
    for name in ("latencies", "gaps", "first"):
        for share in (0.5, 0.99):
            value = percentile(result[name], share)
            summary[f"{name}_p{int(share * 100)}_ms"] = None if value is None else round(value * 1000, 3)
    return summary


if __name__ == "__main__":
    kind, url, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    try:
        import uvloop

        print(json.dumps(uvloop.run(run(kind, url, options))), flush=True)
    except ImportError:
        print(json.dumps(asyncio.run(run(kind, url, options))), flush=True)
