"""The table as bytes: one text for one table, and a hash of what it says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["canonical", "content_sha256", "encode"]

_UNHASHED = frozenset({"generated_by", "generated_at", "content_sha256"})


def encode(table: Mapping[str, Any]) -> str:
    """Return the table as published: ASCII JSON, two spaces of indent, members in their order, one final newline."""
    return json.dumps(table, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def canonical(table: Mapping[str, Any]) -> bytes:
    """Return what :func:`content_sha256` hashes: sorted keys, no spaces, ASCII; not who made it, when, nor the hash."""
    hashed = {key: value for key, value in table.items() if key not in _UNHASHED}
    return json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def content_sha256(table: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of what the table says; two emissions of one catalog have the same."""
    return hashlib.sha256(canonical(table)).hexdigest()
