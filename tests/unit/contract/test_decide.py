"""What the vectors cannot say: arguments, warnings, headers in every form, hint stripping, explanations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sndr.contract import HINT_HEADERS, HINT_MEMBERS, Table, decide, degraded, explain, load, strip_hints
from sndr.contract.detect import concurrency_mode, read_hints, to_chat
from tests.support.contract_vectors import D26, G26, K1, K4, M26, REFERENCE, RULE, SHORT_MULTI, T, gap, rule, table

TABLE = load(REFERENCE)
SHORT_TOOL = {"model": "gemma-4-26b-a4b", "tools": [{}], "max_tokens": 100}
KEYS = [
    "workload_class",
    "expected_output_length",
    "concurrency_mode",
    "model_family",
    "preset_key",
    "outcome",
    "rule_id",
    "evidence_tag",
    "gap",
]


def test_the_record_has_the_published_members_in_order() -> None:
    assert list(decide(TABLE, SHORT_TOOL).record()) == KEYS
    assert list(explain(TABLE, SHORT_TOOL).record()) == [*KEYS, "steps"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Sndr-Category": "code", "Content-Type": "application/json"},
        [("x-sndr-category", "code")],
        (("Accept", "*/*"), ("X-SNDR-CATEGORY", "code")),
        iter([("X-Sndr-Category", "code")]),
    ],
)
def test_headers_in_every_form(headers: Any) -> None:
    assert decide(TABLE, {}, headers=headers).workload_class == "code_gen"


def test_explain_reads_an_iterator_of_headers_once() -> None:
    explanation = explain(TABLE, {}, headers=iter([("X-Sndr-Category", "code")]))
    assert explanation.decision.workload_class == "code_gen"
    assert [step.reason for step in explanation.steps if step.name == "hint category"] == ["from header"]


@pytest.mark.parametrize("body", [None, [], "x", 1, True])
def test_a_body_that_is_no_object_is_free_chat_with_a_warning(body: object) -> None:
    decision = decide(TABLE, body, family=G26)
    assert (decision.workload_class, decision.preset_key) == ("free_chat", D26)
    assert decision.warning is not None
    assert "not an object" in decision.warning
    assert decide(TABLE, {}).warning is None


class Broken(Mapping[str, Any]):
    """A body that fails when it is looked at, as a lazily decoded one may."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("secret text of the prompt")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1


def test_a_fault_of_classification_is_free_chat_with_a_warning() -> None:
    decision = decide(TABLE, Broken(), in_flight=2, family=G26)
    assert (decision.workload_class, decision.expected_output_length, decision.preset_key) == ("free_chat", "long", D26)
    assert decision.warning == "classification failed (RuntimeError): classified as free_chat"
    assert decide(TABLE, SHORT_TOOL, dialect="grpc").warning is not None  # type: ignore[arg-type]
    assert decide(TABLE, SHORT_TOOL, headers=5).warning is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [5, [5], [("a",)], {5: 5}])
def test_headers_that_are_none_raise_nothing(headers: Any) -> None:
    decision = decide(TABLE, SHORT_TOOL, headers=headers)
    assert decision.workload_class in ("free_chat", "tool_call")
    assert explain(TABLE, SHORT_TOOL, headers=headers).decision == decision


@pytest.mark.parametrize("in_flight", [True, "2", 2.0, -1, None])
def test_a_count_that_is_no_count_is_single_stream(in_flight: Any) -> None:
    assert concurrency_mode(in_flight) == "single_stream"


@pytest.mark.parametrize("tokens", [True, "5000", 5000.0, -1, None])
def test_input_tokens_that_are_no_count_are_not_known(tokens: Any) -> None:
    assert decide(TABLE, {"max_tokens": 1}, input_tokens=tokens).workload_class == "free_chat"


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), float("-inf")])
def test_budgets_that_json_does_not_have(budget: float) -> None:
    assert decide(TABLE, {"max_tokens": budget}).expected_output_length == "long"


def test_the_chat_form_of_other_dialects() -> None:
    chat = {"model": "m"}
    assert to_chat(chat) is chat
    made = to_chat({"model": "m", "text": {"format": {"type": "text"}}, "instructions": "x"}, "responses")
    assert made == {"model": "m", "max_tokens": None, "response_format": {"type": "text"}}
    assert to_chat({"max_tokens": 5, "output_config": None}, "messages") == {"max_tokens": 5}


def test_hints_are_stripped_before_forwarding() -> None:
    body = {"model": "m", "expected_length": "short", "category": "x", "extra_body": {"category": "code", "top_k": 5}}
    before = repr(body)
    assert strip_hints(body) == {"model": "m", "extra_body": {"top_k": 5}}
    assert repr(body) == before
    assert strip_hints({"extra_body": "text"}) == {"extra_body": "text"}
    assert HINT_MEMBERS == ("expected_length", "category")
    assert HINT_HEADERS == ("x-sndr-expected-length", "x-sndr-category")


def test_where_a_hint_came_from() -> None:
    hints = read_hints({"category": "code", "extra_body": {"expected_length": "long"}}, {"X-Sndr-Category": "code"})
    assert hints == ("long", "code", "extra_body", "body")


def steps(of: Table, body: object, **given: Any) -> dict[str, tuple[str | None, str]]:
    return {step.name: (step.result, step.reason) for step in explain(of, body, **given).steps}


def test_an_explanation_walks_the_procedure_in_order() -> None:
    explanation = explain(TABLE, SHORT_TOOL, in_flight=2)
    assert [step.step for step in explanation.steps] == ["0", "0a", "1", "1", "2", "3", "4", "5", "6", "7", "7", "8"]
    assert [step.result for step in explanation.steps[5:9]] == ["tool_call", "short", "multi_conc", G26]
    assert explanation.steps[9][:3] == ("7", f"rule {RULE}", "matched")
    assert explanation.steps[10][:3] == ("7", "rule", M26)
    assert "measured: see presets/evidence/b4.yaml" in explanation.steps[10].reason
    assert explanation.steps[11][:3] == ("8", "gap", T)
    assert "bench this cell" in explanation.steps[11].reason


@pytest.mark.parametrize(
    ("body", "given", "name", "result", "reason"),
    [
        ({"max_tokens": 100}, {}, "budget", "100", "from max_tokens"),
        ({"max_completion_tokens": 100, "max_tokens": 5}, {}, "budget", "100", "from max_completion_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": 5}, {}, "budget", None, "max_completion_tokens is not an integral"),
        ({"max_tokens": 10**5000}, {}, "budget", "a number of more than 256 bits", "from max_tokens"),
        ({}, {}, "budget", None, "sets none"),
        ({"max_output_tokens": 5}, {"dialect": "responses"}, "budget", "5", "from max_output_tokens"),
        ({"max_output_tokens": 0}, {"dialect": "responses"}, "budget", None, "max_output_tokens is not"),
        ({}, {"dialect": "responses"}, "budget", None, "sets none"),
        ({"max_output_tokens": 5}, {"dialect": "responses"}, "dialect", "responses", "max_output_tokens"),
        ({"max_tokens": 5}, {"dialect": "messages"}, "dialect", "messages", "output_config"),
        ({}, {"dialect": "grpc"}, "dialect", "grpc", "not a dialect"),
        ([], {}, "workload_class", "free_chat", "not an object"),
        ({}, {}, "workload_class", "free_chat", "input tokens are not known; no category hint"),
        ({}, {"input_tokens": 9}, "workload_class", "free_chat", "no budget to compare"),
        ({"max_tokens": 9}, {"input_tokens": 18}, "workload_class", "free_chat", "at most 2 x budget"),
        ({"max_tokens": 9, "response_format": {}}, {"input_tokens": 19}, "workload_class", "free_chat", "neither"),
        ({"max_tokens": 9}, {"input_tokens": 19}, "workload_class", "summarization", "> 2 x budget"),
        ({"category": "code"}, {}, "workload_class", "code_gen", "hint is code"),
        ({"response_format": {"type": "json_object"}}, {}, "workload_class", "structured_json", "is json_object"),
        ({"expected_length": "short"}, {}, "expected_output_length", "short", "hint wins"),
        ({"max_tokens": 256}, {}, "expected_output_length", "short", "budget <= 256"),
        ({"max_tokens": 300}, {}, "expected_output_length", "medium", "256 < budget <= 512"),
        ({"max_tokens": 900}, {}, "expected_output_length", "long", "budget > 512"),
        ({}, {}, "expected_output_length", "long", "no budget"),
        ({}, {"in_flight": 1}, "concurrency_mode", "single_stream", "1 in flight"),
        ({}, {}, "concurrency_mode", "single_stream", "not known"),
        ({"model": "gemma-4-31b"}, {}, "model_family", "gemma4_dense_31b", "served_model_name"),
        ({"model": "gemma-4-31b-it-awq"}, {}, "model_family", "gemma4_dense_31b", "matches model"),
        ({"model": D26}, {}, "model_family", G26, "preset_key"),
        ({"model": "diffusiongemma"}, {}, "model_family", "unknown", "no family or disagree"),
        ({"model": "nobody"}, {}, "model_family", "unknown", "is no served_model_name"),
        ({"model": 5}, {}, "model_family", "unknown", "names no model"),
        ({}, {"family": G26}, "model_family", G26, "given by the caller"),
        ({}, {"family": "nobody"}, "model_family", "nobody", "no row of the table is of this family"),
        ({"model": "nobody"}, {}, "natural", None, "family is not known"),
        ({"model": "qwen3.6-27b"}, {}, "natural", None, "no default"),
        ({"model": D26}, {}, "family_default", D26, "default of the family"),
        ({"model": D26}, {}, f"rule {RULE}", "not matched", "workload_class is free_chat, the cell has"),
        ({"model": D26}, {}, "gap", None, "in no known coverage gap"),
    ],
)
def test_an_explanation_gives_the_reason_of_each_step(
    body: Any, given: dict[str, Any], name: str, result: str | None, reason: str
) -> None:
    got, why = steps(TABLE, body, **given)[name]
    assert got == result
    assert reason in why


def test_an_explanation_over_a_degraded_table() -> None:
    found = steps(degraded("no such file"), SHORT_TOOL)
    assert found["table"] == ("degraded", "no such file")
    assert found["model_family"] == ("unknown", "not looked up: the table is degraded")
    assert found["degraded"] == (None, "the table is degraded: route by model")


def test_an_explanation_names_the_warnings_of_the_table() -> None:
    damaged = load(table([K1, K4], [rule("gone", {}), rule("k4", SHORT_MULTI, evidence_tag=None)], []))
    found = steps(damaged, {"model": "s", "max_tokens": 1}, in_flight=2)
    assert "/routing_rules/0: dropped" in found["table"][1]
    assert "no tag" in found["rule"][1]


def test_rules_with_one_id_are_not_mixed_up() -> None:
    twins = load(
        table(
            [K1, K4],
            [
                rule("k1", {"workload_class": ["code_gen"]}, rule_id="r"),
                rule("k4", SHORT_MULTI, rule_id="r", evidence="two"),
            ],
            [gap("g", {"workload_class": ["code_gen"]}), {**gap("g", SHORT_MULTI), "next_phase": None}],
        )
    )
    found = steps(twins, {"model": "s", "max_tokens": 1}, in_flight=2)
    assert found["rule"] == ("k4", "first rule that matches; measured: two")
    assert found["gap"] == ("g", "a cell that nobody measured on its own; the choice stands")
