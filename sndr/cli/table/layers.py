"""What the catalog's files hold: each layer's fields, and the frozen values that come out.

The order of a table of fields is the order in which the files write them. Dotted blocks that people read and nothing
computes with (a card, a bench record's figures) stay plain mappings. The values are named tuples: as immutable as
frozen dataclasses, and a fifth of their price at import, which every run of the emitter pays (half of that again by
annotations that are not strings).
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sndr.cli.table.fields import (
    Block,
    Bool,
    Capability,
    Choice,
    Date,
    Field,
    Int,
    ListOf,
    MapOf,
    Number,
    Pointer,
    Prose,
    Text,
)
from sndr.contract import CONCURRENCY_MODES, OUTPUT_LENGTHS, UNKNOWN_FAMILY, WORKLOAD_CLASSES

__all__ = [
    "DEFAULT_SIZING",
    "EVIDENCE",
    "FAMILIES",
    "GAPS",
    "HARDWARE",
    "LOWER_IS_BETTER",
    "METRICS",
    "MODEL",
    "MODES",
    "PRESET",
    "PROFILE",
    "RULES",
    "STANDARD_WORKLOADS",
    "STATUSES",
    "WORKLOADS",
    "Evidence",
    "Family",
    "Gap",
    "Hardware",
    "Model",
    "Preset",
    "Profile",
    "Rule",
    "SpecDecode",
]

STANDARD_WORKLOADS = (
    "free_chat",
    "structured_json.short",
    "structured_json.long",
    "tool_call.short",
    "tool_call.long",
    "summarization",
    "code_gen",
    "long_context_qa",
)
#: Card statuses, the one to recommend first in front.
STATUSES = ("production", "production_candidate", "qa", "experimental", "bench_pending", "example", "deprecated")
#: What a preset is made for.
MODES = ("latency", "throughput", "structured_throughput", "long_context")
#: Kinds of metric; a rate is better when higher, a time when lower.
METRICS = ("agg_TPS", "decode_TPS", "TTFT_ms", "TPOT_ms", "elapsed_s")
LOWER_IS_BETTER = frozenset({"TTFT_ms", "TPOT_ms", "elapsed_s"})
#: What a sizing block means where it leaves a key out.
DEFAULT_SIZING: Mapping[str, Any] = {
    "max_model_len": 32768,
    "gpu_memory_utilization": 0.90,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 4096,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "enforce_eager": False,
    "disable_custom_all_reduce": False,
    "disable_log_stats": True,
}

_SLUG = Text("a word of small letters, digits and _", r"[a-z0-9][a-z0-9_]*", 64)
_NAME = Text("a name of letters, digits and ._-", r"[A-Za-z0-9][A-Za-z0-9._-]*", 100)
_ENV = MapOf(Text("a quoted value", limit=1000), r"[A-Za-z_][A-Za-z0-9_]*", "an environment variable's name")
_PIN = Text("an engine version", r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", 100)
_FAMILY = Text("a family of routing/families.yaml", r"[a-z0-9][a-z0-9_]*", 64)


_SIZING = Block(
    [
        Field("max_model_len", Int(1, 10_000_000), required=False),
        Field("gpu_memory_utilization", Number(0, 1, above=True), required=False),
        Field("max_num_seqs", Int(1, 4096), required=False),
        Field("max_num_batched_tokens", Int(1, 10_000_000), required=False),
        Field("enable_chunked_prefill", Bool(), required=False),
        Field("enable_prefix_caching", Bool(), required=False),
        Field("enforce_eager", Bool(), required=False),
        Field("disable_custom_all_reduce", Bool(), required=False),
        Field("disable_log_stats", Bool(), required=False),
    ],
    sparse=True,
)
_SPEC_DECODE = Block(
    [
        Field("method", Choice("mtp", "dflash", "eagle", "ngram")),
        Field("num_speculative_tokens", Int(1, 64)),
        Field("model", Text("a drafter's path"), required=False, nullable=True),
        Field("attention_backend", _NAME, required=False, nullable=True),
    ]
)

MODEL = Block(
    [
        Field("title", Prose()),
        Field("model_family", _FAMILY, required=False, default=UNKNOWN_FAMILY),
        Field("engine", Choice("vllm", "llama-cpp")),
        Field("model_path", Text("a path", r"/\S+")),
        Field("served_model_name", _NAME),
        Field("dtype", Choice("auto", "float16", "bfloat16", "float32")),
        Field("quantization_flag", _NAME, required=False, nullable=True),
        Field("quantization_kind", Text("a short description")),
        Field("attention_arch", _SLUG),
        Field("kv_cache_dtype", _SLUG, required=False, nullable=True),
        Field("spec_decode", _SPEC_DECODE, required=False, nullable=True),
        Field("tool_call_parser", _NAME, required=False, nullable=True),
        Field("reasoning_parser", _NAME, required=False, nullable=True),
        Field("chat_template", Text("a path", r"/\S+"), required=False, nullable=True),
        Field(
            "generation_defaults",
            Block(
                [
                    Field("temperature", Number(0, 5), required=False),
                    Field("top_p", Number(0, 1), required=False),
                    Field("top_k", Int(-1, 1_000_000), required=False),
                    Field("frequency_penalty", Number(-2, 2), required=False),
                    Field("presence_penalty", Number(-2, 2), required=False),
                ],
                sparse=True,
            ),
            required=False,
            nullable=True,
        ),
        Field("enable_expert_parallel", Bool(), required=False, default=False),
        Field(
            "extra_flags",
            MapOf(Text("a quoted value"), r"--[a-z0-9][a-z0-9-]*", "a flag (--like-this)"),
            required=False,
            default={},
        ),
        Field(
            "shape",
            Block(
                [
                    Field("num_hidden_layers", Int(1, 10_000), required=False),
                    Field("num_attention_layers", Int(0, 10_000), required=False),
                    Field("num_recurrent_layers", Int(0, 10_000), required=False),
                    Field("hidden_size", Int(1, 10_000_000), required=False),
                    Field("num_attention_heads", Int(1, 100_000), required=False),
                    Field("num_kv_heads", Int(1, 100_000), required=False),
                    Field("head_dim", Int(1, 100_000), required=False),
                    Field("weight_bits", Int(1, 64), required=False),
                    Field("weights_total_gib", Number(0, 100_000, above=True), required=False),
                    Field("num_experts", Int(1, 100_000), required=False),
                    Field("num_experts_per_tok", Int(1, 100_000), required=False),
                    Field("mtp_num_layers", Int(0, 1000), required=False),
                ],
                sparse=True,
            ),
            required=False,
            nullable=True,
        ),
        Field(
            "requires",
            Block(
                [
                    Field("min_gpu_count", Int(1, 1024)),
                    Field("min_total_vram_mib", Int(0, 100_000_000)),
                    Field("min_cuda_capability", Capability()),
                    Field("gpu_blocklist", ListOf(Text("part of a GPU's name")), required=False, default=()),
                ]
            ),
        ),
        Field("image", Text("a container image"), required=False, nullable=True),
        Field("vllm_pin", _PIN, required=False, nullable=True),
        Field("pin_held", Bool(), required=False, default=False),
        Field("system_env", _ENV, required=False, default={}),
        Field("license", _NAME),
    ]
)

HARDWARE = Block(
    [
        Field("title", Prose()),
        Field("n_gpus", Int(1, 1024)),
        Field("min_vram_per_gpu_mib", Int(1, 10_000_000)),
        Field("cuda_capability_min", Capability()),
        Field("gpu_match_keys", ListOf(Text("part of a GPU's name"), low=1)),
        Field("sizing", _SIZING),
        Field(
            "runtime",
            Block(
                [
                    Field("default", Choice("docker", "podman", "bare")),
                    Field("image", Text("a container image")),
                    Field(
                        "image_digest",
                        Text("an image digest (name@sha256:...)", r"\S+@sha256:[0-9a-f]{64}"),
                        required=False,
                        nullable=True,
                    ),
                    Field("container_suffix", _NAME, required=False, nullable=True),
                    Field("host_port", Int(1, 65535)),
                ]
            ),
        ),
        Field("system_env", _ENV, required=False, default={}),
    ]
)

PROFILE = Block(
    [
        Field("title", Prose()),
        Field("parent_model", Pointer("a model")),
        Field("target_hardware", Pointer("a hardware"), required=False, nullable=True),
        Field("status", Choice("experimental", "validated", "promoted", "deprecated")),
        Field("created", Date()),
        Field("role", Choice("default", "structured", "gateway", "bench", "qa", "dev"), required=False, nullable=True),
        Field("intended_workloads", ListOf(_SLUG), required=False, default=()),
        Field("sizing_override", _SIZING, required=False, nullable=True),
        Field("spec_decode_override", _SPEC_DECODE, required=False, nullable=True),
        Field(
            "compression_plan",
            Block(
                [
                    Field("strategy", Choice("uniform", "per_layer")),
                    Field("default_kv_dtype", _SLUG),
                    Field("native_source_layers", ListOf(Int(0, 10_000)), required=False, default=()),
                ]
            ),
            required=False,
            nullable=True,
        ),
        Field(
            "backend_plan",
            Block(
                [
                    Field("target_default", _NAME),
                    Field("target_native_layers", _NAME, required=False, nullable=True),
                    Field("drafter_sliding", _NAME, required=False, nullable=True),
                    Field("drafter_full", _NAME, required=False, nullable=True),
                    Field("drafter_kv_sharing", _NAME, required=False, nullable=True),
                ]
            ),
            required=False,
            nullable=True,
        ),
        Field(
            "validation",
            Block(
                [
                    Field("artifact_id", _NAME),
                    Field("config_hash", Text("16 hexadecimal digits, quoted", r"[0-9a-f]{16}")),
                ]
            ),
            required=False,
            nullable=True,
        ),
        Field("vllm_pin", _PIN, required=False, nullable=True),
        Field("system_env", _ENV, required=False, default={}),
        Field("override_class", Choice("bench", "dev", "qa"), required=False, nullable=True),
        Field("override_expires_at", Date(), required=False, nullable=True),
    ]
)


def _check_concurrency(values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if not values["min"] <= values["canonical"] <= values["max"]:
        yield "canonical", f"{values['canonical']} is not between min {values['min']} and max {values['max']}"


_WORKLOAD = Text("a workload", r"[a-z0-9][a-z0-9_]*(?:\.(?:short|long))?", 64)
_CARD = Block(
    [
        Field("title", Prose()),
        Field("summary", Prose()),
        Field("status", Choice(*STATUSES)),
        Field("audience", Choice("operator", "qa", "bench", "dev")),
        Field("maturity", Choice("draft", "tested", "validated")),
        Field("mode", Choice(*MODES)),
        Field("engine", Choice("vllm", "llama-cpp")),
        Field("workload_allow", ListOf(_WORKLOAD, low=1)),
        Field("workload_deny", ListOf(_WORKLOAD), required=False, default=()),
        Field(
            "concurrency",
            Block(
                [Field("min", Int(1, 4096)), Field("max", Int(1, 4096)), Field("canonical", Int(1, 4096))],
                _check_concurrency,
            ),
        ),
        Field("K", Int(1, 64), required=False, nullable=True),
        Field(
            "context",
            Block(
                [
                    Field("max_model_len", Int(1, 10_000_000)),
                    Field("typical_input_tokens", Int(1, 10_000_000)),
                    Field("typical_output_tokens", Int(1, 10_000_000)),
                ]
            ),
        ),
        Field(
            "hardware_fit",
            Block(
                [
                    Field("requires_min_gpu_count", Int(1, 1024)),
                    Field("requires_min_vram_gb", Int(1, 10_000)),
                    Field("requires_min_cuda_capability", Capability()),
                    Field("tensor_parallel", Int(1, 1024)),
                    Field("engine_pin", _PIN),
                ]
            ),
            required=False,
            nullable=True,
        ),
        Field("routing_family", _SLUG),
        Field("default_for_family", Bool()),
        Field("fallback_preset", Pointer("a preset"), required=False, nullable=True),
        Field(
            "primary_metric",
            Block(
                [
                    Field("kind", Choice(*METRICS)),
                    Field("value", Number(0, 10_000_000)),
                    Field("source", Text("where the figure comes from", r"\S+")),
                    Field("measured_at", Date()),
                ]
            ),
            required=False,
            nullable=True,
        ),
        Field(
            "evidence_refs",
            ListOf(
                Block(
                    [
                        Field("type", Choice("bench", "smoke", "structured_eval", "tool_call_eval")),
                        Field("path", Text("a path or external:// address", r"\S+")),
                        Field("visibility", Choice("public", "private")),
                    ]
                )
            ),
            required=False,
            default=(),
        ),
        Field("evidence_visibility", Choice("public", "private", "mixed"), required=False, nullable=True),
        Field("tradeoffs", ListOf(Prose()), required=False, default=()),
        Field("limits", ListOf(Prose()), required=False, default=()),
        Field("notes", ListOf(Prose()), required=False, default=()),
        Field("card_version", Int(1, 10_000), required=False, nullable=True),
        Field("card_updated", Date(), required=False, nullable=True),
    ]
)
PRESET = Block(
    [
        Field("model", Pointer("a model")),
        Field("hardware", Pointer("a hardware")),
        Field("profile", Pointer("a profile")),
        Field(
            "routing",
            Block([Field("default_for_family", Bool())]),
            required=False,
            default={"default_for_family": False},
        ),
        Field("card", _CARD),
    ]
)

FAMILIES = Block(
    [
        Field(
            "families",
            ListOf(
                Block(
                    [
                        Field("id", _SLUG),
                        Field("title", Prose()),
                        Field("routing", Choice("k_siblings", "single_preset")),
                        Field("reason", Prose(), required=False, nullable=True),
                    ]
                ),
                unique=False,
            ),
        )
    ]
)
WORKLOADS = Block([Field("custom", ListOf(_SLUG))])

_ID = Text("an id of small letters, digits and .-", r"[a-z0-9][a-z0-9.-]*", 80)
_WHEN = Block(
    [
        Field(
            "workload_class",
            ListOf(Choice(*WORKLOAD_CLASSES), low=1),
            required=False,
        ),
        Field("expected_output_length", ListOf(Choice(*OUTPUT_LENGTHS), low=1), required=False),
        Field("concurrency_mode", ListOf(Choice(*CONCURRENCY_MODES), low=1), required=False),
    ]
)
RULES = Block(
    [
        Field(
            "rules",
            ListOf(
                Block(
                    [
                        Field("id", _ID),
                        Field("model_family", _FAMILY),
                        Field("when", _WHEN),
                        Field("preset_key", Pointer("a preset")),
                        Field("evidence", Pointer("an evidence record")),
                        Field("evidence_tag", Choice("measured", "inferred")),
                    ]
                ),
                unique=False,
            ),
        )
    ]
)
GAPS = Block(
    [
        Field(
            "coverage_gaps",
            ListOf(
                Block(
                    [
                        Field("model_family", _FAMILY),
                        Field("missing_cell", _ID),
                        Field("cell", _WHEN),
                        Field("fallback_preset", Pointer("a preset")),
                        Field("was", Pointer("an archived preset"), required=False, nullable=True),
                        Field("next_phase", Prose()),
                    ]
                ),
                unique=False,
            ),
        )
    ]
)


def _check_arms(values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    first, second = values["arms"]
    if first["K"] == second["K"]:
        yield "arms", f"both arms have K={first['K']}; an A/B run compares two values of K"


_FIGURE = [
    Field("mode", Text("a bench mode", r"[A-Z]"), required=False, nullable=True),
    Field("concurrency", Int(1, 4096), required=False, nullable=True),
]
EVIDENCE = Block(
    [
        Field("phase", Text("the phase's id as it is cited")),
        Field("title", Prose()),
        Field("model_family", _FAMILY),
        Field("date", Date(), required=False, nullable=True),
        Field("hardware", Pointer("a hardware")),
        Field("vllm_pin", _PIN),
        Field("source", Text("where the raw run is kept", r"\S+")),
        Field("verdict", Prose()),
        Field(
            "comparison",
            Block(
                [
                    Field("metric", Choice(*METRICS)),
                    *_FIGURE,
                    Field(
                        "arms",
                        ListOf(
                            Block(
                                [
                                    Field("K", Int(1, 64)),
                                    Field("preset", Pointer("a preset")),
                                    Field("value", Number(0, 10_000_000, above=True)),
                                    Field("runs", Int(1, 1_000_000), required=False, nullable=True),
                                    Field("cv", Number(0, 100), required=False, nullable=True),
                                ]
                            ),
                            low=2,
                            high=2,
                        ),
                    ),
                ],
                _check_arms,
            ),
            required=False,
            nullable=True,
        ),
        Field(
            "figures",
            ListOf(
                Block(
                    [
                        Field("what", Prose()),
                        Field("value", Number(-10_000_000, 10_000_000)),
                        Field("unit", Text("a unit")),
                        *_FIGURE,
                    ]
                ),
                unique=False,
            ),
            required=False,
            default=(),
        ),
        Field("notes", ListOf(Prose()), required=False, default=()),
    ]
)


class SpecDecode(NamedTuple):
    """Speculative decoding; `num_speculative_tokens` is K."""

    method: str
    num_speculative_tokens: int
    model: str | None
    attention_backend: str | None


class Model(NamedTuple):
    """A checkpoint and how its engine must read it."""

    id: str
    file: str
    title: str
    model_family: str
    engine: str
    model_path: str
    served_model_name: str
    dtype: str
    quantization_flag: str | None
    quantization_kind: str
    attention_arch: str
    kv_cache_dtype: str | None
    spec_decode: SpecDecode | None
    tool_call_parser: str | None
    reasoning_parser: str | None
    chat_template: str | None
    generation_defaults: Mapping[str, Any] | None
    enable_expert_parallel: bool
    extra_flags: Mapping[str, str]
    shape: Mapping[str, Any] | None
    requires: Mapping[str, Any]
    image: str | None
    vllm_pin: str | None
    pin_held: bool
    system_env: Mapping[str, str]
    license: str


class Hardware(NamedTuple):
    """A rig: its GPUs, the sizing it is given when a profile says nothing, and its runtime."""

    id: str
    file: str
    title: str
    n_gpus: int
    min_vram_per_gpu_mib: int
    cuda_capability_min: tuple[int, int]
    gpu_match_keys: tuple[str, ...]
    sizing: Mapping[str, Any]
    runtime: Mapping[str, Any]
    system_env: Mapping[str, str]


class Profile(NamedTuple):
    """A way to run one model: role, sizing, speculative decoding, plans."""

    id: str
    file: str
    title: str
    parent_model: str
    target_hardware: str | None
    status: str
    created: str
    role: str | None
    intended_workloads: tuple[str, ...]
    sizing_override: Mapping[str, Any] | None
    spec_decode_override: SpecDecode | None
    compression_plan: Mapping[str, Any] | None
    backend_plan: Mapping[str, Any] | None
    validation: Mapping[str, Any] | None
    vllm_pin: str | None
    system_env: Mapping[str, str]
    override_class: str | None
    override_expires_at: str | None


class Preset(NamedTuple):
    """Three pointers, whether it is its family's default, and a card for people.

    The card never feeds composition or the table.
    """

    id: str
    file: str
    archived: bool
    model: str
    hardware: str
    profile: str
    routing: Mapping[str, Any]
    card: Mapping[str, Any]

    @property
    def default_for_family(self) -> bool:
        """Tell whether requests of the family without a matching rule go here."""
        declared: bool = self.routing["default_for_family"]
        return declared


class Family(NamedTuple):
    """A routing label that models declare."""

    id: str
    title: str
    routing: str
    reason: str | None


class Rule(NamedTuple):
    """A cell of one family that goes to a preset, on evidence.

    Attributes:
        when: Axis -> allowed words; only the axes that the file names.
        evidence: Id of the record.
    """

    id: str
    model_family: str
    when: Mapping[str, tuple[str, ...]]
    preset_key: str
    evidence: str
    evidence_tag: str


class Gap(NamedTuple):
    """A cell that nobody has measured."""

    model_family: str
    missing_cell: str
    cell: Mapping[str, tuple[str, ...]]
    fallback_preset: str
    was: str | None
    next_phase: str


class Evidence(NamedTuple):
    """One bench record.

    Attributes:
        path: Where a rule cites it: ``presets/evidence/<id>.yaml``, from the folder that holds the catalog.
        comparison: Metric, conditions and the raw figure of both arms, or None.
    """

    id: str
    file: str
    phase: str
    title: str
    model_family: str
    date: str | None
    hardware: str
    vllm_pin: str
    source: str
    verdict: str
    comparison: Mapping[str, Any] | None
    figures: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]

    @property
    def path(self) -> str:
        """Return the path that rules cite."""
        return f"presets/{self.file}"

    def gain_percent(self, preset_key: str) -> float | None:
        """Return by how many percent the arm of `preset_key` beats the other one, computed from the raw figures.

        Positive is better, whichever direction the metric has; None without a comparison or without that arm.
        """
        if self.comparison is None:
            return None
        mine = [arm["value"] for arm in self.comparison["arms"] if arm["preset"] == preset_key]
        others = [arm["value"] for arm in self.comparison["arms"] if arm["preset"] != preset_key]
        if len(mine) != 1 or len(others) != 1:
            return None
        ratio: float = mine[0] / others[0]
        return (1 / ratio - 1 if self.comparison["metric"] in LOWER_IS_BETTER else ratio - 1) * 100

    def cite(self, preset_key: str) -> str:
        """Return the one-line ASCII citation of this record for a rule with that target."""
        parts = []
        gain = self.gain_percent(preset_key)
        if self.comparison is not None and gain is not None:
            arms = sorted(self.comparison["arms"], key=lambda arm: arm["preset"] != preset_key)
            figures = " vs ".join(f"K={arm['K']} {arm['value']:g}" for arm in arms)
            parts.append(f"{self.comparison['metric']} {figures}{_conditions(self.comparison)} ({gain:+.1f} %)")
        parts += [f"{f['what']}: {f['value']:g} {f['unit']}{_conditions(f)}" for f in self.figures]
        dated = f"{self.phase} ({self.date})" if self.date else self.phase
        text = f"{dated}: {'; '.join(parts) or self.verdict}; record {self.path}"
        return text.encode("ascii", "backslashreplace").decode()


def _conditions(figure: Mapping[str, Any]) -> str:
    at = f" at concurrency {figure['concurrency']}" if figure["concurrency"] is not None else ""
    return at + (f", mode {figure['mode']}" if figure["mode"] is not None else "")
