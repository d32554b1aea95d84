"""What curl shows of a gateway in front of a synthetic server, against what it showed when it was recorded.

    python -m tests.support.curl_transcripts              compares; exit 1 and a diff where something differs
    python -m tests.support.curl_transcripts --rewrite    records what happens now into every transcript

A transcript (tests/scenarios/curl/*.txt) is a list of commands: lines of comment, one line with the command, `----`,
what it wrote, and its exit code where that is not 0. `$URL`, `$KEY` and `$OPERATOR` stand for the gateway's address and
the credentials. Numbers that are counted and times are written as `<n>` and `<time>`, request ids of ours as `<id>`.
"""

from __future__ import annotations

import difflib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.gateway import gateway_process
from tests.support.raw import KEY, OPERATOR, wait_idle
from tests.support.synthetic import synthetic_process

FOLDER: Final = Path(__file__).parents[1] / "scenarios" / "curl"
BOOT: Final = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"
max_body_bytes = 10000

[router]
first_byte_timeout_s = 3
idle_timeout_s = 3

[[router.tiers]]
id = "primary"
base_url = "{url}"
model = "m1"
health_path = "/health"
context_limit = 4096
max_output_tokens = 6

[[router.tiers]]
id = "dead"
base_url = "http://127.0.0.1:1/v1"
model = "m1"
serves = ["chat"]
tool_support = false

[router.model_routes]
"llm.primary" = "primary"
dead = "dead"
"""
NORMAL: Final = (
    (re.compile(r"(?m)^(x-request-id|request-id): [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$"), r"\1: <id>"),
    (re.compile(r"\b(chatcmpl|cmpl)-\d+"), r"\1-<n>"),
    (re.compile(r'"created":\d+'), '"created":<n>'),
    (re.compile(r'"(started_at|ended_at|checked_at|ready_checked_at)":"[^"]*"'), r'"\1":"<time>"'),
    (re.compile(r'"(queue_ms|first_byte_ms|total_ms|uptime_s|lag_ms|generation)":\d+'), r'"\1":<n>'),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<n>"),
    (re.compile(r"(?m)^content-length: \d+$"), "content-length: <n>"),
    (re.compile(r'"request_bytes":\d+,"response_bytes":\d+'), '"request_bytes":<n>,"response_bytes":<n>'),
)


def run(command: str, url: str) -> str:
    """What a command writes, with what differs from run to run taken out."""
    words = [
        word.replace("$URL", url).replace("$KEY", KEY).replace("$OPERATOR", OPERATOR) for word in shlex.split(command)
    ]
    assert words[0] == "curl"
    done = subprocess.run([*words, "--max-time", "20"], capture_output=True, timeout=30, check=False)
    text = done.stdout.decode().replace("\r\n", "\n")
    if done.returncode:
        text += f"{'' if text.endswith(chr(10)) or not text else chr(10)}exit code {done.returncode}\n"
    for pattern, replacement in NORMAL:
        text = pattern.sub(replacement, text)
    return text


def play(path: Path, url: str) -> str:
    """A transcript as it is now."""
    out: list[str] = []
    lines = iter(path.read_text().split("\n"))
    for line in lines:
        if line == "----":
            for old in lines:
                if old == "====":
                    break
            continue
        out.append(line)
        if line.startswith("curl "):
            text = run(line, url)
            out += ["----", *text.removesuffix("\n").split("\n"), "===="]
    return "\n".join(out)


@contextmanager
def gateway_url() -> Iterator[str]:
    """A gateway for one transcript."""
    with tempfile.TemporaryDirectory() as name, synthetic_process() as upstream:
        config = Path(name) / "gateway.toml"
        config.write_text(BOOT.format(url=upstream.base_url))
        with gateway_process(config) as gateway:
            wait_idle(gateway.url)
            yield gateway.url
            assert gateway.stop() == 0


def transcripts() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def main(arguments: list[str]) -> int:
    differs = False
    for path in transcripts():
        with gateway_url() as url:
            now = play(path, url)
        before = path.read_text()
        if now == before:
            continue
        differs = True
        if "--rewrite" in arguments:
            path.write_text(now)
        else:
            sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), now.splitlines(True), path.name, "now"))
    return 1 if differs and "--rewrite" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
