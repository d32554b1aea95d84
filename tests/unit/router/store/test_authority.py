"""The open authority: what it writes, what it refuses, what it knows after a failure."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sndr.durable import PosixDisk
from sndr.errors import AuthorityError
from sndr.router.core import projection as routes
from sndr.router.core.receipt import Fence, Record
from sndr.router.store import authority as store
from sndr.router.store import lock as locks
from sndr.router.store.authority import Authority, Condition, NotWritten, Refused, Unknown, Written
from sndr.router.store.authority_writer import AuthorityWriter
from sndr.router.wire.record import encode_record, parse_record
from tests.support import records
from tests.support.disks import QuickDisk

BOOT = records.boot()


class Scripted(QuickDisk):
    """Fails calls by name: `fail[call]` is a list of error numbers, 0 for success."""

    __slots__ = ("fail",)

    def __init__(self) -> None:
        super().__init__()
        self.fail: dict[str, list[int]] = {}

    def _maybe(self, call: str) -> None:
        planned = self.fail.get(call)
        if planned:
            number = planned.pop(0)
            if number:
                raise OSError(number, os.strerror(number))

    def fsync(self, fd: int) -> None:
        self._maybe("fsync")
        super().fsync(fd)

    def write(self, fd: int, data: memoryview) -> int:
        self._maybe("write")
        return super().write(fd, data)

    def fstat(self, fd: int) -> os.stat_result:
        self._maybe("fstat")
        return super().fstat(fd)

    def rename(self, source: str, target: str, *, dir_fd: int) -> None:
        self._maybe("rename")
        super().rename(source, target, dir_fd=dir_fd)

    def listdir(self, fd: int) -> list[str]:
        self._maybe("listdir")
        return super().listdir(fd)


@pytest.fixture
def path(tmp_path: Path) -> str:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    return str(directory / "routes.json")


@pytest.fixture
def disk() -> Scripted:
    return Scripted()


@pytest.fixture
def authority(path: str, disk: Scripted) -> Any:
    store.create(path, BOOT, disk=disk, allow_volatile=True)
    opened = store.open_authority(path, BOOT, disk=disk, allow_volatile=True)
    yield opened
    opened.close()


def _on_disk(authority: Authority) -> Record:
    return parse_record(Path(authority.path).read_bytes())


@pytest.mark.req("R71", "R78")
def test_a_new_authority_is_revision_one_and_is_written_again_at_start(authority: Authority) -> None:
    assert authority.record.current.fence == Fence(1, routes.sha256(BOOT))
    assert authority.record.previous is None
    assert authority.record.transaction is None
    assert authority.record.write_seq == 2
    assert _on_disk(authority) == authority.record
    assert authority.health == store.Health(Condition.WRITABLE, None, None)
    assert authority.health.writable
    assert authority.max_attempted_revision == 1
    assert authority.check() is Condition.WRITABLE


@pytest.mark.req("R78")
def test_an_existing_file_is_never_overwritten(path: str, authority: Authority) -> None:
    authority.close()
    before = Path(path).read_bytes()
    with pytest.raises(AuthorityError) as refusal:
        store.create(path, BOOT, allow_volatile=True)
    assert refusal.value.code == "route_state_exists"
    assert Path(path).read_bytes() == before


@pytest.mark.req("R59", "R90")
def test_a_whole_promotion_keeps_one_previous_and_one_receipt(authority: Authority) -> None:
    written = []
    record = authority.record
    for make in (records.held, records.committed, records.completed, records.alias_update):
        answer = authority.write(make(authority.record), BOOT)
        assert isinstance(answer, Written)
        assert answer.record == authority.record == _on_disk(authority)
        written.append(answer.record)
    assert [entry.write_seq for entry in written] == [3, 4, 5, 6]
    assert [entry.current.route_revision for entry in written] == [1, 2, 2, 3]
    assert written[3].previous == written[2].current
    assert written[1].previous == record.current
    assert authority.health.last_write == "done"
    assert authority.max_attempted_revision == 3


@pytest.mark.req("R69", "R89")
@pytest.mark.parametrize(
    ("call", "number", "code"),
    [
        ("write", errno.ENOSPC, "authority_no_space"),
        ("write", errno.EDQUOT, "authority_no_space"),
        ("write", errno.EIO, "authority_write_failed"),
        ("fsync", errno.EIO, "authority_write_failed"),
        ("rename", errno.EROFS, "authority_write_failed"),
    ],
)
def test_a_definite_failure_changes_nothing_and_the_next_write_works(
    call: str, number: int, code: str, authority: Authority, disk: Scripted
) -> None:
    before = _on_disk(authority)
    disk.fail[call] = [number]
    answer = authority.write(records.held(authority.record), BOOT)
    assert isinstance(answer, NotWritten)
    assert answer.code == code
    assert _on_disk(authority) == before == authority.record
    assert authority.health == store.Health(Condition.WRITABLE, code, number)
    assert isinstance(authority.write(records.held(authority.record), BOOT), Written)


@pytest.mark.req("R89")
@pytest.mark.invariant("INV-16")
def test_after_an_unknown_outcome_only_a_reassertion_is_written(authority: Authority, disk: Scripted) -> None:
    hold = records.held(authority.record)
    disk.fail["fsync"] = [0, errno.EIO]
    answer = authority.write(hold, BOOT)
    assert isinstance(answer, Unknown)
    assert answer.code == "authority_write_uncertain"
    assert authority.record.transaction is None
    assert authority.health.condition is Condition.UNCERTAIN
    assert authority.check() is Condition.UNCERTAIN
    refused = authority.write(hold, BOOT)
    assert isinstance(refused, Refused)
    assert refused.code == "authority_read_only"
    visible = authority.visible()
    assert visible.transaction is not None
    inode = os.stat(authority.path).st_ino
    disk.fail["fsync"] = [0, errno.EIO]
    assert isinstance(authority.write(visible, BOOT, reassert=True), Unknown)
    assert os.stat(authority.path).st_ino != inode
    inode = os.stat(authority.path).st_ino
    assert isinstance(authority.write(authority.visible(), BOOT, reassert=True), Written)
    assert os.stat(authority.path).st_ino != inode
    assert authority.record.transaction == hold.transaction
    assert authority.health.writable
    assert _on_disk(authority) == authority.record


@pytest.mark.req("R84", "R89")
@pytest.mark.invariant("INV-2", "INV-3")
def test_an_attempted_revision_is_never_used_for_other_routes(authority: Authority, disk: Scripted) -> None:
    disk.fail["fsync"] = [0, errno.EIO]
    attempted = records.alias_update(authority.record)
    assert isinstance(authority.write(attempted, BOOT), Unknown)
    assert authority.max_attempted_revision == 2
    other = records.alias_update(authority.record, "llm.secondary", "primary")
    answer = authority.write(other, BOOT, reassert=True)
    assert isinstance(answer, NotWritten)
    assert "already means other routes" in answer.detail
    assert isinstance(authority.write(authority.visible(), BOOT, reassert=True), Written)
    assert authority.record.current.route_revision == 2
    third = records.alias_update(authority.record, "llm.secondary", "primary")
    assert isinstance(authority.write(third, BOOT), Written)
    back = records.first(third.current.projection, number=2)
    assert isinstance(authority.write(replace(back, boot_sha256=authority.record.boot_sha256), BOOT), NotWritten)


@pytest.mark.req("R70")
@pytest.mark.parametrize("how", ["rewrite", "copy", "remove", "directory", "shorter", "mode"])
def test_a_foreign_change_makes_the_authority_read_only(how: str, authority: Authority) -> None:
    path = Path(authority.path)
    content = path.read_bytes()
    if how == "rewrite":
        path.write_bytes(content.replace(b"m1", b"m9"))
    elif how == "copy":
        copy = path.with_name("copy")
        copy.write_bytes(content)
        copy.chmod(0o600)
        copy.replace(path)
    elif how == "shorter":
        os.truncate(path, 10)
    elif how == "mode":
        path.chmod(0o644)
    else:
        path.unlink()
        if how == "directory":
            path.mkdir()
    seen = path.read_bytes() if path.is_file() else None
    assert authority.check() is Condition.CHANGED
    answer = authority.write(records.held(authority.record), BOOT)
    assert isinstance(answer, Refused)
    assert answer.code == "authority_changed_externally"
    assert (path.read_bytes() if path.is_file() else None) == seen
    again = authority.write(records.held(authority.record), BOOT, reassert=True)
    assert isinstance(again, Refused)
    assert again.code == "authority_read_only"
    if how == "rewrite":
        with pytest.raises(AuthorityError) as refusal:
            authority.visible()
        assert refusal.value.code == "authority_changed_externally"


@pytest.mark.req("R65")
def test_a_moved_directory_is_noticed_and_the_new_one_is_not_written(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "state").rename(tmp_path / "moved")
    assert authority.check() is Condition.PATH_MOVED
    (tmp_path / "state").mkdir(mode=0o700)
    answer = authority.write(records.held(authority.record), BOOT)
    assert isinstance(answer, Refused)
    assert answer.code == "authority_path_moved"
    assert os.listdir(tmp_path / "state") == []
    assert parse_record((tmp_path / "moved" / "routes.json").read_bytes()) == authority.record


@pytest.mark.req("R63")
@pytest.mark.parametrize("how", ["delete", "recreate", "link"])
def test_a_lock_that_was_replaced_is_noticed(how: str, authority: Authority) -> None:
    lock = Path(f"{authority.path}.lock")
    if how == "link":
        os.link(lock, f"{lock}.2")
    else:
        lock.unlink()
        if how == "recreate":
            lock.touch(mode=0o600)
    answer = authority.write(records.held(authority.record), BOOT)
    assert isinstance(answer, Refused)
    assert answer.code == "authority_lock_lost"


def test_a_disk_that_fails_before_anything_is_tried_is_a_definite_failure(authority: Authority, disk: Scripted) -> None:
    disk.fail["fstat"] = [errno.EIO]
    answer = authority.write(records.held(authority.record), BOOT)
    assert isinstance(answer, NotWritten)
    assert answer.detail == "inspect: Input/output error"


@pytest.mark.invariant("INV-14")
def test_a_record_that_a_start_would_refuse_is_not_written(authority: Authority) -> None:
    before = _on_disk(authority)
    hold = records.held(authority.record)
    assert hold.transaction is not None
    bad_hold = replace(hold, transaction=replace(hold.transaction, hold=False))
    bad_scope = replace(hold, transaction=replace(hold.transaction, scope=("Primary",)))
    tiers = {**BOOT.tiers, "primary": replace(BOOT.tiers["primary"], base_url="nonsense")}
    bad_routes = records.revision(2, routes.Projection(BOOT.aliases, tiers))
    huge = replace(hold, transaction=replace(hold.transaction, scope=tuple(f"t{i:060}" for i in range(1000))))
    exhausted = replace(hold, current=replace(hold.current, route_revision=routes.INTEGER_MAX))
    for record in (bad_hold, bad_scope, replace(hold, current=bad_routes), huge, exhausted):
        answer = authority.write(record, BOOT)
        assert isinstance(answer, NotWritten), record
        assert answer.code in ("authority_write_failed", "change_too_large")
    assert _on_disk(authority) == before


def test_a_record_that_does_not_read_back_as_it_is_is_not_written(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = encode_record(records.held(records.first(write_seq=3)))
    monkeypatch.setattr(store, "encode_record", lambda record: other)
    answer = authority.write(records.held(authority.record), BOOT)
    assert isinstance(answer, NotWritten)
    assert "does not read back" in answer.detail


# --- start


@pytest.mark.req("R56")
def test_leftovers_are_removed_and_never_read(path: str) -> None:
    store.create(path, BOOT, allow_volatile=True)
    newer = encode_record(records.alias_update(records.first(write_seq=90)))
    directory = Path(path).parent
    ours = directory / f".routes.json.{'a' * 32}.tmp"
    ours.write_bytes(newer)
    others = [directory / name for name in (".routes.json.swp", "routes.json.bak", f".other.{'a' * 32}.tmp")]
    for other in others:
        other.write_bytes(newer)
    opened = store.open_authority(path, BOOT, allow_volatile=True)
    assert opened.record.current.route_revision == 1
    assert not ours.exists()
    assert all(other.exists() for other in others)
    opened.close()


def test_a_start_survives_a_directory_that_cannot_be_listed(path: str, disk: Scripted) -> None:
    store.create(path, BOOT, disk=disk, allow_volatile=True)
    disk.fail["listdir"] = [errno.EIO]
    store.open_authority(path, BOOT, disk=disk, allow_volatile=True).close()


@pytest.mark.req("R71")
@pytest.mark.parametrize("failures", [[0, errno.EIO], [0, 0, errno.EIO]])
def test_a_start_that_cannot_write_again_is_refused(failures: list[int], path: str, disk: Scripted) -> None:
    created = store.create(path, BOOT, disk=disk, allow_volatile=True)
    disk.fail["fsync"] = failures
    with pytest.raises(AuthorityError, match="could not be made durable again") as refusal:
        store.open_authority(path, BOOT, disk=disk, allow_volatile=True)
    assert refusal.value.code == "route_state_unsafe"
    assert parse_record(Path(path).read_bytes()).current == created.current
    store.open_authority(path, BOOT, disk=disk, allow_volatile=True).close()


def test_an_exhausted_write_counter_is_refused(path: str) -> None:
    record = records.first(write_seq=routes.INTEGER_MAX)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, encode_record(record))
    os.close(fd)
    with pytest.raises(AuthorityError, match="exhausted"):
        store.open_authority(path, BOOT, allow_volatile=True)


@pytest.mark.parametrize(
    ("failures", "code"), [([0, errno.EIO], "route_state_unsafe"), ([0, 0, errno.EIO], "authority_write_uncertain")]
)
def test_a_failed_init_says_whether_anything_is_there(
    failures: list[int], code: str, path: str, disk: Scripted
) -> None:
    disk.fail["fsync"] = failures
    with pytest.raises(AuthorityError) as refusal:
        store.create(path, BOOT, disk=disk, allow_volatile=True)
    assert refusal.value.code == code
    assert os.path.exists(path) == (code == "authority_write_uncertain")


@pytest.mark.req("R76", "R77")
def test_a_hold_is_in_the_record_that_a_start_returns(path: str, authority: Authority, disk: Scripted) -> None:
    authority.write(records.held(authority.record), BOOT)
    authority.close()
    again = store.open_authority(path, BOOT, disk=disk, allow_volatile=True)
    assert again.record.transaction is not None
    assert again.record.transaction.hold
    assert again.record.transaction.scope == ("primary",)
    again.close()


# --- lock


@pytest.mark.req("R64")
def test_a_program_that_the_router_starts_does_not_inherit_the_lock(path: str, authority: Authority) -> None:
    program = "print('ready', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        authority.close()
        store.open_authority(path, BOOT, disk=QuickDisk(), allow_volatile=True).close()
    finally:
        child.communicate(b"\n")


@pytest.mark.req("R63", "R78")
@pytest.mark.invariant("INV-13")
@pytest.mark.scenario("S17")
def test_of_many_simultaneous_starts_exactly_one_wins(path: str) -> None:
    store.create(path, BOOT, disk=QuickDisk(), allow_volatile=True)
    for _ in range(25):
        barrier = threading.Barrier(4)
        won: list[Authority] = []
        refused: list[str] = []

        def start(barrier: threading.Barrier = barrier, won: list[Any] = won, refused: list[str] = refused) -> None:
            barrier.wait()
            try:
                won.append(store.open_authority(path, BOOT, disk=QuickDisk(), allow_volatile=True))
            except AuthorityError as error:
                refused.append(error.code)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert refused == ["route_lock_held"] * 3
        won[0].close()


def test_of_two_inits_one_wins(path: str) -> None:
    barrier = threading.Barrier(2)
    answers: list[str] = []

    def init() -> None:
        barrier.wait()
        try:
            store.create(path, BOOT, disk=QuickDisk(), allow_volatile=True)
            answers.append("created")
        except AuthorityError as error:
            answers.append(error.code)

    threads = [threading.Thread(target=init) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count("created") == 1
    assert set(answers) <= {"created", "route_lock_held", "route_state_exists"}


@pytest.mark.req("R67")
def test_the_lock_file_has_its_mode_whatever_the_umask(path: str) -> None:
    before = os.umask(0o777)
    try:
        store.create(path, BOOT, disk=QuickDisk(), allow_volatile=True)
    finally:
        os.umask(before)
    assert os.stat(f"{path}.lock").st_mode & 0o7777 == 0o600
    assert os.stat(path).st_mode & 0o7777 == 0o600


class _Odd(PosixDisk):
    """Opens lock files in odd circumstances."""

    __slots__ = ("answers", "fchmod_error")

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.fchmod_error = False

    def open(self, name: str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
        answer = self.answers.pop(0) if self.answers else None
        if callable(answer):
            answer()
        elif answer is not None:
            raise OSError(answer, os.strerror(answer))
        return super().open(name, flags, mode, dir_fd=dir_fd)

    def fchmod(self, fd: int, mode: int) -> None:
        if self.fchmod_error:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fchmod(fd, mode)


@pytest.fixture
def dir_fd(tmp_path: Path) -> Any:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_lock_file_that_another_start_creates_meanwhile_is_shared(tmp_path: Path, dir_fd: int) -> None:
    lock_file = tmp_path / "l"
    lock = locks.acquire(_Odd(errno.ENOENT, lambda: lock_file.touch(mode=0o600)), dir_fd, "l", "l")
    assert lock.is_intact()
    lock.release()
    lock.release()


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ELOOP, "route_custody_type"), (errno.EISDIR, "route_custody_type"), (errno.EACCES, "route_custody_mode")],
)
def test_a_lock_file_that_cannot_be_opened_has_a_code(number: int, code: str, dir_fd: int) -> None:
    with pytest.raises(AuthorityError) as refusal:
        locks.acquire(_Odd(number), dir_fd, "l", "l")
    assert refusal.value.code == code
    with pytest.raises(OSError, match="Too many"):
        locks.acquire(_Odd(errno.EMFILE), dir_fd, "l", "l")


def test_a_lock_file_whose_mode_cannot_be_set_is_not_used(dir_fd: int) -> None:
    disk = _Odd()
    disk.fchmod_error = True
    with pytest.raises(OSError, match="Input/output"):
        locks.acquire(disk, dir_fd, "l", "l")


def test_a_lock_file_that_is_replaced_again_and_again_is_refused(tmp_path: Path, dir_fd: int) -> None:
    class Restless(PosixDisk):
        __slots__ = ()

        def lstat(self, name: str, *, dir_fd: int | None = None) -> os.stat_result:
            (tmp_path / "l").unlink()
            (tmp_path / "l").touch(mode=0o600)
            return super().lstat(name, dir_fd=dir_fd)

    with pytest.raises(AuthorityError, match="being replaced"):
        locks.acquire(Restless(), dir_fd, "l", "l")


@pytest.mark.parametrize(("number", "code"), [(errno.ENOLCK, "route_filesystem_unsupported"), (errno.EIO, None)])
def test_a_file_system_without_locks_is_refused(
    number: int, code: str | None, dir_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def fail(fd: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises((AuthorityError, OSError)) as refusal:
        locks.acquire(PosixDisk(), dir_fd, "l", "l")
    assert getattr(refusal.value, "code", None) == code


# --- the thread


class Hanging(QuickDisk):
    """Stops in fsync while `closed` is set."""

    __slots__ = ("closed", "open_again", "reached")

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.reached = threading.Event()
        self.open_again = threading.Event()

    def fsync(self, fd: int) -> None:
        if self.closed:
            self.reached.set()
            self.open_again.wait(30)


@pytest.mark.req("R2")
def test_the_loop_goes_on_while_the_disk_hangs(path: str) -> None:
    disk = Hanging()
    store.create(path, BOOT, disk=disk, allow_volatile=True)

    async def run() -> None:
        writer = AuthorityWriter(store.open_authority(path, BOOT, disk=disk, allow_volatile=True), BOOT)
        answers: asyncio.Queue[Any] = asyncio.Queue()
        disk.closed = True
        writer.write(records.held(writer.record), answers.put_nowait)
        while not disk.reached.is_set():
            await asyncio.sleep(0.001)
        assert answers.empty()
        assert writer.health.last_write is None
        disk.open_again.set()
        assert isinstance(await answers.get(), Written)
        writer.check(answers.put_nowait)
        writer.visible(answers.put_nowait)
        assert await answers.get() is Condition.WRITABLE
        assert await answers.get() == writer.record
        assert writer.max_attempted_revision == 1
        Path(path).write_bytes(b"{}")
        writer.visible(answers.put_nowait)
        assert isinstance(await answers.get(), AuthorityError)
        await writer.close()

    asyncio.run(run())
