"""The prober against a scripted server on loopback."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sndr.router.core.projection import Tier
from sndr.router.core.readiness import Observation, Reason, Thresholds, TierReadiness
from sndr.router.net.prober import BODY_MAX_BYTES, Prober, Target

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
MODELS = b'{"data":[{"id":"m1","max_model_len":4096}]}'


def response(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


class Server:
    """Answers by path with raw bytes; remembers the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | None] = {"/health": OK, "/v1/models": response(MODELS)}
        self.requests: list[bytes] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(request)
            answer = self.answers[request.split()[1].decode()]
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving() -> Any:
    server = Server()
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await listener.wait_closed()


def tier(port: int, **changes: Any) -> Tier:
    fields: dict[str, Any] = {"base_url": f"http://127.0.0.1:{port}/v1", "model": "m1", "health_path": "/health"}
    return Tier(**{**fields, **changes})


def prober(**changes: Any) -> Prober:
    options: dict[str, Any] = {
        "interval_s": 0.01, "timeout_s": 5.0, "thresholds": Thresholds(2, 1), "secret": {"KEY": "s3cret"}.get,
        "wall_clock": lambda: 1000.0,
    }  # fmt: skip
    return Prober(**{**options, **changes})


def probing(script: Callable[[Server, Prober], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), serving() as server:
            await script(server, prober(**changes))

    asyncio.run(main())


def test_health_then_identity_with_the_tiers_credential() -> None:
    async def script(server: Server, probes: Prober) -> None:
        seen = await probes.probe(tier(server.port, auth_env="KEY"))
        assert seen == Observation(True, Reason.IDENTITY_PASSED, ("m1",), 4096)
        health, models = server.requests
        assert health.startswith(b"GET /health HTTP/1.1\r\n")
        assert b"uthorization" not in health
        assert models.startswith(b"GET /v1/models HTTP/1.1\r\n")
        assert b"Authorization: Bearer s3cret\r\n" in models

    probing(script)


@pytest.mark.parametrize(
    ("health", "models", "reason"),
    [
        (response(b"", "503 Service Unavailable"), None, Reason.HEALTH_STATUS),
        (response(b"", "301 Moved", "Location: /other\r\n"), None, Reason.REDIRECT),
        (b"SSH-2.0-x\r\n\r\n", None, Reason.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", None, Reason.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", None, Reason.PROTOCOL),
        (b"", None, Reason.PROTOCOL),
        (response(b"x" * (BODY_MAX_BYTES + 1)), None, Reason.TOO_LARGE),
        (OK, response(b"{}", "401 Unauthorized"), Reason.IDENTITY_STATUS),
        (OK, response(b"nonsense"), Reason.IDENTITY_MALFORMED),
        (OK, response(b'{"data":[{"id":"m2"}]}'), Reason.IDENTITY_MISMATCH),
        (OK, response(b'{"data":[{"id":"M1"}]}'), Reason.IDENTITY_MISMATCH),
        (OK, response(b"", "307 Temporary Redirect", "Location: /v1/models2\r\n"), Reason.REDIRECT),
    ],
)
def test_each_way_to_fail_has_its_reason(health: bytes, models: bytes | None, reason: Reason) -> None:
    async def script(server: Server, probes: Prober) -> None:
        server.answers.update({"/health": health, "/v1/models": models})
        seen = await probes.probe(tier(server.port))
        assert (seen.passed, seen.reason) == (False, reason)
        assert len(server.requests) == (1 if models is None else 2)

    probing(script)


def test_a_server_that_never_answers_ends_by_the_deadline() -> None:
    async def script(server: Server, probes: Prober) -> None:
        server.answers["/health"] = None
        assert (await probes.probe(tier(server.port))).reason is Reason.TIMEOUT

    probing(script, timeout_s=0.05)


def test_nobody_there_is_unreachable() -> None:
    async def main() -> None:
        async with serving() as server:
            port = server.port
        assert (await prober().probe(tier(port))).reason is Reason.UNREACHABLE
        assert (await prober().probe(tier(port, base_url="http://no-such-host.invalid/v1"))).reason in (
            Reason.UNREACHABLE,
            Reason.TIMEOUT,
        )

    asyncio.run(main())


def test_our_own_lack_of_descriptors_is_not_the_servers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_descriptor(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(asyncio, "open_connection", no_descriptor)
    assert asyncio.run(prober().probe(tier(1))).reason is Reason.NO_RESOURCES


async def until(probes: Prober, generation: int, condition: Callable[[TierReadiness], bool]) -> None:
    while not condition(probes.state("a", generation)):
        await asyncio.sleep(0.002)


def test_the_background_follows_the_server_and_says_so() -> None:
    changes: list[tuple[str, bool]] = []

    async def script(server: Server, probes: Prober) -> None:
        probes.sync([Target("a", 1, tier(server.port))])
        assert not probes.is_ready("a", 1)
        running = asyncio.create_task(probes.run())
        await probes.first_round()
        assert probes.is_ready("a", 1)
        assert probes.context_limit("a", 1) == 4096
        server.answers["/health"] = response(b"", "500 Oops")
        await until(probes, 1, lambda state: not state.ready)
        server.answers["/health"] = OK
        await until(probes, 1, lambda state: state.ready)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert changes == [("a", True), ("a", False), ("a", True)]

    probing(script, on_change=lambda target, state: changes.append((target.tier_id, state.ready)))


@pytest.mark.req("R48")
def test_a_new_generation_starts_cold_and_the_old_one_is_forgotten() -> None:
    async def script(server: Server, probes: Prober) -> None:
        probes.sync([Target("a", 1, tier(server.port))])
        running = asyncio.create_task(probes.run())
        await probes.first_round()
        server.answers["/health"] = None
        probes.sync([Target("a", 2, tier(server.port))])
        assert (probes.is_ready("a", 1), probes.is_ready("a", 2)) == (False, False)
        server.answers["/health"] = OK
        await until(probes, 2, lambda state: state.ready)
        assert not probes.is_ready("a", 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    probing(script, timeout_s=0.2)


def test_a_proof_is_fresh_and_decides_alone() -> None:
    async def script(server: Server, probes: Prober) -> None:
        probes.sync([Target("a", 1, tier(server.port))])
        assert (await probes.prove("a", 1)).passed
        assert probes.is_ready("a", 1)
        server.answers["/v1/models"] = response(b'{"data":[]}')
        assert (await probes.prove("a", 1)).reason is Reason.IDENTITY_MISMATCH
        assert not probes.is_ready("a", 1)
        assert not (await probes.prove("other", 1)).passed

    probing(script)


def test_a_candidate_is_probed_without_a_trace() -> None:
    async def script(server: Server, probes: Prober) -> None:
        assert (await probes.probe(tier(server.port))).passed
        assert not probes.is_ready("a", 1)

    probing(script)


def test_a_model_list_in_a_coding_that_nobody_asked_for_proves_nothing() -> None:
    async def script(server: Server, probes: Prober) -> None:
        for coding, passed in (("gzip", False), ("br, gzip", False), ("Identity", True)):
            server.answers["/v1/models"] = response(MODELS, extra=f"Content-Encoding: {coding}\r\n")
            seen = await probes.probe(tier(server.port))
            assert (seen.passed, seen.reason is Reason.IDENTITY_MALFORMED) == (passed, not passed)

    probing(script)
