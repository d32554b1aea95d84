"""The contract's page and the provenance page say what the code, the schema and the records say."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import sndr.contract
from sndr.cli.table.diff import compare
from sndr.cli.table.explain import explain
from tests.support.cli import ROOT, environment

CONTRACT = (ROOT / "docs" / "contract.md").read_text("utf-8")
PROVENANCE = (ROOT / "docs" / "provenance.md").read_text("utf-8")
PHASES = [
    "7.G4.B1.1 / B1.2",
    "7.G4.26B-A4B.B2",
    "7.G4.26B-A4B.B3",
    "7.G4.26B-A4B.B4",
    "7.G4.WORKLOAD-GATE-POLICY.R / UPDATE",
    "7.G4.26B-A4B.PRESET_LABELING",
    "7.G4.26B-A4B.VARIANT-A-FIX",
    "7.G4.OVERLAY-PATH-CONSISTENCY",
    "7.G4.WORKLOAD-GATE-POLICY.IMPLEMENT.R",
    "7.G4.WORKLOAD-GATE-POLICY.IMPLEMENT",
]


def example() -> str:
    (found,) = re.findall(r"```python\n(.*?)```", CONTRACT, re.DOTALL)
    assert isinstance(found, str)
    return found


def test_the_example_is_an_aggregator(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    space: dict[str, Any] = {}
    with caplog.at_level(logging.WARNING):
        exec(compile(example(), "docs/contract.md", "exec"), space)
    assert len([r for r in caplog.records if r.getMessage().startswith("unmeasured: gemma4_")]) == 6
    body = {"model": "gemma-4-26b-a4b", "tools": [{}], "expected_length": "short", "messages": []}
    sent: list[tuple[str, Any]] = []

    def send(preset: str, forwarded: Any) -> str:
        sent.append((preset, forwarded))
        if len(sent) < 3:  # the next request arrives while this one runs
            space["forward"](body, {}, send)
        return preset

    assert space["forward"](body, {}, send) == "prod-gemma4-26b-default"
    assert [preset for preset, _ in sent] == ["prod-gemma4-26b-default", *["prod-gemma4-26b-multiconc"] * 2]
    assert all("expected_length" not in forwarded for _, forwarded in sent)
    assert set(space["in_flight"].values()) == {0}
    assert space["forward"]({"model": "qwen3.6-27b"}, {}, lambda preset, _: preset) == "natural"


def test_the_example_is_short() -> None:
    assert (
        len([line for line in example().splitlines() if line.strip() and not line.startswith(("import", "from"))]) <= 20
    )


def test_every_member_of_the_schema_is_described() -> None:
    schema = json.loads((ROOT / "schemas" / "routing_schema.json").read_text("utf-8"))

    def members(part: Any) -> set[str]:
        if not isinstance(part, dict):
            return set()
        found = set(part["properties"]) if isinstance(part.get("properties"), dict) else set()
        return found.union(*(members(inner) for inner in part.values()))

    assert len(members(schema)) > 40
    missing = [name for name in members(schema) if f"`{name}`" not in CONTRACT]
    assert not missing


def test_every_member_of_the_decision_record_is_described() -> None:
    record = sndr.contract.decide(sndr.contract.Table(), {}).record()
    assert [name for name in record if f"`{name}`" not in CONTRACT] == []
    for value in (*sndr.contract.WORKLOAD_CLASSES, *sndr.contract.OUTPUT_LENGTHS, *sndr.contract.CONCURRENCY_MODES):
        assert f"`{value}`" in CONTRACT


def test_the_json_of_diff_and_explain_is_described() -> None:
    table = json.loads((ROOT / "schemas" / "conformance" / "matrix.json").read_text("ascii"))["tables"]["reference"]
    other = {**table, "vllm_pin": "1", "routing_rules": []}
    record = compare(table, other).record()
    assert [name for name in record if f"`{name}`" not in CONTRACT] == []
    for entry in (record["moved_cells"][0], record["other"][0]):
        assert "`{" + ", ".join(f'"{name}"' for name in entry) + "}`" in CONTRACT
    step = sndr.contract.explain(sndr.contract.Table(), {}).record()["steps"][0]
    assert "`{" + ", ".join(f'"{name}"' for name in step) + "}`" in CONTRACT
    options = [option for param in explain.params for option in param.opts if option.startswith("--")]
    assert [option for option in options if f"`{option}" not in CONTRACT.replace("\n", " ")] == []


def test_every_call_on_the_page_exists() -> None:
    table = CONTRACT.partition("| call | does |")[2].partition("\n\n")[0]
    calls = re.findall(r"`(\w+)\(", table.replace("`Finding(", ""))
    assert len(calls) >= 9
    assert [name for name in calls if not callable(getattr(sndr.contract, name))] == []


def test_the_request_on_the_page_is_explained() -> None:
    (block,) = re.findall(r"```sh\n(echo .*?)```", CONTRACT, re.DOTALL)
    block = block.replace("python3", sys.executable)
    done = subprocess.run(["bash", "-c", block], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("prod-gemma4-26b-multiconc  [rule]\n")


def test_the_ten_phases_are_listed_in_order() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in PROVENANCE.splitlines() if line.startswith("| 7.")]
    assert rows == PHASES


def records() -> list[Path]:
    return sorted((ROOT / "presets" / "evidence").glob("*.yaml"))


@pytest.mark.parametrize("path", records(), ids=lambda path: path.stem)
def test_each_record_and_its_figures_are_on_the_page(path: Path) -> None:
    record = yaml.safe_load(path.read_text("utf-8"))
    row = next(line for line in PROVENANCE.splitlines() if line.startswith(f"| {record['phase']} |"))
    assert f"`presets/evidence/{path.name}`" in row
    arms = record.get("comparison", {}).get("arms", [])
    figures = [one["value"] for one in (*record.get("figures", []), *arms)]
    assert figures
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(str(abs(figure)))}(?![\d.]*\d)", PROVENANCE), figure
    if arms:
        gain = (arms[0]["value"] / arms[1]["value"] - 1) * 100
        assert f"= {gain:+.1f} %" in PROVENANCE
        assert all(f"K={arm['K']}, `{arm['preset']}`" in PROVENANCE for arm in arms)


def test_phases_without_a_record_say_so() -> None:
    with_record = {yaml.safe_load(path.read_text("utf-8"))["phase"] for path in records()}
    for line in PROVENANCE.splitlines():
        if line.startswith("| 7."):
            assert ("none, no figures" in line) == (line.split(" | ")[0].removeprefix("| ") not in with_record)
