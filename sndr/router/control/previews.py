"""Previews that an apply may name: bound to their content, short-lived, used once, few.

A preview dies with the process. It expires by whichever of two clocks says so first: a wall clock that jumps ahead ends
it early, one that jumps back cannot extend it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from sndr.errors import ControlError
from sndr.router.control.coordinator import Outcome
from sndr.router.core.effects import Command
from sndr.router.ports import Clock

__all__ = ["PREVIEWS_MAX", "PREVIEW_BYTES_MAX", "Preview", "PreviewCache"]

PREVIEWS_MAX: Final = 16
PREVIEW_BYTES_MAX: Final = 65_536


@dataclass(slots=True, eq=False)
class Preview:
    """One preview.

    Attributes:
        id: Names it.
        sha256: Of the document that it is bound to.
        command: What an apply carries out, but for the call's own members.
        transaction_id: Of the transaction that it begins or goes on with.
        refusal: Code of the first check that forbids applying it.
        wall_ends_ms: End of its life by the wall clock.
        elapsed_ends_ms: End of its life by the other.
        running: Set once it is used; the outcome of that one use.
    """

    id: str
    sha256: str
    command: Command
    transaction_id: str | None
    refusal: str | None
    wall_ends_ms: int
    elapsed_ends_ms: int
    running: asyncio.Future[Outcome] | None = field(default=None)


class PreviewCache:
    """The newest previews of this process, used ones included."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._previews: dict[str, Preview] = {}

    def add(self, preview: Preview) -> None:
        """Remember a preview; the oldest one that is not being carried out makes room."""
        while len(self._previews) >= PREVIEWS_MAX:
            idle = (one.id for one in self._previews.values() if one.running is None or one.running.done())
            oldest = next(idle, None)
            if oldest is None:
                raise ControlError("management_busy", "every preview is being carried out")
            del self._previews[oldest]
        self._previews[preview.id] = preview

    def find(self, preview_id: str, sha256: str) -> Preview | None:
        """The preview of this name.

        Raises:
            ControlError: `preview_mismatch`.
        """
        preview = self._previews.get(preview_id)
        if preview is not None and preview.sha256 != sha256:
            raise ControlError("preview_mismatch", "the hash is not that of the preview")
        return preview

    def use(self, preview: Preview) -> asyncio.Future[Outcome]:
        """Begin its one use.

        Raises:
            ControlError: `preview_expired`, or the code of the check that forbids applying it.
        """
        if not self._is_live(preview):
            raise ControlError("preview_expired", "the preview has expired")
        if preview.refusal is not None:
            raise ControlError(preview.refusal, "the preview is not applicable")
        preview.running = asyncio.get_running_loop().create_future()
        return preview.running

    @property
    def live(self) -> int:
        """Previews that could still be applied."""
        return sum(one.running is None and self._is_live(one) for one in self._previews.values())

    def _is_live(self, preview: Preview) -> bool:
        return self._clock.wall_ms() < preview.wall_ends_ms and self._clock.elapsed_ms() < preview.elapsed_ends_ms
