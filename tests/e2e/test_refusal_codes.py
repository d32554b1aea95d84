"""Scripts match on the code of an error line: the codes that no other test meets by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import environment, refused, run_cli

PRESET = "prod-gemma4-26b-default"


@pytest.mark.parametrize(
    ("words", "exits", "code"),
    [
        ("preset show {preset} --field nothing", 1, "field_unknown"),
        ("preset recommend --workload nothing", 1, "workload_unknown"),
        ("preset recommend --workload tool_call.short --hardware nothing", 1, "hardware_unknown"),
        ("routing-table diff {folder}/empty.json {folder}/empty.json", 2, "table_unusable"),
        ("router synthetic-serve --listen nothing", 2, "invalid_listen"),
        ("router synthetic-serve --plan 1", 2, "invalid_plan"),
        ("router status --auth-env SPACED", 2, "credential_invalid"),
        ("router status --auth-env UNSET", 2, "credential_missing"),
        ("router usage status --config {folder}/router.toml", 2, "usage_not_configured"),
        ("router usage report --file {folder}/usage.db --since yesterday", 2, "invalid_instant"),
    ],
)
def test_a_line_names_its_code(tmp_path: Path, words: str, exits: int, code: str) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "router.toml").write_text(
        '[server]\nauth_env = "KEY"\n'
        '[[router.tiers]]\nid = "a"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m1"\n'
        '[router.model_routes]\nx = "a"\n'
    )
    given = words.format(folder=tmp_path, preset=PRESET).split()
    [line] = refused(run_cli(*given, env=environment(SPACED="a b", KEY="client-key-0123456789")), exits)
    assert f": {code}: " in line
