"""The file that ``--out`` writes: which file it is, whether it may be written, and writing it whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sndr.errors import InputError

if TYPE_CHECKING:
    from sndr.durable import Disk

__all__ = ["LOCK_WAIT_S", "Target", "resolve_target", "write_target"]

LOCK_WAIT_S = 10.0
_NEW_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Target:
    """A file that may be written.

    Attributes:
        given: The path as the caller wrote it, for messages.
        path: The absolute path behind every symbolic link; the file need not exist.
    """

    given: str
    path: str


def resolve_target(given: str, catalog: str) -> Target:
    """Find the file behind `given` and refuse what must not be replaced.

    Symbolic links are followed, also one whose target does not exist yet. Nothing is opened or written here.

    Args:
        given: The path as the caller wrote it.
        catalog: The catalog's folder; a file anywhere below it is refused.

    Raises:
        InputError: ``out_refused`` when the target is not a regular file, lies inside the catalog or cannot be
            looked at.
    """
    try:
        path = os.path.realpath(given)
        if given.endswith("/"):
            raise _refused(given, "a folder's name, not a file's")
        found = _stat(path)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise _refused(given, f"{_kind(found.st_mode)}, not a regular file; it is left as it is")
        parent = os.path.dirname(path)
        if _stat(parent) is None:
            raise _refused(given, f"there is no folder {parent}")
        if _is_inside(parent, catalog):
            raise _refused(given, f"inside the catalog {catalog}; write it elsewhere")
    except OSError as error:
        raise _refused(given, error.strerror or str(error)) from error
    except ValueError as error:  # a NUL in the path
        raise _refused(given, str(error)) from error
    return Target(given, path)


def write_target(target: Target, data: bytes, *, disk: Disk | None = None) -> None:
    """Replace the file by `data`, one writer at a time.

    The lock is ``FILE.lock`` beside the file, waited for up to :data:`LOCK_WAIT_S`; it stays there afterwards, since
    removing it could let two waiters in. A new file gets mode 0644, a replaced one keeps its mode.

    Args:
        target: What :func:`resolve_target` found.
        data: The whole new content.
        disk: The system calls; the operating system's unless a test passes its own.

    Raises:
        InputError: ``out_locked``, ``out_refused`` or ``out_failed``: the old file is intact. ``out_uncertain``: the
            new file is in place but may not survive a power cut.

    Crash:
        The file is the old one or the new one, whole; a temporary file may be left beside it.
    """
    from filelock import FileLock, Timeout  # only --out pays for it

    from sndr.durable import ReplaceFailed, ReplaceUncertain, write_atomic

    lock_path = f"{target.path}.lock"
    try:
        held = _stat(lock_path)
        if held is not None and not stat.S_ISREG(held.st_mode):
            raise _refused(target.given, f"its lock {lock_path} is {_kind(held.st_mode)}, not a regular file")
        if held is not None and held.st_size > 0:  # ours stays empty; older filelock versions would empty it
            raise _refused(
                target.given, f"its lock {lock_path} holds something, so it is somebody's file; move it away"
            )
        # filelock takes "no such file" for "held by another" and waits; opening it first tells why it cannot be had
        os.close(os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _NEW_MODE))
        lock = FileLock(lock_path, timeout=LOCK_WAIT_S)
        lock.acquire()
        try:
            write_atomic(target.path, data, _mode(target), disk=disk)
        finally:
            with contextlib.suppress(OSError):  # says nothing about the file, and the process's end releases it too
                lock.release()
    except Timeout as error:
        text = f"{target.given}: another writer holds {lock_path} (waited {LOCK_WAIT_S:g} s); nothing was written"
        raise InputError("out_locked", text) from error
    except ReplaceUncertain as error:
        text = f"{target.given}: {error.strerror}: the new table is in place but may not last; write it again"
        raise InputError("out_uncertain", text) from error
    except ReplaceFailed as error:
        text = f"{target.given}: {error.strerror}; nothing was changed"
        raise InputError("out_failed", text) from error
    except OSError as error:  # the lock file
        name = f"{error.filename}: " if error.filename not in (None, target.path) else ""
        text = f"{target.given}: {name}{error.strerror or error}; nothing was changed"
        raise InputError("out_failed", text) from error


def _mode(target: Target) -> int:
    """Return the permission bits the written file gets; asked under the lock."""
    found = _stat(target.path)
    if found is None:
        return _NEW_MODE
    if not stat.S_ISREG(found.st_mode):
        raise _refused(target.given, f"{_kind(found.st_mode)}, not a regular file; it is left as it is")
    return stat.S_IMODE(found.st_mode)


def _stat(path: str) -> os.stat_result | None:
    """Return what `path` itself is (never what a link points to), or None if there is nothing."""
    try:
        return os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_inside(folder: str, catalog: str) -> bool:
    """Whether `folder` is `catalog` or below it, by identity and not by spelling (bind mounts, other names)."""
    try:
        root = os.stat(catalog)
    except OSError:
        return False  # there is no catalog to protect; reading it will say so
    while True:
        if os.path.samestat(os.stat(folder), root):
            return True
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISLNK(mode):
        return "a symbolic link that leads nowhere (a loop)"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def _refused(given: str, why: str) -> InputError:
    return InputError("out_refused", f"{given}: {why}")
