"""HTTP/1.1 messages as bytes: requests read, responses read, heads written. No socket, no clock.

llhttp (through httptools) is the only parser of header syntax and of chunked framing. What it leaves to us is checked
here: the request line (one space, exact protocol name and version, no control bytes), `Host`, `Transfer-Encoding` other
than exactly `chunked`, framing on HTTP/1.0, and limits on sizes and counts. Whatever is ambiguous is refused.

The exact end of a message is always known: a head is cut at its blank line before the parser sees it, a body with a
length is counted here, and a chunked body is fed to the parser in pieces that end at each blank line, which is the only
place where it can end. So bytes that follow a message are never mixed with it, however the stream was split.

Source: RFC 9112 (framing), RFC 9110 (fields).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from hashlib import blake2s
from typing import Any, Final

import httptools

__all__ = [
    "HeadMemory",
    "Malformed",
    "RequestHead",
    "RequestMemory",
    "RequestReader",
    "ResponseHead",
    "ResponseReader",
    "reason_phrase",
]

# A path and a query, or (third group) a target in another form.
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) (?:(/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))?|([!-~]+)) HTTP/1\.([01])\r\n")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\t -~\x80-\xff]*)?\r\n")
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_METHOD_PREFIX: Final = re.compile(rb"[A-Z]{1,20}(?: [!-~]*(?: [!-~]*\r?)?)?")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n|\x00|\r(?=[^\n])")
_BLANK: Final = b"\r\n\r\n"
_LINES_MAX: Final = 1024
_LINE_MAX: Final = 160
_MEMORY_MAX: Final = 64
_SECRET: Final = frozenset((b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"cookie"))
HEADERS_MAX: Final = 100
WHOLE_CHUNK_MAX: Final = 4_096
"""Bytes of a chunk, framing included, up to which one that arrives by itself is recognised without the parser."""
CHUNK_OVERHEAD_MAX: Final = 16_384
"""Bytes of chunk sizes, extensions and trailers beyond sixteen for each byte of the body."""
RESPONSE_HEAD_MAX: Final = 65_536
TARGET_MAX: Final = 8_192
VIEWED_FROM: Final = 4_096
"""Bytes from which the rest of a text is looked at in its place; of a shorter one a copy costs less."""

_REASONS: Final = {
    100: "Continue", 200: "OK", 201: "Created", 202: "Accepted", 204: "No Content", 400: "Bad Request",
    401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
    409: "Conflict", 412: "Precondition Failed", 413: "Content Too Large", 414: "URI Too Long",
    415: "Unsupported Media Type", 417: "Expectation Failed", 422: "Unprocessable Content",
    428: "Precondition Required", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable",
    504: "Gateway Timeout", 505: "HTTP Version Not Supported", 507: "Insufficient Storage",
}  # fmt: skip


def reason_phrase(status: int) -> str:
    """The registered phrase, or a neutral word for a status nobody registered."""
    return _REASONS.get(status, "Status")


class Malformed(Exception):  # noqa: N818 - says what the message is
    """A message that cannot be read safely; the connection must not be used any further.

    Attributes:
        status: What a server answers (for a response that is malformed, the caller answers 502).
        message: One line that quotes nothing of the message.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


Field = tuple[bytes, bytes, bytes]
"""Lower-case name, value without surrounding blanks, and the line that says so, CR LF included."""

_lines: dict[bytes, Field] = {}


def _split(block: bytes) -> list[Field]:
    """The fields of a block of lines whose syntax llhttp has accepted.

    The same lines come with almost every message, so short ones are remembered, except those that hold a credential.
    """
    fields: list[Field] = []
    known = _lines.get
    for line in block.split(b"\r\n"):
        field = known(line)
        if field is None:
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip(b" \t")
            field = (name, value, b"%b: %b\r\n" % (name, value))
            if len(line) <= _LINE_MAX and name not in _SECRET:
                if len(_lines) >= _LINES_MAX:
                    _lines.clear()
                _lines[line] = field
        fields.append(field)
    return fields


class _Frame:
    """The bytes of a head around the value of its content-length line, as that line is commonly written.

    Peers repeat their heads with no other difference than this value. Whoever has checked one head need not check the
    next one again when it begins and ends with the same bytes and the value is a plain number: the checked head had
    exactly one such line, and has it still, and no blank line but the last.
    """

    __slots__ = ("after", "before", "start")

    def __init__(self, raw: bytes, start: int) -> None:
        self.start = start
        self.before = raw[:start]
        self.after = raw[raw.find(b"\r\n", start) :]

    @classmethod
    def of(cls, raw: bytes) -> _Frame | None:
        """What is around the length; None where there is none."""
        at = raw.find(b"\r\ncontent-length: ")
        if at < 0:
            at = raw.find(b"\r\nContent-Length: ")
        return None if at < 0 else cls(raw, at + 18)

    def match(self, data: bytes) -> tuple[int, int] | None:
        """Where the body begins in `data` and how long it is, if `data` begins with the same head."""
        if not data.startswith(self.before):
            return None
        start = self.start
        end = data.find(b"\r\n", start, start + 17)
        if end < 0 or not data.startswith(self.after, end):
            return None
        text = data[start:end]
        return (end + len(self.after), int(text)) if text.isdigit() else None

    def body_at(self, data: bytes) -> int:
        """Where the body begins, if `data` is one whole message with the same head and nothing else; 0 if it is not."""
        if not data.startswith(self.before):
            return 0
        start = self.start
        end = data.find(b"\r\n", start, start + 17)
        after = self.after
        if end < 0 or not data.startswith(after, end):
            return 0
        text = data[start:end]
        at = end + len(after)
        return at if text.isdigit() and int(text) == len(data) - at else 0


_OWN: Final = re.compile(rb"\r\n((?i:x-request-id|traceparent)): ([!-~]{1,128})(?=\r\n)")
"""Lines that only say which request this is: without them, the heads of a client that numbers its requests repeat."""
_OWN_NAMES: Final = frozenset((b"x-request-id", b"traceparent"))
_OWN_MAX: Final = 4


def _apart(raw: bytes) -> tuple[bytes, tuple[Field, ...]]:
    """A head without the lines that differ from request to request, and those lines as fields."""
    parts = _OWN.split(raw)
    if len(parts) == 1:
        return raw, ()
    own = tuple(
        [
            (name.lower(), value, b"%b: %b\r\n" % (name.lower(), value))
            for name, value in zip(parts[1::3], parts[2::3], strict=True)
        ]
    )
    return (b"".join(parts[::3]), own) if len(own) <= _OWN_MAX else (raw, ())


_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding"))
_NO_OPTIONS: Final[frozenset[bytes]] = frozenset()


class RequestHead:
    """A request without its body. The reader may use one object again for the next request of its connection.

    Attributes:
        method: Upper-case token.
        path: Path as sent, never empty; of an absolute-form target only the path.
        query: As sent, without `?`; empty when absent.
        http10: The client speaks HTTP/1.0.
        headers: The fields; those that differ from request to request last.
        lasting: Those that are the same in every head that repeats this one.
        own: The others.
        fields: All as a mapping; of a repeated name the last value.
        keep_alive: Whether the connection may carry another request.
        options: What `Connection` lists, in lower case: fields of those names end at this hop.
        content_length: Announced length; None when there is none.
        chunked: The body is chunked.
        has_body: Whether any body byte may follow.
        expects_continue: The client waits for a 100 before it sends the body.
        memo: What the application concluded from everything but the length and `own`; kept while heads repeat.
        first: What heads that repeat this one on other connections are made of; None where nothing is remembered.
    """

    __slots__ = (
        "chunked", "content_length", "expects_continue", "fields", "first", "has_body", "headers", "http10",
        "keep_alive", "lasting", "memo", "method", "options", "own", "path", "query",
    )  # fmt: skip

    def __init__(self, line: re.Match[bytes], headers: list[Field]) -> None:
        method, path, query, target, minor = line.groups()
        self.memo: Any = None
        self.first: RequestHead | None = None
        self.method: str = method.decode()
        self.http10 = http10 = minor == b"0"
        self.headers = self.lasting = headers
        self.own: tuple[Field, ...] = ()
        fields = self.fields = {name: value for name, value, _ in headers}
        if target is not None:
            path, query = self._read_target(target)
        elif line.end(3 if query is not None else 2) - line.start(2) > TARGET_MAX:
            raise Malformed("the request target is too long", 414)
        self.path: str = path.decode()
        self.query: str = "" if query is None else query.decode()
        self.content_length: int | None = None
        self.chunked = False
        length = fields.get(b"content-length")
        if length is not None:
            if _LENGTH.fullmatch(length) is None:
                raise Malformed("content-length is not a plain number")
            self.content_length = int(length)
        coding = fields.get(b"transfer-encoding")
        if coding is not None:
            if coding.lower() != b"chunked":
                raise Malformed("transfer-encoding other than chunked")
            if http10:
                raise Malformed("transfer-encoding on HTTP/1.0")
            if length is not None:
                raise Malformed("both content-length and transfer-encoding")
            self.chunked = True
        if len(fields) != len(headers):
            _refuse_repeats(headers)
        host = fields.get(b"host")
        if host is None:
            if not http10:
                raise Malformed("no host field")
        elif _HOST.fullmatch(host) is None:
            raise Malformed("malformed host field")
        connection = fields.get(b"connection")
        if connection is None:
            self.keep_alive = not http10
            self.options = _NO_OPTIONS
        else:
            options = self.options = _tokens(value for name, value, _ in headers if name == b"connection")
            self.keep_alive = b"close" not in options and (not http10 or b"keep-alive" in options)
        self.has_body = self.chunked or bool(self.content_length)
        expect = fields.get(b"expect")
        self.expects_continue = False
        if expect is not None and not http10:
            if expect.lower() != b"100-continue":
                raise Malformed("an expectation other than 100-continue", 417)
            self.expects_continue = self.has_body

    def conclude(self, memo: Any, *, everywhere: bool) -> None:
        """Keep what the application concluded.

        Args:
            memo: The conclusion.
            everywhere: It is the same on every connection, so that the first requests of others find it.
        """
        self.memo = memo
        if everywhere and self.first is not None:
            self.first.memo = memo

    def again(self) -> RequestHead:
        """The same head as another connection's own, with what was concluded for every connection."""
        other = RequestHead.__new__(RequestHead)
        other.chunked = self.chunked
        other.content_length = self.content_length
        other.expects_continue = self.expects_continue
        other.fields = self.fields.copy()
        other.first = self
        other.has_body = self.has_body
        other.headers = self.headers
        other.http10 = self.http10
        other.keep_alive = self.keep_alive
        other.lasting = self.lasting
        other.memo = self.memo
        other.method = self.method
        other.options = self.options
        other.own = self.own
        other.path = self.path
        other.query = self.query
        return other

    def separate(self, own: tuple[Field, ...]) -> bool:
        """Set fields of a head that was just judged apart; False where that could change what they mean."""
        lasting = [field for field in self.headers if field not in own]
        if len(lasting) + len(own) != len(self.headers) or not self.options.isdisjoint(_OWN_NAMES):
            return False
        if any(name in _OWN_NAMES for name, _, _ in lasting):
            return False
        self.lasting, self.own = lasting, own
        self.headers = [*lasting, *own]
        return True

    def renew(self, own: tuple[Field, ...]) -> None:
        """The next request's fields in the place of the last one's."""
        fields = self.fields
        for name, _, _ in self.own:
            fields.pop(name, None)
        for name, value, _ in own:
            fields[name] = value
        self.own = own
        self.headers = [*self.lasting, *own]

    def _read_target(self, target: bytes) -> tuple[bytes, bytes]:
        """Path and query of a target that is not a plain path."""
        if len(target) > TARGET_MAX:
            raise Malformed("the request target is too long", 414)
        if b"#" in target:
            raise Malformed("a fragment in the request target")
        if target == b"*" and self.method == "OPTIONS":
            return target, b""
        scheme, mark, rest = target.partition(b"://")
        if not mark or scheme.lower() not in (b"http", b"https") or not rest:
            raise Malformed("a request target that is neither a path nor an http URL")
        slash, ask = rest.find(b"/"), rest.find(b"?")
        has_path = slash >= 0 and not -1 < ask < slash
        target = rest[slash:] if has_path else b"/" + (rest[ask:] if ask >= 0 else b"")
        path, _, query = target.partition(b"?")
        return path, query


def _tokens(values: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


_SINGLE: Final = frozenset((b"host", b"content-length", b"transfer-encoding", b"authorization", b"x-api-key",
                            b"content-type", b"content-encoding", b"expect"))  # fmt: skip


def _refuse_repeats(headers: list[Field]) -> None:
    seen: set[bytes] = set()
    for name, _, _ in headers:
        if name in seen and name in _SINGLE:
            raise Malformed("a field that must not be repeated is repeated")
        seen.add(name)


class _Syntax:
    """Receiver for a parser that is only asked whether a head is well-formed: every call would cost time."""


_SYNTAX: Final = _Syntax()


class _Chunks:
    """Receiver of a chunked body."""

    __slots__ = ("body", "complete", "surplus")

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self.complete = False
        self.surplus = False

    def on_message_begin(self) -> None:
        if self.complete:
            self.surplus = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


class _ResponseChunks(_Chunks):
    """Receiver that also knows whether the next byte begins a chunk, provided that the last one ended a line."""

    __slots__ = ("due",)

    def __init__(self) -> None:
        super().__init__()
        self.due = True

    def on_chunk_header(self) -> None:
        self.due = False

    def on_chunk_complete(self) -> None:
        self.due = True


def _size_lines() -> list[bytes]:
    """By the length of a whole chunk, the line that it begins with when that is written without anything to spare."""
    lines = [b"x" * (WHOLE_CHUNK_MAX + 1)] * (WHOLE_CHUNK_MAX + 1)  # where no size fits: nothing begins with it
    size = 1
    while True:
        line = b"%x\r\n" % size
        length = len(line) + size + 2
        if length > WHOLE_CHUNK_MAX:
            return lines
        lines[length] = line
        size += 1


class RequestMemory:
    """Heads that were judged on any connection, for the first requests of others.

    Looked up by a keyed digest: a head holds a credential, and comparing it with somebody else's must tell nothing by
    the time it takes.
    """

    __slots__ = ("_heads", "_salt")

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[RequestHead, _Frame]] = {}
        self._salt = os.urandom(16)

    def find(self, lasting: bytes) -> tuple[RequestHead, _Frame] | None:
        """A head that `lasting` repeats, as its own object, and what is around its length."""
        frame = _Frame.of(lasting)
        known = None if frame is None else self._heads.get(self._digest(frame))
        return None if known is None else (known[0].again(), known[1])

    def keep(self, head: RequestHead, frame: _Frame) -> None:
        """Remember a head."""
        if len(self._heads) >= _MEMORY_MAX:
            self._heads.clear()
        first = head.first = head.again()
        first.first = None
        self._heads[self._digest(frame)] = first, frame

    def _digest(self, frame: _Frame) -> bytes:
        return blake2s(frame.before + frame.after, digest_size=16, key=self._salt).digest()


class RequestReader:
    """Reads the requests of one connection, one after the other.

    Feed bytes as they come; `head()` returns the next head once it is there, `body()` the body bytes that are there,
    and `complete` says when the request ended. Bytes that follow stay in the reader until the next `head()`.
    """

    __slots__ = (
        "_buffer", "_chunk_parser", "_chunks", "_frame", "_head_max", "_known", "_left", "_memory", "_overhead",
        "_searched", "_tail", "complete",
    )  # fmt: skip

    def __init__(self, head_max_bytes: int, memory: RequestMemory | None = None) -> None:
        self._buffer = b""
        self._memory = memory
        self._head_max = head_max_bytes
        self._known: RequestHead | None = None
        self._frame: _Frame | None = None
        self._searched = 0
        self._left = 0
        self._chunk_parser: httptools.HttpRequestParser | None = None
        self._chunks: _Chunks | None = None
        self._tail = b""
        self._overhead = 0
        self.complete = True

    @property
    def buffered(self) -> int:
        """Bytes fed and not yet consumed."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add bytes read from the connection."""
        self._buffer = self._buffer + data if self._buffer else data

    def repeat(self, data: bytes) -> tuple[RequestHead, bytes | memoryview] | None:
        """Head and body, where `data` is one whole request whose head repeats the last one; else nothing happens.

        Does what `feed`, `head` and `body` would do.
        """
        head, frame = self._known, self._frame
        if head is None or frame is None or self._buffer or not self.complete:
            return None
        at = frame.body_at(data)
        own: tuple[Field, ...] = ()
        if not at:
            if head.own:
                at, own = self._body_behind_own(frame, data)
            if not at:
                return None
        body: bytes | memoryview = data[at:] if len(data) < VIEWED_FROM else memoryview(data)[at:]
        head.content_length = length = len(body)
        head.has_body = length > 0
        if own or head.own:
            head.renew(own)
        return head, body

    def _body_behind_own(self, frame: _Frame, data: bytes) -> tuple[int, tuple[Field, ...]]:
        """As `_Frame.body_at`, for a head with lines of its own, and those."""
        end = data.find(_BLANK, 0, self._head_max) + 4
        lasting, own = _apart(data[:end])
        return (end, own) if frame.match(lasting) == (len(lasting), len(data) - end) else (0, ())

    def head(self) -> RequestHead | None:
        """The next request's head, or None while it is incomplete. Only when `complete`.

        Raises:
            Malformed: The connection is unusable.
        """
        buffer = self._buffer
        if buffer[:1] == b"\r":
            buffer = self._skip_blank_lines(buffer)
        end = buffer.find(_BLANK, self._searched)
        if end < 0:
            self._incomplete(buffer)
            return None
        end += 4
        if end > self._head_max:
            raise Malformed("the request head is too large", 431)
        raw = buffer[:end]
        self._searched = 0
        self._buffer = buffer[end:]
        head, frame, memory = self._known, self._frame, self._memory
        lasting, own = _apart(raw)
        found = None if frame is None else frame.match(lasting)
        if frame is None and memory is not None and (known := memory.find(lasting)) is not None:
            head, frame = known
            found = frame.match(lasting)
            if found is not None:
                self._known, self._frame = known
        if head is not None and found is not None:
            head.content_length = self._left = found[1]
            head.has_body = self._left > 0
            self.complete = not self._left
            if own or head.own:
                head.renew(own)
            return head
        head = self._parse(raw)
        # Only heads whose differences can be the length and the lines set apart are remembered, and only where such
        # lines mean the same in each that may follow, also if this one has none.
        remembered = head.separate(own) and not (head.chunked or head.expects_continue)
        self._frame = _Frame.of(lasting) if remembered else None
        self._known = None if self._frame is None else head
        if memory is not None and self._frame is not None:
            memory.keep(head, self._frame)
        if head.chunked:
            self._chunks = _Chunks()
            self._chunk_parser = httptools.HttpRequestParser(self._chunks)
            self._chunk_parser.feed_data(_CHUNKED_REQUEST)
            self._tail = b""
            self._overhead = 0
            self.complete = False
        else:
            self._left = head.content_length or 0
            self.complete = not self._left
        return head

    def _parse(self, raw: bytes) -> RequestHead:
        line = _REQUEST_LINE.match(raw)
        if line is None:
            raise self._bad_line(raw)
        try:
            httptools.HttpRequestParser(_SYNTAX).feed_data(raw)
        except httptools.HttpParserUpgrade:
            pass  # the field is ignored
        except httptools.HttpParserError:
            raise Malformed("malformed request head") from None
        start = line.end()
        headers = _split(raw[start:-4]) if start + 4 <= len(raw) else []
        if len(headers) > HEADERS_MAX:
            raise Malformed("too many header fields", 431)
        return RequestHead(line, headers)

    def body(self) -> bytes:
        """Body bytes that have arrived since the last call; sets `complete` at the end of the request.

        Raises:
            Malformed: Bad chunked framing.
        """
        buffer = self._buffer
        if self._chunk_parser is not None:
            return self._chunked_body(buffer)
        left = self._left
        if len(buffer) < left:
            self._left = left - len(buffer)
            self._buffer = b""
            return buffer
        self._left = 0
        self.complete = True
        self._buffer = buffer[left:]
        return buffer[:left] if len(buffer) > left else buffer

    def _chunked_body(self, buffer: bytes) -> bytes:
        chunks, parser = self._chunks, self._chunk_parser
        assert chunks is not None
        assert parser is not None
        used = _feed_chunks(parser.feed_data, chunks, self._tail, buffer)
        self._tail = (self._tail + buffer[-3:])[-3:]
        self._buffer = buffer[used:]
        body, chunks.body = b"".join(chunks.body), []
        self._overhead += used - 16 * len(body)
        if self._overhead > CHUNK_OVERHEAD_MAX:
            raise Malformed("too much framing for the chunked body")
        if chunks.complete:
            self.complete = True
            self._chunk_parser = self._chunks = None
        return body

    def _skip_blank_lines(self, buffer: bytes) -> bytes:
        """Tolerate empty lines before a request line, as RFC 9112 2.2 asks."""
        start = 0
        while buffer.startswith(b"\r\n", start):
            start += 2
        if start > 64:
            raise Malformed("too many empty lines")
        self._buffer = buffer = buffer[start:]
        self._searched = 0
        return buffer

    def _incomplete(self, buffer: bytes) -> None:
        """Refuse early what no further byte can mend."""
        if len(buffer) > self._head_max:
            raise Malformed("the request head is too large", 431)
        self._searched = max(0, len(buffer) - 3)
        if not buffer or buffer == b"\r":
            return
        line_end = buffer.find(b"\r\n")
        if line_end < 0:
            if len(buffer) > TARGET_MAX + 64:
                raise Malformed("the request target is too long", 414)
            if _METHOD_PREFIX.fullmatch(buffer) is None:
                raise Malformed("malformed request line")
        elif _REQUEST_LINE.match(buffer) is None:
            raise self._bad_line(buffer)
        if _BARE_LF.search(buffer) is not None:
            raise Malformed("a line that does not end in CR LF")

    @staticmethod
    def _bad_line(raw: bytes) -> Malformed:
        line = raw[: raw.find(b"\r\n")]
        if len(line) > TARGET_MAX:
            return Malformed("the request target is too long", 414)
        if re.fullmatch(rb"[A-Z]+ [!-~]+ HTTP/[02-9]\.[0-9]", line):
            return Malformed("HTTP version not supported", 505)
        return Malformed("malformed request line")


# llhttp ends a message at its head when it carries `Upgrade`. The field is ignored here, so a chunked body goes to a
# parser that has seen no other field than the framing.
_CHUNKED_REQUEST: Final = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNKED_RESPONSE: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def _feed_chunks(feed: Callable[[bytes], object], chunks: _Chunks, tail: bytes, data: bytes) -> int:
    """Feed chunked data up to the end of the message and not a byte further; returns how much was used."""
    start = 0
    joined = tail + data[:3]
    offset = len(tail)
    while not chunks.complete and start < len(data):
        # A message ends at a blank line. It may have begun in the bytes that were fed before.
        end = -1
        if start < 3 and offset:
            found = joined.find(_BLANK, max(0, start + offset - 3))
            if found >= 0 and found + 4 - offset > start:
                end = found + 4 - offset
        if end < 0:
            found = data.find(_BLANK, max(0, start - 3) if start else 0)
            while found >= 0 and found + 4 <= start:
                found = data.find(_BLANK, found + 1)
            end = found + 4 if found >= 0 else len(data)
        try:
            feed(data[start:end] if start or end < len(data) else data)
        except httptools.HttpParserUpgrade:
            chunks.complete = True
        except httptools.HttpParserError:
            if not chunks.complete:
                raise Malformed("malformed chunked body") from None
        start = end
    return start


_SIZE_LINES: Final = _size_lines()


class ResponseHead:
    """A response without its body. Readers that share a memory may use one object again.

    Attributes:
        status: Three digits.
        headers: The fields in order.
        fields: The same as a mapping; of a repeated name the last value.
        content_length: Announced length; None when there is none.
        chunked: The body is chunked.
        keep_alive: The connection may carry another request after the body, if the body's end is known.
        options: What `Connection` lists, in lower case: fields of those names end at this hop.
        memo: For the application: what it concluded from everything but the length; kept while heads repeat.
    """

    __slots__ = ("chunked", "content_length", "fields", "headers", "http10", "keep_alive", "memo", "options", "status")

    def __init__(self, line: re.Match[bytes], headers: list[Field]) -> None:
        self.memo: Any = None
        self.http10 = line[1] == b"0"
        self.status = int(line[2])
        self.headers = headers
        fields = self.fields = {name: value for name, value, _ in headers}
        self.content_length: int | None = None
        self.chunked = False
        length = fields.get(b"content-length")
        if length is not None:
            if _LENGTH.fullmatch(length) is None:
                raise Malformed("content-length is not a plain number")
            self.content_length = int(length)
        coding = fields.get(b"transfer-encoding")
        if coding is not None:
            if coding.lower() != b"chunked" or self.http10 or length is not None:
                raise Malformed("transfer-encoding that cannot be read safely")
            self.chunked = True
        if len(fields) != len(headers):
            _refuse_repeats(headers)
        connection = fields.get(b"connection")
        if connection is None:
            self.keep_alive = not self.http10
            self.options = _NO_OPTIONS
        else:
            options = self.options = _tokens(value for name, value, _ in headers if name == b"connection")
            self.keep_alive = b"close" not in options and (not self.http10 or b"keep-alive" in options)


class HeadMemory:
    """The last head of an upstream, for the readers of its responses."""

    __slots__ = ("frame", "head")

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.frame: _Frame | None = None

    def repeat(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """Head and body, where `data` is one whole response whose head repeats the last one, and nothing else.

        Such a response needs no reader.
        """
        head, frame = self.head, self.frame
        if head is None or frame is None:
            return None
        at = frame.body_at(data)
        if not at:
            return None
        body = data[at:]
        head.content_length = len(body)
        return head, body


class ResponseReader:
    """Reads one response. `receive` returns the body bytes among what was fed; `head` is set once it is complete.

    Attributes:
        head: The final head; informational ones (1xx) are dropped.
        complete: The response ended within the bytes fed.
        reusable: After `complete`: the connection may carry another request, and nothing followed the response.
        begun: At least one byte was fed.
    """

    __slots__ = (
        "_buffer",
        "_chunk_due",
        "_chunks",
        "_feed",
        "_head_only",
        "_informational",
        "_left",
        "_memory",
        "_overhead",
        "_tail",
        "_until_eof",
        "begun",
        "complete",
        "head",
        "reusable",
    )  # fmt: skip

    def __init__(self, *, head_only: bool = False, memory: HeadMemory | None = None) -> None:
        self._buffer = b""
        self._memory = memory
        self._head_only = head_only
        self._informational = 0
        self._tail = b""
        self._overhead = 0
        self._feed: Callable[[bytes], object] | None = None
        self._chunks: _ResponseChunks | None = None
        self._chunk_due = False
        self._left = 0
        self._until_eof = False
        self.head: ResponseHead | None = None
        self.complete = False
        self.reusable = False
        self.begun = False

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the upstream.

        Raises:
            Malformed: The response cannot be trusted from here on.
        """
        self.begun = True
        if self.head is None:
            rest = self._read_head(data)
            if not rest or self.complete:
                return b""
            data = rest
        if self._feed is not None:
            return self._receive_chunked(data)
        if self._until_eof:
            return data
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            return data
        self.complete = True
        if len(data) > left:
            self.reusable = False
            data = data[:left]
        self._left = 0
        return data

    def whole_chunk(self, data: bytes) -> bytes:
        """The content, if `data` is exactly one chunk where one may begin; else nothing, and `receive` has to take it.

        That is how a model server's events arrive. A chunk between two others changes nothing of what the parser knows,
        so it need not see it. Which size line fits is told by the length: no number is read.
        """
        if self._chunk_due and len(data) <= WHOLE_CHUNK_MAX:
            line = _SIZE_LINES[len(data)]
            if data.startswith(line) and data.endswith(b"\r\n"):
                return data[len(line) : -2]
        return b""

    def eof(self) -> None:
        """The upstream closed its side.

        Raises:
            Malformed: In the middle of a message.
        """
        if self.complete:
            return
        if self.head is None or not self._until_eof:
            raise Malformed("the response is cut short")
        self.complete = True

    def _receive_chunked(self, data: bytes) -> bytes:
        chunks, feed = self._chunks, self._feed
        assert chunks is not None
        assert feed is not None
        try:
            feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not chunks.complete:
                raise Malformed("malformed chunked body") from None
            chunks.surplus = True
        body = chunks.body
        tail = self._tail = data[-5:] if len(data) >= 5 else (self._tail + data)[-5:]
        self._chunk_due = chunks.due and not chunks.complete and data.endswith(b"\n")
        if chunks.complete:
            self.complete = True
            # The parser skips line ends that follow a message, without a word: none may follow here.
            if chunks.surplus or tail[-4:] != _BLANK or tail[:-4] in (b"\r", b"\n"):
                self.reusable = False
        size = len(data)
        data = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        self._overhead += size - 16 * len(data)
        if self._overhead > CHUNK_OVERHEAD_MAX and not chunks.surplus:  # what follows the end is no framing
            raise Malformed("too much framing for the chunked body")
        return data

    def _read_head(self, data: bytes) -> bytes | None:
        buffer = self._buffer + data if self._buffer else data
        while True:
            end = buffer.find(_BLANK)
            if end < 0:
                if len(buffer) > RESPONSE_HEAD_MAX:
                    raise Malformed("the response head is too large")
                if not b"HTTP/1.".startswith(buffer[:7]):
                    raise Malformed("not an HTTP/1 response")
                if _BARE_LF.search(buffer) is not None:
                    raise Malformed("a line that does not end in CR LF")
                self._buffer = buffer
                return None
            end += 4
            raw = buffer[:end]
            buffer = buffer[end:]
            memory = self._memory
            if memory is not None:
                known, frame = memory.head, memory.frame
                found = None if frame is None else frame.match(raw)
                if known is not None and found is not None:
                    known.content_length = self._left = found[1]
                    self.reusable = known.keep_alive
                    self._buffer = b""
                    self.complete = not self._left
                    if self.complete and buffer:
                        self.reusable = False
                    self.head = known
                    return buffer
            line = _STATUS_LINE.match(raw)
            if line is None or end > RESPONSE_HEAD_MAX:
                raise Malformed("malformed status line")
            if line[2] == b"101":
                raise Malformed("switching protocols was not asked for")
            try:
                httptools.HttpResponseParser(_SYNTAX).feed_data(raw)
            except httptools.HttpParserUpgrade:
                raise Malformed("switching protocols was not asked for") from None
            except httptools.HttpParserError:
                raise Malformed("malformed response head") from None
            if line[2][:1] != b"1":
                break
            if any(name in _FRAMING for name, _, _ in _split(raw[line.end() : -4])):
                raise Malformed("an informational response with a body")
            self._informational += end
            if self._informational > RESPONSE_HEAD_MAX:
                raise Malformed("too many informational responses")
        self._buffer = b""
        start = line.end()
        headers = _split(raw[start:-4]) if start + 4 <= end else []
        if len(headers) > HEADERS_MAX:
            raise Malformed("too many header fields")
        head = ResponseHead(line, headers)
        self.reusable = head.keep_alive
        if memory is not None:
            memory.frame = None if head.status in (204, 304) else _Frame.of(raw)
            memory.head = None if memory.frame is None else head
        if self._head_only or head.status in (204, 304):
            self.complete = True
        elif head.chunked:
            self._chunks = _ResponseChunks()
            self._feed = httptools.HttpResponseParser(self._chunks).feed_data
            self._feed(_CHUNKED_RESPONSE)
            self._chunk_due = True
        elif head.content_length is not None:
            self._left = head.content_length
            self.complete = not self._left
        else:
            self._until_eof = True
            self.reusable = False
        if self.complete and buffer:
            self.reusable = False
        self.head = head
        return buffer
