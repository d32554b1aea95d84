"""Where a request goes: the decision procedure over a loaded table, and its explanation step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sndr.contract.detect import (
    MEDIUM_MAX_TOKENS,
    SHORT_MAX_TOKENS,
    SUMMARIZATION_RATIO,
    Dialect,
    Headers,
    Hints,
    budget_of,
    concurrency_mode,
    is_token_count,
    output_length,
    read_hints,
    to_chat,
    workload_class,
)
from sndr.contract.table import UNKNOWN_FAMILY, Cell, Table

__all__ = ["Decision", "Explanation", "Step", "decide", "explain"]


class Decision(NamedTuple):
    """The decision record, plus `warning`: set when the request could not be classified (it is free_chat then).

    `outcome` is rule, family_default, natural or degraded. `preset_key` is None for the last two: the request goes
    where its model would go without a table. `gap` names the first coverage gap that contains the request; it never
    changes the choice.
    """

    workload_class: str
    expected_output_length: str
    concurrency_mode: str
    model_family: str
    preset_key: str | None
    outcome: str
    rule_id: str | None
    evidence_tag: str | None
    gap: str | None
    warning: str | None = None

    def record(self) -> dict[str, str | None]:
        """The nine members of the published record, in their order."""
        record: dict[str, str | None] = self._asdict()
        del record["warning"]
        return record


class Step(NamedTuple):
    """One step of an explanation: its number in the procedure, its subject, what came out, and why."""

    step: str
    name: str
    result: str | None
    reason: str


class Explanation(NamedTuple):
    """A decision and how it came about."""

    decision: Decision
    steps: tuple[Step, ...]

    def record(self) -> dict[str, Any]:
        """The decision record with `steps` as its last member."""
        return {**self.decision.record(), "steps": [step._asdict() for step in self.steps]}


class _Reading(NamedTuple):
    """What the detection found in one request."""

    workload: str
    length: str
    hints: Hints
    budget: int | None
    chat: Mapping[str, Any]
    warning: str | None


_EMPTY: Mapping[str, Any] = {}


def _read(body: object, dialect: Dialect, input_tokens: int | None, headers: Headers | None) -> _Reading:
    try:
        if isinstance(body, Mapping):
            chat = to_chat(body, dialect)
            hints = read_hints(chat, headers)
            budget = budget_of(chat)
            workload = workload_class(chat, budget=budget, input_tokens=input_tokens, category=hints.category)
            return _Reading(workload, output_length(budget, hints.expected_length), hints, budget, chat, None)
        hints = read_hints(_EMPTY, headers)
        warning = "the request body is not an object: classified as free_chat"
        return _Reading("free_chat", output_length(None, hints.expected_length), hints, None, _EMPTY, warning)
    except Exception as error:  # noqa: BLE001 - the contract: no fault of classification may fail a request
        warning = f"classification failed ({type(error).__name__}): classified as free_chat"
        return _Reading("free_chat", "long", Hints(), None, _EMPTY, warning)


def decide(
    table: Table,
    body: object,
    *,
    in_flight: int | None = None,
    input_tokens: int | None = None,
    headers: Headers | None = None,
    dialect: Dialect = "chat",
    family: str | None = None,
) -> Decision:
    """Decide which preset gets a request. Pure, never raises for what a request contains.

    Args:
        table: A loaded table; a degraded one gives outcome `degraded`.
        body: The decoded request body, hints included.
        in_flight: Requests in flight in the model family across all its upstreams, this one included; None if unknown.
        input_tokens: Tokens of the prompt, if the caller has counted them.
        headers: The request's headers (names in any case); only the two hint headers are read.
        dialect: What `body` is: a chat (or completions), Responses or Messages request.
        family: The model family, if the caller knows it better than the body's `model` (a family alias).
    """
    reading = _read(body, dialect, input_tokens, headers)
    if family is None:
        family = table.family_of(reading.chat.get("model"))
    mode = concurrency_mode(in_flight)
    preset_key, outcome, rule_id, tag, gap = table.verdict(family, reading.workload, reading.length, mode)
    return Decision(
        reading.workload, reading.length, mode, family, preset_key, outcome, rule_id, tag, gap, reading.warning
    )


def explain(
    table: Table,
    body: object,
    *,
    in_flight: int | None = None,
    input_tokens: int | None = None,
    headers: Headers | None = None,
    dialect: Dialect = "chat",
    family: str | None = None,
) -> Explanation:
    """The decision of `decide` for the same arguments, with the reason of every step."""
    if isinstance(headers, Iterable) and not isinstance(headers, Mapping):
        headers = list(headers)  # read twice below
    decision = decide(
        table,
        body,
        in_flight=in_flight,
        input_tokens=input_tokens,
        headers=headers,
        dialect=dialect,
        family=family,
    )
    reading = _read(body, dialect, input_tokens, headers)
    steps = [
        _table_step(table),
        _dialect_step(dialect),
        *_hint_steps(reading.hints),
        _budget_step(reading, dialect),
        Step("3", "workload_class", decision.workload_class, _why_workload(reading, input_tokens)),
        Step("4", "expected_output_length", decision.expected_output_length, _why_length(reading)),
        Step("5", "concurrency_mode", decision.concurrency_mode, _why_mode(in_flight)),
        Step("6", "model_family", decision.model_family, _why_family(table, reading, family)),
        *_rule_steps(table, decision),
        _choice_step(table, decision),
        _gap_step(table, decision),
    ]
    return Explanation(decision, tuple(steps))


def _table_step(table: Table) -> Step:
    if table.degraded is not None:
        return Step("0", "table", "degraded", table.degraded)
    rows = ("preset", table.presets), ("rule", table.routing_rules), ("gap", table.coverage_gaps)
    counts = ", ".join(f"{len(of)} {name}{'' if len(of) == 1 else 's'}" for name, of in rows)
    if table.warnings:
        return Step("0", "table", "in force", f"{counts}; warnings: {'; '.join(table.warnings)}")
    return Step("0", "table", "in force", counts)


def _dialect_step(dialect: Dialect) -> Step:
    reasons = {
        "chat": "read as it is",
        "responses": "max_output_tokens read as the budget, text.format as response_format",
        "messages": "max_tokens read as the budget, output_config.format as response_format",
    }
    return Step("0a", "dialect", dialect, reasons.get(dialect, "not a dialect of the contract"))


def _hint_steps(hints: Hints) -> list[Step]:
    steps = []
    for name, value, place in (
        ("expected_length", hints.expected_length, hints.expected_length_from),
        ("category", hints.category, hints.category_from),
    ):
        reason = "no valid value in body, extra_body or header" if place is None else f"from {place}"
        steps.append(Step("1", f"hint {name}", value, reason))
    return steps


def _budget_step(reading: _Reading, dialect: Dialect) -> Step:
    if dialect == "responses":
        member = "max_output_tokens"
    elif reading.chat.get("max_completion_tokens") is not None:
        member = "max_completion_tokens"
    else:
        member = "max_tokens"
    if reading.budget is None:
        if reading.chat.get("max_tokens") is None and member != "max_completion_tokens":
            return Step("2", "budget", None, "the request sets none")
        return Step("2", "budget", None, f"{member} is not an integral number of at least 1")
    return Step("2", "budget", _digits(reading.budget), f"from {member}")


def _digits(number: int) -> str:
    """An integer as text; the interpreter refuses to print very long ones."""
    return str(number) if number.bit_length() < 256 else "a number of more than 256 bits"


def _why_workload(reading: _Reading, input_tokens: int | None) -> str:
    if reading.warning is not None:
        return reading.warning
    if reading.workload == "tool_call":
        return "tools is a non-empty array"
    if reading.workload == "structured_json":
        return f"response_format.type is {reading.chat['response_format']['type']}"
    if reading.workload == "summarization":
        return f"no tools, no structured format, input tokens > {SUMMARIZATION_RATIO} x budget"
    if not is_token_count(input_tokens):
        ratio = "input tokens are not known"
    elif reading.budget is None:
        ratio = "there is no budget to compare the input with"
    elif input_tokens <= SUMMARIZATION_RATIO * reading.budget:
        ratio = f"input tokens are at most {SUMMARIZATION_RATIO} x budget"
    else:
        ratio = "response_format is neither absent nor text"
    not_found = f"no tools, no structured format; not summarization: {ratio}"
    if reading.workload == "code_gen":
        return f"{not_found}; the category hint is code"
    return f"{not_found}; no category hint"


def _why_length(reading: _Reading) -> str:
    if reading.hints.expected_length is not None:
        return "the caller's hint wins"
    if reading.budget is None:
        return "no budget: long, so that missing data never selects a deeper speculation"
    if reading.budget <= SHORT_MAX_TOKENS:
        return f"budget <= {SHORT_MAX_TOKENS}"
    if reading.budget <= MEDIUM_MAX_TOKENS:
        return f"{SHORT_MAX_TOKENS} < budget <= {MEDIUM_MAX_TOKENS}"
    return f"budget > {MEDIUM_MAX_TOKENS}"


def _why_mode(in_flight: int | None) -> str:
    if not isinstance(in_flight, int) or isinstance(in_flight, bool):
        return "the number of requests in flight is not known"
    return f"{_digits(in_flight)} in flight in the family, this request included"


def _why_family(table: Table, reading: _Reading, family: str | None) -> str:
    if family is not None:
        known = family in table.families or table.degraded is not None
        return "given by the caller" if known else "given by the caller; no row of the table is of this family"
    model = reading.chat.get("model")
    if table.degraded is not None:
        return "not looked up: the table is degraded"
    if not isinstance(model, str):
        return "the request names no model"
    found = table.name_kind(model)
    if found is None:
        return "model is no served_model_name, model or preset_key of the table"
    if table.family_of(model) == UNKNOWN_FAMILY:
        return f"model matches {found}, but its rows have no family or disagree"
    return f"model matches {found}"


def _rule_steps(table: Table, decision: Decision) -> list[Step]:
    """The rules of the family in order, up to the one that matched."""
    if table.degraded is not None or decision.model_family == UNKNOWN_FAMILY:
        return []
    steps = []
    cell = decision.workload_class, decision.expected_output_length, decision.concurrency_mode
    for rule in table.routing_rules:
        if rule.model_family == decision.model_family:
            refusal = rule.when.refusal(*cell)
            if refusal is None:
                steps.append(Step("7", f"rule {rule.id}", "matched", f"{rule.when} -> {rule.preset_key}"))
                break
            steps.append(Step("7", f"rule {rule.id}", "not matched", refusal))
    return steps


def _choice_step(table: Table, decision: Decision) -> Step:
    if decision.outcome == "rule":
        rule = next(rule for rule in table.routing_rules if _lies_in(decision, rule.model_family, rule.when))
        reason = f"first rule that matches; {rule.evidence_tag or 'no tag'}: {rule.evidence}"
    elif decision.outcome == "family_default":
        reason = "no rule matches: the default of the family"
    elif decision.outcome == "degraded":
        reason = "the table is degraded: route by model"
    elif decision.model_family == UNKNOWN_FAMILY:
        reason = "the family is not known: route by model"
    else:
        reason = "no rule matches and the family has no default: route by model"
    return Step("7", decision.outcome, decision.preset_key, reason)


def _lies_in(decision: Decision, family: str, cell: Cell | None) -> bool:
    request = decision.workload_class, decision.expected_output_length, decision.concurrency_mode
    return family == decision.model_family and cell is not None and cell.admits(*request)


def _gap_step(table: Table, decision: Decision) -> Step:
    if decision.gap is None:
        return Step("8", "gap", None, "in no known coverage gap")
    gap = next(gap for gap in table.coverage_gaps if _lies_in(decision, gap.model_family, gap.cell))
    reason = "a cell that nobody measured on its own; the choice stands"
    return Step("8", "gap", decision.gap, f"{reason}; to close it: {gap.next_phase}" if gap.next_phase else reason)
