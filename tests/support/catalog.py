"""A small catalog that writes out every field of every layer, and knows where each value stands.

`FULL` is the catalog as plain values; `render` writes one file of it and says at which line and column each key and
each value begins, so that a test can spoil one field and expect the finding exactly there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sndr.cli.table import layers
from sndr.cli.table.fields import Block, Field, ListOf, Reader

Doc = dict[str, Any]

_SIZING = {
    "max_model_len": 8192,
    "gpu_memory_utilization": 0.5,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 2048,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "disable_custom_all_reduce": True,
    "disable_log_stats": False,
}
_SPEC = {"method": "mtp", "num_speculative_tokens": 4, "model": "/models/drafter", "attention_backend": "FLASH"}
_CARD = {
    "title": "A lane",
    "summary": "What the lane is for",
    "status": "production",
    "audience": "operator",
    "maturity": "validated",
    "mode": "throughput",
    "engine": "vllm",
    "workload_allow": ["tool_call.short", "structured_json.short", "odd_job"],
    "workload_deny": ["free_chat"],
    "concurrency": {"min": 1, "max": 4, "canonical": 2},
    "K": 4,
    "context": {"max_model_len": 8192, "typical_input_tokens": 100, "typical_output_tokens": 50},
    "hardware_fit": {
        "requires_min_gpu_count": 1,
        "requires_min_vram_gb": 21,
        "requires_min_cuda_capability": [8, 6],
        "tensor_parallel": 2,
        "engine_pin": "0.1.dev1",
    },
    "routing_family": "fam",
    "default_for_family": False,
    "fallback_preset": "plain",
    "primary_metric": {"kind": "agg_TPS", "value": 200.5, "source": "external://runs/1", "measured_at": "2026-01-02"},
    "evidence_refs": [{"type": "bench", "path": "external://runs/1", "visibility": "private"}],
    "evidence_visibility": "private",
    "tradeoffs": ["It costs."],
    "limits": ["It ends."],
    "notes": ["It was."],
    "card_version": 1,
    "card_updated": "2026-01-02",
}
_PLAIN_CARD = {
    **{key: _CARD[key] for key in ("title", "summary", "audience", "maturity", "mode", "engine", "context")},
    "status": "production_candidate",
    "workload_allow": ["free_chat", "tool_call.short"],
    "concurrency": {"min": 1, "max": 4, "canonical": 1},
    "routing_family": "fam",
    "default_for_family": True,
}
_WHEN = {
    "workload_class": ["tool_call", "structured_json"],
    "expected_output_length": ["short"],
    "concurrency_mode": ["multi_conc"],
}

#: File -> content. Ids: model ``m``, hardware ``h``, profiles ``fast`` and ``slow``, presets ``quick`` (K=4, the rule's
#: target) and ``plain`` (K=1, the family's default), family ``fam``, evidence ``E1``, archived preset ``old``.
FULL: Mapping[str, Doc] = {
    "models/m.yaml": {
        "title": "A model",
        "model_family": "fam",
        "engine": "vllm",
        "model_path": "/models/m",
        "served_model_name": "m-served",
        "dtype": "bfloat16",
        "quantization_flag": "awq",
        "quantization_kind": "AWQ int4",
        "attention_arch": "dense",
        "kv_cache_dtype": "auto",
        "tool_call_parser": "hermes",
        "reasoning_parser": "r1",
        "chat_template": "/models/m/chat.jinja",
        "generation_defaults": {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 20,
            "frequency_penalty": 0.1,
            "presence_penalty": -0.1,
        },
        "enable_expert_parallel": True,
        "extra_flags": {"--swap-space": "4"},
        "shape": {
            "num_hidden_layers": 48,
            "num_attention_layers": 12,
            "num_recurrent_layers": 36,
            "hidden_size": 4096,
            "num_attention_heads": 40,
            "num_kv_heads": 4,
            "head_dim": 128,
            "weight_bits": 4,
            "weights_total_gib": 17.5,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "mtp_num_layers": 1,
        },
        "requires": {
            "min_gpu_count": 1,
            "min_total_vram_mib": 24000,
            "min_cuda_capability": [8, 6],
            "gpu_blocklist": ["rtx 2080"],
        },
        "image": "example/engine:1",
        "vllm_pin": "0.1.dev1",
        "pin_held": False,
        "system_env": {"FROM": "model", "MODEL": "1"},
        "license": "apache-2.0",
    },
    "models/drafting.yaml": {
        "title": "A model that drafts by itself",
        "engine": "vllm",
        "model_path": "/models/d",
        "served_model_name": "d-served",
        "dtype": "auto",
        "quantization_kind": "none",
        "attention_arch": "dense",
        "spec_decode": {**_SPEC, "num_speculative_tokens": 8},
        "requires": {"min_gpu_count": 1, "min_total_vram_mib": 24000, "min_cuda_capability": [8, 6]},
        "license": "apache-2.0",
    },
    "hardware/h.yaml": {
        "title": "A rig",
        "n_gpus": 2,
        "min_vram_per_gpu_mib": 22000,
        "cuda_capability_min": [8, 6],
        "gpu_match_keys": ["rtx a5000"],
        "sizing": {**_SIZING, "max_num_seqs": 16},
        "runtime": {
            "default": "docker",
            "image": "example/rig:1",
            "image_digest": "example/rig@sha256:" + "0" * 64,
            "container_suffix": "2x",
            "host_port": 8000,
        },
        "system_env": {"FROM": "hardware", "HARDWARE": "1"},
    },
    "profiles/fast.yaml": {
        "title": "Fast",
        "parent_model": "m",
        "target_hardware": "h",
        "status": "validated",
        "created": "2026-01-02",
        "role": "structured",
        "intended_workloads": ["tool_json"],
        "sizing_override": _SIZING,
        "spec_decode_override": _SPEC,
        "compression_plan": {"strategy": "per_layer", "default_kv_dtype": "fp8", "native_source_layers": [58, 59]},
        "backend_plan": {
            "target_default": "FLASH",
            "target_native_layers": "TRITON",
            "drafter_sliding": "TRITON",
            "drafter_full": "TRITON",
            "drafter_kv_sharing": "physical",
        },
        "validation": {"artifact_id": "run-1", "config_hash": "0123456789abcdef"},
        "vllm_pin": "0.2.dev2",
        "system_env": {"FROM": "profile", "PROFILE": "1"},
        "override_class": "bench",
        "override_expires_at": "2999-01-02",
    },
    "profiles/slow.yaml": {"title": "Slow", "parent_model": "m", "status": "validated", "created": "2026-01-02"},
    "presets/quick.yaml": {
        "model": "m",
        "hardware": "h",
        "profile": "fast",
        "routing": {"default_for_family": False},
        "card": _CARD,
    },
    "presets/plain.yaml": {
        "model": "m",
        "hardware": "h",
        "profile": "slow",
        "routing": {"default_for_family": True},
        "card": _PLAIN_CARD,
    },
    "archive/profiles/older.yaml": {
        "title": "Older",
        "parent_model": "m",
        "status": "deprecated",
        "created": "2025-01-02",
    },
    "archive/presets/old.yaml": {
        "model": "m",
        "hardware": "h",
        "profile": "older",
        "card": {**_PLAIN_CARD, "default_for_family": False},
    },
    "routing/families.yaml": {
        "families": [
            {"id": "fam", "title": "A family", "routing": "k_siblings", "reason": "It has siblings"},
            {"id": "lone", "title": "Another", "routing": "single_preset"},
        ]
    },
    "routing/workloads.yaml": {"custom": ["odd_job"]},
    "routing/rules.yaml": {
        "rules": [
            {
                "id": "rule-1",
                "model_family": "fam",
                "when": _WHEN,
                "preset_key": "quick",
                "evidence": "E1",
                "evidence_tag": "measured",
            }
        ]
    },
    "routing/gaps.yaml": {
        "coverage_gaps": [
            {
                "model_family": "fam",
                "missing_cell": "single-stream",
                "cell": {**_WHEN, "concurrency_mode": ["single_stream"]},
                "fallback_preset": "plain",
                "was": "old",
                "next_phase": "Bench it",
            }
        ]
    },
    "evidence/E1.yaml": {
        "phase": "P1",
        "title": "K=4 against K=1",
        "model_family": "fam",
        "date": "2026-01-02",
        "hardware": "h",
        "vllm_pin": "0.1.dev1",
        "source": "external://runs/1",
        "verdict": "K=4 wins",
        "comparison": {
            "metric": "agg_TPS",
            "mode": "A",
            "concurrency": 8,
            "arms": [
                {"K": 4, "preset": "quick", "value": 200.5, "runs": 5, "cv": 0.1},
                {"K": 1, "preset": "plain", "value": 100},
            ],
        },
        "figures": [{"what": "with a grammar", "value": 250, "unit": "tokens/s", "mode": "B", "concurrency": 8}],
        "notes": ["Once"],
    },
}

#: Which table of fields reads which file of `FULL`.
TABLES: Mapping[str, Block] = {
    "models/m.yaml": layers.MODEL,
    "models/drafting.yaml": layers.MODEL,
    "hardware/h.yaml": layers.HARDWARE,
    "profiles/fast.yaml": layers.PROFILE,
    "presets/quick.yaml": layers.PRESET,
    "routing/families.yaml": layers.FAMILIES,
    "routing/workloads.yaml": layers.WORKLOADS,
    "routing/rules.yaml": layers.RULES,
    "routing/gaps.yaml": layers.GAPS,
    "evidence/E1.yaml": layers.EVIDENCE,
}


class Raw(str):
    """Text that `render` puts into the file as it is."""


class At(NamedTuple):
    """Where a key and its value begin: lines and columns from 1."""

    key: tuple[int, int]
    value: tuple[int, int]


def full() -> dict[str, Doc]:
    """Return a copy of `FULL` to spoil."""
    return copy.deepcopy(dict(FULL))


def render(doc: Mapping[str, Any]) -> tuple[str, dict[str, At]]:
    """Return a document as YAML and the place of each key path in it."""
    lines: list[str] = []
    places: dict[str, At] = {}
    _block(doc, "", 0, lines, places)
    return "\n".join(lines) + "\n", places


def _block(doc: Mapping[str, Any], prefix: str, indent: int, lines: list[str], places: dict[str, At]) -> None:
    for key, value in doc.items():
        path = f"{prefix}.{key}" if prefix else key
        name = key.partition("#")[0]  # "key#2" writes the key a second time
        start = (len(lines) + 1, indent + 1)
        if isinstance(value, dict) and value:
            lines.append(" " * indent + f"{name}:")
            places[path] = At(start, (len(lines) + 1, indent + 3))
            _block(value, path, indent + 2, lines, places)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(" " * indent + f"{name}:")
            places[path] = At(start, (len(lines) + 1, indent + 3))
            for place, item in enumerate(value):
                row = len(lines)
                places[f"{path}[{place}]"] = At((row + 1, indent + 3), (row + 1, indent + 5))
                _block(item, f"{path}[{place}]", indent + 4, lines, places)
                lines[row] = " " * (indent + 2) + "- " + lines[row][indent + 4 :]
        else:
            head = " " * indent + f"{name}: "
            places[path] = At(start, (start[0], len(head) + 1))
            if isinstance(value, list):
                column = len(head) + 2
                for place, item in enumerate(value):
                    places[f"{path}[{place}]"] = At((start[0], column), (start[0], column))
                    column += len(_scalar(item)) + 2
                lines.append(head + "[" + ", ".join(_scalar(item) for item in value) + "]")
            else:
                lines.append(head + _scalar(value))


def _scalar(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if value == {}:
        return "{}"
    return "null" if value is None else repr(value)


def write(root: Path, docs: Mapping[str, Doc | bytes | str]) -> Path:
    """Write a catalog into `root`; returns it."""
    for file, doc in docs.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        data = doc if isinstance(doc, bytes) else (doc if isinstance(doc, str) else render(doc)[0]).encode()
        path.write_bytes(data)
    return root


class Spot(NamedTuple):
    """One field of one layer: where it stands in `FULL` and what reads it."""

    file: str
    path: str
    field: Field
    reader: Reader


def spots() -> Iterator[Spot]:
    """Yield every field of every layer that `FULL` writes out, nested ones too."""
    for file, table in TABLES.items():
        yield from _spots(file, FULL[file], "", table)


def _spots(file: str, doc: Any, prefix: str, table: Block) -> Iterator[Spot]:
    for field in table.fields:
        if field.name not in doc:
            continue
        path = f"{prefix}.{field.name}" if prefix else field.name
        yield Spot(file, path, field, field.reader)
        value, reader = doc[field.name], field.reader
        if isinstance(reader, Block):
            yield from _spots(file, value, path, reader)
        elif isinstance(reader, ListOf) and isinstance(reader.item, Block):
            yield from _spots(file, value[0], f"{path}[0]", reader.item)


def holder_of(doc: Any, path: str) -> tuple[dict[str, Any], str]:
    """Return the mapping that holds the last key of a path, and that key."""
    steps = path.replace("[", ".[").split(".")
    for step in steps[:-1]:
        doc = doc[int(step[1:-1])] if step.startswith("[") else doc[step]
    return doc, steps[-1]
