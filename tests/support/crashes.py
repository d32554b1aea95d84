"""Every disk call of every durable operation, stopped or failed, and every image that a power cut may leave.

One *point* is an operation with one fault at one call. One *image* is the directory after a power cut at one instant
of a point. Each point is opened again as a killed process leaves it; each distinct image is opened again too. What was
told to anybody before the crash must be what the survivor says.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sndr.durable import Disk
from sndr.errors import AuthorityError, ControlError
from sndr.router import offline
from sndr.router.core import projection as routes
from sndr.router.core.receipt import Record
from sndr.router.store import authority as store
from sndr.router.wire.record import encode_record, parse_record
from tests.support import records
from tests.support.disks import Fault, FaultDisk, FaultKind, Image, Kernel, Killed, QuickDisk

NAME = "routes.json"


@dataclass
class Report:
    """What a run found; `violations` must stay empty for the real writer."""

    points: int = 0
    images: int = 0
    opened: int = 0
    per_operation: dict[str, tuple[int, int]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What the outside may know after an operation ended by itself.

    Attributes:
        told: What was published or answered, as a file; None: whatever is visible.
        unknown: The answer was that nobody knows.
        again: What a caller does next after a failure: the same write, or the re-assertion of what is visible.
    """

    told: bytes | None
    unknown: bool = False
    again: Callable[[], bytes | None] | None = None


Run: TypeAlias = Callable[[FaultDisk, str], Callable[[], Outcome]]


@dataclass(frozen=True)
class Operation:
    """A durable operation.

    Attributes:
        name: As in the crash table.
        before: Bytes of the file before, None for no file.
        projection: Of the boot file that a restart has.
        prepare: Does what precedes the operation, without faults, and gives the operation itself.
    """

    name: str
    before: Record | None
    projection: routes.Projection
    prepare: Run


def operations() -> tuple[Operation, ...]:
    """W0, the six writes of a running router, init, and both kinds of rebase."""
    changed = records.boot(context_limit=4096)
    start = records.first()
    live = records.alias_update(start)
    return (
        Operation("W0", live, records.boot(), _open),
        *(Operation(step.name, step.before, records.boot(), _write(step)) for step in records.steps()),
        Operation("init", None, records.boot(), _init),
        Operation("rebase", live, changed, _rebase(keep_live=False)),
        Operation("rebase_keep", live, changed, _rebase(keep_live=True)),
    )


def _open(disk: FaultDisk, path: str) -> Callable[[], Outcome]:
    def operate() -> Outcome:
        authority = store.open_authority(path, records.boot(), disk=disk, allow_volatile=True)
        return Outcome(encode_record(authority.record))

    return operate


def _write(step: records.Step) -> Run:
    def prepare(disk: FaultDisk, path: str) -> Callable[[], Outcome]:
        authority = store.open_authority(path, records.boot(), disk=disk, allow_volatile=True)

        def operate() -> Outcome:
            before = encode_record(authority.record)
            match authority.write(step.after, records.boot()):
                case store.Written(record=record):
                    return Outcome(encode_record(record))
                case store.Unknown():
                    return Outcome(before, True, lambda: _again(authority, authority.visible(), reassert=True))
                case _:
                    return Outcome(before, False, lambda: _again(authority, step.after, reassert=False))

        return operate

    return prepare


def _again(authority: store.Authority, record: Record, *, reassert: bool) -> bytes | None:
    old = os.stat(authority.path).st_ino
    result = authority.write(record, records.boot(), reassert=reassert)
    if not isinstance(result, store.Written) or os.stat(authority.path).st_ino == old:
        return None
    return encode_record(result.record)


def _init(disk: FaultDisk, path: str) -> Callable[[], Outcome]:
    def operate() -> Outcome:
        record = store.create(path, records.boot(), disk=disk, allow_volatile=True)
        return Outcome(encode_record(record))

    return operate


def _rebase(*, keep_live: bool) -> Run:
    def prepare(disk: FaultDisk, path: str) -> Callable[[], Outcome]:
        def operate() -> Outcome:
            files = offline.Files("config.toml", path, None, records.boot(context_limit=4096))
            with open(path, "rb") as stream:
                now = parse_record(stream.read())
            offline.rebase(files, now.current.fence, keep_live=keep_live, confirm=True, allow_volatile=True, disk=disk)
            return Outcome(None)

        return operate

    return prepare


class Sweep:
    """Runs operations under faults and judges what is left."""

    def __init__(self, report: Report, root: str, *, stop_at_first: bool = False) -> None:
        self.report = report
        self._stop_at_first = stop_at_first
        self._root = root
        self._seen: set[tuple[str, bytes | None]] = set()

    def run(self, operation: Operation, kinds: tuple[FaultKind, ...] = tuple(FaultKind)) -> None:
        """Every call of the operation with every kind of fault."""
        points, images = self.report.points, self.report.images
        calls = self._point(operation, None)
        for index, call in enumerate(calls):
            for kind in kinds:
                if self._stop_at_first and self.report.violations:
                    return
                if kind is not FaultKind.SHORT or call == "write":
                    self._point(operation, Fault(index, kind))
        self.report.per_operation[operation.name] = (self.report.points - points, self.report.images - images)

    def _point(self, operation: Operation, fault: Fault | None) -> list[str]:
        self.report.points += 1
        label = f"{operation.name}/{'no fault' if fault is None else f'{fault.kind} at call {fault.index}'}"
        directory = tempfile.mkdtemp(dir=self._root)
        path = os.path.join(directory, NAME)
        if operation.before is not None:
            _put(path, encode_record(operation.before))
            _put(f"{path}.lock", b"")
        kernel = Kernel(directory)
        disk = FaultDisk(kernel)
        operate = operation.prepare(disk, path)
        kernel.settle()
        before = _visible(kernel)
        told = before
        disk.on_call = lambda: self._judge_images(operation, label, kernel, told, before)
        disk.arm(fault)
        outcome: Outcome | None = None
        with contextlib.suppress(Killed, AuthorityError, ControlError, OSError):
            outcome = operate()
        calls = list(disk.calls)
        if outcome is not None:
            told = _visible(kernel) if outcome.told is None else outcome.told
            if not outcome.unknown and _visible(kernel) != told:
                self._fail(label, "INV-1", "the answer and the visible file differ")
            if outcome.again is not None:
                self._judge_images(operation, label, kernel, told, before)
                told = outcome.again()
                if told is None:
                    self._fail(label, "INV-16", "the write after a failed one did not make a new file")
                    told = before
        # The instant after the end: what was told must survive from here on.
        self._judge_images(operation, label, kernel, told, before)
        disk.bury()
        self._judge_restart(operation, label, kernel, path, told)
        shutil.rmtree(directory)
        return calls

    def _judge_images(
        self, operation: Operation, label: str, kernel: Kernel, told: bytes | None, before: bytes | None
    ) -> None:
        kernel.settle()
        for image in kernel.images():
            self.report.images += 1
            survivor = image.get(NAME)
            if told is not None and not _keeps(survivor, told):
                self._fail(label, "INV-1", "a power cut loses what was told")
            key = (operation.name, survivor)
            if key in self._seen:
                continue
            self._seen.add(key)
            self._open_image(operation, label, image, before)

    def _open_image(self, operation: Operation, label: str, image: Image, before: bytes | None) -> None:
        directory = tempfile.mkdtemp(dir=self._root)
        try:
            for name, content in image.items():
                _put(os.path.join(directory, name), content)
            survivor = image.get(NAME)
            if survivor is None:
                if before is not None:
                    self._fail(label, "INV-12", "a power cut loses the whole file")
                return
            self._reopen(operation, label, os.path.join(directory, NAME), None)
        finally:
            shutil.rmtree(directory)

    def _judge_restart(self, operation: Operation, label: str, kernel: Kernel, path: str, told: bytes | None) -> None:
        """A new process on what the old one left, then a power cut right after it has started."""
        visible = _visible(kernel)
        if visible is None:
            if told is not None:
                self._fail(label, "INV-1", "the file is gone")
            elif operation.before is None:  # an interrupted init is simply run again
                store.create(path, records.boot(), disk=QuickDisk(), allow_volatile=True)
            return
        disk = FaultDisk(kernel, token_seed=1_000_000)
        record = self._reopen(operation, label, path, disk)
        if record is None:
            return
        if told is not None and record.current.route_revision < parse_record(told).current.route_revision:
            self._fail(label, "INV-2", "the revision went back after a restart")
        kernel.settle()
        for image in kernel.images():
            self.report.images += 1
            survivor = image.get(NAME)
            if survivor is None or not _keeps(survivor, encode_record(record)):
                self._fail(label, "INV-1", "a power cut after a restart loses what the new process publishes")

    def _reopen(self, operation: Operation, label: str, path: str, disk: FaultDisk | None) -> Record | None:
        self.report.opened += 1
        with open(path, "rb") as stream:
            found = stream.read()
        projection = operation.projection
        if operation.before is not None and parse_or_none(found) is not None:
            boot_sha256 = parse_record(found).boot_sha256
            if boot_sha256 == operation.before.boot_sha256:
                projection = records.boot()
        calls: Disk = QuickDisk() if disk is None else disk
        try:
            authority = store.open_authority(path, projection, disk=calls, allow_volatile=True)
        except AuthorityError as error:
            self._fail(label, "INV-12", f"a start refuses what is left: {error.code}: {error.message}")
            return None
        record = authority.record
        authority.close()
        receipt = record.transaction
        if receipt is not None and receipt.hold == receipt.state.is_terminal:
            self._fail(label, "INV-7", "a receipt that is not over holds nothing")
        if record.current.effective_route_sha256 != routes.sha256(record.current.projection):
            self._fail(label, "INV-3", "revision and content do not belong together")
        return record

    def _fail(self, label: str, invariant: str, text: str) -> None:
        self.report.violations.append(f"{invariant}: {label}: {text}")


@functools.lru_cache(maxsize=4096)
def _keeps(survivor: bytes | None, told: bytes) -> bool:
    """Whether the survivor says what was told, or is the same again with a higher write_seq."""
    record, expected = (None if survivor is None else parse_or_none(survivor)), parse_or_none(told)
    assert expected is not None
    if record is None or record.write_seq < expected.write_seq:
        return False
    return replace(record, write_seq=expected.write_seq) == expected or (
        record.current.route_revision > expected.current.route_revision
        or (record.current == expected.current and record.write_seq > expected.write_seq)
    )


@functools.lru_cache(maxsize=4096)
def parse_or_none(data: bytes) -> Record | None:
    try:
        return parse_record(data)
    except AuthorityError:
        return None


def _visible(kernel: Kernel) -> bytes | None:
    inode = kernel.names.get(NAME)
    return None if inode is None else inode.cached


def _put(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def sweep_all(
    root: str,
    *,
    only: tuple[str, ...] = (),
    kinds: tuple[FaultKind, ...] = tuple(FaultKind),
    stop_at_first: bool = False,
) -> Report:
    """Run every operation, or those named; `stop_at_first` violation is for writers that are known to be broken."""
    report = Report()
    sweep = Sweep(report, root, stop_at_first=stop_at_first)
    for operation in operations():
        if not only or operation.name in only:
            sweep.run(operation, kinds)
    return report
