"""The writer: batches, order, laziness, flush and close."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable

from sndr.router.store.writer import Worker, Writer


class Recorder:
    """A writer whose thread records its batches and can be held."""

    def __init__(self, **options: float) -> None:
        self.batches: list[list[int]] = []
        self.delivered: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.writer: Writer[int, int] = Writer("t", self._write, self._deliver, **options)  # type: ignore[arg-type]

    def _write(self, batch: list[int]) -> int:
        self.entered.set()
        assert self.gate.wait(10)
        self.batches.append(batch)
        return len(batch)

    def _deliver(self, batch: list[int], result: int) -> None:
        assert result == len(batch)
        self.delivered += batch


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def test_everything_queued_leaves_together_and_in_order() -> None:
    async def test() -> None:
        r = Recorder()
        r.gate.clear()
        r.writer.submit(0)
        await asyncio.to_thread(r.entered.wait, 10)
        for n in range(1, 100):
            r.writer.submit(n)
        assert r.writer.queued == 100
        assert r.delivered == []
        r.gate.set()
        await r.writer.flush()
        assert r.batches == [[0], list(range(1, 100))]
        assert r.delivered == list(range(100))
        assert (r.writer.queued, r.writer.oldest) == (0, None)
        await r.writer.close()

    run(test)


def test_a_burst_over_several_iterations_shares_a_batch() -> None:
    async def test() -> None:
        r = Recorder()
        for n in range(5):
            r.writer.submit(n)
            await asyncio.sleep(0)
        await r.writer.flush()
        assert r.batches == [[0, 1, 2, 3, 4]]
        await r.writer.close()

    run(test)


def test_an_endless_burst_does_not_postpone_the_write() -> None:
    async def test() -> None:
        r = Recorder()
        for n in range(1000):
            r.writer.submit(n)
            await asyncio.sleep(0)
        await r.writer.close()
        assert len(r.batches[0]) < 20
        assert r.delivered == list(range(1000))

    run(test)


def test_lazy_items_ride_along_or_leave_by_number() -> None:
    async def test() -> None:
        r = Recorder(lazy_s=3600, lazy_limit=4)
        r.writer.submit_lazy(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert r.batches == []
        r.writer.submit(2)
        await r.writer.flush()
        assert r.batches == [[1, 2]]
        for n in range(3, 7):
            r.writer.submit_lazy(n)
        await asyncio.to_thread(lambda: None)
        await r.writer.flush()
        assert r.batches[1] == [3, 4, 5, 6]
        await r.writer.close()

    run(test)


def test_a_lazy_item_leaves_by_itself() -> None:
    async def test() -> None:
        r = Recorder(lazy_s=0.001)
        r.writer.submit_lazy(1)
        while not r.delivered:
            await asyncio.sleep(0.001)
        # Also when it was handed over during a write.
        r.gate.clear()
        r.writer.submit(2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        r.writer.submit_lazy(3)
        r.gate.set()
        while r.delivered != [1, 2, 3]:
            await asyncio.sleep(0.001)
        await r.writer.close()

    run(test)


def test_lazy_items_that_became_many_during_a_write_leave_right_behind_it() -> None:
    async def test() -> None:
        r = Recorder(lazy_s=3600, lazy_limit=3)
        r.gate.clear()
        r.writer.submit(0)
        await asyncio.to_thread(r.entered.wait, 10)
        for n in (1, 2, 3):
            r.writer.submit_lazy(n)
        r.gate.set()
        while len(r.delivered) < 4:
            await asyncio.sleep(0.001)
        assert r.batches == [[0], [1, 2, 3]]
        await r.writer.close()

    run(test)


def test_a_lazy_item_whose_time_comes_during_a_burst_waits_for_its_end() -> None:
    async def test() -> None:
        r = Recorder(lazy_s=0)
        r.writer.submit_lazy(1)
        r.writer.submit(2)
        await asyncio.sleep(0)  # the time of the first is over in this iteration
        r.writer.submit(3)
        await asyncio.sleep(0)
        await r.writer.flush()
        assert r.batches == [[1, 2, 3]]
        await r.writer.close()

    run(test)


def test_a_loop_that_is_gone_ends_the_thread_behind_the_write() -> None:
    async def test() -> Recorder:
        r = Recorder()
        r.gate.clear()
        r.writer.submit(1)
        await asyncio.to_thread(r.entered.wait, 10)
        return r

    r = asyncio.run(test())
    r.gate.set()
    r.writer._thread.join(10)
    assert not r.writer._thread.is_alive()
    assert (r.batches, r.delivered) == ([[1]], [])


def test_close_writes_what_is_queued_and_may_be_repeated() -> None:
    async def test() -> None:
        r = Recorder(lazy_s=3600)
        r.writer.submit(1)
        r.writer.submit_lazy(2)
        await r.writer.close()
        await r.writer.close()
        assert r.delivered == [1, 2]

    run(test)


def test_a_cancelled_flush_hurts_nobody() -> None:
    async def test() -> None:
        r = Recorder()
        r.gate.clear()
        r.writer.submit(1)
        first = asyncio.ensure_future(r.writer.flush())
        second = asyncio.ensure_future(r.writer.flush())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        r.gate.set()
        await second
        assert r.delivered == [1]
        await r.writer.close()

    run(test)


def test_a_worker_answers_in_order_and_hands_errors_back() -> None:
    async def test() -> None:
        worker = Worker("t")
        names: list[str] = []
        answers = await asyncio.gather(
            worker.run(lambda: names.append("a")),
            worker.run(lambda: 1 / 0),
            worker.run(threading.get_ident),
            return_exceptions=True,
        )
        assert (names, answers[0], type(answers[1])) == (["a"], None, ZeroDivisionError)
        assert answers[2] != threading.get_ident()
        await worker.close()

    run(test)


def test_a_call_whose_caller_left_is_made_and_answers_nobody() -> None:
    async def test() -> None:
        worker = Worker("t")
        gate, made = threading.Event(), []
        left = asyncio.ensure_future(worker.run(lambda: made.append(gate.wait(10))))
        stays = asyncio.ensure_future(worker.run(lambda: len(made)))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await stays == 1
        assert (made, left.cancelled()) == ([True], True)
        await worker.close()

    run(test)


def test_a_call_that_never_returns_holds_up_no_exit() -> None:
    code = (
        "import asyncio, threading\n"
        "from sndr.router.store.writer import Worker\n"
        "async def main():\n"
        "    worker = Worker('t')\n"
        "    asyncio.ensure_future(worker.run(threading.Event().wait))\n"
        "    await asyncio.sleep(0.01)\n"
        "    try:\n"
        "        async with asyncio.timeout(0.05):\n"
        "            await worker.close()\n"
        "    except TimeoutError:\n"
        "        print('left')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
