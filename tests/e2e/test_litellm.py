"""LiteLLM's client library against real processes, where it is installed.

It is large and pins much, so it is not among the development dependencies. `SNDR_LITELLM_PYTHON` names an interpreter
that has it; without the variable this interpreter is asked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import CREDENTIALS, Gateway
from tests.support.sdk import numbered

SCRIPT = Path(__file__).parents[1] / "support" / "litellm_calls.py"
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
serves = ["chat", "responses", "messages", "embeddings"]

[[router.audio_routes]]
kind = "stt"
model = "whisper"
served_model = "m1"
base_url = "{synthetic}"

[router.model_routes]
all = "primary"
"""
TEXT = numbered(8)
EXPECTED: dict[str, Any] = {
    "chat": [TEXT, 8],
    "stream": TEXT,
    "messages": [TEXT, 8],
    "messages_stream": TEXT,
    "responses": TEXT,
    "embedding": 2,
    "transcription": TEXT,
    "unknown_model": 404,
    "wrong_key": 401,
}


def test_calls(gateway: Gateway) -> None:
    python = os.environ.get("SNDR_LITELLM_PYTHON")
    if python is None:
        if importlib.util.find_spec("litellm") is None:
            pytest.skip("litellm is not installed; SNDR_LITELLM_PYTHON may name an interpreter that has it")
        python = sys.executable
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, str(SCRIPT), gateway.url],
        env={**env, **CREDENTIALS, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == EXPECTED
