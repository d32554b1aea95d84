"""Probes of model servers: the health path, then the model list. Never a generation.

Each probe opens a connection of its own, follows no redirect, uses no proxy, reads a bounded answer and ends by its
deadline. Results are kept by (tier, generation), so a replaced tier starts cold and an old server's health never counts
for a new one.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from sndr.router.core.projection import UPSTREAM, Tier
from sndr.router.core.readiness import (
    Observation,
    Reason,
    Thresholds,
    TierReadiness,
    initial,
    judge_health,
    judge_models,
    needs_probe,
    proven,
    step,
)
from sndr.router.net.resolver import Resolver, literal
from sndr.router.net.tls import client_context
from sndr.router.wire.http1 import Malformed, ResponseReader

__all__ = ["BODY_MAX_BYTES", "Prober", "Target"]

BODY_MAX_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 16
_UNKNOWN: Final = TierReadiness(False, Reason.NOT_PROBED)


@dataclass(frozen=True, slots=True)
class Target:
    """One generation of a tier, as it is to be probed."""

    tier_id: str
    generation: int
    tier: Tier


class _ProbeFailedError(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


_Key = tuple[str, int]


class Prober:
    """Keeps readiness per (tier, generation). Lives on one event loop; `is_ready` and `served` are for its hot path."""

    def __init__(
        self,
        *,
        interval_s: float,
        timeout_s: float,
        thresholds: Thresholds,
        secret: Callable[[str | None], str | None],
        wall_clock: Callable[[], float],
        on_change: Callable[[Target, TierReadiness], None] | None = None,
        on_probe: Callable[[str, Observation], None] | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        """Make a prober that knows no tier yet.

        Args:
            interval_s: Time between two probes of one tier.
            timeout_s: Deadline of each of a probe's (at most two) requests.
            secret: Value of a credential's environment variable.
            wall_clock: Seconds since the epoch.
            on_change: Told when a tier became ready or unready.
            on_probe: Told the tier and the result of every probe.
            resolver: Looks names up; best shared with whoever connects to the same servers.
        """
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._thresholds = thresholds
        self._secret = secret
        self._wall_clock = wall_clock
        self._on_change = on_change
        self._on_probe = on_probe
        self._resolver = resolver or Resolver()
        self._targets: dict[_Key, Target] = {}
        self._states: dict[_Key, TierReadiness] = {}
        self._ready: dict[_Key, bool] = {}
        self._served: dict[_Key, float] = {}
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._first: dict[_Key, asyncio.Event] = {}
        self._group: asyncio.TaskGroup | None = None
        self._tls: ssl.SSLContext | None = None

    # -- read by the data plane ---------------------------------------------------------------------------------------

    def is_ready(self, tier_id: str, generation: int) -> bool:
        """Whether this generation of the tier may be chosen."""
        return self._ready.get((tier_id, generation), False)

    def context_limit(self, tier_id: str, generation: int) -> int | None:
        """Context length that the server of this generation last advertised for its model."""
        state = self._states.get((tier_id, generation))
        return None if state is None else state.context_limit

    def served(self, tier_id: str, generation: int) -> None:
        """This generation has just delivered response bytes."""
        self._served[tier_id, generation] = asyncio.get_running_loop().time()

    # -- read by the control plane ------------------------------------------------------------------------------------

    def state(self, tier_id: str, generation: int) -> TierReadiness:
        """All that is known about a generation."""
        return self._states.get((tier_id, generation), _UNKNOWN)

    # -- which tiers there are ----------------------------------------------------------------------------------------

    def sync(self, targets: Iterable[Target]) -> None:
        """Probe exactly these from now on; what was known about generations that stay is kept."""
        wanted = {(target.tier_id, target.generation): target for target in targets}
        for key in [key for key in self._targets if key not in wanted]:
            del self._targets[key], self._states[key], self._ready[key], self._first[key]
            self._served.pop(key, None)
            task = self._tasks.pop(key, None)
            if task is not None:
                task.cancel()
        for key in [key for key in self._served if key not in wanted]:  # a last stream of a retired generation
            del self._served[key]
        for key, target in wanted.items():
            if key in self._targets:
                continue
            self._targets[key] = target
            self._first[key] = asyncio.Event()
            state = self._states[key] = initial(target.tier)
            self._ready[key] = state.ready
            if not needs_probe(target.tier):
                self._first[key].set()
            elif self._group is not None:
                self._start(key)

    async def run(self) -> None:
        """Probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for key, target in self._targets.items():
                    if needs_probe(target.tier):
                        self._start(key)
                await asyncio.Event().wait()
            finally:
                self._group = None
                self._tasks.clear()

    async def first_round(self) -> None:
        """Wait until every tier has been probed once; bounded by the probes' own deadlines."""
        for event in list(self._first.values()):
            await event.wait()

    def _start(self, key: _Key) -> None:
        assert self._group is not None
        self._tasks[key] = self._group.create_task(self._watch(key, self._targets[key]), name=f"probe {key[0]}")

    async def _watch(self, key: _Key, target: Target) -> None:
        while True:
            seen = await self.probe(target.tier)
            if self._targets.get(key) is not target:
                return
            self._record(key, seen, step(
                self._states[key], seen, self._thresholds, at=self._wall_clock(), is_serving=self._is_serving(key)
            ))  # fmt: skip
            self._first[key].set()
            await asyncio.sleep(self._interval_s)

    def _is_serving(self, key: _Key) -> bool:
        served_at = self._served.get(key)
        if served_at is None:
            return False
        return asyncio.get_running_loop().time() - served_at <= self._interval_s + 2 * self._timeout_s

    def _record(self, key: _Key, seen: Observation, state: TierReadiness) -> None:
        before = self._states[key]
        self._states[key] = state
        self._ready[key] = state.ready
        if self._on_probe is not None:
            self._on_probe(key[0], seen)
        if self._on_change is not None and state.ready != before.ready:
            self._on_change(self._targets[key], state)

    # -- probing ------------------------------------------------------------------------------------------------------

    async def prove(self, tier_id: str, generation: int) -> Observation:
        """Probe a known generation now, past every cache, and let the result alone decide its readiness."""
        key = (tier_id, generation)
        target = self._targets.get(key)
        if target is None:
            return Observation(False, Reason.NOT_PROBED)
        seen = await self.probe(target.tier)
        if self._targets.get(key) is target:
            self.note(tier_id, generation, seen)
        return seen

    def note(self, tier_id: str, generation: int, seen: Observation) -> None:
        """Let a probe that was made for another purpose decide a known generation's readiness alone."""
        key = (tier_id, generation)
        if key in self._targets:
            self._record(key, seen, proven(self._states[key], seen, at=self._wall_clock()))

    async def probe(self, tier: Tier) -> Observation:
        """Probe a definition now, known or not; nothing is remembered."""
        try:
            health = Reason.NOT_CONFIGURED
            if tier.health_path is not None:
                status, _ = await self._get(tier, tier.health_path, authenticated=False)
                health = judge_health(status)
                if health is not Reason.HEALTH_PASSED:
                    return Observation(False, health)
            if not tier.model_identity and tier.context_limit != UPSTREAM:
                return Observation(True, health)
            prefix = urlsplit(tier.base_url).path
            status, body = await self._get(tier, f"{prefix}/models", authenticated=True)
            return judge_models(tier, status, body)
        except _ProbeFailedError as failed:
            return Observation(False, failed.reason)

    async def _get(self, tier: Tier, path: str, *, authenticated: bool) -> tuple[int, bytes]:
        """One bounded GET; status and body."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(tier, path, authenticated=authenticated)
        except TimeoutError:
            raise _ProbeFailedError(Reason.TIMEOUT) from None
        except OSError as exc:
            mine = exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
            raise _ProbeFailedError(Reason.NO_RESOURCES if mine else Reason.UNREACHABLE) from None
        except (Malformed, UnicodeError):
            raise _ProbeFailedError(Reason.PROTOCOL) from None

    async def _exchange(self, tier: Tier, path: str, *, authenticated: bool) -> tuple[int, bytes]:
        parts = urlsplit(tier.base_url)
        host = parts.hostname or ""
        is_tls = parts.scheme == "https"
        if is_tls and self._tls is None:
            self._tls = client_context()
        reader, writer = await self._open(host, parts.port or (443 if is_tls else 80), self._tls if is_tls else None)
        try:
            token = self._secret(tier.auth_env) if authenticated else None
            lines = [
                f"GET {path} HTTP/1.1",
                f"Host: {parts.netloc}",
                "Accept: application/json" if authenticated else "Accept: */*",
                "Accept-Encoding: identity",
                "User-Agent: sndr-probe",
                "Connection: close",
            ]
            if token is not None:
                lines.append(f"Authorization: Bearer {token}")
            writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
            response = ResponseReader()
            body = bytearray()
            while not response.complete:
                data = await reader.read(_READ_BYTES)
                if data:
                    body += response.receive(data)
                else:
                    response.eof()
                if len(body) > BODY_MAX_BYTES:
                    raise _ProbeFailedError(Reason.TOO_LARGE)
            assert response.head is not None
            # Nobody asked for a coding: what such a body is would be a guess, and a guess proves nothing.
            coding = response.head.fields.get(b"content-encoding", b"identity").lower()
            return response.head.status, bytes(body) if coding == b"identity" else b""
        finally:
            writer.transport.abort()

    async def _open(
        self, host: str, port: int, tls: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the first address of the host that takes one."""
        last: OSError | None = None
        for _, address in literal(host) or await self._resolver.resolve(host):
            try:
                return await asyncio.open_connection(
                    address, port, ssl=tls, server_hostname=None if tls is None else host, limit=_READ_BYTES
                )
            except OSError as error:
                last = error
        raise last or OSError(errno.EADDRNOTAVAIL, "the name has no address")
