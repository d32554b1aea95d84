"""A real gateway process whose authority's disk fails when it is told to, and that is watched from inside."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from tests.support.cli import ROOT
from tests.support.live import until


class Sickness:
    """What is wrong with the disk under one authority; off until something is planned."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self._id = ""

    @property
    def environ(self) -> dict[str, str]:
        """For the gateway's process. Its loop is the standard library's, whose connections can be watched."""
        here = Path(__file__).parent / "sick"
        return {"PYTHONPATH": f"{here}:{ROOT}", "SNDR_SICK": str(self.directory), "SNDR_LOOP": "asyncio"}

    def plan(self, call: str, on: str = "file", *, skip: int = 0, errno: int = 0, seconds: float = 0) -> None:
        """After `skip` such calls one fails with `errno`, or takes `seconds` longer."""
        self._id = str(uuid.uuid4())
        plan = {"id": self._id, "call": call, "on": on, "skip": skip, "errno": errno, "seconds": seconds}
        fresh = self.directory / "plan.new"
        fresh.write_text(json.dumps(plan))
        fresh.rename(self.directory / "plan.json")

    def heal(self) -> None:
        """Nothing is planned any more, for the next process either."""
        (self.directory / "plan.json").unlink(missing_ok=True)

    def has_struck(self) -> bool:
        """Whether the planned call has been reached."""
        struck = self.directory / "struck"
        return struck.exists() and struck.read_text() == self._id

    def wait(self) -> None:
        """Until the planned call has been reached."""
        until(self.has_struck)

    def seen(self) -> list[tuple[str, Any]]:
        """What the process started, signalled or connected to."""
        lines = (self.directory / "seen.jsonl").read_text().splitlines()
        return [(event, detail) for event, detail in map(json.loads, lines)]
