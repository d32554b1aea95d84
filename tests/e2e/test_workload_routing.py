"""Family aliases through the real gateway: decisions over HTTP, receipts, the ledger, hints, and tables that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sndr.contract import content_sha256
from tests.support.contract_vectors import D26, G26, M26, REFERENCE, RULE, T
from tests.support.gateway import Gateway, gateway_process
from tests.support.live import run_verb
from tests.support.raw import OPERATOR, ask, operator_get, request, wait_idle
from tests.support.synthetic import Synthetic, synthetic_thread
from tests.support.workload import (
    ALIAS,
    SHORT_TOOL_CALL,
    as_request,
    body,
    decision_of,
    gateway_thread,
    holding,
    receipt,
    siblings,
    vectors,
)

DECISIONS, SMALL = 149, 402
"""Vectors that are valid requests; the others have no place in HTTP or need a tokenizer."""
LEDGER = 'usage_path = "usage.db"'


@contextmanager
def serving(tmp_path: Path, **given: Any) -> Iterator[tuple[Gateway, Synthetic, Synthetic]]:
    """A gateway over two siblings, `k1` and `k4`."""
    with ExitStack() as stack:
        one, four = (stack.enter_context(synthetic_thread()) for _ in range(2))
        config = siblings(tmp_path, {"k1": one.base_url, "k4": four.base_url}, **given)
        yield stack.enter_context(gateway_process(config)), one, four


def test_short_tool_calls_under_concurrency_go_to_the_sibling_that_was_measured(tmp_path: Path) -> None:
    with serving(tmp_path, server=LEDGER) as (gateway, one, four):
        url = gateway.url
        alone = receipt(url, body(**SHORT_TOOL_CALL))
        assert (alone["tier"], alone["mode"], alone["outcome"]) == ("k1", "single_stream", "family_default")
        with holding(url, one, 1):
            busy = receipt(url, body(**SHORT_TOOL_CALL), headers={"x-request-id": "busy"})
            chat = receipt(url, body(max_tokens=100))
        assert busy == {
            "alias": ALIAS, "tier": "k4", "workload": "tool_call", "length": "short", "mode": "multi_conc",
            "outcome": "rule", "rule": RULE, "evidence-tag": "measured", "gap": T,
        }  # fmt: skip
        assert (chat["tier"], chat["outcome"], "rule" in chat) == ("k1", "family_default", False)
        assert four.stats()["requests"] == 1
        wait_idle(url)
        assert decision_of(url, "busy") == {
            "workload_class": "tool_call", "expected_output_length": "short", "concurrency_mode": "multi_conc",
            "model_family": G26, "preset_key": M26, "outcome": "rule", "rule_id": RULE, "evidence_tag": "measured",
            "gap": T,
        }  # fmt: skip
        status = operator_get(url, "/v1/router/status")
        assert status["aliases"][ALIAS] == {"family": G26, "natural": "k1", "on_unready": "refuse"}


@pytest.mark.parametrize(("name", "count"), [("decisions.json", DECISIONS), ("matrix.json", 96)])
def test_every_vector_that_is_a_valid_request_is_decided_as_the_library_decides(
    tmp_path: Path, name: str, count: int
) -> None:
    document = vectors(name)
    (table,) = document["tables"].values()
    assert decide_over_http(tmp_path, table, document["vectors"]) == count


def test_every_small_table_is_used_as_the_library_uses_it(tmp_path: Path) -> None:
    sent = 0
    for name in ("rules.json", "families.json"):
        document = vectors(name)
        for number, (title, table) in enumerate(document["tables"].items()):
            folder = tmp_path / f"{name}-{number}"
            folder.mkdir()
            wanted = [vector for vector in document["vectors"] if vector["table"] == title]
            sent += decide_over_http(folder, table, wanted, on_error='on_table_error = "drop"')
    assert sent == SMALL


def decide_over_http(directory: Path, table: Any, wanted: list[Any], *, on_error: str = "") -> int:
    """Boot a gateway over the table, one tier per preset, and send every vector; compare record and tier."""
    rows = [row for row in table["presets"] if isinstance(row, dict) and isinstance(row.get("preset_key"), str)]
    tier_of = {key: f"t{number}" for number, key in enumerate(sorted({row["preset_key"] for row in rows}))}
    families = sorted({vector["expect"]["model_family"] for vector in wanted})
    alias_of = {family: f"a{number}" for number, family in enumerate(families)}
    with synthetic_thread() as server:
        config = siblings(
            directory,
            {"nat": server.base_url, **dict.fromkeys(tier_of.values(), server.base_url)},
            table=table,
            presets={tier: key for key, tier in tier_of.items()},
            families={alias: (family, "nat") for family, alias in alias_of.items()},
            routing_table=f'path = "table.json"\n{on_error}',
            server=LEDGER,
        )
        with gateway_thread(config) as url:
            sent = 0
            for others in range(3):
                for family in families:
                    with holding(url, server, others, alias_of[family]):
                        for vector in wanted:
                            expect = vector["expect"]
                            data = as_request(vector, alias_of[expect["model_family"]])
                            now = min((vector["in_flight"] or 1) - 1, 2)
                            if data is None or now != others or expect["model_family"] != family:
                                continue
                            answer = ask(url, data)
                            if answer.status == 400:  # not a valid request: the gateway is stricter than the contract
                                assert answer.code in (None, "invalid_request"), answer
                                continue
                            sent += 1
                            tier = "nat" if expect["preset_key"] is None else tier_of[expect["preset_key"]]
                            assert answer.headers["x-sndr-tier"] == tier, vector["name"]
                            assert decision_of(url, answer.headers["x-request-id"]) == expect, vector["name"]
            return sent


def test_hints_are_read_from_all_three_places_and_never_forwarded(tmp_path: Path) -> None:
    with serving(tmp_path) as (gateway, one, _):
        url = gateway.url
        seen = receipt(url, body(expected_length="short", extra_body={"category": "code", "kept": 1}))
        assert (seen["length"], seen["workload"]) == ("short", "code_gen")
        by_header = receipt(url, body(), headers={"X-Sndr-Expected-Length": "medium", "X-Sndr-Category": "code"})
        assert (by_header["length"], by_header["workload"]) == ("medium", "code_gen")
        plain = ask(url, request(body("only.k1", category="code"), headers={"x-sndr-category": "code"}))
        assert plain.status == 200
        first, second, third = one.log()
        assert not any(name.startswith("x-sndr") for name in (*first["headers"], *second["headers"]))
        assert third["headers"]["x-sndr-category"] == "code"
        assert first["bytes"] == len(
            b'{"model":"m1","messages":[{"role": "user", "content": "hi"}],"extra_body":{"kept":1}}'
        )


@pytest.mark.parametrize(
    ("table", "routing_table", "detail"),
    [
        ({**REFERENCE, "schema_version": 2}, 'path = "table.json"\non_table_error = "refuse"', "schema_version is 2"),
        (b"{", 'path = "table.json"', "not JSON at line 1"),
        (None, 'path = "gone.json"', "No such file"),
        ({**REFERENCE, "presets": [], "coverage_gaps": []}, 'path = "table.json"', "/routing_rules/0/preset_key"),
        (None, 'command = ["/bin/sh", "-c", "exit 3"]', "exit code 3"),
        (None, None, "no routing table is configured"),
    ],
)
def test_a_table_that_cannot_be_used_costs_one_warning_and_no_request(
    tmp_path: Path, table: Any, routing_table: str | None, detail: str
) -> None:
    with serving(tmp_path, table=table, routing_table=routing_table) as (gateway, one, four):
        url = gateway.url
        with holding(url, one, 2):
            seen = receipt(url, body(**SHORT_TOOL_CALL))
        assert (seen["tier"], seen["outcome"]) == ("k1", "degraded")
        assert four.stats()["requests"] == 0
        warnings = [line["detail"] for line in gateway.lines if line["event"] == "routing_table_warning"]
        assert len(warnings) == 1
        assert detail in warnings[0]


@pytest.mark.parametrize("data", [b"{", json.dumps({**REFERENCE, "routing_rules": [{}]}).encode()])
def test_a_gateway_that_must_not_start_with_a_bad_table_does_not(tmp_path: Path, data: bytes) -> None:
    config = siblings(
        tmp_path,
        {"k1": "http://127.0.0.1:9/v1", "k4": "http://127.0.0.1:9/v1"},
        table=data,
        routing_table='path = "table.json"\non_table_error = "refuse"',
        server=LEDGER,
    )
    with gateway_process(config) as gateway:
        assert gateway.process.wait(30) == 2
    assert "routing_table_invalid" in "".join(gateway.raw)
    assert not (tmp_path / "usage.db").exists()


def test_a_command_prints_the_table_once_and_sees_no_credential(tmp_path: Path) -> None:
    (tmp_path / "printed.json").write_text(json.dumps(REFERENCE))
    command = '["/bin/sh", "-c", "echo run >> runs; env > seen; cat printed.json"]'
    with serving(tmp_path, table=None, routing_table=f"command = {command}") as (gateway, one, _):
        url = gateway.url
        with holding(url, one, 1):
            assert receipt(url, body(**SHORT_TOOL_CALL))["tier"] == "k4"
    assert (tmp_path / "runs").read_text() == "run\n"
    assert "KEY=" not in (tmp_path / "seen").read_text()


def test_a_preset_without_a_tier_is_said_at_start_and_served_by_the_natural_tier(tmp_path: Path) -> None:
    with serving(tmp_path, presets={"k1": D26}, server=LEDGER) as (gateway, one, _):
        url = gateway.url
        with holding(url, one, 1):
            seen = receipt(url, body(**SHORT_TOOL_CALL), headers={"x-request-id": "r"})
        assert (seen["tier"], seen["rule"]) == ("k1", RULE)
        wait_idle(url)
        assert decision_of(url, "r")["substitute"] == "unbound"
        (warning,) = [line["detail"] for line in gateway.lines if line["event"] == "routing_table_warning"]
        assert M26 in warning


def test_a_table_that_changes_on_disk_is_reported_and_not_applied(tmp_path: Path) -> None:
    with serving(tmp_path) as (gateway, one, _):
        url = gateway.url
        before = operator_get(url, "/v1/router/status")["routing_table"]
        assert (before["state"], before["rules"], before["on_disk"]["changed"]) == ("in_force", 1, False)
        assert before["content_sha256"] == content_sha256(REFERENCE) == before["on_disk"]["content_sha256"]
        without_rule = {**REFERENCE, "routing_rules": []}
        (tmp_path / "table.json").write_text(json.dumps(without_rule))
        after = operator_get(url, "/v1/router/status")["routing_table"]
        assert after["on_disk"] == {"content_sha256": content_sha256(without_rule), "changed": True}
        assert after["content_sha256"] == before["content_sha256"]
        shown = run_verb("status", "--config", tmp_path / "gateway.toml", "--url", url)
        assert "a restart would read it" in shown.stdout, shown
        with holding(url, one, 1):
            assert receipt(url, body(**SHORT_TOOL_CALL))["tier"] == "k4"
        (tmp_path / "table.json").unlink()
        assert operator_get(url, "/v1/router/status")["routing_table"]["on_disk"]["changed"] is True
        metrics = ask(url, request(method="GET", path="/metrics", key=OPERATOR)).body.decode()
        line = f'sndr_routing_table_info{{sha256="{before["content_sha256"]}",state="in_force"}} 1'
        assert line in metrics
        rule = f'sndr_routing_decisions_total{{family="{G26}",outcome="rule",rule="{RULE}"}} 1'
        assert rule in metrics
        assert f'sndr_coverage_gap_requests_total{{family="{G26}",gap="{T}"}} 1' in metrics


@pytest.mark.parametrize("unready", ["unready", "full", "quiesced"])
def test_a_chosen_tier_that_cannot_serve_refuses_or_gives_way_as_the_alias_says(tmp_path: Path, unready: str) -> None:
    expected = {"unready": "not_ready", "full": "queue_full", "quiesced": "quiesced"}[unready]
    for reaction in ("refuse", "family_default"):
        with (
            serving(
                tmp_path,
                on_unready=reaction,
                tier={"k4": "max_concurrency = 1"} if unready == "full" else None,
                router="receipt_headers = true\nqueue_limit = 0\nprobe_failures = 1",
            ) as (gateway, one, four),
            ExitStack() as stack,
        ):
            url = gateway.url
            stack.enter_context(holding(url, one, 1))
            if unready == "full":
                stack.enter_context(holding(url, four, 1, "only.k4"))
            elif unready == "unready":
                four.set(health=503)
                gateway.wait_event(lambda line: line["event"] == "tier_unready" and line["tier"] == "k4")
            else:
                path = "/v1/admin/tiers/k4/quiesce"
                assert ask(url, request({"reason": "test"}, path=path, key=OPERATOR)).status == 200
            answer = ask(url, request(body(**SHORT_TOOL_CALL)))
            if reaction == "refuse":
                assert answer.code == expected
                assert (answer.headers["x-sndr-tier"], answer.headers["x-sndr-outcome"]) == ("k4", "rule")
            else:
                assert (answer.status, answer.headers["x-sndr-tier"]) == (200, "k1")


def test_answers_are_the_same_bytes_without_receipts(tmp_path: Path) -> None:
    with serving(tmp_path, router="") as (gateway, _, _):
        url = gateway.url
        heads = []
        for model in (ALIAS, "only.k1"):
            answer = ask(url, request(body(model, **SHORT_TOOL_CALL), headers={"x-request-id": "same"}))
            heads.append((answer.raw_head, answer.body))
        strip = [(head.split(b"\r\nx-synthetic-")[0], len(content)) for head, content in heads]
        assert strip[0] == strip[1]
        assert b"x-sndr" not in heads[0][0]


def test_endpoints_without_a_workload_go_to_the_natural_tier(tmp_path: Path) -> None:
    with serving(tmp_path) as (gateway, one, _):
        url = gateway.url
        answer = ask(url, request(body(max_tokens=1), path="/v1/messages/count_tokens"))
        assert answer.headers.get("x-sndr-tier", "k1") == "k1"
        assert "x-sndr-outcome" not in answer.headers
        assert one.stats()["requests"] == 1


LIMITS = {
    "k1": "context_limit = 8192\nmax_output_tokens = 512",
    "k4": 'context_limit = "upstream"\nmax_output_tokens = 1024',
}


@pytest.mark.parametrize(
    ("table", "expected"), [(REFERENCE, {ALIAS: (4096, 512), "only.k1": (8192, 512)}), (None, {ALIAS: (8192, 512)})]
)
def test_a_familys_limits_are_those_that_every_server_keeps_that_may_get_the_request(
    tmp_path: Path, table: Any, expected: dict[str, Any]
) -> None:
    """A client sizes its requests by them, and cannot know which sibling gets one."""
    with serving(tmp_path, table=table, tier=LIMITS) as (gateway, _, four):
        assert four.call("GET", "/v1/models")["data"][0]["max_model_len"] == 4096
        receipt(gateway.url, body("only.k4"))
        listed = ask(gateway.url, request(method="GET", path="/v1/models")).json["data"]
        shown = {entry["id"]: (entry["context_window"], entry["max_output_tokens"]) for entry in listed}
        assert expected.items() <= shown.items()
        assert all(entry["max_model_len"] == entry["context_window"] for entry in listed)


def test_a_fence_without_authority_is_never_met(tmp_path: Path) -> None:
    with serving(tmp_path, server=LEDGER) as (gateway, one, _):
        url = gateway.url
        for headers in ({"X-Sndr-Require-Revision": ">=1"}, {"X-Sndr-Require-Route-Sha256": "0" * 64}):
            for path in ("/v1/chat/completions", "/v1/messages"):
                answer = ask(url, request(body(), headers=headers, path=path))
                assert answer.status == 412
                error = answer.json["error"]
                assert (error["route_revision"], error["effective_route_sha256"]) == (None, None)
        for wrong in ({"X-Sndr-Require-Revision": "7"}, {"X-Sndr-Require-Route-Sha256": "abc"}):
            assert ask(url, request(body(), headers=wrong)).status == 400
        assert one.stats()["requests"] == 0


def test_coverage_says_what_each_rule_got_and_how_fast_each_sibling_was(tmp_path: Path) -> None:
    with serving(tmp_path, server=LEDGER) as (gateway, one, _):
        url = gateway.url
        for _ in range(2):
            receipt(url, body(max_tokens=10, synthetic={"tokens": 20, "token_delay_ms": 2}))
        with holding(url, one, 1):
            receipt(url, body(**SHORT_TOOL_CALL, synthetic={"tokens": 20, "token_delay_ms": 2}))
            receipt(url, body("only.k4"))
        wait_idle(url)
        done = run_verb("coverage", "--config", tmp_path / "gateway.toml", "--json")
        (family,) = json.loads(done.stdout)["families"]
        assert (family["family"], family["requests"]) == (G26, 4)
        assert [(route["rule_id"], route["tier"], route["share"]) for route in family["routes"]] == [
            (None, "k1", 0.75), (RULE, "k4", 0.25),
        ]  # fmt: skip
        assert family["gaps"] == [{"gap": T, "requests": 1, "share": 0.25}]
        by_cell = {
            (one["tier"], one["workload_class"], one["expected_output_length"]): one for one in family["siblings"]
        }
        tool = by_cell["k4", "tool_call", "short"]
        assert (tool["requests"], tool["completed"], tool["completion_tokens"]) == (1, 1, 20)
        assert 0 < tool["tokens_per_s_median"] < 1000
        assert tool["first_byte_ms_median"] >= 0
        text = run_verb("coverage", "--config", tmp_path / "gateway.toml").stdout
        assert f"rule {RULE}" in text
        assert "75.0%" in text
        other = run_verb("coverage", "--config", tmp_path / "gateway.toml", "--family", "x").stdout
        assert other == "no requests to family aliases\n"
