"""Door: the usage ledger's file for operators: reports, export, prune, migration, reconcile.

Reading works beside a running gateway and takes no lock. Pruning works beside it too, in transactions that are short
enough for a start to wait for. Reconcile and migration change what a running gateway has in memory, so here they need
the ledger's lock; a running gateway reconciles through its own API.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import sqlite3
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

from sndr.errors import AuthorityError, ControlError, InputError
from sndr.router.core.usage import Outcome, Reconciled
from sndr.router.store.usage_db import COLUMNS, Holder, UsageDb, at, prove, take_lock

__all__ = [
    "GROUPS",
    "Migration",
    "coverage",
    "export",
    "locate",
    "migrate",
    "parse_instant",
    "prunable",
    "prune",
    "reconcile",
    "report",
    "status",
]

PRUNE_ROWS: Final = 500
_BREATH_S: Final = 0.01

GROUPS: Final[Mapping[str, str]] = {
    "alias": "alias",
    "client": "client",
    "tier": "tier",
    "revision": "route_revision",
    "day": "date(started_at/1000, 'unixepoch')",
}
"""What a report can be grouped by, with its SQL."""

_TOKENS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens")
_BYTES: Final = ("request_bytes", "response_bytes")
_COUNTS: Final = tuple(outcome.value for outcome in Outcome)
_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def locate(config: str) -> str:
    """The ledger that a boot file names.

    Raises:
        InputError: The file is invalid, or names none (`usage_not_configured`).
    """
    from sndr.router.wire import boot  # only a verb that is given a boot file pays for its models

    path = boot.load(config, None).paths.usage
    if path is None:
        raise InputError("usage_not_configured", f"{config}: server.usage_path is not set; there is no ledger")
    return path


def parse_instant(text: str, now_ms: int | None = None) -> int:
    """An instant as milliseconds since the epoch: a date, an RFC 3339 time, or an age like `24h` or `7d`.

    Raises:
        InputError: `invalid_instant`.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if match := re.fullmatch(r"([0-9]{1,6})(s|min|h|d|w)", text):
        return now - int(match[1]) * _UNITS[match[2]] * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            "invalid_instant", f"{text!r}: expected YYYY-MM-DD, an RFC 3339 time, or an age such as 24h or 7d"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@contextlib.contextmanager
def _opened(path: str, versions: Sequence[int] = (4,), *, readonly: bool = True) -> Iterator[UsageDb]:
    db = UsageDb.open(path, readonly=readonly, versions=versions)
    try:
        yield db
    except sqlite3.Error as error:
        raise ControlError("usage_unusable", f"{path}: {error}") from None
    finally:
        db.close()


def _dicts(db: UsageDb, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
    names, found = db.select(sql, parameters)
    return [dict(zip(names, row, strict=True)) for row in found]


def status(path: str) -> dict[str, Any]:
    """Size, age, and what is unresolved, run by run.

    Raises:
        AuthorityError: The file is missing, unsafe or not a ledger.
        ControlError: `usage_unusable`.
    """
    with _opened(path, (3, 4)) as db:
        (totals,) = _dicts(
            db, "SELECT count(*) AS rows, min(started_at) AS first_at, max(started_at) AS last_at FROM requests"
        )
        authorities = [] if db.version < 4 else _dicts(db, "SELECT * FROM authorities ORDER BY authority_id")
        return {
            "object": "usage.status",
            "path": path,
            "schema": db.version,
            "bytes": db.size(),
            "rows": totals["rows"],
            "first_started_at": at(totals["first_at"]),
            "last_started_at": at(totals["last_at"]),
            "unresolved": sum(group[4] for group in db.unresolved_groups()),
            "runs": _open_runs(db),
            "authorities": authorities,
        }


def _open_runs(db: UsageDb) -> list[dict[str, Any]]:
    """Runs with unresolved rows, and what is known about each."""
    now = Holder.current(None)
    runs = {row["run"]: row for row in _dicts(db, "SELECT * FROM runs")}
    found: dict[int, dict[str, Any]] = {}
    for run, _, tier, _, count in db.unresolved_groups():
        if run not in found:
            facts = {"pid_namespace": None, "lock": None, **runs.get(run, {"run_id": None, "boot_id": None})}
            found[run] = {
                "run_id": facts["run_id"],
                "pid": facts.get("pid"),
                "started_at": at(facts.get("started_at")),
                "verdict": prove(facts, now),
                "unresolved": 0,
                "tiers": {},
            }
        found[run]["unresolved"] += count
        tiers = found[run]["tiers"]
        tiers[tier or ""] = tiers.get(tier or "", 0) + count
    return list(found.values())


def report(path: str, by: str, since: int | None = None) -> dict[str, Any]:
    """Sums per group: requests by outcome, tokens, and how many completed requests reported no usage.

    Args:
        path: The ledger.
        by: Key of `GROUPS`.
        since: Only requests that started at or after this instant (milliseconds).

    Raises:
        AuthorityError: The file is missing, unsafe or not a ledger.
        ControlError: `usage_unusable`.
    """
    counts = ", ".join(f"sum(outcome = '{name}') AS {name}" for name in _COUNTS)
    sql = (
        f"SELECT {GROUPS[by]} AS key, count(*) AS requests, {counts}, sum(outcome IS NULL) AS unresolved,"  # noqa: S608 -- our own names
        f" {_sums(_TOKENS)}, sum(outcome = 'completed' AND completion_source = 'absent') AS completed_without_usage,"
        f" {_sums(_BYTES)} FROM requests WHERE started_at >= ? GROUP BY 1 ORDER BY 1"
    )
    with _opened(path) as db:
        groups = [_whole(group) for group in _dicts(db, sql, (0 if since is None else since,))]
    return {"object": "usage.report", "by": by, "since": at(since), "groups": groups}


def _sums(names: Iterable[str]) -> str:
    # In two halves: the rows of an old ledger may hold anything up to 2^63-1, of which SQLite adds no two.
    return ", ".join(f"sum({name} >> 32) AS {name}, sum({name} & 4294967295) AS {name}_low" for name in names)


def _whole(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group of a report with its halves put together, and 0 where there is nothing to add."""
    whole = {name: value if name == "key" else value or 0 for name, value in group.items()}
    for name in (*_TOKENS, *_BYTES):
        whole[name] = (whole[name] << 32) + whole.pop(f"{name}_low")
    return whole


_DECISION: Final = (
    "model_family", "outcome", "rule_id", "substitute", "preset_key", "gap", "workload_class",
    "expected_output_length", "concurrency_mode",
)  # fmt: skip


def coverage(path: str, since: int | None = None, family: str | None = None) -> dict[str, Any]:
    """What share of the traffic of family aliases each rule, default and coverage gap got, and how fast each tier was.

    Speed is what callers got: completion tokens over the time from the lease to the end of delivery, and the time to
    the first byte; medians over completed requests whose server reported usage.

    Args:
        path: The ledger.
        since: Only requests that started at or after this instant (milliseconds).
        family: Only this family.

    Raises:
        AuthorityError: The file is missing, unsafe or not a ledger.
        ControlError: `usage_unusable`.
    """
    fields = ", ".join(f"json_extract(routing, '$.{name}') AS {name}" for name in _DECISION)
    sql = (
        f"SELECT tier, outcome AS ended, completion_tokens, total_ms - queue_ms AS served_ms, first_byte_ms, {fields}"  # noqa: S608 -- our own names
        " FROM requests WHERE routing IS NOT NULL AND started_at >= ?"
    )
    families: dict[str, _Family] = {}
    with _opened(path) as db:
        names, found = db.select(sql, (0 if since is None else since,))
        for values in found:
            row = dict(zip(names, values, strict=True))
            if family is None or row["model_family"] == family:
                families.setdefault(row["model_family"], _Family()).add(row)
    return {
        "object": "routing.coverage",
        "since": at(since),
        "families": [{"family": name, **families[name].to_json()} for name in sorted(families)],
    }


class _Family:
    """Sums over the decisions of one family."""

    def __init__(self) -> None:
        self.requests = 0
        self.routes: dict[tuple[str | None, ...], int] = {}
        self.gaps: dict[str, int] = {}
        self.siblings: dict[tuple[str | None, ...], _Sibling] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        self.requests += 1
        route = tuple(row[name] for name in ("outcome", "rule_id", "preset_key", "substitute", "tier"))
        self.routes[route] = self.routes.get(route, 0) + 1
        if row["gap"] is not None:
            self.gaps[row["gap"]] = self.gaps.get(row["gap"], 0) + 1
        key = tuple(row[n] for n in ("tier", "workload_class", "expected_output_length", "concurrency_mode"))
        self.siblings.setdefault(key, _Sibling()).add(row)

    def to_json(self) -> dict[str, Any]:
        routes = sorted(self.routes.items(), key=lambda item: (-item[1], [part or "" for part in item[0]]))
        return {
            "requests": self.requests,
            "routes": [
                {
                    **dict(zip(("outcome", "rule_id", "preset_key", "substitute", "tier"), route, strict=True)),
                    "requests": count,
                    "share": count / self.requests,
                }
                for route, count in routes
            ],
            "gaps": [
                {"gap": gap, "requests": count, "share": count / self.requests}
                for gap, count in sorted(self.gaps.items(), key=lambda item: (-item[1], item[0]))
            ],
            "siblings": [
                {
                    "tier": tier,
                    "workload_class": workload,
                    "expected_output_length": length,
                    "concurrency_mode": mode,
                    **sibling.to_json(),
                }
                for (tier, workload, length, mode), sibling in sorted(
                    self.siblings.items(), key=lambda item: ([part or "" for part in item[0][1:]], item[0][0] or "")
                )
            ],
        }


class _Sibling:
    """One tier in one cell."""

    def __init__(self) -> None:
        self.requests = self.completed = self.tokens = 0
        self.speeds = array("d")
        self.first_bytes = array("d")

    def add(self, row: Mapping[str, Any]) -> None:
        self.requests += 1
        if row["ended"] != Outcome.COMPLETED.value:
            return
        self.completed += 1
        if row["first_byte_ms"] is not None:
            self.first_bytes.append(row["first_byte_ms"])
        if row["completion_tokens"] is not None:
            self.tokens += row["completion_tokens"]
            if row["served_ms"] is not None:
                # 0 is anything below 1 ms: left out, the fastest requests would make the median slower.
                self.speeds.append(row["completion_tokens"] * 1000 / max(row["served_ms"], 1))

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "completed": self.completed,
            "completion_tokens": self.tokens,
            "tokens_per_s_median": round(median(self.speeds), 1) if self.speeds else None,
            "first_byte_ms_median": round(median(self.first_bytes), 1) if self.first_bytes else None,
        }


def export(path: str, form: str, write: Callable[[str], object], since: int | None = None) -> int:
    """Write every row, oldest first, as JSON lines or CSV; returns how many.

    One read transaction: the rows as of its beginning, whatever is written meanwhile.

    Raises:
        AuthorityError: The file is missing, unsafe or not a ledger.
        ControlError: `usage_unusable`.
    """
    names = ("run_id", *(name for name in COLUMNS if name != "run"))
    columns = ", ".join("runs.run_id" if name == "run_id" else f"requests.{name}" for name in names)
    sql = f"SELECT {columns} FROM requests LEFT JOIN runs USING (run) WHERE requests.started_at >= ? ORDER BY seq"  # noqa: S608 -- our own names
    count = 0
    with _opened(path) as db:
        _, found = db.select(sql, (0 if since is None else since,))
        if form == "csv":
            write(_csv_line(names))
        for row in found:
            values = dict(zip(names, map(_shown, row), strict=True))
            for name in ("started_at", "ended_at"):
                values[name] = at(values[name])
            values["stream"] = bool(values["stream"])
            if form == "csv":
                write(_csv_line(["" if v is None else v for v in values.values()]))
            else:
                if values["routing"] is not None:
                    values["routing"] = json.loads(values["routing"])
                write(json.dumps(values, ensure_ascii=False) + "\n")
            count += 1
    return count


def _shown(value: Any) -> Any:
    """A value as an export has it: an old ledger may hold bytes where text belongs."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


class _Line:
    """What `csv.writer` writes to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def _csv_line(values: Sequence[object]) -> str:
    line = _Line()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.text


def prunable(path: str, before: int) -> int:
    """How many rows a prune would delete."""
    with _opened(path) as db:
        (row,) = _dicts(
            db, "SELECT count(*) AS n FROM requests WHERE started_at < ? AND outcome IS NOT NULL", (before,)
        )
        return int(row["n"])


def prune(path: str, before: int) -> int:
    """Delete resolved rows that started before an instant; unresolved ones stay, whatever their age.

    Works beside a running gateway: transactions of 500 rows with a pause between them.

    Raises:
        AuthorityError: The file is missing, unsafe or not a ledger.
        ControlError: `usage_unusable`; what was deleted so far stays deleted.
    """
    total = 0
    with _opened(path, readonly=False) as db:
        while count := db.prune(before, PRUNE_ROWS):
            total += count
            time.sleep(_BREATH_S)
    return total


def reconcile(path: str) -> Reconciled:
    """Close the unresolved rows of dead runs, on the file, under the lock.

    Raises:
        AuthorityError: `usage_lock_held` (a gateway runs: ask it), or the file is missing, unsafe or not a ledger.
        ControlError: `usage_unusable`; nothing was changed.
    """
    with _locked(path) as identity, _opened(path, (3, 4), readonly=False) as db:
        return db.reconcile(Holder.current(identity), time.time_ns() // 1_000_000)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[str]:
    if not os.path.lexists(path):
        raise AuthorityError("usage_store_missing", f"{path}: there is no usage ledger")
    lock = take_lock(path)
    try:
        yield lock.identity
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class Migration:
    """What a migration did, or would do."""

    path: str
    from_schema: int
    to_schema: int
    rows: int
    backup: str | None
    applied: bool

    def to_json(self) -> dict[str, Any]:
        """As the command line prints it."""
        return {"object": "usage.migration", **asdict(self)}


def migrate(path: str, *, confirm: bool, backup: str | None = None) -> Migration:
    """Schema 3 to schema 4: nullable columns, an index, a table; existing values stay as they are.

    Args:
        path: The ledger.
        confirm: Without it only say what would be done.
        backup: Where the copy of the old file goes; default beside it, with the time in its name.

    Raises:
        AuthorityError: `usage_lock_held`, or the file is missing, unsafe or not a ledger.
        ControlError: `usage_unresolved` with the counts, `usage_backup_failed`, `usage_unusable`; nothing was changed.

    Crash:
        The ledger is whole at schema 3 or at schema 4; the copy is whole or absent.
    """
    with _locked(path), _opened(path, (3, 4), readonly=not confirm) as db:
        rows = db.count()
        if db.version == 4:
            return Migration(path, 4, 4, rows, None, applied=False)
        groups = db.unresolved_groups()
        if groups:
            counts = ", ".join(f"{count} of tier {tier or 'unknown'} in run {run}" for run, _, tier, _, count in groups)
            raise ControlError(
                "usage_unresolved", f"{path}: unresolved rows block the migration: {counts}; reconcile first"
            )
        misfit = db.misfit()
        if misfit is not None:
            raise ControlError("usage_unusable", f"{path}: {misfit}; nothing was changed")
        if not confirm:
            return Migration(path, 3, 4, rows, None, applied=False)
        target = backup or f"{path}.schema3-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        try:
            db.backup(target)
        except (OSError, sqlite3.Error) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise ControlError("usage_backup_failed", f"{target}: {reason}; nothing was changed") from None
        try:
            db.migrate()
        except sqlite3.Error as error:
            text = f"{path}: {error}; run it again; a copy of the ledger as it was is {target}"
            raise ControlError("usage_unusable", text) from None
        return Migration(path, 3, 4, rows, target, applied=True)
