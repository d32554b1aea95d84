"""The official JavaScript clients of both dialects against real processes.

Needs `node` and `npm`; the clients are installed into a temporary folder. Without them the tests are skipped, unless
`SNDR_REQUIRE_NODE=1` says that they must be there (the gate does). `SNDR_NODE_MODULES` names a folder that has them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import CREDENTIALS, Gateway
from tests.support.raw import operator_get, wait_idle
from tests.support.sdk import numbered
from tests.support.synthetic import Synthetic

SCRIPT = Path(__file__).parents[1] / "support" / "node_clients.mjs"
PACKAGES = ("openai@>=6", "@anthropic-ai/sdk@>=0.60")
BOOT = """
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
usage_path = "usage.sqlite"

[[router.tiers]]
id = "primary"
base_url = "{synthetic}"
model = "m1"
serves = ["chat", "completions", "responses", "messages", "embeddings"]

[[router.audio_routes]]
kind = "stt"
model = "whisper"
served_model = "m1"
base_url = "{synthetic}"

[[router.audio_routes]]
kind = "tts"
model = "voice"
served_model = "m1"
base_url = "{synthetic}"

[router.model_routes]
all = "primary"
"""


def unavailable(reason: str) -> None:
    if os.environ.get("SNDR_REQUIRE_NODE"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the clients in its `node_modules`, and the script beside them."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        unavailable("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(SCRIPT, folder / "clients.mjs")
    given = os.environ.get("SNDR_NODE_MODULES")
    if given:
        (folder / "node_modules").symlink_to(Path(given).resolve())
        return folder
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts", *PACKAGES]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        unavailable("npm did not install the clients in time")
    if done.returncode:
        unavailable(f"npm cannot install the clients: {done.stderr.strip().splitlines()[-1:]}")
    return folder


@pytest.fixture(scope="module")
def results(modules: Path, gateway: Gateway) -> dict[str, Any]:
    done = subprocess.run(
        ["node", "clients.mjs", gateway.url],
        cwd=modules,
        env={**os.environ, **CREDENTIALS},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


EXPECTED: dict[str, dict[str, Any]] = {
    "chat": {"text": numbered(8), "request_id": "js-chat"},
    "chat_stream": {"text": numbered(20), "completion": 20},
    "chat_leave": {},
    "chat_fails": {"text": numbered(3), "code": "upstream_reset", "kind": True},
    "tools": {"reason": "stop"},
    "responses": {"text": numbered(8), "last": "response.completed", "ordered": True},
    "embeddings": {"vectors": [[0, 0.25, -1.5], [1, 0.25, -1.5]]},
    "transcription": {"text": numbered(8)},
    "speech": {"bytes": 8 * 6},
    "models": {"ids": ["all"]},
    "error": {"name": "NotFoundError", "status": 404, "code": "model_not_found", "type": "invalid_request_error"},
    "anthropic_message": {"text": numbered(8), "reason": "end_turn", "request_id": "js-message"},
    "anthropic_stream": {"text": numbered(20), "output": 20},
    "anthropic_beta": {"reason": "end_turn"},
    "anthropic_fails": {"parts": 3, "type": "api_error", "kind": True},
    "anthropic_count": {"positive": True},
    "anthropic_models": {"ids": ["all"]},
    "anthropic_error": {"name": "NotFoundError", "status": 404, "type": "not_found_error", "id": True},
}


@pytest.mark.parametrize("call", sorted(EXPECTED))
def test_call(results: dict[str, Any], call: str) -> None:
    assert results[call] == EXPECTED[call]


def test_every_call_is_accounted_for(results: dict[str, Any], gateway: Gateway, synthetic: Synthetic) -> None:
    assert set(results) == set(EXPECTED)
    synthetic.wait(in_flight=0)
    wait_idle(gateway.url)
    outcomes = {
        name: operator_get(gateway.url, f"/v1/requests/js-{name}")["outcome"]
        for name in ("chat", "chat-stream", "leave", "fails", "tools", "responses", "embeddings", "transcription",
                     "speech", "message", "message-stream", "beta", "message-fails", "count")
    }  # fmt: skip
    failed = {"leave": "client_gone", "fails": "upstream_reset", "message-fails": "upstream_reset"}
    assert outcomes == {name: failed.get(name, "completed") for name in outcomes}
    assert synthetic.log("js-beta")[0]["headers"]["anthropic-beta"] == "context-1m-2025-08-07"
