"""Names to addresses, so that a name server that is silent about one name delays no other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from typing import Final

__all__ = ["Address", "Resolver", "literal"]

Address = tuple[int, str]
"""Family and literal address."""


def literal(host: str) -> list[Address] | None:
    """The address that the host is; None where it is a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, UnicodeError):
            continue
        return [(family, host)]
    return None


class Resolver:
    """Looks up each name on a thread of its own, once at a time for all who ask.

    The loop's own threads are few, and a look-up can hold one for half a minute, whatever its caller's deadline: with
    one silent name server they would soon all wait, and every other name with them. Here there are as many threads as
    names that are being looked up, and they are daemons: none delays the end of the process.
    """

    def __init__(self) -> None:
        self._running: Final[dict[str, asyncio.Future[list[Address]]]] = {}

    async def resolve(self, host: str) -> list[Address]:
        """Addresses of a name. Cancelling the wait does not stop the look-up.

        Raises:
            OSError: There is no such name, or nobody who knows, or no thread to ask with.
            UnicodeError: It cannot be a name.
        """
        running = self._running.get(host)
        if running is None:
            loop = asyncio.get_running_loop()
            running = loop.create_future()
            running.add_done_callback(lambda future: future.exception())  # known, also where nobody waits any more
            thread = threading.Thread(target=self._look_up, args=(loop, host, running), name="resolve", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # as many threads as the system allows; the next who ask try again
                raise OSError(errno.EAGAIN, str(error)) from None
            self._running[host] = running
        return await asyncio.shield(running)

    def _look_up(
        self, loop: asyncio.AbstractEventLoop, host: str, future: asyncio.Future[list[Address]]
    ) -> None:  # fmt: skip
        """On the thread."""
        found: list[Address] = []
        fault: Exception | None = None
        try:
            for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                found.append((int(family), str(address[0])))
        except Exception as error:  # noqa: BLE001 - handed to whoever asked
            fault = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            loop.call_soon_threadsafe(self._deliver, host, future, found, fault)

    def _deliver(
        self, host: str, future: asyncio.Future[list[Address]], found: list[Address], fault: Exception | None
    ) -> None:
        del self._running[host]
        if fault is None:
            future.set_result(found)
        else:
            future.set_exception(fault)
