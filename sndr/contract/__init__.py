"""The routing-table contract as a pure library: load a table, decide where a request goes.

Nothing here imports a third-party package, reads a file, looks at a clock or keeps a log. See docs/contract.md.
"""

from __future__ import annotations

from sndr.contract.check import Finding, check_meaning, check_structure, check_table
from sndr.contract.decide import Decision, Explanation, Step, decide, explain
from sndr.contract.detect import HINT_HEADERS, HINT_MEMBERS, READ_MEMBERS, Dialect, Headers, strip_hints
from sndr.contract.table import (
    CONCURRENCY_MODES,
    OUTPUT_LENGTHS,
    SCHEMA_VERSION,
    UNKNOWN_FAMILY,
    WORKLOAD_CLASSES,
    Cell,
    Gap,
    Preset,
    Rule,
    Table,
    content_sha256,
    degraded,
    load,
    parse_json,
)

__all__ = [
    "CONCURRENCY_MODES",
    "HINT_HEADERS",
    "HINT_MEMBERS",
    "OUTPUT_LENGTHS",
    "READ_MEMBERS",
    "SCHEMA_VERSION",
    "UNKNOWN_FAMILY",
    "WORKLOAD_CLASSES",
    "Cell",
    "Decision",
    "Dialect",
    "Explanation",
    "Finding",
    "Gap",
    "Headers",
    "Preset",
    "Rule",
    "Step",
    "Table",
    "check_meaning",
    "check_structure",
    "check_table",
    "content_sha256",
    "decide",
    "degraded",
    "explain",
    "load",
    "parse_json",
    "strip_hints",
]
