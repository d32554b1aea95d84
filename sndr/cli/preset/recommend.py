"""``preset recommend``: rank the presets for a workload, or for a request as the router would read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from sndr.cli.output import write_err, write_out
from sndr.cli.preset.view import (
    card_json,
    json_option,
    metric_text,
    parse_workload,
    presets_option,
    require_family,
    require_hardware,
    rows_text,
    write_json,
)
from sndr.cli.table.catalog import Catalog, load_catalog
from sndr.cli.table.compose import compose_all
from sndr.cli.table.layers import LOWER_IS_BETTER, METRICS, STATUSES, Preset, Rule
from sndr.contract import OUTPUT_LENGTHS, UNKNOWN_FAMILY, WORKLOAD_CLASSES, Decision
from sndr.contract.detect import concurrency_mode

__all__ = ["recommend"]

_SPLIT_CLASSES = ("structured_json", "tool_call")


class _Query(NamedTuple):
    """What is asked for.

    Attributes:
        workload: The word that cards allow or deny.
        workload_class: The contract's class, None for words outside it.
        length: Expected output length, None if unknown.
        mode: Concurrency mode; unknown concurrency counts as a single stream, as in the contract.
        decision: The router's decision, when a request was given.
    """

    workload: str
    workload_class: str | None
    length: str | None
    mode: str
    concurrency: int | None
    hardware: str | None
    model_family: str | None
    decision: Decision | None


class _Ranked(NamedTuple):
    key: tuple[Any, ...]
    preset: Preset
    why: list[str]


@click.command("recommend", short_help="Rank the presets for a workload or a request.")
@click.option("--workload", help="Workload, such as tool_call.short, free_chat or custom:<word>.")
@click.option(
    "--request", metavar="FILE", help="Read an OpenAI chat body (- for standard input) instead of --workload."
)
@click.option("--hardware", help="Only presets for this hardware.")
@click.option("--concurrency", type=click.IntRange(1, 4096), help="Requests in flight in the family at once.")
@click.option("--expected-length", type=click.Choice(OUTPUT_LENGTHS), help="Expected length of the answer.")
@click.option("--model-family", help="Only presets of this family.")
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="How many to print.")
@presets_option
@json_option
def recommend(
    workload: str | None,
    request: str | None,
    hardware: str | None,
    concurrency: int | None,
    expected_length: str | None,
    model_family: str | None,
    top: int,
    root: str | None,
    as_json: bool,
) -> None:
    """Rank the presets that fit, the best one first, and say why each stands where it stands.

    Measured routing rules come first and, for a request, the router's choice; then the card's status, the family
    default, the primary metric (compared within its kind; 0.0 means not measured) and the id.
    """
    if (workload is None) == (request is None):
        raise click.UsageError("give one of --workload and --request")
    if request is not None and expected_length is not None:
        raise click.UsageError("--expected-length goes with --workload; a request says its own")
    catalog = load_catalog(root)
    compose_all(catalog)
    require_family(catalog, model_family)
    require_hardware(catalog, hardware)
    if request is not None:
        query = _from_request(catalog, request, hardware, concurrency, model_family)
    else:
        assert workload is not None
        query = _from_words(catalog, workload, hardware, concurrency, expected_length, model_family)
    ranked = sorted(
        (found for preset in catalog.presets.values() if (found := _rank(catalog, query, preset)) is not None),
        key=lambda found: found.key,
    )
    _answer(catalog, query, ranked, top, as_json)


def _from_words(
    catalog: Catalog,
    workload: str,
    hardware: str | None,
    concurrency: int | None,
    expected_length: str | None,
    model_family: str | None,
) -> _Query:
    word = parse_workload(catalog, workload)
    stem, _, suffix = word.partition(".")
    if suffix and expected_length is not None and (suffix == "short") != (expected_length == "short"):
        raise click.UsageError(f"--workload {workload} and --expected-length {expected_length} contradict each other")
    known = stem if stem in WORKLOAD_CLASSES else None
    return _Query(
        word,
        known,
        expected_length or suffix or None,
        concurrency_mode(concurrency),
        concurrency,
        hardware,
        model_family,
        None,
    )


def _from_request(
    catalog: Catalog, request: str, hardware: str | None, concurrency: int | None, model_family: str | None
) -> _Query:
    from sndr.cli.table.build import build_table  # only a request needs a table
    from sndr.cli.table.document import read_json
    from sndr.contract import decide, load

    decision = decide(load(build_table(catalog)), read_json(request), in_flight=concurrency, family=model_family)
    if decision.warning is not None:
        write_err(f"warning: {decision.warning}")
    word = decision.workload_class
    if word in _SPLIT_CLASSES:
        word += ".short" if decision.expected_output_length == "short" else ".long"
    family = model_family
    if family is None and decision.model_family != UNKNOWN_FAMILY:
        family = decision.model_family
    return _Query(
        word,
        decision.workload_class,
        decision.expected_output_length,
        decision.concurrency_mode,
        concurrency,
        hardware,
        family,
        decision,
    )


def _matches(rule: Rule, query: _Query) -> bool:
    asked: Mapping[str, str | None] = {
        "workload_class": query.workload_class,
        "expected_output_length": query.length,
        "concurrency_mode": query.mode,
    }
    return all(asked[axis] in words for axis, words in rule.when.items())


def _rank(catalog: Catalog, query: _Query, preset: Preset) -> _Ranked | None:
    """Return a preset's place and the reasons for it, or None when it does not fit."""
    card = preset.card
    family = catalog.models[preset.model].model_family
    if query.hardware is not None and preset.hardware != query.hardware:
        return None
    if query.model_family is not None and family != query.model_family:
        return None
    rule = next((r for r in catalog.rules if r.model_family == family and _matches(r, query)), None)
    routed = rule is not None and rule.preset_key == preset.id
    chosen = query.decision is not None and query.decision.preset_key == preset.id
    limits = card["concurrency"]
    fits = query.workload in card["workload_allow"] and query.workload not in card["workload_deny"]
    crowded = query.concurrency is not None and not limits["min"] <= query.concurrency <= limits["max"]
    if not (routed or chosen) and (not fits or crowded):
        return None
    why = []
    if rule is not None and routed:
        why.append(f"{rule.evidence_tag} rule {rule.id}: {catalog.evidence[rule.evidence].cite(preset.id)}")
    elif chosen:
        why.append("the router's choice for this request: the default of its family")
    measured = rule is not None and routed and rule.evidence_tag == "measured"
    if fits:
        why.append(f"its card allows {query.workload}")
    why.append(f"status {card['status']}")
    if preset.default_for_family:
        why.append(f"default of {family}")
    metric = card["primary_metric"]
    order: tuple[Any, ...] = (1, 0, 0)
    if metric is not None and metric["value"] != 0:
        value = metric["value"] if metric["kind"] in LOWER_IS_BETTER else -metric["value"]
        order = (0, METRICS.index(metric["kind"]), value)
        why.append(f"{metric['kind']} {metric['value']:g} ({metric['measured_at']})")
    else:
        why.append("no primary metric yet")
    if query.concurrency is not None:
        why.append(f"takes {limits['min']} to {limits['max']} at once")
    key = (not measured, not chosen, STATUSES.index(card["status"]), not preset.default_for_family, *order, preset.id)
    return _Ranked(key, preset, why)


def _answer(catalog: Catalog, query: _Query, ranked: list[_Ranked], top: int, as_json: bool) -> None:
    shown = ranked[:top]
    if as_json:
        asked = query._asdict()
        asked["decision"] = None if query.decision is None else query.decision.record()
        asked["top"] = top
        results = [
            {"rank": rank, "id": found.preset.id, "why": found.why, "card": card_json(found.preset)}
            for rank, found in enumerate(shown, 1)
        ]
        write_json({"query": asked, "results": results, "total_matches": len(ranked)})
        return
    text = f"{query.workload}, {query.length or 'any length of'} output, {query.mode}\n"
    if query.decision is not None:
        goal = query.decision.preset_key or "no preset: it goes where its model goes"
        text += f"the router sends this request to {goal} ({query.decision.outcome})\n"
        if query.decision.gap is not None:
            text += f"coverage gap: {query.decision.gap}\n"
    for rank, found in enumerate(shown, 1):
        family = catalog.models[found.preset.model].model_family
        head = rows_text([(f"{rank}.", found.preset.id, family, metric_text(found.preset))])
        text += "\n" + head + "".join(f"    - {reason}\n" for reason in found.why)
    text += f"\n{len(shown)} of {len(ranked)} matches\n" if ranked else "no preset matches\n"
    write_out(text)
