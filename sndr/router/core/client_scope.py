"""Which aliases a client may use: globs over alias names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

__all__ = ["may_use"]


def may_use(globs: Iterable[str], alias: str) -> bool:
    """Whether one of the globs matches the whole alias; ``*`` is any run of characters, ``?`` is one."""
    return any(_compiled(glob).fullmatch(alias) is not None for glob in globs)


@lru_cache(maxsize=1024)
def _compiled(glob: str) -> re.Pattern[str]:
    pieces = (".*" if char == "*" else "." if char == "?" else re.escape(char) for char in glob.strip().lower())
    return re.compile("".join(pieces))
