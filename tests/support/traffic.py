"""Many streams at once in closed loops, on an event loop of their own, with every one of them accounted for.

A client keeps its connection, asks again as soon as a stream ended, and records how each went: answered or refused,
whole or cut, under which revision. Gaps between events are kept with the moment at which they ended, so that they can
be told apart by what went on at that moment.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from tests.support.gateway import CREDENTIALS

REFUSED_PAUSE_S = 0.1
STATUS_PAUSE_S = 0.1
ANSWER_S = 120


@dataclass(frozen=True, slots=True)
class Kind:
    """So many clients that stream from one alias."""

    alias: str
    clients: int
    tokens: int
    delay_ms: float
    keep_gaps: bool = False


@dataclass(slots=True)
class Done:
    """One request as its client saw it; `status` 0: the connection was gone before there was an answer."""

    id: str
    alias: str
    begun: float
    ended: float
    status: int = 0
    revision: int | None = None
    code: str | None = None
    whole: bool = False


@dataclass(slots=True)
class _Answer:
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


class _Client:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, head: str, body: bytes, gaps: list[tuple[float, float]] | None) -> tuple[int, _Answer]:
        """Status 0 and what there is, when the connection ends before the answer does."""
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        status, last = 0, 0.0
        try:
            if self.writer is None:
                self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
            assert self.reader is not None
            self.writer.write(head.encode() + body)
            while not answer.complete:
                async with asyncio.timeout(ANSWER_S):
                    data = await self.reader.read(65536)
                if not data:
                    raise ConnectionError
                parser.feed_data(data)
                status = parser.get_status_code()
                if gaps is not None and b"data: {" in data:
                    now = time.monotonic()
                    if last:
                        gaps.append((now, now - last))
                    last = now
            if not parser.should_keep_alive():
                self.close()
        except (OSError, TimeoutError, httptools.HttpParserError):
            self.close()
        return status, answer

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


class Traffic:
    """The clients of one address.

    Attributes:
        done: Every stream that ended, in the order in which they did.
        gaps: When, and how long after the event before it, an event came; of the kinds that keep them.
        polls: What each polling client saw, in its order: revision and hash.
    """

    def __init__(self, url: str, kinds: Sequence[Kind], *, pollers: int = 0) -> None:
        self.url = url
        self.kinds = kinds
        self.done: list[Done] = []
        self.gaps: list[tuple[float, float]] = []
        self.polls: list[list[tuple[int, str]]] = [[] for _ in range(pollers)]
        self.failed_polls = 0
        self._stop = threading.Event()
        self._begun = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    @property
    def clients(self) -> int:
        """How many stream at a time."""
        return sum(kind.clients for kind in self.kinds)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Begin nothing more, and wait for the streams that run to end by themselves."""
        self._stop.set()
        self._thread.join(ANSWER_S)
        assert not self._thread.is_alive()

    def counts(self, alias: str) -> dict[str, int]:
        """Streams of an alias by how they went: `whole, cut, failed, refused`."""
        found = {"whole": 0, "cut": 0, "failed": 0, "refused": 0}
        for one in self.done:
            if one.alias == alias:
                found[how(one)] += 1
        return found

    async def _run(self) -> None:
        tasks = [asyncio.ensure_future(self._stream(kind, n)) for kind in self.kinds for n in range(kind.clients)]
        tasks += [asyncio.ensure_future(self._poll(seen)) for seen in self.polls]
        await asyncio.gather(*tasks)

    async def _stream(self, kind: Kind, n: int) -> None:
        client = _Client(self.url)
        shortened = kind.tokens * (n + 1) // kind.clients  # the first streams end at different moments
        await asyncio.sleep(kind.delay_ms / 1000 * n / kind.clients)
        while not self._stop.is_set():
            tokens, shortened = max(1, shortened), kind.tokens
            self._begun += 1
            one = Done(f"{kind.alias}-{self._begun}", kind.alias, time.monotonic(), 0)
            plan = {"tokens": tokens, "token_delay_ms": kind.delay_ms}
            body = {"model": kind.alias, "stream": True, "messages": [], "synthetic": plan}
            head, data = _post(one.id, kind.alias, json.dumps(body).encode())
            one.status, answer = await client.ask(head, data, self.gaps if kind.keep_gaps else None)
            one.ended = time.monotonic()
            text = answer.body.decode("utf-8", "replace")
            if one.status == 200:
                seen = [int(number) for number in re.findall(r'"content":" t(\d+)"', text)]
                one.whole = answer.complete and seen == list(range(tokens)) and text.rstrip().endswith("data: [DONE]")
            elif answer.complete:
                with suppress(ValueError, KeyError, TypeError):
                    one.code = json.loads(text)["error"]["code"]
            revision = answer.headers.get("x-sndr-route-revision")
            one.revision = None if revision is None else int(revision)
            self.done.append(one)
            if one.status != 200:
                await asyncio.sleep(REFUSED_PAUSE_S)
        client.close()

    async def _poll(self, seen: list[tuple[int, str]]) -> None:
        client = _Client(self.url)
        head = _head("GET", "/v1/router/status", {"authorization": f"Bearer {CREDENTIALS['CLIENT_KEY']}"})
        while not self._stop.is_set():
            status, answer = await client.ask(head, b"", None)
            if status == 200 and answer.complete:
                document = json.loads(bytes(answer.body))
                seen.append((document["route_revision"], document["effective_route_sha256"]))
            else:
                self.failed_polls += 1
            await asyncio.sleep(STATUS_PAUSE_S)
        client.close()


def how(one: Done) -> str:
    """`whole`; `cut`: begun and not ended as it should; `failed`: no answer at all; `refused`."""
    if one.status == 200:
        return "whole" if one.whole else "cut"
    return "failed" if one.status == 0 else "refused"


def p99(values: Sequence[float]) -> float:
    """The value that one in a hundred exceeds."""
    return sorted(values)[int(len(values) * 0.99)]


def _post(request_id: str, alias: str, body: bytes) -> tuple[str, bytes]:
    headers = {
        "authorization": f"Bearer {CREDENTIALS['CLIENT_KEY']}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-request-id": request_id,
        "x-alias": alias,  # for proxies that do not look into bodies
    }
    return _head("POST", "/v1/chat/completions", headers), body


def _head(method: str, path: str, headers: Mapping[str, str]) -> str:
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""])
