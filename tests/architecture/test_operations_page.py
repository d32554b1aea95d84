"""The operations page names what exists: metrics, reasons, problems, verbs; its unit and container fit the gateway."""

from __future__ import annotations

import asyncio
import configparser
import json
import re
import shlex

from sndr.cli.router import router
from sndr.router import app
from sndr.router.core.readiness import Reason
from sndr.router.wire.boot_model import Server
from sndr.router.wire.operator_api import PROBLEMS
from tests.support.cli import ROOT
from tests.support.control import FakeLedger, Plane

PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in table]


def block(language: str) -> str:
    [text] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert isinstance(text, str)
    return text


def test_every_metric_is_named_with_its_labels() -> None:
    async def scrape() -> str:
        plane = Plane(ledger=FakeLedger())
        plane.metrics.finished("llm.primary", "a", "chat", "completed", 0.1, 0.2, 1, 2, 3)
        plane.metrics.probed("a", "identity_passed")
        plane.metrics.decided("f", "rule", "r", "g")
        return (await plane.call("GET", "/metrics")).body.decode()

    text = asyncio.run(scrape())
    exposed = {}
    for name, labels in re.findall(r"^(\w+?)(?:_bucket|_sum|_count)?(?:\{(.*?)\})? \S+$", text, re.MULTILINE):
        if not name.startswith(("process_", "python_")):
            exposed[name] = sorted(set(re.findall(r'(\w+)="', labels)) - {"le"})
    documented = {name.strip("`"): sorted(re.findall(r"\w+", labels)) for name, labels, _ in rows("Metrics")}
    assert documented == exposed


def test_every_reason_is_named() -> None:
    assert {row[0].strip("`") for row in rows("Readiness")} == {reason.value for reason in Reason}


def test_every_problem_is_named_with_its_status() -> None:
    guide = (ROOT / "docs" / "live-routes.md").read_text("utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", guide, re.MULTILINE))
    documented |= {row[0].strip("`"): row[1] for row in rows("Management API")}
    assert documented == {code: str(problem.status) for code, problem in PROBLEMS.items()}


def test_every_verb_is_there() -> None:
    for row in rows("The verbs"):
        verb = shlex.split(row[0].strip("`").replace("[", "").replace("]", ""))[2]
        assert verb in router.lazy


def test_the_unit_outlasts_the_default_grace_and_starts_the_gateway() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capitals
    unit.read_string(block("ini"))
    service = unit["Service"]
    assert shlex.split(service["ExecStart"])[1:4] == ["router", "serve", "--config"]
    assert int(service["TimeoutStopSec"]) >= Server().shutdown_grace_s + app.CUT_S + 2 * app.AUTHORITY_CLOSE_S
    assert service["RestartPreventExitStatus"].split() == ["2", "3"]


def test_the_container_starts_the_gateway_and_mounts_the_directory() -> None:
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", block("dockerfile"), re.MULTILINE)
    assert json.loads(entry)[:3] == ["sndr", "router", "serve"]
    assert "-v ./state:/var/lib/sndr" in PAGE
    assert not re.search(r"-v \S*\.(db|json):", PAGE)


def test_no_page_installs_by_a_name_that_others_can_have() -> None:
    """A package index may hold another project of the same name: what is installed is a path or a wheel."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for line in page.read_text("utf-8").splitlines():
            found = re.search(r"pip install ([^&;|]*)", line)
            words = [] if found is None else re.sub(r"[`'\"]", " ", found[1]).split()
            assert not [word for word in words if re.fullmatch(r"sndr(\[.*|[=<>~].*)?", word)], f"{page.name}: {line}"


def test_the_proxy_snippet_streams() -> None:
    snippet = block("nginx")
    for line in ("proxy_buffering off;", "proxy_http_version 1.1;", 'proxy_set_header Connection "";'):
        assert line in snippet
    assert int(re.findall(r"proxy_read_timeout (\d+)s", snippet)[0]) >= 3600
    assert int(re.findall(r"client_max_body_size (\d+)m", snippet)[0]) << 20 >= Server().max_body_bytes
