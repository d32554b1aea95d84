"""Usage rows from before generations existed: what they block, what they do not, and how they are settled."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.support.ledger_v3 import write_v3
from tests.support.live import live, refused, run_verb, until


def columns(path: Path, table: str) -> list[str]:
    base = sqlite3.connect(path)
    try:
        return [row[1] for row in base.execute(f"PRAGMA table_info({table})")]
    finally:
        base.close()


def dump(path: Path, table: str, names: list[str]) -> list[tuple[object, ...]]:
    base = sqlite3.connect(path)
    try:
        wanted = ",".join(f"quote({name}), typeof({name})" for name in names)
        return base.execute(f"SELECT {wanted} FROM {table} ORDER BY 1, 3").fetchall()
    finally:
        base.close()


@pytest.mark.scenario("S20")
@pytest.mark.req("R98", "R99", "R102")
def test_a_gateway_with_an_old_ledger_starts_after_reconcile_and_migration_only(tmp_path: Path) -> None:
    with live(tmp_path) as plane:
        ledger = plane.directory / "usage.db"
        for path in plane.directory.glob("usage.db*"):
            path.unlink()
        write_v3(ledger, rows=40, unresolved=2)
        names = {table: columns(ledger, table) for table in ("requests", "runs")}
        done = run_verb("serve", "--config", plane.config, "--allow-volatile-filesystem")
        assert (done.returncode, "usage_schema_old" in done.stderr) == (2, True), done.stderr
        before = ledger.read_bytes()
        done = run_verb("usage", "migrate", "--config", plane.config, "--confirm")
        assert (done.returncode, "usage_unresolved" in done.stderr) == (3, True), done.stderr
        assert "2 of tier primary in run 2" in done.stderr
        assert ledger.read_bytes() == before
        done = run_verb("usage", "reconcile", "--config", plane.config, "--confirm", "--json")
        assert (done.returncode, json.loads(done.stdout)["reconciled"]) == (0, 2), done.stderr
        kept = {table: dump(ledger, table, names[table]) for table in names}
        done = run_verb("usage", "migrate", "--config", plane.config, "--confirm", "--json")
        assert done.returncode == 0, done.stderr
        backup = Path(json.loads(done.stdout)["backup"])
        for table, old in kept.items():
            assert dump(ledger, table, names[table]) == old
            assert dump(backup, table, names[table]) == old
            added = [name for name in columns(ledger, table) if name not in names[table]]
            assert added
            assert {value for row in dump(ledger, table, added) for value in row} == {"NULL", "null"}
        with plane.serving() as (_, operator, user):
            assert user.ask("x").status_code == 200
            until(lambda: operator.status()["ledger"]["unresolved"] == 0)
            assert operator.change(op="alias_update", aliases={"x": {"tier": "b"}})["state"] == "completed"


@pytest.mark.scenario("S20")
@pytest.mark.req("R100", "R101", "R36", "R26")
def test_rows_without_a_generation_block_every_drain_and_no_alias_update(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane:
        ledger = plane.directory / "usage.db"
        for path in plane.directory.glob("usage.db*"):
            path.unlink()
        write_v3(ledger, rows=5)
        assert run_verb("usage", "migrate", "--config", plane.config, "--confirm").returncode == 0
        base = sqlite3.connect(ledger)
        base.execute("UPDATE requests SET outcome=NULL, ended_at=NULL WHERE seq IN (1, 2)")
        base.commit()
        base.close()
        with plane.serving() as (_, operator, user):
            until(lambda: operator.status()["ledger"]["unresolved"] == 2)
            # They name a tier that does not even exist here: nobody knows what they mean, so they concern every scope.
            tiers = {"a": {"base_url": plane.servers["m2"].base_url, "model": "m2"}}
            preview = operator.preview(op="tier_replacement", tiers=tiers)
            [check] = [check for check in preview["checks"] if check["name"] == "usage_resolved"]
            assert (check["ok"], check["code"], check["unassociated"]) == (False, "drain_blocked_legacy", 2)
            refused("drain_blocked_legacy", 409, operator.apply, preview)
            assert operator.view()["state"] == "idle"
            assert operator.change(op="alias_update", aliases={"x": {"tier": "b"}})["state"] == "completed"
            assert operator.change(op="rollback")["state"] == "completed"  # of an alias update: no drain either
            done = operator.call("POST", "/v1/admin/usage/reconcile", {"confirm": True})
            assert (done["reconciled"], done["left"]) == (2, 0)
            assert operator.change(op="tier_replacement", tiers=tiers)["state"] == "completed"
            assert user.ask("x").json()["model"] == "m2"


@pytest.mark.req("R97")
@pytest.mark.invariant("INV-2")
def test_an_authority_file_older_than_the_ledger_does_not_start(tmp_path: Path) -> None:
    with live(tmp_path) as plane:
        authority, old = plane.directory / "routes.json", tmp_path / "old.json"
        with plane.serving() as (gateway, operator, user):
            assert user.ask("x").status_code == 200
            shutil.copy2(authority, old)
            operator.change(op="alias_update", aliases={"x": {"tier": "b"}})
            assert user.ask("x").status_code == 200
            assert gateway.stop() == 0
        new = authority.read_bytes()
        authority.write_bytes(old.read_bytes())
        done = run_verb("serve", "--config", plane.config, "--allow-volatile-filesystem")
        assert (done.returncode, "route_state_rolled_back" in done.stderr) == (2, True), done.stderr
        assert authority.read_bytes() == old.read_bytes()
        authority.write_bytes(new)
        with plane.serving() as (_, operator, user):
            assert operator.view()["route_revision"] == 2
            assert user.ask("x").json()["model"] == "n1"
