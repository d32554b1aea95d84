"""The recipes of the clients page run as they are written; the table of endpoints is the gateway's own."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sndr.router.core.usage import Kind
from sndr.router.gateway.endpoints import ROUTED
from sndr.router.gateway.relay import ANY
from tests.support.cli import ROOT
from tests.support.gateway import gateway_process
from tests.support.raw import ask, request
from tests.support.synthetic import synthetic_process

PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
BEHAVIOUR = (ROOT / "docs" / "behaviour.md").read_text("utf-8")
KEY = "recipe-key-0123456789"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page's boot file, its servers replaced by one that is there."""
    with synthetic_process() as server:
        boot = re.sub(r'base_url = "[^"]*"', f'base_url = "{server.base_url}"', blocks("toml")[0])
        boot = re.sub(r"(?m)^served_model = .*\n", "", boot)
        boot = re.sub(r'(?m)^(model = )("[^"]*")$', r"\1\2\nserved_model = 'm1'", boot)
        boot = boot.replace("model = \"Qwen/Qwen3-32B\"\nserved_model = 'm1'", 'model = "m1"')
        path: Path = tmp_path_factory.mktemp("clients") / "gateway.toml"
        path.write_text(boot.replace("127.0.0.1:8710", "127.0.0.1:0"))
        with gateway_process(path, SNDR_KEY=KEY) as gateway:
            yield gateway.url
            assert gateway.stop() == 0


PYTHON = [block for block in blocks("python") if "import litellm" not in block]


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_recipes(url: str, number: int, tmp_path: Path) -> None:
    code = PYTHON[number].replace("http://127.0.0.1:8710", url)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "SNDR_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert " t0 t1" in done.stdout


def test_shell_recipes(url: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (tmp_path / "hello.mp3").write_bytes(b"\xff\xfb" * 900_000)
    [block] = [block for block in blocks("bash") if "curl" in block]
    done = subprocess.run(
        ["bash", "-euc", block.replace("http://127.0.0.1:8710", url).replace("\ncurl", "; echo\ncurl")],
        cwd=tmp_path,
        env={**os.environ, "SNDR_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reranked, heard, tokens = (json.loads(line) for line in done.stdout.splitlines())
    assert len(reranked["results"]) == 2
    assert heard["text"].startswith(" t0")
    assert tokens["count"] > 0


def test_files_of_other_programs_are_well_formed_and_name_what_there_is(url: str) -> None:
    boot, codex = (tomllib.loads(block) for block in blocks("toml"))
    aliases = {"llm.primary", *(name for name in boot["router"]["model_routes"] if name != "llm")}
    special = {entry["model"] for kind in ("purpose_models", "audio_routes") for entry in boot["router"][kind]}
    assert codex["model"] in aliases
    assert codex["model_providers"]["sndr"]["wire_api"] == "responses"
    proxy, editor = (yaml.safe_load(block) for block in blocks("yaml"))
    assert proxy["model_list"][0]["model_name"] in aliases
    assert {model["model"] for model in editor["models"]} <= aliases | special
    for block in blocks("bash"):
        for name, value in re.findall(r"(?m)^(?:export )?([A-Z_]*MODEL)=(\S+)$", block):
            assert value in aliases | special, name
    listed = ask(url, request(method="GET", path="/v1/models", key=KEY)).json
    assert {model["id"] for model in listed["data"]} == aliases


def test_the_table_of_endpoints_is_complete() -> None:
    section = BEHAVIOUR.split("\n## Endpoints\n")[1].split("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `/")]
    found = {cells[0].strip().strip("`"): [cell.strip() for cell in cells[1:]] for cells in table}
    assert set(found) == set(ROUTED)
    for path, endpoint in ROUTED.items():
        serves, purpose, _, _, ledger = found[path]
        assert serves == ("anything" if endpoint.serves == ANY else f"`{endpoint.serves}`" if endpoint.aliases else "")
        assert purpose == ("" if endpoint.purpose == Kind.CHAT.value else f"`{endpoint.purpose}`")
        kinds = [Kind.CHAT.value] if endpoint.aliases else []
        kinds += [endpoint.purpose] if endpoint.purpose != Kind.CHAT.value else []
        assert ledger == f"`{endpoint.name}`, {' or '.join(f'`{kind}`' for kind in kinds)}"


def test_codes_of_answers_are_documented_with_their_status() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8").split("\n## Codes of the gateway's answers\n")[1]
    page = page.split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]
    documented = {row[0].strip("`"): {int(status) for status in row[1].split(", ")} for row in rows}
    raised: dict[str, set[int]] = {}
    constants: set[str] = set()
    for file in [*(ROOT / "sndr/router/gateway").glob("*.py"), ROOT / "sndr/router/wire/openai_api.py",
                 ROOT / "sndr/router/wire/multipart.py"]:  # fmt: skip
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                constants.add(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refused":
                status, code = node.args[:2]
                if isinstance(status, ast.Constant) and isinstance(code, ast.Constant):
                    raised.setdefault(code.value, set()).add(status.value)
    assert len(raised) > 15
    for code, statuses in raised.items():
        assert statuses <= documented[code], code
    assert set(documented) <= constants
