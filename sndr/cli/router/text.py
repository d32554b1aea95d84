"""Text for people: aligned tables, spans of time, colour where a terminal shows it.

Words of others (a table, a model server, an authority file) reach a terminal as printable ASCII, each on its own line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from sndr.cli.output import one_line

__all__ = ["ago", "count", "is_coloured", "span", "table"]

_GOOD = "\x1b[32m"
_BAD = "\x1b[31m"
_HEAD = "\x1b[1m"
_PLAIN = "\x1b[0m"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns; the first row is the head. Columns that are empty throughout are left out."""
    rows = [[*map(one_line, row)] for row in rows]
    kept = [index for index in range(len(rows[0])) if any(row[index] for row in rows[1:])] or list(range(len(rows[0])))
    widths = {index: max(len(row[index]) for row in rows) for index in kept}
    coloured = is_coloured()
    lines = []
    for number, row in enumerate(rows):
        cells = [_paint(row[index].ljust(widths[index]), number == 0) if coloured else row[index].ljust(widths[index])
                 for index in kept]  # fmt: skip
        lines.append("  ".join(cells).rstrip())
    return lines


def _paint(cell: str, is_head: bool) -> str:
    word = cell.strip()
    if is_head:
        return f"{_HEAD}{cell}{_PLAIN}"
    if word == "yes":
        return f"{_GOOD}{cell}{_PLAIN}"
    return f"{_BAD}{cell}{_PLAIN}" if word == "no" or word.startswith("no:") else cell


def is_coloured() -> bool:
    """Whether standard output is a terminal that shows colour, and nobody said no (`NO_COLOR`)."""
    stream = sys.stdout
    return stream is not None and stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def count(number: int, noun: str) -> str:
    """``1 stream``, ``2 streams``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def span(seconds: float) -> str:
    """A length of time in its largest two units: ``45 s``, ``3 min 20 s``, ``2 d 5 h``."""
    left = max(0, int(seconds))
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def ago(instant: str | None) -> str:
    """How long before now an RFC 3339 instant is; ``never`` for none."""
    if instant is None:
        return "never"
    moment = datetime.fromisoformat(instant)
    return f"{span((datetime.now(UTC) - moment).total_seconds())} ago"
