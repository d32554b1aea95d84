"""The authority file of one gateway: opened once under strict checks, written by one thread, never repaired.

`open_authority` is the only way in and ends in a usable authority or in one coded refusal with the file untouched.
`Authority.write` is the only writer; its answer says exactly what is known: done, certainly not, or unknown. After an
unknown one nothing but a deliberate re-assertion is written, and after any sign that somebody else is at the file
nothing at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from sndr.durable import Definite, Disk, FileId, Outcome, PosixDisk, Uncertain, file_id, is_temp_name, replace_file
from sndr.errors import AuthorityError, ControlError
from sndr.router.core.invariants import check_record
from sndr.router.core.projection import INTEGER_MAX, Projection, is_valid, sha256
from sndr.router.core.receipt import Fence, Record, Revision
from sndr.router.store.custody import (
    check_filesystem,
    check_platform,
    file_problems,
    open_directory,
    read_file,
    split_path,
)
from sndr.router.store.lock import Lock, acquire, lock_name
from sndr.router.wire.record import FILE_BYTES_MAX, encode_record, examine, parse_record

__all__ = [
    "Authority",
    "Condition",
    "CrossCheck",
    "Health",
    "Look",
    "NotWritten",
    "Refused",
    "Unknown",
    "WriteResult",
    "Written",
    "check_not_rolled_back",
    "create",
    "look",
    "open_authority",
    "open_for_rebase",
]

CrossCheck: TypeAlias = Callable[[Record], None]

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DIRECTORY_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF})


@dataclass(frozen=True, slots=True)
class Written:
    """The record is durable; it differs from what was asked in `write_seq` alone."""

    record: Record


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Nothing changed. `code` is `authority_write_failed`, `authority_no_space` or `change_too_large`."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The file holds the old record or the new one; the authority is read-only until one of them is re-asserted."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was tried: the authority is read-only, or somebody else changed the file, its lock or its path."""

    code: str
    detail: str


WriteResult: TypeAlias = Written | NotWritten | Unknown | Refused


class Condition(StrEnum):
    """What the authority knows about its file."""

    WRITABLE = "writable"
    UNCERTAIN = "authority_write_uncertain"
    CHANGED = "authority_changed_externally"
    LOCK_LOST = "authority_lock_lost"
    PATH_MOVED = "authority_path_moved"


@dataclass(frozen=True, slots=True)
class Health:
    """A snapshot for the operator's view.

    Attributes:
        condition: `writable`, or the code of what stands in the way.
        last_write: Code of the last attempt, `done` if it succeeded, None before the first.
        last_errno: Of the last failed attempt.
    """

    condition: Condition
    last_write: str | None
    last_errno: int | None

    @property
    def writable(self) -> bool:
        """Whether an ordinary write would be tried."""
        return self.condition is Condition.WRITABLE


class Authority:
    """The open authority. Everything but `record` and `health` is for one thread at a time, which may block.

    Attributes:
        record: What is durable as far as this process knows; changes only when a write is done.
        health: Replaced as a whole after each attempt; safe to read from any thread.
        max_attempted_revision: No later record may reuse a number up to here for other content.
    """

    def __init__(self, place: _Place, record: Record, data: bytes, found: FileId) -> None:
        self._place = place
        self._candidates: tuple[tuple[bytes, FileId], ...] = ((data, found),)
        self.record = record
        self.health = Health(Condition.WRITABLE, None, None)
        self.max_attempted_revision = record.current.route_revision
        self._write_seq = record.write_seq
        self._attempts: tuple[Fence, ...] = ()

    @property
    def write_seq(self) -> int:
        """The highest number that a record of this process may have on disk."""
        return self._write_seq

    @property
    def path(self) -> str:
        """The path it was opened by, for messages."""
        return self._place.shown

    def write(self, record: Record, boot: Projection, *, reassert: bool = False) -> WriteResult:
        """Make `record` durable.

        Args:
            record: The whole new content; its `write_seq` is raised if it is not above every earlier one.
            boot: The routes of the boot file, for the consistency rules that start-up will apply.
            reassert: Also write after an unknown outcome; everything is written again into a new file.

        Crash:
            As `sndr.durable.replace_file`: the old record or the new one.
        """
        if not self.health.writable and not (reassert and self.health.condition is Condition.UNCERTAIN):
            return Refused("authority_read_only", f"the authority is read-only: {self.health.condition}")
        if self._write_seq >= INTEGER_MAX or record.current.route_revision > INTEGER_MAX - 1:
            return NotWritten("authority_write_failed", "the revision or write counter is exhausted")
        if not self._is_forward(record.current.fence):
            return NotWritten("authority_write_failed", "the revision number already means other routes")
        try:
            record = replace(record, write_seq=max(record.write_seq, self._write_seq + 1))
            data = _encode_checked(record, boot, self._trusted())
        except ControlError as error:
            return NotWritten(error.code, error.message)
        try:
            condition = self._examine_place()
        except OSError as error:
            return self._failed("inspect", error.errno or errno.EIO)
        if condition is not Condition.WRITABLE:
            self.health = Health(condition, condition.value, None)
            return Refused(condition.value, f"{self.path}: {condition}")
        outcome = self._place.replace(data)
        if isinstance(outcome, Definite):
            return self._failed(outcome.step, outcome.errno)
        self._write_seq = record.write_seq
        self.max_attempted_revision = max(self.max_attempted_revision, record.current.route_revision)
        if isinstance(outcome, Uncertain):
            self._attempts = (*self._attempts, record.current.fence)
            self._candidates = (*self._candidates, (data, outcome.file))
            self.health = Health(Condition.UNCERTAIN, Condition.UNCERTAIN.value, outcome.errno)
            return Unknown(Condition.UNCERTAIN.value, _detail(outcome.step, outcome.errno))
        self._candidates = ((data, outcome.file),)
        self._attempts = ()
        self.record = record
        self.health = Health(Condition.WRITABLE, "done", None)
        return Written(record)

    def check(self) -> Condition:
        """Compare lock, path and bytes with what this process knows; writes nothing and changes no state.

        Raises:
            OSError: the disk failed; nothing is known.
        """
        condition = self._examine_place()
        return self.health.condition if condition is Condition.WRITABLE else condition

    def visible(self) -> Record:
        """The record that a reader of the file sees now; after an unknown outcome the one to re-assert.

        Raises:
            AuthorityError: the file is none of those that this process read or wrote.
            OSError: the disk failed.
        """
        data, found = self._place.read()
        if (data, file_id(found)) not in self._candidates:
            raise AuthorityError(Condition.CHANGED.value, f"{self.path}: was changed by somebody else")
        return parse_record(data)

    def close(self) -> None:
        """Release lock and directory; after this nothing else may be called."""
        self._place.close()

    def _examine_place(self) -> Condition:
        if self._place.is_moved():
            return Condition.PATH_MOVED
        if not self._place.lock.is_intact():
            return Condition.LOCK_LOST
        try:
            data, found = self._place.read()
        except (AuthorityError, FileNotFoundError):
            return Condition.CHANGED
        identity = (data, file_id(found))
        return Condition.WRITABLE if identity in self._candidates else Condition.CHANGED

    def _is_forward(self, fence: Fence) -> bool:
        """Whether the revision is a new one, or says what it said when it was written or attempted."""
        return fence.route_revision > self.max_attempted_revision or fence in (
            self.record.current.fence,
            *self._attempts,
        )

    def _trusted(self) -> tuple[Projection, ...]:
        previous = self.record.previous
        current = self.record.current.projection
        return (current,) if previous is None else (current, previous.projection)

    def _failed(self, step: str, number: int) -> NotWritten:
        code = "authority_no_space" if number in _NO_SPACE else "authority_write_failed"
        self.health = Health(self.health.condition, code, number)
        return NotWritten(code, _detail(step, number))


class _Place:
    """A directory under custody with the lock taken: where one authority file lives."""

    __slots__ = ("_directory", "_disk", "_identity", "dir_fd", "lock", "name", "shown")

    def __init__(self, disk: Disk, path: str, *, allow_volatile: bool, create_lock: bool) -> None:
        check_platform()
        self._disk = disk
        self._directory, self.name = split_path(path)
        self.shown = path
        self.dir_fd = open_directory(disk, self._directory)
        try:
            names = (self.name, lock_name(self.name))
            check_filesystem(self.dir_fd, self._directory, names, allow_volatile=allow_volatile)
            self._identity = file_id(disk.fstat(self.dir_fd))
            if not create_lock and not self.exists():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.lock: Lock = acquire(disk, self.dir_fd, lock_name(self.name), lock_name(path))
        except BaseException:
            with contextlib.suppress(OSError):
                disk.close(self.dir_fd)
            raise

    def exists(self) -> bool:
        try:
            self._disk.lstat(self.name, dir_fd=self.dir_fd)
        except FileNotFoundError:
            return False
        return True

    def is_moved(self) -> bool:
        try:
            return file_id(self._disk.lstat(self._directory)) != self._identity
        except (FileNotFoundError, NotADirectoryError):
            return True

    def read(self) -> tuple[bytes, os.stat_result]:
        return read_file(self._disk, self.dir_fd, self.name, self.shown, FILE_BYTES_MAX)

    def replace(self, data: bytes) -> Outcome:
        return replace_file(self._disk, self.dir_fd, self.name, data)

    def check_directory_sync(self) -> None:
        try:
            self._disk.fsync(self.dir_fd)
        except OSError as error:
            if error.errno in _NO_DIRECTORY_SYNC:
                raise AuthorityError(
                    "route_dirsync_unsupported", f"{self._directory}: directories cannot be synchronised here"
                ) from None
            raise

    def sweep(self) -> None:
        """Remove temporary files that a crash left; harmless if it fails, they are never read."""
        with contextlib.suppress(OSError):
            for candidate in self._disk.listdir(self.dir_fd):
                if is_temp_name(candidate, self.name):
                    self._disk.unlink(candidate, dir_fd=self.dir_fd)

    def close(self) -> None:
        self.lock.release()
        with contextlib.suppress(OSError):
            self._disk.close(self.dir_fd)


def open_authority(
    path: str,
    boot: Projection,
    *,
    disk: Disk | None = None,
    cross_check: CrossCheck | None = None,
    allow_volatile: bool = False,
    init_command: str = "sndr router init --config FILE --confirm",
) -> Authority:
    """Open the authority for a gateway that is about to serve.

    In this order, the first failure decides: platform, directory, file system, lock, file, size, bytes, schema, hashes,
    binding to the boot file, consistency, the usage ledger. Then leftover temporary files are removed and the same
    record is written again (with the next `write_seq`), because what is visible may be a rename that a predecessor
    did not live to make durable. Only after that may anything be published.

    Args:
        path: `server.route_state_path`.
        boot: The routes of the boot file.
        disk: The system calls.
        cross_check: Raises `AuthorityError` if the usage ledger has seen a later revision than the record's.
        allow_volatile: Accept a file system in memory; tests only.
        init_command: Named in the refusal when the file is missing.

    Raises:
        AuthorityError: one start-up code. The file has not been written unless the failure is that of the last write.

    Crash:
        The file holds the same routes at any moment; `write_seq` is the old one or the next.
    """
    with _coded(path):
        place = _open_place(path, disk, allow_volatile=allow_volatile, init_command=init_command)
        try:
            authority, record = _read_authority(place, path)
            if record.boot_sha256 != sha256(boot):
                rebase = f"{init_command.removesuffix(' --confirm')} --rebase"
                raise AuthorityError(
                    "route_boot_mismatch",
                    f"{path}: belongs to other boot routes ({record.boot_sha256[:12]}...) than the configuration "
                    f"({sha256(boot)[:12]}...); undo the edit, or run {rebase} --expect-revision "
                    f"{record.current.route_revision} --expect-sha {record.current.effective_route_sha256}",
                )
            _check_consistent(record, boot, path)
            if cross_check is not None:
                cross_check(record)
            place.check_directory_sync()
            place.sweep()
            _first_write(authority, record, boot)
            authority.health = Health(Condition.WRITABLE, None, None)
        except BaseException:
            place.close()
            raise
        return authority


def open_for_rebase(path: str, *, disk: Disk | None = None, allow_volatile: bool = False) -> Authority:
    """Open the authority for the offline verb that binds it to another boot file; nothing is written.

    Raises:
        AuthorityError: as `open_authority`, without the comparison with a boot file.
    """
    with _coded(path):
        place = _open_place(path, disk, allow_volatile=allow_volatile, init_command="sndr router init")
        try:
            authority, record = _read_authority(place, path)
            _check_consistent(record, None, path)
            place.check_directory_sync()
        except BaseException:
            place.close()
            raise
        return authority


def create(path: str, boot: Projection, *, disk: Disk | None = None, allow_volatile: bool = False) -> Record:
    """Create the authority file: revision 1 is the boot file's routes.

    Raises:
        AuthorityError: `route_state_exists` even if the content would be the same; otherwise as `open_authority`, and
            `authority_write_uncertain` if the file is there but may not survive a power cut.

    Crash:
        The file is absent or complete.
    """
    with _coded(path):
        calls = PosixDisk() if disk is None else disk
        place = _Place(calls, path, allow_volatile=allow_volatile, create_lock=True)
        try:
            if place.exists():
                raise AuthorityError("route_state_exists", f"{path}: exists already; nothing was changed")
            place.check_directory_sync()
            place.sweep()
            digest = sha256(boot)
            record = Record(
                authority_id=str(uuid.uuid4()),
                boot_sha256=digest,
                current=Revision(1, digest, boot),
                previous=None,
                transaction=None,
                write_seq=1,
            )
            outcome = place.replace(_encode_checked(record, boot))
            if isinstance(outcome, Definite):
                detail = _detail(outcome.step, outcome.errno)
                raise AuthorityError("route_state_unsafe", f"{path}: was not created: {detail}")
            if isinstance(outcome, Uncertain):
                detail = _detail(outcome.step, outcome.errno)
                raise AuthorityError(
                    "authority_write_uncertain",
                    f"{path}: may or may not survive a power cut ({detail}); "
                    "look with sndr router inspect, then start or run init again",
                )
            return record
        finally:
            place.close()


@dataclass(frozen=True, slots=True)
class Look:
    """What can be seen of an authority without its lock.

    Attributes:
        data: The bytes, None if they cannot be read; they may not be durable and may be replaced at any moment.
        problems: Faults of directory, file system and files, by start-up code.
        leftovers: Temporary files of interrupted writes; never read, removed by the next start.
        missing: There is no file, and nothing else stands against creating one.
    """

    data: bytes | None
    problems: tuple[AuthorityError, ...]
    leftovers: tuple[str, ...]
    missing: bool


def look(path: str, *, disk: Disk | None = None, allow_volatile: bool = False) -> Look:
    """See as much as can be seen of an authority, changing nothing and taking no lock."""
    calls = PosixDisk() if disk is None else disk
    problems: list[AuthorityError] = []
    directory = path
    try:
        check_platform()
        directory, name = split_path(path)
        dir_fd = _open_anyway(calls, directory, problems)
        try:
            names = (name, lock_name(name))
            try:
                check_filesystem(dir_fd, directory, names, allow_volatile=allow_volatile)
            except AuthorityError as error:
                problems.append(error)
            found = sorted(calls.listdir(dir_fd))
            leftovers = tuple(candidate for candidate in found if is_temp_name(candidate, name))
            if names[1] in found:
                problems += file_problems(calls.lstat(names[1], dir_fd=dir_fd), lock_name(path))
            if name not in found:
                clear = not problems
                problems.append(AuthorityError("route_state_missing", f"{path}: does not exist"))
                return Look(None, tuple(problems), leftovers, clear)
            data = _read_anyway(calls, dir_fd, name, path, problems)
            return Look(data, tuple(problems), leftovers, False)
        finally:
            calls.close(dir_fd)
    except AuthorityError as error:
        problems.append(error)
    except OSError as error:
        problems.append(AuthorityError("route_state_unsafe", f"{directory}: {error.strerror}"))
    return Look(None, tuple(problems), (), False)


def _open_anyway(disk: Disk, directory: str, problems: list[AuthorityError]) -> int:
    try:
        return open_directory(disk, directory)
    except AuthorityError as error:
        problems.append(error)
        return disk.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _read_anyway(disk: Disk, dir_fd: int, name: str, shown: str, problems: list[AuthorityError]) -> bytes | None:
    found = disk.lstat(name, dir_fd=dir_fd)
    bad = file_problems(found, shown)
    problems += bad
    if any(problem.code == "route_custody_type" for problem in bad):
        return None
    if bad:  # read what a start would refuse to read
        fd = disk.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            data = disk.read(fd, FILE_BYTES_MAX + 1)
        finally:
            disk.close(fd)
        return data
    return read_file(disk, dir_fd, name, shown, FILE_BYTES_MAX)[0]


def check_not_rolled_back(record: Record, seen: int | None) -> None:
    """Refuse a file that is older than what the usage ledger saw of the same authority (a restored backup).

    Args:
        record: What the file says.
        seen: Highest revision in the ledger for `record.authority_id`, None if it has no row of it.

    Raises:
        AuthorityError: `route_state_rolled_back`.
    """
    if seen is not None and seen > record.current.route_revision:
        raise AuthorityError(
            "route_state_rolled_back",
            f"the file is at revision {record.current.route_revision}, but requests were served under {seen}; "
            "restore the newer file or start a new history with init",
        )


def _open_place(path: str, disk: Disk | None, *, allow_volatile: bool, init_command: str) -> _Place:
    calls = PosixDisk() if disk is None else disk
    try:
        return _Place(calls, path, allow_volatile=allow_volatile, create_lock=False)
    except FileNotFoundError:
        raise AuthorityError("route_state_missing", f"{path}: does not exist; create it with: {init_command}") from None


def _read_authority(place: _Place, path: str) -> tuple[Authority, Record]:
    data, found = place.read()
    try:
        record = parse_record(data)
    except AuthorityError as error:
        raise AuthorityError(error.code, f"{path}: {error.message}") from None
    return Authority(place, record, data, file_id(found)), record


def _check_consistent(record: Record, boot: Projection | None, path: str) -> None:
    findings = check_record(record, boot)
    if findings:
        raise AuthorityError("route_state_unsafe", f"{path}: {findings[0].pointer}: {findings[0].message}")


def _first_write(authority: Authority, record: Record, boot: Projection) -> None:
    result = authority.write(record, boot)
    if not isinstance(result, Written):
        raise AuthorityError(
            "route_state_unsafe", f"{authority.path}: the record could not be made durable again: {result.detail}"
        )


def _encode_checked(record: Record, boot: Projection, trusted: tuple[Projection, ...] = ()) -> bytes:
    """The bytes of a record that start-up is certain to accept; `trusted` routes have passed the parser before.

    Raises:
        ControlError: `change_too_large`, or `authority_write_failed` for a record that start-up would refuse.
    """
    data = encode_record(record)
    routes = [record.current.projection]
    if record.previous is not None:
        routes.append(record.previous.projection)
    if not all(is_valid(projection, trusted) for projection in routes):
        raise ControlError("authority_write_failed", "the routes would not be accepted at the next start")
    examination = examine(data, known=tuple(routes))
    if examination.record != record:
        reason = str(examination.problems[0]) if examination.problems else "it does not read back as it is"
        raise ControlError("authority_write_failed", f"the record is not acceptable: {reason}")
    findings = check_record(record, boot)
    if findings:
        raise ControlError(
            "authority_write_failed", f"the record is inconsistent: {findings[0].pointer}: {findings[0].message}"
        )
    return data


def _detail(step: str, number: int) -> str:
    return f"{step}: {os.strerror(number)}"


@contextlib.contextmanager
def _coded(path: str) -> Iterator[None]:
    """Give a failed system call outside the write primitive a start-up code; it says nothing about the content."""
    try:
        yield
    except OSError as error:
        raise AuthorityError("route_state_unsafe", f"{path}: {error.strerror or error}") from error
