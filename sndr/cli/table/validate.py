"""Is a table right? The contract library's checks, and the published schema as a second opinion."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sndr.contract import Finding, check_meaning, check_structure, check_table, content_sha256

__all__ = ["hash_remark", "resolves_in", "table_findings"]


def table_findings(table: object, catalog_dir: str) -> list[Finding]:
    """Return every fault of `table`, each with its JSON pointer and none twice.

    The published schema is asked only when the library finds the structure right: whatever it says then is a difference
    between the two, and the table is not to be trusted.

    Args:
        table: Any JSON value.
        catalog_dir: The catalog that the rules' evidence paths lie in.
    """

    def resolves(path: str) -> bool:
        return resolves_in(catalog_dir, path)

    if check_structure(table):
        return check_table(table, resolves=resolves)
    from sndr.cli.schemas import table_schema_findings  # imports jsonschema

    second = [Finding(pointer, "schema", message) for pointer, message in table_schema_findings(table)]
    return second + check_meaning(table, resolves=resolves)


def hash_remark(table: Mapping[str, Any]) -> str | None:
    """Return what to say about a table that is not what its own hash states, or None.

    A remark and not a fault: members may be added to a table of version 1.
    """
    stated, actual = table.get("content_sha256"), content_sha256(table)
    if stated is None or stated == actual:
        return None
    return f"/content_sha256: the content's hash is {actual}: the table was changed after its emission"


def resolves_in(catalog_dir: str, path: str) -> bool:
    """Whether an evidence path (``presets/...``) is a file of the catalog."""
    folder, *rest = path.split("/")
    if folder != "presets" or not rest or any(part in ("", ".", "..") for part in rest):
        return False
    return os.path.isfile(os.path.join(catalog_dir, *rest))
