"""A writer of ledgers of schema 3, as a gateway without generations left them behind."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sndr.router.store.usage_db import APPLICATION_ID, ddl

OUTCOMES = ("completed", "client_gone", "upstream_reset", "refused", "interrupted", "completed", "completed")


def write_v3(path: Path, rows: int = 100, unresolved: int = 0, pid: int | None = None) -> None:
    """Make a ledger with a finished run of `rows` requests and a second one that left `unresolved` open.

    Args:
        path: Must not exist.
        pid: Recorded for the second run; None records a process of an earlier boot.
    """
    path.touch(mode=0o600)
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        for statement in ddl(3):
            db.execute(statement)
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.execute("PRAGMA user_version=3")
        db.execute("BEGIN")
        db.execute("INSERT INTO runs VALUES(1,'run-one','boot-old',100,5,'0.0.9',1,2)")
        boot = "boot-old"
        if pid is not None:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        db.execute("INSERT INTO runs VALUES(2,'run-two',?,?,6,'0.0.9',3,NULL)", (boot, pid or 101))
        for n in range(rows):
            outcome = OUTCOMES[n % len(OUTCOMES)]
            tokens = (10 + n, "upstream", n, "upstream") if outcome == "completed" else (None, "absent", None, "absent")
            db.execute(
                f"INSERT INTO requests VALUES({','.join('?' * 27)})",
                (n + 1, 1, 1_700_000_000_000 + n, f"id-{n} \u00e9", "default", "chat", "chat", n % 2, "llm", "primary",
                 0, 100 + n, 1_700_000_001_000 + n, outcome, 200, None, "stop", *tokens, None, "absent", 5, 50, 900, 0),
            )  # fmt: skip
        for n in range(rows, rows + unresolved):
            db.execute(
                "INSERT INTO requests(seq,run,started_at,id,client,kind,endpoint,stream,alias,tier,queue_ms)"
                " VALUES(?,2,?,'open','default','chat','chat',1,'llm','primary',0)",
                (n + 1, 1_700_000_000_000 + n),
            )
        db.execute("COMMIT")
    finally:
        db.close()
