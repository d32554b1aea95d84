"""The operator guide's transcripts as a play: one gateway, three model servers, and what happens between commands.

Each line that starts with `$ ` is a command, run as written; each one that starts with `# ` is an event that `EVENTS`
knows, or a remark. What differs from run to run (ports, ids, hashes, ages) is written as the page shows it.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.cli import environment
from tests.support.gateway import CREDENTIALS, Gateway, gateway_process
from tests.support.live import CLIENT, OPERATOR, Operator, is_whole, private
from tests.support.synthetic import Synthetic, synthetic_thread

BLOCK: Final = re.compile(r"<!-- transcript -->\n```text\n(.*?)```\n", re.DOTALL)
CALLS: Final = re.compile(r"apply (\S+) --sha256 ([0-9a-f]{64})")
TOKENS: Final = 12

ENV: Final = {"SNDR_CLIENT_KEY": CREDENTIALS["CLIENT_KEY"], "SNDR_OPERATOR_KEY": CREDENTIALS["OPERATOR_KEY"]}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Play:
    """Everything that a transcript may do."""

    def __init__(self, directory: Path, boot: str, stack: ExitStack) -> None:
        self.directory = private(directory)
        self.stack = stack
        self.servers: dict[str, Synthetic] = {}
        self.ports = {"8710": str(free_port())}
        for shown, model in (("8001", "m1"), ("8002", "n1"), ("8003", "m2")):
            self.servers[shown] = stack.enter_context(synthetic_thread(model=model))
            self.ports[shown] = self.servers[shown].address.rpartition(":")[2]
        self.config = self.directory / "router.toml"
        self.config.write_text(self.real(boot))
        self.gateway: Gateway | None = None
        self.life: ExitStack = stack.enter_context(ExitStack())
        self.streams: list[threading.Thread] = []
        self.texts: list[str] = []
        self.metrics = ""
        self.named: tuple[str, str] = ("PREVIEW_ID", "SHA256")
        self.hashes: dict[str, str] = {}
        tools = self.directory / "bin"
        tools.mkdir()
        shim = f'#!/bin/sh\nexec "{sys.executable}" -c "from sndr.cli.__main__ import console; console()" "$@"\n'
        (tools / "sndr").write_text(shim)
        (tools / "sndr").chmod(0o755)
        self.env = environment(**ENV, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")

    def real(self, text: str) -> str:
        for shown, port in self.ports.items():
            text = re.sub(rf"\b{shown}\b", port, text)
        return text.replace("/var/lib/sndr", os.fspath(self.directory))

    def shown(self, text: str) -> str:
        """What a run said, as the page shows it."""
        for shown, port in self.ports.items():
            text = re.sub(rf"\b{port}\b", shown, text)
        if found := CALLS.findall(text):
            self.named = found[-1]
        text = CALLS.sub("apply PREVIEW_ID --sha256 SHA256", text)
        text = re.sub(r"authority [0-9a-f]{8}", "authority 6f0c2d1e", text)
        text = re.sub(r"\((?=[0-9a-f]{12}\))([0-9a-f]{12})\)", lambda match: f"({self._letter(match[1])})", text)
        text = re.sub(r"sha256 [0-9a-f]{64}", "sha256 " + "a" * 64, text)
        text = re.sub(r"\d+ s ago", "1 s ago", text)
        text = re.sub(r"for \d+ (s|min)( \d+ s)?$", "for 12 s", text, flags=re.MULTILINE)
        text = re.sub(r"^configuration [0-9a-f]{12}", "configuration 5d41402abc4b", text, flags=re.MULTILINE)
        text = re.sub(r"\d+ ms behind", "0 ms behind", text)
        return text.replace(os.fspath(self.directory), "/var/lib/sndr")

    def _letter(self, digest: str) -> str:
        """The first hash seen is a…a, the second b…b, and so on: equal ones are seen to be equal."""
        return self.hashes.setdefault(digest, chr(ord("a") + len(self.hashes)) * 12)

    # -- events

    def start(self) -> None:
        self.life.close()
        process = gateway_process(self.config, "--allow-volatile-filesystem", **ENV)
        self.gateway = self.life.enter_context(process)
        assert self.gateway.url
        with Operator(self.gateway) as operator:
            _wait(lambda: all(tier["ready"] for tier in operator.status()["tiers"]))

    def kill(self) -> None:
        assert self.gateway is not None
        self.gateway.kill()
        self.start()
        self.scrape()  # attention is a metric now

    def scrape(self) -> None:
        """Add what `/metrics` says to what it said before."""
        assert self.gateway is not None
        self.metrics += httpx.get(f"{self.gateway.url}/metrics", headers=OPERATOR, trust_env=False).text

    def stream(self, alias: str, shown: str) -> None:
        """A client whose stream stands still until it is let go on."""
        text = {"tokens": TOKENS, "stall_after": 3}
        body = {"model": alias, "stream": True, "messages": [], "synthetic": text}
        url = self.real("http://127.0.0.1:8710/v1/chat/completions")

        def read() -> None:
            self.texts.append(httpx.post(url, json=body, headers=CLIENT, timeout=60, trust_env=False).text)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self.streams.append(thread)
        self.servers[shown].wait(in_flight=1)

    def end_streams(self) -> None:
        for server in self.servers.values():
            server.release()
        for thread in self.streams:
            thread.join(30)
            assert not thread.is_alive()
        self.streams.clear()
        assert all(is_whole(text, TOKENS) for text in self.texts), self.texts

    def end_streams_later(self) -> None:
        """Once a hold is in force and was seen for a while."""
        assert self.gateway is not None
        gateway = self.gateway

        def end() -> None:
            with Operator(gateway) as operator:
                _wait(lambda: operator.view()["held_tiers"])
            threading.Event().wait(2.5)
            self.end_streams()

        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        self.stack.callback(thread.join, 30)

    def serve_otherwise(self, shown: str, *checks: str) -> None:
        """Another model from now on, after the named ones have been shown once each."""
        self.servers[shown].set(next_models=[[name] for name in checks], models=["m2-draft"])

    # -- commands

    def run(self, command: str) -> str:
        """What a command says on both streams, and its exit code unless that is 0."""
        words = self.real(command).replace("PREVIEW_ID", self.named[0]).replace("SHA256", self.named[1])
        if shlex.split(words)[:3] == ["sndr", "router", "init"]:
            words += " --allow-volatile-filesystem"  # the test's directory may be in memory
        done = subprocess.run(
            ["bash", "-c", words], cwd=self.directory, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, check=False,
        )  # fmt: skip
        said = self.shown(done.stdout)
        return said if done.returncode == 0 else f"{said}[exit {done.returncode}]\n"

    def perform(self, script: str) -> str:
        """A transcript with what really happened."""
        lines = []
        for line in script.splitlines():
            if line.startswith("# "):
                lines.append(line + "\n")
                EVENTS.get(line[2:], _nothing)(self)
            elif line.startswith("$ "):
                lines.append(line + "\n")
                lines.append(self.run(line[2:]))
            elif not line and lines and lines[-1] != "\n":
                continue
        return "".join(lines)


def _nothing(_: Play) -> None:
    return


def _wait(is_so: Callable[[], Any]) -> None:
    for _ in range(600):
        if is_so():
            return
        threading.Event().wait(0.05)
    raise AssertionError


EVENTS: Mapping[str, Callable[[Play], None]] = {
    "sndr router serve --config router.toml": Play.start,
    "a client streams from llm.primary": lambda play: play.stream("llm.primary", "8001"),
    "a client streams from the new llm.primary": lambda play: play.stream("llm.primary", "8003"),
    "its stream ends": Play.end_streams,
    "its stream ends while the next command waits": Play.end_streams_later,
    "the server on port 8003 passes the checks before the commit, and then serves m2-draft": (
        lambda play: play.serve_otherwise("8003", "m2", "m2")
    ),
    "the server on port 8003 is corrected": lambda play: play.servers["8003"].set(models=None),
    "the gateway is killed with SIGKILL, and started again": Play.kill,
}


@contextmanager
def playing(directory: Path, boot: str) -> Iterator[Play]:
    with ExitStack() as stack:
        yield Play(directory, boot, stack)
