"""JSON documents from files and standard input, read strictly."""

from __future__ import annotations

import os
import stat
import sys

from sndr.contract import parse_json as parse_strictly
from sndr.errors import InputError

__all__ = ["MAX_BYTES", "parse_json", "read_document", "read_json"]

MAX_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024


def read_json(path: str) -> object:
    """Return the JSON value in the file `path`, or on standard input for ``-``.

    Raises:
        InputError: ``file_unreadable`` or ``json_invalid``; the message starts with the path.
    """
    return parse_json(read_document(path), "standard input" if path == "-" else path)


def read_document(path: str) -> bytes:
    """Return the whole content of a file, a pipe, or standard input (``-``), up to :data:`MAX_BYTES`.

    A pipe is taken (a shell's process substitution is one); one that nobody writes to reads as empty instead of
    blocking for ever. Folders, sockets and devices are refused.

    Raises:
        InputError: ``file_unreadable``.
    """
    if path == "-":
        if sys.stdin is None:
            raise InputError("file_unreadable", "standard input: closed")
        return _read_all(sys.stdin.fileno(), "standard input")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise InputError("file_unreadable", f"{path}: {_reason(error)}") from error
    try:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise InputError("file_unreadable", f"{path}: not a file; allowed: a regular file, a pipe, -")
        os.set_blocking(fd, True)
        return _read_all(fd, path)
    finally:
        os.close(fd)


def parse_json(data: bytes, name: str) -> object:
    """Parse one JSON value: UTF-8 without a byte order mark, no repeated member, no NaN or infinity.

    Args:
        data: The document.
        name: What to call it in messages.

    Raises:
        InputError: ``json_invalid``; the message says where.
    """

    try:
        return parse_strictly(data)
    except ValueError as error:
        raise InputError("json_invalid", f"{name}: {error}") from error


def _read_all(fd: int, name: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        while part := os.read(fd, _CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES:
                raise InputError("file_unreadable", f"{name}: larger than {MAX_BYTES // 1024 // 1024} MiB")
    except OSError as error:
        raise InputError("file_unreadable", f"{name}: {_reason(error)}") from error
    return b"".join(parts)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
