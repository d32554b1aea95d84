"""The table as text: one text for one table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["encode"]


def encode(table: Mapping[str, Any]) -> str:
    """Return the table as published: ASCII JSON, two spaces of indent, members in their order, one final newline."""
    return json.dumps(table, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
