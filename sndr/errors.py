"""Errors by blame, each with a stable code.

Translated once per edge: exit code (cli), problem+json (management API), dialect error body (data plane).
A *finding* (one of many faults in an input) is a returned value, not an exception.
"""

from __future__ import annotations

__all__ = ["AuthorityError", "ControlError", "InputError", "RequestError", "SndrError"]


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
