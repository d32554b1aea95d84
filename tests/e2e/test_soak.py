"""Half a minute of the soak, and that it can be stopped and started again; hours of it are a command of their own."""

from __future__ import annotations

from pathlib import Path

from tests.support.soak import Progress, compare, run
from tests.support.synthetic import synthetic_thread


def test_half_a_minute_of_everything(tmp_path: Path) -> None:
    first = run(tmp_path, seconds=14, every_s=7, rate=100)
    assert first.faults == []
    progress = run(tmp_path, seconds=28, every_s=7, rate=100)  # goes on, with a gateway of its own over the same ledger
    assert progress.faults == []
    assert (progress.segments, progress.seconds) == (2, 28)
    assert progress.rows >= progress.upstream > 1000
    assert {"completed", "client_gone", "upstream_reset", "upstream_error", "refused"} <= set(progress.outcomes)
    assert progress.requests > first.requests


def test_a_missing_row_is_a_fault(tmp_path: Path) -> None:
    """The comparison is able to fail."""
    import sqlite3

    from tests.support.raw import ask, chat, request

    db = sqlite3.connect(tmp_path / "usage.db")
    db.execute("CREATE TABLE requests(seq INTEGER, id TEXT, outcome TEXT, retries INTEGER, admission_seq INTEGER)")
    db.execute("INSERT INTO requests VALUES (1, 'soak-1', 'completed', 0, 1), (2, 'soak-2', 'completed', 0, 2)")
    db.commit()
    db.close()
    with synthetic_thread() as server:
        for name in ("soak-1", "soak-3"):
            body = chat(model="m1")
            assert ask(f"http://{server.address}", request(body, headers={"x-request-id": name})).status == 200
        progress = Progress()
        compare(tmp_path / "usage.db", progress, server)
    assert progress.faults == ["soak-2: completed, 0 upstream calls for 1", "soak-3: sent upstream without a row"]
