"""The authority runs where nothing but Python is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys

BLOCKED = {names}


class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{{name}} is a third party")
        return None


sys.meta_path.insert(0, Block())
sys.path.insert(0, {root!r})
import importlib
import pkgutil

import sndr.router.core, sndr.router.store

for package in (sndr.router.core, sndr.router.store):
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{{package.__name__}}.{{found.name}}")
for name in ("sndr.router.control.coordinator", "sndr.router.wire.record", "sndr.durable", "sndr.errors"):
    importlib.import_module(name)

from sndr.router.core import projection
from sndr.router.store import authority

boot = projection.parse(
    {{"aliases": {{"a": {{"tier": "t"}}}}, "tiers": {{"t": {{"base_url": "http://127.0.0.1:1/v1"}}}}}}, fill=True
)
path = {state!r} + "/routes.json"
authority.create(path, boot, allow_volatile=True)
opened = authority.open_authority(path, boot, allow_volatile=True)
assert opened.record.write_seq == 2
opened.close()
loaded = sorted(name for name in sys.modules if name.split(".")[0] in BLOCKED)
assert not loaded, loaded
print("ok", len([name for name in sys.modules if name.startswith("sndr.")]))
"""
THIRD_PARTIES = (
    "click filelock httptools httpx jsonschema msgspec prometheus_client "
    "pydantic pydantic_core yaml uvloop anyio hypothesis pytest"
)


@pytest.mark.req("R5")
def test_core_store_coordinator_and_record_need_no_third_party(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    program = PROGRAM.format(names=set(THIRD_PARTIES.split()), root=str(ROOT), state=str(state))
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok ")


def test_the_blocker_blocks() -> None:
    head = PROGRAM.split("import importlib")[0].format(names={"click"}, root=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{head}\nimport click"], capture_output=True, text=True, check=False
    )
    assert "is a third party" in done.stderr
