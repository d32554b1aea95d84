"""The benchmark's model server: as little work per byte as Python allows, so that the gateway is what is measured.

Answers `POST …/completions` with a fixed JSON body of 552 bytes or, when the body asks for a stream, with numbered
events at a fixed pace. The pace comes from the request's member `bench`: `{"events": 100, "interval_ms": 10}`. All
streams with one interval share one timer. `GET /stats` counts what was seen.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import ClassVar

BENCH = re.compile(rb'"bench":\{"events":(\d+),"interval_ms":(\d+)\}')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_ANSWER = {
    "id": "chatcmpl-bench",
    "object": "chat.completion",
    "created": 1780000000,
    "model": "m1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 14, "completion_tokens": 64, "total_tokens": 78},
}
_ANSWER["choices"][0]["message"]["content"] = "x" * (552 - len(json.dumps(_ANSWER)))  # type: ignore[index]
BODY = json.dumps(_ANSWER).encode()
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1780000000,"model":"m1",'
    b'"choices":[{"index":0,"delta":{"content":" t%06d"},"finish_reason":null}],"usage":null}\n\n'
)
LAST = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1780000000,"model":"m1","choices":[],'
    b'"usage":{"prompt_tokens":14,"completion_tokens":64,"total_tokens":78}}\n\ndata: [DONE]\n\n'
)
counters = {"connections": 0, "requests": 0, "open": 0, "streams": 0, "cut": 0}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


EVENTS = [chunk(EVENT % number) for number in range(1000)]


class Pace:
    """One timer for all streams of one interval; a stream joins at the slot where it came."""

    paces: ClassVar[dict[float, Pace]] = {}

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.slots: list[set[Mock]] = [set() for _ in range(max(1, min(100, round(interval_s / 0.002))))]
        self.slot = 0
        self.next_at = asyncio.get_running_loop().time()
        self.arm()

    @classmethod
    def of(cls, interval_s: float) -> Pace:
        pace = cls.paces.get(interval_s)
        if pace is None:
            pace = cls.paces[interval_s] = cls(interval_s)
        return pace

    def arm(self) -> None:
        self.next_at += self.interval_s / len(self.slots)
        asyncio.get_running_loop().call_at(self.next_at, self.fire)

    def fire(self) -> None:
        self.slot = (self.slot + 1) % len(self.slots)
        for stream in tuple(self.slots[self.slot]):
            stream.event()
        self.arm()


class Mock(asyncio.Protocol):
    def __init__(self) -> None:
        self.buffer = b""
        self.owed = 0
        self.left = 0
        self.sent = 0
        self.joined: set[Mock] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        counters["connections"] += 1
        counters["open"] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        counters["open"] -= 1
        if self.joined is not None:
            counters["cut"] += 1
            self.leave()

    def leave(self) -> None:
        assert self.joined is not None
        self.joined.discard(self)
        self.joined = None
        counters["streams"] -= 1

    def data_received(self, data: bytes) -> None:
        if self.owed:
            self.owed -= len(data)
            if not self.owed:
                self.answer(b"POST ")
            return
        if self.buffer:
            data = self.buffer + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self.buffer = data
            return
        found = LENGTH.search(data, 0, end + 2)
        length = int(found[1]) if found is not None else 0
        if len(data) < end + 4 + length:
            if length > 262_144:
                self.owed, self.buffer = end + 4 + length - len(data), b""  # counted, not kept
            else:
                self.buffer = data
            return
        self.buffer = b""
        self.answer(data)

    def answer(self, data: bytes) -> None:
        if data[:4] == b"GET ":
            path = data[4 : data.find(b" ", 4)]
            if path.endswith(b"/models"):
                body = b'{"object":"list","data":[{"id":"m1","object":"model"}]}'
            elif path == b"/stats":
                body = json.dumps(counters).encode()
            else:
                body = b"{}"
            self.transport.write(  # type: ignore[attr-defined]
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
            return
        counters["requests"] += 1
        if b'"stream":true' not in data:
            self.transport.write(JSON)  # type: ignore[attr-defined]
            return
        found = BENCH.search(data)
        events, interval_ms = (int(found[1]), int(found[2])) if found is not None else (16, 10)
        self.left, self.sent = events, 0
        self.transport.write(STREAM_HEAD)  # type: ignore[attr-defined]
        pace = Pace.of(interval_ms / 1000)
        slot = min(pace.slots, key=len)
        slot.add(self)
        self.joined = slot
        counters["streams"] += 1

    def event(self) -> None:
        self.transport.write(EVENTS[self.sent % 1000])  # type: ignore[attr-defined]
        self.sent += 1
        if self.sent >= self.left:
            self.leave()
            self.transport.write(chunk(LAST) + b"0\r\n\r\n")  # type: ignore[attr-defined]


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(main(int(sys.argv[1])))
    except ImportError:
        asyncio.run(main(int(sys.argv[1])))
