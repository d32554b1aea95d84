"""Where a request's body ends: whatever two readers could answer differently is refused."""

from __future__ import annotations

from tests.conformance.hostile.build import AUTH, BODY, Case, chunks, post, refused

N = b"%d" % len(BODY)
CHUNKED = chunks(BODY)
SECOND = b"GET /v1/models HTTP/1.1\r\nHost: smuggled\r\n\r\n"


def lengths(value: bytes) -> bytes:
    return post(b"Content-Length:" + value, length=False)


def coded(value: bytes, body: bytes = CHUNKED) -> bytes:
    return post(b"Transfer-Encoding:" + value, length=False, body=body)


CASES = [
    *refused(400, [
        ("length and chunked", post(b"Transfer-Encoding: chunked")),
        ("chunked and length", post(b"Transfer-Encoding: chunked", b"Content-Length: " + N, length=False,
                                    body=CHUNKED)),
        ("length and identity", post(b"Transfer-Encoding: identity")),
        ("length and an empty coding", post(b"Transfer-Encoding:")),
        ("length zero and chunked", post(b"Content-Length: 0", b"Transfer-Encoding: chunked", length=False,
                                         body=CHUNKED)),
        ("chunked ends before the length", post(b"Transfer-Encoding: chunked", b"Content-Length: 6", length=False,
                                                body=b"0\r\n\r\nG" + SECOND)),
        ("two lengths alike", post(b"Content-Length: " + N)),
        ("two lengths, the first shorter", post(b"Content-Length: 5")),
        ("two lengths, the first zero", post(b"Content-Length: 0")),
        ("two lengths in other cases", post(b"CONTENT-LENGTH: " + N)),
        ("length as a list of equals", lengths(b" " + N + b", " + N)),
        ("length as a list", lengths(b" 0, " + N)),
        ("length with a comma", lengths(b" " + N + b",")),
        ("length with a plus", lengths(b" +" + N)),
        ("length with a minus", lengths(b" -" + N)),
        ("length minus zero", lengths(b" -0")),
        ("length in hex", lengths(b" 0x1b")),
        ("length with an underscore", lengths(b" 2_7")),
        ("length with a blank inside", lengths(b" 2 7")),
        ("length with a fraction", lengths(b" 27.0")),
        ("length with an exponent", lengths(b" 27e0")),
        ("length with a parameter", lengths(b" 27;x")),
        ("length in Arabic digits", lengths(" \u0662\u0667".encode())),
        ("length in fullwidth digits", lengths(" \uff12\uff17".encode())),
        ("length in words", lengths(b" many")),
        ("length empty", lengths(b"")),
        ("length blank", lengths(b"   ")),
        ("length with NUL", lengths(b" 27\x00")),
        ("length with a vertical tab", lengths(b" \x0b27")),
        ("length with a form feed", lengths(b" 27\x0c")),
        ("length beyond 64 bits", lengths(b" 18446744073709551643")),
        ("length beyond 63 bits", lengths(b" 9223372036854775835")),
        ("length of a thousand digits", lengths(b" " + b"9" * 1000)),
        ("length with a thousand zeros", lengths(b" " + b"0" * 1000 + b"27")),
        ("gzip, chunked", coded(b" gzip, chunked")),
        ("chunked, gzip", coded(b" chunked, gzip")),
        ("identity", coded(b" identity", BODY)),
        ("identity, chunked", coded(b" identity, chunked")),
        ("chunked, identity", coded(b" chunked, identity")),
        ("chunked twice in a line", coded(b" chunked, chunked")),
        ("chunked twice in two lines", post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", length=False,
                                            body=CHUNKED)),
        ("chunked, then identity in its own line", post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity",
                                                        length=False, body=CHUNKED)),
        ("identity, then chunked in its own line", post(b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked",
                                                        length=False, body=CHUNKED)),
        ("xchunked", coded(b" xchunked")),
        ("chunkedx", coded(b" chunkedx")),
        ("chunk", coded(b" chunk")),
        ("chunked in quotes", coded(b' "chunked"')),
        ("chunked with a parameter", coded(b" chunked;q=1")),
        ("chunked with an empty parameter", coded(b" chunked;")),
        ("chunked after a comma", coded(b" ,chunked")),
        ("chunked before a comma", coded(b" chunked,")),
        ("chunked after a vertical tab", coded(b" \x0bchunked")),
        ("chunked before a vertical tab", coded(b" chunked\x0b")),
        ("chunked before NUL", coded(b" chunked\x00")),
        ("chunked with a Kelvin sign", coded(" chun\u212aed".encode())),
        ("chunked folded", coded(b"\r\n chunked")),
        ("chunked after a fold", coded(b" x,\r\n\tchunked")),
        ("coding empty", coded(b"")),
        ("deflate", coded(b" deflate", BODY)),
        ("blank before the colon of the coding", post(b"Transfer-Encoding : chunked", length=False, body=CHUNKED)),
        ("tab before the colon of the coding", post(b"Transfer-Encoding\t: chunked", length=False, body=CHUNKED)),
        ("blank before the coding's name", post(b" Transfer-Encoding: chunked", length=False, body=CHUNKED)),
        ("NUL in the coding's name", post(b"Transfer-\x00Encoding: chunked", length=False, body=CHUNKED)),
        ("coding after a bare CR", post(b"X: y\rTransfer-Encoding: chunked")),
        ("coding after a bare LF", post(b"X: y\nTransfer-Encoding: chunked")),
        ("coding after a CR CR LF", post(b"X: y\r\r\nTransfer-Encoding: chunked")),
        ("chunked on HTTP/1.0", post(b"Transfer-Encoding: chunked", start=b"POST /v1/chat/completions HTTP/1.0",
                                     length=False, body=CHUNKED)),
        ("length and chunked on HTTP/1.0", post(b"Transfer-Encoding: chunked",
                                                start=b"POST /v1/chat/completions HTTP/1.0")),
        ("blank before the colon of the length", post(b"Content-Length : " + N, length=False)),
        ("length after a bare LF", post(b"X: y\nContent-Length: " + N, length=False)),
        ("a GET with both", post(b"Transfer-Encoding: chunked", start=b"GET /v1/models HTTP/1.1", body=CHUNKED)),
    ]),
    # What looks odd and has one meaning.
    Case("length with blanks around", (lengths(b" \t " + N + b" \t"),), (200,), closes=False, reaches=1, arrives=BODY),
    Case("length with leading zeros", (lengths(b" 00" + N),), (200,), closes=False, reaches=1, arrives=BODY),
    Case("CHUNKED", (coded(b" CHUNKED"),), (200,), closes=False, reaches=1, arrives=BODY),
    Case("chunked after a tab", (coded(b"\tchunked"),), (200,), closes=False, reaches=1, arrives=BODY),
    Case("TE asks for codings of the answer", (post(b"TE: gzip, chunked"),), (200,), closes=False, reaches=1),
    # A name that is almost a length is none: the body is empty and its bytes are another request, a bad one.
    Case("Content_Length", (post(b"Content_Length: " + N, length=False),), (400, 400)),
    Case("Transfer_Encoding", (post(b"Transfer_Encoding: chunked", length=False, body=CHUNKED),), (400, 400)),
    Case("no length at all", (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n\r\n",), (400,),
         closes=False, code="invalid_json"),
    Case("a length too short", (post(b"Content-Length: 5", length=False),), (400, 400)),
    Case("a length too long", (post(b"Content-Length: 40", length=False),), (408,)),
]  # fmt: skip
