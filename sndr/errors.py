"""Errors by blame, each with a stable code.

Translated once per edge: exit code (cli), problem+json (management API), dialect error body (data plane).
A *finding* (one of many faults in an input) is a returned value, not an exception.
"""

from __future__ import annotations

import errno
import os

__all__ = [
    "AuthorityError",
    "ControlError",
    "InputError",
    "RequestError",
    "SndrError",
    "cannot_listen",
]


class SndrError(Exception):
    """Base of everything this package raises on purpose.

    Attributes:
        code: Stable identifier (lower_snake_case); scripts may match on it.
        message: One line for a person; never contains a credential or prompt text.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class InputError(SndrError):
    """A file, option or configuration that the operator wrote is wrong; nothing was changed."""


class RequestError(SndrError):
    """A client's request is refused."""


class ControlError(SndrError):
    """A management operation is refused; nothing was changed."""


class AuthorityError(SndrError):
    """The authority (its file, lock or directory) is unsafe, or the outcome of a write is unknown."""


def cannot_listen(address: str, error: OSError) -> InputError:
    """`listen_failed` in the system's own words: asyncio puts the representation of the address around them."""
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    if number == errno.EADDRINUSE:
        reason += ": stop what listens there, or choose another address"
    return InputError("listen_failed", f"cannot listen on {address}: {reason}")
