"""Pages link to files that exist, and every page is reachable from the README."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.cli import ROOT

_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def _pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in _pages()
        for link in _LINK.findall(page.read_text("utf-8"))
        if not (page.parent / link).exists()
    ]
    assert broken == []
