"""The field reference in docs/catalog.md is made from the tables of fields; run this module to rewrite it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sndr.cli.table import layers
from sndr.cli.table.fields import Block, Choice, Field, ListOf, MapOf, Reader

PAGE = Path(__file__).parents[2] / "docs" / "catalog.md"
BEGIN, END = "<!-- fields -->\n", "<!-- end of fields -->\n"

LAYERS = (
    ("Model", "`models/<id>.yaml`", layers.MODEL),
    ("Hardware", "`hardware/<id>.yaml`", layers.HARDWARE),
    ("Profile", "`profiles/<id>.yaml`, `archive/profiles/<id>.yaml`", layers.PROFILE),
    ("Preset", "`presets/<id>.yaml`, `archive/presets/<id>.yaml`", layers.PRESET),
    ("Families", "`routing/families.yaml`", layers.FAMILIES),
    ("Workloads", "`routing/workloads.yaml`", layers.WORKLOADS),
    ("Rules", "`routing/rules.yaml`", layers.RULES),
    ("Coverage gaps", "`routing/gaps.yaml`", layers.GAPS),
    ("Evidence record", "`evidence/<id>.yaml`", layers.EVIDENCE),
)


def reference() -> str:
    """Return the field reference as Markdown."""
    text = ""
    for title, where, table in LAYERS:
        text += f"\n### {title}\n\n{where}\n\n| key | value | if left out |\n|---|---|---|\n"
        text += "".join(f"| `{key}` | {value} | {absent} |\n" for key, value, absent in _rows(table, ""))
    return text + "\n"


def _rows(table: Block, prefix: str) -> Iterator[tuple[str, str, str]]:
    for field in table.fields:
        key = f"{prefix}{field.name}"
        yield key, _allowed(field.reader) + (", or null" if field.nullable else ""), _absent(table, field)
        reader: Any = field.reader
        if isinstance(reader, Block):
            yield from _rows(reader, f"{key}.")
        elif isinstance(reader, ListOf) and isinstance(reader.item, Block):
            yield from _rows(reader.item, f"{key}[].")


def _absent(table: Block, field: Field) -> str:
    if field.required:
        return "an error"
    if field.name in layers.DEFAULT_SIZING and table.sparse:
        default = layers.DEFAULT_SIZING[field.name]
        return f"`{str(default).lower()}`"
    if field.default in (None, (), {}):
        return "none"
    if isinstance(field.default, dict):
        return ", ".join(f"`{key}: {str(value).lower()}`" for key, value in field.default.items())
    return f"`{str(field.default).lower()}`"


def _allowed(reader: Reader) -> str:
    if isinstance(reader, ListOf):
        inner = "blocks" if isinstance(reader.item, Block) else _allowed(reader.item)
        many = {(1, 1000): "one or more: ", (2, 2): "two: "}.get((reader.low, reader.high), "")
        return f"list, {many}{inner}"
    if isinstance(reader, Block):
        return "block"
    if isinstance(reader, Choice):
        return ", ".join(f"`{word}`" for word in reader.words)
    if isinstance(reader, MapOf):
        return f"{reader.what} -> {_allowed(reader.item)}"
    return reader.describe()


def current(page: str) -> str:
    """Return a page with its reference made anew."""
    head, rest = page.split(BEGIN)
    return head + BEGIN + reference() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text("utf-8")), "utf-8")
