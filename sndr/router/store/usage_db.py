"""The usage ledger's file: schema, custody, and every statement that is run on it.

One table of requests. A row is inserted when its request is about to be dispatched and completed once, by an update
that only touches a row without an outcome; rows are never changed after that. A refused request is one insert.

Durability is SQLite's: WAL with `synchronous=FULL`, so a transaction is on the disk when its commit returns. The
database, its side files and the lock are 0600.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sqlite3
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain
from typing import Any, Final

from sndr.durable import temp_name
from sndr.errors import AuthorityError
from sndr.router.core.usage import FINISH_SHARED, SCHEMA_VERSION, START_SHARED, FinishRow, Reconciled, RunRef, StartRow
from sndr.router.store.custody import foreign

__all__ = ["COLUMNS", "Holder", "UsageDb", "at", "create", "prove", "take_lock"]

APPLICATION_ID: Final = 0x736E6472
"""`PRAGMA application_id`: the ASCII letters `sndr`."""

OLDEST_VERSION: Final = 3
"""The oldest schema that a migration starts from."""

BUSY_TIMEOUT_S: Final = 1.0
CHUNK_ROWS: Final = 64
ALIKE_ROWS: Final = 8
"""Rows of a batch are written by what they share when that makes groups of this size on average."""
FILE_MODE: Final = 0o600
INDEX_PIECE_BYTES: Final = 32_768
KEY_MAX: Final = (1 << 63) - 1

_RUNS_V3: Final = """CREATE TABLE runs(
  run INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, boot_id TEXT, pid INTEGER, start_ticks INTEGER,
  version TEXT, started_at INTEGER NOT NULL, ended_at INTEGER{more})"""
_RUNS_ADDED: Final = ("pid_namespace TEXT", "lock TEXT")
_REQUESTS_V3: Final = """CREATE TABLE requests(
  seq INTEGER PRIMARY KEY, run INTEGER NOT NULL, started_at INTEGER NOT NULL, id TEXT NOT NULL, client TEXT NOT NULL,
  kind TEXT NOT NULL, endpoint TEXT NOT NULL, stream INTEGER NOT NULL, alias TEXT, tier TEXT, queue_ms INTEGER,
  request_bytes INTEGER, ended_at INTEGER, outcome TEXT, status INTEGER, error_code TEXT, finish_reason TEXT,
  prompt_tokens INTEGER, prompt_source TEXT, completion_tokens INTEGER, completion_source TEXT,
  cached_tokens INTEGER, cached_source TEXT, first_byte_ms INTEGER, total_ms INTEGER, response_bytes INTEGER,
  retries INTEGER{more})"""
_REQUESTS_ADDED: Final = (
    "tier_generation INTEGER",
    "authority_id TEXT",
    "route_revision INTEGER",
    "effective_route_sha256 TEXT",
    "admission_seq INTEGER",
    "release_seq INTEGER",
    "routing TEXT",
)
_ADDED: Final = (
    "CREATE INDEX requests_unresolved ON requests(run) WHERE outcome IS NULL",
    "CREATE TABLE authorities(authority_id TEXT PRIMARY KEY, max_route_revision INTEGER NOT NULL) WITHOUT ROWID",
)


def ddl(version: int) -> list[str]:
    """Statements that make an empty ledger of schema 3 or 4."""
    if version == 3:
        return [_RUNS_V3.format(more=""), _REQUESTS_V3.format(more="")]
    more = [", " + ", ".join(added) for added in (_RUNS_ADDED, _REQUESTS_ADDED)]
    return [_RUNS_V3.format(more=more[0]), _REQUESTS_V3.format(more=more[1]), *_ADDED]


def migration() -> list[str]:
    """Statements from schema 3 to schema 4: nullable columns, an index and a table, nothing else."""
    return [
        *(f"ALTER TABLE runs ADD COLUMN {column}" for column in _RUNS_ADDED),
        *(f"ALTER TABLE requests ADD COLUMN {column}" for column in _REQUESTS_ADDED),
        *_ADDED,
    ]


_START: Final = ("seq", "run", *StartRow._fields)
_FINISH: Final = FinishRow._fields
COLUMNS: Final = (*_START, *_FINISH)

_INTERRUPT: Final = (
    "UPDATE requests SET outcome='interrupted', ended_at=?, prompt_source='absent', completion_source='absent',"
    " cached_source='absent' WHERE outcome IS NULL AND "
)
_UPDATE_FROM: Final = sqlite3.sqlite_version_info >= (3, 33)


def _marks(rows: int, width: int) -> str:
    row = "(" + ",".join("?" * width) + ")"
    return ",".join([row] * rows)


def _insert_sql(columns: Sequence[str], rows: int) -> str:
    return f"INSERT INTO requests({','.join(columns)}) VALUES {_marks(rows, len(columns))}"  # noqa: S608 -- our own names


def _insert_alike_sql(rows: int) -> str:
    """Starts that agree in their shared members: `run` and those once, then the key and the others per row."""
    shared, own = ("run", *StartRow._fields[START_SHARED:]), ("seq", *StartRow._fields[:START_SHARED])
    return (
        f"INSERT INTO requests({','.join((*shared, *own))})"  # noqa: S608 -- our own names
        f" SELECT {','.join('?' * len(shared))},v.* FROM (VALUES {_marks(rows, len(own))}) v"
    )


def _finish_sql(rows: int, shared: Sequence[str] = ()) -> str:
    """Ends: the shared members once, then the key and the others per row."""
    own = [name for name in _FINISH if name not in shared]
    sets = ",".join([*(f"{name}=?" for name in shared), *(f"{name}=v.column{i}" for i, name in enumerate(own, 2))])
    return (
        f"UPDATE requests SET {sets} FROM (VALUES {_marks(rows, 1 + len(own))}) v"  # noqa: S608 -- our own names
        " WHERE requests.seq=v.column1 AND requests.outcome IS NULL"
    )


# As many rows per statement as there are: sqlite3 gives the interpreter lock away and takes it back several times for
# each, which costs more than a row when the loop's thread is busy. Texts are made when first needed, and their
# statements stay prepared: two for each number of rows that occurs, where requests are much alike.
_insert_start = cache(partial(_insert_sql, _START))
_insert_whole = cache(partial(_insert_sql, COLUMNS))
_insert_alike = cache(_insert_alike_sql)
_finish_rows = cache(_finish_sql)
_finish_alike = cache(partial(_finish_sql, shared=_FINISH[FINISH_SHARED:]))
_FINISH_ONE: Final = (
    f"UPDATE requests SET {','.join(f'{name}=?{i}' for i, name in enumerate(_FINISH, 2))}"  # noqa: S608 -- our own names
    " WHERE seq=?1 AND outcome IS NULL"
)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who a process is, so that a later one can prove it dead.

    Attributes:
        run_id: Random, one per start.
        boot_id: The kernel's id of this boot; None where the platform has none.
        pid, start_ticks: The process and when the kernel started it, in ticks since boot.
        pid_namespace: Identity of the namespace in which `pid` means something.
        lock: Device and inode of the lock file held for the whole run; whoever holds it now proves the others dead.
    """

    run_id: str
    boot_id: str | None
    pid: int
    start_ticks: int | None
    pid_namespace: str | None
    lock: str | None

    @classmethod
    def current(cls, lock: str | None) -> Holder:
        """This process."""
        pid = os.getpid()
        return cls(str(uuid.uuid4()), _boot_id(), pid, _start_ticks(pid), _namespace(), lock)


def _boot_id() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """Field 22 of `/proc/PID/stat`; None when there is no such process (or no procfs)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            # The second field is the command in parentheses and may hold anything, so count from the last one.
            return int(stream.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def prove(run: Mapping[str, Any], now: Holder) -> str:
    """What is known about an earlier run: `current`, `dead` (proven) or `unproven`.

    Dead is proven by any of: the run held the very lock that we hold; the machine has booted since; in our own pid
    namespace its pid is free or belongs to a process that started at another time. Age proves nothing.
    """
    if run["run_id"] == now.run_id:
        return "current"
    if now.lock is not None and run["lock"] == now.lock:
        return "dead"
    if run["boot_id"] is None or now.boot_id is None:
        return "unproven"
    if run["boot_id"] != now.boot_id:
        return "dead"
    namespace = run["pid_namespace"]
    if run["pid"] is None or run["start_ticks"] is None or namespace != now.pid_namespace or namespace is None:
        return "unproven"
    return "unproven" if _start_ticks(run["pid"]) == run["start_ticks"] else "dead"


# --- custody ----------------------------------------------------------------------------------------------------------


def check_custody(path: str) -> bool:
    """Refuse a ledger or side file that others can touch or that is not a plain file.

    Returns:
        Whether the database exists.

    Raises:
        AuthorityError: `usage_custody`.
    """
    exists = False
    for suffix in ("", "-wal", "-shm", "-journal"):
        name = path + suffix
        try:
            found = os.lstat(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise AuthorityError("usage_custody", f"{name}: {error.strerror}") from None
        if not stat.S_ISREG(found.st_mode):
            raise AuthorityError("usage_custody", f"{name}: must be a regular file, not a link or anything else")
        if found.st_nlink != 1:
            raise AuthorityError("usage_custody", f"{name}: has {found.st_nlink} links; exactly one is allowed")
        if found.st_uid != os.geteuid():
            raise AuthorityError("usage_custody", foreign(found, name))
        if stat.S_IMODE(found.st_mode) & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise AuthorityError(
                "usage_custody", f"{name}: mode {mode:04o}; must not be open to group or others (0600)"
            )
        exists = exists or suffix == ""
    return exists


class Lock:
    """The ledger's lock file, held until `release` or the end of the process."""

    __slots__ = ("_fd", "identity")

    def __init__(self, fd: int, identity: str) -> None:
        self._fd = fd
        self.identity = identity

    def release(self) -> None:
        """Free the lock; the file stays, because a new one would have another identity."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def take_lock(path: str) -> Lock:
    """Take `<path>.lock`, creating it if it is absent.

    Raises:
        AuthorityError: `usage_lock_held` or `usage_custody`.

    Crash:
        The kernel frees the lock when the process ends, however it ends.
    """
    import fcntl  # absent on Windows, where there is no ledger

    name = f"{path}.lock"
    for _ in range(3):
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
        except FileNotFoundError:
            folder = os.path.dirname(name)
            raise AuthorityError(
                "usage_custody", f"{folder}: there is no such folder; make it with mode 0700"
            ) from None
        except OSError as error:
            raise AuthorityError("usage_custody", f"{name}: {error.strerror}") from None
        held = os.fstat(fd)
        try:
            if not stat.S_ISREG(held.st_mode):
                raise AuthorityError("usage_custody", f"{name}: must be a regular file")
            if held.st_uid != os.geteuid():
                raise AuthorityError("usage_custody", foreign(held, name))
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise AuthorityError(
                        "usage_lock_held", f"{name}: held by a running gateway or another verb"
                    ) from None
                raise AuthorityError("usage_custody", f"{name}: cannot be locked: {error.strerror}") from None
            with contextlib.suppress(FileNotFoundError):
                named = os.lstat(name)
                if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino):
                    return Lock(fd, f"{held.st_dev}:{held.st_ino}")
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # deleted or replaced between open and lock
    raise AuthorityError("usage_lock_held", f"{name}: is being replaced by another process")


# --- the database -----------------------------------------------------------------------------------------------------


def create(path: str) -> None:
    """Make an empty ledger.

    Raises:
        AuthorityError: `usage_exists`, `usage_custody`, or `usage_unusable` when the disk refuses.

    Crash:
        Leaves no file, an empty file, or the whole schema; an empty file is made complete by the next `create`.
    """
    if check_custody(path) and os.stat(path).st_size > 0:
        raise AuthorityError("usage_exists", f"{path}: exists already")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE))
        db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("BEGIN IMMEDIATE")
            for statement in ddl(SCHEMA_VERSION):
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            db.execute("COMMIT")
        finally:
            db.close()
        fd = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except (OSError, sqlite3.Error) as error:
        raise AuthorityError("usage_unusable", f"{path}: {_reason(error, path)}") from None


def _wrong_version(path: str, version: int) -> AuthorityError:
    if version < OLDEST_VERSION:
        return AuthorityError("usage_schema_old", f"{path}: schema {version} is older than any that can be migrated")
    if version < SCHEMA_VERSION:
        return AuthorityError("usage_schema_old", f"{path}: schema {version}; run: sndr router usage migrate --confirm")
    return AuthorityError("usage_schema_new", f"{path}: schema {version} was written by a later version")


def _reason(error: Exception, path: str) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    reason = str(error) or type(error).__name__
    # SQLite has a word of its own for a disk that is full, but not where its index of the WAL finds no room.
    if isinstance(error, sqlite3.OperationalError) and reason == "disk I/O error" and _is_full(path):
        return f"{reason}: the disk is full"
    return reason


def _is_full(path: str) -> bool:
    """Whether the disk has no room for one more piece of the index of the WAL."""
    try:
        found = os.statvfs(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return False
    free = found.f_bavail if os.geteuid() else found.f_bfree
    return free * found.f_frsize < INDEX_PIECE_BYTES


class UsageDb:
    """One connection to the ledger. Not bound to a thread, but used by one at a time."""

    def __init__(self, path: str, db: sqlite3.Connection, version: int) -> None:
        self.path = path
        self.version = version
        self.run = 0
        self._db = db
        self._file = _file(path)

    @classmethod
    def open(cls, path: str, *, readonly: bool = False, versions: Sequence[int] = (SCHEMA_VERSION,)) -> UsageDb:
        """Open an existing ledger.

        Raises:
            AuthorityError: `usage_store_missing`, `usage_custody`, `usage_not_a_ledger`, `usage_schema_old`,
                `usage_schema_new`, `usage_unusable`.
        """
        if not check_custody(path):
            raise AuthorityError("usage_store_missing", f"{path}: there is no usage ledger")
        try:
            db = cls._connect(path, readonly)
            try:
                ours = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if not ours:
                    raise AuthorityError("usage_not_a_ledger", f"{path}: is not a usage ledger")
                if version not in versions:
                    raise _wrong_version(path, version)
            except BaseException:
                db.close()
                raise
        except sqlite3.Error as error:
            broken = not isinstance(error, sqlite3.OperationalError)
            code = "usage_not_a_ledger" if broken else "usage_unusable"
            raise AuthorityError(code, f"{path}: {_reason(error, path)}") from None
        return cls(path, db, version)

    @staticmethod
    def _connect(path: str, readonly: bool) -> sqlite3.Connection:
        uri = f"file:{_quote(os.path.abspath(path))}?mode={'ro' if readonly else 'rw'}"
        db = sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False, cached_statements=192
        )
        try:
            # Old ledgers may hold text that is no UTF-8; a row must not become unreadable because of it.
            db.text_factory = _text
            if not readonly:
                db.execute("PRAGMA synchronous=FULL")
                # Checkpoints are asked for by the file's owner; an automatic one would run inside somebody's commit.
                db.execute("PRAGMA wal_autocheckpoint=0")
                db.execute(f"PRAGMA journal_size_limit={64 << 20}")
        except BaseException:
            db.close()
            raise
        return db

    def reopen(self) -> None:
        """Replace a connection that can no longer roll back.

        Raises:
            sqlite3.Error: The file cannot be opened; the next call tries again.
        """
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._db = self._connect(self.path, readonly=False)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: durable when the block ends, nothing when it raises.

        Raises:
            sqlite3.Error: The file was moved or deleted, busy for longer than the timeout, disk full, I/O error.
                After an I/O error of the commit itself the rows may come back with a crash; within this process they
                are gone.
        """
        if _file(self.path) != self._file:  # rows in a file without a name would be durable for nobody
            raise sqlite3.OperationalError("the file is no longer where it was opened")
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except BaseException as error:
            if db.in_transaction:
                try:
                    db.execute("ROLLBACK")
                except sqlite3.Error:
                    self.reopen()
            if isinstance(error, sqlite3.OperationalError) and (reason := _reason(error, self.path)) != str(error):
                raise sqlite3.OperationalError(reason) from error
            raise

    # rows

    def next_key(self) -> int:
        """The first key that no row has."""
        row = self._db.execute("SELECT max(seq) FROM requests").fetchone()
        return 1 if row[0] is None else int(row[0]) + 1

    def begin_run(self, holder: Holder, version: str, started_at: int) -> int:
        """Record this run; rows written from now on belong to it."""
        with self.transaction() as db:
            cursor = db.execute(
                "INSERT INTO runs(run_id,boot_id,pid,start_ticks,version,started_at,pid_namespace,lock)"
                " VALUES(?,?,?,?,?,?,?,?)",
                (
                    holder.run_id,
                    holder.boot_id,
                    holder.pid,
                    holder.start_ticks,
                    version,
                    started_at,
                    holder.pid_namespace,
                    holder.lock,
                ),
            )
            assert cursor.lastrowid is not None
            self.run = cursor.lastrowid
        return self.run

    def end_run(self, ended_at: int) -> None:
        """Record the orderly end of this run."""
        with self.transaction() as db:
            db.execute("UPDATE runs SET ended_at=? WHERE run=?", (ended_at, self.run))

    def write(
        self,
        starts: Sequence[tuple[int, StartRow, object]],
        finishes: Sequence[tuple[int, FinishRow]],
        refusals: Sequence[tuple[int, StartRow, FinishRow]],
        revisions: Mapping[str, int],
    ) -> None:
        """One transaction: inserts, then completions, refused rows, highest revisions seen.

        The third member of a start is the caller's own and is not looked at.

        Raises:
            sqlite3.Error: Nothing of it was written.
        """
        with self.transaction() as db:
            run = self.run
            if starts:
                alike = _by_shared(((key, row) for key, row, _ in starts), START_SHARED, len(starts))
                if alike is not None:
                    for shared, flat in alike.items():
                        _in_chunks(db, _insert_alike, flat, 1 + START_SHARED, (run, *shared))
                else:
                    flat = list(chain.from_iterable((key, run, *row) for key, row, _ in starts))
                    _in_chunks(db, _insert_start, flat, len(_START))
            if finishes:
                if not _UPDATE_FROM:
                    db.executemany(_FINISH_ONE, [(key, *row) for key, row in finishes])
                elif (alike := _by_shared(finishes, FINISH_SHARED, len(finishes))) is not None:
                    for shared, flat in alike.items():
                        _in_chunks(db, _finish_alike, flat, 1 + FINISH_SHARED, shared)
                else:
                    flat = list(chain.from_iterable((key, *row) for key, row in finishes))
                    _in_chunks(db, _finish_rows, flat, 1 + len(_FINISH))
            if refusals:
                flat = list(chain.from_iterable((key, run, *row, *end) for key, row, end in refusals))
                _in_chunks(db, _insert_whole, flat, len(COLUMNS))
            for authority_id, revision in revisions.items():
                db.execute(
                    "INSERT INTO authorities VALUES(?,?) ON CONFLICT(authority_id)"
                    " DO UPDATE SET max_route_revision=max(max_route_revision, excluded.max_route_revision)",
                    (authority_id, revision),
                )

    def max_route_revision(self, authority_id: str) -> int | None:
        """The highest revision of this authority that any row was started under."""
        row = self._db.execute(
            "SELECT max_route_revision FROM authorities WHERE authority_id=?", (authority_id,)
        ).fetchone()
        return None if row is None else int(row[0])

    def unresolved_groups(self) -> list[tuple[int, str, str | None, int | None, int]]:
        """Unresolved rows as (run, kind, tier, tier generation, count)."""
        generation = "tier_generation" if self.version >= 4 else "NULL"
        return self._db.execute(
            f"SELECT run, kind, tier, {generation}, count(*) FROM requests WHERE outcome IS NULL GROUP BY 1, 2, 3, 4"  # noqa: S608 -- one of two constants
        ).fetchall()

    def count(self, below: int = KEY_MAX) -> int:
        """Rows with a key below this one, else all; reads as many."""
        return int(self._db.execute("SELECT count(*) FROM requests WHERE seq < ?", (below,)).fetchone()[0])

    def find(self, request_id: str, client: str | None, window: int) -> dict[str, Any] | None:
        """The newest row with a request id, among the newest `window` rows."""
        cursor = self._db.execute(
            "SELECT * FROM requests WHERE seq > (SELECT coalesce(max(seq), 0) FROM requests) - ?1 AND id = ?2"
            " AND (?3 IS NULL OR client = ?3) ORDER BY seq DESC LIMIT 1",
            (window, request_id, client),
        )
        row = cursor.fetchone()
        return None if row is None else dict(zip((c[0] for c in cursor.description), row, strict=True))

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """Column names and rows of a query."""
        cursor = self._db.execute(sql, parameters)
        return [c[0] for c in cursor.description], cursor

    # reconcile

    def reconcile(self, now: Holder, ended_at: int, failed: Iterable[int] = ()) -> Reconciled:
        """Close unresolved rows of runs proven dead, and those of this run named in `failed`, as `interrupted`.

        Raises:
            sqlite3.Error: Nothing of it was written.
        """
        reports: list[RunRef] = []
        known = "pid_namespace, lock" if self.version >= 4 else "NULL AS pid_namespace, NULL AS lock"
        with self.transaction() as db:
            counts = dict(
                db.execute("SELECT run, count(*) FROM requests WHERE outcome IS NULL GROUP BY run").fetchall()
            )
            cursor = db.execute(f"SELECT run, run_id, boot_id, pid, start_ticks, started_at, {known} FROM runs")  # noqa: S608 -- one of two constants
            names = [c[0] for c in cursor.description]
            runs = {row[0]: dict(zip(names, row, strict=True)) for row in cursor}
            for run, count in sorted(counts.items()):
                facts = runs.get(run)
                verdict = "unproven" if facts is None else prove(facts, now)
                closed = 0
                if verdict == "dead":
                    closed = db.execute(_INTERRUPT + "run=?", (ended_at, run)).rowcount
                elif verdict == "current":
                    for key in failed:
                        closed += db.execute(_INTERRUPT + "run=? AND seq=?", (ended_at, run, key)).rowcount
                facts = facts or {"run_id": "", "pid": 0, "started_at": 0}
                reports.append(
                    RunRef(facts["run_id"], facts["pid"] or 0, facts["started_at"], verdict, closed, count - closed)
                )
        return Reconciled(sum(r.reconciled for r in reports), sum(r.left for r in reports), tuple(reports))

    # maintenance

    def prune(self, before: int, limit: int) -> int:
        """Delete at most `limit` resolved rows that started before an instant; returns how many."""
        with self.transaction() as db:
            return db.execute(
                "DELETE FROM requests WHERE seq IN"
                " (SELECT seq FROM requests WHERE started_at < ? AND outcome IS NOT NULL LIMIT ?)",
                (before, limit),
            ).rowcount

    def checkpoint(self, mode: str = "PASSIVE") -> tuple[int, int]:
        """Move what can be moved from the WAL into the database: (frames in the WAL, frames moved)."""
        _, log, moved = self._db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return log, moved

    def misfit(self) -> str | None:
        """How a ledger of schema 3 differs from what the migration expects; None when it does not."""
        fresh = sqlite3.connect(":memory:")
        try:
            for statement in ddl(OLDEST_VERSION):
                fresh.execute(statement)
            for table in ("runs", "requests"):
                query = f"SELECT name FROM pragma_table_info('{table}')"  # noqa: S608 -- our own names
                wanted, found = ([row[0] for row in db.execute(query)] for db in (fresh, self._db))
                if wanted != found:
                    return f"the columns of the table {table} are not those of schema {OLDEST_VERSION}"
        finally:
            fresh.close()
        taken = self._db.execute(
            "SELECT name FROM sqlite_master WHERE name IN ('authorities', 'requests_unresolved')"
        ).fetchone()
        return None if taken is None else f"it has something named {taken[0]} already"

    def migrate(self) -> None:
        """Schema 3 to schema 4, in one transaction."""
        with self.transaction() as db:
            for statement in migration():
                db.execute(statement)
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        self.version = SCHEMA_VERSION

    def backup(self, target: str) -> None:
        """Copy the ledger, as of one instant, into a new file of mode 0600, durable when this returns.

        All pages go in one step: a copy in steps starts again whenever somebody writes, so under load it never ends.

        Raises:
            OSError, sqlite3.Error: The copy is not complete; there is no target.

        Crash:
            The target is whole or absent; a temporary file (see `sndr.durable.temp_name`) may be left.
        """
        folder, name = os.path.split(os.path.abspath(target))
        temp = os.path.join(folder, temp_name(name, secrets.token_hex(16)))
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
            try:
                copy = sqlite3.connect(temp, isolation_level=None)
                try:
                    copy.execute("PRAGMA journal_mode=OFF")  # nobody reads the copy before it is whole
                    self._db.backup(copy, pages=-1)
                    # The copy is one closed file: no WAL that a restore could forget.
                    copy.execute("PRAGMA journal_mode=DELETE")
                finally:
                    copy.close()
                os.fsync(fd)
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
                os.rename(temp, target)
            except BaseException:
                for suffix in ("", "-journal", "-wal", "-shm"):
                    with contextlib.suppress(OSError):
                        os.unlink(temp + suffix)
                raise
            finally:
                os.close(fd)
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)

    def size(self) -> int:
        """Bytes of the database and its side files."""
        total = 0
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                total += os.stat(self.path + suffix).st_size
        return total


def _file(path: str) -> tuple[int, int] | None:
    """Which file a path names now."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _quote(path: str) -> str:
    from urllib.parse import quote

    return quote(path)


def _by_shared(
    rows: Iterable[tuple[int, tuple[Any, ...]]], shared_from: int, count: int
) -> dict[tuple[Any, ...], list[Any]] | None:  # fmt: skip
    """Keys and own members, one behind the other, by what the rows share; None where too few share anything."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    most = 1 + count // ALIKE_ROWS
    last: tuple[Any, ...] | None = None
    flat: list[Any] = []
    for key, row in rows:
        shared = row[shared_from:]
        if shared != last:
            last = shared
            found = groups.get(shared)
            if found is None:
                if len(groups) == most:
                    return None
                found = groups[shared] = []
            flat = found
        flat.append(key)
        flat += row[:shared_from]
    return groups


def _in_chunks(
    db: sqlite3.Connection, sql: Callable[[int], str], flat: list[Any], width: int, shared: tuple[Any, ...] = ()
) -> None:  # fmt: skip
    """Run a statement over rows that lie behind each other in `flat`, so many of them at once."""
    chunk = width * CHUNK_ROWS
    if len(flat) <= chunk:
        db.execute(sql(len(flat) // width), (*shared, *flat))
        return
    for at in range(0, len(flat), chunk):
        part = flat[at : at + chunk]
        db.execute(sql(len(part) // width), (*shared, *part))


def at(ms: int | None) -> str | None:
    """An instant of the ledger as RFC 3339, UTC; None for a number that is none."""
    if ms is None:
        return None
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a number that an old ledger has, and no calendar
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
