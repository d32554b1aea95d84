"""Writes `schemas/conformance/*.json`: run `python -m tests.support.contract_vectors` from the checkout's root.

The expected values of `decisions.json` are written here by hand; those of the generated tables come from the naive
implementation in `tests.support.naive_contract`. Nothing here imports `sndr`.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

from tests.support import naive_contract as naive

FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "schemas", "conformance")

G26, G31, Q27, Q35 = "gemma4_moe_26b_a4b", "gemma4_dense_31b", "qwen3_6_27b", "qwen3_6_35b"
D26, M26, D31 = "prod-gemma4-26b-default", "prod-gemma4-26b-multiconc", "prod-gemma4-31b-tq-default"
RULE = "gemma4-26b-multiconc-structured-short"

ROWS: list[tuple[Any, ...]] = [
    ("example-2x-tier-aware", "qwen3.6-27b-int4-autoround-tq-k8v4", "qwen3.6-27b", Q27, 4, 4, None, [], False),
    ("example-3090-dense-cpu-offload", "qwen3.6-7b-dense", "qwen3.6-7b", "unknown", 1, 1, None, [], False),
    ("example-3090-tier-aware", "qwen3.6-27b-int4-autoround-tq-k8v4", "qwen3.6-27b", Q27, 4, 1, None, [], False),
    ("llamacpp-qwen3.6-27b-q4km-1x", "qwen3.6-27b-gguf-q4km-mtp", "qwen3.6-27b", Q27, 2, 1, None, [], False),
    ("prod-diffusiongemma-tp2", "diffusiongemma-26b-a4b-fp8", "diffusiongemma", "unknown", 1, 2, None, [], False),
    (D26, "gemma-4-26b-a4b-it-awq", "gemma-4-26b-a4b", G26, 1, 2, "default", [], True),
    (
        M26,
        "gemma-4-26b-a4b-it-awq",
        "gemma-4-26b-a4b",
        G26,
        4,
        8,
        "structured",
        ["structured_count", "tool_json"],
        False,
    ),
    (
        "prod-gemma4-31b-kvauto-chat",
        "gemma-4-31b-it-awq",
        "gemma-4-31b",
        G31,
        3,
        2,
        "structured",
        ["free_chat", "code_gen", "summarization"],
        False,
    ),
    (D31, "gemma-4-31b-it-awq", "gemma-4-31b", G31, 1, 2, "default", [], True),
    ("prod-qwen3.6-27b-tq-k8v4", "qwen3.6-27b-int4-autoround-tq-k8v4", "qwen3.6-27b", Q27, 4, 4, None, [], False),
    ("prod-qwen3.6-27b-tq-multiconc", "qwen3.6-27b-int4-autoround-tq-k8v4", "qwen3.6-27b", Q27, 4, 8, None, [], False),
    ("prod-qwen3.6-35b-balanced", "qwen3.6-35b-a3b-fp8", "qwen3.6-35b-a3b", Q35, 5, 2, None, [], False),
    ("prod-qwen3.6-35b-multiconc", "qwen3.6-35b-a3b-fp8", "qwen3.6-35b-a3b", Q35, 5, 8, None, [], False),
    ("qa-qwen3.6-27b-tested", "qwen3.6-27b-int4-autoround-fp8kv", "qwen3.6-27b", Q27, 3, 2, None, [], False),
    ("qa-qwen3.6-27b-tq-1x", "qwen3.6-27b-int4-autoround-tq-k8v4", "qwen3.6-27b", Q27, 4, 1, None, [], False),
]


def row(
    key: str,
    model: str = "m",
    served: str | None = "s",
    family: str = "fam",
    k: int = 1,
    seqs: int = 2,
    role: str | None = None,
    workloads: list[str] | None = None,
    default: bool = False,
) -> dict[str, Any]:
    return {
        "preset_key": key,
        "model": model,
        "served_model_name": served,
        "model_family": family,
        "spec_decode_K": k,
        "max_num_seqs": seqs,
        "role": role,
        "intended_workloads": workloads or [],
        "default_for_family": default,
    }


def rule(target: str, when: Any, *, family: str = "fam", rule_id: str | None = None, **more: Any) -> dict[str, Any]:
    made = {
        "model_family": family,
        "when": when,
        "preset_key": target,
        "evidence": "see presets/evidence/b4.yaml",
        "evidence_tag": "measured",
        **more,
    }
    return made if rule_id is None else {"id": rule_id, **made}


def gap(label: str, cell: Any, *, family: str = "fam", fallback: str = "k1") -> dict[str, Any]:
    return {
        "model_family": family,
        "missing_cell": label,
        "cell": cell,
        "fallback_preset": fallback,
        "next_phase": "bench this cell",
    }


def table(presets: list[Any], rules: list[Any], gaps: list[Any]) -> dict[str, Any]:
    """A whole table in the shape of schema v1."""
    return {
        "schema_version": 1,
        "generated_by": "conformance",
        "generated_at": "2026-01-01T00:00:00Z",
        "vllm_pin": None,
        "presets": presets,
        "routing_rules": rules,
        "workload_class_detection": {
            "evaluation_order": ["tool_call", "structured_json", "summarization", "code_gen", "free_chat"],
            "classes": {
                "tool_call": {"trigger": "tools is a non-empty array", "priority": 100},
                "structured_json": {"trigger": "response_format.type is json_object or json_schema", "priority": 90},
                "summarization": {"trigger": "input tokens > 2 x budget, no tools, no format", "priority": 50},
                "code_gen": {"trigger": "hint category is code", "priority": 40},
                "free_chat": {"trigger": "everything else", "priority": 0},
            },
        },
        "concurrency_mode_detection": {
            "single_stream": "in_flight <= 1",
            "multi_conc": "in_flight >= 2",
            "owner": "the consumer",
            "fallback": "single_stream",
        },
        "length_detection": {
            "short_threshold_tokens": 256,
            "caller_hint_wins": True,
            "buckets": {"short": "budget <= 256", "medium": "256 < budget <= 512", "long": "budget > 512, or none"},
        },
        "fallback": {
            "no_rule_matched": "the family's default",
            "model_family_unknown": "route by model",
            "classification_failed": "free_chat",
            "default_K": 1,
        },
        "coverage_gaps": gaps,
    }


STRUCTURED = ["structured_json", "tool_call"]
SINGLE, MULTI = ["single_stream"], ["multi_conc"]
S26 = "single-stream-structured-or-tool-short"
S31 = "single-stream-structured-or-tool"
MS31 = "multi-conc-structured-or-tool"
M31 = "multi-conc-any-workload"
T = "tool-call-as-its-own-class"

REFERENCE = table(
    [row(*values) for values in ROWS],
    [
        rule(
            M26,
            {"workload_class": STRUCTURED, "expected_output_length": ["short"], "concurrency_mode": MULTI},
            family=G26,
            rule_id=RULE,
        )
    ],
    [
        gap(
            S26,
            {"workload_class": STRUCTURED, "expected_output_length": ["short"], "concurrency_mode": SINGLE},
            family=G26,
            fallback=D26,
        ),
        gap(S31, {"workload_class": STRUCTURED, "concurrency_mode": SINGLE}, family=G31, fallback=D31),
        gap(MS31, {"workload_class": STRUCTURED, "concurrency_mode": MULTI}, family=G31, fallback=D31),
        gap(M31, {"concurrency_mode": MULTI}, family=G31, fallback=D31),
        gap(T, {"workload_class": ["tool_call"]}, family=G26, fallback=D26),
        gap(T, {"workload_class": ["tool_call"]}, family=G31, fallback=D31),
    ],
)

# --- by hand -----------------------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
M = "gemma-4-26b-a4b"

_WORKLOADS = {"T": "tool_call", "J": "structured_json", "S": "summarization", "C": "code_gen", "F": "free_chat"}
_LENGTHS = {"s": "short", "m": "medium", "l": "long"}
_MODES = {"1": "single_stream", "2": "multi_conc"}


def expect(code: str, family: str, preset: str | None, outcome: str, gap_name: str | None = None) -> dict[str, Any]:
    """`code` is one letter each for class, length and mode: `Ts2` is a short tool call at two in flight."""
    by_rule = outcome == "rule"
    return {
        "workload_class": _WORKLOADS[code[0]],
        "expected_output_length": _LENGTHS[code[1]],
        "concurrency_mode": _MODES[code[2]],
        "model_family": family,
        "preset_key": preset,
        "outcome": outcome,
        "rule_id": RULE if by_rule else None,
        "evidence_tag": "measured" if by_rule else None,
        "gap": gap_name,
    }


def by_rule(code: str, gap_name: str | None = None) -> dict[str, Any]:
    return expect(code, G26, M26, "rule", gap_name)


def by_default(code: str, gap_name: str | None = None) -> dict[str, Any]:
    return expect(code, G26, D26, "family_default", gap_name)


def natural(code: str, family: str = "unknown") -> dict[str, Any]:
    return expect(code, family, None, "natural")


def vector(name: str, request: Any, expected: dict[str, Any], table_name: str = "reference", **given: Any) -> Any:
    """One vector, every input spelled out. `given`: in_flight, input_tokens, headers, dialect, family."""
    unknown = given.keys() - {"in_flight", "input_tokens", "headers", "dialect", "family"}
    assert not unknown, unknown
    return {
        "name": name,
        "table": table_name,
        "dialect": given.get("dialect", "chat"),
        "request": request,
        "headers": given.get("headers", []),
        "in_flight": given.get("in_flight"),
        "input_tokens": given.get("input_tokens"),
        "family": given.get("family"),
        "expect": expected,
    }


def body(**members: Any) -> dict[str, Any]:
    return {"model": M, "messages": [{"role": "user", "content": "hi"}], **members}


def chat(**members: Any) -> dict[str, Any]:
    """A short structured request: the one whose preset tells most about what was understood."""
    return body(response_format=SCHEMA, **members)


def hand() -> list[Any]:
    v: list[Any] = []

    def add(name: str, request: Any, expected: dict[str, Any], **given: Any) -> None:
        v.append(vector(name, request, expected, **given))

    # The rule and its edges.
    add(
        "rule: short tool call under concurrency",
        body(tools=[TOOL], max_tokens=100),
        by_rule("Ts2", T),
        in_flight=2,
    )
    add("rule: short structured under concurrency", chat(max_tokens=100), by_rule("Js2"), in_flight=2)
    add(
        "rule: json_object counts as structured",
        body(response_format={"type": "json_object"}, max_tokens=1),
        by_rule("Js2"),
        in_flight=8,
    )
    add("rule: not in single stream", chat(max_tokens=100), by_default("Js1", S26), in_flight=1)
    add("rule: not for medium", chat(max_tokens=300), by_default("Jm2"), in_flight=2)
    add("rule: not for long", chat(max_tokens=1000), by_default("Jl2"), in_flight=2)
    add("rule: not for free chat", body(max_tokens=100), by_default("Fs2"), in_flight=2)
    add("rule: not for code", body(max_tokens=100, category="code"), by_default("Cs2"), in_flight=2)
    add("rule: not for summarization", body(max_tokens=100), by_default("Ss2"), in_flight=2, input_tokens=201)
    add("rule: many in flight", chat(max_tokens=256), by_rule("Js2"), in_flight=1000000)

    # Budget.
    for budget, code in ((1, "s"), (255, "s"), (256, "s"), (257, "m"), (512, "m"), (513, "l"), (10**30, "l")):
        got = by_rule(f"J{code}2") if code == "s" else by_default(f"J{code}2")
        add(f"budget: max_tokens {budget}", chat(max_tokens=budget), got, in_flight=2)
        add(f"budget: max_completion_tokens {budget}", chat(max_completion_tokens=budget), got, in_flight=2)
    add("budget: none is long", chat(), by_default("Jl2"), in_flight=2)
    add(
        "budget: max_completion_tokens wins",
        chat(max_completion_tokens=600, max_tokens=10),
        by_default("Jl2"),
        in_flight=2,
    )
    add(
        "budget: max_completion_tokens wins, lower",
        chat(max_completion_tokens=10, max_tokens=600),
        by_rule("Js2"),
        in_flight=2,
    )
    add(
        "budget: null max_completion_tokens gives way",
        chat(max_completion_tokens=None, max_tokens=10),
        by_rule("Js2"),
        in_flight=2,
    )
    for name, bad in (
        ("zero", 0),
        ("negative", -1),
        ("true", True),
        ("false", False),
        ("a string", "100"),
        ("a fraction", 100.5),
        ("an array", [100]),
        ("an object", {"n": 100}),
        ("a tiny fraction", 0.1),
        ("an empty string", ""),
    ):
        add(f"budget: {name} is none", chat(max_tokens=bad), by_default("Jl2"), in_flight=2)
        add(
            f"budget: {name} in max_completion_tokens does not fall through",
            chat(max_completion_tokens=bad, max_tokens=100),
            by_default("Jl2"),
            in_flight=2,
        )
    add("budget: both null is none", chat(max_completion_tokens=None, max_tokens=None), by_default("Jl2"), in_flight=2)
    add("budget: 256.0 is integral", chat(max_tokens=256.0), by_rule("Js2"), in_flight=2)
    add("budget: 1e2 is integral", chat(max_tokens=1e2), by_rule("Js2"), in_flight=2)
    add("budget: not read from extra_body", chat(extra_body={"max_tokens": 10}), by_default("Jl2"), in_flight=2)
    add("budget: max_output_tokens is not a chat member", chat(max_output_tokens=10), by_default("Jl2"), in_flight=2)

    # Workload class.
    add(
        "class: tools win over response_format",
        chat(tools=[TOOL], max_tokens=10),
        by_rule("Ts2", T),
        in_flight=2,
    )
    add("class: tools need no shape", body(tools=[None], max_tokens=10), by_rule("Ts2", T), in_flight=2)
    add(
        "class: tool_choice none changes nothing",
        body(tools=[TOOL], tool_choice="none", max_tokens=10),
        by_rule("Ts2", T),
        in_flight=2,
    )
    add("class: empty tools are no tools", body(tools=[], max_tokens=10), by_default("Fs2"), in_flight=2)
    add("class: null tools are no tools", body(tools=None, max_tokens=10), by_default("Fs2"), in_flight=2)
    add("class: an object is no array of tools", body(tools={"a": TOOL}, max_tokens=10), by_default("Fs2"), in_flight=2)
    add("class: a string is no array of tools", body(tools="lookup", max_tokens=10), by_default("Fs2"), in_flight=2)
    add(
        "class: legacy functions are not looked at",
        body(functions=[TOOL], max_tokens=10),
        by_default("Fs2"),
        in_flight=2,
    )
    add(
        "class: tool_choice alone is no tool call",
        body(tool_choice="required", max_tokens=10),
        by_default("Fs2"),
        in_flight=2,
    )
    add("class: empty tools leave structured", chat(tools=[], max_tokens=10), by_rule("Js2"), in_flight=2)
    for name, fmt in (
        ("text", {"type": "text"}),
        ("null", None),
        ("upper case", {"type": "JSON_OBJECT"}),
        ("another type", {"type": "xml"}),
        ("no type", {}),
        ("a null type", {"type": None}),
        ("a string", "json_object"),
        ("an array", ["json_object"]),
        ("an array as type", {"type": ["json_object"]}),
        ("trailing space", {"type": "json_object "}),
    ):
        add(
            f"class: response_format {name} is not structured",
            body(response_format=fmt, max_tokens=10),
            by_default("Fs2"),
            in_flight=2,
        )
    add(
        "class: a json_schema without a schema is structured",
        body(response_format={"type": "json_schema"}, max_tokens=10),
        by_rule("Js2"),
        in_flight=2,
    )

    # Summarization.
    add("summary: more than twice", body(max_tokens=100), by_default("Ss1"), input_tokens=201)
    add("summary: exactly twice is not", body(max_tokens=100), by_default("Fs1"), input_tokens=200)
    add("summary: below", body(max_tokens=100), by_default("Fs1"), input_tokens=10)
    add("summary: medium", body(max_tokens=512), by_default("Sm1"), input_tokens=1025)
    add("summary: long", body(max_tokens=2000), by_default("Sl1"), input_tokens=4001)
    add("summary: input not known", body(max_tokens=1), by_default("Fs1"))
    add("summary: no budget", body(), by_default("Fl1"), input_tokens=100000)
    add("summary: invalid budget", body(max_tokens=0), by_default("Fl1"), input_tokens=100000)
    add("summary: a hint of length is no budget", body(expected_length="short"), by_default("Fs1"), input_tokens=100000)
    add("summary: zero input", body(max_tokens=1), by_default("Fs1"), input_tokens=0)
    add(
        "summary: format text is allowed",
        body(max_tokens=10, response_format={"type": "text"}),
        by_default("Ss1"),
        input_tokens=100,
    )
    add(
        "summary: format null is allowed",
        body(max_tokens=10, response_format=None),
        by_default("Ss1"),
        input_tokens=100,
    )
    add(
        "summary: another format is not",
        body(max_tokens=10, response_format={"type": "xml"}),
        by_default("Fs1"),
        input_tokens=100,
    )
    add(
        "summary: a malformed format is not",
        body(max_tokens=10, response_format="text"),
        by_default("Fs1"),
        input_tokens=100,
    )
    add(
        "summary: a format without a type is not",
        body(max_tokens=10, response_format={}),
        by_default("Fs1"),
        input_tokens=100,
    )
    add("summary: structured goes first", chat(max_tokens=10), by_default("Js1", S26), input_tokens=100)
    add("summary: tools go first", body(tools=[TOOL], max_tokens=10), by_default("Ts1", S26), input_tokens=100)
    add("summary: before code", body(max_tokens=10, category="code"), by_default("Ss1"), input_tokens=21)
    add(
        "summary: code when the input is small",
        body(max_tokens=10, category="code"),
        by_default("Cs1"),
        input_tokens=20,
    )
    add("summary: empty tools are no tools", body(max_tokens=10, tools=[]), by_default("Ss1"), input_tokens=100)

    # Hints.
    for value, code in (("short", "s"), ("medium", "m"), ("long", "l")):
        got = by_rule("Js2") if code == "s" else by_default(f"J{code}2")
        add(f"hint: expected_length {value} in the body", chat(expected_length=value), got, in_flight=2)
        add(
            f"hint: expected_length {value} in extra_body",
            chat(extra_body={"expected_length": value}),
            got,
            in_flight=2,
        )
        add(
            f"hint: expected_length {value} in a header",
            chat(),
            got,
            in_flight=2,
            headers=[["X-Sndr-Expected-Length", value]],
        )
    add("hint: wins over the budget", chat(max_tokens=10, expected_length="long"), by_default("Jl2"), in_flight=2)
    add("hint: wins over a large budget", chat(max_tokens=9999, expected_length="short"), by_rule("Js2"), in_flight=2)
    add(
        "hint: body before extra_body",
        chat(expected_length="long", extra_body={"expected_length": "short"}),
        by_default("Jl2"),
        in_flight=2,
    )
    add(
        "hint: body before header",
        chat(expected_length="long"),
        by_default("Jl2"),
        in_flight=2,
        headers=[["x-sndr-expected-length", "short"]],
    )
    add(
        "hint: extra_body before header",
        chat(extra_body={"expected_length": "long"}),
        by_default("Jl2"),
        in_flight=2,
        headers=[["x-sndr-expected-length", "short"]],
    )
    add(
        "hint: an invalid body value gives way to extra_body",
        chat(expected_length="tiny", extra_body={"expected_length": "short"}),
        by_rule("Js2"),
        in_flight=2,
    )
    add(
        "hint: invalid values give way to the header",
        chat(expected_length=1, extra_body={"expected_length": None}),
        by_rule("Js2"),
        in_flight=2,
        headers=[["x-sndr-expected-length", "short"]],
    )
    for name, value in (
        ("upper case", "Short"),
        ("a space", " short"),
        ("a boolean", True),
        ("a number", 1),
        ("an array", ["short"]),
        ("empty", ""),
        ("null", None),
    ):
        add(
            f"hint: expected_length {name} is invalid",
            chat(expected_length=value, max_tokens=300),
            by_default("Jm2"),
            in_flight=2,
        )
    add(
        "hint: header names in any case",
        chat(),
        by_rule("Js2"),
        in_flight=2,
        headers=[["X-SNDR-EXPECTED-LENGTH", "short"]],
    )
    add(
        "hint: header values are exact",
        chat(),
        by_default("Jl2"),
        in_flight=2,
        headers=[["X-Sndr-Expected-Length", "SHORT"]],
    )
    add(
        "hint: the first valid of two headers",
        chat(),
        by_rule("Js2"),
        in_flight=2,
        headers=[["x-sndr-expected-length", "none"], ["x-sndr-expected-length", "short"]],
    )
    add(
        "hint: other headers are not read",
        chat(),
        by_default("Jl2"),
        in_flight=2,
        headers=[["expected-length", "short"], ["x-expected-length", "short"], ["x-sndr-expected_length", "short"]],
    )
    add("hint: extra_body that is no object", chat(extra_body="short"), by_default("Jl2"), in_flight=2)
    add("hint: category in the body", body(category="code"), by_default("Cl1"))
    add("hint: category in extra_body", body(extra_body={"category": "code"}), by_default("Cl1"))
    add("hint: category in a header", body(), by_default("Cl1"), headers=[["X-Sndr-Category", "code"]])
    add("hint: category in upper case is invalid", body(category="Code"), by_default("Fl1"))
    add("hint: another category is invalid", body(category="chat"), by_default("Fl1"))
    add(
        "hint: an invalid category gives way", body(category="chat", extra_body={"category": "code"}), by_default("Cl1")
    )
    add("hint: category does not beat structured", chat(category="code", max_tokens=5), by_rule("Js2"), in_flight=2)
    add(
        "hint: category does not beat tools",
        body(tools=[TOOL], category="code", max_tokens=5),
        by_rule("Ts2", T),
        in_flight=2,
    )
    add(
        "hint: both from different places",
        body(category="code", extra_body={"expected_length": "medium"}),
        by_default("Cm1"),
    )
    add(
        "hint: both from headers",
        body(),
        by_default("Cs1"),
        headers=[["X-Sndr-Expected-Length", "short"], ["X-Sndr-Category", "code"]],
    )

    # Concurrency.
    for in_flight, mode in ((None, "1"), (0, "1"), (1, "1"), (2, "2"), (3, "2")):
        got = by_rule("Js2") if mode == "2" else by_default("Js1", S26)
        add(f"mode: {in_flight} in flight", chat(max_tokens=5), got, in_flight=in_flight)

    # Family.
    def named(model: Any) -> dict[str, Any]:
        return {"model": model, "max_tokens": 5}

    add("family: by served_model_name", named("gemma-4-26b-a4b"), by_default("Fs1"))
    add("family: by model", named("gemma-4-26b-a4b-it-awq"), by_default("Fs1"))
    add("family: by preset_key", named(M26), by_default("Fs1"))
    add(
        "family: the preset key does not pin the preset",
        {"model": D26, "response_format": SCHEMA, "max_tokens": 5},
        by_rule("Js2"),
        in_flight=2,
    )
    for name, model in (
        ("unknown name", "gpt-x"),
        ("upper case", "Gemma-4-26b-a4b"),
        ("a prefix", "gemma-4-26b"),
        ("a space", "gemma-4-26b-a4b "),
        ("empty", ""),
        ("null", None),
        ("a number", 26),
        ("an array", ["gemma-4-26b-a4b"]),
        ("an object", {}),
        ("the family label", G26),
        ("an undeclared family by served name", "diffusiongemma"),
        ("an undeclared family by preset", "prod-diffusiongemma-tp2"),
    ):
        add(f"family: {name} is unknown", named(model), natural("Fs1"))
    add("family: no model is unknown", {"max_tokens": 5}, natural("Fs1"))
    add("family: 31B default", named("gemma-4-31b"), expect("Fs1", G31, D31, "family_default"))
    add("family: qwen 27B is single-preset", named("qwen3.6-27b"), natural("Fs1", Q27))
    add(
        "family: qwen 35B is single-preset under concurrency",
        {"model": "qwen3.6-35b-a3b", "tools": [TOOL], "max_tokens": 5},
        natural("Ts2", Q35),
        in_flight=9,
    )
    add(
        "family: given by the caller",
        {"model": "alias", "response_format": SCHEMA, "max_tokens": 5},
        by_rule("Js2"),
        in_flight=2,
        family=G26,
    )
    add(
        "family: given by the caller wins over model",
        {"model": "gemma-4-31b", "max_tokens": 5},
        by_default("Fs1"),
        family=G26,
    )
    add("family: given, but not in the table", named(M), natural("Fs1", "other_family"), family="other_family")
    add("family: given as unknown", named(M), natural("Fs1"), family="unknown")

    # Gaps.
    add("gap: 26B single-stream short tool call", body(tools=[TOOL], max_tokens=5), by_default("Ts1", S26))
    add("gap: 26B single-stream long tool call", body(tools=[TOOL]), by_default("Tl1", T))
    add("gap: 26B single-stream medium structured is in none", chat(max_tokens=300), by_default("Jm1"))
    add("gap: beside a matching rule", body(tools=[TOOL], max_tokens=5), by_rule("Ts2", T), in_flight=2)

    def on31(code: str, name: str | None) -> dict[str, Any]:
        return expect(code, G31, D31, "family_default", name)

    b31 = {"model": "gemma-4-31b", "max_tokens": 5}
    add("gap: 31B single-stream structured", {**b31, "response_format": SCHEMA}, on31("Js1", S31))
    add("gap: 31B single-stream tool call: the first in table order", {**b31, "tools": [TOOL]}, on31("Ts1", S31))
    add("gap: 31B multi-conc structured", {**b31, "response_format": SCHEMA}, on31("Js2", MS31), in_flight=2)
    add("gap: 31B multi-conc tool call", {**b31, "tools": [TOOL]}, on31("Ts2", MS31), in_flight=2)
    add("gap: 31B multi-conc chat", b31, on31("Fs2", M31), in_flight=2)
    add("gap: 31B multi-conc code", {**b31, "category": "code"}, on31("Cs2", M31), in_flight=2)
    add("gap: 31B single-stream chat is in none", b31, on31("Fs1", None), in_flight=1)

    # Responses.
    def responses(name: str, request: Any, expected: dict[str, Any], **given: Any) -> None:
        add(f"responses: {name}", {"model": M, "input": "hi", **request}, expected, dialect="responses", **given)

    fmt: Any = {"format": {"type": "json_schema", "name": "a", "schema": {}}}
    responses("structured", {"text": fmt, "max_output_tokens": 256}, by_rule("Js2"), in_flight=2)
    responses(
        "json_object",
        {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 257},
        by_default("Jm2"),
        in_flight=2,
    )
    responses("tools", {"tools": [{"type": "web_search"}], "max_output_tokens": 5}, by_rule("Ts2", T), in_flight=2)
    responses("plain", {"max_output_tokens": 513}, by_default("Fl1"))
    responses("no budget", {"text": fmt}, by_default("Jl2"), in_flight=2)
    responses("max_tokens is not its member", {"text": fmt, "max_tokens": 5}, by_default("Jl2"), in_flight=2)
    responses(
        "max_completion_tokens is not its member",
        {"text": fmt, "max_completion_tokens": 5},
        by_default("Jl2"),
        in_flight=2,
    )
    responses(
        "response_format is not its member",
        {"response_format": SCHEMA, "max_output_tokens": 5},
        by_default("Fs2"),
        in_flight=2,
    )
    responses("an invalid budget is none", {"text": fmt, "max_output_tokens": True}, by_default("Jl2"), in_flight=2)
    responses("summarization", {"max_output_tokens": 10}, by_default("Ss1"), input_tokens=21)
    responses(
        "summarization with format text",
        {"max_output_tokens": 10, "text": {"format": {"type": "text"}}},
        by_default("Ss1"),
        input_tokens=21,
    )
    responses(
        "summarization with text but no format",
        {"max_output_tokens": 10, "text": {"verbosity": "low"}},
        by_default("Ss1"),
        input_tokens=21,
    )
    responses(
        "text that is no object has no format",
        {"max_output_tokens": 10, "text": "json_object"},
        by_default("Ss1"),
        input_tokens=21,
    )
    responses("hints", {"expected_length": "short", "text": fmt}, by_rule("Js2"), in_flight=2)
    responses("hints in extra_body", {"extra_body": {"category": "code"}}, by_default("Cl1"))
    responses(
        "hints in headers",
        {},
        by_default("Cs1"),
        headers=[["x-sndr-category", "code"], ["x-sndr-expected-length", "short"]],
    )

    # Messages.
    def messages(name: str, request: Any, expected: dict[str, Any], **given: Any) -> None:
        add(f"messages: {name}", body(**request), expected, dialect="messages", **given)

    out: Any = {"format": {"type": "json_schema", "schema": {}}}
    messages("structured", {"output_config": out, "max_tokens": 256}, by_rule("Js2"), in_flight=2)
    messages(
        "tools",
        {"tools": [{"name": "lookup", "input_schema": {}}], "max_tokens": 5},
        by_rule("Ts2", T),
        in_flight=2,
    )
    messages("plain", {"max_tokens": 1024}, by_default("Fl1"))
    messages(
        "effort is no format", {"output_config": {"effort": "low"}, "max_tokens": 5}, by_default("Fs2"), in_flight=2
    )
    messages(
        "response_format is not its member",
        {"response_format": SCHEMA, "max_tokens": 5},
        by_default("Fs2"),
        in_flight=2,
    )
    messages(
        "max_completion_tokens is not its member",
        {"max_tokens": 5, "max_completion_tokens": 9999, "output_config": out},
        by_rule("Js2"),
        in_flight=2,
    )
    messages("summarization", {"max_tokens": 10}, by_default("Ss1"), input_tokens=21)
    messages("hints", {"max_tokens": 10, "category": "code", "expected_length": "long"}, by_default("Cl1"))
    messages(
        "another format is not structured",
        {"max_tokens": 10, "output_config": {"format": {"type": "grammar"}}},
        by_default("Fs1"),
        input_tokens=21,
    )

    # Bodies that are none.
    for name, value in (("null", None), ("an array", []), ("a string", "hi"), ("a number", 5), ("true", True)):
        add(f"body: {name} is free chat of an unknown family", value, natural("Fl1"))
    add("body: an empty object", {}, natural("Fl1"))
    add(
        "body: no object, hint of length in a header",
        None,
        natural("Fs1"),
        headers=[["x-sndr-expected-length", "short"]],
    )
    add(
        "body: no object, category in a header is not used", None, natural("Fl1"), headers=[["x-sndr-category", "code"]]
    )
    add("body: no object, family given", [], expect("Fl2", G26, D26, "family_default"), in_flight=2, family=G26)
    return v


# --- generated ---------------------------------------------------------------------------------------------------


def request_for(workload: str, length: str, model: Any) -> tuple[dict[str, Any], int | None]:
    """A request of this class and length (and the input tokens that make it one)."""
    made: dict[str, Any] = {"model": model, "max_tokens": {"short": 100, "medium": 400, "long": 900}[length]}
    if workload == "tool_call":
        made["tools"] = [TOOL]
    elif workload == "structured_json":
        made["response_format"] = {"type": "json_object"}
    elif workload == "code_gen":
        made["category"] = "code"
    return made, 5000 if workload == "summarization" else None


CLASSES, LENGTHS, MODES = list(_WORKLOADS.values()), list(_LENGTHS.values()), list(_MODES.values())


def grid(table_name: str, of: Any, model: Any, cells: Any = None) -> list[Any]:
    made = []
    for workload, length, mode in cells or itertools.product(CLASSES, LENGTHS, MODES):
        request, input_tokens = request_for(workload, length, model)
        in_flight = 2 if mode == "multi_conc" else 1
        expected = naive.decide(of, request, in_flight=in_flight, input_tokens=input_tokens)
        name = f"{table_name}: {json.dumps(model)} {workload} {length} {mode}"
        made.append(vector(name, request, expected, table_name, in_flight=in_flight, input_tokens=input_tokens))
    return made


def matrix() -> list[Any]:
    models = ("gemma-4-26b-a4b", "gemma-4-31b", "qwen3.6-27b", "no-such-model")
    return [one for model in models for one in grid("reference", REFERENCE, model)]


K1, K4, K8 = row("k1", default=True), row("k4", k=4), row("k8", k=8)
PRESETS = [K1, K4, K8]
SHORT_MULTI = {"expected_output_length": ["short"], "concurrency_mode": ["multi_conc"]}
PROBES = [
    ("tool_call", "short", "multi_conc"),
    ("tool_call", "short", "single_stream"),
    ("structured_json", "short", "multi_conc"),
    ("structured_json", "long", "single_stream"),
    ("summarization", "medium", "multi_conc"),
    ("code_gen", "long", "multi_conc"),
    ("free_chat", "short", "single_stream"),
    ("free_chat", "medium", "multi_conc"),
]


def rule_tables() -> dict[str, dict[str, Any]]:
    """One small table for each thing that rules, defaults, gaps and rows can mean."""

    def rules(*made: Any) -> dict[str, Any]:
        return table(PRESETS, list(made), [])

    def gaps(*made: Any) -> dict[str, Any]:
        return table(PRESETS, [rule("k4", SHORT_MULTI, rule_id="r")], list(made))

    second_default = row("k1b", default=True)
    return {
        "no rules": rules(),
        "every axis absent": rules(rule("k4", {}, rule_id="all")),
        "workload axis alone": rules(rule("k4", {"workload_class": ["tool_call"]}, rule_id="r")),
        "length axis alone": rules(rule("k4", {"expected_output_length": ["short"]}, rule_id="r")),
        "mode axis alone": rules(rule("k4", {"concurrency_mode": ["multi_conc"]}, rule_id="r")),
        "AND across axes": rules(rule("k4", {"workload_class": ["tool_call"], **SHORT_MULTI}, rule_id="r")),
        "OR inside an axis": rules(rule("k4", {"workload_class": ["tool_call", "code_gen", "free_chat"]}, rule_id="r")),
        "empty workload list": rules(rule("k4", {"workload_class": []}, rule_id="r")),
        "empty mode list beside others": rules(rule("k4", {**SHORT_MULTI, "concurrency_mode": []}, rule_id="r")),
        "first match wins": rules(rule("k4", SHORT_MULTI, rule_id="a"), rule("k8", {}, rule_id="b")),
        "order reversed": rules(rule("k8", {}, rule_id="b"), rule("k4", SHORT_MULTI, rule_id="a")),
        "same cell twice": rules(rule("k4", SHORT_MULTI, rule_id="a"), rule("k8", SHORT_MULTI, rule_id="b")),
        "overlap": rules(
            rule("k4", {"workload_class": ["tool_call"]}, rule_id="a"),
            rule("k8", {"expected_output_length": ["short"]}, rule_id="b"),
        ),
        "rule to the default": rules(rule("k1", SHORT_MULTI, rule_id="r")),
        "rule without an id": rules(rule("k8", {"workload_class": []}), rule("k4", SHORT_MULTI)),
        "rule with an empty id": rules(rule("k4", SHORT_MULTI, rule_id="")),
        "rule with an id that is no string": rules(rule("k4", SHORT_MULTI, id=7)),
        "inferred rule": rules(rule("k4", SHORT_MULTI, rule_id="r", evidence_tag="inferred")),
        "rule without a tag": rules(rule("k4", SHORT_MULTI, rule_id="r", evidence_tag=None)),
        "rule of another family": rules(rule("k4", {}, family="other", rule_id="r")),
        "rule for unknown": rules(rule("k4", {}, family="unknown", rule_id="r")),
        "unknown axis drops the rule": rules(
            rule("k4", {**SHORT_MULTI, "tenant": ["a"]}, rule_id="a"),
            rule("k8", {"workload_class": ["tool_call"]}, rule_id="b"),
        ),
        "unknown axis alone does not widen": rules(rule("k4", {"priority": ["high"]}, rule_id="r")),
        "unknown axis with an empty list": rules(rule("k4", {"priority": []}, rule_id="r")),
        "target that is no preset": rules(rule("gone", SHORT_MULTI, rule_id="a"), rule("k8", SHORT_MULTI, rule_id="b")),
        "axis that is null": rules(rule("k4", {"workload_class": None}, rule_id="r")),
        "axis that is a string": rules(rule("k4", {"workload_class": "tool_call"}, rule_id="r")),
        "axis with a number in it": rules(rule("k4", {"workload_class": ["tool_call", 1]}, rule_id="r")),
        "when that is missing": rules({"model_family": "fam", "preset_key": "k4", "evidence": "e", "id": "r"}),
        "when that is an array": rules(rule("k4", [], rule_id="r")),
        "rule that is no object": rules("k4", None, rule("k8", SHORT_MULTI, rule_id="r")),
        "rule whose target is a number": rules(rule(4, {}, rule_id="r")),  # type: ignore[arg-type]
        "value that is no class": rules(rule("k4", {"workload_class": ["vision", "tool_call"]}, rule_id="r")),
        "unknown members are ignored": rules(rule("k4", SHORT_MULTI, rule_id="r", note="x", weight=5)),
        "no default": table([row("k1"), K4], [rule("k4", SHORT_MULTI, rule_id="r")], []),
        "two defaults: the first": table([second_default, K1, K4], [], []),
        "default that is not a boolean": table([row("k1", default=1)], [], []),  # type: ignore[arg-type]
        "default of unknown": table([row("k1", family="unknown", default=True)], [], []),
        "default with K above 1": table([row("k4", k=4, default=True)], [], []),
        "row that is no object": table([None, "k1", K1, K4], [rule("k4", SHORT_MULTI, rule_id="r")], []),
        "row without a family": table([K1, {"preset_key": "k4"}], [rule("k4", SHORT_MULTI, rule_id="r")], []),
        "gap alone": gaps(gap("free", {"workload_class": ["free_chat"]})),
        "gap beside the rule": gaps(gap("short multi", SHORT_MULTI)),
        "gap order": gaps(gap("tools", {"workload_class": ["tool_call"]}), gap("all", {})),
        "gap order reversed": gaps(gap("all", {}), gap("tools", {"workload_class": ["tool_call"]})),
        "gap of another family": gaps(gap("all", {}, family="other")),
        "gap for unknown": gaps(gap("all", {}, family="unknown")),
        "gap without a cell": gaps(
            {"model_family": "fam", "missing_cell": "words only", "fallback_preset": "k1", "next_phase": "x"},
            gap("free", {"workload_class": ["free_chat"]}),
        ),
        "gap with an unknown axis": gaps(gap("odd", {"tenant": ["a"]}), gap("all", {})),
        "gap with an empty list": gaps(gap("nothing", {"workload_class": []}), gap("all", {})),
        "gap with a null cell": gaps(gap("null", None), gap("all", {})),
        "gap that is no object": gaps(None, "x", gap("all", {})),
        "gap whose fallback is gone": gaps(gap("all", {}, fallback="gone")),
        "gaps that are no array": {**gaps(), "coverage_gaps": {"a": 1}},
    }


def family_tables() -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """Look-ups of a name in rows that overlap; with the models to ask for."""
    a, b = {"family": "fam_a"}, {"family": "fam_b"}
    return {
        "served names that disagree": (
            table([row("a", "ma", "same", **a, default=True), row("b", "mb", "same", **b)], [], []),
            ["same", "ma", "mb", "a", "b"],
        ),
        "served name disagrees with unknown": (
            table([row("a", "ma", "same", **a, default=True), row("b", "mb", "same", family="unknown")], [], []),
            ["same", "ma", "mb"],
        ),
        "models that disagree": (
            table([row("a", "same", "sa", **a, default=True), row("b", "same", "sb", **b)], [], []),
            ["same", "sa", "sb"],
        ),
        "served name before model": (
            table([row("a", "x", "sa", **a, default=True), row("b", "mb", "x", **b, default=True)], [], []),
            ["x"],
        ),
        "model before preset key": (
            table([row("x", "ma", "sa", **a, default=True), row("b", "x", "sb", **b, default=True)], [], []),
            ["x"],
        ),
        "unknown at the first stop does not fall through": (
            table([row("a", "ma", "x", family="unknown"), row("x", "mb", "sb", **b, default=True)], [], []),
            ["x"],
        ),
        "keys that are there twice": (
            table([row("x", "ma", "sa", **a, default=True), row("x", "mb", "sb", **b, default=True)], [], []),
            ["x", "sa", "sb"],
        ),
        "served name that is null": (
            table([row("a", "ma", None, **a, default=True)], [], []),
            [None, "null", "ma", "a"],
        ),
        "served name that is a number": (
            table([{**row("a", "ma", None, **a, default=True), "served_model_name": 7}], [], []),
            [7, "7", "ma"],
        ),
    }


def loading_cases() -> dict[str, dict[str, Any]]:
    """Tables as text: what makes one degraded. The reference request is decided with each of them."""
    good = rule_tables()["first match wins"]
    text = json.dumps(good)

    def changed(**members: Any) -> str:
        return json.dumps({**good, **members})

    def without(member: str) -> str:
        return json.dumps({key: value for key, value in good.items() if key != member})

    texts = {
        "the table itself": text,
        "unknown members at the top": changed(extra={"a": 1}, signature="x"),
        "version 1.0 is the number 1": text.replace('"schema_version": 1,', '"schema_version": 1.0,'),
        "version 2": changed(schema_version=2),
        "version 0": changed(schema_version=0),
        "version -1": changed(schema_version=-1),
        "version 1.5": changed(schema_version=1.5),
        "version true": changed(schema_version=True),
        "version false": changed(schema_version=False),
        "version as a string": changed(schema_version="1"),
        "version null": changed(schema_version=None),
        "version as an array": changed(schema_version=[1]),
        "version missing": without("schema_version"),
        "presets missing": without("presets"),
        "presets null": changed(presets=None),
        "presets an object": changed(presets={}),
        "presets empty": changed(presets=[]),
        "rules missing": without("routing_rules"),
        "rules an object": changed(routing_rules={}),
        "gaps missing": without("coverage_gaps"),
        "detection missing": without("workload_class_detection"),
        "fallback missing": without("fallback"),
        "an array": "[]",
        "null": "null",
        "a string": '"table"',
        "empty text": "",
        "white space": " \n",
        "cut short": text[: len(text) // 2],
        "text after the table": text + " {}",
        "a member twice": text.replace('"schema_version": 1,', '"schema_version": 1, "schema_version": 1,'),
        "a byte order mark": "\ufeff" + text,
        "NaN": text.replace('"vllm_pin": null', '"vllm_pin": NaN'),
        "a comment": "// table\n" + text,
        "a trailing comma": text[:-1] + ",}",
        "single quotes": "{'schema_version': 1}",
    }
    cases = {}
    request, _ = request_for("tool_call", "short", "s")
    for name, one in texts.items():
        try:
            parsed = None if one.startswith("\ufeff") else naive.read_text(one)
        except naive.UnreadableError:
            parsed = None
        degraded = naive.is_degraded(parsed)
        cases[name] = {
            "name": name,
            "text": one,
            "request": request,
            "in_flight": 2,
            "degraded": degraded,
            "dropped_rules": [] if degraded else naive.dropped_rules(parsed),
            "expect": naive.decide(parsed, request, in_flight=2),
        }
    return cases


def documents() -> dict[str, Any]:
    """File name -> its JSON."""
    rules = rule_tables()
    families = family_tables()
    return {
        "decisions.json": {"format": 1, "tables": {"reference": REFERENCE}, "vectors": hand()},
        "matrix.json": {"format": 1, "tables": {"reference": REFERENCE}, "vectors": matrix()},
        "rules.json": {
            "format": 1,
            "tables": rules,
            "dropped_rules": {name: naive.dropped_rules(one) for name, one in rules.items()},
            "vectors": [v for name, one in rules.items() for v in grid(name, one, "s", PROBES)],
        },
        "families.json": {
            "format": 1,
            "tables": {name: one for name, (one, _) in families.items()},
            "vectors": [
                v
                for name, (one, models) in families.items()
                for model in models
                for v in grid(name, one, model, [("free_chat", "short", "single_stream")])
            ],
        },
        "loading.json": {"format": 1, "cases": list(loading_cases().values())},
    }


def encode(document: Any) -> str:
    """One line for each table, vector and case: small, and a change shows as changed lines."""
    parts = []
    for member, value in document.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(one) for one in value)
            parts.append(f"{json.dumps(member)}: [\n{lines}\n]")
        elif isinstance(value, dict):
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in value.items())
            parts.append(f"{json.dumps(member)}: {{\n{lines}\n}}")
        else:
            parts.append(f"{json.dumps(member)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    os.makedirs(FOLDER, exist_ok=True)
    for name, document in documents().items():
        with open(os.path.join(FOLDER, name), "w", encoding="ascii") as file:
            file.write(encode(document))


if __name__ == "__main__":
    main()
