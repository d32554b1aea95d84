"""The one writer of what operators change: quiesce, drain and readmit, each in its order.

Quiesce closes the gate first and stores second: between the two nobody slips in, and if storing fails the tier stays
closed and the operator is told. Readmit proves first, stores second and opens last: a tier that is open is open after a
restart too. A drain only watches; it never ends a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sndr.errors import ControlError
from sndr.router.core.readiness import Observation
from sndr.router.ports import AdmissionStore, EventLog, Gate, Prober

__all__ = ["Quiescence", "ReadmitRefusedError"]


class ReadmitRefusedError(ControlError):
    """A fresh probe did not prove the tier; `observation` says why."""

    def __init__(self, observation: Observation) -> None:
        super().__init__("readmit_refused", "a fresh probe did not prove the tier's health and identity")
        self.observation = observation


class Quiescence:
    """Serialises operator changes of one process. Every method runs on the loop."""

    def __init__(self, gate: Gate, prober: Prober, log: EventLog, store: AdmissionStore | None = None) -> None:
        """Make the operator changes of a gate.

        Args:
            store: Keeps quiescence across restarts; None forgets it with the process.
        """
        self._gate = gate
        self._prober = prober
        self._log = log
        self._store = store
        self._writing = asyncio.Lock()
        self._stopping = asyncio.Event()

    def restore(self, quiesced: Mapping[str, str | None]) -> None:
        """Quiesce again what an earlier process had quiesced; before the first connection. Unknown tiers are passed."""
        for tier_id, reason in quiesced.items():
            if tier_id in self._gate.snapshot.runtimes:
                self._gate.quiesce(tier_id, reason)

    def stop(self) -> None:
        """End the waits: drains that still run are refused with `shutting_down`."""
        self._stopping.set()

    async def quiesce(self, tier_id: str, reason: str | None) -> None:
        """Stop new leases of a tier; running requests go on. Repeating it changes the reason.

        Raises:
            ControlError: `not_found`; `admission_state_failed` when it holds now and was not stored.
        """
        self._know(tier_id)
        async with self._writing:
            self._gate.quiesce(tier_id, reason)
            self._log("quiesced", {"tier": tier_id, "reason": reason})
            await self._save(self._quiesced())

    async def drain(self, tier_id: str, timeout_s: float) -> bool:
        """Wait until a quiesced tier has no lease; False at the deadline, and everything stays as it is.

        Raises:
            ControlError: `not_found`, `not_quiesced` (also when it was readmitted meanwhile), `shutting_down`.
        """
        self._know(tier_id)
        self._require_quiesced(tier_id)
        waiting = asyncio.ensure_future(self._gate.wait_idle(tier_id, timeout_s))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ControlError("shutting_down", "the gateway is stopping")
            drained = waiting.result()
        finally:
            waiting.cancel()
            stopping.cancel()
        self._require_quiesced(tier_id)
        return drained

    async def readmit(self, tier_id: str) -> Observation:
        """Open a tier to new requests after a fresh probe; a transaction's hold on it stays.

        Raises:
            ControlError: `not_found`, `readmit_refused` with the probe's result, `admission_state_failed` (the tier
                stays quiesced).
        """
        self._know(tier_id)
        generation = self._gate.snapshot.runtimes[tier_id].generation
        seen = await self._prober.prove(tier_id, generation)
        if not seen.passed:
            raise ReadmitRefusedError(seen)
        async with self._writing:
            if self._gate.snapshot.runtimes[tier_id].generation != generation:
                raise ControlError("readmit_refused", "the tier was replaced while it was probed")
            remaining = self._quiesced()
            remaining.pop(tier_id, None)
            await self._save(remaining)
            self._gate.readmit(tier_id)
            self._log("readmitted", {"tier": tier_id, "reason": seen.reason.value})
        return seen

    def _know(self, tier_id: str) -> None:
        if tier_id not in self._gate.snapshot.runtimes:
            raise ControlError("not_found", "there is no such tier")

    def _require_quiesced(self, tier_id: str) -> None:
        if not self._gate.snapshot.runtimes[tier_id].gate.quiesced:
            raise ControlError("not_quiesced", "the tier is not quiesced")

    def _quiesced(self) -> dict[str, str | None]:
        runtimes = self._gate.snapshot.runtimes
        return {name: runtime.gate.quiesce_reason for name, runtime in runtimes.items() if runtime.gate.quiesced}

    async def _save(self, quiesced: Mapping[str, str | None]) -> None:
        if self._store is None:
            return
        try:
            await self._store.save(quiesced)
        except OSError as exc:
            raise ControlError("admission_state_failed", "operator quiescence was not stored") from exc
