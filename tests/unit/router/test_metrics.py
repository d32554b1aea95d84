"""Metrics: what is counted comes out as Prometheus reads it, within bounded labels."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from sndr.router.metrics import OTHER, Family, Metrics


def scrape(metrics: Metrics, *gauges: Family) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = asyncio.run(metrics.render(gauges)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**values: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(values.items()))


def test_a_request_is_counted_once_everywhere() -> None:
    metrics = Metrics(["llm"], ["a"])
    metrics.finished("llm", "a", "chat", "completed", 0.03, 0.5, 12, 40, None)
    metrics.finished("llm", "a", "chat", "client_gone", None, 100.0, None, 3, 2)
    seen = scrape(metrics)
    route = {"alias": "llm", "tier": "a"}
    for outcome in ("completed", "client_gone"):
        assert seen["sndr_requests_total", labels(**route, endpoint="chat", outcome=outcome)] == 1
    for kind, count in (("prompt", 12), ("completion", 43), ("cached", 2)):
        assert seen["sndr_tokens_total", labels(**route, kind=kind)] == count
    duration = "gen_ai_server_request_duration_seconds"
    assert seen[f"{duration}_count", labels(**route)] == 2
    assert seen[f"{duration}_sum", labels(**route)] == 100.5
    assert seen[f"{duration}_bucket", labels(**route, le="0.32")] == 0
    assert seen[f"{duration}_bucket", labels(**route, le="0.64")] == 1
    assert seen[f"{duration}_bucket", labels(**route, le="+Inf")] == 2
    assert seen["gen_ai_server_time_to_first_token_seconds_count", labels(**route)] == 1


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    metrics = Metrics(["llm"], ["a"])
    metrics.finished("llm", "a", "chat", "completed", None, 0.64, None, None, None)
    bucket = labels(alias="llm", tier="a", le="0.64")
    assert scrape(metrics)["gen_ai_server_request_duration_seconds_bucket", bucket] == 1


def test_names_that_are_not_configured_share_one_label() -> None:
    metrics = Metrics(["llm"], ["a"])
    for number in range(1000):
        metrics.finished(f"made-up-{number}", "", "chat", "refused", None, 0.0, None, None, None)
    series = {key: value for key, value in scrape(metrics).items() if key[0] == "sndr_requests_total"}
    assert series == {("sndr_requests_total", labels(alias=OTHER, tier="", endpoint="chat", outcome="refused")): 1000}


def test_gauges_are_read_at_the_scrape_and_escaped() -> None:
    gauge = Family("sndr_tier_ready", "gauge", "h", ("tier",), [(('a"\\\n',), 1.0)])
    plain = Family("sndr_ledger_bytes", "gauge", "h", (), [((), 3)])
    seen = scrape(Metrics([], []), gauge, plain)
    assert seen["sndr_tier_ready", labels(tier='a"\\\n')] == 1
    assert seen["sndr_ledger_bytes", ()] == 3
    assert ("process_resident_memory_bytes", ()) in seen


def test_probes_are_counted_by_result() -> None:
    metrics = Metrics([], [])
    metrics.probed("a", "identity_passed")
    metrics.probed("a", "identity_passed")
    assert scrape(metrics)["sndr_probe_total", labels(tier="a", result="identity_passed")] == 2


def test_a_scrape_gives_the_loop_back_many_times() -> None:
    metrics = Metrics([f"a{n}" for n in range(64)], ["t"])
    for number in range(64):
        metrics.finished(f"a{number}", "t", "chat", "completed", 0.1, 0.1, 1, 1, None)

    async def count_turns() -> int:
        turns = 0
        scraping = asyncio.ensure_future(metrics.render([]))
        while not scraping.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(count_turns()) > 10
