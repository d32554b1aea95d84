"""What a head means does not depend on the heads before it, on this connection or on any other."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from sndr.router.wire.http1 import Malformed, RequestHead, RequestMemory, RequestReader

VALUES = {
    "x-request-id": ["one", "two", "a b", ""],
    "traceparent": ["00-1", "00-2", "a b"],
    "authorization": ["Bearer a", "Bearer b"],
    "connection": ["close", "keep-alive, Traceparent", "x-request-id", "x-a"],
    "x-a": ["1", "2", "content-length: 5"],
    "transfer-encoding": ["chunked"],
    "expect": ["100-continue"],
}
LINES = [
    f"{spelt}{colon}{value}"
    for name, values in VALUES.items()
    for spelt in (name, name.title())
    for colon in (": ", ":")
    for value in values
]
HEADS = st.tuples(
    st.lists(st.sampled_from(LINES), max_size=6),
    st.sampled_from(["content-length: ", "Content-Length: ", "Content-Length:", "CONTENT-LENGTH: "]),
    st.sampled_from(["0", "3", "03", "12", "+3", " 3", "3 "]),
)
BODY = b"x" * 12
Head = tuple[list[str], str, str]


def written(head: Head) -> tuple[bytes, bytes]:
    lines, name, length = head
    raw = "POST /v1/x HTTP/1.1\r\nHost: h\r\n" + "".join(f"{line}\r\n" for line in lines) + f"{name}{length}\r\n\r\n"
    return raw.encode(), BODY[: int(length)]


def meaning(reader: RequestReader, data: bytes) -> tuple[Any, ...]:
    """Everything that anybody asks a request for."""
    try:
        whole = reader.repeat(data)
        if whole is None:
            reader.feed(data)
            head = reader.head()
            assert head is not None
            body = b"" if reader.complete else reader.body()
        else:
            head, body = whole[0], bytes(whole[1])
    except Malformed as fault:
        return (fault.status, fault.message)
    assert (reader.complete, reader.buffered) == (True, 0)
    return (*facts(head), bytes(body))


def facts(head: RequestHead) -> tuple[Any, ...]:
    length = b"content-length"
    return (
        head.method, head.path, head.query, head.http10, head.keep_alive, head.options, head.content_length,
        head.has_body, head.expects_continue, head.chunked,
        {name: value for name, value in head.fields.items() if name != length},
        sorted(field for field in head.headers if field[0] != length),
        # What goes on to a server: of the lines set apart nobody asks again whether they end here.
        sorted([name for name, _, _ in head.lasting if name not in head.options] + [name for name, _, _ in head.own]),
    )  # fmt: skip


def alone(data: bytes) -> tuple[Any, ...]:
    reader = RequestReader(4096)
    try:
        reader.feed(data)
        head = reader.head()
        assert head is not None
        body = b"" if reader.complete else reader.body()
    except Malformed as fault:
        return (fault.status, fault.message)
    passed = sorted(name for name, _, _ in head.headers if name not in head.options)
    return (*facts(head)[:-1], passed, bytes(body))


@given(st.lists(HEADS, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12))
@example([([], "Content-Length: ", "3"), (["traceparent: 00-1"], "Content-Length: ", "3")], [(0, 0), (1, 0), (0, 0)])
@example([
    (["Connection: keep-alive, Traceparent"], "Content-Length: ", "3"),
    (["Connection: keep-alive, Traceparent", "traceparent: 00-1"], "Content-Length: ", "3"),
], [(0, 0), (1, 1)])  # fmt: skip
@example([
    (["X-Request-Id:one"], "Content-Length: ", "3"),
    (["X-Request-Id:one", "x-request-id: two"], "Content-Length: ", "3"),
], [(0, 0), (1, 0), (0, 0)])  # fmt: skip
def test_a_head_means_what_it_means_to_a_reader_that_saw_no_other(
    heads: list[Head], order: list[tuple[int, int]]
) -> None:
    memory = RequestMemory()
    readers: dict[int, RequestReader] = {}
    for which, connection in order:
        raw, body = written(heads[which % len(heads)])
        if b"chunked" in raw:
            body = b"0\r\n\r\n"
        expected = alone(raw + body)
        reader = readers.setdefault(connection, RequestReader(4096, memory))
        assert meaning(reader, raw + body) == expected
        if len(expected) == 2:  # refused: the connection ends
            del readers[connection]
