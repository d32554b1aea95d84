"""Statuses, fields and streams of a model server, and servers that stall or vanish."""

from __future__ import annotations

from tests.conformance.hostile.build import Lie
from tests.support.raw_upstream import CLOSE, DEFAULT_BODY, HOLD, RESET

ERROR = b'{"error":{"message":"SERVER SAID","type":"x","param":null,"code":"own"}}'
EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def answer(status: int, *lines: bytes, body: bytes = ERROR) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 %d Whatever" % status, b"Content-Type: application/json", *lines,
                         b"Content-Length: %d" % len(body), b"", body])  # fmt: skip


def relayed(status: int, *lines: bytes, **more: object) -> Lie:
    return Lie(f"{status} relayed", (answer(status, *lines),), status, body=ERROR, outcome="upstream_error",
               drops=False, **more)  # type: ignore[arg-type]  # fmt: skip


def hidden(status: int, *lines: bytes) -> Lie:
    return Lie(f"{status} hidden", (answer(status, *lines, body=ERROR.replace(b"SERVER SAID", b"SMUGGLED")),),
               code="upstream_error", outcome="upstream_error", drops=False)  # fmt: skip


def stream(name: str, *steps: bytes | float | str, code: str | None = None, outcome: str = "completed",
           body: bytes | None = None, lines: bytes = b"", drops: bool = True) -> Lie:  # fmt: skip
    return Lie(name, (STREAM + lines + b"\r\n", *steps), 200, code=code, outcome=outcome, body=body, stream=True,
               drops=drops)  # fmt: skip


CASES = [
    *(relayed(status) for status in (400, 404, 409, 413, 415, 422)),
    relayed(429, b"Retry-After: 7", fields=(("retry-after", "7"),)),
    relayed(503, b"Retry-After: 9", fields=(("retry-after", "9"),)),
    *(hidden(status) for status in (402, 405, 406, 407, 408, 410, 412, 414, 416, 417, 418, 421, 423, 424, 425, 426, 428,
                                    431, 451, 499, 500, 501, 502, 504, 505, 507, 508, 511, 529, 599)),
    hidden(401, b"WWW-Authenticate: Bearer realm=SMUGGLED"),
    hidden(403),
    *(hidden(status, b"Location: http://127.0.0.1:1/SMUGGLED") for status in (300, 301, 302, 303, 307, 308)),
    Lie("304 hidden", (b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",), code="upstream_error",
        outcome="upstream_error", drops=False),
    Lie("500 that never ends", (b"HTTP/1.1 500 No\r\nContent-Length: 99\r\n\r\nSMUGGLED", HOLD), code="upstream_error",
        outcome="upstream_error"),
    Lie("201", (answer(201, body=DEFAULT_BODY),), 201, body=DEFAULT_BODY, outcome="completed", drops=False),
    Lie("204", (b"HTTP/1.1 204 No Content\r\n\r\n",), 204, body=b"", outcome="completed", drops=False),
    Lie("an error in HTML", (b"HTTP/1.1 400 Bad\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",), 400,
        body=b"<html>", outcome="upstream_error", drops=False),
    Lie("an error without a body", (b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n",), 429, body=b"",
        outcome="upstream_error", drops=False),
    Lie("an error in chunks", (b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n",), 400,
        body=b"bad", outcome="upstream_error", drops=False),
    Lie("an error until the close", (b"HTTP/1.1 400 Bad\r\n\r\nbad", CLOSE), 400, body=b"bad",
        outcome="upstream_error"),
    # Fields that stop here, and fields that pass.
    Lie("fields", (answer(200, b"Set-Cookie: SMUGGLED=1", b"Location: /SMUGGLED", b"Refresh: 0;url=SMUGGLED",
        b"Connection: x-hop", b"Connection: X-Hop2", b"X-Hop: 1",
        b"X-Hop2: 1", b"Keep-Alive: timeout=5", b"Trailer: x", b"Upgrade: h2c",
        b"Alt-Svc: SMUGGLED",
        b"Proxy-Authenticate: SMUGGLED", b"WWW-Authenticate: SMUGGLED", b"X-Request-Id: SMUGGLED",
        b"X-Sndr-Tier: SMUGGLED", b"X-Sndr-Max-Tokens-Clamped: SMUGGLED", b"X-Sndr-Route-Sha256: SMUGGLED",
        b"X-Ratelimit-Remaining: 5", b"OpenAI-Processing-Ms: 12", b"Server: vllm", b"X-Odd: \xe9",
        body=DEFAULT_BODY),), 200, body=DEFAULT_BODY, outcome="completed", drops=False,
        fields=(("x-ratelimit-remaining", "5"), ("openai-processing-ms", "12"), ("x-odd", "\xe9"), ("set-cookie", None),
                ("location", None), ("x-hop", None), ("x-hop2", None), ("keep-alive", None), ("trailer", None),
                ("upgrade", None),
                ("alt-svc", None), ("www-authenticate", None), ("x-sndr-tier", None))),
    Lie("compressed though nobody asked", (answer(200, b"Content-Encoding: gzip", body=b"\x1f\x8b\x08zzz"),), 200,
        body=b"\x1f\x8b\x08zzz", outcome="completed", drops=False, fields=(("content-encoding", "gzip"),)),
    Lie("not JSON at all", (answer(200, body=b"\x00\xff{"),), 200, body=b"\x00\xff{", outcome="completed", drops=False),
    Lie("JSON nested without end", (answer(200, body=b'{"usage":' + b"[" * 60_000),), 200,
        body=b'{"usage":' + b"[" * 60_000, outcome="completed", drops=False),
    Lie("counts of nonsense", (answer(200, body=b'{"usage":{"prompt_tokens":-5,"completion_tokens":1e99}}'),), 200,
        body=b'{"usage":{"prompt_tokens":-5,"completion_tokens":1e99}}', outcome="completed", drops=False),
    Lie("a count of 5,000 digits", (answer(200, body=b'{"usage":{"prompt_tokens":%b}}' % (b"9" * 5000)),), 200,
        outcome="completed", drops=False),
    Lie("a long finish reason", (answer(200, body=b'{"choices":[{"finish_reason":"%b"}]}' % (b"x" * 5000)),), 200,
        outcome="completed", drops=False),
    # Nothing comes.
    Lie("closed at once", (CLOSE,), code="upstream_reset", outcome="upstream_reset", retries=1),
    Lie("reset at once", (RESET,), code="upstream_reset", outcome="upstream_reset", retries=1),
    Lie("closed in the head", (b"HTTP/1.1 200 OK\r\nContent-Le", CLOSE), code="upstream_reset",
        outcome="upstream_reset"),
    Lie("reset in the head", (b"HTTP/1.1 200 OK\r\nContent-Le", 0.05, RESET), code="upstream_reset",
        outcome="upstream_reset"),
    Lie("closed after an informational head", (b"HTTP/1.1 100 Continue\r\n\r\n", CLOSE), code="upstream_reset",
        outcome="upstream_reset"),
    Lie("silent", (HOLD,), 504, code="upstream_timeout", outcome="upstream_timeout"),
    Lie("silent in the status line", (b"HTTP/1.1 2", HOLD), 504, code="upstream_timeout", outcome="upstream_timeout"),
    Lie("silent in the head", (b"HTTP/1.1 200 OK\r\nX: y\r\n", HOLD), 504, code="upstream_timeout",
        outcome="upstream_timeout"),
    Lie("a head a byte at a time", tuple(part for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        for part in (bytes([byte]), 0.1)), 504, code="upstream_timeout", outcome="upstream_timeout"),
    Lie("informational heads only", (*(part for _ in range(20) for part in (b"HTTP/1.1 102 Busy\r\n\r\n", 0.1)), HOLD),
        504, code="upstream_timeout", outcome="upstream_timeout"),
    # Streams.
    stream("a stream with a length", EVENT + b"data: [DONE]\n\n", body=EVENT + b"data: [DONE]\n\n", drops=False,
           lines=b"Content-Length: %d\r\n" % len(EVENT + b"data: [DONE]\n\n")),
    stream("a stream until the close", EVENT + b"data: [DONE]\n\n", CLOSE, body=EVENT + b"data: [DONE]\n\n"),
    stream("a stream without DONE", EVENT, CLOSE, body=EVENT),
    stream("a stream of comments", b": a\n\n: b\n\n", CLOSE, body=b": a\n\n: b\n\n"),
    stream("a stream of nothing", CLOSE, body=b""),
    stream("CR LF at line ends", EVENT.replace(b"\n", b"\r\n"), CLOSE, body=EVENT.replace(b"\n", b"\r\n")),
    stream("CR at line ends", EVENT.replace(b"\n", b"\r"), CLOSE, body=EVENT.replace(b"\n", b"\r")),
    stream("a byte order mark", b"\xef\xbb\xbf" + EVENT, CLOSE, body=b"\xef\xbb\xbf" + EVENT),
    stream("unknown fields", b"event: x\nid: \x00\nretry: 5\nodd: 1\n" + EVENT, CLOSE,
           body=b"event: x\nid: \x00\nretry: 5\nodd: 1\n" + EVENT),
    stream("not UTF-8", b"data: \xff\xfe\n\n", CLOSE, body=b"data: \xff\xfe\n\n"),
    stream("data that is not JSON", b"data: hello\n\n", CLOSE, body=b"data: hello\n\n"),
    stream("an event of 200 kB", b"data: " + b"x" * 200_000 + b"\n\n", CLOSE,
           body=b"data: " + b"x" * 200_000 + b"\n\n"),
    stream("an event without its end", EVENT + b"data: half", CLOSE, body=EVENT + b"data: half"),
    stream("an error event of the server", EVENT + b'data: {"error":{"message":"x","code":"own"}}\n\n', CLOSE,
           body=EVENT + b'data: {"error":{"message":"x","code":"own"}}\n\n'),
    stream("silent after an event", EVENT, HOLD, code="upstream_timeout", outcome="upstream_timeout"),
    stream("silent before the first event", HOLD, code="upstream_timeout", outcome="upstream_timeout"),
    stream("reset after an event", EVENT, 0.05, RESET, code="upstream_reset", outcome="upstream_reset",
           lines=b"Content-Length: 9999\r\n"),
    stream("shorter than its length", EVENT, CLOSE, code="upstream_reset", outcome="upstream_reset",
           lines=b"Content-Length: 9999\r\n"),
    stream("cut off inside an event", EVENT + b'data: {"choices', CLOSE, code="upstream_reset",
           outcome="upstream_reset", lines=b"Content-Length: 9999\r\n"),
    stream("a bad chunk after an event", b"%x\r\n%b\r\n" % (len(EVENT), EVENT), 0.05, b"zz\r\nSMUGGLED\r\n", HOLD,
           code="upstream_protocol", outcome="upstream_error", lines=b"Transfer-Encoding: chunked\r\n"),
    stream("cut off between chunks", b"%x\r\n%b\r\n" % (len(EVENT), EVENT), CLOSE, code="upstream_reset",
           outcome="upstream_reset", lines=b"Transfer-Encoding: chunked\r\n"),
    stream("bytes after the last chunk", b"%x\r\n%b\r\n0\r\n\r\ndata: SMUGGLED\n\n" % (len(EVENT), EVENT), HOLD,
           body=EVENT, lines=b"Transfer-Encoding: chunked\r\n"),
    stream("usage that nobody asked for is hidden", EVENT + b'data: {"choices":[],"usage":{"prompt_tokens":1,'
           b'"completion_tokens":2}}\n\ndata: [DONE]\n\n', CLOSE, body=EVENT + b"data: [DONE]\n\n"),
    Lie("JSON though a stream was asked for", (answer(200, body=DEFAULT_BODY),), 200, body=DEFAULT_BODY,
        outcome="completed", stream=True, drops=False),
    Lie("a stream though JSON was asked for", (STREAM + b"\r\n" + EVENT, CLOSE), 200, body=EVENT, outcome="completed"),
]  # fmt: skip
