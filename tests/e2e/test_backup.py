"""A backup of a gateway at work, and what becomes of it: restored elsewhere, started, reconciled."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT, environment
from tests.support.gateway import CREDENTIALS, gateway_process
from tests.support.raw import ask, boot_file, chat, connected, operator_get, request, wait_idle
from tests.support.synthetic import synthetic_thread


def sndr(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sndr.cli", "router", *arguments],
        capture_output=True, text=True, cwd=ROOT, env=environment(**CREDENTIALS), timeout=120,
    )  # fmt: skip


def rows(config: Path) -> dict[str, dict[str, Any]]:
    done = sndr("usage", "export", "--config", config, "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    return {row["id"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("live", [False, True], ids=["ledger alone", "ledger and authority"])
def test_a_backup_under_load_restores_and_needs_a_reconcile(tmp_path: Path, live: bool) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    server = f'usage_path = "{state}/usage.db"'
    volatile = ["--allow-volatile-filesystem"] if live else []
    if live:
        server += f'\nroute_state_path = "{state}/routes.json"'
    with synthetic_thread() as upstream:
        config = boot_file(tmp_path, upstream.base_url, server=server)
        if live:
            done = sndr("init", "--config", config, "--confirm", *volatile)
            assert done.returncode == 0, done.stderr
        copy = tmp_path / "copy"
        with gateway_process(config, *volatile) as gateway:
            url = gateway.url
            for number in range(20):
                headers = {"x-request-id": f"before-{number}"}
                assert ask(url, request(chat(), headers=headers)).status == 200
            wait_idle(url)
            stop = threading.Event()

            def traffic() -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    ask(url, request(chat(), headers={"x-request-id": f"during-{number}"}))

            busy = threading.Thread(target=traffic)
            busy.start()
            try:
                with connected(url) as raw:
                    plan = {"tokens": 5, "stall_after": 2}
                    raw.send(request(chat(stream=True, synthetic=plan), headers={"x-request-id": "running"}))
                    raw.until(b"t1")
                    done = sndr("backup", "--config", config, copy, *volatile)
                    assert done.returncode == 0, done.stderr
                    upstream.release()
                    raw.until(b"[DONE]")
            finally:
                stop.set()
                busy.join(30)
            assert stat.S_IMODE(copy.stat().st_mode) == 0o700
            assert sorted(path.name for path in copy.iterdir()) == ["routes.json", "usage.db"][0 if live else 1 :]
            again = sndr("backup", "--config", config, copy, *volatile)
            assert (again.returncode, "backup_exists" in again.stderr) == (2, True)
            wait_idle(url)
            assert gateway.stop() == 0
        # The disk is lost; the copy takes its place.
        shutil.rmtree(state)
        state.mkdir(mode=0o700)
        for path in copy.iterdir():
            shutil.copy(path, state / path.name)
            (state / path.name).chmod(0o600)
        with gateway_process(config, *volatile) as gateway:
            url = gateway.url
            assert operator_get(url, "/v1/router/status")["ledger"]["unresolved"] >= 1
            assert ask(url, request(chat(), headers={"x-request-id": "after"})).status == 200
            done = sndr("usage", "reconcile", "--confirm", "--url", url, "--auth-env", "OPERATOR_KEY")
            assert done.returncode == 0, done.stderr
            wait_idle(url)
            assert gateway.stop() == 0
        found = rows(config)
        assert {f"before-{number}" for number in range(20)} <= set(found)
        assert found["before-0"]["outcome"] == "completed"
        assert found["running"]["outcome"] == "interrupted"
        assert found["after"]["outcome"] == "completed"
        assert not [row for row in found.values() if row["outcome"] is None]


def test_nothing_to_back_up_is_said(tmp_path: Path) -> None:
    done = sndr("backup", "--config", boot_file(tmp_path, "http://127.0.0.1:1/v1"), tmp_path / "copy")
    assert (done.returncode, "backup_nothing" in done.stderr) == (2, True)
    assert not (tmp_path / "copy").exists()
