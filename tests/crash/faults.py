"""System calls failed, shortened and killed from outside, in every durable operation, by one command:

    python -m tests.crash.faults --keep DIR

Each case fails the n-th call of one name in eight operations at once. Every case is a line of DIR/faults.jsonl; a
command that is started again goes on behind the last. Needs strace. Exit 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import victims
from tests.support.fault_family import inject
from tests.support.kept import keep, results
from tests.support.victims import ERRORS, Tally

MORE = ("EROFS", "EMFILE", "ENOMEM", "EPERM")
CALLS = {
    "fsync": 12, "rename": 4, "renameat": 4, "renameat2": 4, "write": 6, "fchmod": 4, "openat": 24, "close": 24,
    "newfstatat": 40, "fstat": 24, "read": 12, "getdents64": 4, "flock": 4, "lseek": 8,
}  # fmt: skip
"""Call -> highest number that is tried; a number that no operation reaches ends its series."""
SAME = (("rename", "renameat", "renameat2"), ("newfstatat", "fstat"))
"""Names of which a machine uses one: which one is the business of its C library."""


def _unreached(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Calls that were tried, and that no operation made under any of their names: they were never failed at all."""
    reached = {line["call"] for line in lines if line["reached"]}
    groups = [*SAME, *((call,) for call in CALLS if not any(call in group for group in SAME))]
    return ["/".join(group) for group in groups if reached.isdisjoint(group)]


def _cases() -> Iterator[tuple[str, str, int]]:
    for call, most in CALLS.items():
        actions = [*(f"error={error}" for error in (*ERRORS, *MORE)), "signal=SIGKILL"]
        if call == "write":
            actions += ["retval=1000", "retval=0"]
        for when in range(1, most + 1):
            for action in actions:
                yield call, action, when


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.faults")
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=1_000_000, help="enough after so many")
    options = parser.parse_args()
    missing = victims.strace_missing()
    if missing:
        print(missing)
        return 2
    options.keep.mkdir(parents=True, exist_ok=True)
    kept = options.keep / "faults.jsonl"
    lines = results(kept)
    done = {(line["call"], line["action"], line["when"]): line for line in lines}
    for call, action, when in _cases():
        if sum(line["reached"] for line in lines) >= options.faults:
            break
        before = done.get((call, action, when - 1))
        if (call, action, when) in done or (before is not None and not before["reached"]):
            continue
        tally = Tally()
        with tempfile.TemporaryDirectory(prefix="sndr-faults-") as folder:
            reached = inject(tally, Path(folder), call, action, when)
        line = {
            "call": call, "action": action, "when": when, "reached": reached, "runs": tally.runs, "told": tally.told,
            "violations": tally.violations,
        }  # fmt: skip
        lines.append(line)
        done[call, action, when] = line
        keep(kept, line)
        for violation in tally.violations:
            print(violation, flush=True)
    else:
        for name in _unreached(lines):
            print(f"no operation makes the call {name}: nothing was learned about it")
            lines[-1]["violations"].append(name)
    violations = sum(len(line["violations"]) for line in lines)
    total = {name: sum(line[name] for line in lines) for name in ("runs", "reached", "told")}
    print(f"{len(lines)} cases, {total['runs']} runs, {total['reached']} of them with a fault,", end=" ")
    print(f"{total['told']} answers, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
