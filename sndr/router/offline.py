"""Work on the authority's files without a gateway: create, bind to another boot file, look, check, copy."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sndr.durable import Disk, write_atomic
from sndr.errors import AuthorityError, ControlError, InputError
from sndr.router.core.invariants import check_record
from sndr.router.core.projection import (
    INTEGER_MAX,
    Change,
    Projection,
    ProjectionError,
    diff,
    merge_live,
    sha256,
    thaw,
)
from sndr.router.core.receipt import Fence, Record, Revision
from sndr.router.store import authority as store
from sndr.router.store import usage_db
from sndr.router.wire import boot as boot_file
from sndr.router.wire.record import (
    Problem,
    examine,
    fence_document,
    parse_record,
    receipt_document,
    revision_document,
)

__all__ = [
    "Backup",
    "Fence",
    "Files",
    "Inspection",
    "Plan",
    "backup",
    "backup_of",
    "create",
    "inspect",
    "load",
    "plan_create",
    "rebase",
]


@dataclass(frozen=True, slots=True)
class Files:
    """What the boot file says about the authority: where it lives and which routes it starts from."""

    config: str
    path: str
    usage_path: str | None
    projection: Projection


@dataclass(frozen=True, slots=True)
class Plan:
    """What `init` is going to do or has done.

    Attributes:
        path: The authority file.
        authority_id: Of an existing file; None before one is created.
        before: The fence that is replaced, None for a new file.
        after: The fence that the file will have or has.
        changes: How the routes differ from those before.
        applied: Whether it was done.
        usage_store: The usage ledger that a new authority needs, if it is absent: made together with the file.
    """

    path: str
    authority_id: str | None
    before: Fence | None
    after: Fence
    changes: tuple[Change, ...]
    applied: bool
    usage_store: str | None = None

    def to_json(self) -> dict[str, object]:
        """The form for scripts."""
        return {
            "object": "route.init",
            "applied": self.applied,
            "path": self.path,
            "authority_id": self.authority_id,
            "from": None if self.before is None else fence_document(self.before),
            "to": fence_document(self.after),
            "diff": self.diff(),
            "usage_store": self.usage_store,
        }

    def diff(self) -> list[dict[str, object]]:
        """The changed places, as JSON values."""
        return [
            {"path": change.pointer, "from": thaw(change.before), "to": thaw(change.after)} for change in self.changes
        ]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is visible of an authority without its lock.

    Attributes:
        path: The authority file.
        record: What it says, if it says anything that can be read.
        problems: Why a start would refuse it, all of them; empty when it would not.
        leftovers: Temporary files of interrupted writes; harmless.
        readable: Whether the bytes could be read at all.
    """

    path: str
    record: Record | None
    problems: tuple[Problem, ...]
    leftovers: tuple[str, ...]
    readable: bool

    def to_json(self) -> dict[str, object]:
        """The form for scripts. `unfenced` is always true: a visible record may not survive a power cut."""
        record = self.record
        return {
            "object": "route.inspection",
            "path": self.path,
            "unfenced": True,
            "readable": self.readable,
            "problems": [
                {"code": problem.code, "pointer": problem.pointer, "message": problem.message}
                for problem in self.problems
            ],
            "leftovers": list(self.leftovers),
            "authority_id": None if record is None else record.authority_id,
            "write_seq": None if record is None else record.write_seq,
            "boot": None if record is None else {"projection_sha256": record.boot_sha256},
            "current": None if record is None else revision_document(record.current),
            "previous": None if record is None or record.previous is None else revision_document(record.previous),
            "transaction": None
            if record is None or record.transaction is None
            else receipt_document(record.transaction),
        }


@dataclass(frozen=True, slots=True)
class Backup:
    """The files that a backup wrote, in the order in which they were copied; no fence without an authority."""

    files: tuple[str, ...]
    fence: Fence | None


def load(config: str) -> Files:
    """Read the boot file, without credentials.

    Raises:
        InputError: the file is not acceptable, or does not name an authority.
    """
    read = boot_file.load(config, None)
    if read.paths.route_state is None:
        raise InputError("route_state_not_configured", f"{config}: server.route_state_path is not set")
    return Files(config, read.paths.route_state, read.paths.usage, read.projection)


def plan_create(files: Files, *, allow_volatile: bool = False) -> Plan:
    """What `create` would do. Nothing is written, not even the lock file.

    Raises:
        AuthorityError: it would be refused.
    """
    seen = store.look(files.path, allow_volatile=allow_volatile)
    if not seen.missing:
        for problem in seen.problems:
            raise problem
        raise AuthorityError("route_state_exists", f"{files.path}: exists already; nothing was changed")
    return _created(files, None, applied=False)


def create(files: Files, *, allow_volatile: bool = False) -> Plan:
    """Create the authority file from the boot routes, and before it an empty usage ledger if there is none.

    Raises:
        AuthorityError: as `sndr.router.store.authority.create`; nothing was created, but for the empty ledger.

    Crash:
        The file is absent or complete.
    """
    plan = plan_create(files, allow_volatile=allow_volatile)
    if plan.usage_store is not None:
        usage_db.create(plan.usage_store)
    record = store.create(files.path, files.projection, allow_volatile=allow_volatile)
    return replace(plan, authority_id=record.authority_id, applied=True)


def _created(files: Files, authority_id: str | None, *, applied: bool) -> Plan:
    absent = files.usage_path is not None and not os.path.lexists(files.usage_path)
    after = Fence(1, sha256(files.projection))
    return Plan(files.path, authority_id, None, after, (), applied, files.usage_path if absent else None)


def rebase(
    files: Files,
    expected: Fence,
    *,
    keep_live: bool = False,
    confirm: bool = False,
    allow_volatile: bool = False,
    disk: Disk | None = None,
) -> Plan:
    """Bind the authority to a changed boot file: the next revision holds its routes.

    The lock is taken either way, so it works only while no router runs. The previous routes and the last receipt are
    dropped: they may name what the boot file no longer has.

    Args:
        files: From the changed boot file.
        expected: What the operator believes to be current.
        keep_live: Keep live changes of what both have; then the revision rises only if the routes differ.
        confirm: Do it. Without, the same checks are made and nothing is written.
        allow_volatile: Accept a file system in memory; tests only.
        disk: The system calls.

    Raises:
        AuthorityError: a start-up code, or `authority_write_uncertain`.
        ControlError: `route_fence_mismatch`, `transaction_in_progress`, `invalid_change`; nothing was changed.

    Crash:
        The file is the old one or the new one.
    """
    authority = store.open_for_rebase(files.path, disk=disk, allow_volatile=allow_volatile)
    try:
        now = authority.record
        if now.current.fence != expected:
            fence = now.current.fence
            raise ControlError(
                "route_fence_mismatch",
                f"current is revision {fence.route_revision}, sha {fence.effective_route_sha256}; nothing was changed",
            )
        if now.transaction is not None and not now.transaction.state.is_terminal:
            raise ControlError(
                "transaction_in_progress",
                f"transaction {now.transaction.id} is {now.transaction.state}; finish, cancel or roll it back first",
            )
        record = _rebased(files, now, keep_live=keep_live)
        changes = diff(now.current.projection, record.current.projection)
        plan = Plan(files.path, now.authority_id, expected, record.current.fence, changes, confirm)
        if confirm:
            _write(authority, record, files.projection)
        return plan
    finally:
        authority.close()


def _rebased(files: Files, now: Record, *, keep_live: bool) -> Record:
    routes = files.projection
    if keep_live:
        try:
            routes = merge_live(files.projection, now.current.projection)
        except ProjectionError as error:
            raise ControlError("invalid_change", f"the live routes do not fit the boot file: {error}") from None
    revision = now.current.route_revision
    if not keep_live or routes != now.current.projection:
        revision += 1
    if revision >= INTEGER_MAX:
        raise ControlError("revision_exhausted", "no revision number is left; move the file away and run init")
    return replace(
        now,
        boot_sha256=sha256(files.projection),
        current=Revision(revision, sha256(routes), routes),
        previous=None,
        transaction=None,
    )


def _write(authority: store.Authority, record: Record, boot: Projection) -> None:
    result = authority.write(record, boot)
    if isinstance(result, store.Unknown):
        text = f"{authority.path}: {result.detail}; look with sndr router inspect, then run it again"
        raise AuthorityError(result.code, text)
    if not isinstance(result, store.Written):
        raise ControlError(result.code, f"{authority.path}: nothing was changed: {result.detail}")


def inspect(files: Files, *, allow_volatile: bool = False) -> Inspection:
    """Look at the authority without its lock, and check everything that a start would check."""
    seen = store.look(files.path, allow_volatile=allow_volatile)
    problems = [Problem(error.code, "", error.message) for error in seen.problems]
    record = None
    if seen.data is not None:
        examination = examine(seen.data)
        problems += examination.problems
        record = examination.record
        if record is not None:
            problems += _meaning(record, files)
    problems += _usage_problems(record, files)
    return Inspection(files.path, record, tuple(problems), seen.leftovers, seen.data is not None)


def _meaning(record: Record, files: Files) -> list[Problem]:
    boot: Projection | None = files.projection
    problems = []
    if record.boot_sha256 != sha256(files.projection):
        text = f"belongs to other boot routes than {files.config} has; see sndr router init --rebase"
        problems.append(Problem("route_boot_mismatch", "/boot/projection_sha256", text))
        boot = None  # what follows from the mismatch is not another problem
    findings = check_record(record, boot)
    return problems + [Problem("route_state_unsafe", finding.pointer, finding.message) for finding in findings]


def _usage_problems(record: Record | None, files: Files) -> list[Problem]:
    if files.usage_path is None:
        text = "server.usage_path is not set; the authority needs the usage ledger"
        return [Problem("usage_store_required", "", text)]
    try:
        ledger = usage_db.UsageDb.open(files.usage_path, readonly=True)
        try:
            if record is not None:
                store.check_not_rolled_back(record, ledger.max_route_revision(record.authority_id))
        finally:
            ledger.close()
    except AuthorityError as error:
        return [Problem(error.code, "", error.message)]
    except sqlite3.Error as error:
        return [Problem("usage_unusable", "", f"{files.usage_path}: {error}")]
    return []


def backup_of(config: str, directory: str, *, allow_volatile: bool = False) -> Backup:
    """Copy what a boot file names: ledger and authority, or the ledger alone where there is no authority.

    Raises:
        AuthorityError, InputError: As `backup`; also `backup_nothing` when the boot file names neither.

    Crash:
        As `backup`.
    """
    read = boot_file.load(config, None)
    usage_path = read.paths.usage
    if read.paths.route_state is not None:
        return backup(load(config), directory, allow_volatile=allow_volatile)
    if usage_path is None:
        raise InputError("backup_nothing", f"{config}: neither server.usage_path nor server.route_state_path is set")
    target = os.path.join(directory, os.path.basename(usage_path))
    try:
        _prepare(directory, [target])
        _copy_ledger(usage_path, target)
    except OSError as error:
        raise InputError("backup_failed", f"{directory}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise InputError("backup_failed", f"{usage_path} to {target}: {error}") from error
    return Backup((target,), None)


def _prepare(directory: str, targets: Sequence[str]) -> None:
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if stat.S_IMODE(os.stat(directory).st_mode) & 0o077:
        raise InputError("backup_directory_open", f"{directory}: must have mode 0700 (no group or other access)")
    for target in targets:
        if os.path.lexists(target):
            raise InputError("backup_exists", f"{target}: exists already; nothing was written")


def _copy_ledger(usage_path: str, target: str) -> None:
    ledger = usage_db.UsageDb.open(usage_path, readonly=True)
    try:
        ledger.backup(target)
    finally:
        ledger.close()


def backup(files: Files, directory: str, *, allow_volatile: bool = False) -> Backup:
    """Copy the usage ledger, then the authority, into a directory, created if it is absent.

    Works beside a running router. The order makes the copies fit together: the authority is never older than the
    ledger, which a start would refuse.

    Raises:
        AuthorityError: the authority cannot be read, or would not be accepted at a start; the ledger is unusable.
        InputError: the directory cannot be used, or already has such a file.

    Crash:
        A copy is complete or absent; the authority is never there without the ledger.
    """
    _readable(files, allow_volatile=allow_volatile)
    wanted = [files.path] if files.usage_path is None else [files.usage_path, files.path]
    targets = [os.path.join(directory, os.path.basename(path)) for path in wanted]
    if len(set(targets)) < len(targets):
        raise InputError("backup_exists", f"{targets[0]}: ledger and authority have the same name")
    try:
        _prepare(directory, targets)
        if files.usage_path is not None:
            _copy_ledger(files.usage_path, targets[0])
        data, record = _readable(files, allow_volatile=allow_volatile)
        write_atomic(targets[-1], data, 0o600)
    except OSError as error:
        raise InputError("backup_failed", f"{directory}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise InputError("backup_failed", f"{files.usage_path} to {targets[0]}: {error}") from error
    return Backup(tuple(targets), record.current.fence)


def _readable(files: Files, *, allow_volatile: bool) -> tuple[bytes, Record]:
    seen = store.look(files.path, allow_volatile=allow_volatile)
    for problem in seen.problems:
        raise problem
    assert seen.data is not None
    return seen.data, parse_record(seen.data)
