"""Live changes of family aliases and presets under a running gateway, and client fences on their revisions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.contract_vectors import D26, G26, M26
from tests.support.gateway import gateway_process
from tests.support.live import Operator, RefusedError, init, private, run_verb
from tests.support.raw import ask, connected, request, wait_idle
from tests.support.synthetic import synthetic_thread
from tests.support.workload import ALIAS, SHORT_TOOL_CALL, body, holding, receipt, siblings

VOLATILE = "--allow-volatile-filesystem"


@pytest.mark.req("R22", "R28")
def test_aliases_move_to_families_and_back_and_replacements_change_presets(tmp_path: Path) -> None:
    folder = private(tmp_path / "gateway")
    server = f'usage_path = "{folder}/usage.db"\nroute_state_path = "{folder}/routes.json"'
    family = {"family": G26, "natural": "k1", "on_unready": "refuse"}
    with synthetic_thread() as one, synthetic_thread() as four:
        config = siblings(folder, {"k1": one.base_url, "k4": four.base_url}, server=server)
        init(config)
        with gateway_process(config, VOLATILE) as gateway, Operator(gateway) as operator:
            url = gateway.url
            done = operator.change(op="alias_update", aliases={"only.k1": {"family": G26, "natural": "k1"}})
            assert done["state"] == "completed"
            assert operator.status()["aliases"]["only.k1"] == family
            with holding(url, one, 1, "only.k1"):
                assert receipt(url, body("only.k1", **SHORT_TOOL_CALL))["tier"] == "k4"
            operator.change(op="alias_update", aliases={"only.k1": {"tier": "k4"}, ALIAS: {"tier": "k1"}})
            with holding(url, one, 1):
                assert receipt(url, body("only.k1"))["tier"] == "k4"
                assert receipt(url, body(**SHORT_TOOL_CALL))["tier"] == "k1"
            operator.change(op="rollback")
            swapped = run_verb("swap", f"only.k4={G26}@k4", "--yes", "--config", config, "--url", url)
            assert swapped.returncode == 0, swapped
            assert operator.status()["aliases"]["only.k4"] == {**family, "natural": "k4"}
            # A replacement keeps the preset where it is not named, and changes it where it is.
            operator.change(op="tier_replacement", tiers={"k4": {"max_concurrency": 8}})
            with holding(url, one, 1):
                assert receipt(url, body(**SHORT_TOOL_CALL))["tier"] == "k4"
            # A route that leaves a preset without a tier is told, and may be what is wanted.
            unbinds = operator.preview(op="tier_replacement", tiers={"k4": {"preset": None}})
            told = [(one["code"], one["blocking"]) for one in unbinds["checks"] if one["name"] == "presets_bound"]
            assert (told, unbinds["applicable"]) == ([("preset_unbound", False)], True)
            operator.change(op="tier_replacement", tiers={"k4": {"preset": None}})
            again = operator.preview(op="tier_replacement", tiers={"k1": {"max_concurrency": 8}})
            assert "presets_bound" not in [one["name"] for one in again["checks"]]
            typo = operator.preview(op="alias_update", aliases={"only.k4": {"family": "gone", "natural": "k4"}})
            assert "no such family" in typo["checks"][-2]["reason"], typo["checks"]
            with holding(url, one, 1):
                unbound = receipt(url, body(**SHORT_TOOL_CALL))
            assert (unbound["tier"], unbound["outcome"]) == ("k1", "rule")
            operator.change(op="tier_replacement", tiers={"k4": {"preset": M26}})
            with holding(url, one, 1):
                assert receipt(url, body(**SHORT_TOOL_CALL))["tier"] == "k4"
            with pytest.raises(RefusedError) as refusal:
                operator.change(op="alias_update", aliases={ALIAS: {"family": G26, "natural": "gone"}})
            assert refusal.value.code == "unknown_tier"
            # Whatever may serve a family's requests affects its aliases, not only their natural tier.
            of_k4 = [ALIAS, "only.k1", "only.k4"]
            with holding(url, one, 1):
                preview = operator.preview(op="tier_replacement", tiers={"k4": {"max_concurrency": 9}})
                assert (sorted(preview["affected"]["aliases"]), preview["affected"]["in_flight"]) == (of_k4, 0)
                preview = operator.preview(op="alias_update", aliases={ALIAS: {"tier": "k4"}})
                assert preview["affected"] == {"aliases": [ALIAS], "in_flight": 1}
            operator.change(op="tier_replacement", tiers={"k4": {"preset": None}})
            for change, affected in (({"max_concurrency": 9}, ["only.k4"]), ({"preset": M26}, of_k4)):
                preview = operator.preview(op="tier_replacement", tiers={"k4": change})
                assert sorted(preview["affected"]["aliases"]) == affected
            before = operator.view()
            wait_idle(url)
        with gateway_process(config, VOLATILE) as gateway, Operator(gateway) as operator:
            after = operator.view()
            assert after["current"]["projection"] == before["current"]["projection"]
            assert after["current"]["projection"]["aliases"]["only.k1"] == family
            assert after["current"]["projection"]["tiers"]["k1"]["preset"] == D26


@pytest.mark.req("R20")
def test_a_fence_is_met_or_nothing_happens(tmp_path: Path) -> None:
    folder = private(tmp_path / "gateway")
    server = f'usage_path = "{folder}/usage.db"\nroute_state_path = "{folder}/routes.json"'
    with synthetic_thread() as one, synthetic_thread() as four:
        config = siblings(folder, {"k1": one.base_url, "k4": four.base_url}, server=server, router="")
        init(config)
        with gateway_process(config, VOLATILE) as gateway, Operator(gateway) as operator:
            url, current = gateway.url, operator.status()
            revision, sha256 = current["route_revision"], current["effective_route_sha256"]
            met = {"X-Sndr-Require-Revision": f">={revision}", "X-Sndr-Require-Route-Sha256": sha256}
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
                assert ask(url, request(body(), headers=met, path=path)).status == 200
            assert ask(url, request(method="GET", path="/v1/models", headers=met)).status == 200
            assert not any("require" in name for row in one.log() for name in row["headers"])
            served = one.stats()["requests"]
            operator.change(op="alias_update", aliases={"only.k1": {"tier": "k4"}})
            now = operator.status()
            too_new = {"X-Sndr-Require-Revision": f">={revision + 2}"}
            for headers in (met, {"X-Sndr-Require-Route-Sha256": sha256}, too_new):
                for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
                    answer = ask(url, request(body(), headers=headers, path=path))
                    assert answer.status == 412
                    assert answer.headers["x-sndr-route-revision"] == str(revision + 1)
                    assert answer.headers["x-sndr-route-sha256"] == now["effective_route_sha256"]
                    error = answer.json["error"]
                    assert error["route_revision"] == revision + 1
                    assert error["effective_route_sha256"] == now["effective_route_sha256"]
                    assert path == "/v1/messages" or error["code"] == "route_fence_mismatch"
                answer = ask(url, request(method="GET", path="/v1/models", headers=headers))
                assert answer.code == "route_fence_mismatch"
            assert one.stats()["requests"] == served
            assert ask(url, request(body(), headers={"X-Sndr-Require-Revision": f">={revision}"})).status == 200
            tier = wait_idle(url)
            assert tier["in_flight"] == 0


def test_a_waiter_whose_fence_is_no_longer_met_is_refused_when_its_alias_moves(tmp_path: Path) -> None:
    folder = private(tmp_path / "gateway")
    server = f'usage_path = "{folder}/usage.db"\nroute_state_path = "{folder}/routes.json"'
    with synthetic_thread() as one, synthetic_thread() as four:
        config = siblings(
            folder, {"k1": one.base_url, "k4": four.base_url}, server=server, tier={"k1": "max_concurrency = 1"}
        )
        init(config)
        with gateway_process(config, VOLATILE) as gateway, Operator(gateway) as operator:
            url = gateway.url
            sha256 = operator.status()["effective_route_sha256"]
            with holding(url, one, 1), connected(url) as waiting:
                waiting.send(request(body(), headers={"X-Sndr-Require-Route-Sha256": sha256}))
                deadline = time.monotonic() + 10
                while not operator.status()["tiers"][0]["queued"]:
                    assert time.monotonic() < deadline
                operator.change(op="alias_update", aliases={ALIAS: {"tier": "k4"}})
                answer = waiting.answer()
            assert answer.status == 412
            assert four.stats()["requests"] == 0
