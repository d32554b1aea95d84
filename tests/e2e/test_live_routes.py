"""Live route changes of a real gateway process, seen from outside: the operator's, the clients', the servers'."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import CREDENTIALS
from tests.support.live import Liar, Live, Operator, RefusedError, User, is_whole, live, refused, run_verb, until
from tests.support.synthetic import synthetic_thread


@pytest.mark.scenario("S1")
@pytest.mark.req("R1", "R12", "R13", "R15", "R26", "R27", "R28")
def test_an_alias_moves_under_running_streams(tmp_path: Path) -> None:
    with live(tmp_path) as plane, plane.serving() as (gateway, operator, user):
        with user.stream("x", tokens=30) as running:
            assert running.headers["x-sndr-route-revision"] == "1"
            receipt = operator.change(op="alias_update", aliases={"x": {"tier": "b"}})
            assert (receipt["state"], receipt["held"], receipt["scope"]) == ("completed", False, [])
            assert receipt["changed"]["to"]["route_revision"] == 2
            answer = user.ask("x")
            assert (answer.json()["model"], answer.headers["x-sndr-route-revision"]) == ("n1", "2")
            assert is_whole(running.read().decode(), 30)
        back = operator.change(op="alias_update", aliases={"x": {"tier": "a"}})
        assert back["changed"]["to"]["effective_route_sha256"] == receipt["changed"]["from"]["effective_route_sha256"]
        assert back["changed"]["to"]["route_revision"] == 3
        assert user.ask("x").json()["model"] == "m1"
        assert gateway.stop() == 0


@pytest.mark.scenario("S2")
@pytest.mark.req("R30", "R31", "R34", "R35", "R39", "R41", "R45", "R48")
def test_a_tier_is_replaced_while_its_streams_finish_and_the_others_go_on(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane, plane.serving() as (gateway, operator, user):
        with (
            user.stream("x", tokens=10, stall_after=1) as inside,
            user.stream("y", tokens=60, stall_after=1) as outside,
            Operator(gateway) as other,
            ThreadPoolExecutor(1) as pool,
        ):
            preview = operator.preview(op="tier_replacement", tiers=a_new_model(plane))
            assert preview["applicable"]
            assert preview["affected"] == {"aliases": ["x"], "in_flight": 1}
            assert preview["will"] == ["hold", "drain", "commit", "publish", "verify", "readmit"]
            applying = pool.submit(other.apply, preview)
            until(lambda: operator.view()["state"] == "held")
            plane.servers["a"].release()
            assert is_whole(inside.read().decode(), 10)
            receipt = applying.result(60)
            plane.servers["b"].release()  # it has been running all the time
            assert is_whole(outside.read().decode(), 60)
        assert (receipt["state"], receipt["scope"], receipt["held"]) == ("completed", ["a"], False)
        assert receipt["streams"] == {"in_scope_finished": 1, "cut": 0}
        assert receipt["drain"]["complete"]
        assert (receipt["proves"], receipt["authorizes"]) == ("advertised_name", [])
        assert operator.status()["route_authority"]["last_receipt"]["transaction_id"] == receipt["transaction_id"]
        assert user.ask("x").json()["model"] == "m2"
        tiers = {tier["id"]: tier["generation"] for tier in operator.view()["tiers"]}
        assert tiers == {"a": 2, "b": 1}
        assert gateway.stop() == 0


@pytest.mark.req("R110", "R111", "R22", "R108")
def test_what_may_not_change_is_refused_with_its_own_code(tmp_path: Path) -> None:
    with live(tmp_path) as plane, plane.serving() as (_, operator, _):

        def preview(code: str, status: int, **body: object) -> None:
            refused(code, status, operator.preview, **body)

        other = {"base_url": plane.servers["b"].base_url, "model": "n1"}
        preview("endpoint_overlap", 422, op="tier_replacement", tiers={"a": other})
        preview("unknown_alias", 422, op="alias_update", aliases={"z": {"tier": "a"}})
        preview("unknown_tier", 422, op="alias_update", aliases={"x": {"tier": "c"}})
        preview("no_effective_change", 409, op="alias_update", aliases={"x": {"tier": "a"}})
        preview("mixed_change", 422, op="alias_update", aliases={}, tiers={})
        preview("restart_only", 422, op="tier_replacement", tiers={"a": {"serves": ["chat"]}})
        preview("endpoint_invalid", 422, op="tier_replacement", tiers={"a": {"base_url": f"{operator.url}/v1"}})
        assert operator.view()["write_seq"] == 2


def held(user: User, model: str) -> None:
    answer = user.ask(model)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "held"), answer.text


def a_new_model(plane: Live, model: str = "m2") -> dict[str, Any]:
    return {"a": {"base_url": plane.servers[model].base_url, "model": model}}


@pytest.mark.scenario("S3")
@pytest.mark.req("R16", "R34", "R37", "R81", "R82", "R83")
def test_a_drain_that_runs_out_cuts_nobody_and_goes_on_when_told(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane, plane.serving() as (_, operator, user):
        with user.stream("x", tokens=3, delay_ms=0, stall_after=1) as slow:
            body = refused(
                "drain_timeout", 504, operator.change,
                {"drain_timeout_s": 1}, op="tier_replacement", tiers=a_new_model(plane),
            )  # fmt: skip
            assert (body["state"], body["held"], body["attention"]) == ("held", True, "drain_timeout")
            assert body["next"] == ["drain", "resume", "cancel"]
            held(user, "x")
            assert user.ask("y").status_code == 200
            transaction = body["transaction_id"]
            refused("recovery_required", 409, operator.preview, op="resume", transaction_id=transaction)
            refused("recovery_required", 409, operator.preview, op="alias_update", aliases={"y": {"tier": "a"}})
            watched = operator.call("GET", "/v1/admin/routes/drain?timeout_s=1")
            assert (watched["complete"], watched["timed_out"], watched["leases"]) == (False, True, {"a": 1})
            plane.servers["a"].release()
            assert is_whole(slow.read().decode(), 3)
        receipt = operator.recover("resume")
        assert receipt["state"] == "completed"
        assert receipt["transaction_id"] == transaction
        assert receipt["streams"] == {"in_scope_finished": 1, "cut": 0}
        assert user.ask("x").json()["model"] == "m2"
        assert all(entry["ended"] in ("complete", None) for entry in plane.servers["a"].log())


@pytest.mark.scenario("S5")
@pytest.mark.req("R42", "R46", "R84", "R41", "R106", "R107", "R113")
@pytest.mark.parametrize("served", ["m2 ", "M2", "org/m2"])
def test_a_server_that_turns_out_to_serve_another_model_is_held_and_rolled_back(tmp_path: Path, served: str) -> None:
    with (
        live(tmp_path, probe_interval_s="600") as plane,
        Liar(lambda look: ["m2"] if look <= 2 else [served]) as liar,
        plane.serving() as (_, operator, user),
    ):
        before = operator.view()["current"]
        change = {"a": {"base_url": liar.base_url, "model": "m2"}}
        body = refused("identity_mismatch", 502, operator.change, op="tier_replacement", tiers=change)
        assert (body["state"], body["attention"], body["next"]) == (
            "committed",
            "verify_failed",
            ["verify", "rollback"],
        )
        assert body["route_revision"] == 2
        held(user, "x")
        assert user.ask("y").status_code == 200
        liar.script = lambda _: ["m2"]  # an upstream that recovers changes nothing by itself
        held(user, "x")
        transaction = body["transaction_id"]
        refused("already_committed", 409, operator.preview, op="cancel", transaction_id=transaction)
        receipt = operator.recover("rollback")
        assert (receipt["op"], receipt["state"], receipt["parent_id"]) == ("rollback", "completed", transaction)
        after = operator.view()["current"]
        assert after["route_revision"] == before["route_revision"] + 2
        assert after["effective_route_sha256"] == before["effective_route_sha256"]
        assert user.ask("x").json()["model"] == "m1"
        assert liar.chats == 0
        assert [receipt["proves"], receipt["authorizes"]] == ["advertised_name", []]


@pytest.mark.scenario("S6")
@pytest.mark.req("R43", "R44", "R49", "R113")
def test_a_server_that_is_gone_at_verification_is_verified_once_it_is_back(tmp_path: Path) -> None:
    with (
        live(tmp_path, probe_interval_s="600") as plane,
        Liar(lambda look: ["m2"] if look <= 2 else None) as liar,
        plane.serving() as (_, operator, user),
    ):
        change = {"a": {"base_url": liar.base_url, "model": "m2"}}
        body = refused(
            "identity_unavailable", 502, operator.change, {"verify_timeout_s": 1}, op="tier_replacement", tiers=change
        )
        assert (body["state"], body["route_revision"]) == ("committed", 2)
        held(user, "x")
        liar.script = lambda _: ["other", "m2"]
        receipt = operator.recover("verify")
        assert (receipt["state"], receipt["held"]) == ("completed", False)
        assert receipt["identity"]["observed"] == ["m2", "other"]
        assert receipt["changed"]["to"]["route_revision"] == 2
        assert user.ask("x").status_code == 200
        assert liar.chats == 1


@pytest.mark.req("R46")
def test_a_candidate_that_serves_another_model_is_refused_before_anything_is_held(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane, plane.serving() as (_, operator, user):
        change = {"a": {"base_url": plane.servers["m2"].base_url, "model": "m3"}}
        preview = operator.preview(op="tier_replacement", tiers=change)
        [check] = [check for check in preview["checks"] if not check["ok"]]
        assert (preview["applicable"], check["name"], check["code"]) == (False, "candidate_identity", "precheck_failed")
        assert check["observed"] == ["m2"]
        refused("precheck_failed", 409, operator.apply, preview)
        assert operator.view()["write_seq"] == 2
        assert user.ask("x").status_code == 200


@pytest.mark.req("R42", "R58")
@pytest.mark.invariant("INV-14")
def test_names_that_servers_advertise_never_keep_a_change_from_its_end(tmp_path: Path) -> None:
    names = ["m2"]
    with live(tmp_path) as plane, Liar(lambda _: names) as liar, plane.serving() as (_, operator, user):
        change = {"a": {"base_url": liar.base_url, "model": "m2"}}
        for odd in ("\ud800", "\x00", "line\n", "a" * 3000, ""):
            names = [odd, "m2"]
            preview = operator.preview(op="tier_replacement", tiers=change)
            [check] = [check for check in preview["checks"] if not check["ok"]]
            assert (check["code"], check["reason"]) == ("precheck_failed", "identity_malformed")
            assert operator.status()["object"] == "router.status"
        names = [*(f"{number}{chr(34) * 2000}" for number in range(40)), "m2"]
        receipt = operator.change(op="tier_replacement", tiers=change)
        assert (receipt["state"], receipt["identity"]["observed"][0]) == ("completed", "m2")
        assert user.ask("x").status_code == 200
        assert run_verb("fsck", "--config", plane.config).returncode == 0


@pytest.mark.scenario("S7")
@pytest.mark.req("R86", "R87", "R103")
def test_cancel_needs_the_original_to_prove_itself(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane, plane.serving() as (_, operator, user):
        prepare = {"op": "tier_replacement", "tiers": a_new_model(plane), "mode": "prepare"}
        prepared = operator.change(**prepare)
        assert (prepared["state"], prepared["drain"]["complete"], prepared["next"]) == (
            "held", True, ["resume", "cancel"],
        )  # fmt: skip
        assert prepared["changed"]["to"] is None
        cancelled = operator.change(op="cancel", transaction_id=prepared["transaction_id"])
        assert (cancelled["state"], cancelled["held"], operator.view()["route_revision"]) == ("cancelled", False, 1)
        assert user.ask("x").json()["model"] == "m1"
        refused("no_transaction", 409, operator.preview, op="cancel", transaction_id=prepared["transaction_id"])

        second = operator.change(**prepare)["transaction_id"]
        plane.servers["a"].set(models=["m2"])
        body = refused("cancel_target_unverified", 409, operator.change, op="cancel", transaction_id=second)
        assert (body["state"], body["attention"]) == ("held", "cancel_target_unverified")
        held(user, "x")
        plane.servers["a"].set(models=["m1"])
        assert operator.recover("cancel")["state"] == "cancelled"
        assert user.ask("x").json()["model"] == "m1"


def test_a_cancel_ends_the_wait_of_whoever_drains(tmp_path: Path) -> None:
    with (
        live(tmp_path, spare=["m2"]) as plane,
        plane.serving() as (gateway, operator, user),
        user.stream("x", tokens=3, delay_ms=0, stall_after=1) as slow,
        Operator(gateway) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(
            refused, "transaction_changed", 409, other.change, op="tier_replacement", tiers=a_new_model(plane)
        )
        view = until(lambda: (now := operator.view())["state"] == "held" and now)
        refused("transaction_in_progress", 409, operator.preview, op="alias_update", aliases={"y": {"tier": "a"}})
        receipt = operator.change(op="cancel", transaction_id=view["transaction"]["id"])
        assert receipt["state"] == "cancelled"
        waiting.result(20)
        plane.servers["a"].release()
        assert is_whole(slow.read().decode(), 3)


@pytest.mark.scenario("S8")
@pytest.mark.req("R36", "R61", "R76", "R77", "R100", "R101", "R71")
def test_a_kill_while_held_keeps_the_hold_until_the_ledger_is_reconciled(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane:
        with plane.serving() as (gateway, operator, user), ExitStack() as streams:
            for _ in range(3):
                streams.enter_context(user.stream("x", tokens=3, delay_ms=0, stall_after=1))
            change = {"op": "tier_replacement", "tiers": a_new_model(plane), "mode": "prepare"}
            transaction = refused("drain_timeout", 504, operator.change, {"drain_timeout_s": 1}, **change)
            gateway.process.kill()
            gateway.process.wait(10)
        with plane.serving() as (_, operator, user):
            view = operator.view()
            assert (view["state"], view["attention"], view["held_tiers"]) == ("held", "interrupted", ["a"])
            assert view["transaction"]["id"] == transaction["transaction_id"]
            assert view["route_revision"] == 1
            held(user, "x")
            assert user.ask("y").status_code == 200
            until(lambda: operator.status()["ledger"]["unresolved"] == 3)
            preview = operator.preview(op="recover", transaction_id=transaction["transaction_id"], action="resume")
            assert not preview["applicable"]
            refused("drain_blocked_usage", 409, operator.apply, preview)
            done = operator.call("POST", "/v1/admin/usage/reconcile", {"confirm": True})
            assert (done["reconciled"], done["left"]) == (3, 0)
            assert operator.recover("resume")["state"] == "completed"
            assert user.ask("x").json()["model"] == "m2"


@pytest.mark.scenario("S9")
@pytest.mark.req("R44", "R77", "R41", "R76")
def test_a_kill_after_the_commit_is_verified_after_the_restart(tmp_path: Path) -> None:
    with (
        live(tmp_path, probe_interval_s="600") as plane,
        Liar(lambda look: ["m2"] if look <= 2 else None) as liar,
    ):
        with plane.serving() as (gateway, operator, _), ThreadPoolExecutor(1) as pool:
            change = {"a": {"base_url": liar.base_url, "model": "m2"}}
            preview = operator.preview(op="tier_replacement", tiers=change)
            applying = pool.submit(operator.apply, preview, verify_timeout_s=60)
            with Operator(gateway) as other:
                until(lambda: other.view()["state"] == "committed")
                assert other.view()["route_revision"] == 2
            gateway.process.kill()
            assert applying.exception(20) is not None
        liar.script = lambda _: ["m2"]
        with plane.serving() as (_, operator, user):
            view = operator.view()
            assert (view["state"], view["attention"], view["route_revision"]) == ("committed", "interrupted", 2)
            held(user, "x")
            replayed = operator.apply(preview)  # the answer that was lost
            assert (replayed["replayed"], replayed["state"]) == (True, "committed")
            assert operator.recover("verify")["state"] == "completed"
            assert user.ask("x").status_code == 200
            assert liar.chats == 1


@pytest.mark.scenario("S13")
@pytest.mark.req("R23", "R93", "R95")
def test_of_two_operators_one_wins(tmp_path: Path) -> None:
    with live(tmp_path) as plane, plane.serving() as (gateway, operator, _):
        previews = [operator.preview(op="alias_update", aliases={"x": {"tier": "b"}}) for _ in range(2)]
        start = threading.Barrier(2)

        def apply(preview: dict[str, Any]) -> str:
            with Operator(gateway) as mine:
                start.wait(10)
                try:
                    return str(mine.apply(preview)["state"])
                except RefusedError as refusal:
                    return refusal.code

        with ThreadPoolExecutor(2) as pool:
            outcomes = sorted(pool.map(apply, previews))
        assert outcomes == ["completed", "preview_stale"]
        assert operator.view()["route_revision"] == 2
        same = operator.preview(op="alias_update", aliases={"x": {"tier": "a"}})
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(apply, [same, same])) == ["completed", "completed"]
        assert operator.view()["route_revision"] == 3
        replayed = operator.apply(same)
        assert (replayed["replayed"], replayed["changed"]["to"]["route_revision"]) == (True, 3)


@pytest.mark.scenario("S14")
@pytest.mark.req("R53")
def test_the_operators_drain_and_the_transactions_wait_beside_each_other(tmp_path: Path) -> None:
    with (
        live(tmp_path, spare=["m2"]) as plane,
        plane.serving() as (gateway, operator, user),
        user.stream("x", tokens=3, delay_ms=0, stall_after=1) as slow,
        Operator(gateway) as other,
        Operator(gateway) as third,
        ThreadPoolExecutor(2) as pool,
    ):
        change = {"op": "tier_replacement", "tiers": a_new_model(plane)}
        drain = "/v1/admin/tiers/a/drain"
        replaced = pool.submit(other.change, {"drain_timeout_s": 60}, **change)
        until(lambda: operator.view()["state"] == "held")
        # The hold is not the operator's bit.
        refused("not_quiesced", 409, operator.call, "POST", drain, {"timeout_s": 1})
        assert operator.call("POST", "/v1/admin/tiers/a/quiesce", {})["held"]
        assert not operator.call("POST", drain, {"timeout_s": 1})["drained"]
        drained = pool.submit(third.call, "POST", drain, {"timeout_s": 60})
        assert operator.call("GET", "/v1/admin/routes/drain?timeout_s=1")["leases"] == {"a": 1}
        assert not replaced.done()
        assert not drained.done()
        plane.servers["a"].release()
        assert is_whole(slow.read().decode(), 3)
        assert drained.result(30)["drained"]
        assert replaced.result(30)["state"] == "completed"
        assert user.ask("x").json()["error"]["code"] == "quiesced"


@pytest.mark.scenario("S14")
@pytest.mark.req("R50", "R51", "R52", "R55", "R25")
def test_the_operators_bit_and_the_transactions_are_two(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2", "m3"]) as plane, plane.serving() as (_, operator, user):

        def quiesce() -> Any:
            return operator.call("POST", "/v1/admin/tiers/a/quiesce", {"reason": "mine"})

        def readmit() -> Any:
            return operator.call("POST", "/v1/admin/tiers/a/readmit", {})

        def code(model: str = "x") -> str | None:
            answer = user.ask(model)
            return None if answer.status_code == 200 else answer.json()["error"]["code"]

        quiesce()
        moved = operator.preview(op="alias_update", aliases={"y": {"tier": "a"}})
        refused("target_not_admitting", 409, operator.apply, moved)
        assert operator.change(op="tier_replacement", tiers=a_new_model(plane))["state"] == "completed"
        assert code() == "quiesced"
        readmit()
        assert code() is None

        prepared = operator.change(op="tier_replacement", tiers=a_new_model(plane, "m3"), mode="prepare")
        assert code() == "held"
        assert (quiesce()["held"], code()) == (True, "quiesced")
        tier = readmit()["tier"]
        assert (tier["quiesced"], tier["held"], tier["admitting"]) == (False, True, False)
        assert code() == "held"
        quiesce()
        operator.change(op="resume", transaction_id=prepared["transaction_id"])
        assert code() == "quiesced"
        readmit()
        assert user.ask("x").json()["model"] == "m3"


@pytest.mark.scenario("S15")
@pytest.mark.req("R92", "R93", "R95", "R44")
def test_a_preview_is_bound_used_once_and_of_this_process(tmp_path: Path) -> None:
    with live(tmp_path) as plane:
        with plane.serving() as (_, operator, _):
            preview = operator.preview(op="alias_update", aliases={"x": {"tier": "b"}})
            flipped = {**preview, "preview_sha256": preview["preview_sha256"][:-1] + "x"}
            refused("invalid_request", 400, operator.apply, flipped)
            digit = "0" if preview["preview_sha256"][-1] != "0" else "1"
            flipped = {**preview, "preview_sha256": preview["preview_sha256"][:-1] + digit}
            refused("preview_mismatch", 409, operator.apply, flipped)
            for confirm in (False, None, 1, "true"):
                refused("confirmation_required", 428, operator.apply, preview, confirm=confirm)
            refused("preview_unknown", 409, operator.apply, {**preview, "preview_id": "nobody"})
            for timeout in (0, 901, 1e9, True, "30", None):
                refused("invalid_timeout", 400, operator.apply, preview, drain_timeout_s=timeout)
            headers = {"if-match": '"2"'}
            body = {"op": "alias_update", "aliases": {"x": {"tier": "b"}}}
            refused("precondition_failed", 412, operator.call, "POST", "/v1/admin/routes/preview", body, **headers)
            plane.servers["b"].set(health=503)
            refused("target_not_ready", 409, operator.apply, preview)
            plane.servers["b"].set(health=200)
            refused("preview_consumed", 409, operator.apply, preview)
            preview = operator.preview(op="alias_update", aliases={"x": {"tier": "b"}})
            first = operator.apply(preview)
            assert {**operator.apply(preview), "replayed": False} == first
            unused = operator.preview(op="alias_update", aliases={"x": {"tier": "a"}})
        with plane.serving() as (_, operator, _):
            refused("preview_unknown", 409, operator.apply, unused)
            assert operator.apply(preview)["replayed"]  # the durable receipt knows that it came from it


@pytest.mark.scenario("S17")
@pytest.mark.req("R63", "R91", "R102", "R74", "R79", "R75")
def test_what_keeps_a_router_from_starting(tmp_path: Path) -> None:
    def serve(config: Path, **environ: str) -> tuple[int, str]:
        done = run_verb("serve", "--config", config, "--allow-volatile-filesystem", **environ)
        return done.returncode, done.stderr

    with live(tmp_path) as plane:
        authority = plane.directory / "routes.json"
        config = plane.config.read_text()
        with plane.serving() as (_, operator, _):
            before = authority.read_bytes()
            code, said = serve(plane.config)
            assert (code, "route_lock_held" in said) == (3, True)
            assert authority.read_bytes() == before
            assert operator.call("GET", "/v1/admin/routes/check")["result"] == "consistent"

        def refuses(text: str, expected: str, **environ: str) -> None:
            plane.config.write_text(text)
            code, said = serve(plane.config, **environ)
            assert (code, expected in said) == (2, True), said
            plane.config.write_text(config)

        refuses(config, "route_operator_credential_weak", OPERATOR_KEY="short")
        refuses(config, "route_operator_credential_shared", OPERATOR_KEY=CREDENTIALS["CLIENT_KEY"])
        refuses(config, "route_operator_credential_missing", OPERATOR_KEY="")
        without = config.replace('operator_auth_env = "OPERATOR_KEY"\n', "")
        refuses(without, "route_operator_credential_missing")
        refuses("\n".join(line for line in config.splitlines() if "usage_path" not in line), "usage_store_required")
        (plane.directory / "usage.db").rename(plane.directory / "away.db")
        refuses(config, "usage_store_missing")
        (plane.directory / "away.db").rename(plane.directory / "usage.db")
        authority.rename(plane.directory / "kept.json")
        refuses(config, "route_state_missing")
        assert not authority.exists()


@pytest.mark.scenario("S18")
@pytest.mark.invariant("INV-15")
@pytest.mark.req("R8", "R9", "R19", "R60", "R80")
def test_a_changed_boot_file_needs_a_rebase(tmp_path: Path) -> None:
    with live(tmp_path) as plane:
        plane.config.chmod(0o400)
        stat, text = plane.config.stat(), plane.config.read_bytes()
        with plane.serving() as (_, operator, _):
            boot = operator.status()["config_sha256"]
            operator.change(op="alias_update", aliases={"x": {"tier": "b"}})
            assert operator.status()["config_sha256"] == boot
        with plane.serving() as (_, operator, user):  # the same file, whatever the authority says by now
            assert operator.status()["config_sha256"] == boot
            assert (plane.config.read_bytes(), plane.config.stat().st_mtime_ns) == (text, stat.st_mtime_ns)
            view = operator.view()
            plane.config.chmod(0o600)
            plane.config.write_bytes(b"[[[ no TOML")  # it has been read; nobody reads it again
            assert {**operator.view(), "tiers": view["tiers"]} == view  # those have been probed meanwhile
            assert operator.status()["config_sha256"] == boot
            assert user.ask("x").json()["model"] == "n1"
            back = operator.change(op="alias_update", aliases={"x": {"tier": "a"}})
            assert (back["state"], user.ask("x").json()["model"]) == ("completed", "m1")
            operator.change(op="alias_update", aliases={"x": {"tier": "b"}})
            assert plane.config.read_bytes() == b"[[[ no TOML"
            plane.config.write_bytes(text)
            os.utime(plane.config, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert (plane.config.read_bytes(), plane.config.stat().st_mtime_ns) == (text, stat.st_mtime_ns)
        plane.config.chmod(0o600)
        plane.config.write_bytes(text.replace(b'"y" = "b"', b'"y" = "b"\n"z" = "b"'))
        done = run_verb("serve", "--config", plane.config, "--allow-volatile-filesystem")
        assert (done.returncode, "route_boot_mismatch" in done.stderr) == (2, True)
        sha = json.loads((plane.directory / "routes.json").read_bytes())["current"]["effective_route_sha256"]
        assert (
            f"run sndr router init --config {plane.config} --rebase --expect-revision 4 --expect-sha {sha}"
            in done.stderr
        )
        done = run_verb(
            "init", "--config", plane.config, "--rebase", "--expect-revision", "4", "--expect-sha", sha, "--keep-live",
            "--confirm", "--allow-volatile-filesystem",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        with plane.serving() as (_, operator, user):
            view = operator.view()
            assert (view["route_revision"], view["previous"]) == (5, None)
            assert user.ask("x").json()["model"] == "n1"
            assert user.ask("z").json()["model"] == "n1"


@pytest.mark.scenario("S21")
@pytest.mark.req("R30", "R47", "R109", "R110", "R111", "R108")
def test_exclusions(tmp_path: Path) -> None:
    tiers = {"a": {"model": "m1"}, "b": {"model": "n1"}, "u": {"model": "u1", "context_limit": "upstream"}}
    routes = {"x": "a", "y": "b", "z": "u"}
    with live(tmp_path, tiers=tiers, routes=routes) as plane, plane.serving() as (_, operator, _):

        def replace(code: str, status: int, tier: str = "a", **patch: object) -> None:
            refused(code, status, operator.preview, op="tier_replacement", tiers={tier: patch})

        port = plane.servers["b"].address.rpartition(":")[2]
        for spelling in ("127.0.0.1", "localhost", "[::1]", "127.8.9.1"):
            replace("endpoint_overlap", 422, base_url=f"http://{spelling}:{port}/v1")
        for key, value in (("serves", ["chat"]), ("auth_env", "OTHER"), ("model_identity", False), ("id", "c")):
            replace("restart_only", 422, **{key: value})
        replace("replacement_unsupported", 422, "u", model="u2")
        replace("replacement_unsupported", 422, context_limit="upstream")
        replace("replacement_unsupported", 422, replicas=2)
        replace("replacement_unsupported", 422, max_concurrency="auto")
        replace("identity_required", 422, health_path=None)
        replace("identity_required", 422, model=None)
        own = operator.url.rpartition(":")[2]
        for url in (
            "http://user:pw@127.0.0.1:1/v1", "file:///v1", "http://0.0.0.0:1/v1", f"http://localhost:{own}/v1",
            "http://127.0.0.1:1/v1?q=1", "http://127.0.0.1:1/v1#f",
        ):  # fmt: skip
            replace("endpoint_invalid", 422, base_url=url)
        replace("no_effective_change", 409, model="m1")
        replace("invalid_change", 400, nonsense=1)
        replace("unknown_tier", 422, "c", model="m2")
        assert operator.view()["write_seq"] == 2
        assert operator.view()["previews"] == 0


@pytest.mark.scenario("S21")
@pytest.mark.req("R110")
def test_a_server_that_does_more_than_chat_is_neither_left_nor_moved_to(tmp_path: Path) -> None:
    tiers = {"a": {"model": "m1"}, "b": {"model": "n1"}, "e": {"model": "e1", "serves": ["embeddings"]}}
    routes = {"x": "a", "y": "b", "z": "e"}
    purpose = '[[router.purpose_models]]\nkind = "rerank"\nmodel = "r1"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
    with synthetic_thread(model="r1") as other:
        port = other.address.rpartition(":")[2]
        with (
            live(tmp_path, tiers=tiers, routes=routes, tail=purpose.format(port=port)) as plane,
            plane.serving() as (_, operator, _),
        ):
            embeds = plane.servers["e"].address.rpartition(":")[2]
            for code, url in (
                ("shared_endpoint", f"http://localhost:{port}/v1"),
                ("shared_endpoint", f"http://[::1]:{embeds}/v1"),
                ("shared_endpoint_unprovable", f"http://rerank.internal:{port}/v1"),
            ):
                refused(code, 422, operator.preview, op="tier_replacement", tiers={"a": {"base_url": url}})
            refused("shared_endpoint", 422, operator.preview, op="tier_replacement", tiers={"e": {"model": "e2"}})
            assert operator.preview(op="alias_update", aliases={"x": {"tier": "b"}})["applicable"]


@pytest.mark.req("R76", "R77", "R31")
@pytest.mark.invariant("INV-7", "INV-19")
def test_a_hold_is_in_force_before_the_first_connection(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane:
        with plane.serving() as (gateway, operator, _):
            operator.change(op="tier_replacement", tiers=a_new_model(plane), mode="prepare")
            address = operator.url.removeprefix("http://")
            gateway.process.kill()
            gateway.process.wait(10)
        answers: dict[str, set[tuple[int, str]]] = {"x": set(), "y": set()}
        stop = threading.Event()

        def hammer(model: str) -> None:
            with User(f"http://{address}") as user:
                while not stop.is_set():
                    with suppress(httpx.TransportError):
                        answer = user.ask(model)
                        code = "" if answer.status_code == 200 else answer.json()["error"]["code"]
                        answers[model].add((answer.status_code, code))

        threads = [threading.Thread(target=hammer, args=(model,)) for model in "xxyy"]
        for thread in threads:
            thread.start()
        with plane.serving("--listen", address):
            until(lambda: (200, "") in answers["y"] and answers["x"])
            stop.set()
            for thread in threads:
                thread.join(20)
        assert answers == {"x": {(503, "held")}, "y": {(200, "")}}


@pytest.mark.req("R118", "R37")
def test_a_stop_in_the_middle_of_a_drain_answers_and_keeps_the_hold(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane:
        with (
            plane.serving() as (gateway, operator, user),
            user.stream("x", tokens=3, delay_ms=0, stall_after=1) as slow,
            Operator(gateway) as other,
            ThreadPoolExecutor(1) as pool,
        ):
            waiting = pool.submit(
                refused, "shutting_down", 503, other.change, op="tier_replacement", tiers=a_new_model(plane)
            )
            until(lambda: operator.view()["state"] == "held")
            gateway.process.send_signal(signal.SIGTERM)
            waiting.result(20)
            plane.servers["a"].release()
            assert is_whole(slow.read().decode(), 3)
            assert gateway.process.wait(30) == 0
        with plane.serving() as (_, operator, _):
            assert operator.view()["state"] == "held"
            assert operator.recover("cancel")["state"] == "cancelled"


@pytest.mark.req("R11", "R12", "R13", "R20", "R21", "R97")
@pytest.mark.invariant("INV-2", "INV-3", "INV-11", "INV-21")
def test_what_is_seen_of_the_routes_is_never_torn(tmp_path: Path) -> None:
    with live(tmp_path) as plane, plane.serving() as (gateway, operator, user):
        view = operator.view()
        committed = {(1, view["effective_route_sha256"])}
        seen: list[list[tuple[int, str]]] = [[] for _ in range(4)]
        stop = threading.Event()

        def watch(number: int) -> None:
            paths = ["/v1/models", "/v1/router/status", "/v1/admin/tiers", "/v1/admin/routes"]
            with Operator(gateway) as mine:
                while not stop.is_set():
                    body = mine.call("GET", paths[number])
                    seen[number].append((body["route_revision"], body["effective_route_sha256"]))

        threads = [threading.Thread(target=watch, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for flip in range(30):
            to = operator.change(op="alias_update", aliases={"x": {"tier": "ba"[flip % 2]}})["changed"]["to"]
            committed.add((to["route_revision"], to["effective_route_sha256"]))
        stop.set()
        for thread in threads:
            thread.join(20)
        assert len(committed) == 31
        assert len({sha for _, sha in committed}) == 2
        for observed in seen:
            assert set(observed) <= committed
            assert observed == sorted(observed, key=lambda pair: pair[0])
            assert len(set(observed)) > 3
        before = operator.view()
        with user.stream("x", tokens=5, delay_ms=20) as running:
            name = running.headers["x-request-id"]
            operator.change(op="alias_update", aliases={"x": {"tier": "b"}})
            running.read()
        record = operator.call("GET", f"/v1/requests/{name}")
        assert (record["route_revision"], record["tier"]) == (before["route_revision"], "a")
        assert record["effective_route_sha256"] == before["effective_route_sha256"]
        metrics = operator.http.get("/metrics").text
        assert "sndr_route_revision 32" in metrics
        assert 'sndr_route_writes_total{result="done"} 31' in metrics


@pytest.mark.req("R34", "R18", "R15")
@pytest.mark.invariant("INV-4", "INV-8")
def test_a_burst_across_a_replacement_reaches_the_old_server_with_a_lease_or_not_at_all(tmp_path: Path) -> None:
    tiers = {"a": {"model": "m1", "max_concurrency": 4}, "b": {"model": "n1"}}
    with live(tmp_path, tiers=tiers, spare=["m2"]) as plane, plane.serving() as (_, operator, _):
        stop = threading.Event()
        answers: list[tuple[int, str]] = []

        def ask(_: int) -> None:
            with User(operator.url) as mine:
                while not stop.is_set():
                    answer = mine.ask("x")
                    said = answer.json()
                    answers.append((answer.status_code, said.get("model") or said["error"]["code"]))

        with ThreadPoolExecutor(12) as pool:
            asking = [pool.submit(ask, number) for number in range(12)]
            until(lambda: len(answers) > 30)
            receipt = operator.change(op="tier_replacement", tiers=a_new_model(plane))
            until(lambda: sum(said == (200, "m2") for said in answers[:]) > 30)
            stop.set()
            for one in asking:
                one.result(20)
        assert receipt["streams"]["cut"] == 0
        assert {said for said in answers if said[0] != 200} <= {(503, "held")}
        # Each server's own log agrees with what the clients were told, request by request.
        for model, server in (("m1", plane.servers["a"]), ("m2", plane.servers["m2"])):
            served = [entry for entry in server.log() if entry["method"] == "POST"]
            assert len(served) == sum(said == (200, model) for said in answers)
            assert {entry["ended"] for entry in served} == {"complete"}
