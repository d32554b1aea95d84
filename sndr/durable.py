"""Replace a file so that a crash leaves the old content or the new one, never a mix.

The recipe is: a new file under a random name in the same directory, all bytes, fsync of the file, rename over the
target, fsync of the directory. Each step answers one question that nothing else answers: without the first fsync a
power cut leaves an empty file under the new name; without the second it brings the old content back after the
caller was told that the new one is safe.

Every call that reaches the disk goes through a `Disk`, so that tests can stop, fail or record each of them.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import secrets
import stat
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

__all__ = [
    "Definite",
    "Disk",
    "Done",
    "FileId",
    "Outcome",
    "PosixDisk",
    "ReplaceFailed",
    "ReplaceUncertain",
    "Uncertain",
    "file_id",
    "is_temp_name",
    "replace_file",
    "temp_name",
    "write_atomic",
]

_TEMP_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_DIR_FLAGS: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_TOKEN_BYTES: Final = 16
_NAME_BYTES_MAX: Final = 128


class Disk(Protocol):
    """The system calls of a durable write, one method each; every one may raise `OSError`."""

    def open(self, name: str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int: ...
    def close(self, fd: int) -> None: ...
    def read(self, fd: int, size: int) -> bytes: ...
    def write(self, fd: int, data: memoryview) -> int: ...
    def fsync(self, fd: int) -> None: ...
    def fchmod(self, fd: int, mode: int) -> None: ...
    def fstat(self, fd: int) -> os.stat_result: ...
    def lstat(self, name: str, *, dir_fd: int | None = None) -> os.stat_result: ...
    def rename(self, source: str, target: str, *, dir_fd: int) -> None: ...
    def unlink(self, name: str, *, dir_fd: int) -> None: ...
    def listdir(self, fd: int) -> list[str]: ...
    def token(self) -> str: ...


class PosixDisk:
    """The `Disk` of the operating system."""

    __slots__ = ("_full_fsync",)

    def __init__(self) -> None:
        # macOS answers fsync before the drive has written; F_FULLFSYNC waits for the drive. Only macOS has it.
        try:
            self._full_fsync = getattr(importlib.import_module("fcntl"), "F_FULLFSYNC", None)
        except ImportError:
            self._full_fsync = None

    def open(self, name: str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
        return os.open(name, flags, mode, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, size: int) -> bytes:
        return os.read(fd, size)

    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        if self._full_fsync is None:
            os.fsync(fd)
        else:
            importlib.import_module("fcntl").fcntl(fd, self._full_fsync)

    def fchmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def lstat(self, name: str, *, dir_fd: int | None = None) -> os.stat_result:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)

    def rename(self, source: str, target: str, *, dir_fd: int) -> None:
        os.rename(source, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def unlink(self, name: str, *, dir_fd: int) -> None:
        os.unlink(name, dir_fd=dir_fd)

    def listdir(self, fd: int) -> list[str]:
        return os.listdir(fd)

    def token(self) -> str:
        return secrets.token_hex(_TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class FileId:
    """Which file a name or a descriptor means: equal ids are the same file."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Done:
    """The new content is on disk and survives a power cut; `file` is the file that holds it."""

    file: FileId


@dataclass(frozen=True, slots=True)
class Definite:
    """Nothing changed: the target is what it was. `step` and `errno` say what failed."""

    step: str
    errno: int


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The target may be the old content or the new one, now or after a power cut: read it, or write again.

    `file` is the new file, to recognise it by.
    """

    step: str
    errno: int
    file: FileId


Outcome: TypeAlias = Done | Definite | Uncertain


class ReplaceFailed(OSError):  # noqa: N818  # says which of the two failures it is
    """`write_atomic` failed and the target is what it was."""


class ReplaceUncertain(OSError):  # noqa: N818  # says which of the two failures it is
    """`write_atomic` failed after the rename: the target may be old or new after a power cut."""


def temp_name(name: str, token: str) -> str:
    """The name of a temporary file that stands in for `name`; at most 255 bytes for any `name`."""
    head = os.fsencode(name)[:_NAME_BYTES_MAX].decode("utf-8", "ignore")
    return f".{head}.{token}.tmp"


def is_temp_name(candidate: str, name: str) -> bool:
    """Whether `candidate` is a temporary file that `replace_file` may have left behind for `name`."""
    head, tail = temp_name(name, "\0").split("\0")
    token = candidate[len(head) : len(candidate) - len(tail)]
    return (
        candidate == f"{head}{token}{tail}"
        and len(token) == 2 * _TOKEN_BYTES
        and all(character in "0123456789abcdef" for character in token)
    )


def replace_file(disk: Disk, dir_fd: int, name: str, data: bytes, *, mode: int | None = 0o600) -> Outcome:
    """Replace `name` inside the directory `dir_fd` by a new file with exactly `data`.

    Args:
        disk: The system calls.
        dir_fd: Descriptor of the directory; every call is relative to it, so a renamed parent redirects nothing.
        name: A plain name. If it exists it must be a regular file, otherwise nothing is written.
        data: The whole new content.
        mode: Permission bits, set and verified whatever the umask is; None leaves the choice to the umask.

    Returns:
        `Done`, `Definite` or `Uncertain`. A failed call is never repeated: Linux may drop the data of a failed fsync
        and report success the second time. Calling again makes a new file and a new rename.

    Crash:
        Before the rename the target is unchanged and a temporary file may be left (see `is_temp_name`); after it the
        target is the old content or the new one until the directory fsync returned, then the new one.
    """
    step = "inspect"
    temp: str | None = None
    fd = -1
    try:
        before = _lstat(disk, dir_fd, name)
        if before is not None and not stat.S_ISREG(before.st_mode):
            return Definite(step, errno.EINVAL)
        step = "open"
        candidate = temp_name(name, disk.token())
        fd = disk.open(candidate, _TEMP_FLAGS, 0o666 if mode is None else mode, dir_fd=dir_fd)
        temp = candidate
        if mode is not None:
            step = "chmod"
            disk.fchmod(fd, mode)
        step = "write"
        view = memoryview(data)
        while view:
            written = disk.write(fd, view)
            if written <= 0:  # a regular file never answers 0; looping on it would never end
                return Definite(step, errno.EIO)
            view = view[written:]
        step = "fsync"
        disk.fsync(fd)
        step = "size"
        made = disk.fstat(fd)
        if made.st_size != len(data) or (mode is not None and stat.S_IMODE(made.st_mode) != mode):
            return Definite(step, errno.EIO)
        step = "close"
        closing, fd = fd, -1  # whatever close answers, the descriptor is gone: a second close could hit another file
        disk.close(closing)
        step = "rename"
        try:
            disk.rename(candidate, name, dir_fd=dir_fd)
        except OSError as error:
            if _is_unchanged(disk, dir_fd, name, before):
                return Definite(step, _number(error))
            temp = None
            return Uncertain(step, _number(error), file_id(made))
        temp = None
        step = "fsync_dir"
        try:
            disk.fsync(dir_fd)
        except OSError as error:
            return Uncertain(step, _number(error), file_id(made))
        return Done(file_id(made))
    except OSError as error:
        return Definite(step, _number(error))
    finally:
        if fd >= 0:
            with contextlib.suppress(OSError):
                disk.close(fd)
        if temp is not None:
            with contextlib.suppress(OSError):
                disk.unlink(temp, dir_fd=dir_fd)


def write_atomic(
    path: str | os.PathLike[str], data: bytes, mode: int | None = None, *, disk: Disk | None = None
) -> None:
    """Write `data` to `path` so that a reader, or a crash, sees the old file or the new one.

    Args:
        path: Where. A symbolic link at `path` itself is replaced, not followed: resolve it first to write its target.
        data: The whole content.
        mode: Permission bits. None keeps those of the file that is replaced; a new file gets what the umask allows.
        disk: The system calls; the operating system's unless a test passes its own.

    Raises:
        ReplaceFailed: nothing changed (also when `path` exists and is not a regular file).
        ReplaceUncertain: the rename happened or may have happened, but is not known to survive a power cut.

    Crash:
        As `replace_file`.
    """
    calls: Disk = PosixDisk() if disk is None else disk
    text = os.fspath(path)
    directory, name = os.path.split(text)
    if not name:
        raise ReplaceFailed(errno.EISDIR, os.strerror(errno.EISDIR), text)
    try:
        dir_fd = calls.open(directory or os.curdir, _DIR_FLAGS)
    except OSError as error:
        raise ReplaceFailed(error.errno, error.strerror, text) from error
    try:
        if mode is None:
            with contextlib.suppress(OSError):
                mode = stat.S_IMODE(calls.lstat(name, dir_fd=dir_fd).st_mode)
        outcome = replace_file(calls, dir_fd, name, data, mode=mode)
    finally:
        with contextlib.suppress(OSError):
            calls.close(dir_fd)
    if isinstance(outcome, Definite):
        raise ReplaceFailed(outcome.errno, os.strerror(outcome.errno), text)
    if isinstance(outcome, Uncertain):
        raise ReplaceUncertain(outcome.errno, os.strerror(outcome.errno), text)


def _lstat(disk: Disk, dir_fd: int, name: str) -> os.stat_result | None:
    try:
        return disk.lstat(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return None


def file_id(result: os.stat_result) -> FileId:
    """The identity in a stat result."""
    return FileId(result.st_dev, result.st_ino)


def _is_unchanged(disk: Disk, dir_fd: int, name: str, before: os.stat_result | None) -> bool:
    """After a failed rename: whether the name certainly means what it meant before."""
    try:
        after = _lstat(disk, dir_fd, name)
    except OSError:
        return False
    if before is None or after is None:
        return before is after
    return file_id(after) == file_id(before)


def _number(error: OSError) -> int:
    return errno.EIO if error.errno is None else error.errno
