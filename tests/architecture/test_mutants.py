"""Deliberate faults of the relay, the admission and the ledger: each must be seen by the test that is about it.

Those of the transaction's machine are in `tests/support/machine_mutants.py`, of the coordinator in
`tests/unit/router/control/test_routes.py`, of the writer in `tests/support/broken_writers.py`; docs/mutants.md has all.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from sndr.router.core.admission import Lease, TierRuntime
from sndr.router.gateway.relay import Exchange
from sndr.router.store.ledger import UsageLedger
from tests.property import test_admission_machine as admission
from tests.storm.mutants import FAULTS as OF_THE_STORM
from tests.storm.mutants import edited
from tests.support.broken_writers import BROKEN
from tests.support.cli import ROOT
from tests.support.machine_mutants import MUTANTS as OF_THE_MACHINE
from tests.support.mutants import Mutant
from tests.unit.router.gateway import test_order as order
from tests.unit.router.gateway import test_published as published
from tests.unit.router.store import test_ledger as ledger

Catcher = Callable[[Path], object]
PAGE = ROOT / "docs" / "mutants.md"


def the_admission_machine(_: Path) -> None:
    run_state_machine_as_test(
        admission.AdmissionMachine,
        settings=settings(max_examples=200, stateful_step_count=30, derandomize=True, database=None),
    )


def _plain(test: Callable[[], object]) -> Catcher:
    def run(_: Path) -> object:
        return test()

    run.__name__ = test.__name__
    return run


def _file(test: Callable[[Path], object]) -> Catcher:
    def run(folder: Path) -> object:
        return test(folder / "usage.db")

    run.__name__ = test.__name__
    return run


MUTANTS: list[tuple[Mutant, Catcher]] = [
    (
        Mutant("dispatch before the start row is durable", Exchange, "admitted", "        self._accounted,\n    )",
               "        lambda error: None,\n    )\n    self._dispatch()"),
        _plain(order.the_server_hears_of_it_after_the_start_row_is_durable),
    ),
    (
        Mutant("dispatch although the start row failed", Exchange, "_accounted", "if error is not None:", "if False:"),
        _plain(order.a_start_that_is_not_written_is_refused_and_not_sent),
    ),
    (
        Mutant("release the lease before the row is handed over", Exchange, "_finish", "lease.delivered()",
               "lease.release(); lease.release = lambda: None"),
        _plain(order.the_row_is_handed_over_before_the_lease_is_given_back),
    ),
    (
        Mutant("hand no row over", Exchange, "_finish", "if self._key is not None:", "if False:"),
        _plain(order.the_row_is_handed_over_before_the_lease_is_given_back),
    ),
    (
        Mutant("keep the lease", Exchange, "_finish", "lease.release()", "pass"),
        _plain(order.the_row_is_handed_over_before_the_lease_is_given_back),
    ),
    (
        Mutant("a retired runtime gives leases", TierRuntime, "acquire", "if self.retired:", "if False:"),
        _plain(published.test_a_retired_runtime_finishes_what_it_has_and_gives_nothing),
    ),
    (Mutant("a held tier admits", TierRuntime, "acquire", "if gate.held:", "if False:"), the_admission_machine),
    (Mutant("a quiesced tier admits", TierRuntime, "acquire", "if gate.quiesced:", "if False:"), the_admission_machine),
    (
        Mutant("one more than the limit", TierRuntime, "acquire", ">= self.limit or", "> self.limit or"),
        the_admission_machine,
    ),
    (
        Mutant("the newest waiter first", TierRuntime, "_pass_on", "self._queue.popleft()", "self._queue.pop()"),
        the_admission_machine,
    ),
    (
        Mutant("pass a slot on beyond the limit", TierRuntime, "_pass_on", "self.running < self.limit", "True"),
        the_admission_machine,
    ),
    (Mutant("free a slot twice", Lease, "delivered", "if self._delivered:", "if False:"), the_admission_machine),
    (Mutant("release without counting", Lease, "release", "runtime.leases -= 1", "pass"), the_admission_machine),
    (
        Mutant("acknowledge a start before it is written", UsageLedger, "_write_rows",
               "db.write(starts, finishes, refusals, revisions)", "pass"),
        _file(ledger.test_a_start_is_on_disk_when_it_is_acknowledged_and_carries_its_binding),
    ),
    (
        Mutant("forget an end that was not written", UsageLedger, "_deliver_failures",
               "self._failed[item.key] = row", "pass"),
        _file(ledger.test_an_end_is_retried_once_then_stays_unresolved_until_reconciled),
    ),
    (
        Mutant("no second try for an end", UsageLedger, "_write_rows",
               "self._retry(finishes, refusals, result)", "result.failed_ends |= {end.key for end in finishes}"),
        _file(ledger.test_one_retry_saves_an_end),
    ),
    (
        Mutant("a failed start takes its neighbours along", UsageLedger, "_write_rows",
               "db.write((start,), (), (), revisions)", "raise error_of_all"),
        _file(ledger.test_a_row_that_cannot_be_stored_does_not_fail_its_neighbours),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("mutant", "catcher"), MUTANTS, ids=[mutant.what for mutant, _ in MUTANTS])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a faulty gateway leaves sockets open
def test_a_fault_is_caught(mutant: Mutant, catcher: Catcher, tmp_path: Path) -> None:
    with mutant.applied(), pytest.raises(BaseException) as caught:
        catcher(tmp_path)
    assert not isinstance(caught.value, KeyboardInterrupt | SystemExit)
    del caught
    gc.collect()


@pytest.mark.parametrize(
    "catcher", {catcher.__name__: catcher for _, catcher in MUTANTS}.values(), ids=lambda one: one.__name__
)
def test_the_tests_that_catch_them_pass_without(catcher: Catcher, tmp_path: Path) -> None:
    catcher(tmp_path)


def test_a_fault_that_does_not_fit_any_more_is_an_error() -> None:
    stale = Mutant("stale", Lease, "release", "no such line", "pass")
    with pytest.raises(ValueError, match="does not contain"), stale.applied():
        pass


@pytest.mark.parametrize("name", OF_THE_STORM)
def test_the_place_of_a_storm_s_fault_is_still_there(name: str) -> None:
    """Whether a storm sees it is tried by hand (`python -m tests.storm.mutants`): that takes minutes."""
    for place, text in edited(name).items():
        assert text != (ROOT / place).read_text("utf-8")
        compile(text, str(place), "exec")


def _table() -> str:
    lines = ["| fault | where | caught by |", "|---|---|---|"]
    for mutant, catcher in MUTANTS:
        where = f"{mutant.owner.__name__}.{mutant.name}"
        lines.append(f"| {mutant.what} | `{where}` | {catcher.__name__.removeprefix('test_').replace('_', ' ')} |")
    return "\n".join(lines) + "\n"


def test_the_page_lists_them() -> None:
    text = PAGE.read_text("utf-8")
    if os.environ.get("SNDR_REWRITE"):
        text = re.sub(
            r"(<!-- relay -->\n\n).*?(\n<!-- end of relay -->)", lambda m: m[1] + _table() + m[2], text, flags=re.DOTALL
        )
        PAGE.write_text(text, "utf-8")
        return
    assert f"<!-- relay -->\n\n{_table()}\n<!-- end of relay -->" in text, "SNDR_REWRITE=1 writes it anew"
    for writer in BROKEN:
        assert f"`{writer}`" in text
    assert f"{len(OF_THE_MACHINE)} faults" in text
