"""The page about workload routing says what is: its boot file is valid, its names exist."""

from __future__ import annotations

import json
import re

from sndr.router.gateway.workload import _FIELDS
from sndr.router.routing_table import judge as judge_routes
from sndr.router.wire import boot, boot_model
from sndr.router.wire.routing_table import judge
from tests.support.cli import ROOT
from tests.support.contract_vectors import REFERENCE

PAGE = (ROOT / "docs" / "workload-routing.md").read_text("utf-8")


def test_the_boot_file_of_the_page_is_valid_and_complete() -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = boot.parse(text, {})
    judged = judge_routes(config, judge("table.json", json.dumps(REFERENCE).encode(), "refuse"))
    assert judged.findings == []
    assert len([note for note in judged.notes if note.startswith("coverage gap")]) == 2


def test_every_receipt_header_and_choice_is_named() -> None:
    named = {name.lower() for name in re.findall(r"`(X-Sndr-[A-Za-z0-9-]+)`", PAGE)}
    assert {name for name, _ in _FIELDS} | {"x-sndr-alias", "x-sndr-tier", "x-sndr-route-sha256"} <= named
    for field in ("on_table_error", "path", "command"):
        assert field in boot_model.RoutingTable.model_fields
        assert field in PAGE
    for outcome in ("rule", "family_default", "natural", "degraded"):
        assert f"| `{outcome}` |" in PAGE
