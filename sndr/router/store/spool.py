"""Files without a name for request bodies that are too large for memory."""

from __future__ import annotations

import os
import tempfile
import threading

__all__ = ["TemporarySpool"]


class TemporarySpool:
    """A file in the temporary folder (`TMPDIR`) that has no name, so that nothing is left of it after any end.

    `write` and `read` belong on a thread that may wait for the disk. `close` may be called while they run: the
    descriptor is given back when the last of them returns, so that none of them can meet a stranger's file.

    Crash: the kernel frees the space.
    """

    def __init__(self) -> None:
        """Make the file.

        Raises:
            OSError: The folder cannot be written.
        """
        # Where the folder cannot be written, the standard library would look for another one, down to the current one.
        folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the file has no name there
        self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - lives as long as the object
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    def write(self, data: bytes, offset: int) -> None:
        """Write all of it.

        Raises:
            OSError: Not all of it could be written, or the file is closed.
        """
        descriptor = self._enter()
        try:
            view = memoryview(data)
            while view:
                count = os.pwrite(descriptor, view, offset)
                view = view[count:]
                offset += count
        finally:
            self._leave()

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from there on, at least one unless that is the end.

        Raises:
            OSError: They could not be read, or the file is closed.
        """
        descriptor = self._enter()
        try:
            return os.pread(descriptor, size, offset)
        finally:
            self._leave()

    def close(self) -> None:
        """Give the file up."""
        with self._lock:
            self._closed = True
            idle = not self._users
        if idle:
            self._file.close()

    def _enter(self) -> int:
        with self._lock:
            if self._closed:
                raise OSError("the file is closed")
            self._users += 1
            return self._file.fileno()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._closed and not self._users
        if last:
            self._file.close()
