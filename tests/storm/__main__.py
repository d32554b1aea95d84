"""Storms by one command:

    python -m tests.storm --minutes 30 --seed 1 --keep DIR

Storms of a minute, one seed after the other; each result is a line of DIR/storms.jsonl, and a command that is started
again goes on after the last. A storm that violated anything leaves its files and everything that was judged in
DIR/seed-N. `--replay SEED` repeats one. Exit 1 if anything was violated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.storm.storm import Storm, secrets_in
from tests.support.kept import keep, results


def storm(seed: int, seconds: float, folder_of_bad: Path | None) -> dict[str, Any]:
    """One storm in a directory of its own, as a line of the results."""
    with tempfile.TemporaryDirectory(prefix="sndr-storm-") as folder:
        one = Storm(Path(folder) / "storm", seed, seconds)
        report = one.run()
        found = [f"INV-24: {name} contains a credential" for name in secrets_in(Path(folder))]
        violations = [*report.violations, *found]
        if violations and folder_of_bad is not None:
            left = folder_of_bad / f"seed-{seed}"
            shutil.copytree(folder, left, dirs_exist_ok=True)
            (left / "violations.txt").write_text("".join(f"{text}\n" for text in violations))
            (left / "judged.json").write_text(json.dumps(one.evidence()))
    return {**vars(report), "violations": violations}


def summary(lines: list[dict[str, Any]]) -> str:
    """Totals of many storms."""
    total = {
        name: sum(line[name] for line in lines) for name in ("seconds", "kills", "requests", "rows", "observations")
    }
    applied = sum(n for line in lines for name, n in line["operations"].items() if name.startswith("apply "))
    violations = sum(len(line["violations"]) for line in lines)
    return (
        f"{len(lines)} storms, {total['seconds'] / 60:.1f} minutes, {total['kills']} kills,"
        f" {total['requests']} requests, {total['rows']} rows,"
        f" {total['observations']} reads, {applied} applies,"
        f" {sum(line['revisions'] for line in lines)} revisions, {violations} violations"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seconds", type=float, default=60, help="length of one storm")
    parser.add_argument("--seed", type=int, default=1, help="of the first storm")
    parser.add_argument("--keep", type=Path, help="directory of the results, and of what a bad storm leaves")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one storm again, and nothing else")
    options = parser.parse_args()
    if options.replay is not None:
        line = storm(options.replay, options.seconds, options.keep)
        print(json.dumps(line, indent=1))
        return 1 if line["violations"] else 0
    kept = None if options.keep is None else options.keep / "storms.jsonl"
    lines: list[dict[str, Any]] = []
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        lines = results(kept)
    while sum(line["seconds"] for line in lines) < options.minutes * 60 - 0.5:
        seed = options.seed + len(lines)
        line = storm(seed, options.seconds, options.keep)
        lines.append(line)
        if kept is not None:
            keep(kept, line)
        print(f"seed {seed}: {summary([line])}", flush=True)
        for violation in line["violations"][:20]:
            print(f"  {violation}", flush=True)
    print(summary(lines))
    return 1 if any(line["violations"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
