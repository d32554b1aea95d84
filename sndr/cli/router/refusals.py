"""How a verb that works on this machine's files ends when it is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from sndr.cli.output import CommandError
from sndr.errors import AuthorityError, ControlError, InputError

__all__ = ["coded"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_CONFLICTS: Final = frozenset({"route_lock_held", "usage_lock_held", "usage_unresolved"})


def coded(verb: Callable[_P, _R]) -> Callable[_P, _R]:
    """Exit 3 where things as they are stand in the way, else 2; faults of the boot file keep their own lines."""

    @wraps(verb)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return verb(*args, **kwargs)
        except (AuthorityError, ControlError, InputError) as error:
            if hasattr(error, "findings"):
                raise
            raise CommandError(error.code, error.message, 3 if error.code in _CONFLICTS else 2) from error

    return run
