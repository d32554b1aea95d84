"""Would a storm notice? The product is broken on purpose in a copy of the checkout, one fault at a time:

    python -m tests.storm.mutants [FAULT ...] --seconds 60

Exit 1 if a storm found nothing wrong with a fault, 2 if the place of a fault has changed in the source.
"""

# ruff: noqa: E501 - pieces of source are as long as they are

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.cli import ROOT, environment

CUT = """\
                import gc
                from sndr.router.gateway.relay import _RELAYING, Exchange
                for one in gc.get_objects():
                    if type(one) is Exchange and one._tier_id in scope and one._state == _RELAYING:
                        {how}
                        break
"""
AT_HOLD = "                self._at_hold = self.leases(scope)\n"
CLOSE = "            case fx.CloseGate(scope=scope):\n"
PERSIST = "            case fx.Persist():\n"
REPLACE = "        outcome = self._place.replace(data)\n"
WRITE = "            self._connection.write(passed, chunk if passed is data else None)\n"
HEARD = '        self._first_byte_at = gateway.time()\n        self._body = b""\n'
RESOLVED = "        return snapshot, tier_id, snapshot.runtimes[tier_id]\n"
SWAP = "        before, self.snapshot = self.snapshot, snapshot\n"
ENDED = "        gateway.exchanges.discard(self)\n        lease.delivered()\n"
OVER = "        if start is not None:  # else its start failed: there is no row to end\n"

COORDINATOR = "control/coordinator.py"
ADMISSION = "core/admission.py"
RELAY = "gateway/relay.py"
LEDGER = "store/ledger.py"
AUTHORITY = "store/authority.py"


@dataclass(frozen=True)
class Edit:
    """In a file below `sndr/router`, `old` is there once and becomes `new`."""

    file: str
    old: str
    new: str


FAULTS: dict[str, tuple[Edit, ...]] = {
    "a hold cuts a stream": (Edit(COORDINATOR, AT_HOLD, AT_HOLD + CUT.format(how="one.cut()")),),
    "a hold cuts a stream and blames its server": (
        Edit(COORDINATOR, AT_HOLD, AT_HOLD + CUT.format(
            how="one._cancel_upstream(); one._break_off('upstream_reset', 502, 'upstream_reset', 'it broke off')"
        )),
    ),
    "a replaced server answers under the new revision": (
        Edit(ADMISSION, "        if self.retired:\n            return Refusal.RETIRED\n", ""),
        Edit("gateway/published.py", SWAP, SWAP + "        global OLD\n        OLD = before\n"),
        Edit("gateway/endpoints.py", RESOLVED,
             "        from random import random\n        from sndr.router.gateway import published\n"
             "        old = getattr(published, 'OLD', None)\n"
             "        if old is not None and random() < 0.05 and not snapshot.runtimes[tier_id].gate.held:\n"
             "            old.runtimes[tier_id].generation = snapshot.runtimes[tier_id].generation\n"
             "            return snapshot, tier_id, old.runtimes[tier_id]\n" + RESOLVED),
    ),
    "an acknowledged change is written later": (
        Edit(AUTHORITY, REPLACE,
             "        import threading, time\n        from sndr.durable import Done\n"
             "        if getattr(self, '_late', None) is not None:\n            self._late.join()\n"
             "        self._late = threading.Thread(target=lambda: (time.sleep(0.3), self._place.replace(data)), daemon=True)\n"
             "        self._late.start()\n        outcome = Done(self._candidates[-1][1])\n"),
        Edit(AUTHORITY, "        return Condition.WRITABLE if identity in self._candidates else Condition.CHANGED\n",
             "        return Condition.WRITABLE\n"),
    ),
    "a revision is published before its commit": (
        Edit(COORDINATOR, PERSIST, PERSIST +
             "                if effect.record.current.route_revision > self.machine.published.route_revision:\n"
             "                    self._publisher.publish(effect.record.current, effect.record.transaction.scope)\n"),
        Edit(AUTHORITY, REPLACE, "        import time\n        time.sleep(0.04)\n" + REPLACE),
    ),
    "a restart forgets the hold": (
        Edit(COORDINATOR, CLOSE + "                for tier_id in scope:\n",
             CLOSE + "                for tier_id in scope if self._serving else ():\n"),
    ),
    "a hold closes one more tier": (
        Edit(COORDINATOR, CLOSE, CLOSE + "                scope = (*scope, 'c' if 'b' in scope else 'b')\n"),
        Edit(COORDINATOR, "            case fx.OpenGate(scope=scope):\n",
             "            case fx.OpenGate(scope=scope):\n                scope = ('a', 'b', 'c')\n"),
    ),
    "the end of a hold takes the operator's bit along": (
        Edit(ADMISSION, "        runtime.gate.held = False\n",
             "        runtime.gate.held = False\n        runtime.gate.quiesced = False\n"),
    ),
    "a drain waits for nobody": (
        Edit(COORDINATOR, "        while left:\n            if left != reported", "        while False:\n            if left != reported"),
        Edit(COORDINATOR, "            if not leases and not rows.total:\n", "            if True:\n"),
    ),
    "a slot is freed twice": (
        Edit(ADMISSION, "        runtime.running -= 1\n", "        runtime.running -= 1 if runtime.running % 3 else 2\n"),
    ),
    "a head names the newest routes": (Edit(RELAY, HEARD, HEARD + "        self._snapshot = gateway.gate.snapshot\n"),),
    "a piece of a stream comes twice": (
        Edit(RELAY, WRITE, WRITE + "            if hash(passed) % 50 == 0:\n                self._connection.write(passed)\n"),
    ),
    "a piece of a stream is lost": (
        Edit(RELAY, WRITE, "            if hash(passed) % 50 or b'DONE' in passed:\n    " + WRITE),
    ),
    "a start is acknowledged before it is written": (
        Edit(LEDGER, "        self._writer.submit(_item(_Start, (key, row, done)))\n        return key\n",
             "        self._loop.call_soon(done, None)\n"
             "        self._loop.call_later(0.02, self._writer.submit, _item(_Start, (key, row, lambda _error: None)))\n"
             "        return key\n"),
        Edit(LEDGER, "            self._writer.submit_lazy(_item(_Finish, (key, row)))\n",
             "            self._loop.call_later(0.03, self._writer.submit, _item(_Finish, (key, row)))\n"),
    ),
    "an end is lost": (Edit(LEDGER, OVER, "        if start is not None and hash(start.id) % 100:\n"),),
    "an end is another than it was": (
        Edit(RELAY, ENDED, "        if self._outcome == 'completed' and hash(context.request_id) % 20 == 0:\n"
             "            self._outcome = 'client_gone'\n" + ENDED),
    ),
    "tokens are counted twice": (
        Edit(RELAY, "                        prompt,\n                        completion,\n",
             "                        prompt,\n                        None if completion is None else completion * 2,\n"),
    ),
    "a reconcile closes what is running": (
        Edit("store/usage_db.py", '                elif verdict == "current":\n',
             '                elif verdict == "current":\n'
             '                    closed = db.execute(_INTERRUPT + "run=?", (ended_at, run)).rowcount\n'
             '                elif verdict == "never":\n'),
    ),
}  # fmt: skip


def edited(name: str) -> dict[Path, str]:
    """The text that files of the product have with one fault, by their place in a checkout.

    Raises:
        ValueError: Its place in the source has changed, and so must the fault.
    """
    texts: dict[Path, str] = {}
    for edit in FAULTS[name]:
        place = Path("sndr", "router", edit.file)
        text = texts.get(place) or (ROOT / place).read_text("utf-8")
        if text.count(edit.old) != 1:
            raise ValueError(f"{name}: {place} does not contain {edit.old!r} once")
        texts[place] = text.replace(edit.old, edit.new)
    return texts


def broken(name: str, folder: Path) -> Path:
    """A checkout with one fault.

    Raises:
        ValueError: As `edited`.
    """
    texts = edited(name)
    for part in ("sndr", "tests", "presets", "schemas", "pyproject.toml"):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / part)
    for place, text in texts.items():
        (folder / place).write_text(text, "utf-8")
    return folder


def judged(name: str, seed: int, seconds: float) -> list[str]:
    """What the judge says of a storm over the broken product."""
    with tempfile.TemporaryDirectory(prefix="sndr-mutant-") as folder:
        tree = broken(name, Path(folder))
        done = subprocess.run(
            [sys.executable, "-m", "tests.storm", "--replay", str(seed), "--seconds", str(seconds)],
            cwd=tree, env=environment(PYTHONPATH=str(tree)), stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    found: list[str] = json.loads(done.stdout)["violations"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm.mutants")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of: {', '.join(FAULTS)}")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    missed = moved = 0
    for name in options.faults or FAULTS:
        try:
            found = judged(name, options.seed, options.seconds)
        except ValueError as error:
            moved += 1
            print(error, flush=True)
            continue
        missed += not found
        print(f"{name}: {len(found)} violations: {found[0][:100]}" if found else f"{name}: NOT SEEN", flush=True)
    return 1 if missed else 2 if moved else 0


if __name__ == "__main__":
    sys.exit(main())
