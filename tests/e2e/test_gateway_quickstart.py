"""The gateway's quickstart, run as it is written, on free ports."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sndr.router.wire import boot
from tests.support.cli import ROOT, environment

PAGE = ROOT / "docs" / "gateway-quickstart.md"
BLOCK = re.compile(r"(<!-- run -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def blocks(language: str, page: Path = PAGE) -> list[tuple[bool, str]]:
    return [(bool(mark), text) for mark, kind, text in BLOCK.findall(page.read_text("utf-8")) if kind == language]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def test_every_shell_block_runs() -> None:
    assert all(is_run for is_run, _ in blocks("sh"))


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_page_works_as_written(tmp_path: Path) -> None:
    text = "\n".join(text for _, text in blocks("sh"))
    for written, port in zip(("8001", "8002", "8710"), free_ports(3), strict=True):
        text = re.sub(rf"\b{written}\b", str(port), text)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sndr").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "from sndr.cli.__main__ import console; console()" "$@"\n'
    )
    (tools / "sndr").chmod(0o755)
    env = environment(PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    env.pop("NOTIFY_SOCKET", None)
    log = tmp_path / "script.log"
    with open(log, "wb") as output:
        script = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = script.wait(150)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            script.wait(30)
    said = log.read_text("utf-8", "replace")
    assert code == 0, said
    for sign in (
        '"content":" t7"',
        "data: [DONE]",
        'outcome="completed"} 1',
        "big    yes    yes        0/8",
        "small takes no new requests; 0 requests are still running",
        "small is idle",
        "refused, exit code 3",
        "small is readmitted (identity_passed)",
        '"event":"stopped","cut":0',
    ):
        assert sign in said, (sign, said)


def test_the_pages_boot_files_are_valid() -> None:
    [text] = re.findall(r"<<'TOML'\n(.*?)\nTOML\n", PAGE.read_text("utf-8"), re.DOTALL)
    assert boot.parse(text, None).projection.aliases
    for _, example in blocks("toml", ROOT / "docs" / "boot-reference.md"):
        router = tomllib.loads(example)["router"]
        assert router.get("model_routes") or router.get("family_routes")
