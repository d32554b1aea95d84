"""Names: one that nobody answers for holds up nothing but itself."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from sndr.router.net.resolver import Resolver, literal


class Names:
    """Stands for `socket.getaddrinfo`: counts, and is silent about some names until told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = threading.Event()

    def __call__(self, host: str, port: object, **_: object) -> list[Any]:
        self.asked.append(host)
        if host.startswith("silent"):
            assert self.go.wait(20)
        if host == "nobody.example":
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, 1, 6, "", ("192.0.2.1", 0)), (socket.AF_INET6, 1, 6, "", ("2001:db8::1", 0, 0, 0))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    return found


def test_silent_names_hold_up_no_other(names: Names) -> None:
    async def main() -> None:
        resolver = Resolver()
        waiting = [asyncio.ensure_future(resolver.resolve(f"silent{n % 40}.example")) for n in range(200)]
        async with asyncio.timeout(10):
            for _ in range(3):
                assert await resolver.resolve("good.example") == [(2, "192.0.2.1"), (10, "2001:db8::1")]
        waiting[0].cancel()  # gives up; the others that ask for the same name do not
        assert not any(task.done() for task in waiting[1:])
        names.go.set()
        async with asyncio.timeout(10):
            assert len(await asyncio.gather(*waiting[1:])) == 199
        assert (len(names.asked), names.asked.count("good.example")) == (43, 3)

    asyncio.run(main())


def test_what_is_no_name_is_an_error_for_all_who_ask_and_for_nobody_else(names: Names) -> None:
    async def main() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        resolver = Resolver()
        asked = [asyncio.ensure_future(resolver.resolve("nobody.example")) for _ in range(3)]
        assert all(isinstance(one, OSError) for one in await asyncio.gather(*asked, return_exceptions=True))
        given_up = asyncio.ensure_future(resolver.resolve("nobody.example"))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(OSError, match="not known"):
            await resolver.resolve("nobody.example")
        assert await resolver.resolve("good.example")
        assert not faults

    asyncio.run(main())


def test_a_loop_that_is_gone_is_told_nothing(names: Names) -> None:
    async def main() -> None:
        asyncio.ensure_future(Resolver().resolve("silent.example"))  # noqa: RUF006 - cancelled with the loop
        await asyncio.sleep(0)

    asyncio.run(main())
    names.go.set()
    for thread in threading.enumerate():
        if thread.name == "resolve":
            thread.join(20)


@pytest.mark.parametrize(
    ("host", "found"),
    [("127.0.0.1", [(2, "127.0.0.1")]), ("::1", [(10, "::1")]), ("localhost", None), ("", None), ("\u00e9", None)],
)
def test_literal_addresses_are_no_names(host: str, found: object) -> None:
    assert literal(host) == found


def test_a_name_that_no_thread_was_left_for_is_looked_up_again(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        resolver = Resolver()
        with monkeypatch.context() as crowded:
            crowded.setattr(threading.Thread, "start", refuse)
            with pytest.raises(OSError, match="can't start new thread"):
                await resolver.resolve("good.example")
        async with asyncio.timeout(10):
            assert await resolver.resolve("good.example") == [(2, "192.0.2.1"), (10, "2001:db8::1")]

    asyncio.run(main())
