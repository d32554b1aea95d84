"""Breadth-first search over the real machine in its small world, and the deliberate mutants it must catch.

python -m tests.support.machine_search            the bounded search and every mutant, as in the gate
python -m tests.support.machine_search --full     everything at once: several minutes
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import dataclass
from typing import Final

from tests.support.machine_mutants import MUTANTS, SURVIVORS
from tests.support.machine_world import (
    SOUND,
    Bounds,
    Mutant,
    Violation,
    World,
    beginning,
    check,
    key,
    moves,
    remember_pure_results,
)


@dataclass
class Result:
    """What a search saw."""

    states: int
    transitions: int
    depth: int
    seconds: float
    violation: Violation | None
    path: tuple[str, ...]
    complete: bool


def search(bounds: Bounds, mutant: Mutant = SOUND, *, limit: int | None = None) -> Result:
    """Visit every world within the bounds, nearest first; stop at the first broken rule."""
    gc.disable()  # nothing here forms cycles, and walking a million live worlds again and again costs a third
    try:
        return _search(bounds, mutant, limit)
    finally:
        gc.enable()


def _search(bounds: Bounds, mutant: Mutant, limit: int | None) -> Result:
    begun = time.perf_counter()
    first = beginning()
    parents: dict[object, tuple[object, str] | None] = {key(first): None}
    layer: list[tuple[object, World]] = [(key(first), first)]
    transitions = depth = 0

    def trace(name: object, *more: str) -> tuple[str, ...]:
        labels = list(more)
        at = parents[name]
        while at is not None:
            labels.insert(0, at[1])
            at = parents[at[0]]
        return tuple(labels)

    def done(violation: Violation | None, path: tuple[str, ...] = (), *, complete: bool = True) -> Result:
        return Result(len(parents), transitions, depth, time.perf_counter() - begun, violation, path, complete)

    while layer:
        depth += 1
        following: list[tuple[object, World]] = []
        for name, world in layer:
            for label, move in moves(world, bounds, mutant):
                transitions += 1
                try:
                    reached = move()
                    check(reached)
                except Violation as violation:
                    return done(violation, trace(name, label))
                if reached is world:
                    continue
                other = key(reached)
                if other not in parents:
                    parents[other] = (name, label)
                    following.append((other, reached))
            if limit is not None and len(parents) >= limit:
                return done(None, complete=False)
        layer = following
    return done(None)


FULL: Final = (
    ("three revisions, one client", Bounds()),
    ("shutdown, lost lock, quiesce", Bounds(revisions=2, shutdown=True, refused=True, quiesce=True)),
    ("two clients, prepares", Bounds(revisions=2, requests=2, misuse=False, both_tiers=False)),
    ("two upstreams", Bounds(requests=0, second_upstream=True)),
    ("four revisions, no client", Bounds(revisions=4, requests=0)),
    ("a family alias, kills", Bounds(families=True, misuse=False, both_tiers=False, prepares=False)),
)

GATE: Final = (
    ("two revisions, one client", Bounds(revisions=2)),
    ("three revisions, no client", Bounds(requests=0)),
    ("two clients", Bounds(revisions=2, requests=2, misuse=False, both_tiers=False, prepares=False)),
    (
        "a family alias, one client",
        Bounds(
            families=True,
            upstream=("m1", "m2"),
            misuse=False,
            both_tiers=False,
            prepares=False,
            power=False,
            uncertain=False,
            orphans=False,
            timeouts=False,
        ),
    ),
)


def report(bounds: Bounds, name: str) -> Result:
    """Search the sound design and say what was seen."""
    found = search(bounds)
    verdict = (
        "every invariant holds" if found.violation is None else f"BROKEN {found.violation}: {', '.join(found.path)}"
    )
    print(
        f"{name}: {found.states:,} states, {found.transitions:,} transitions, depth {found.depth}, "
        f"{found.seconds:.0f} s: {verdict}",
        flush=True,
    )
    return found


def report_mutant(mutant: Mutant) -> Result:
    """Search a mutant and print its counterexample."""
    found = search(mutant.bounds, mutant)
    if found.violation is None:
        print(f"{mutant.name}: not caught in {found.states:,} states", flush=True)
    else:
        print(f"{mutant.name}: {found.violation} ({found.states:,} states)\n    {', '.join(found.path)}", flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Run the bounded searches, or with `--full` the large ones, and every mutant; 1 when something is unexpected."""
    remember_pure_results(setattr)
    wrong = total = 0
    for name, bounds in FULL if "--full" in arguments else GATE:
        found = report(bounds, name)
        total += found.states
        wrong += found.violation is not None
    print(f"{total:,} states in all", flush=True)
    for mutant in MUTANTS:
        caught = report_mutant(mutant)
        wrong += caught.violation is None or caught.violation.invariant != mutant.invariant
    for mutant, why in SURVIVORS:
        wrong += report_mutant(mutant).violation is not None
        print(f"    survives: {why}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
