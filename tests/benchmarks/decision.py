"""CPU of one decision, with a table and without: `python -m tests.benchmarks.decision`. Prints a small table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from sndr.contract import decide, degraded, load
from tests.support.contract_vectors import REFERENCE, TOOL

HEADERS = [
    ("host", "localhost"),
    ("content-type", "application/json"),
    ("authorization", "Bearer x"),
    ("accept", "*/*"),
]
BODY: dict[str, Any] = {
    "model": "gemma-4-26b-a4b",
    "messages": [{"role": "user", "content": "x" * 2000}],
    "tools": [TOOL],
    "max_tokens": 200,
    "temperature": 0.2,
}
BATCH, BATCHES = 1000, 101


def microseconds(call: Callable[[], object]) -> float:
    """Median over batches of the process's CPU time for one call."""
    spent = []
    for _ in range(BATCHES):
        start = time.process_time_ns()
        for _ in range(BATCH):
            call()
        spent.append((time.process_time_ns() - start) / BATCH / 1000)
    return statistics.median(spent)


def main() -> None:
    table, none = load(REFERENCE), degraded("no table")
    hinted = {**BODY, "extra_body": {"expected_length": "short", "category": "code"}}
    cases: dict[str, Callable[[], object]] = {
        "rule": lambda: decide(table, BODY, in_flight=2, headers=HEADERS),
        "family default": lambda: decide(table, BODY, in_flight=1, headers=HEADERS),
        "hints in extra_body": lambda: decide(table, hinted, in_flight=2, headers=HEADERS),
        "family given": lambda: decide(table, BODY, in_flight=2, headers=HEADERS, family="gemma4_moe_26b_a4b"),
        "unknown model": lambda: decide(table, {"model": "other"}, in_flight=2),
        "responses": lambda: decide(table, {**BODY, "max_output_tokens": 9}, in_flight=2, dialect="responses"),
        "no table (degraded)": lambda: decide(none, BODY, in_flight=2, headers=HEADERS),
    }
    print("| decision | us of CPU, median |\n|---|---|")
    for name, call in cases.items():
        print(f"| {name} | {microseconds(call):.1f} |")


if __name__ == "__main__":
    main()
