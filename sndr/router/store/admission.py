"""Operator quiescence on disk, so that a tier that was taken out stays out across a restart.

The file is separate from the route authority: neither implies the other. A missing file means that nothing is
quiesced; a file that cannot be read with certainty stops the start, because guessing would put a tier back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from sndr.durable import write_atomic
from sndr.errors import InputError
from sndr.router.core.projection import TIER_ID_PATTERN
from sndr.router.store.writer import Worker
from sndr.router.wire.record import StrictJsonError, decode_strict

__all__ = ["AdmissionFile", "AdmissionStateError"]

SCHEMA: Final = "sndr.admission-state/1"
_MAX_BYTES: Final = 65_536
_REASON: Final = re.compile(r"[ -~]{1,128}")


class AdmissionStateError(InputError):
    """The file exists and is not what `AdmissionFile.save` writes."""

    exit_code = 2


class AdmissionFile:
    """The file at ``server.admission_state_path``: ``{"schema":…,"quiesced":{tier:reason or null}}``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._worker: Worker | None = None

    def load(self) -> dict[str, str | None]:
        """Quiesced tiers and their reasons.

        Raises:
            AdmissionStateError: `admission_state_invalid`.
        """
        try:
            with open(self._path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise self._invalid(f"cannot be read: {exc.strerror}") from exc
        try:
            document = decode_strict(data) if len(data) <= _MAX_BYTES else None
        except StrictJsonError as exc:
            raise self._invalid(str(exc)) from exc
        quiesced = document.get("quiesced") if isinstance(document, dict) else None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA or not isinstance(quiesced, dict):
            raise self._invalid(f"is not a document of {SCHEMA}")
        for tier_id, reason in quiesced.items():
            if not TIER_ID_PATTERN.fullmatch(tier_id) or not (
                reason is None or (isinstance(reason, str) and _REASON.fullmatch(reason))
            ):
                raise self._invalid("names something that is no tier, or has a reason that is no text")
        return quiesced

    async def save(self, quiesced: Mapping[str, str | None]) -> None:
        """Replace the file, on a thread of its own.

        Raises:
            OSError: It may not have been stored. Crash: leaves the old or the new content.
        """
        document = {"schema": SCHEMA, "quiesced": dict(sorted(quiesced.items()))}
        data = json.dumps(document, indent=1).encode() + b"\n"
        if self._worker is None:
            self._worker = Worker("sndr-admission")
        await self._worker.run(lambda: write_atomic(self._path, data, 0o600))

    async def close(self) -> None:
        """Wait for a write that is running and end the thread; where that is cancelled, it ends with the process."""
        if self._worker is not None:
            await self._worker.close()

    def _invalid(self, problem: str) -> AdmissionStateError:
        advice = "repair it, or remove it to start with nothing quiesced"
        return AdmissionStateError("admission_state_invalid", f"{self._path} {problem}; {advice}")
