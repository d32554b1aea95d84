"""``sndr preset``: what each verb prints, in both forms, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sndr.cli.main import console_root, module_root, run
from tests.support.catalog import Doc, Raw, full, holder_of, write

Capture = pytest.CaptureFixture[str]
CARD_KEYS = {
    "title", "summary", "status", "audience", "maturity", "mode", "engine", "workload_allow", "workload_deny",
    "concurrency", "K", "context", "hardware_fit", "routing_family", "default_for_family", "fallback_preset",
    "primary_metric", "primary_metric_is_placeholder", "evidence_refs", "evidence_visibility", "tradeoffs", "limits",
    "notes", "card_version", "card_updated",
}  # fmt: skip


def _run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = run(console_root(), ["preset", *arguments], "sndr")
    printed = capsys.readouterr()
    assert "internal_error" not in printed.err
    return code, printed.out, printed.err


def _json(capsys: Capture, *arguments: str) -> Any:
    code, out, _ = _run(capsys, *arguments, "--json")
    assert code == 0
    assert out.endswith("}\n")
    assert out.isascii()
    return json.loads(out)


def _spoil(root: Path, file: str, path: str, value: Any) -> dict[str, Doc]:
    docs = full()
    holder, key = holder_of(docs[file], path)
    holder[key] = value
    write(root, docs)
    return docs


# -------------------- list


def test_list_json(capsys: Capture) -> None:
    answer = _json(capsys, "list")
    assert list(answer) == ["filters", "matched", "total", "presets"]
    assert answer["filters"] == {"family": None, "workload": None, "hardware": None, "mode": None, "status": None}
    assert (answer["matched"], answer["total"], len(answer["presets"])) == (15, 15, 15)
    assert list(answer["presets"][0]) == ["id", "model", "hardware", "profile", "model_family", "card"]
    assert all(set(row["card"]) == CARD_KEYS for row in answer["presets"])
    assert [row["id"] for row in answer["presets"]] == sorted(row["id"] for row in answer["presets"])


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--family", "gemma4_moe_26b_a4b"], ["prod-gemma4-26b-default", "prod-gemma4-26b-multiconc"]),
        (["--family", "unknown"], ["example-3090-dense-cpu-offload", "prod-diffusiongemma-tp2"]),
        (["--hardware", "single-3090-24gbvram"], ["example-3090-dense-cpu-offload", "example-3090-tier-aware"]),
        (["--mode", "structured_throughput"], ["prod-gemma4-26b-multiconc"]),
        (["--status", "qa"], ["qa-qwen3.6-27b-tested", "qa-qwen3.6-27b-tq-1x"]),
        (["--workload", "custom:tier_aware_demo"], ["example-2x-tier-aware", "example-3090-tier-aware"]),
        (["--workload", "tier_aware_demo", "--mode", "long_context"], ["example-3090-tier-aware"]),
        (["--workload", "long_context_qa"], ["llamacpp-qwen3.6-27b-q4km-1x", "prod-diffusiongemma-tp2"]),
        (["--workload", "custom:nobody-asked"], []),
        (["--workload", "tool_call.long"], []),
        (["--workload", "tool_call.long", "--archive"], ["prod-gemma4-26b-mtp-k4"]),
    ],
)
def test_list_filters(filters: list[str], expected: list[str], capsys: Capture) -> None:
    answer = _json(capsys, "list", *filters)
    assert [row["id"] for row in answer["presets"]] == expected
    assert answer["matched"] == len(expected)
    code, out, _ = _run(capsys, "list", *filters)
    assert code == 0
    assert out.splitlines()[-1] == f"matched {len(expected)} / {26 if '--archive' in filters else 15}"
    assert len(out.splitlines()) == (len(expected) + 2 if expected else 1)


def test_list_is_aligned(capsys: Capture) -> None:
    _, out, _ = _run(capsys, "list")
    head, *rows = out.splitlines()[:-1]
    column = head.index("TITLE")
    assert head.split() == ["PRESET", "FAMILY", "STATUS", "MODE", "METRIC", "TITLE"]
    assert all(row[column - 1] == " " and row[column] != " " for row in rows)


@pytest.mark.parametrize(
    ("filters", "code", "said"),
    [
        (["--family", "gemma4_moe_26b"], 1, "there is no family 'gemma4_moe_26b' (did you mean gemma4_moe_26b_a4b"),
        (["--hardware", "h100"], 1, "there is no hardware 'h100' (allowed: a5000-1x-24gbvram"),
        (["--workload", "tool_cal.short"], 1, "there is no workload 'tool_cal.short' (did you mean tool_call.short"),
        (["--workload", "custom:"], 1, "there is no workload 'custom:'"),
        (["--status", "prod"], 2, "'prod' is not one of 'production'"),
        (["--mode", "fast"], 2, "'fast' is not one of 'latency'"),
        (["extra"], 2, "unexpected extra argument"),
    ],
)
def test_list_refuses(filters: list[str], code: int, said: str, capsys: Capture) -> None:
    got, out, err = _run(capsys, "list", *filters)
    assert (got, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


# -------------------- show


def test_show_json(capsys: Capture) -> None:
    answer = _json(capsys, "show", "prod-gemma4-26b-multiconc")
    assert list(answer) == ["id", "model", "hardware", "profile", "card"]
    assert set(answer["card"]) == CARD_KEYS
    assert answer["profile"] == "gemma4-26b-multiconc"
    assert answer["card"]["primary_metric"]["value"] == 235.9
    assert answer["card"]["concurrency"] == {"min": 1, "max": 8, "canonical": 8}


def test_show_text(capsys: Capture) -> None:
    code, out, _ = _run(capsys, "show", "prod-gemma4-26b-mtp-k4")
    assert code == 0
    assert re.match(r"id +prod-gemma4-26b-mtp-k4  \(archived\)\n", out)
    assert re.search(r"^fallback_preset +prod-gemma4-26b-default$", out, re.MULTILINE)
    assert "limits\n  - Free chat.\n" in out


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("card.concurrency.max", "8", 8),
        ("concurrency.max", "8", 8),
        ("profile", "gemma4-26b-multiconc", "gemma4-26b-multiconc"),
        ("card.default_for_family", "false", False),
        ("card.hardware_fit.requires_min_cuda_capability", "8, 6", [8, 6]),
        ("card.hardware_fit.requires_min_cuda_capability.1", "6", 6),
        ("card.evidence_refs.0.type", "bench", "bench"),
        ("card.concurrency", "min=1, max=8, canonical=8", {"min": 1, "max": 8, "canonical": 8}),
    ],
)
def test_show_one_field(path: str, text: str, value: Any, capsys: Capture) -> None:
    assert _run(capsys, "show", "prod-gemma4-26b-multiconc", "--field", path)[:2] == (0, text + "\n")
    code, out, _ = _run(capsys, "show", "prod-gemma4-26b-multiconc", "--field", path, "--json")
    assert (code, json.loads(out)) == (0, value)


def test_show_an_absent_field_as_null(capsys: Capture) -> None:
    assert _run(capsys, "show", "prod-gemma4-26b-default", "--field", "card.fallback_preset")[:2] == (0, "null\n")


@pytest.mark.parametrize("verb", ["list", "show x", "explain x", "recommend --workload code_gen", "validate"])
def test_an_empty_catalog_path_does_not_pass_for_none(verb: str, capsys: Capture) -> None:
    code, out, err = _run(capsys, *verb.split(), "--presets", "")
    assert (code, out) == (2, "")
    assert "'--presets': empty; leave the option away or give it a value" in err


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("card.concurency", "did you mean concurrency?"),
        ("crad", "did you mean card?"),
        ("card.concurrency.max.x", "there is no field"),
        ("card.evidence_refs.9", "there is no field"),
        ("card.evidence_refs." + "9" * 5000, "there is no field"),
        ("card.K.x", "there is no field 'card.K.x' (nothing is below card.K)"),
        ("", "there is no field"),
    ],
)
def test_show_refuses_a_field(path: str, said: str, capsys: Capture) -> None:
    code, out, err = _run(capsys, "show", "prod-gemma4-26b-multiconc", "--field", path)
    assert (code, out) == (1, "")
    assert said in err


@pytest.mark.parametrize("verb", ["show", "explain"])
def test_an_unknown_id_gives_near_names(verb: str, capsys: Capture) -> None:
    code, out, err = _run(capsys, verb, "prod-gemma4-26b-multicon")
    assert (code, out) == (1, "")
    assert (
        "preset_unknown: there is no preset 'prod-gemma4-26b-multicon' (did you mean prod-gemma4-26b-multiconc" in err
    )
    assert len(err.splitlines()) == 1


# -------------------- explain


def test_explain_json(capsys: Capture) -> None:
    answer = _json(capsys, "explain", "prod-gemma4-26b-multiconc")
    assert list(answer) == ["id", "card", "composed", "sources", "fallback_diff", "rules", "gaps", "evidence"]
    assert set(answer["composed"]) <= set(answer["sources"])
    assert answer["composed"]["spec_decode_K"] == 4
    source = answer["sources"]["max_num_seqs"]
    assert (source["layer"], source["stated"]) == ("profile", True)
    file, line = Path(source["file"]), source["line"]
    assert file.read_text().splitlines()[line - 1].strip() == "max_num_seqs: 8"
    assert answer["fallback_diff"]["spec_decode_K"] == [4, 1]
    assert [rule["id"] for rule in answer["rules"]] == ["gemma4-26b-multiconc-structured-short"]
    assert answer["gaps"] == []
    (record,) = answer["evidence"]
    assert (record["phase"], record["gain_percent"]) == ("7.G4.26B-A4B.B4", 12.8)
    assert [arm["value"] for arm in record["comparison"]["arms"]] == [235.9, 209.1]


def test_explain_text(capsys: Capture) -> None:
    code, out, _ = _run(capsys, "explain", "prod-gemma4-26b-multiconc")
    assert code == 0
    assert re.search(r"^  max_num_seqs +8 +profile  \S+/gemma4-26b-multiconc.yaml:10$", out, re.MULTILINE)
    assert re.search(r"^  max_num_seqs +8 +2$", out, re.MULTILINE)
    assert "Against its fallback, prod-gemma4-26b-default" in out
    assert "Routing rules\n  - gemma4-26b-multiconc-structured-short: " in out
    assert "K=4 235.9 vs K=1 209.1" in out


def test_explain_names_gaps_and_archived_presets(capsys: Capture) -> None:
    answer = _json(capsys, "explain", "prod-gemma4-26b-mtp-k4")
    assert [(gap["missing_cell"], gap["named_as"]) for gap in answer["gaps"]] == [
        ("single-stream-structured-or-tool-short", "was")
    ]
    assert len(_json(capsys, "explain", "prod-gemma4-31b-tq-default")["gaps"]) == 4
    code, out, _ = _run(capsys, "explain", "prod-gemma4-26b-mtp-k4")
    assert code == 0
    assert "(archived)" in out.splitlines()[0]


def test_explain_without_a_fallback_and_with_itself(capsys: Capture, tmp_path: Path) -> None:
    assert _json(capsys, "explain", "prod-gemma4-26b-default")["fallback_diff"] == {}
    _, out, _ = _run(capsys, "explain", "prod-qwen3.6-35b-balanced")
    assert "Against its fallback, prod-qwen3.6-35b-balanced\n  nothing differs\n" in out
    _, out, _ = _run(capsys, "explain", "quick", "--presets", str(write(tmp_path, full())))
    assert re.search(r"^  system_env.FROM +profile +profile  ", out, re.MULTILINE)
    assert re.search(r"^  system_env.HARDWARE +1 +hardware  ", out, re.MULTILINE)


def test_explain_refuses_what_does_not_compose(capsys: Capture, tmp_path: Path) -> None:
    _spoil(tmp_path, "models/m.yaml", "requires.min_gpu_count", 9)
    code, out, err = _run(capsys, "explain", "quick", "--presets", str(tmp_path))
    assert (code, out) == (1, "")
    assert err.startswith(f"{tmp_path}/presets/quick.yaml:2:11: hardware: 'h' has 2 GPU, 'm' needs 9")


# -------------------- recommend


def test_recommend_puts_the_measured_rule_first(capsys: Capture) -> None:
    answer = _json(capsys, "recommend", "--workload", "tool_call.short", "--concurrency", "8")
    assert list(answer) == ["query", "results", "total_matches"]
    assert [list(row) for row in answer["results"]] == [["rank", "id", "why", "card"]] * 3
    assert [row["id"] for row in answer["results"]] == [
        "prod-gemma4-26b-multiconc",
        "prod-qwen3.6-35b-multiconc",
        "prod-qwen3.6-27b-tq-multiconc",
    ]
    assert "measured rule gemma4-26b-multiconc-structured-short" in answer["results"][0]["why"][0]
    assert "235.9" in answer["results"][0]["why"][0]
    assert answer["query"]["mode"] == "multi_conc"


def test_recommend_falls_back_to_status_default_and_metric(capsys: Capture) -> None:
    answer = _json(capsys, "recommend", "--workload", "tool_call.short", "--top", "4")
    assert [row["id"] for row in answer["results"]] == [
        "prod-gemma4-26b-default",
        "prod-gemma4-31b-tq-default",
        "prod-qwen3.6-35b-multiconc",
        "prod-qwen3.6-27b-tq-multiconc",
    ]
    assert [row["rank"] for row in answer["results"]] == [1, 2, 3, 4]
    assert answer["total_matches"] == 8
    assert "default of gemma4_moe_26b_a4b" in answer["results"][0]["why"]
    assert "no primary metric yet" in answer["results"][0]["why"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--workload", "free_chat", "--concurrency", "8"],
            ["prod-qwen3.6-35b-multiconc", "prod-qwen3.6-27b-tq-multiconc"],
        ),
        (
            ["--workload", "code_gen", "--model-family", "gemma4_dense_31b"],
            ["prod-gemma4-31b-tq-default", "prod-gemma4-31b-kvauto-chat"],
        ),
        (
            ["--workload", "free_chat", "--hardware", "a5000-1x-24gbvram-16cpu-128gbram"],
            ["llamacpp-qwen3.6-27b-q4km-1x"],
        ),
        (["--workload", "custom:regression_bench"], ["qa-qwen3.6-27b-tested", "qa-qwen3.6-27b-tq-1x"]),
        (["--workload", "custom:nobody"], []),
        (["--workload", "structured_json.long"], []),
        (
            ["--workload", "structured_json.short", "--concurrency", "3", "--model-family", "gemma4_moe_26b_a4b"],
            ["prod-gemma4-26b-multiconc"],
        ),
        (["--workload", "free_chat", "--model-family", "unknown"], ["prod-diffusiongemma-tp2"]),
    ],
)
def test_recommend_filters(arguments: list[str], expected: list[str], capsys: Capture) -> None:
    answer = _json(capsys, "recommend", *arguments)
    assert [row["id"] for row in answer["results"]] == expected
    code, out, _ = _run(capsys, "recommend", *arguments)
    assert code == 0
    assert ("no preset matches\n" in out) == (not expected)


def test_recommend_counts_before_top(capsys: Capture) -> None:
    answer = _json(capsys, "recommend", "--workload", "free_chat", "--top", "1")
    assert len(answer["results"]) == 1
    assert answer["total_matches"] > 1


def _request(tmp_path: Path, body: Any) -> str:
    path = tmp_path / "request.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return str(path)


def test_recommend_takes_a_request_whose_model_nobody_knows_to_every_family(capsys: Capture, tmp_path: Path) -> None:
    body = {"model": "nobody", "tools": [{}], "max_tokens": 100}
    answer = _json(capsys, "recommend", "--request", _request(tmp_path, body))
    assert answer["query"]["decision"]["model_family"] == "unknown"
    assert answer["query"]["model_family"] is None
    assert "prod-gemma4-26b-default" in [row["id"] for row in answer["results"]]


def test_recommend_reads_a_request_as_the_router_does(capsys: Capture, tmp_path: Path) -> None:
    body = {"model": "gemma-4-26b-a4b", "tools": [{"type": "function"}], "max_tokens": 100}
    request = _request(tmp_path, body)
    answer = _json(capsys, "recommend", "--request", request, "--concurrency", "3")
    decision = answer["query"]["decision"]
    assert (decision["preset_key"], decision["outcome"]) == ("prod-gemma4-26b-multiconc", "rule")
    assert [row["id"] for row in answer["results"]] == ["prod-gemma4-26b-multiconc"]
    _, out, _ = _run(capsys, "recommend", "--request", request, "--concurrency", "3")
    assert "the router sends this request to prod-gemma4-26b-multiconc (rule)" in out
    assert "coverage gap: tool-call-as-its-own-class" in out
    answer = _json(capsys, "recommend", "--request", request)
    assert answer["query"]["workload"] == "tool_call.short"
    assert answer["results"][0]["id"] == "prod-gemma4-26b-default"
    assert answer["results"][0]["why"][0] == "the router's choice for this request: the default of its family"


def test_recommend_for_a_long_request_and_for_no_family(capsys: Capture, tmp_path: Path) -> None:
    request = _request(tmp_path, {"model": "nobody", "response_format": {"type": "json_object"}, "max_tokens": 4000})
    answer = _json(capsys, "recommend", "--request", request)
    assert answer["query"]["workload"] == "structured_json.long"
    assert answer["query"]["decision"]["outcome"] == "natural"
    assert answer["results"] == []
    _, out, _ = _run(capsys, "recommend", "--request", request)
    assert "no preset: it goes where its model goes (natural)" in out


def test_recommend_a_body_that_is_no_object_warns(capsys: Capture, tmp_path: Path) -> None:
    code, _, err = _run(capsys, "recommend", "--request", _request(tmp_path, []))
    assert code == 0
    assert err.startswith("warning: ")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--workload", "tool_call"], 1, "there is no workload 'tool_call' (did you mean tool_call."),
        (["--workload", "free_chat", "--hardware", "h"], 1, "there is no hardware 'h'"),
        (["--workload", "free_chat", "--model-family", "gemma4"], 1, "there is no family 'gemma4'"),
        ([], 2, "give one of --workload and --request"),
        (["--workload", "free_chat", "--request", "x"], 2, "give one of --workload and --request"),
        (["--request", "x", "--expected-length", "short"], 2, "a request says its own"),
        (["--workload", "tool_call.short", "--expected-length", "long"], 2, "contradict each other"),
        (["--workload", "tool_call.long", "--expected-length", "short"], 2, "contradict each other"),
        (["--workload", "free_chat", "--top", "0"], 2, "--top"),
        (["--workload", "free_chat", "--concurrency", "0"], 2, "--concurrency"),
        (["--workload", "free_chat", "--expected-length", "tiny"], 2, "--expected-length"),
        (["--request", "/nonexistent.json"], 1, "/nonexistent.json: No such file"),
    ],
)
def test_recommend_refuses(arguments: list[str], code: int, said: str, capsys: Capture) -> None:
    got, out, err = _run(capsys, "recommend", *arguments)
    assert (got, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_recommend_ranks_within_one_metric_kind_and_by_direction(capsys: Capture, tmp_path: Path) -> None:
    docs = full()
    docs["routing/rules.yaml"]["rules"] = Raw("[]")
    metrics = [
        ("a", "TTFT_ms", 90),
        ("b", "TTFT_ms", 30),
        ("c", "agg_TPS", 10),
        ("d", "agg_TPS", 20),
        ("e", "agg_TPS", 0),
    ]
    for name, kind, value in metrics:
        docs[f"presets/{name}.yaml"] = doc = full()["presets/quick.yaml"]
        doc["card"]["primary_metric"].update(kind=kind, value=value)
        doc["card"]["workload_allow"] = ["summarization"]
    docs["presets/f.yaml"] = full()["presets/quick.yaml"]
    docs["presets/f.yaml"]["card"].update(workload_allow=["summarization"], status="example")
    answer = _json(
        capsys, "recommend", "--workload", "summarization", "--presets", str(write(tmp_path, docs)), "--top", "9"
    )
    assert [row["id"] for row in answer["results"]] == ["d", "c", "b", "a", "e", "f"]


def test_an_inferred_rule_is_named_and_ranks_by_status(capsys: Capture, tmp_path: Path) -> None:
    docs = _spoil(tmp_path, "routing/rules.yaml", "rules[0].evidence_tag", "inferred")
    docs["presets/quick.yaml"]["card"]["status"] = "experimental"
    docs["presets/plain.yaml"]["card"]["workload_allow"] = ["structured_json.short"]
    write(tmp_path, docs)
    asked = ["recommend", "--workload", "structured_json.short", "--concurrency", "2", "--presets", str(tmp_path)]
    answer = _json(capsys, *asked)
    assert [row["id"] for row in answer["results"]] == ["plain", "quick"]
    assert answer["results"][1]["why"][0].startswith("inferred rule rule-1: P1 ")
    docs = full()
    docs["presets/quick.yaml"]["card"]["status"] = "experimental"
    docs["presets/plain.yaml"]["card"]["workload_allow"] = ["structured_json.short"]
    answer = _json(capsys, *asked[:-1], str(write(tmp_path, docs)))
    assert [row["id"] for row in answer["results"]] == ["quick", "plain"]


# -------------------- validate


def test_validate_the_shipped_catalog(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1782864000")  # 2026-07-01: nothing has expired
    answer = _json(capsys, "validate")
    assert answer["errors"] == []
    assert all(list(row) == ["file", "line", "column", "path", "message"] for row in answer["warnings"])
    said = [(Path(row["file"]).stem, row["path"]) for row in answer["warnings"]]
    assert ("prod-gemma4-31b-tq-default", "card.context.max_model_len") in said
    assert ("qa-qwen3.6-27b-tested", "card.concurrency.max") in said
    assert ("prod-qwen3.6-35b-balanced", "card.K") in said
    assert ("prod-diffusiongemma-tp2", "card.evidence_refs[0].path") in said
    assert not any(path == "override_expires_at" for _, path in said)
    code, out, err = _run(capsys, "validate")
    assert (code, out) == (0, f"26 presets, 0 errors, {len(said)} warnings\n")
    assert all(line.startswith("warning: ") for line in err.splitlines())
    assert _run(capsys, "validate", "--strict")[0] == 1


def test_overrides_expire(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1787443200")  # 2026-08-23
    expired = [row for row in _json(capsys, "validate")["warnings"] if row["path"] == "override_expires_at"]
    assert len(expired) == 20
    assert all("expired on 2026-08-22 (today: 2026-08-23)" in row["message"] for row in expired)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    assert len([row for row in _json(capsys, "validate")["warnings"] if row["path"] == "override_expires_at"]) >= 20


def test_validate_a_catalog_without_drift(capsys: Capture, tmp_path: Path) -> None:
    docs = full()
    docs["presets/quick.yaml"]["card"]["hardware_fit"]["engine_pin"] = "0.2.dev2"
    for file in ("presets/plain.yaml", "archive/presets/old.yaml"):
        docs[file]["card"]["context"]["max_model_len"] = 8192
    code, out, err = _run(capsys, "validate", "--strict", "--presets", str(write(tmp_path, docs)))
    assert (code, out, err) == (0, "3 presets, 0 errors, 0 warnings\n", "")


DRIFT = [
    ("presets/quick.yaml", "card.K", 3, "card.K", "the card says 3, the composed K is 4"),
    ("presets/quick.yaml", "card.concurrency.max", 5, "card.concurrency.max", "the composed max_num_seqs is 4"),
    ("presets/quick.yaml", "card.context.max_model_len", 1, "card.context.max_model_len", "the card says 1"),
    ("presets/quick.yaml", "card.engine", "llama-cpp", "card.engine", "the model's engine is vllm"),
    ("presets/quick.yaml", "card.routing_family", "gam", "card.routing_family", "the model's family is fam"),
    ("presets/quick.yaml", "card.default_for_family", True, "card.default_for_family", "the card says true"),
    ("presets/quick.yaml", "card.hardware_fit.tensor_parallel", 1, "card.hardware_fit.tensor_parallel", "size is 2"),
    ("presets/quick.yaml", "card.hardware_fit.requires_min_gpu_count", 3,
     "card.hardware_fit.requires_min_gpu_count", "the rig is 2"),
    ("presets/quick.yaml", "card.hardware_fit.requires_min_vram_gb", 24,
     "card.hardware_fit.requires_min_vram_gb", "a card of the rig is 22000 MiB"),
    ("presets/quick.yaml", "card.hardware_fit.requires_min_cuda_capability", [9, 0],
     "card.hardware_fit.requires_min_cuda_capability", "the card says 9, 0, the rig's is 8, 6"),
    ("presets/quick.yaml", "card.hardware_fit.engine_pin", "9.9", "card.hardware_fit.engine_pin", "pin is 0.2.dev2"),
    ("presets/quick.yaml", "card.evidence_refs[0].path", "runs/none.md", "card.evidence_refs[0].path", "is not a file"),
    ("profiles/fast.yaml", "override_expires_at", "2026-01-02", "override_expires_at", "expired on 2026-01-02"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "path", "value", "at", "said"), DRIFT, ids=[row[1] for row in DRIFT])
def test_drift_is_a_warning(
    file: str, path: str, value: Any, at: str, said: str, capsys: Capture, tmp_path: Path
) -> None:
    _spoil(tmp_path, file, path, value)
    answer = _json(capsys, "validate", "--presets", str(tmp_path))
    assert any(row["path"] == at and said in row["message"] for row in answer["warnings"]), answer["warnings"]
    assert answer["errors"] == []


def test_a_profile_for_other_hardware_is_a_warning(capsys: Capture, tmp_path: Path) -> None:
    docs = full()
    docs["hardware/other.yaml"] = docs["hardware/h.yaml"]
    docs["profiles/fast.yaml"]["target_hardware"] = "other"
    answer = _json(capsys, "validate", "--presets", str(write(tmp_path, docs)))
    assert "made for 'other', 'quick' has another" in [row["message"] for row in answer["warnings"]]


def test_evidence_inside_the_catalogs_folder_resolves(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one.md").write_text("x")
    _spoil(tmp_path / "presets", "presets/quick.yaml", "card.evidence_refs[0].path", "runs/one.md")
    answer = _json(capsys, "validate", "--presets", str(tmp_path / "presets"))
    assert not any("evidence_refs" in row["path"] for row in answer["warnings"])


def test_validate_lists_every_error_and_exits_1(capsys: Capture, tmp_path: Path) -> None:
    docs = full()
    docs["models/m.yaml"]["engine"] = "vlm"
    docs["archive/presets/old.yaml"]["card"]["status"] = "prodction"
    root = write(tmp_path, docs)
    code, out, err = _run(capsys, "validate", "--presets", str(root))
    assert (code, out) == (1, "2 errors, 0 warnings\n")
    assert [line.split(": ")[1] for line in err.splitlines()] == ["card.status", "engine"]
    code, out, _ = _run(capsys, "validate", "--presets", str(root), "--json")
    assert code == 1
    assert [row["path"] for row in json.loads(out)["errors"]] == ["card.status", "engine"]


def test_validate_composes_the_archive_too(capsys: Capture, tmp_path: Path) -> None:
    _spoil(tmp_path, "archive/profiles/older.yaml", "role", "structured")
    code, out, err = _run(capsys, "validate", "--presets", str(tmp_path))
    assert (code, out) == (1, "3 presets, 1 errors, 0 warnings\n")
    assert "archive/profiles/older.yaml" in err
    assert "'structured' needs speculative decoding" in err


# -------------------- all


@pytest.mark.parametrize("verb", ["list", "show", "explain", "recommend", "validate"])
@pytest.mark.parametrize("root", [console_root, module_root])
def test_every_verb_has_help_and_takes_another_catalog(verb: str, root: Any, capsys: Capture) -> None:
    assert run(root(), ["preset", verb, "--help"], "sndr") == 0
    out = capsys.readouterr().out
    assert "--presets DIR" in out
    assert "--json" in out


def test_the_group_names_its_verbs(capsys: Capture) -> None:
    code, out, _ = _run(capsys, "--help")
    assert code == 0
    assert all(f"  {verb} " in out for verb in ("list", "show", "explain", "recommend", "validate"))
    code, _, err = _run(capsys, "shw")
    assert code == 2
    assert "did you mean show?" in err


@pytest.mark.parametrize(
    "verb", [["list"], ["show", "quick"], ["explain", "quick"], ["recommend", "--workload", "free_chat"]]
)
def test_a_broken_catalog_stops_every_verb(verb: list[str], capsys: Capture, tmp_path: Path) -> None:
    _spoil(tmp_path, "models/m.yaml", "engine", "vlm")
    code, out, err = _run(capsys, *verb, "--presets", str(tmp_path))
    assert (code, out) == (1, "")
    assert err.startswith(f"{tmp_path}/models/m.yaml:3:9: engine: 'vlm' is not known; allowed: vllm, llama-cpp")
