"""Live route changes of a real gateway process, seen from outside: the operator's, the clients', the servers'."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.live import is_whole, live, refused


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
        target = {"base_url": plane.servers["m2"].base_url, "model": "m2"}
        with user.stream("x", tokens=10) as inside, user.stream("y", tokens=60) as outside:
            preview = operator.preview(op="tier_replacement", tiers={"a": target})
            assert preview["applicable"]
            assert preview["affected"] == {"aliases": ["x"], "in_flight": 1}
            assert preview["will"] == ["hold", "drain", "commit", "publish", "verify", "readmit"]
            receipt = operator.apply(preview)
            assert is_whole(inside.read().decode(), 10)
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
