"""A `Disk` that fails, stops or cuts short at the n-th call, around the operating system's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from sndr.durable import PosixDisk


class PowerCut(BaseException):
    """The process is gone: nothing after this instant runs (not an Exception, so that no handler takes it)."""


class FaultDisk:
    """Counts calls and lets one of them go wrong.

    Args:
        nth: Which call, counted from 1; 0 lets all pass.
        fault: What happens instead of the call; it gets the call and may run it (before, after, in part).
    """

    def __init__(self, nth: int = 0, fault: Callable[[str, Callable[[], Any]], Any] | None = None) -> None:
        self._disk = PosixDisk()
        self._nth = nth
        self._fault = fault
        self._is_dead = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._disk, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._is_dead:
                raise PowerCut
            self.calls.append(name)
            if len(self.calls) != self._nth or self._fault is None:
                return call(*args, **kwargs)
            try:
                return self._fault(name, lambda: call(*args, **kwargs))
            except PowerCut:
                self._is_dead = True
                raise

        return counted


def fails(number: int) -> Callable[[str, Callable[[], Any]], Any]:
    """The call answers an error and has no effect."""

    def fault(name: str, call: Callable[[], Any]) -> Any:
        raise OSError(number, os.strerror(number))

    return fault


def cut_before(name: str, call: Callable[[], Any]) -> Any:
    """The process dies before the call."""
    raise PowerCut


def cut_after(name: str, call: Callable[[], Any]) -> Any:
    """The process dies after the call, whatever it answered."""
    with contextlib.suppress(OSError):
        call()
    raise PowerCut
