"""The data plane's state as the control plane sees and changes it. Every call is one synchronous step on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sndr.router.core.admission import Admission, TierRuntime
from sndr.router.gateway.published import Published

if TYPE_CHECKING:
    from sndr.router.core.snapshot import Snapshot

__all__ = ["DataGate"]


class DataGate:
    """Implements the `Gate` port over the published snapshot and the admission counters.

    Attributes:
        purposes: Models outside the routes, by kind and name.
    """

    def __init__(
        self, published: Published, admission: Admission, connections: Callable[[], Mapping[str, int]] | None = None
    ) -> None:
        self._published = published
        self._admission = admission
        self._connections = connections
        self.purposes: Mapping[tuple[str, str], TierRuntime] = {}
        self._retired: list[TierRuntime] = []
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        admission.on_idle = self._went_idle

    @property
    def snapshot(self) -> Snapshot:
        """What new requests are admitted under."""
        return self._published.snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Swap the reference; runtimes that the new snapshot does not carry are retired."""
        self._retired.extend(runtime for runtime in self._published.swap(snapshot) if runtime.leases)

    def quiesce(self, tier_id: str, reason: str | None) -> None:
        """Operator: stop new leases; waiters are turned away, running work goes on."""
        self._admission.quiesce(self._current(tier_id), reason)

    def readmit(self, tier_id: str) -> None:
        """Operator: clear the operator's bit. The caller has proven health and identity."""
        self._admission.readmit(self._current(tier_id))

    def hold(self, tier_id: str) -> None:
        """Transaction: stop new leases."""
        self._admission.hold(self._current(tier_id))

    def unhold(self, tier_id: str) -> None:
        """Transaction: clear the transaction's bit."""
        self._admission.unhold(self._current(tier_id))

    def runtimes_of(self, tier_id: str) -> tuple[TierRuntime, ...]:
        """The current generation first, then retired ones that still have leases."""
        return (self._current(tier_id), *(old for old in self._retired if old.tier_id == tier_id and old.leases))

    def leases(self, tier_id: str) -> int:
        """Leases over all generations of the tier."""
        return sum(runtime.leases for runtime in self.runtimes_of(tier_id))

    async def wait_idle(self, tier_id: str, timeout_s: float) -> bool:
        """Wait for zero leases; False at the deadline. Never cuts anything."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.leases(tier_id):
                    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    waiting = self._waiting.setdefault(tier_id, set())
                    waiting.add(future)
                    try:
                        await future
                    finally:
                        waiting.discard(future)
        except TimeoutError:
            return not self.leases(tier_id)
        return True

    def connections(self) -> Mapping[str, int]:
        """Open connections by side: `client`, `client_handshake`, `upstream_active`, `upstream_idle`."""
        return {} if self._connections is None else self._connections()

    def _current(self, tier_id: str) -> TierRuntime:
        return self._published.snapshot.runtimes[tier_id]

    def _went_idle(self, runtime: TierRuntime) -> None:
        if runtime.retired and runtime in self._retired:
            self._retired.remove(runtime)
        for future in self._waiting.get(runtime.tier_id, ()):
            if not future.done():
                future.set_result(None)
