"""Time and company on the loop: whatever one of those who wait does, the others have their turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sndr.router.net.flow import SKIPS, AfterReads, Ticker


class Loop:
    """Keeps what was asked for."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.soon: list[Callable[[], None]] = []
        self.faults: list[dict[str, Any]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        del delay
        self.later.append(callback)
        return self

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

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


def test_a_fault_of_one_does_not_stop_what_waits_for_the_end_of_the_round() -> None:
    loop: Any = Loop()
    ran: list[int] = []
    rounds = AfterReads(loop)

    def fail() -> None:
        raise ZeroDivisionError

    for callback in (lambda: ran.append(1), fail, lambda: ran.append(2), lambda: ran.append(3)):
        rounds.call(callback)
    loop.turn()
    assert ran == [1, 2, 3]
    assert [type(context["exception"]) for context in loop.faults] == [ZeroDivisionError]
    assert not loop.soon


def test_company_is_waited_for_only_where_there_was_some() -> None:
    loop: Any = Loop()
    rounds = AfterReads(loop)
    rounds.call(lambda: None)
    loop.turn()
    assert rounds.skips == SKIPS
    rounds.skips = 0
    for _ in range(5):
        for _ in range(20):
            rounds.call(lambda: None)
        loop.turn()
        assert not rounds.skips
    for _ in range(40):
        rounds.call(lambda: None)
        loop.turn()
    assert rounds.skips == SKIPS
