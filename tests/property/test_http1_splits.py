"""However the bytes of a connection are split, the same messages come out; and what is refused stays refused."""

from __future__ import annotations

from itertools import pairwise

import h11
from hypothesis import example, given
from hypothesis import strategies as st

from sndr.router.wire.http1 import WHOLE_CHUNK_MAX, Malformed, RequestReader, ResponseReader

TOKEN = st.text("abcxyz019-", min_size=1, max_size=8)
VALUE = st.text("ab 1;=/\t\xe9", max_size=12)
BODY = st.binary(max_size=60) | st.sampled_from([b"\r\n\r\n", b"0\r\n\r\n", b"\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"])


def chunked(parts: list[bytes], trailer: bool) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part)
    return body + b"0\r\n" + (b"X-End: 1\r\n" if trailer else b"") + b"\r\n"


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, tuple[str, str, str, bytes]]:
    path, query = draw(TOKEN), draw(TOKEN | st.just(""))
    fields = draw(st.lists(st.tuples(TOKEN, VALUE), max_size=3))
    head = f"POST /{path}{'?' + query if query else ''} HTTP/1.1\r\nHost: x\r\n"
    head += "".join(f"x-{name}: {value}\r\n" for name, value in fields)
    if draw(st.booleans()):
        head += "Upgrade: h2c\r\nConnection: upgrade\r\n"
    kind = draw(st.sampled_from(["none", "length", "chunked"]))
    body = b"" if kind == "none" else draw(BODY)
    if kind == "length":
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
    elif kind == "chunked":
        at = draw(st.integers(0, len(body)))
        tail = chunked([body[:at], body[at:]], draw(st.booleans()))
        data = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode("latin-1") + tail
    else:
        data = f"{head}\r\n".encode("latin-1")
    blank = b"\r\n" if draw(st.booleans()) else b""
    return blank + data, ("POST", f"/{path}", query, body)


def read_requests(pieces: list[bytes]) -> tuple[list[tuple[str, str, str, bytes]], Malformed | None]:
    reader = RequestReader(32_768)
    found: list[tuple[str, str, str, bytes]] = []
    current: tuple[str, str, str] | None = None
    body = b""
    try:
        for piece in pieces:
            reader.feed(piece)
            while True:
                if current is None:
                    head = reader.head()
                    if head is None:
                        break
                    current, body = (head.method, head.path, head.query), b""
                if not reader.complete:
                    body += reader.body()
                if not reader.complete:
                    break
                found.append((*current, body))
                current = None
    except Malformed as fault:
        return found, fault
    return found, None


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 1000), max_size=12))
def test_requests_split_anywhere(messages: list[tuple[bytes, tuple[str, str, str, bytes]]], cuts: list[int]) -> None:
    data = b"".join(message for message, _ in messages)
    found, fault = read_requests(split(data, cuts))
    assert fault is None
    assert found == [expected for _, expected in messages]


@given(requests())
def test_requests_byte_by_byte(message: tuple[bytes, tuple[str, str, str, bytes]]) -> None:
    found, fault = read_requests([bytes([byte]) for byte in message[0]])
    assert fault is None
    assert found == [message[1]]


LENGTHS = st.lists(st.sampled_from([b"0", b"3", b"03", b"+3", b" 3", b"3 ", b"", b"3, 3", b"-0", b"1_0"]), max_size=5)


@given(LENGTHS, st.sampled_from([b"", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: x\r\n"]))
def test_a_repeated_head_is_checked_as_a_new_one(lengths: list[bytes], more: bytes) -> None:
    """A reader remembers the last head; it must find what a reader that remembers nothing finds."""

    def message(length: bytes, extra: bytes) -> bytes:
        return b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n" + extra + b"\r\n" + b"abc"

    messages = [message(length, b"") for length in [b"3", *lengths]] + [message(b"3", more)]
    remembering = RequestReader(32_768)
    for data in messages:
        fresh = RequestReader(32_768)
        verdicts: list[object] = []
        for reader in (remembering, fresh):
            reader.feed(data)
            try:
                head = reader.head()
                assert head is not None
                body = b"" if reader.complete else reader.body()
                verdicts.append((head.method, head.path, head.content_length, head.has_body, head.chunked, body))
            except Malformed as fault:
                verdicts.append(fault.status)
        assert verdicts[0] == verdicts[1]
        if not isinstance(verdicts[0], tuple) or remembering.buffered or not remembering.complete:
            return


ODD = st.lists(
    st.sampled_from([
        b"GET / HTTP/1.1\r\n", b"Host: x\r\n", b"\r\n", b"\n", b"\r", b" ", b"Content-Length: 3\r\n", b"abc",
        b"3\r\nabc\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"A: b\r\n", b"\x00", b"HTTP/1.1",
        b"POST /x HTTP/1.0\r\n", b":",
    ]),
    max_size=14,
).map(b"".join)  # fmt: skip


@given(ODD, st.lists(st.integers(0, 200), max_size=6))
@example(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\r", [27])
def test_verdict_does_not_depend_on_the_split(data: bytes, cuts: list[int]) -> None:
    whole, whole_fault = read_requests([data])
    pieces, pieces_fault = read_requests(split(data, cuts))
    # A split can show a fault before a message's end is known, never hide one.
    assert pieces == whole
    assert (pieces_fault is None) == (whole_fault is None)


@given(ODD)
def test_what_is_accepted_h11_reads_alike(data: bytes) -> None:
    found, _ = read_requests([data])
    if not found:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data.lstrip(b"\r\n"))
    for method, path, query, body in found:
        head = connection.next_event()
        assert isinstance(head, h11.Request)
        assert head.method.decode() == method
        assert head.target.decode() == path + (f"?{query}" if query else "")
        theirs = b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data)
            theirs += event.data
        assert theirs == body
        if connection.their_state is not h11.DONE:
            return  # the message closes the connection
        connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is not h11.DONE:
            return
        connection.start_next_cycle()


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    body = draw(BODY)
    informational = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" if draw(st.booleans()) else b""
    kind = draw(st.sampled_from(["length", "chunked", "close"]))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\n"
    if kind == "length":
        return informational + head + b"Content-Length: %d\r\n\r\n" % len(body) + body, body, False
    if kind == "close":
        return informational + head + b"\r\n" + body, body, True
    at = draw(st.integers(0, len(body)))
    tail = chunked([body[:at], body[at:]], draw(st.booleans()))
    return informational + head + b"Transfer-Encoding: chunked\r\n\r\n" + tail, body, False


@given(responses(), st.lists(st.integers(0, 400), max_size=10), st.binary(min_size=0, max_size=4))
def test_responses_split_anywhere(message: tuple[bytes, bytes, bool], cuts: list[int], surplus: bytes) -> None:
    data, body, until_close = message
    if until_close:
        surplus = b""
    reader = ResponseReader()
    found = b""
    for piece in split(data, cuts):
        if piece and not reader.complete:
            found += reader.whole_chunk(piece) or reader.receive(piece)
    if until_close:
        assert not reader.complete
        reader.eof()
    assert reader.complete
    assert found == body
    again = ResponseReader()
    assert again.receive(data + surplus) == body
    if again.complete and surplus.strip(b"\r\n"):
        assert not again.reusable


@given(st.lists(st.integers(0, 60), max_size=10), st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"x"]))
def test_a_chunked_response_leaves_its_connection_usable_unless_something_follows(
    cuts: list[int], surplus: bytes
) -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\n\r\n"
    reader = ResponseReader()
    pieces = split(data, cuts)
    for piece in pieces[:-1]:
        reader.receive(piece)
    reader.receive(pieces[-1] + surplus)
    assert reader.complete
    assert reader.reusable == (not surplus)


CHUNKS = st.lists(
    st.sampled_from([
        b"3\r\nabc\r\n", b"6\r\n\r\n0\r\n\r\r\n", b"10\r\n0123456789abcdef\r\n", b"1\r\nx\r\n", b"03\r\nabc\r\n",
        b"A\r\n0123456789\r\n", b"3;a=b\r\nabc\r\n", b"3\r\nabcd\r\n", b"3\r\nab\r\n", b"+3\r\nabc\r\n", b"3\nabc\r\n",
        b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"\r\n", b"\n", b"\r", b"3", b"abc",
    ]),
    min_size=1, max_size=8,
)  # fmt: skip


@given(CHUNKS, st.lists(st.integers(0, 200), max_size=4))
@example([b"3\r\nabc\r\n", b"3", b"3\r\nabc\r\n"], [])
@example([b"3\r\nabc\r\n", b"3\r\nab\r\n", b"3\r\nabc\r\n"], [])
@example([b"3;a\r\n", b"3\r\nabc\r\n"], [])
@example([b"0\r\n", b"3\r\nabc\r\n"], [])
def test_a_chunk_that_comes_alone_is_read_as_the_parser_reads_it(chunks: list[bytes], cuts: list[int]) -> None:
    data = b"".join(chunks)
    for pieces in (chunks, [piece for piece in split(data, cuts) if piece]):
        verdicts = []
        for alone in (True, False):
            reader = ResponseReader()
            body = reader.receive(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            fault = False
            try:
                for piece in pieces:
                    if not reader.complete:
                        body += (alone and reader.whole_chunk(piece)) or reader.receive(piece)
            except Malformed:
                fault = True
            verdicts.append((body, fault, reader.complete, reader.reusable))
        assert verdicts[0] == verdicts[1]


@given(st.integers(1, 4200))
def test_a_chunk_of_any_size_that_comes_alone(size: int) -> None:
    reader = ResponseReader()
    reader.receive(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    content = b"\r\n" * size
    chunk = b"%x\r\n%b\r\n" % (size, content[:size])
    assert reader.whole_chunk(chunk) == (content[:size] if len(chunk) <= WHOLE_CHUNK_MAX else b"")
    for near in (chunk[:-1], chunk + b"\n", chunk[1:], b"0" + chunk, chunk[:-2] + b"xx"):
        assert not reader.whole_chunk(near)
    assert reader.receive(chunk) == content[:size]
