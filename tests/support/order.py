"""Which test files take long: workers begin with them, so that the last worker does not begin one when others are done.

A worker takes whole files (`--dist=loadfile`). Files with few tests would come last, and those are the long ones.
"""

from __future__ import annotations

from typing import Final

LONG: Final = (
    "tests/property/test_machine_search_two_clients.py",
    "tests/e2e/test_live_routes.py",
    "tests/property/test_machine_search_two_revisions.py",
    "tests/crash/test_authority_crashes.py",
    "tests/e2e/test_workload_routing.py",
    "tests/e2e/test_live_routes_guide.py",
    "tests/e2e/test_router_verbs.py",
    "tests/e2e/test_fenced_flips.py",
    "tests/e2e/test_truth.py",
    "tests/property/test_machine_mutants.py",
    "tests/property/test_machine_stateful.py",
    "tests/property/test_machine_search_three_revisions.py",
    "tests/property/router/test_toml_keys_property.py",
    "tests/crash/test_authority_processes.py",
    "tests/property/test_routes_stateful.py",
    "tests/property/test_record.py",
    "tests/property/test_contract.py",
)
