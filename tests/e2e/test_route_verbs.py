"""The verbs of live routes against a real gateway: bytes, exit codes, and what people see."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.cli import MODULE, environment, refused, run_cli
from tests.support.gateway import CREDENTIALS, Gateway
from tests.support.live import Live, Operator, User, is_whole, live

ENV = environment(**CREDENTIALS)


class Stage:
    """One gateway whose tests leave the routes as they found them, or say that they do not."""

    def __init__(self, plane: Live, gateway: Gateway, operator: Operator, user: User) -> None:
        self.plane, self.gateway, self.operator, self.user = plane, gateway, operator, user
        self.url = gateway.url

    def words(self, *words: str) -> list[str]:
        return ["router", *words, "--url", self.url, "--auth-env", "OPERATOR_KEY"]

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run_cli(*self.words(*words), env=ENV, stdin=stdin)

    def preview(self, *words: str, stdin: str = "") -> list[str]:
        """The words that apply what `words` preview."""
        done = self.run(*words, "--json", stdin=stdin)
        assert done.returncode == 0, done
        document = json.loads(done.stdout)
        return [document["preview_id"], "--sha256", document["preview_sha256"]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with live(tmp_path_factory.mktemp("verbs"), spare=["m2"]) as plane, plane.serving() as (gateway, operator, user):
        yield Stage(plane, gateway, operator, user)


def _without_times(text: str) -> str:
    """Probes go on between two answers."""
    return re.sub(r'"checked_at":"[^"]*"', '"checked_at":""', text)


@pytest.mark.req("R92", "R95")
def test_scripts_get_the_apis_bytes_and_a_repeated_apply_the_receipt(stage: Stage) -> None:
    raw = _without_times(stage.operator.http.get("/v1/admin/routes").text)
    assert _without_times(stage.run("hold", "list", "--json").stdout) == raw
    assert _without_times(stage.run("recover", "--json").stdout) == raw
    named = stage.preview("preview", "alias", "x=b", "y=a")
    done = stage.run("apply", *named, "--confirm", "--json")
    receipt = json.loads(done.stdout)
    assert (done.returncode, receipt["state"], receipt["replayed"]) == (0, "completed", False)
    again = json.loads(stage.run("apply", *named, "--confirm", "--json").stdout)
    assert again["replayed"]
    assert {**again, "replayed": False} == receipt
    assert "(applied before; nothing done now)" in stage.run("apply", *named, "--confirm").stdout
    back = stage.preview("rollback")
    done = stage.run("rollback", "--preview", *back, "--confirm")
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "rollback completed")
    assert stage.user.ask("x").json()["model"] == "m1"


def test_refusals_exit_with_3_and_change_nothing(stage: Stage) -> None:
    before = stage.operator.view()["write_seq"]
    named = stage.preview("preview", "alias", "x=b")
    assert "confirmation_required" in refused(stage.run("apply", *named), 3)[0]
    assert "preview_mismatch" in refused(stage.run("apply", named[0], "--sha256", "0" * 64, "--confirm"), 3)[0]
    assert "no_effective_change" in refused(stage.run("swap", "x=a", "--yes"), 3)[0]
    assert "unknown_tier" in refused(stage.run("preview", "alias", "x=nowhere"), 3)[0]
    assert "restart_only" in refused(stage.run("preview", "replace", "a", "--set", "auth_env=X"), 3)[0]
    assert "must be a whole number" in refused(stage.run("preview", "replace", "a", "--set", "max_concurrency=x"), 2)[0]
    said = refused(stage.run("preview", "replace", "a", "--set", "context_limit=upstream"), 3)[0]
    assert "replacement_unsupported: /tiers/a/context_limit: a tier whose context limit is read" in said
    for verb in ("cancel", "resume", "drain-wait"):
        assert "no_transaction" in refused(stage.run(verb), 3)[0]
    assert stage.operator.view()["write_seq"] == before


def test_words_that_mean_nothing_exit_with_2_and_ask_nobody(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    for words in (
        ["swap"],
        ["swap", "x"],
        ["swap", "x=b"],
        ["replace", "a", "--set", "model=m2"],
        ["replace", "a"],
        ["preview", "replace"],
        ["preview", "replace", "--change", str(tmp_path / "none.json")],
        ["preview", "replace", "--change", str(tmp_path / "list.json")],
        ["apply", "id"],
        ["cancel", "--confirm"],
        ["cancel", "--preview", "id"],
        ["resume", "--preview", "id", "--sha256", "s", "--evidence", str(tmp_path / "list.json")],
        ["recover", "--action", "hope"],
        ["apply", "id", "--sha256", "s", "--drain-timeout", "0"],
    ):
        assert ": usage: " in refused(stage.run(*words), 2)[0], words


def test_a_change_from_a_file_or_standard_input(stage: Stage, tmp_path: Path) -> None:
    change = {"a": {"max_concurrency": 3}, "b": {"max_concurrency": 4}}
    (tmp_path / "change.json").write_text(json.dumps(change))
    for path in (str(tmp_path / "change.json"), "-"):
        done = stage.run("preview", "replace", "--change", path, "--json", stdin=json.dumps(change))
        assert json.loads(done.stdout)["scope"] == ["a", "b"]


@pytest.mark.req("R24")
def test_a_target_that_is_not_ready_exits_with_1(stage: Stage) -> None:
    server = stage.plane.servers["b"]
    server.set(health=503)
    try:
        done = stage.run("swap", "x=b", "--yes")
        assert done.returncode == 1
        assert "  FAIL  target_ready b: target_not_ready (health_status)\n" in done.stdout
        assert done.stderr.startswith("sndr router: target_not_ready: not applicable")
        preview = stage.run("preview", "alias", "x=b", "--json")
        assert (preview.returncode, json.loads(preview.stdout)["applicable"]) == (1, False)
    finally:
        server.set(health=200)


def _talk(stage: Stage, words: list[str], answer: bytes) -> tuple[int, str]:
    """Run a verb on a terminal, answer its question, and return its exit code and what the terminal showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*MODULE, *stage.words(*words)], stdin=theirs, stdout=theirs, stderr=theirs, env=ENV, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    try:
        while b"[y/N]" not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, answer)
        try:
            while more := os.read(ours, 4096):
                seen += more
        except OSError:  # the terminal's other side is closed
            pass
        return process.wait(30), seen.decode().replace("\r\n", "\n")
    finally:
        os.close(ours)
        process.kill()
        process.wait(30)


def test_a_person_is_shown_the_change_and_asked(stage: Stage) -> None:
    code, seen = _talk(stage, ["swap", "y=a"], b"n\n")
    assert code == 1
    assert "  /aliases/y/tier: b -> a\n" in seen
    assert "not confirmed: nothing was changed" in seen
    assert stage.user.ask("y").json()["model"] == "n1"
    code, seen = _talk(stage, ["swap", "y=a"], b"y\n")
    assert (code, "alias_update completed" in seen) == (0, True)
    assert stage.user.ask("y").json()["model"] == "m1"
    assert stage.run("swap", "y=b", "--yes").returncode == 0


@pytest.mark.req("R49")
def test_ctrl_c_ends_the_command_and_not_the_change(stage: Stage) -> None:
    target = stage.plane.servers["m2"].base_url
    with stage.user.stream("x", tokens=6, stall_after=3) as stream:
        words = stage.words("replace", "a", "--set", f"base_url={target}", "--set", "model=m2", "--yes")
        process = subprocess.Popen(
            [*MODULE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV
        )
        assert process.stdout is not None
        while "1 stream left" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == -signal.SIGINT
        assert said.splitlines()[0] == (
            "sndr router: interrupted: the change goes on on the gateway: held, 1 stream left in a"
        )
        options = f"--url {stage.url} --auth-env OPERATOR_KEY"
        assert said.splitlines()[1:] == [f"next: sndr router status {options}", f"next: sndr router cancel {options}"]
        stage.plane.servers["a"].release()
        assert is_whole(stream.read().decode(), 6)
    assert stage.run("drain-wait", "--timeout", "20").returncode in (0, 3)  # 3: the change is over already
    deadline = time.monotonic() + 30
    while stage.operator.view()["state"] != "idle":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert stage.user.ask("x").json()["model"] == "m2"
    status = stage.run("status").stdout
    assert "last change: tier_replacement completed" in status
    assert "tiers a, 1 stream finished, 0 cut" in status
    assert stage.run("rollback", "--preview", *stage.preview("rollback"), "--confirm").returncode == 0


@pytest.mark.req("R104", "R107")
def test_a_managed_change_resumes_with_evidence_from_a_file(stage: Stage, tmp_path: Path) -> None:
    named = stage.preview("preview", "replace", "b", "--set", "max_concurrency=5", "--prepare", "--managed")
    assert stage.run("apply", *named, "--confirm").returncode == 0
    assert "evidence_required" in refused(stage.run("resume"), 3)[0]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    container = {
        "container_id": "ab" * 32, "image_id": f"sha256:{'cd' * 32}", "started_at": now, "observed_at": now,
        "observer": "somebody", "served_model": "n1",
    }  # fmt: skip
    evidence = {"campaign": {"id": "night-1", "sha256": "ef" * 32}, "containers": {"b": container}}
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps(evidence))
    named = stage.preview("resume", "--evidence", str(path))
    done = stage.run("resume", "--preview", *named, "--confirm", "--json")
    receipt = json.loads(done.stdout)
    assert (done.returncode, receipt["state"], receipt["authorizes"]) == (0, "completed", [])
    assert receipt["evidence"]["trust"] == "operator_asserted"


@pytest.mark.req("R70")
def test_an_authority_that_was_touched_exits_with_4(tmp_path: Path) -> None:
    with live(tmp_path) as plane, plane.serving() as (gateway, operator, user):
        stage = Stage(plane, gateway, operator, user)
        assert stage.run("status", "--check").stdout == "authority file: consistent\n"
        state = plane.directory / "routes.json"
        state.write_bytes(state.read_bytes() + b" ")
        done = stage.run("status", "--check")
        assert (done.returncode, done.stdout) == (4, "authority file: changed_externally\n")
        done = stage.run("swap", "x=b", "--yes")
        assert done.returncode == 4
        assert "authority_" in done.stderr
        assert "Traceback" not in done.stderr
        assert user.ask("x").json()["model"] == "m1"


@pytest.mark.req("R49")
def test_a_gateway_that_dies_under_a_change_exits_with_5(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane, plane.serving() as (gateway, operator, user):
        stage = Stage(plane, gateway, operator, user)
        target = plane.servers["m2"].base_url
        with user.stream("x", tokens=6, stall_after=3):
            words = stage.words("replace", "a", "--set", f"base_url={target}", "--set", "model=m2", "--yes")
            process = subprocess.Popen(
                [*MODULE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV
            )
            assert process.stdout is not None
            while "1 stream left" not in process.stdout.readline():
                assert process.poll() is None
            gateway.process.kill()
            _, said = process.communicate(timeout=60)
        assert process.returncode == 5
        lines = said.splitlines()
        assert "the outcome is unknown: run sndr router status" in lines[0]
        assert lines[1].startswith("next: sndr router status ")
        assert lines[2].startswith("next: sndr router apply ")


def _strace_works() -> bool:
    strace = shutil.which("strace")
    if strace is None:
        return False
    probe = [strace, "-qq", "-o", os.devnull, "-e", "inject=fsync:error=EIO", "true"]
    return subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0


@contextmanager
def second_fsync_fails(pid: int) -> Iterator[None]:
    """From outside of the process: the directory's fsync of its next authority write answers EIO, once."""
    inject = ["-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=2"]
    process = subprocess.Popen(["strace", "-f", "-o", os.devnull, *inject, "-p", str(pid)], stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        assert b"attached" in process.stderr.readline()
        yield
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()


@pytest.mark.req("R83", "R89")
@pytest.mark.skipif(not _strace_works(), reason="needs strace that may trace")
def test_a_write_of_unknown_outcome_exits_with_4_and_is_asserted_again(tmp_path: Path) -> None:
    with live(tmp_path) as plane, plane.serving() as (gateway, operator, user):
        stage = Stage(plane, gateway, operator, user)
        with second_fsync_fails(gateway.process.pid):
            done = stage.run("swap", "x=b", "--yes")
        assert done.returncode == 4
        assert done.stderr.startswith("sndr router: authority_write_uncertain: ")
        [command] = re.findall(r"^next: sndr router (recover --action reassert) ", done.stderr, re.MULTILINE)
        assert user.ask("x").json()["model"] == "m1"
        check = stage.run("status", "--check")
        assert (check.returncode, check.stdout) == (4, "authority file: uncertain\n")
        assert "recovery_required" in refused(stage.run("preview", "alias", "x=b"), 3)[0]
        done = stage.run("recover", "--preview", *stage.preview(*command.split()), "--confirm")
        assert (done.returncode, done.stdout.splitlines()[0].split(":")[0]) == (0, "alias_update completed")
        assert user.ask("x").json()["model"] == "n1"
        assert stage.run("status", "--check").returncode == 0
