"""The authority needs nothing but the standard library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.cli import ROOT, environment

_BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top != "sndr" and top not in sys.stdlib_module_names:
            raise ImportError(f"{name} is no part of the standard library")

sys.meta_path.insert(0, Block())
import sndr.router.control.coordinator
import sndr.router.control.previews
import sndr.router.core.exclusions
import sndr.router.core.invariants
import sndr.router.core.snapshot
import sndr.router.store.authority_writer
import sndr.router.store.ledger
import sndr.router.wire.record
"""


@pytest.mark.req("R5")
def test_coordinator_core_store_and_record_import_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCKED], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    broken = _BLOCKED + "import sndr.router.control.routes\n"
    done = subprocess.run(
        [sys.executable, "-c", broken], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert "is no part of the standard library" in done.stderr
