"""Paths, methods, credentials, and the fields that ask for something else."""

from __future__ import annotations

from tests.conformance.hostile.build import AUTH, BODY, Case, get, post
from tests.support.raw import KEY, OPERATOR

PATH = b"/v1/chat/completions"
KEPT = {"closes": False}


def target(path: bytes, status: int, code: str | None = None) -> Case:
    return Case(f"path {path[:60].decode()}", (post(start=b"POST " + path + b" HTTP/1.1"),), (status,), code=code,
                **KEPT)  # type: ignore[arg-type]  # fmt: skip


def credential(name: str, *lines: bytes, status: int = 401, code: str = "invalid_api_key", reaches: int = 0) -> Case:
    return Case(name, (post(*lines, auth=None),), (status,), closes=False, code=code if status != 200 else None,
                reaches=reaches)  # fmt: skip


CASES = [
    # Nothing is decoded, folded or resolved in a path.
    *(
        target(path, 404, "not_found")
        for path in (
            b"/", b"//v1/chat/completions", b"/v1//chat/completions", b"/v1/chat/completions/",
            b"/V1/chat/completions",
            b"/v1/./chat/completions", b"/v1/x/../chat/completions", b"/v1/chat%2Fcompletions",
            b"/v1/chat/completion%73",
            b"/%76%31/chat/completions", b"/v1/chat/completions;x=1", b"/v1/chat/completions%00",
            b"/v1/chat\\completions",
            b"/v1/realtime", b"/v1/files", b"/v1/engines/x", b"/.env", b"/..", b"/v1/../../etc/passwd",
            b"/v1/chat/completions%0d%0aX:%20y", b"/v1", b"/chat/completions", b"/cgi-bin/%2e%2e/sh",
        )
    ),
    Case("path with a query", (post(start=b"POST /v1/chat/completions?api-version=1&x=%0a HTTP/1.1"),), (200,),
         closes=False, reaches=1, path="/v1/chat/completions?api-version=1&x=%0a"),
    Case("query empty", (post(start=b"POST /v1/chat/completions? HTTP/1.1"),), (200,), closes=False, reaches=1,
         path="/v1/chat/completions"),
    *(
        Case(f"{method.decode()} on a POST path", (get(PATH, method=method),), (405,), closes=False,
             head=method == b"HEAD", code=None if method == b"HEAD" else "method_not_allowed")
        for method in (b"GET", b"HEAD", b"PUT", b"DELETE", b"PATCH", b"OPTIONS")
    ),
    Case("TRACE echoes nothing", (get(PATH, b"X-Secret: s3cret", method=b"TRACE"),), (405,), closes=False),
    Case("CONNECT to a path", (get(PATH, method=b"CONNECT"),), (405,), closes=False),
    Case("POST on a GET path", (post(start=b"POST /v1/models HTTP/1.1"),), (405,), closes=False,
         code="method_not_allowed"),
    Case("HEAD", (get(b"/v1/models", method=b"HEAD"),), (200,), closes=False, head=True),
    Case("HEAD of an error", (get(b"/v1/nothing", method=b"HEAD"),), (404,), closes=False, head=True),
    Case("OPTIONS of everything", (get(b"*", method=b"OPTIONS"),), (404,), closes=False),
    Case("a preflight", (get(PATH, b"Origin: https://evil.example", b"Access-Control-Request-Method: POST",
         method=b"OPTIONS", auth=None),), (401,), closes=False),
    Case("a GET with a body", (post(start=b"GET /v1/models HTTP/1.1", body=b"x"),), (413,)),
    Case("a model by a path that climbs", (get(b"/v1/models/..%2fm"),), (404,), closes=False),
    Case("a model with a NUL", (get(b"/v1/models/m%00"),), (404,), closes=False),
    Case("admin without the operator's credential", (get(b"/v1/admin/tiers"),), (403,), closes=False),
    Case("admin by another spelling", (get(b"/v1/ADMIN/tiers"),), (404,), closes=False),
    Case("admin behind a second slash", (get(b"/v1//admin/tiers"),), (404,), closes=False),
    Case("admin without a credential", (get(b"/v1/admin/tiers", auth=None),), (401,), closes=False),
    Case("metrics with a client's credential", (get(b"/metrics"),), (403,), closes=False),
    Case("a request of nobody", (get(b"/v1/requests/none"),), (404,), closes=False),
    Case("a request id that climbs", (get(b"/v1/requests/../admin/tiers"),), (404,), closes=False),
    # Credentials.
    credential("none"),
    credential("an unknown path looks the same", b"X: y"),
    credential("wrong", b"Authorization: Bearer wrong"),
    credential("a prefix of the right one", b"Authorization: Bearer " + KEY[:-1].encode()),
    credential("the right one and more", b"Authorization: Bearer " + KEY.encode() + b"x"),
    credential("the right one twice in a line", AUTH + b", Bearer " + KEY.encode()),
    credential("in capitals", b"Authorization: Bearer " + KEY.upper().encode()),
    credential("Basic", b"Authorization: Basic " + KEY.encode()),
    credential("without a scheme", b"Authorization: " + KEY.encode()),
    credential("scheme without a token", b"Authorization: Bearer"),
    credential("scheme and a blank", b"Authorization: Bearer  "),
    credential("empty", b"Authorization:"),
    credential("with a tab", b"Authorization: Bearer\t" + KEY.encode()),
    credential("in UTF-8", "Authorization: Bearer \u00fc\u212a".encode()),
    credential("in eight bits", b"Authorization: Bearer \xff\xfe"),
    credential("of 30,000 bytes", b"Authorization: Bearer " + b"a" * 30_000),
    credential("in the query", b"X: api_key=" + KEY.encode()),
    credential("in a cookie", b"Cookie: api_key=" + KEY.encode()),
    credential("for a proxy", b"Proxy-Authorization: Bearer " + KEY.encode()),
    credential("two that differ", AUTH, b"X-Api-Key: other"),
    credential("two that differ, the other right", b"Authorization: Bearer other", b"X-Api-Key: " + KEY.encode()),
    credential("an empty key beside a right token", AUTH, b"X-Api-Key:"),
    credential("operator's for inference", b"Authorization: Bearer " + OPERATOR.encode(), status=403,
               code="operator_key_not_allowed"),
    credential("two that agree", AUTH, b"X-Api-Key: " + KEY.encode(), status=200, reaches=1),
    credential("as a key", b"X-Api-Key: " + KEY.encode(), status=200, reaches=1),
    credential("scheme in lower case", b"Authorization: bearer " + KEY.encode(), status=200, reaches=1),
    Case("two Authorization fields", (post(AUTH),), (400,)),
    Case("two Authorization fields, one wrong", (post(b"Authorization: Bearer x"),), (400,)),
    Case("two keys", (post(b"X-Api-Key: " + KEY.encode(), b"X-Api-Key: x", auth=None),), (400,)),
    # Encodings.
    *(
        Case(f"body in {coding.decode()}", (post(b"Content-Encoding: " + coding),), (415,), closes=False,
             code="unsupported_content_encoding")
        for coding in (b"gzip", b"deflate", b"br", b"zstd", b"identity, gzip", b"x-gzip", b"", b"aes128gcm")
    ),
    Case("body in identity", (post(b"Content-Encoding: identity"),), (200,), closes=False, reaches=1),
    Case("two encodings", (post(b"Content-Encoding: identity", b"Content-Encoding: gzip"),), (400,)),
    Case("accepting gzip", (post(b"Accept-Encoding: gzip, br"),), (200,), closes=False, reaches=1),
    # Another protocol, a promise, a range: asked for, and not given.
    Case("h2c", (post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQ"),),
         (200,), closes=False, reaches=1, arrives=BODY),
    Case("h2c with a chunked body", (post(b"Connection: Upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked",
         length=False, body=b"1b\r\n" + BODY + b"\r\n0\r\n\r\n"),), (200,), closes=False, reaches=1, arrives=BODY),
    Case("h2c and a request after it", (post(b"Connection: Upgrade", b"Upgrade: h2c") + get(b"/v1/models"),),
         (200, 200), closes=False, reaches=1),
    Case("a web socket", (get(b"/v1/realtime", b"Connection: Upgrade", b"Upgrade: websocket",
         b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"Sec-WebSocket-Version: 13"),), (404,), closes=False),
    Case("a range", (get(b"/v1/models", b"Range: bytes=0-1"),), (200,), closes=False),
    Case("If-None-Match", (get(b"/v1/models", b"If-None-Match: *"),), (200,), closes=False),
    Case("an expectation nobody knows", (post(b"Expect: 200-ok"),), (417,)),
    Case("an expectation with more", (post(b"Expect: 100-continue, x"),), (417,)),
    Case("two expectations", (post(b"Expect: 100-continue", b"Expect: 100-continue"),), (400,)),
    Case("an expectation without a body", (get(b"/v1/models", b"Expect: 100-continue"),), (200,), closes=False),
    Case("an expectation, body after the answer", (post(b"Expect: 100-continue")[: -len(BODY)], 0.1, BODY), (100, 200),
         closes=False, reaches=1, arrives=BODY),
    Case("an expectation that is refused", (post(b"Expect: 100-continue", auth=None)[: -len(BODY)],), (401,)),
    Case("an expectation, body at once", (post(b"Expect: 100-continue"),), (200,), closes=False, reaches=1),
    Case("an expectation on 1.0", (post(b"Expect: 100-continue", start=b"POST /v1/chat/completions HTTP/1.0"),), (200,),
         reaches=1),
    # Who goes on after what.
    Case("close, and a request after it", (post(b"Connection: close") + get(b"/v1/models"),), (200,), reaches=1),
    Case("Close in another case among others", (post(b"Connection: x, CLOSE") + get(b"/v1/models"),), (200,),
         reaches=1),
    Case("1.0, and a request after it", (post(start=b"POST /v1/chat/completions HTTP/1.0") + get(b"/v1/models"),),
         (200,), reaches=1),
    Case("1.0 that stays", (post(b"Connection: keep-alive", start=b"POST /v1/chat/completions HTTP/1.0")
         + get(b"/v1/models"),), (200, 200), closes=False, reaches=1),
    Case("a request after a refusal", (post(auth=None) + post(),), (401, 200), closes=False, reaches=1),
    Case("a request after bad JSON", (post(body=b"{") + post(),), (400, 200), closes=False, reaches=1),
    Case("a request after a malformed one", (get(b"/v1/models", b"X : y") + post(),), (400,)),
    Case("good, malformed, good", (post() + get(b"/v1/models", b"X : y") + post(),), (200, 400), reaches=1),
    Case("a request hidden in a body", (post(body=b'{"model":"m","x":"\\r\\n"}') + get(b"/livez"),), (200, 200),
         closes=False, reaches=1),
    Case("a request as the body of a refused one", (post(body=get(b"/v1/models"), auth=None),), (401,), closes=False),
]  # fmt: skip
