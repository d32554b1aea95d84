"""Every crash test of the authority in full, by one command:

    python -m tests.crash.full [--power-cuts N] [--skip LAYER ...]

Layers: `sweep` (every disk call in process, every power-cut image), `kill` (SIGKILL of a real process at every disk
call), `strace` (system calls failed, killed or shortened from outside), `power` (the power of a loop-mounted ext4 and
XFS cut at random moments), `controls` (broken writers that kills and cuts must catch). The last three need root and
their tools; a layer that cannot run says why. Exit 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.support import crashes, victims
from tests.support.victims import ERRORS, OPERATIONS, SYSTEM_CALLS, Tally

LAYERS = ("sweep", "kill", "strace", "power", "controls")
CALLS_MAX = 64
CONTROLS = ("no_directory_sync", "no_file_sync")


def _sweep(root: Path, cuts: int) -> list[str]:
    report = crashes.sweep_all(str(root))
    for name, (points, images) in report.per_operation.items():
        print(f"  {name}: {points} points, {images} images")
    print(f"  {report.points} points, {report.images} images, {report.opened} opened again")
    return report.violations


def _kill(root: Path, cuts: int) -> list[str]:
    tally = Tally()
    for operation in OPERATIONS:
        call = 0
        while call < CALLS_MAX and victims.kill_at(tally, root, operation, call):
            call += 1
    print(f"  {tally.runs} kills, {tally.told} answers")
    return tally.violations


def _strace(root: Path, cuts: int) -> list[str]:
    missing = victims.strace_missing()
    if missing:
        print(f"  skipped: {missing}")
        return []
    tally = Tally()
    reached = 0
    for operation in ("W0", "W2", "init"):
        for call in SYSTEM_CALLS:
            actions = [*(f"error={error}" for error in ERRORS), "signal=SIGKILL"]
            if call == "write":
                actions.append("retval=1000")
            for action in actions:
                when = 1
                while when < CALLS_MAX and victims.inject(tally, root, operation, call, action, when):
                    when += 1 if call in ("fsync", "rename", "renameat", "renameat2", "write", "fchmod") else 5
                    reached += 1
        print(f"  {operation}: {tally.runs} runs so far", flush=True)
    print(f"  {tally.runs} runs, {reached} of them with a fault, {tally.told} answers")
    return tally.violations


def _power(root: Path, cuts: int) -> list[str]:
    found = []
    for kind in ("ext4", "xfs"):
        missing = victims.power_missing(kind)
        if missing:
            print(f"  {kind}: skipped: {missing}")
            continue
        tally = Tally()
        with victims.volume(root, kind) as (image, point):
            for seed in range(cuts):
                victims.cut_power(tally, image, point, random.Random(seed))
        print(f"  {kind}: {tally.runs} cuts, {tally.told} answers")
        found += [f"{kind}: {violation}" for violation in tally.violations]
    return found


def _controls(root: Path, cuts: int) -> list[str]:
    found = []
    # A writer in place is torn for so short a time that a random cut misses it; a kill at each call does not.
    tally = Tally()
    call = 0
    while not tally.violations and call < CALLS_MAX:
        victims.kill_at(tally, root, "W2", call, "--broken", "in_place")
        call += 1
    print(f"  in_place: {f'killed at call {call - 1}: {tally.violations[0]}' if tally.violations else 'not caught'}")
    if not tally.violations:
        found.append("the kills do not see a writer in place")
    for broken in CONTROLS:
        caught: str | None = None
        for kind in ("ext4", "xfs"):
            if caught is not None or victims.power_missing(kind):
                continue
            tally = Tally()
            with victims.volume(root, kind) as (image, point):
                for seed in range(60):
                    victims.cut_power(tally, image, point, random.Random(seed), broken)
                    if tally.violations:
                        caught = f"after {seed + 1} cuts of {kind}: {tally.violations[0]}"
                        break
        print(f"  {broken}: {caught or 'not caught'}")
        if caught is None and not (victims.power_missing("ext4") and victims.power_missing("xfs")):
            found.append(f"the power cuts do not see a writer with {broken}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.full")
    parser.add_argument("--power-cuts", type=int, default=200, help="per file system")
    parser.add_argument("--skip", nargs="*", choices=LAYERS, default=[])
    options = parser.parse_args()
    found: list[str] = []
    for layer, run in zip(LAYERS, (_sweep, _kill, _strace, _power, _controls), strict=True):
        if layer in options.skip:
            continue
        print(f"{layer}:", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="sndr-crash-") as root:
            violations = run(Path(root), options.power_cuts)
        print(f"  {len(violations)} violations, {time.monotonic() - began:.0f} s", flush=True)
        for violation in violations[:20]:
            print(f"    {violation}")
        found += violations
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
