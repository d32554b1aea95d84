"""Counters of the data plane, and the text that Prometheus reads.

The hot path adds to plain integers of cached series: no lock, no label formatting, no dictionary per request beyond one
look-up. Text is made when somebody scrapes, in slices that give the loop back, so that a scrape delays nobody, however
many series there are. Gauges are not kept at all: they are read from their owners at that moment. The process metrics
are `prometheus_client`'s.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

__all__ = ["CONTENT_TYPE", "OTHER", "Family", "Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHER: Final = "other"
"""Label value for names that are not configured: what clients write never becomes a label."""

DURATION_BOUNDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN_BOUNDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_SLICE_BLOCKS: Final = 24


@dataclass(frozen=True, slots=True)
class Family:
    """Gauges or counters that are read at scrape time.

    Attributes:
        samples: Label values (in the order of `labels`) and the number, per series.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], float]]


class _Histogram:
    __slots__ = ("bounds", "counts", "prefixes", "suffix", "total")

    def __init__(self, name: str, labels: str, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.prefixes = [f'{name}_bucket{{{labels},le="{bound}"}} ' for bound in (*bounds, "+Inf")]
        self.suffix = (f"{name}_sum{{{labels}}} ", f"{name}_count{{{labels}}} ")

    def text(self) -> str:
        """The series' lines; buckets, sum and count belong to one instant."""
        cumulative = list(accumulate(self.counts))
        lines = [f"{prefix}{count}\n" for prefix, count in zip(self.prefixes, cumulative, strict=True)]
        lines.append(f"{self.suffix[0]}{self.total!r}\n{self.suffix[1]}{cumulative[-1]}\n")
        return "".join(lines)


class _Pair:
    """Everything that is counted per (alias, tier)."""

    __slots__ = ("cached", "completion", "duration", "first_token", "labels", "prompt")

    def __init__(self, alias: str, tier: str) -> None:
        self.labels = _labels(("alias", "tier"), (alias, tier))
        self.duration = _Histogram("gen_ai_server_request_duration_seconds", self.labels, DURATION_BOUNDS)
        self.first_token = _Histogram("gen_ai_server_time_to_first_token_seconds", self.labels, FIRST_TOKEN_BOUNDS)
        self.prompt = self.completion = self.cached = 0


class _Series:
    """One child of `sndr_requests_total`, with its pair at hand."""

    __slots__ = ("count", "pair", "prefix")

    def __init__(self, prefix: str, pair: _Pair) -> None:
        self.prefix = prefix
        self.pair = pair
        self.count = 0


class Metrics:
    """All counters of a process. Used on the loop's thread only."""

    def __init__(self, aliases: Collection[str], tiers: Collection[str]) -> None:
        """Make counters; aliases and tiers outside these sets are counted under `OTHER`."""
        self._aliases = frozenset(aliases) | {""}
        self._tiers = frozenset(tiers) | {""}
        self._series: dict[tuple[str, str, str, str], _Series] = {}
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._probes: dict[tuple[str, str], int] = {}
        self._decisions: dict[tuple[str, str, str], int] = {}
        self._gaps: dict[tuple[str, str], int] = {}
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)

    def finished(
        self,
        alias: str,
        tier: str,
        endpoint: str,
        outcome: str,
        first_byte_s: float | None,
        total_s: float,
        prompt_tokens: int | None,
        completion_tokens: int | None,
        cached_tokens: int | None,
    ) -> None:
        """One request is over. `alias` and `tier` are empty where a request was refused before it had them."""
        series = self._series.get((alias, tier, endpoint, outcome))
        if series is None:
            series = self._new_series(alias, tier, endpoint, outcome)
        series.count += 1
        pair = series.pair
        histogram = pair.duration
        histogram.counts[bisect_left(DURATION_BOUNDS, total_s)] += 1
        histogram.total += total_s
        if first_byte_s is not None:
            histogram = pair.first_token
            histogram.counts[bisect_left(FIRST_TOKEN_BOUNDS, first_byte_s)] += 1
            histogram.total += first_byte_s
        if prompt_tokens:
            pair.prompt += prompt_tokens
        if completion_tokens:
            pair.completion += completion_tokens
        if cached_tokens:
            pair.cached += cached_tokens

    def decided(self, family: str, outcome: str, rule: str | None, gap: str | None) -> None:
        """A request to a family alias is over; this was decided about it."""
        key = (family, outcome, rule or "")
        self._decisions[key] = self._decisions.get(key, 0) + 1
        if gap is not None:
            self._gaps[family, gap] = self._gaps.get((family, gap), 0) + 1

    def probed(self, tier: str, result: str) -> None:
        """One probe is over."""
        key = (tier, result)
        self._probes[key] = self._probes.get(key, 0) + 1

    async def render(self, gauges: Iterable[Family]) -> bytes:
        """The exposition text. Gives the loop back between slices of a fraction of a millisecond."""
        blocks: list[str] = []
        for number, block in enumerate(self._blocks(gauges)):
            blocks.append(block)
            if number % _SLICE_BLOCKS == _SLICE_BLOCKS - 1:
                await asyncio.sleep(0)
        text = "".join(blocks).encode()
        await asyncio.sleep(0)
        return text + generate_latest(self._process)  # 0.2 ms; a thread would cost the loop more than that

    def _new_series(self, alias: str, tier: str, endpoint: str, outcome: str) -> _Series:
        alias = alias if alias in self._aliases else OTHER
        tier = tier if tier in self._tiers else OTHER
        known = self._series.get((alias, tier, endpoint, outcome))
        if known is not None:
            return known
        pair = self._pairs.get((alias, tier))
        if pair is None:
            pair = self._pairs[alias, tier] = _Pair(alias, tier)
        labels = _labels(("alias", "tier", "endpoint", "outcome"), (alias, tier, endpoint, outcome))
        series = self._series[alias, tier, endpoint, outcome] = _Series(f"sndr_requests_total{{{labels}}} ", pair)
        return series

    def _blocks(self, gauges: Iterable[Family]) -> Iterator[str]:
        """Pieces of text, each cheap to make; lists are copied because counting goes on between them."""
        yield _head("sndr_requests_total", "counter", "Requests by route, endpoint and outcome.")
        for series in list(self._series.values()):
            yield f"{series.prefix}{series.count}\n"
        pairs = list(self._pairs.values())
        yield _head("sndr_tokens_total", "counter", "Tokens that model servers reported.")
        for pair in pairs:
            for kind in ("prompt", "completion", "cached"):
                yield f'sndr_tokens_total{{{pair.labels},kind="{kind}"}} {getattr(pair, kind)}\n'
        yield _head("gen_ai_server_request_duration_seconds", "histogram", "From the request's head to the end.")
        for pair in pairs:
            yield pair.duration.text()
        yield _head("gen_ai_server_time_to_first_token_seconds", "histogram", "From the request's head to first byte.")
        for pair in pairs:
            yield pair.first_token.text()
        yield _head("sndr_probe_total", "counter", "Probes of model servers by result.")
        for (tier, result), count in sorted(self._probes.items()):
            yield f"sndr_probe_total{{{_labels(('tier', 'result'), (tier, result))}}} {count}\n"
        if self._decisions:
            yield _head("sndr_routing_decisions_total", "counter", "Requests to family aliases by what was decided.")
            for decision, count in sorted(self._decisions.items()):
                labels = _labels(("family", "outcome", "rule"), decision)
                yield f"sndr_routing_decisions_total{{{labels}}} {count}\n"
            yield _head("sndr_coverage_gap_requests_total", "counter", "Requests that lie in a cell nobody measured.")
            for cell, count in sorted(self._gaps.items()):
                yield f"sndr_coverage_gap_requests_total{{{_labels(('family', 'gap'), cell)}}} {count}\n"
        for family in gauges:
            yield _head(family.name, family.kind, family.help)
            for values, number in family.samples:
                labels = f"{{{_labels(family.labels, values)}}}" if values else ""
                yield f"{family.name}{labels} {number}\n"


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
