"""Is a table right? The contract library's checks, and the published schema as a second opinion."""

from __future__ import annotations

import os

from sndr.contract import Finding, check_meaning, check_structure, content_sha256

__all__ = ["resolves_in", "table_findings"]


def table_findings(table: object, catalog_dir: str) -> list[Finding]:
    """Return every fault of `table`, each with its JSON pointer.

    The published schema is asked only when the library finds the structure right: whatever it says then is a difference
    between the two, and the table is not to be trusted.

    Args:
        table: Any JSON value.
        catalog_dir: The catalog that the rules' evidence paths lie in.
    """
    findings = check_structure(table)
    if not findings:
        from sndr.cli.schemas import table_schema_findings  # imports jsonschema

        findings = [Finding(pointer, "schema", message) for pointer, message in table_schema_findings(table)]
    findings += check_meaning(table, resolves=lambda path: resolves_in(catalog_dir, path))
    if isinstance(table, dict) and isinstance(stated := table.get("content_sha256"), str):
        actual = content_sha256(table)
        if stated != actual:
            findings.append(
                Finding("/content_sha256", "hash", f"the content's hash is {actual}: the table was changed")
            )
    return findings


def resolves_in(catalog_dir: str, path: str) -> bool:
    """Whether an evidence path (``presets/...``) is a file of the catalog."""
    folder, _, rest = path.partition("/")
    if folder != "presets" or ".." in rest.split("/"):
        return False
    return os.path.isfile(os.path.join(catalog_dir, rest))
