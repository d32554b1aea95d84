"""One writer per file: a lock file beside it, locked for the life of the process.

`flock` belongs to the open file, not to the process: closing another descriptor of it cannot lose the lock, and a
forked child would keep it. So the descriptor closes on exec, nothing of ours forks or unlocks, and the end of the
process is what releases it. The file is created once and never replaced: whoever deletes it makes room for a second
holder, which `Lock.is_intact` notices.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from sndr.durable import Disk, file_id
from sndr.errors import AuthorityError
from sndr.router.store.custody import FILE_MODE, check_file

__all__ = ["Lock", "acquire", "lock_name"]

_ATTEMPTS: Final = 3
_FLAGS: Final = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def lock_name(name: str) -> str:
    """The lock file of `name`."""
    return f"{name}.lock"


class Lock:
    """A held lock. `release` is for tests and offline verbs; a router keeps it until it ends."""

    __slots__ = ("_dir_fd", "_disk", "_fd", "_name")

    def __init__(self, disk: Disk, dir_fd: int, name: str, fd: int) -> None:
        self._disk = disk
        self._dir_fd = dir_fd
        self._name = name
        self._fd = fd

    def is_intact(self) -> bool:
        """Whether the name still means the file that is locked; false after a deletion or a replacement.

        Raises:
            OSError: the disk failed; the answer is unknown.
        """
        held = self._disk.fstat(self._fd)
        try:
            named = self._disk.lstat(self._name, dir_fd=self._dir_fd)
        except FileNotFoundError:
            return False
        return held.st_nlink == 1 and file_id(held) == file_id(named)

    def release(self) -> None:
        """Close the descriptor, which frees the lock; the directory descriptor stays the caller's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                self._disk.close(fd)


def acquire(disk: Disk, dir_fd: int, name: str, shown: str) -> Lock:
    """Take the lock file `name` in the directory `dir_fd`, creating it if it is absent.

    Args:
        disk: The system calls.
        dir_fd: Directory, already under custody; it must stay open as long as the lock is used.
        name: Of the lock file itself.
        shown: Its path, for messages.

    Raises:
        AuthorityError: `route_lock_held`, a custody code, or `route_filesystem_unsupported` where nothing can lock.
        OSError: the disk failed.

    Crash:
        The kernel frees the lock when the last descriptor closes, however the process ends; the empty file stays.
    """
    for _ in range(_ATTEMPTS):
        fd = _open(disk, dir_fd, name, shown)
        lock = Lock(disk, dir_fd, name, fd)
        try:
            check_file(disk.fstat(fd), shown)
            _flock(fd, shown)
            if lock.is_intact():
                return lock
        except BaseException:
            lock.release()
            raise
        lock.release()  # replaced between open and lock: what was locked is nobody's lock any more
    raise AuthorityError("route_lock_held", f"{shown}: is being replaced by another process")


def _open(disk: Disk, dir_fd: int, name: str, shown: str) -> int:
    try:
        try:
            return disk.open(name, _FLAGS, dir_fd=dir_fd)
        except FileNotFoundError:
            try:
                fd = disk.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, FILE_MODE, dir_fd=dir_fd)
            except FileExistsError:  # another start created it meanwhile
                return disk.open(name, _FLAGS, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise AuthorityError("route_custody_type", f"{shown}: must be a regular file") from None
        if error.errno == errno.EACCES:
            raise AuthorityError("route_custody_mode", f"{shown}: cannot be opened; must have mode 0600") from None
        raise
    try:
        disk.fchmod(fd, FILE_MODE)  # the umask may have taken bits away
    except BaseException:
        with contextlib.suppress(OSError):
            disk.close(fd)
        raise
    return fd


def _flock(fd: int, shown: str) -> None:
    import fcntl  # absent on Windows, where check_platform has refused before

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AuthorityError("route_lock_held", f"{shown}: another router or offline verb holds it") from None
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
            raise AuthorityError(
                "route_filesystem_unsupported", f"{shown}: cannot be locked: {error.strerror}"
            ) from None
        raise
