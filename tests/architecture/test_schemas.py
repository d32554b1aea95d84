"""The published schemas are one file each, whatever path they are read from."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_schema_has_one_text_under_both_paths() -> None:
    legacy = ROOT / "sndr/cli/legacy/routing_schema.json"
    assert not legacy.is_symlink()  # a wheel would not carry the link
    assert legacy.read_bytes() == (ROOT / "schemas/routing_schema.json").read_bytes()
