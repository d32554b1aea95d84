"""The Grafana board and the alert rules can be loaded, and name only metrics and labels that the gateway has."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.cli import ROOT
from tests.support.control import FakeLedger, Plane

BOARD = json.loads((ROOT / "docs" / "grafana" / "sndr.json").read_text("utf-8"))
ALERTS = ROOT / "docs" / "prometheus" / "alerts.yml"
EXAMPLES = ALERTS.with_name("alerts_test.yml")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")
_ADDED_BY_PROMETHEUS = {"instance", "job", "le"}


def exposed() -> dict[str, set[str]]:
    """Names and labels of a scrape, process metrics included."""

    async def scrape() -> str:
        plane = Plane(ledger=FakeLedger())
        plane.metrics.finished("llm.primary", "a", "chat", "completed", 0.1, 0.2, 1, 2, 3)
        plane.metrics.probed("a", "identity_passed")
        return (await plane.call("GET", "/metrics")).body.decode()

    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*?)\})? \S+$", asyncio.run(scrape()), re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    # Those of the route authority, which this plane does not have; a test of its own keeps that table true.
    guide = (ROOT / "docs" / "live-routes.md").read_text("utf-8")
    for name, labels in re.findall(r"^\| `(sndr_route_\w+)` \| ([^|]*) \|", guide, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r"\w+", labels))
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"board: {panel['title']}", target["expr"]
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"board: ${variable['name']}", variable["query"]["query"]
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            yield f"alert: {rule['alert']}", rule["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_names_and_labels_exist(where: str, expression: str) -> None:
    known = exposed()
    names = re.findall(r"\b((?:sndr|gen_ai|process|python)_\w+)", expression)
    assert names or expression.startswith("up{"), where
    for name in names:
        assert name in known, f"{where}: there is no metric {name}"
    labels = set().union(*(known[name] for name in names)) | _ADDED_BY_PROMETHEUS
    for label in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', expression):
        assert label in labels, f"{where}: no label {label}"
    for listed in re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", expression):
        for label in re.findall(r"\w+", listed):
            assert label in labels, f"{where}: no label {label}"


def test_the_board_is_one_that_grafana_imports() -> None:
    assert BOARD["uid"]
    assert BOARD["title"]
    assert isinstance(BOARD["schemaVersion"], int)
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["targets"]
    variables = {f"${variable['name']}" for variable in BOARD["templating"]["list"]} | {"$__rate_interval", "$__all"}
    assert set(re.findall(r"\$\{?\w+", json.dumps(BOARD).replace("${", "$"))) <= variables


def test_every_rule_says_what_it_means() -> None:
    names: list[str] = []
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            names.append(rule["alert"])
            annotations: dict[str, Any] = rule["annotations"]
            assert annotations["summary"]
            assert rule["labels"]["severity"] in ("critical", "warning")
    assert len(names) == len(set(names))


def test_every_rule_has_an_example_in_which_it_fires() -> None:
    rules = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]}
    cases = yaml.safe_load(EXAMPLES.read_text("utf-8"))["tests"]
    fired = {test["alertname"] for case in cases for test in case["alert_rule_test"] if test["exp_alerts"]}
    assert fired == rules


def test_examples_are_of_series_that_exist() -> None:
    known = exposed()
    for case in yaml.safe_load(EXAMPLES.read_text("utf-8"))["tests"]:
        for given in case["input_series"]:
            [(name, listed)] = re.findall(r"^(\w+)\{(.*)\}$", given["series"])
            labels = set(re.findall(r'(\w+)="', listed))
            if name == "up":
                continue
            assert name in known, given["series"]
            assert labels - _ADDED_BY_PROMETHEUS == known[name] - _ADDED_BY_PROMETHEUS, given["series"]


@pytest.mark.skipif(
    shutil.which(os.environ.get("PROMTOOL", "promtool")) is None, reason="needs promtool (Debian: prometheus)"
)
@pytest.mark.parametrize("words", [["check", "rules", ALERTS.name], ["test", "rules", EXAMPLES.name]])
def test_promtool_accepts_the_rules(words: list[str]) -> None:
    done = subprocess.run(
        [os.environ.get("PROMTOOL", "promtool"), *words],
        cwd=ALERTS.parent, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
