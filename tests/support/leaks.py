"""Looks for what must not be anywhere: in files, in texts, in answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["leaks"]


def leaks(needles: Iterable[str], *, directory: Path | None = None, texts: Mapping[str, str | bytes] | None = None,
          ignore: Iterable[str] = ()) -> list[str]:  # fmt: skip
    """Where which needle was found: every file below the directory (but those ignored), and every text."""
    places: dict[str, bytes] = {
        name: text.encode() if isinstance(text, str) else text for name, text in (texts or {}).items()
    }
    if directory is not None:
        places |= {
            str(path.relative_to(directory)): path.read_bytes()
            for path in directory.rglob("*")
            if path.is_file() and path.name not in set(ignore)
        }
    return [
        f"{needle!r} in {place}"
        for place, content in places.items()
        for needle in needles
        if needle.encode() in content
    ]
