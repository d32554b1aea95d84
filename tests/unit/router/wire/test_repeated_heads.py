"""Messages that repeat the head before them: read at once where they are whole and exact, with care everywhere else."""

from __future__ import annotations

import pytest

from sndr.router.wire.http1 import HeadMemory, RequestMemory, RequestReader, ResponseReader

REQUEST = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: %b\r\nAccept: */*\r\n\r\n%b"
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %b\r\n\r\n%b"

NEAR_MISSES = [
    (b"3", b"ab"),  # bytes are missing
    (b"3", b"abcd"),  # bytes follow
    (b"+3", b"abc"),
    (b"3 ", b"abc"),
    (b"0x3", b"abc"),
    (b"", b""),
    (b"3, 3", b"abc"),
    (b"\xb2", b"ab"),
    (b"0000000000000000000003", b"abc"),
    (b"3\r\nX-More: 1", b"abc"),
    (b"3\r\n\r\nabc", b""),
]


def reader() -> RequestReader:
    made = RequestReader(4096)
    made.feed(REQUEST % (b"2", b"hi"))
    assert made.head() is not None
    assert made.body() == b"hi"
    assert made.complete
    return made


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 12_345])
def test_a_whole_request_with_a_known_head_is_read_at_once(body: bytes) -> None:
    known = reader()
    found = known.repeat(REQUEST % (b"%d" % len(body), body))
    assert found is not None
    head, got = found
    assert (got, head.content_length, head.has_body) == (body, len(body), bool(body))
    assert (known.complete, known.buffered) == (True, 0)


@pytest.mark.parametrize(("length", "body"), NEAR_MISSES)
def test_a_request_that_is_not_exactly_a_repetition_is_left_to_the_reader(length: bytes, body: bytes) -> None:
    known = reader()
    assert known.repeat(REQUEST % (length, body)) is None
    assert (known.complete, known.buffered) == (True, 0)


def test_no_request_is_read_at_once_beside_unread_bytes() -> None:
    known = reader()
    known.feed(b"PO")
    assert known.repeat(REQUEST % (b"1", b"x")) is None


def test_other_heads_are_never_repetitions() -> None:
    known = reader()
    whole = REQUEST % (b"1", b"x")
    for at in range(whole.index(b"\r\n\r\n")):
        if at not in range(whole.index(b"1\r\nA"), whole.index(b"1\r\nA") + 1):
            assert known.repeat(whole[:at] + bytes((whole[at] ^ 0x01,)) + whole[at + 1 :]) is None, at


@pytest.mark.parametrize(("length", "body"), NEAR_MISSES)
def test_a_response_that_is_not_exactly_a_repetition_is_left_to_a_reader(length: bytes, body: bytes) -> None:
    memory = HeadMemory()
    first = ResponseReader(memory=memory)
    assert first.receive(RESPONSE % (b"2", b"hi")) == b"hi"
    assert memory.repeat(RESPONSE % (length, body)) is None
    found = memory.repeat(RESPONSE % (b"3", b"abc"))
    assert found is not None
    assert (found[0].status, found[0].content_length, found[1]) == (200, 3, b"abc")


def test_responses_without_a_body_by_their_status_are_not_remembered() -> None:
    memory = HeadMemory()
    first = ResponseReader(memory=memory)
    first.receive(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n")
    assert memory.repeat(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\nhello") is None


def test_a_head_known_from_another_connection_is_not_shared_with_it() -> None:
    memory = RequestMemory()
    one, two = RequestReader(4096, memory), RequestReader(4096, memory)
    one.feed(REQUEST % (b"2", b""))
    first = one.head()
    assert first is not None
    first.memo = "concluded"
    two.feed(REQUEST % (b"5", b"12345"))
    second = two.head()
    assert second is not None
    assert second is not first
    assert (second.memo, second.content_length, first.content_length) == (None, 5, 2)
    assert (second.method, second.path, second.headers) == (first.method, first.path, first.headers)
    assert two.body() == b"12345"
    assert (two.complete, one.complete) == (True, False)
    # What differs in more than the length is judged anew.
    three = RequestReader(4096, memory)
    three.feed((REQUEST % (b"1", b"x")).replace(b"Host: h", b"Host: i"))
    third = three.head()
    assert third is not None
    assert (third.memo, third.fields[b"host"]) == (None, b"i")
