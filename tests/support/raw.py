"""Bytes to a listening socket and back, with a deadline on every wait; and a boot file for a gateway under test."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

KEY = "client-key-0123456789"
OPERATOR = "operator-key-0123456789"
DEADLINE_S = 20.0


@dataclass
class Answer:
    """One response as it came."""

    status: int
    headers: dict[str, str]
    body: bytes
    raw_head: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        error = self.json.get("error")
        return error["code"] if isinstance(error, dict) else None

    @property
    def events(self) -> list[str]:
        """Data of each event of a stream."""
        return [part[6:] for part in self.body.decode().split("\n\n") if part.startswith("data: ")]


class Raw:
    """A connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.sock = socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S)
        self.buffer = b""
        self.ended = False

    def send(self, data: bytes) -> Raw:
        self.sock.sendall(data)
        return self

    def more(self) -> bool:
        """Read once; False at the end (a reset is an end too)."""
        try:
            data = self.sock.recv(65536)
        except ConnectionError:
            data = b""
        self.buffer += data
        self.ended = not data
        return bool(data)

    def until(self, mark: bytes) -> bytes:
        """Everything up to and including the mark."""
        while mark not in self.buffer:
            assert self.more(), f"closed before {mark!r}: {self.buffer[:500]!r}"
        end = self.buffer.index(mark) + len(mark)
        data, self.buffer = self.buffer[:end], self.buffer[end:]
        return data

    def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            assert self.more(), f"closed after {len(self.buffer)} of {count} bytes"
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def rest(self) -> bytes:
        """Everything until the peer closes."""
        while self.more():
            pass
        data, self.buffer = self.buffer, b""
        return data

    def answer(self, *, head_only: bool = False) -> Answer:
        """The next response; a body without its end is what came before the close."""
        head = self.until(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        status = int(lines[0].split(" ")[1])
        if head_only or status in (204, 304) or 100 <= status < 200:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = self.chunks()
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        return Answer(status, headers, body, head)

    def answer_or_cut(self) -> Answer:
        """The next response; of one that is cut, what came. `ended` says whether the connection is over."""
        head = self.until(b"\r\n\r\n")
        if b"\r\ntransfer-encoding: chunked\r\n" in head:
            self.buffer = head + self.buffer
            answer = self.answer()
            while not self.ended and self.more():
                pass
            return answer
        length = head.split(b"content-length: ")[1].split(b"\r\n")[0]
        while len(self.buffer) < int(length) and self.more():
            pass
        return Answer(int(head.split(b" ")[1]), {}, self.buffer, head)

    def answer_head(self) -> int:
        """The next response's status; its body stays unread."""
        return int(self.until(b"\r\n\r\n").split(b" ")[1])

    def chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self.buffer:
                if not self.more():
                    self.ended = True
                    return body
            size = int(self.until(b"\r\n"), 16)
            if not size:
                self.until(b"\r\n")
                return body
            while len(self.buffer) < size + 2:
                if not self.more():
                    return body + self.buffer
            body += self.exactly(size + 2)[:-2]

    def closed(self) -> bool:
        """Wait for the peer to close."""
        return not self.buffer and not self.more()

    def close(self) -> None:
        self.sock.close()


@contextmanager
def connected(url: str) -> Iterator[Raw]:
    raw = Raw(url)
    try:
        yield raw
    finally:
        raw.close()


def request(
    body: Any = None,
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    key: str | None = KEY,
    version: str = "1.1",
    headers: Mapping[str, str] | None = None,
    data: bytes | None = None,
) -> bytes:
    """The bytes of a well-formed request."""
    data = data if data is not None else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "Host: gateway"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    given = {"content-type": "application/json", **(headers or {})}
    if data and "transfer-encoding" not in {name.lower() for name in given}:
        given.setdefault("content-length", str(len(data)))
    lines += [f"{name}: {value}" for name, value in given.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def chat(stream: bool = False, **members: Any) -> dict[str, Any]:
    """A small chat request; `synthetic={…}` is the model server's plan for it."""
    body = {"model": "llm.primary", "messages": [{"role": "user", "content": "hello"}], **members}
    return {**body, "stream": True} if stream else body


def ask(url: str, data: bytes) -> Answer:
    """One request on a connection of its own."""
    with connected(url) as raw:
        return raw.send(data).answer()


def boot_file(directory: Path, base_url: str, *, server: str = "", router: str = "", tier: str = "") -> Path:
    """A boot file with one tier and short limits."""
    path = directory / "gateway.toml"
    path.write_text(
        '[server]\nlisten = ["127.0.0.1:0"]\nauth_env = "CLIENT_KEY"\noperator_auth_env = "OPERATOR_KEY"\n'
        f"{server}\n"
        "[router]\nprobe_interval_s = 0.2\n"
        f"{router}\n"
        f'[[router.tiers]]\nid = "primary"\nbase_url = "{base_url}"\nmodel = "m1"\nhealth_path = "/health"\n{tier}\n'
        '[router.model_routes]\n"llm.primary" = "primary"\n'
    )
    return path


def operator_get(url: str, path: str) -> Any:
    """A management read."""
    answer = ask(url, request(method="GET", path=path, key=OPERATOR))
    assert answer.status == 200, answer
    return answer.json


def wait_idle(url: str, timeout_s: float = 10) -> dict[str, Any]:
    """Wait until the gateway says that nothing is in flight and no row is unresolved; the first tier."""
    deadline = time.monotonic() + timeout_s
    while True:
        status = operator_get(url, "/v1/router/status")
        tiers: list[dict[str, Any]] = status["tiers"]
        busy = any(tier["in_flight"] or tier["queued"] for tier in tiers)
        if not busy and not status["ledger"].get("unresolved"):
            return tiers[0]
        assert time.monotonic() < deadline, status
        time.sleep(0.02)
