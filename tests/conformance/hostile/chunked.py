"""Chunked request bodies."""

from __future__ import annotations

from tests.conformance.hostile.build import BODY, Case, chunks, get, post, refused

START = b"Transfer-Encoding: chunked"


def body(data: bytes) -> bytes:
    return post(START, length=False, body=data)


def sized(size: bytes) -> bytes:
    return body(size + b"\r\n" + BODY + b"\r\n0\r\n\r\n")


def good(name: str, data: bytes) -> Case:
    return Case(name, (body(data),), (200,), closes=False, reaches=1, arrives=BODY)


CASES = [
    *refused(400, [
        ("size with 0x", sized(b"0x1b")),
        ("size with a plus", sized(b"+1b")),
        ("size with a minus", sized(b"-1b")),
        ("size with an underscore", sized(b"1_b")),
        ("size with a blank before", sized(b" 1b")),
        ("size with a tab before", sized(b"\t1b")),
        ("size with a blank after", sized(b"1b ")),
        ("size with a tab after", sized(b"1b\t")),
        ("size empty", sized(b"")),
        ("size in words", sized(b"many")),
        ("size with NUL", sized(b"1b\x00")),
        ("size with a vertical tab", sized(b"1b\x0b")),
        ("size beyond 64 bits", sized(b"1000000000000001b")),
        ("size of 32 digits", sized(b"f" * 32)),
        ("size in fullwidth digits", sized("\uff11b".encode())),
        ("size ended by LF", body(b"1b\n" + BODY + b"\r\n0\r\n\r\n")),
        ("size ended by CR", body(b"1b\r" + BODY + b"\r\n0\r\n\r\n")),
        ("size ended by CR CR LF", body(b"1b\r\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("extension ended by LF", body(b"1b;x=1\n" + BODY + b"\r\n0\r\n\r\n")),
        ("extension with CR", body(b"1b;x\ry\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("extension with NUL", body(b"1b;x\x00\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("extension with LF in quotes", body(b'1b;x="a\nb"\r\n' + BODY + b"\r\n0\r\n\r\n")),
        ("data longer than its size", body(b"1a\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("data shorter than its size", body(b"1c\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("data ended by LF", body(b"1b\r\n" + BODY + b"\n0\r\n\r\n")),
        ("data ended by CR", body(b"1b\r\n" + BODY + b"\r0\r\n\r\n")),
        ("data ended by nothing", body(b"1b\r\n" + BODY + b"0\r\n\r\n")),
        ("last chunk with a sign", body(chunks(BODY, last=b"-0\r\n\r\n"))),
        ("last chunk ended by LF", body(chunks(BODY, last=b"0\n\n"))),
        ("end by LF", body(chunks(BODY, last=b"0\r\n\n"))),
        ("an empty line before the first chunk", body(b"\r\n" + chunks(BODY))),
        ("trailer without a colon", body(chunks(BODY, last=b"0\r\nX\r\n\r\n"))),
        ("trailer with a blank before the colon", body(chunks(BODY, last=b"0\r\nX : y\r\n\r\n"))),
        ("trailer folded", body(chunks(BODY, last=b"0\r\nX: y\r\n z\r\n\r\n"))),
        ("trailer ended by LF", body(chunks(BODY, last=b"0\r\nX: y\n\r\n"))),
        ("trailer with NUL", body(chunks(BODY, last=b"0\r\nX: \x00\r\n\r\n"))),
        ("a trailer that looks like framing", body(chunks(BODY, last=b"0\r\nContent-Length: 99\r\n\r\n"))),
        ("a request instead of a trailer", body(chunks(BODY, last=b"0\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"))),
    ]),
    good("one chunk", chunks(BODY)),
    good("a chunk for each byte", chunks(*(BODY[at : at + 1] for at in range(len(BODY))))),
    good("size with leading zeros", b"0000001b\r\n" + BODY + b"\r\n0\r\n\r\n"),
    good("size in capitals", b"1B\r\n" + BODY + b"\r\n0\r\n\r\n"),
    good("an extension", b'1b;x=1;y="2"\r\n' + BODY + b"\r\n0\r\n\r\n"),
    good("several zeros at the end", chunks(BODY, last=b"000\r\n\r\n")),
    good("a trailer", chunks(BODY, last=b"0\r\nX-Checksum: 1\r\n\r\n")),
    Case("a trailer that looks like a credential", (post(START, auth=None, length=False, body=chunks(
        BODY, last=b"0\r\nAuthorization: Bearer client-key-0123456789\r\n\r\n")),), (401,)),
    Case("an empty body", (body(b"0\r\n\r\n"),), (400,), closes=False, code="invalid_json"),
    Case("a request directly after the end", (body(chunks(BODY)) + get(b"/v1/models"),), (200, 200), closes=False,
         reaches=1),
    Case("an empty line and a request after the end", (body(chunks(BODY)) + b"\r\n" + get(b"/v1/models"),), (200, 200),
         closes=False, reaches=1),
    Case("rubbish after the end", (body(chunks(BODY)) + b"XYZ\r\n\r\n",), (200, 400), reaches=1),
    Case("chunks that never end", (body(chunks(*[b"x" * 10_000] * 12, last=b"")),), (413,), code="body_too_large"),
    Case("a chunk announced too large", (body(b"fffffff\r\n" + b"x" * 120_000),), (413,), code="body_too_large"),
    Case("extensions without end", (body(b"1b;" + b"x" * 70_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"),), (400,)),
    Case("trailers without end", (body(chunks(BODY, last=b"0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n")),), (400,)),
    Case("cut in the middle", (body(chunks(BODY[:9], last=b"")),), (408,)),
    Case("a pause inside a size", (body(b"1"), 0.05, b"b\r\n" + BODY + b"\r\n0\r\n\r", 0.05, b"\n"), (200,),
         closes=False, reaches=1, arrives=BODY),
]  # fmt: skip
