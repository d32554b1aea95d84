"""Clients that take their time. Limits of the gateway under test: a second for a head, a second without progress."""

from __future__ import annotations

from tests.conformance.hostile.build import BODY, Case, get, post

HEAD = post()[: -len(BODY)]

CASES = [
    Case("silent from the start", (1.5,), ()),
    Case("a byte of a head", (b"P",), (408,)),
    Case("half a request line", (b"POST /v1/ch",), (408,)),
    Case("a head without its end", (HEAD[:-2],), (408,)),
    Case("a head a field at a time", tuple(part for n in range(40) for part in (
        b"POST /v1/chat/completions HTTP/1.1\r\n" if n == 0 else b"X-%d: y\r\n" % n, 0.1)), (408,)),
    Case("a body that never comes", (HEAD,), (408,)),
    Case("half a body", (HEAD + BODY[:9],), (408,)),
    Case("an expectation and no body", (post(b"Expect: 100-continue")[: -len(BODY)],), (100, 408)),
    Case("a chunk that never ends", (post(b"Transfer-Encoding: chunked", length=False, body=b"1b\r\n{"),), (408,)),
    Case("a chunk size that never ends", (post(b"Transfer-Encoding: chunked", length=False, body=b"1"),), (408,)),
    Case("a body in slow steps", (HEAD, *(part for at in range(0, len(BODY), 9) for part in (0.6, BODY[at : at + 9]))),
         (200,), closes=False, reaches=1, arrives=BODY),
    Case("idle after a request", (get(b"/v1/models"), 2.0), (200,)),
    Case("half a second request", (get(b"/v1/models") + b"GET /v1", ), (200, 408)),
    Case("a good one after a pause", (get(b"/v1/models"), 0.5, get(b"/v1/models")), (200, 200), closes=False),
]  # fmt: skip
