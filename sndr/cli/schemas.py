"""The only importer of jsonschema: a second opinion on the tables that we emit and read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sndr.resources import schemas_dir

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

__all__ = ["table_schema", "table_schema_findings"]


def table_schema() -> dict[str, Any]:
    """Return the published JSON Schema (draft-07) of the routing table, version 1."""
    with open(os.path.join(schemas_dir(), "routing_schema.json"), encoding="utf-8") as file:
        schema: dict[str, Any] = json.load(file)
    return schema


def table_schema_findings(table: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON pointer, what is wrong) for each place where `table` breaks the published schema."""
    from jsonschema import Draft7Validator  # slow to import: only validation pays for it

    validator: Validator = Draft7Validator(table_schema())
    for error in validator.iter_errors(table):
        pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.absolute_path)
        yield pointer, _short(error.message)


def _short(message: str, limit: int = 200) -> str:
    """Return the message without most of a large instance that it may quote."""
    return message if len(message) <= limit else f"{message[: limit // 2]} ... {message[-limit // 2 :]}"
