"""A listening unix socket as a file: made for owner and group, and removed by the one who made it."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import Final

__all__ = ["MODE", "UnixSocket"]

MODE: Final = 0o660
"""Who may connect: the gateway's user and group. The directory can narrow that."""


class UnixSocket:
    """A bound socket. Nobody can connect before somebody listens on it.

    Attributes:
        path: Its file.
        socket: To be given to a server.
    """

    def __init__(self, path: str) -> None:
        """Bind it, in place of a socket file that nobody listens on any more.

        Raises:
            OSError: The path is in use, by a listener or by something that is no socket, or cannot be made.
        """
        self.path = path
        _remove_stale(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.setblocking(False)
            self.socket.bind(path)
            os.chmod(path, MODE)
            made = os.lstat(path)
        except OSError:
            self.socket.close()
            raise
        self._made = (made.st_dev, made.st_ino)

    def remove(self) -> None:
        """Remove the file, unless another one has taken its place."""
        with contextlib.suppress(OSError):
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == self._made:
                os.unlink(self.path)


def _remove_stale(path: str) -> None:
    """Remove a socket that refuses connections; anything else in its place makes the bind fail."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1)
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(path)
        except OSError:
            pass
