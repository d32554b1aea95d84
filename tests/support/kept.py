"""Results of a long programme, a line of JSON each, in a file that outlives whoever stops it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def results(kept: Path) -> list[dict[str, Any]]:
    """The lines so far; one that a kill cut short is taken away, so that its case is made again."""
    if not kept.exists():
        return []
    whole = [text for text in kept.read_text("utf-8").splitlines(keepends=True) if text.endswith("\n")]
    kept.write_text("".join(whole), "utf-8")
    return [json.loads(text) for text in whole]


def keep(kept: Path, line: dict[str, Any]) -> None:
    """One more line."""
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
