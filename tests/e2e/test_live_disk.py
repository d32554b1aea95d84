"""A real gateway whose authority's disk is full, fails or stalls at each of its writes; seen from outside.

`SNDR_STALL_S=30` is the whole stall.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import Live, Operator, User, live, refused
from tests.support.sick_gateway import Sickness

STALL_S = float(os.environ.get("SNDR_STALL_S", "3"))
WRITES = {"W1": 0, "W2": 1, "W3": 2, "Wx": 0, "alias": 0}
"""Write -> how many writes of the same apply come before it."""


def change_with(write: str, plane: Live, operator: Operator) -> dict[str, Any]:
    """What an operator asks for so that this write happens; tier `a` goes to the server that it is not on."""
    if write == "alias":
        now = operator.view()["current"]["projection"]["aliases"]["y"]["tier"]
        return {"op": "alias_update", "aliases": {"y": {"tier": "a" if now == "b" else "b"}}}
    model = "m2" if operator.view()["current"]["projection"]["tiers"]["a"]["model"] == "m1" else "m1"
    server = plane.servers["m2" if model == "m2" else "a"]
    replace = {"op": "tier_replacement", "tiers": {"a": {"base_url": server.base_url, "model": model}}}
    if write == "Wx":
        prepared = operator.change(**replace, mode="prepare")
        return {"op": "cancel", "transaction_id": prepared["transaction_id"]}
    return replace


def on_disk(plane: Live) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((plane.directory / "routes.json").read_bytes())
    return document


def settle(operator: Operator) -> None:
    """The legal ways on, forwards, until nothing is open; rows of killed processes first."""
    operator.call("POST", "/v1/admin/usage/reconcile", {"confirm": True})
    for _ in range(6):
        view = operator.view()
        if view["state"] == "idle" and view["attention"] is None:
            return
        action = next(one for one in ("verify", "resume", "cancel", *view["next"]) if one in view["next"])
        if view["attention"] is None and action in ("resume", "cancel"):
            operator.change(op=action, transaction_id=view["transaction"]["id"])
        else:
            operator.recover(action)
    raise AssertionError("it never ended")


def served(user: User, alias: str) -> str:
    answer = user.ask(alias)
    return str(answer.json()["model"] if answer.status_code == 200 else answer.json()["error"]["code"])


@pytest.mark.scenario("S11")
@pytest.mark.req("R32", "R69", "R81", "R45", "R40", "R44")
@pytest.mark.invariant("INV-7", "INV-14", "INV-16")
@pytest.mark.parametrize(
    ("call", "number", "code", "status"),
    [
        ("write", errno.ENOSPC, "authority_no_space", 507),
        ("write", errno.EDQUOT, "authority_no_space", 507),
        ("fsync", errno.EIO, "authority_write_failed", 500),
    ],
)
def test_a_disk_that_is_full_or_fails_before_the_rename_changes_nothing(
    tmp_path: Path, call: str, number: int, code: str, status: int
) -> None:
    sick = Sickness(tmp_path / "sick")
    with live(tmp_path, spare=["m2"]) as plane, plane.serving(**sick.environ) as (gateway, operator, user):
        for write, before in WRITES.items():
            change = change_with(write, plane, operator)
            revision, seq = operator.view()["route_revision"], on_disk(plane)["write_seq"]
            preview = operator.preview(**change)
            sick.plan(call, skip=before, errno=number)
            refused(code, status, operator.apply, preview)
            assert sick.has_struck(), write
            view, file = operator.view(), on_disk(plane)
            assert file["write_seq"] == seq + before, write  # what failed is not there
            assert view["route_revision"] == file["current"]["route_revision"], write
            assert view["route_revision"] == revision + (write == "W3"), write
            is_held = bool(file["transaction"] and file["transaction"]["hold"])
            assert is_held == (write in ("W2", "W3", "Wx")), write
            assert view["held_tiers"] == (["a"] if is_held else []), write
            assert (served(user, "x") == "held") == is_held, write
            if operator.view()["current"]["projection"]["aliases"]["y"]["tier"] == "b":
                assert served(user, "y") == "n1", write
            settle(operator)
            assert served(user, "x") in ("m1", "m2")
        assert operator.call("GET", "/v1/admin/routes/check")["result"] == "consistent"
        assert gateway.stop() == 0


@pytest.mark.scenario("S12")
@pytest.mark.req("R89", "R69", "R83", "R82", "R12", "R43")
@pytest.mark.invariant("INV-1", "INV-7", "INV-9", "INV-16", "INV-18")
def test_a_directory_that_is_not_synchronised_leaves_doubt_until_it_is_asserted_again(tmp_path: Path) -> None:
    sick = Sickness(tmp_path / "sick")
    with live(tmp_path, spare=["m2"]) as plane, plane.serving(**sick.environ) as (gateway, operator, user):
        for write, before in WRITES.items():
            change = change_with(write, plane, operator)
            fence = operator.view()["route_revision"]
            preview = operator.preview(**change)
            sick.plan("fsync", "directory", skip=before, errno=errno.EIO)
            body = refused("authority_write_uncertain", 500, operator.apply, preview)
            assert sick.has_struck(), write
            assert (body["state"], body["attention"]) == ("uncertain", "write_uncertain"), write
            view, file = operator.view(), on_disk(plane)
            assert view["writable"] is False, write
            assert "reassert" in view["next"], write
            assert view["route_revision"] == fence + (write == "W3"), write  # the new one is not published in doubt
            assert view["route_revision"] <= file["current"]["route_revision"], write
            assert (served(user, "x") == "held") == (write != "alias"), write
            refused("recovery_required", 409, operator.preview, op="alias_update", aliases={"x": {"tier": "b"}})
            inode = (plane.directory / "routes.json").stat().st_ino
            named = None if file["transaction"] is None else file["transaction"]["id"]
            operator.change(op="recover", transaction_id=named, action="reassert")
            assert (plane.directory / "routes.json").stat().st_ino != inode, write  # never the same file again
            assert operator.view()["route_revision"] == on_disk(plane)["current"]["route_revision"], write
            settle(operator)
            assert served(user, "x") in ("m1", "m2"), write
        assert gateway.stop() == 0


@pytest.mark.scenario("S10")
@pytest.mark.req("R12", "R40", "R71", "R76", "R77")
@pytest.mark.invariant("INV-1", "INV-2", "INV-7", "INV-12")
@pytest.mark.parametrize("on", ["file", "directory"])
def test_a_gateway_that_is_killed_at_any_synchronisation_starts_with_what_it_had_told(tmp_path: Path, on: str) -> None:
    """Killed while it waits for the disk: before the rename, and after it; in every write of its life."""
    sick = Sickness(tmp_path / "sick")
    told = 1
    with live(tmp_path, spare=["m2"]) as plane:
        for write, before in WRITES.items():
            with (
                plane.serving(**sick.environ) as (gateway, operator, _),
                ThreadPoolExecutor(1) as pool,
                Operator(gateway) as other,
            ):
                operator.call("POST", "/v1/admin/usage/reconcile", {"confirm": True})
                preview = operator.preview(**change_with(write, plane, operator))
                assert preview["applicable"], preview
                sick.plan("fsync", on, skip=before, seconds=60)
                applying = pool.submit(other.apply, preview)
                sick.wait()
                told = max(told, operator.view()["route_revision"])
                gateway.process.kill()
                gateway.process.wait(30)
                assert applying.exception(30) is not None
            sick.heal()
            with plane.serving() as (_, operator, user):
                view = operator.view()
                assert view["route_revision"] >= told, write
                told = view["route_revision"]
                if view["state"] != "idle":
                    assert (view["attention"], view["held_tiers"]) == ("interrupted", ["a"]), write
                    assert served(user, "x") == "held", write
                settle(operator)
                assert served(user, "x") in ("m1", "m2", "n1"), write
                told = max(told, operator.view()["route_revision"])


@pytest.mark.scenario("S23")
@pytest.mark.req("R2", "R45", "R27", "R41")
def test_a_disk_that_stalls_under_a_change_delays_nobody_else(tmp_path: Path) -> None:
    sick = Sickness(tmp_path / "sick")
    with live(tmp_path, spare=["m2"]) as plane, plane.serving(**sick.environ) as (gateway, operator, user):
        target = {"a": {"base_url": plane.servers["m2"].base_url, "model": "m2"}}
        for skip in range(3):
            preview = operator.preview(op="tier_replacement", tiers=target)
            sick.plan("fsync", "directory", skip=skip, seconds=STALL_S)
            done = threading.Event()

            def apply(preview: dict[str, Any] = preview, done: threading.Event = done) -> Any:
                with Operator(gateway) as other:
                    try:
                        return other.apply(preview)
                    finally:
                        done.set()

            with ThreadPoolExecutor(1) as pool:
                applying = pool.submit(apply)
                sick.wait()
                answered = 0
                while not done.is_set():
                    assert user.ask("y").status_code == 200
                    answered += not done.is_set()
                    if answered == 5:
                        assert served(user, "x") == "held"
                        assert operator.view()["held_tiers"] == ["a"]
                        assert operator.status()["state"] == "serving"
                assert answered > 5
                assert applying.result(30)["state"] == "completed"
            model = target["a"]["model"]
            assert served(user, "x") == model
            server, model = (plane.servers["a"], "m1") if model == "m2" else (plane.servers["m2"], "m2")
            target = {"a": {"base_url": server.base_url, "model": model}}


@pytest.mark.req("R33", "R52", "R54", "R55")
@pytest.mark.invariant("INV-10")
def test_the_two_files_of_the_two_bits_know_nothing_of_each_other(tmp_path: Path) -> None:
    bit = tmp_path / "live" / "admission.json"
    with live(tmp_path, spare=["m2"], server=f'admission_state_path = "{bit}"') as plane:
        authority = plane.directory / "routes.json"
        target = {"a": {"base_url": plane.servers["m2"].base_url, "model": "m2"}}

        def bits(operator: Operator) -> dict[str, tuple[bool, bool]]:
            return {tier["id"]: (tier["quiesced"], tier["held"]) for tier in operator.view()["tiers"]}

        with plane.serving() as (_, operator, _):
            before = authority.read_bytes()
            operator.call("POST", "/v1/admin/tiers/b/quiesce", {})
            assert authority.read_bytes() == before
            kept = bit.read_bytes()
            prepared = operator.change(op="tier_replacement", tiers=target, mode="prepare")
            assert bit.read_bytes() == kept
            assert bits(operator) == {"a": (False, True), "b": (True, False)}
        held = authority.read_bytes()
        bit.unlink()
        with plane.serving() as (_, operator, user):
            assert bits(operator) == {"a": (False, True), "b": (False, False)}
            assert (served(user, "x"), served(user, "y")) == ("held", "n1")
        bit.write_bytes(kept)
        bit.chmod(0o600)
        with plane.serving() as (_, operator, user):
            assert bits(operator) == {"a": (False, True), "b": (True, False)}
            assert json.loads(held)["transaction"]["id"] == prepared["transaction_id"]
            operator.recover("cancel")
            assert bits(operator) == {"a": (False, False), "b": (True, False)}
            assert (served(user, "x"), served(user, "y")) == ("m1", "quiesced")
            assert bit.read_bytes() == kept


@pytest.mark.req("R4", "R112")
def test_a_promotion_starts_and_signals_nothing_and_reaches_its_servers_only(tmp_path: Path) -> None:
    sick = Sickness(tmp_path / "sick")
    with live(tmp_path, spare=["m2"]) as plane, plane.serving(**sick.environ) as (_, operator, user):
        target = {"a": {"base_url": plane.servers["m2"].base_url, "model": "m2"}}
        assert served(user, "x") == "m1"
        first = operator.change(op="tier_replacement", tiers=target, mode="prepare")
        operator.change(op="resume", transaction_id=first["transaction_id"])
        assert served(user, "x") == "m2"
        operator.change(op="rollback")
        operator.change(op="alias_update", aliases={"y": {"tier": "a"}})
        assert served(user, "y") == "m1"
        seen = sick.seen()
        assert {event for event, _ in seen} == {"socket.connect"}
        allowed = {server.address.rpartition(":")[2] for server in plane.servers.values()}
        assert {str(detail[1]) for _, detail in seen} <= allowed
        assert {detail[0] for _, detail in seen} == {"127.0.0.1"}
