"""What the planes need from each other, as Protocols: nobody imports a neighbour to use it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from sndr.router.core.usage import FinishRow, LedgerStatus, Reconciled, StartRow, Unresolved

__all__ = ["Ledger"]


class Ledger(Protocol):
    """The usage ledger, called on the loop thread only. No call waits for the disk.

    A request is either `start`ed and later `finish`ed with the key that `start` returned, exactly once, or
    `refuse`d when it never got a lease.
    """

    def start(self, row: StartRow, done: Callable[[Exception | None], None]) -> int:
        """Queue the durable start of a request; returns the key for `finish`.

        `done(None)` is called on the loop once the row is durable, `done(error)` when it could not be written (the
        request is refused with `accounting_unavailable`, and `finish` may be called or not: there is no row).
        It is called from a later loop iteration, never from inside `start`.
        """
        ...

    def finish(self, key: int, row: FinishRow) -> None:
        """Hand over the end of a request; allowed before `done` (the request gave up waiting), at most once per key."""
        ...

    def refuse(self, row: StartRow, end: FinishRow) -> None:
        """Queue one complete row for a request that was refused before it had a lease."""
        ...

    def unresolved(self, scope: Collection[str] | None = None) -> Unresolved:
        """Rows of kind `chat` that could concern these tiers (None: all rows of every kind), as of this instant.

        Counts a start from the moment it is queued until its end is durable, so that a zero is a proof.
        """
        ...

    def status(self) -> LedgerStatus:
        """Gauges."""
        ...

    async def trace(self, request_id: str, client: str | None) -> Mapping[str, Any] | None:
        """The newest row with this request id, as `GET /v1/requests/{id}` answers it; `client` None sees every row."""
        ...

    async def reconcile(self) -> Reconciled:
        """Close the unresolved rows of runs proven dead, and those of this run whose request is over."""
        ...
