"""A gateway as a process of its own, over synthetic servers; its log lines are the facts that tests wait on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cli import ROOT, environment
from tests.support.leaks import leaks
from tests.support.raw import KEY, OPERATOR, operator_get, wait_idle

CREDENTIALS = {"CLIENT_KEY": KEY, "OPERATOR_KEY": OPERATOR}


class Gateway:
    """A running `sndr router serve`."""

    def __init__(self, config: Path, process: subprocess.Popen[bytes]) -> None:
        self.config = config
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            text = raw.decode("utf-8", "replace")
            with self._more:
                self.raw.append(text)
                if text.startswith("{") and text.endswith("\n"):  # a kill may tear the last one
                    self.lines.append(json.loads(text))
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def wait_event(self, matches: Callable[[dict[str, Any]], bool], timeout_s: float = 30) -> dict[str, Any]:
        """The first log line, past or future, that matches."""
        with self._more:
            found = self._more.wait_for(
                lambda: next((line for line in self.lines if matches(line)), None) or self.process.poll() is not None,
                timeout_s,
            )
            assert isinstance(found, dict), "".join(self.raw)
            return found

    @property
    def url(self) -> str:
        """Where it listens, as bound."""
        return f"http://{self.wait_event(lambda line: line['event'] == 'listening')['addresses'][0]}"

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL where it still runs, and no descriptor left behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def gateway_process(config: Path, *arguments: str, shell: str = "", **environ: str) -> Iterator[Gateway]:
    """Serve `config`; the process is gone at the end. `shell` is what a shell does first in that process."""
    env = environment(**CREDENTIALS, **environ)
    for name in ("NOTIFY_SOCKET", "COVERAGE_PROCESS_START"):
        env.pop(name, None)
    command = [sys.executable, "-m", "sndr.cli", "router", "serve", "--config", os.fspath(config), *arguments]
    if shell:
        command = ["/bin/sh", "-ec", f'{shell}; exec "$@"', "sh", *command]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT, env=env)
    gateway = Gateway(config, process)
    try:
        yield gateway
    finally:
        gateway.kill()


@contextmanager
def unbroken_gateway(
    boot: str, directory: Path, *, environ: Mapping[str, str] | None = None, secrets: Iterable[str] = ()
) -> Iterator[Gateway]:
    """Serve a boot file that tests share: at the end it is idle, nothing has failed inside, and it stops cleanly.

    No key, and nothing of `secrets`, is in its log or in a file that it leaves in the directory.
    """
    path = directory / "gateway.toml"
    path.write_text(boot)
    with gateway_process(path, **(environ or {})) as process:
        yield process
        wait_idle(process.url)
        assert operator_get(process.url, "/v1/router/status")["state"] == "serving"
        assert not [line for line in process.lines if line["event"] in ("internal_error", "management_failure")]
        assert len(process.raw) == len(process.lines), [text for text in process.raw if not text.startswith("{")]
        assert process.stop() == 0
        needles = [*CREDENTIALS.values(), *secrets]
        assert not leaks(needles, directory=directory, texts={"log": "".join(process.raw)})
