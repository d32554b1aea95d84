"""Tests stay on this machine, and no text claims what only a real deployment can show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT, environment
from tests.support.gateway import CREDENTIALS
from tests.support.live import live, until

TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "sndr").rglob("*.py"))]
CLAIMS = (
    r"proven in production", r"battle[- ]tested", r"production[- ]proven", r"zero[- ]downtime", r"guarantees? uptime",
    r"weights (?:are|were) verified", r"verifies (?:the )?weights", r"safe to unload", r"certified",
)  # fmt: skip


@pytest.mark.req("R115", "R106", "R107")
def test_no_text_claims_what_it_cannot_know() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in TEXTS
        for claim in CLAIMS
        for match in re.finditer(claim, path.read_text("utf-8"), re.IGNORECASE)
    ]
    assert found == []
    page = (ROOT / "docs" / "acceptance.md").read_text("utf-8")
    assert "Nothing here is claimed about it" in page
    assert "acceptance" not in (ROOT / ".ci" / "run").read_text("utf-8")


@pytest.mark.req("R114")
def test_a_test_that_leaves_this_machine_fails() -> None:
    """`tests/conftest.py` turns this on for every test; the gateways of tests reach what their boot files name."""
    connect = "import socket; socket.socket({family}).connect({address})"
    for family, address, said in (
        ("socket.AF_INET", ("192.0.2.1", 80), "a test leaves this machine: 192.0.2.1"),
        ("socket.AF_INET6", ("2001:db8::1", 80), "a test leaves this machine: 2001:db8::1"),
        ("socket.AF_INET", ("127.0.0.1", 1), "ConnectionRefusedError"),
    ):
        script = "from tests.support.offline import stay_here; stay_here(); "
        script += connect.format(family=family, address=address)
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert said in done.stderr, done.stderr
    assert "stay_here()" in (ROOT / "tests" / "conftest.py").read_text("utf-8")


ACCEPTANCE = ROOT / "docs" / "examples" / "acceptance.py"


def accept(out: Path, url: str, *more: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Exit code, report, and what is said to each question."""
    env = environment(
        SNDR_ROUTER_OPERATOR_TOKEN=CREDENTIALS["OPERATOR_KEY"], SNDR_ROUTER_CLIENT_TOKEN=CREDENTIALS["CLIENT_KEY"]
    )
    words = ["--url", url, "--move", "x=b", "--other", "y", "--streams", "2", "--lead", "3", "--tokens", "100"]
    done = subprocess.run(
        [sys.executable, str(ACCEPTANCE), *words, "--out", str(out), *more],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert not any(secret in out.read_text() + done.stdout + done.stderr for secret in CREDENTIALS.values())
    report = json.loads(out.read_text())
    return done.returncode, report, {line["question"]: line["result"] for line in report["findings"]}


@pytest.mark.req("R115")
def test_the_acceptance_script_says_what_it_saw_and_no_more(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    with live(tmp_path) as plane, plane.serving() as (_, operator, _):

        def look(delay_ms: float, *more: str, tokens: int = 100) -> tuple[int, dict[str, str]]:
            for server in plane.servers.values():
                server.set(plan={"tokens": tokens, "token_delay_ms": delay_ms})
            code, report, seen = accept(out, operator.url, *more)
            assert (report["ended_early"], report["left_moved"]) == (None, None)
            return code, seen

        code, seen = look(100)
        assert (code, set(seen.values())) == (0, {"seen"}), seen
        of_streams = (
            "no stream was cut by the change",
            "the other alias was served throughout",
            "running streams kept their routes",
        )
        code, seen = look(0)  # nothing runs across the change: that is no pass
        assert (code, [seen[question] for question in of_streams]) == (2, ["not seen"] * 3), seen
        code, seen = look(1000, "--longest", "3", tokens=5)  # a server that takes longer than anybody waits
        assert (code, [seen[question] for question in of_streams]) == (2, ["not seen"] * 3), seen
        assert operator.view()["current"]["projection"]["aliases"]["x"] == {"tier": "a"}
        code, report, seen = accept(out, operator.url, "--other", "x")
        assert (code, seen, "another tier" in report["ended_early"]) == (2, {}, True)


@pytest.mark.req("R115")
def test_a_request_that_waited_for_its_turn_during_the_change_is_no_stream_across_it(tmp_path: Path) -> None:
    """It follows the new route, as it must; that is no contradiction."""
    tiers = {"a": {"model": "m1", "max_concurrency": 1}, "b": {"model": "n1"}}
    with live(tmp_path, tiers=tiers) as plane, plane.serving() as (_, operator, _):
        for server in plane.servers.values():
            server.set(plan={"tokens": 100, "token_delay_ms": 100})
        code, report, seen = accept(tmp_path / "report.json", operator.url)
        assert (code, set(seen.values())) == (0, {"seen"}), report


@pytest.mark.req("R115")
def test_a_gateway_that_dies_ends_the_look_and_it_is_said_where_the_alias_may_be(tmp_path: Path) -> None:
    with live(tmp_path) as plane, plane.serving() as (gateway, operator, _):
        for server in plane.servers.values():
            server.set(plan={"tokens": 100, "token_delay_ms": 100})

        def strike() -> None:
            until(lambda: operator.view()["route_revision"] == 2, 60)
            gateway.process.kill()

        killer = threading.Thread(target=strike)
        killer.start()
        code, report, seen = accept(tmp_path / "report.json", operator.url)
        killer.join(60)
        assert seen["no stream was cut by the change"] == "contradicted", report
        assert (code in (1, 2), report["left_moved"]) == (True, "x led to a, and may lead to b now"), report
        assert "unreachable" in report["ended_early"], report
