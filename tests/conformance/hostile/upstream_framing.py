"""Responses that could be read in two ways, and bytes that belong to no response."""

from __future__ import annotations

from tests.conformance.hostile.build import Lie
from tests.support.raw_upstream import CLOSE, DEFAULT_BODY, HOLD, RESET

JSON = b"Content-Type: application/json\r\n"
B = DEFAULT_BODY
N = b"%d" % len(B)
SURPLUS = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nSMUGGLED"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(B), B)
WHOLE = b"HTTP/1.1 200 OK\r\n" + JSON + b"Content-Length: " + N + b"\r\n\r\n" + B


def head(*lines: bytes, start: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([start, b"Content-Type: application/json", *lines, b"", b""])


def unreadable(name: str, data: bytes, code: str = "upstream_protocol", outcome: str = "upstream_error") -> Lie:
    return Lie(name, (data, HOLD), code=code, outcome=outcome)


def sized(value: bytes) -> bytes:
    return head(b"Content-Length:" + value) + B


def coded(value: bytes, body: bytes = CHUNKED) -> bytes:
    return head(b"Transfer-Encoding:" + value) + body


def good(name: str, *steps: bytes | float | str, drops: bool = False, body: bytes = B, **more: object) -> Lie:
    return Lie(name, steps, 200, body=body, outcome="completed", drops=drops, **more)  # type: ignore[arg-type]


CASES = [
    *(
        unreadable(name, data)
        for name, data in [
            ("length and chunked", head(b"Content-Length: " + N, b"Transfer-Encoding: chunked") + CHUNKED),
            ("chunked and length", head(b"Transfer-Encoding: chunked", b"Content-Length: 3") + CHUNKED),
            ("two lengths alike", head(b"Content-Length: " + N, b"Content-Length: " + N) + B),
            ("two lengths", head(b"Content-Length: " + N, b"Content-Length: 3") + B),
            ("length a list", sized(b" " + N + b", " + N)),
            ("length with a plus", sized(b" +" + N)),
            ("length with a minus", sized(b" -" + N)),
            ("length in hex", sized(b" 0xff")),
            ("length with an underscore", sized(b" 1_0")),
            ("length in other digits", sized(" \u0662".encode())),
            ("length empty", sized(b"")),
            ("length beyond 64 bits", sized(b" 18446744073709551617")),
            ("length in words", sized(b" all")),
            ("gzip, chunked", coded(b" gzip, chunked")),
            ("gzip", coded(b" gzip", B)),
            ("identity", coded(b" identity", B)),
            ("chunked, identity", coded(b" chunked, identity")),
            ("chunked twice", head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + CHUNKED),
            ("xchunked", coded(b" xchunked")),
            ("chunked with a vertical tab", coded(b" \x0bchunked")),
            ("coding empty", coded(b"", B)),
            ("coding folded", coded(b"\r\n chunked")),
            ("chunked on HTTP/1.0", head(b"Transfer-Encoding: chunked", start=b"HTTP/1.0 200 OK") + CHUNKED),
            ("coding with a blank before the colon", head(b"Transfer-Encoding : chunked") + CHUNKED),
            ("length with a blank before the colon", head(b"Content-Length : " + N) + B),
            ("a field folded", head(b"X: y\r\n z", b"Content-Length: " + N) + B),
            ("a field ended by LF", head(b"X: y\nZ: 1", b"Content-Length: " + N) + B),
            ("a field ended by CR", head(b"X: y\rZ: 1", b"Content-Length: " + N) + B),
            ("a field without a colon", head(b"X", b"Content-Length: " + N) + B),
            ("a field without a name", head(b": y", b"Content-Length: " + N) + B),
            ("a name with a blank", head(b"X Y: z", b"Content-Length: " + N) + B),
            ("a name with eight bits", head(b"X\xe9: z", b"Content-Length: " + N) + B),
            ("a value with NUL", head(b"X: a\x00b", b"Content-Length: " + N) + B),
            ("a value with a control", head(b"X: a\x01b", b"Content-Length: " + N) + B),
            ("a value with an escape", head(b"X: \x1b[2J", b"Content-Length: " + N) + B),
            ("a hundred and one fields", head(*[b"X: y"] * 100, b"Content-Length: " + N) + B),
            ("a head of 100 kB", head(*[b"X: " + b"y" * 10_000] * 10, b"Content-Length: " + N) + B),
            ("a head without end", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000),
            ("a status line without end", b"HTTP/1.1 200 " + b"x" * 100_000),
            ("HTTP/0.9", b"{}\n"),
            ("HTML without a head", b"<html>SMUGGLED</html>"),
            ("HTTP/0.9 in words", head(b"Content-Length: " + N, start=b"HTTP/0.9 200 OK") + B),
            ("HTTP/2.0", head(b"Content-Length: " + N, start=b"HTTP/2.0 200 OK") + B),
            ("HTTP/2", b"HTTP/2 200\r\ncontent-length: " + N + b"\r\n\r\n" + B),
            ("HTTP/1.2", head(b"Content-Length: " + N, start=b"HTTP/1.2 200 OK") + B),
            ("HTTP/1", head(b"Content-Length: " + N, start=b"HTTP/1 200 OK") + B),
            ("ICY", head(b"Content-Length: " + N, start=b"ICY 200 OK") + B),
            ("lower case", head(b"Content-Length: " + N, start=b"http/1.1 200 OK") + B),
            ("RTSP", head(b"Content-Length: " + N, start=b"RTSP/1.0 200 OK") + B),
            ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n"),
            ("TLS", b"\x15\x03\x01\x00\x02\x02\x16"),
            ("frames of HTTP/2", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18),
            ("a request", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            ("status of two digits", head(b"Content-Length: " + N, start=b"HTTP/1.1 20 OK") + B),
            ("status of four digits", head(b"Content-Length: " + N, start=b"HTTP/1.1 2000 OK") + B),
            ("status 000", head(b"Content-Length: " + N, start=b"HTTP/1.1 000 OK") + B),
            ("status 600", head(b"Content-Length: " + N, start=b"HTTP/1.1 600 OK") + B),
            ("status 999", head(b"Content-Length: " + N, start=b"HTTP/1.1 999 OK") + B),
            ("status in letters", head(b"Content-Length: " + N, start=b"HTTP/1.1 abc OK") + B),
            ("status with a sign", head(b"Content-Length: " + N, start=b"HTTP/1.1 +20 OK") + B),
            ("status after two blanks", head(b"Content-Length: " + N, start=b"HTTP/1.1  200 OK") + B),
            ("status after a tab", head(b"Content-Length: " + N, start=b"HTTP/1.1\t200 OK") + B),
            ("status line ended by LF", b"HTTP/1.1 200 OK\nContent-Length: " + N + b"\n\n" + B),
            ("a phrase with CR", head(b"Content-Length: " + N, start=b"HTTP/1.1 200 O\rK") + B),
            ("a phrase with NUL", head(b"Content-Length: " + N, start=b"HTTP/1.1 200 O\x00K") + B),
            ("empty lines before", b"\r\n\r\n" + WHOLE),
            ("rubbish before", b"SMUGGLED" + WHOLE),
            ("101", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nSMUGGLED"),
            ("an informational head that is malformed", b"HTTP/1.1 103 Early\r\nX : y\r\n\r\n" + WHOLE),
            ("an informational head with a bare LF", b"HTTP/1.1 103 Early\r\nX: y\n\n" + SURPLUS),
            ("an informational head with a length", b"HTTP/1.1 103 Early\r\nContent-Length: 8\r\n\r\nSMUGGLED" + WHOLE),
            ("an informational head with a coding", b"HTTP/1.1 103 Early\r\nTransfer-Encoding: gzip\r\n\r\n" + WHOLE),
            ("informational heads without end", b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000),
            ("a chunk size with 0x", coded(b" chunked", b"0x5\r\nhello\r\n0\r\n\r\n")),
            ("a chunk size with a sign", coded(b" chunked", b"+5\r\nhello\r\n0\r\n\r\n")),
            ("a chunk size of letters", coded(b" chunked", b"zz\r\nhello\r\n0\r\n\r\n")),
        ]
    ),
    Lie("a chunk size ended by LF", (coded(b" chunked", b"5\nhello\n0\n\n"), HOLD), code="upstream_protocol"),
    # The head was good and is on its way: the client sees that the answer is not whole.
    *(
        Lie(name, (head(b"Transfer-Encoding: chunked"), 0.05, b"5\r\nhello\r\n", 0.05, data, HOLD), 200, cut=True,
            outcome="upstream_error")
        for name, data in [
            ("a later chunk's size of letters", b"zz\r\nSMUGGLED\r\n0\r\n\r\n"),
            ("a later chunk's size negative", b"-8\r\nSMUGGLED\r\n0\r\n\r\n"),
            ("a later chunk's size beyond 64 bits", b"10000000000000008\r\nSMUGGLED\r\n0\r\n\r\n"),
            ("a later chunk's size ended by LF", b"8\nSMUGGLED\r\n0\r\n\r\n"),
            ("a later chunk longer than its size", b"1\r\n!SMUGGLED\r\n0\r\n\r\n"),
            ("a trailer that is malformed", b"0\r\nX : SMUGGLED\r\n\r\n"),
        ]
    ),
    Lie("cut off in a chunk", (head(b"Transfer-Encoding: chunked"), b"50\r\nhello", 0.05, CLOSE), 200, cut=True,
        outcome="upstream_reset"),
    Lie("cut off between chunks", (head(b"Transfer-Encoding: chunked"), b"5\r\nhello\r\n", 0.05, CLOSE), 200, cut=True,
        outcome="upstream_reset"),
    Lie("cut off before the last line", (head(b"Transfer-Encoding: chunked"), b"5\r\nhello\r\n0\r\n", 0.05, CLOSE), 200,
        cut=True, outcome="upstream_reset"),
    Lie("shorter than its length", (head(b"Content-Length: 100") + b"hello", 0.05, CLOSE), 200, cut=True,
        outcome="upstream_reset"),
    Lie("reset in the body", (head(b"Content-Length: 100") + b"hello", 0.05, RESET), 200, cut=True,
        outcome="upstream_reset"),
    Lie("silent in the body", (head(b"Content-Length: 100") + b"hello", HOLD), 200, cut=True,
        outcome="upstream_timeout"),
    # Bytes after the end are nobody's answer.
    *(
        good(name, data, HOLD, drops=True)
        for name, data in [
            ("a response too many", WHOLE + SURPLUS),
            ("a byte too many", WHOLE + b"S"),
            ("an empty line too many", WHOLE + b"\r\n"),
            ("longer than its length", head(b"Content-Length: " + N) + B + b"SMUGGLED"),
            ("a response too many after chunks", coded(b" chunked") + SURPLUS),
            ("a byte too many after chunks", coded(b" chunked") + b"S"),
            ("an empty line too many after chunks", coded(b" chunked") + b"\r\n"),
        ]
    ),
    good("a response too many, later", WHOLE, 0.1, SURPLUS, HOLD, drops=True),
    good("a byte too many, later", WHOLE, 0.1, b"S", HOLD, drops=True),
    good("a response too many after chunks, later", coded(b" chunked"), 0.1, SURPLUS, HOLD, drops=True),
    Lie("a body after 204", (b"HTTP/1.1 204 No Content\r\n\r\n" + SURPLUS, HOLD), 204, body=b"", outcome="completed"),
    good("a length zero and a body", head(b"Content-Length: 0") + b"SMUGGLED", HOLD, drops=True, body=b""),
    # What is odd and has one meaning.
    good("early hints", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE),
    good("100 and 102", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + WHOLE),
    good("100 long before", b"HTTP/1.1 100 Continue\r\n\r\n", 0.2, WHOLE),
    good("in single bytes", *(part for byte in WHOLE for part in (bytes([byte]), 0.0005))),
    good("chunks in single bytes", *(part for byte in coded(b" chunked") for part in (bytes([byte]), 0.0005))),
    good("a chunk for each byte", head(b"Transfer-Encoding: chunked") + b"".join(b"1\r\n%c\r\n" % c for c in B)
         + b"0\r\n\r\n"),
    good("an extension and a trailer", head(b"Transfer-Encoding: chunked") + b'%x;a="b"\r\n%b\r\n0\r\nX: SMUGGLED'
         b"\r\n\r\n"
         % (len(B), B)),
    good("no phrase", head(b"Content-Length: " + N, start=b"HTTP/1.1 200") + B),
    good("a phrase of blanks", head(b"Content-Length: " + N, start=b"HTTP/1.1 200  ") + B),
    good("a phrase in other letters", head(b"Content-Length: " + N, start=b"HTTP/1.1 200 d\xe9j\xe0") + B),
    good("length with zeros before", head(b"Content-Length: 000" + N) + B),
    good("until the close", head() + B, CLOSE, drops=True),
    good("until the close on 1.0", head(start=b"HTTP/1.0 200 OK") + B, CLOSE, drops=True),
    good("1.0 with a length", head(b"Content-Length: " + N, start=b"HTTP/1.0 200 OK") + B, HOLD, drops=True),
    good("1.0 that stays", head(b"Content-Length: " + N, b"Connection: keep-alive", start=b"HTTP/1.0 200 OK") + B),
    good("Connection: close", head(b"Content-Length: " + N, b"Connection: close") + B, HOLD, drops=True),
    good("Upgrade on a 200", head(b"Content-Length: " + N, b"Upgrade: h2c", b"Connection: Upgrade") + B),
]  # fmt: skip
