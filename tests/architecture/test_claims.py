"""Tests stay on this machine, and no text claims what only a real deployment can show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import ROOT, environment
from tests.support.gateway import CREDENTIALS
from tests.support.live import live

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


@pytest.mark.req("R115")
def test_the_acceptance_script_says_what_it_saw_and_no_more(tmp_path: Path) -> None:
    script = ROOT / "docs" / "examples" / "acceptance.py"
    with live(tmp_path) as plane, plane.serving() as (_, operator, _):
        env = environment(
            SNDR_ROUTER_OPERATOR_TOKEN=CREDENTIALS["OPERATOR_KEY"], SNDR_ROUTER_CLIENT_TOKEN=CREDENTIALS["CLIENT_KEY"]
        )

        def look(delay_ms: float) -> tuple[int, dict[str, str]]:
            for server in plane.servers.values():
                server.set(plan={"tokens": 100, "token_delay_ms": delay_ms})
            out = tmp_path / "report.json"
            words = ["--url", operator.url, "--move", "x=b", "--other", "y", "--streams", "2", "--lead", "1"]
            done = subprocess.run(
                [sys.executable, str(script), *words, "--tokens", "100", "--out", str(out)],
                env=env, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            report = json.loads(out.read_text())
            assert report["ended_early"] is None, done.stderr
            assert not any(secret in out.read_text() + done.stdout for secret in CREDENTIALS.values())
            return done.returncode, {line["question"]: line["result"] for line in report["findings"]}

        code, seen = look(60)
        assert (code, set(seen.values())) == (0, {"seen"}), seen
        code, seen = look(0)  # nothing runs across the change: that is no pass
        assert (code, seen["no stream was cut by the change"]) == (2, "not seen"), seen
        assert operator.view()["current"]["projection"]["aliases"]["x"] == {"tier": "a"}
