"""Composition: one preset's model, hardware and profile become the values that the engine gets.

Every value has one owning layer (or a short list of them, highest first); there is no last-writer-wins and no merge
of blocks. Each value remembers where it came from.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sndr.cli.table.catalog import Catalog, CatalogError, Place
from sndr.cli.table.fields import Finding
from sndr.cli.table.layers import DEFAULT_SIZING, Hardware, Model, Preset, Profile, SpecDecode

__all__ = ["Composed", "Resolved", "Source", "check_evidence", "check_preset", "compose", "compose_all", "resolve"]

_CONTAINER_PREFIX = {"vllm": "vllm", "llama-cpp": "llamacpp"}


class Source(NamedTuple):
    """Where a composed value comes from.

    Attributes:
        layer: ``model``, ``hardware``, ``profile``, ``preset``, ``default`` (of a sizing block that leaves the key
            out; `path` names the block) or ``none`` (no layer gives one).
        file: The layer's file inside the catalog.
        path: The key in it.
    """

    layer: str
    file: str
    path: str

    def place(self, catalog: Catalog) -> Place:
        """Return layer, shown file, line and column."""
        return catalog.place(self.layer, self.file, self.path)


class Composed(NamedTuple):
    """One preset and its layers, which go together."""

    preset: Preset
    model: Model
    hardware: Hardware
    profile: Profile

    @property
    def spec_decode_K(self) -> int:  # noqa: N802  # K is the table's word
        """Return K; 1 means no speculative decoding."""
        spec = spec_decode_of(self.profile, self.model)
        return 1 if spec is None else spec.num_speculative_tokens

    @property
    def max_num_seqs(self) -> int:
        """Return how many sequences the engine runs at once."""
        return self._size("max_num_seqs")

    @property
    def max_model_len(self) -> int:
        """Return how long a context the engine takes."""
        return self._size("max_model_len")

    def _size(self, key: str) -> int:
        value: int = sizing_of(self.profile, self.hardware).get(key, DEFAULT_SIZING[key])
        return value


class Resolved(NamedTuple):
    """Every composed value of one preset, and where each comes from.

    Attributes:
        values: Field -> value, in the order in which they are shown.
        sources: Field -> its source; the same keys, and ``system_env.NAME`` for each variable.
    """

    values: Mapping[str, Any]
    sources: Mapping[str, Source]


def spec_decode_of(profile: Profile, model: Model) -> SpecDecode | None:
    """Return the profile's speculative decoding if it has one, else the model's."""
    return profile.spec_decode_override if profile.spec_decode_override is not None else model.spec_decode


def sizing_of(profile: Profile, hardware: Hardware) -> Mapping[str, Any]:
    """Return the profile's sizing block as a whole if it has one, else the hardware's; never a mix."""
    return profile.sizing_override if profile.sizing_override is not None else hardware.sizing


def check_preset(catalog: Catalog, preset: Preset) -> list[Finding]:
    """Return why a preset's layers do not go together; empty when they do."""
    model = catalog.models[preset.model]
    hardware = catalog.hardware[preset.hardware]
    profile = catalog.profiles[preset.profile]
    needs = model.requires
    found: list[Finding] = []

    def say(path: str, message: str) -> None:
        found.append(catalog.finding(preset.file, path, message))

    if profile.parent_model != preset.model:
        say("profile", f"'{profile.id}' is a profile of '{profile.parent_model}', the preset's model is '{model.id}'")
    if hardware.n_gpus < needs["min_gpu_count"]:
        say("hardware", f"'{hardware.id}' has {hardware.n_gpus} GPU, '{model.id}' needs {needs['min_gpu_count']}")
    vram = hardware.n_gpus * hardware.min_vram_per_gpu_mib
    if vram < needs["min_total_vram_mib"]:
        say("hardware", f"'{hardware.id}' has {vram} MiB in all, '{model.id}' needs {needs['min_total_vram_mib']} MiB")
    if hardware.cuda_capability_min < needs["min_cuda_capability"]:
        have = ".".join(map(str, hardware.cuda_capability_min))
        want = ".".join(map(str, needs["min_cuda_capability"]))
        say("hardware", f"'{hardware.id}' promises CUDA capability {have}, '{model.id}' needs {want}")
    for blocked in needs["gpu_blocklist"]:
        if any(blocked in key or key in blocked for key in hardware.gpu_match_keys):
            say("hardware", f"'{hardware.id}' matches '{blocked}', which '{model.id}' refuses (requires.gpu_blocklist)")
    plan = profile.compression_plan
    if plan is not None and _concrete(model.kv_cache_dtype) and plan["default_kv_dtype"] != model.kv_cache_dtype:
        found.append(
            catalog.finding(
                profile.file,
                "compression_plan.default_kv_dtype",
                f"'{plan['default_kv_dtype']}', but '{model.id}' is fixed to '{model.kv_cache_dtype}'; "
                "leave the plan out or let the model say auto",
            )
        )
    spec = spec_decode_of(profile, model)
    if profile.role == "structured" and spec is None:
        found.append(
            catalog.finding(
                profile.file,
                "role",
                "'structured' needs speculative decoding; add spec_decode_override or choose another role",
            )
        )
    if preset.default_for_family and spec is not None and spec.num_speculative_tokens != 1:
        say(
            "routing.default_for_family",
            f"true, but the preset composes to K={spec.num_speculative_tokens}; a family default has K=1",
        )
    return found


def check_evidence(catalog: Catalog) -> list[Finding]:
    """Return the rules whose evidence does not carry them; asked once every preset composes.

    A ``measured`` rule needs an A/B record of its family with an arm for its target at the target's K, and that arm
    must be the better one.
    """
    found: list[Finding] = []
    for place, rule in enumerate(catalog.rules):
        record = catalog.evidence[rule.evidence]
        preset = catalog.presets[rule.preset_key]
        at = f"rules[{place}].evidence"
        spec = spec_decode_of(catalog.profiles[preset.profile], catalog.models[preset.model])
        k = 1 if spec is None else spec.num_speculative_tokens

        def say(message: str, path: str = at) -> None:
            found.append(catalog.finding("routing/rules.yaml", path, message))

        if record.model_family != rule.model_family:
            say(f"'{record.id}' is about family '{record.model_family}', the rule is of '{rule.model_family}'")
        elif rule.evidence_tag == "measured":
            gain = record.gain_percent(rule.preset_key)
            arms = record.comparison["arms"] if record.comparison else ()
            if not arms:
                say(f"'{record.id}' has no comparison; 'measured' needs both arms, allowed otherwise: inferred")
            elif gain is None:
                say(f"no arm of '{record.id}' is '{rule.preset_key}'; arms: {', '.join(a['preset'] for a in arms)}")
            elif any(arm["preset"] == rule.preset_key and arm["K"] != k for arm in arms):
                say(f"'{record.id}' measured '{rule.preset_key}' at another K; it composes to K={k}")
            elif gain <= 0:
                say(f"in '{record.id}' the arm '{rule.preset_key}' is not better ({gain:+.1f} %)")
    return found


def compose(catalog: Catalog, preset_id: str) -> Composed:
    """Compose one preset, active or archived.

    Raises:
        KeyError: There is no such preset in what was loaded.
        CatalogError: Its layers do not go together.
    """
    preset = catalog.presets[preset_id] if preset_id in catalog.presets else catalog.archived[preset_id]
    findings = check_preset(catalog, preset)
    if findings:
        raise CatalogError(findings)
    return _join(catalog, preset)


def compose_all(catalog: Catalog) -> tuple[Composed, ...]:
    """Compose every active preset, in the order of their ids.

    Raises:
        CatalogError: Some layers do not go together, or a rule's evidence does not carry it; all of it is listed.
    """
    findings = [finding for preset in catalog.presets.values() for finding in check_preset(catalog, preset)]
    findings += check_evidence(catalog)
    if findings:
        raise CatalogError(findings)
    return tuple(_join(catalog, preset) for preset in catalog.presets.values())


def _join(catalog: Catalog, preset: Preset) -> Composed:
    return Composed(
        preset, catalog.models[preset.model], catalog.hardware[preset.hardware], catalog.profiles[preset.profile]
    )


def resolve(composed: Composed) -> Resolved:
    """Work out every value of a composed preset."""
    preset, model, hardware, profile = composed.preset, composed.model, composed.hardware, composed.profile
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}

    def put(name: str, value: Any, layer: str, file: str, path: str) -> None:
        values[name] = value
        sources[name] = Source(layer, file, path)

    def of_model(name: str, path: str | None = None) -> None:
        put(name, getattr(model, path or name), "model", model.file, path or name)

    of_model("engine")
    of_model("model_path")
    of_model("served_model_name")
    of_model("model_family")
    put("tensor_parallel_size", hardware.n_gpus, "hardware", hardware.file, "n_gpus")
    _put_sizing(put, profile, hardware)
    _put_kv(put, profile, model)
    of_model("dtype")
    of_model("quantization_flag")
    of_model("quantization_kind")
    _put_spec(put, profile, model)
    if profile.vllm_pin is not None:
        put("vllm_pin_required", profile.vllm_pin, "profile", profile.file, "vllm_pin")
    else:
        put("vllm_pin_required", model.vllm_pin, "model", model.file, "vllm_pin")
    if model.image is not None:  # an engine that the rig's own image does not hold
        put("image", model.image, "model", model.file, "image")
        put("image_digest", None, "model", model.file, "image")
    else:
        put("image", hardware.runtime["image"], "hardware", hardware.file, "runtime.image")
        put("image_digest", hardware.runtime["image_digest"], "hardware", hardware.file, "runtime.image_digest")
    suffix = hardware.runtime["container_suffix"]
    name = f"{_CONTAINER_PREFIX[model.engine]}-{model.id}" + (f"-{suffix}" if suffix else "")
    put("container_name", name, "model", model.file, "")  # a model's id is its file's name
    put("host_port", hardware.runtime["host_port"], "hardware", hardware.file, "runtime.host_port")
    _put_args(put, profile, model)
    of_model("tool_call_parser")
    of_model("reasoning_parser")
    put("enable_auto_tool_choice", model.tool_call_parser is not None, "model", model.file, "tool_call_parser")
    of_model("chat_template")
    of_model("generation_defaults")
    put("role", profile.role, "profile", profile.file, "role")
    put("intended_workloads", profile.intended_workloads, "profile", profile.file, "intended_workloads")
    declared = preset.default_for_family
    put("default_for_family", declared, "preset", preset.file, "routing.default_for_family")
    env: dict[str, str] = {}
    for layer, owner in (("hardware", hardware), ("model", model), ("profile", profile)):  # the highest last
        for variable, text in owner.system_env.items():
            env[variable] = text
            sources[f"system_env.{variable}"] = Source(layer, owner.file, f"system_env.{variable}")
    put("system_env", env, "profile", profile.file, "system_env")
    return Resolved(values, sources)


def _concrete(dtype: str | None) -> bool:
    return dtype not in (None, "auto")


def _put_sizing(put: Any, profile: Profile, hardware: Hardware) -> None:
    block = sizing_of(profile, hardware)
    owner = (
        ("profile", profile.file, "sizing_override")
        if profile.sizing_override is not None
        else ("hardware", hardware.file, "sizing")
    )
    for key, default in DEFAULT_SIZING.items():
        if key in block:
            put(key, block[key], owner[0], owner[1], f"{owner[2]}.{key}")
        else:
            put(key, default, "default", owner[1], owner[2])


def _put_kv(put: Any, profile: Profile, model: Model) -> None:
    if not _concrete(model.kv_cache_dtype) and profile.compression_plan is not None:
        dtype = profile.compression_plan["default_kv_dtype"]
        put("kv_cache_dtype", dtype, "profile", profile.file, "compression_plan.default_kv_dtype")
    else:
        put("kv_cache_dtype", model.kv_cache_dtype, "model", model.file, "kv_cache_dtype")


def _put_spec(put: Any, profile: Profile, model: Model) -> None:
    spec = spec_decode_of(profile, model)
    if profile.spec_decode_override is not None:
        owner = ("profile", profile.file, "spec_decode_override")
    elif model.spec_decode is not None:
        owner = ("model", model.file, "spec_decode")
    else:
        owner = ("none", model.file, "spec_decode")
    shown = None
    if spec is not None:
        shown = {
            "method": spec.method,
            "k": spec.num_speculative_tokens,
            "model": spec.model,
            "attention_backend": spec.attention_backend,
        }
    put("spec_decode", shown, *owner)
    put("spec_decode_K", 1 if spec is None else spec.num_speculative_tokens, *owner)


def _put_args(put: Any, profile: Profile, model: Model) -> None:
    """Put the flags that no field of their own stands for, in the order in which the engine gets them.

    Their place is the place of the first one.
    """
    args: list[Any] = []
    first = ("none", model.file, "extra_flags")

    def add(layer: str, file: str, path: str, *more: Any) -> None:
        nonlocal first
        if not args:
            first = (layer, file, path)
        args.extend(more)

    if model.chat_template is not None:
        add("model", model.file, "chat_template", "--chat-template", model.chat_template)
    if model.generation_defaults:
        add("model", model.file, "generation_defaults", "--override-generation-config", model.generation_defaults)
    if profile.backend_plan is not None:
        backend = profile.backend_plan["target_default"]
        add("profile", profile.file, "backend_plan.target_default", "--attention-backend", backend)
    if model.enable_expert_parallel:
        add("model", model.file, "enable_expert_parallel", "--enable-expert-parallel")
    for flag, text in model.extra_flags.items():
        add("model", model.file, "extra_flags", flag, text)
    put("extra_args", tuple(args), *first)
