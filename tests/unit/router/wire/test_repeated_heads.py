"""Messages that repeat the head before them: read at once where they are whole and exact, with care everywhere else."""

from __future__ import annotations

import pytest

from sndr.router.wire.http1 import HeadMemory, Malformed, RequestHead, RequestMemory, RequestReader, ResponseReader

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


OWN = (
    b"POST /v1/x HTTP/1.1\r\nHost: h\r\nX-Request-Id: %b\r\nContent-Length: %b\r\ntraceparent: %b\r\n"
    b"Accept: */*\r\n\r\n%b"
)


def numbering() -> RequestReader:
    made = RequestReader(4096)
    made.feed(OWN % (b"one", b"2", b"00-1", b"hi"))
    assert made.head() is not None
    assert made.body() == b"hi"
    return made


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 12_345])
def test_a_whole_request_that_only_names_itself_differently_is_read_at_once(body: bytes) -> None:
    known = numbering()
    for number in (b"two", b"three"):
        found = known.repeat(OWN % (number, b"%d" % len(body), b"00-2", body))
        assert found is not None
        head, got = found
        assert (got, head.content_length, head.has_body) == (body, len(body), bool(body))
        assert (head.fields[b"x-request-id"], head.fields[b"traceparent"]) == (number, b"00-2")
        assert [name for name, _, _ in head.headers].count(b"x-request-id") == 1
        assert (known.complete, known.buffered) == (True, 0)


@pytest.mark.parametrize(("length", "body"), NEAR_MISSES)
def test_one_that_differs_in_more_is_left_to_the_reader(length: bytes, body: bytes) -> None:
    known = numbering()
    assert known.repeat(OWN % (b"two", length, b"00-2", body)) is None
    assert known.repeat((OWN % (b"two", b"1", b"00-2", b"x")).replace(b"*/*", b"*/x")) is None
    assert known.repeat(OWN % (b"t" * 5000, b"1", b"00-2", b"x")) is None
    assert known.repeat(b"\r\n" + OWN % (b"two", b"1", b"00-2", b"x")) is None
    assert known.repeat(b"POST") is None
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


def test_what_was_concluded_everywhere_is_known_to_the_first_request_of_other_connections() -> None:
    memory = RequestMemory()

    def head(length: bytes = b"2") -> RequestHead:
        reader = RequestReader(4096, memory)
        reader.feed(REQUEST % (length, b""))
        found = reader.head()
        assert found is not None
        return found

    first = head()
    first.conclude("here", everywhere=False)
    second = head(b"3")
    assert (first.memo, second.memo) == ("here", None)
    second.conclude("everywhere", everywhere=True)
    assert (first.memo, second.memo, head(b"4").memo) == ("here", "everywhere", "everywhere")
    first.conclude("again", everywhere=True)
    assert (second.memo, head().memo) == ("everywhere", "again")
    head().fields[b"host"] = b"changed"
    assert head().fields[b"host"] == b"h"
    alone = RequestReader(4096)
    alone.feed(REQUEST % (b"2", b""))
    unremembered = alone.head()
    assert unremembered is not None
    unremembered.conclude("own", everywhere=True)
    assert (unremembered.memo, head().memo) == ("own", "again")


def test_a_copy_of_a_head_has_every_member() -> None:
    memory = RequestMemory()
    heads = []
    for _ in range(2):
        reader = RequestReader(4096, memory)
        reader.feed(REQUEST % (b"2", b""))
        heads.append(reader.head())
    for name in RequestHead.__slots__:
        assert getattr(heads[0], name) == getattr(heads[1], name), name


NAMED = b"POST /v1/x HTTP/1.1\r\nHost: h\r\n%bContent-Length: 1\r\nAccept: */*\r\n\r\nx"


def next_head(known: RequestReader, lines: bytes) -> RequestHead:
    known.feed(NAMED % lines)
    head = known.head()
    assert head is not None
    assert (known.body(), known.complete) == (b"x", True)
    return head


def test_heads_that_differ_in_the_request_s_name_repeat_and_carry_their_own() -> None:
    known = RequestReader(4096)
    first = next_head(known, b"X-Request-Id: one\r\ntraceparent: 00-1\r\n")
    first.memo = "concluded"
    assert first.own == ((b"x-request-id", b"one", b"x-request-id: one\r\n"),
                         (b"traceparent", b"00-1", b"traceparent: 00-1\r\n"))  # fmt: skip
    for lines, expected in [
        (b"X-Request-Id: two\r\n", {b"x-request-id": b"two"}),
        (b"", {}),
        (b"traceparent: 00-2\r\nx-request-id: three\r\n", {b"traceparent": b"00-2", b"x-request-id": b"three"}),
    ]:
        head = next_head(known, lines)
        assert (head is first, head.memo) == (True, "concluded")
        assert {
            name: head.fields[name] for name in (b"x-request-id", b"traceparent") if name in head.fields
        } == expected
        assert {name: value for name, value, _ in head.own} == expected
        assert {name: value for name, value, _ in head.headers} == head.fields
        assert [name for name, _, _ in head.lasting] == [b"host", b"content-length", b"accept"]


@pytest.mark.parametrize(
    "lines",
    [
        b"X-Request-Id: one\r\nConnection: x-request-id\r\n",  # ends at this hop
        b"X-Request-Id:one\r\nX-Request-Id: two\r\n",  # which one counts depends on the order
        b"X-Request-Id: a b\r\n",
        b"X-Request-Id : a\r\n",
        b"X-Request-Id: a\xff\r\n",
        b"traceparent: " + b"0" * 129 + b"\r\n",
        b"X-Request-Id: 1\r\n" * 5,
    ],
)
def test_other_ways_to_name_a_request_are_judged_each_time(lines: bytes) -> None:
    known = RequestReader(4096)
    next_head(known, b"").memo = "concluded"
    try:
        head = next_head(known, lines)
    except Malformed:
        return
    assert head.memo is None
    head.memo = "again"
    assert next_head(known, lines.replace(b"1", b"2")).memo in (None, "again")
    assert next_head(known, b"X-Request-Id: new\r\n").memo is None
