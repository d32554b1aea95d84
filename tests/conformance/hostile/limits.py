"""Sizes and counts."""

from __future__ import annotations

from tests.conformance.hostile.build import AUTH, BODY, HALF_CLOSE, Case, get, post

PAD = b'{"model":"m","x":"' + b"a" * (100_000 - 20) + b'"}'

CASES = [
    Case("a body of the largest size", (post(body=PAD),), (200,), closes=False, reaches=1, arrives=PAD),
    Case("a byte more announced", (post(b"Content-Length: 100001", length=False, body=b""),), (413,),
         code="body_too_large"),
    Case("a byte more sent", (post(body=PAD + b" "),), (413,), closes=None, code="body_too_large"),
    Case("a terabyte announced", (post(b"Content-Length: 1099511627776", length=False, body=b""),), (413,),
         code="body_too_large"),
    Case("a head of the largest size", (post(b"X: " + b"a" * 32_500),), (200,), closes=False, reaches=1),
    Case("a head too large", (post(b"X: " + b"a" * 33_000),), (431,)),
    Case("a head too large, without end", (b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000,), (431,)),
    Case("a hundred fields", (post(*[b"X: y"] * 97),), (200,), closes=False, reaches=1),
    Case("more than a hundred fields", (post(*[b"X: y"] * 98),), (431,)),
    Case("thousands of fields", (post(*[b"X: y"] * 5000),), (431,)),
    Case("a field's name of 30,000 bytes", (post(b"X" * 30_000 + b": y"),), (200,), closes=False, reaches=1),
    Case("a target of the largest size", (get(b"/v1/models?" + b"a" * 8181),), (200,), closes=False),
    Case("a target too long", (get(b"/v1/models?" + b"a" * 8182),), (414,)),
    Case("a URL too long", (get(b"http://x/" + b"a" * 8200),), (414,)),
    Case("a request id of the largest size", (post(b"X-Request-Id: " + b"a" * 128),), (200,), closes=False, reaches=1),
    Case("a request id too long", (post(b"X-Request-Id: " + b"a" * 129),), (200,), closes=False, reaches=1),
    Case("a request id with a quote", (post(b'X-Request-Id: a"b'),), (200,), closes=False, reaches=1),
    Case("a request id in other letters", (post(b"X-Request-Id: \xc3\xa4"),), (200,), closes=False, reaches=1),
    Case("two request ids", (post(b"X-Request-Id: a", b"X-Request-Id: b"),), (200,), closes=False, reaches=1),
    Case("a hundred requests at once", (get(b"/livez") * 100,), (200,) * 100, closes=False),
    Case("fifty requests to the model at once", (post() * 50,), (200,) * 50, closes=False, reaches=50),
    Case("megabytes after a refusal", (post(b"Content-Length: 50000000", length=False, body=b"x" * 3_000_000),),
         (413,)),
    Case("a body in single bytes", (post()[: -len(BODY)],
         *(part for at in range(len(BODY)) for part in (BODY[at : at + 1], 0.002))), (200,), closes=False, reaches=1,
         arrives=BODY),
    Case("a head in single bytes", tuple(part for byte in post() for part in (bytes([byte]), 0.0005)), (200,),
         closes=False, reaches=1, arrives=BODY),
    Case("a head cut off", (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + AUTH, HALF_CLOSE), ()),
    Case("a body cut off", (post()[:-5], HALF_CLOSE), ()),
    Case("nothing at all", (HALF_CLOSE,), ()),
    Case("a blank line and nothing", (b"\r\n", HALF_CLOSE), ()),
]  # fmt: skip
