"""The quiescence's order: close before storing, store before opening; two bits with two owners."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sndr.errors import ControlError
from tests.support.control import Plane


def run(script: Callable[[Plane], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await script(Plane())

    asyncio.run(main())


def test_a_quiesce_that_is_not_stored_still_closes_and_says_so() -> None:
    async def script(plane: Plane) -> None:
        plane.store.fails = True
        with pytest.raises(ControlError) as caught:
            await plane.quiescence.quiesce("a", "why")
        assert caught.value.code == "admission_state_failed"
        assert plane.gate.snapshot.runtimes["a"].gate.quiesced

    run(script)


def test_a_readmit_that_is_not_stored_does_not_open() -> None:
    async def script(plane: Plane) -> None:
        await plane.quiescence.quiesce("a", None)
        plane.store.fails = True
        with pytest.raises(ControlError) as caught:
            await plane.quiescence.readmit("a")
        assert caught.value.code == "admission_state_failed"
        assert plane.gate.snapshot.runtimes["a"].gate.quiesced

    run(script)


def test_changes_at_one_time_are_stored_one_after_the_other() -> None:
    async def script(plane: Plane) -> None:
        await asyncio.gather(plane.quiescence.quiesce("a", "x"), plane.quiescence.quiesce("b", "y"))
        assert plane.store.saved == [{"a": "x"}, {"a": "x", "b": "y"}]
        await asyncio.gather(plane.quiescence.readmit("a"), plane.quiescence.readmit("b"))
        assert plane.store.saved[-1] == {}

    run(script)


def test_a_drain_that_runs_out_changes_nothing() -> None:
    async def script(plane: Plane) -> None:
        lease = plane.gate.lease("a")
        await plane.quiescence.quiesce("a", None)
        assert not await plane.quiescence.drain("a", 0.01)
        assert plane.gate.leases("a") == 1
        assert plane.gate.snapshot.runtimes["a"].gate.quiesced
        lease.release()
        assert await plane.quiescence.drain("a", 5)

    run(script)


def test_a_readmit_ends_a_drain_with_a_refusal() -> None:
    async def script(plane: Plane) -> None:
        lease = plane.gate.lease("a")
        await plane.quiescence.quiesce("a", None)
        draining = asyncio.create_task(plane.quiescence.drain("a", 20))
        await asyncio.sleep(0)
        await plane.quiescence.readmit("a")
        lease.release()
        with pytest.raises(ControlError) as caught:
            await draining
        assert caught.value.code == "not_quiesced"

    run(script)


@pytest.mark.req("R50", "R51", "R55")
def test_the_operators_bit_and_the_transactions_are_independent() -> None:
    async def script(plane: Plane) -> None:
        runtime = plane.gate.snapshot.runtimes["a"]
        plane.gate.hold("a")
        await plane.quiescence.quiesce("a", None)
        await plane.quiescence.readmit("a")
        assert (runtime.gate.quiesced, runtime.gate.held, runtime.admitting) == (False, True, False)

    run(script)


def test_what_was_quiesced_is_quiesced_again_before_the_first_connection() -> None:
    async def script(plane: Plane) -> None:
        plane.quiescence.restore({"a": "promotion", "gone": None})
        gate = plane.gate.snapshot.runtimes["a"].gate
        assert (gate.quiesced, gate.quiesce_reason) == (True, "promotion")
        assert plane.store.saved == []

    run(script)
