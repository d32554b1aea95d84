"""The authority's own thread: a write that hangs in the kernel stalls this thread and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sndr.router.core import effects as fx
from sndr.router.core.projection import Projection
from sndr.router.core.receipt import Record
from sndr.router.store.authority import Authority, Condition, Health, NotWritten, Refused, WriteResult, Written
from sndr.router.store.writer import Writer

__all__ = ["AuthorityWriter"]

_Answer: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class _Job:
    call: Callable[[], _Answer]
    done: Callable[[_Answer], None]


class AuthorityWriter:
    """The loop's end of an open authority. Every method is called on the loop's thread and never waits for the disk.

    Each `done` is called on the loop, once, in the order of the calls: with the answer, or with the exception that the
    disk or the file gave instead.
    """

    def __init__(self, authority: Authority, boot: Projection) -> None:
        self._authority = authority
        self._boot = boot
        self._writer: Writer[_Job, list[_Answer]] = Writer("authority", _run, _deliver)

    @property
    def record(self) -> Record:
        """What is durable, as of the last answered write."""
        return self._authority.record

    @property
    def health(self) -> Health:
        """As of the last answered write."""
        return self._authority.health

    @property
    def condition(self) -> str:
        """`writable`, or the code of what stands in the way; as of the last answered write."""
        return self._authority.health.condition.value

    @property
    def last_write(self) -> str | None:
        """How the last write ended: `done` or a code."""
        return self._authority.health.last_write

    def persist(self, effect: fx.Persist, done: Callable[[fx.Fact], None]) -> None:
        """Make the record of an effect durable, and say what became of it as the machine's fact.

        Only a re-assertion, or a rollback that overtakes a commit in doubt, is tried after an unknown outcome.
        """
        reassert = effect.kind in (fx.WriteKind.REASSERT, fx.WriteKind.ROLLBACK)
        self.write(effect.record, lambda result: done(self._fact(effect, result)), reassert=reassert)

    def _fact(self, effect: fx.Persist, result: object) -> fx.Fact:
        match result:
            case Written(record=record):
                return fx.Written(effect.ticket, write_seq=record.write_seq)
            case NotWritten(code=code):
                return fx.WriteFailed(effect.ticket, fx.Code(code))
            case Refused():
                condition = self._authority.health.condition
                if condition not in (Condition.WRITABLE, Condition.UNCERTAIN):
                    return fx.WriteRefused(effect.ticket, fx.Code(condition.value))
        # The store said that it does not know, or broke while writing: nothing may be built on either.
        return fx.WriteUncertain(effect.ticket, write_seq=self._authority.write_seq)

    @property
    def max_attempted_revision(self) -> int:
        """No later record may reuse a number up to here for other content."""
        return self._authority.max_attempted_revision

    def write(self, record: Record, done: Callable[[WriteResult], None], *, reassert: bool = False) -> None:
        """Make a record durable; see `Authority.write`."""
        self._writer.submit(_Job(lambda: self._authority.write(record, self._boot, reassert=reassert), done))

    def visible(self, done: Callable[[Record | Exception], None]) -> None:
        """Read what the file shows; see `Authority.visible`."""
        self._writer.submit(_Job(self._authority.visible, done))

    def check(self, done: Callable[[Condition | Exception], None]) -> None:
        """Compare file, path and lock with what this process knows; see `Authority.check`."""
        self._writer.submit(_Job(self._authority.check, done))

    async def close(self) -> None:
        """Finish what was submitted, end the thread, release lock and directory."""
        await self._writer.close()
        self._authority.close()


def _run(jobs: list[_Job]) -> list[_Answer]:
    answers: list[_Answer] = []
    for job in jobs:
        try:
            answers.append(job.call())
        except Exception as error:  # noqa: BLE001  # handed to the caller on its own thread; the next job still runs
            answers.append(error)
    return answers


def _deliver(jobs: list[_Job], answers: list[_Answer]) -> None:
    for job, answer in zip(jobs, answers, strict=True):
        job.done(answer)
