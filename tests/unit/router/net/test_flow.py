"""The ticker: everything watched is looked at, whatever one of them does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sndr.router.net.flow import Ticker


class Loop:
    """Keeps what was asked for."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.faults: list[dict[str, Any]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        del delay
        self.later.append(callback)
        return self

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context)


class Watched:
    def __init__(self, fault: Exception | None = None) -> None:
        self.ticks = 0
        self.fault = fault

    def tick(self, now: float) -> None:
        del now
        self.ticks += 1
        if self.fault is not None:
            raise self.fault


def test_a_fault_of_one_takes_nobody_elses_time_limits() -> None:
    loop: Any = Loop()
    ticker = Ticker(loop)
    broken = Watched(ValueError("x"))
    others = [Watched() for _ in range(50)]
    for watched in (*others[:25], broken, *others[25:]):
        ticker.watch(watched)
    for round_number in range(1, 4):
        loop.later.pop()()
        assert {watched.ticks for watched in (broken, *others)} == {round_number}
    assert [context["exception"] for context in loop.faults] == [broken.fault] * 3
