"""A second opinion on every HTTP/1 message that we accept: h11, given exactly the bytes that we took for it.

Mutants of the hostile tables and of well-formed messages are read by our readers, split at random places. For each
message that ours accept, h11 must read the same bytes as one whole message with the same method, target, status,
fields and body, and nothing left over; where it refuses or reads something else, `EXCUSES` must know why. What we
refuse is not looked at: we may refuse more.

    python -m tests.support.differential --seconds 60 --seed 1
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import h11

from sndr.router.wire.http1 import HeadMemory, Malformed, RequestHead, RequestReader, ResponseReader

__all__ = ["Message", "Report", "run"]

HEAD_MAX: Final = 32_768
Fields = list[tuple[bytes, bytes]]


@dataclass
class Message:
    """A message as somebody read it: start line, fields, body, and whether the connection stays open."""

    start: tuple[bytes, ...]
    fields: Fields
    body: bytes
    stays: bool
    raw: bytes = b""
    http10: bool = False


EXCUSES: Final = {
    "absolute-form": "h11 takes no absolute-form apart; we route by its path (RFC 9112 3.2.2)",
    "empty query": "an empty query is forwarded as none",
    "keep-alive": "h11 knows keep-alive of HTTP/1.0 not at all and closes",
    "trailer": "h11 refuses a transfer coding in a trailer; trailers end here, and frame nothing (RFC 9110 6.5.1)",
}
CODING_ERRORS: Final = ("Only Transfer-Encoding: chunked is supported", "multiple Transfer-Encoding headers")


def excuses(ours: Message, theirs: Message | str) -> list[str] | None:
    """The reasons for all that differs, by their names in `EXCUSES`; None where something has none."""
    if isinstance(theirs, str):
        in_trailer = theirs in CODING_ERRORS and (b"transfer-encoding", b"chunked") in ours.fields
        return ["trailer"] if in_trailer else None
    if (theirs.fields, theirs.body) != (ours.fields, ours.body):
        return None
    reasons = []
    if theirs.start != ours.start:
        if len(ours.start) != 2 or theirs.start[0] != ours.start[0]:
            return None
        target, path = theirs.start[1], ours.start[1]
        if target.endswith(b"?") and not path.endswith(b"?"):
            reasons.append("empty query")
            target = target[:-1]
        if target != path:
            if b"://" not in target or not target.endswith(path.removeprefix(b"/")):
                return None
            reasons.append("absolute-form")
    # We may close where h11 would go on; never the other way round.
    if ours.stays and not theirs.stays:
        if not ours.http10:
            return None
        reasons.append("keep-alive")
    return reasons


def named(headers: Iterable[Sequence[bytes]], length: int | None = None) -> Fields:
    """Fields with the framing in one spelling.

    A head that repeats the one before keeps its length line and that line's place, which nobody looks at: what counts
    is the length itself, named last here.
    """
    fields: Fields = []
    last: Fields = []
    for name, value, *_ in headers:
        if name == b"content-length":
            last = [(name, b"%d" % (int(value) if length is None else length))]
            continue
        if name == b"transfer-encoding":
            value = value.lower()
        fields.append((name, value))
    return fields + last


# -- ours --------------------------------------------------------------------------------------------------------------


def pieces(data: bytes, chance: random.Random) -> list[bytes]:
    """The data in up to six pieces, byte by byte, or cut at many of its line ends, so that chunks come alone."""
    way = chance.random()
    if way < 0.05 and len(data) < 300:
        return [data[at : at + 1] for at in range(len(data))]
    if way < 0.3:
        ends = [found.end() for found in re.finditer(rb"\r\n", data) if chance.random() < 0.6]
        return [data[start:end] for start, end in pairwise(sorted({0, len(data), *ends}))]
    cuts = sorted({0, len(data), *(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))})
    return [data[start:end] for start, end in pairwise(cuts)]


def read_requests(parts: Sequence[bytes]) -> list[Message]:
    """What we accept of a client's bytes."""
    reader, found, whole = RequestReader(HEAD_MAX), [], b"".join(parts)
    head, body, fed, begun = None, b"", 0, 0
    try:
        for part in parts:
            fed += len(part)
            # As a connection does it: a whole request behind a head that was judged before is taken at once.
            repeated = reader.repeat(part) if head is None else None
            if repeated is not None:
                found.append(request_message(*repeated, part))
                begun = fed
                continue
            reader.feed(part)
            while True:
                if head is None:
                    head, body = reader.head(), b""
                    if head is None:
                        break
                if not reader.complete:
                    body += reader.body()
                if not reader.complete:
                    break
                end = fed - reader.buffered
                found.append(request_message(head, body, whole[begun:end].lstrip(b"\r\n")))
                begun = end
                if not head.keep_alive:
                    return found
                head = None
    except Malformed:
        pass
    return found


def request_message(head: RequestHead, body: bytes, raw: bytes) -> Message:
    target = head.path.encode() + (b"?" + head.query.encode() if head.query else b"")
    return Message(
        (head.method.encode(), target),
        named(head.headers, head.content_length),
        body,
        head.keep_alive,
        raw,
        head.http10,
    )


def read_response(parts: Sequence[bytes], memory: HeadMemory | None) -> Message | None:
    """What we accept of a server's bytes; `stays` also says that nothing followed."""
    reader, body, taken = ResponseReader(memory=memory), b"", b""
    repeated = memory.repeat(parts[0]) if memory is not None and parts else None
    if repeated is not None:
        head, body = repeated
        fields = named(head.headers, head.content_length)
        return Message((b"%d" % head.status,), fields, body, head.keep_alive, parts[0], head.http10)
    try:
        for part in parts:
            taken += part
            # As a connection does it: a chunk that comes alone does not pass through the parser.
            body += reader.whole_chunk(part) or reader.receive(part)
            if reader.complete:
                break
        else:
            reader.eof()
    except Malformed:
        return None
    head = reader.head  # type: ignore[assignment]
    assert head is not None
    fields = named(head.headers, head.content_length)
    return Message((b"%d" % head.status,), fields, body, reader.reusable, taken, head.http10)


# -- theirs ------------------------------------------------------------------------------------------------------------


def h11_request(data: bytes) -> Message | str:
    """The one message that h11 sees in the data, or what it has against it."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    try:
        connection.receive_data(data)
        head = connection.next_event()
        if not isinstance(head, h11.Request):
            return f"no request: {head!r}"
        body = b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return "no end"
            body += event.data
    except h11.RemoteProtocolError as error:
        return str(error)
    if connection.trailing_data[0]:
        return f"left over: {connection.trailing_data[0][:40]!r}"
    # A switch of protocols was asked for, which a server need not do.
    stays = connection.their_state in (h11.DONE, h11.MIGHT_SWITCH_PROTOCOL)
    return Message((head.method, head.target), named(head.headers), body, stays)


def h11_response(data: bytes, *, closed: bool) -> Message | str:
    """The same for a response; `closed` when the server closed after it."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    try:
        connection.receive_data(data)
        if closed:
            connection.receive_data(b"")
        head = connection.next_event()
        while isinstance(head, h11.InformationalResponse):
            head = connection.next_event()
        if not isinstance(head, h11.Response):
            return f"no response: {head!r}"
        body = b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return "no end"
            body += event.data
    except h11.RemoteProtocolError as error:
        return str(error)
    stays = connection.their_state is h11.DONE and not connection.trailing_data[0]
    return Message((b"%d" % head.status_code,), named(head.headers), body, stays)


# -- mutants -----------------------------------------------------------------------------------------------------------

TOKENS: Final = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b"\x00", b"\x0b", b"\x7f", b"\xff", b":", b";", b",", b"?", b"#", b"/",
    b"0", b"1", b"a", b"A", b"\r\n ", b"\r\n\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"Content-Length: 5\r\n",
    b"content-length: 0\r\n", b"Content-Length: +5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"transfer-encoding:\tCHUNKED\r\n", b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\n", b"Host: y\r\n", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"http://x",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST", b"PUT", b"HEAD", b"hello", b"X: y\r\n",
    b"X-Very-Long-Name-Of-A-Field: value\r\n", b"200", b"204", b"304", b"100", b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n", b"-", b"+", b"_", b'"', b"\xc3\xa9",
]  # fmt: skip
REQUESTS: Final = [
    b"GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"PUT / HTTP/1.1\r\nHost: x\r\ncontent-length: 1\r\n\r\naPUT / HTTP/1.1\r\nHost: x\r\ncontent-length: 2\r\n\r\nhi",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX: y\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
]
RESPONSES: Final = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x\r\n!\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\nA\r\n0123456789\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 2\r\nX: y\r\n\r\nhi",
]


def seeds() -> tuple[list[bytes], list[bytes]]:
    """Well-formed messages, and the bytes of the hostile tables."""
    from tests.conformance.hostile import access, chunked, framing, syntax, upstream_framing

    requests, responses = list(REQUESTS), list(RESPONSES)
    for group in (access, chunked, framing, syntax):
        requests += [b"".join(step for step in case.sends if isinstance(step, bytes)) for case in group.CASES]
    responses += [b"".join(step for step in lie.steps if isinstance(step, bytes)) for lie in upstream_framing.CASES]
    return [seed for seed in requests if len(seed) < 4000], [seed for seed in responses if len(seed) < 4000]


def mutant(corpus: Sequence[bytes], chance: random.Random) -> bytes:
    """A seed with up to five things done to it."""
    data = bytearray(chance.choice(corpus))
    if chance.random() < 0.15:
        data += chance.choice(corpus)
    for _ in range(chance.randrange(6)):
        at = chance.randrange(len(data) + 1)
        what = chance.randrange(6)
        if what == 0:
            data[at:at] = chance.choice(TOKENS)
        elif what == 1:
            del data[at : at + chance.choice((1, 1, 2, 5, 20))]
        elif what == 2 and data:
            at = min(at, len(data) - 1)
            data[at] = chance.choice((data[at] ^ (1 << chance.randrange(8)), chance.randrange(256)))
        elif what == 3:
            line = data.find(b"\r\n", at)
            if line >= 0:
                data[line + 2 : line + 2] = chance.choice(TOKENS)
        elif what == 4:
            end = min(len(data), at + chance.randrange(1, 30))
            data[at:at] = data[at:end]
        else:
            token = chance.choice(TOKENS)
            data[at : at + len(token)] = token
    return bytes(data)


# -- the comparison ----------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """Executions, messages that we accepted, excused differences by reason, and those without a reason."""

    executions: int
    accepted: int
    excused: Counter[str]
    unexplained: list[tuple[bytes, str]]


def judge(ours: Message, theirs: Message | str, report: Report) -> None:
    report.accepted += 1
    reasons = excuses(ours, theirs)
    if reasons is None:
        report.unexplained.append((ours.raw, f"ours {ours.start, ours.fields, ours.body, ours.stays}; h11 {theirs}"))
    else:
        report.excused.update(EXCUSES[reason] for reason in reasons)


def run(executions: int, seed: int, *, deadline: float | None = None) -> Report:
    """Compare until so many inputs were read, or until the deadline (monotonic)."""
    chance = random.Random(seed)
    requests, responses = seeds()
    memory = HeadMemory()
    report = Report(0, 0, Counter(), [])
    queue: Iterator[bytes] = iter(requests)
    while report.executions < executions and (deadline is None or time.monotonic() < deadline):
        report.executions += 2
        data = next(queue, None)
        if data is None:
            data = mutant(requests, chance)
        parts = pieces(data, chance)
        if chance.random() < 0.3:
            # The same connection goes on with almost the same request, each in one piece.
            parts = [chance.choice(requests)]
            parts += [mutant(parts, chance) for _ in range(3)]
        for ours in read_requests(parts):
            judge(ours, h11_request(ours.raw), report)
        data = mutant(responses, chance)
        # A memory is shared by the responses of one connection: sometimes a new connection begins.
        if chance.random() < 0.2:
            memory = HeadMemory()
        response = read_response(pieces(data, chance), memory)
        if response is not None:
            judge(response, h11_response(response.raw, closed=response.raw == data and not response.stays), report)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="compare our reading of HTTP/1 with h11's")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    report = run(sys.maxsize, arguments.seed, deadline=time.monotonic() + arguments.seconds)
    excused = sum(report.excused.values())
    counts = f"{report.executions} inputs, {report.accepted} messages accepted, {excused} excused"
    lines = [f"seed {arguments.seed}: {counts}, {len(report.unexplained)} unexplained"]
    lines += [f"  {count} x {reason}" for reason, count in report.excused.most_common()]
    lines += [f"  {raw!r}\n    {why}" for raw, why in report.unexplained[:20]]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
