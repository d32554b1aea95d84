"""Composition: one owner for each value, whole blocks, errors where layers do not go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sndr.cli.table.catalog import Catalog, CatalogError, load_catalog
from sndr.cli.table.compose import Composed, check_evidence, compose, compose_all, resolve
from sndr.cli.table.layers import DEFAULT_SIZING
from tests.support.catalog import Doc, Raw, full, holder_of, render, write

FACTS = json.loads((Path(__file__).parents[3] / "data" / "composed.json").read_text())


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return load_catalog(archive=True)


def test_the_facts_are_of_all_presets(shipped: Catalog) -> None:
    assert sorted(FACTS["presets"]) == sorted({**shipped.presets, **shipped.archived})
    assert len(FACTS["presets"]) == 26


@pytest.mark.parametrize("preset_id", FACTS["presets"])
def test_a_shipped_preset_composes_to_its_recorded_values(preset_id: str, shipped: Catalog) -> None:
    recorded = {**FACTS["common"], **FACTS["presets"][preset_id]}
    composed = compose(shipped, preset_id)
    resolved = resolve(composed)
    assert recorded.pop("archived") == composed.preset.archived
    for name in ("spec_decode_K", "max_num_seqs"):
        assert resolved.sources[name].layer == recorded.pop(f"layer of {name}")
    assert recorded["spec_decode_K"] == composed.spec_decode_K
    assert recorded["max_num_seqs"] == composed.max_num_seqs
    assert recorded["max_model_len"] == composed.max_model_len
    assert {name: _plain(resolved.values[name]) for name in recorded} == recorded


def _compose(tmp_path: Path, docs: dict[str, Doc], preset: str = "quick") -> Composed:
    return compose(load_catalog(write(tmp_path, docs), archive=True), preset)


def test_every_value_knows_its_place(tmp_path: Path) -> None:
    docs = full()
    catalog = load_catalog(write(tmp_path, docs))
    resolved = resolve(compose(catalog, "quick"))
    assert set(resolved.values) <= set(resolved.sources)
    for name, source in resolved.sources.items():
        place = source.place(catalog)
        assert place.stated, (name, source)
        assert place.file == f"{tmp_path}/{source.file}"
        if source.path:
            line, column = place.line, place.column
            at = render(docs[source.file])[1][source.path]
            assert (line, column) in (at.key, at.value), name


def test_a_sizing_override_replaces_the_whole_block(tmp_path: Path) -> None:
    docs = full()
    docs["profiles/fast.yaml"]["sizing_override"] = {"max_model_len": 999}
    composed = _compose(tmp_path, docs)
    resolved = resolve(composed)
    assert {name: resolved.values[name] for name in DEFAULT_SIZING} == {**DEFAULT_SIZING, "max_model_len": 999}
    assert composed.max_num_seqs == 2  # not the 16 of the hardware
    assert resolved.sources["max_num_seqs"].layer == "default"
    assert resolved.sources["max_model_len"].layer == "profile"


def test_class_defaults_are_the_documented_ones() -> None:
    assert tuple(DEFAULT_SIZING.values()) == (32768, 0.90, 2, 4096, True, True, False, False, True)


def test_without_an_override_the_hardware_sizes(tmp_path: Path) -> None:
    composed = _compose(tmp_path, full(), "plain")
    assert composed.max_num_seqs == 16
    assert resolve(composed).sources["max_num_seqs"].layer == "hardware"


def test_an_explicit_profile_k_beats_the_model(tmp_path: Path) -> None:
    docs = full()
    docs["presets/plain.yaml"]["model"] = docs["profiles/slow.yaml"]["parent_model"] = "drafting"
    docs["models/drafting.yaml"]["model_family"] = "fam"
    docs["presets/plain.yaml"]["routing"]["default_for_family"] = False
    composed = _compose(tmp_path, docs, "plain")
    assert composed.spec_decode_K == 8
    assert resolve(composed).sources["spec_decode_K"].layer == "model"
    docs["profiles/slow.yaml"]["spec_decode_override"] = {"method": "mtp", "num_speculative_tokens": 1}
    composed = _compose(tmp_path, docs, "plain")
    assert composed.spec_decode_K == 1
    assert resolve(composed).sources["spec_decode_K"].layer == "profile"


def test_environment_goes_by_key(tmp_path: Path) -> None:
    resolved = resolve(_compose(tmp_path, full()))
    assert resolved.values["system_env"] == {"FROM": "profile", "HARDWARE": "1", "MODEL": "1", "PROFILE": "1"}
    layers = {name: resolved.sources[f"system_env.{name}"].layer for name in resolved.values["system_env"]}
    assert layers == {"FROM": "profile", "HARDWARE": "hardware", "MODEL": "model", "PROFILE": "profile"}


def test_pin_kv_and_image_follow_their_owners(tmp_path: Path) -> None:
    docs = full()
    values = resolve(_compose(tmp_path, docs)).values
    assert (values["vllm_pin_required"], values["kv_cache_dtype"]) == ("0.2.dev2", "fp8")
    assert (values["image"], values["image_digest"]) == ("example/engine:1", None)
    assert values["container_name"] == "vllm-m-2x"
    docs["models/m.yaml"]["image"] = docs["profiles/fast.yaml"]["vllm_pin"] = None
    docs["models/m.yaml"]["kv_cache_dtype"] = "fp8"
    values = resolve(_compose(tmp_path, docs)).values
    assert (values["vllm_pin_required"], values["kv_cache_dtype"]) == ("0.1.dev1", "fp8")
    assert values["image"] == "example/rig:1"
    assert values["image_digest"].startswith("example/rig@sha256:")


def test_flags_come_in_one_order(tmp_path: Path) -> None:
    assert resolve(_compose(tmp_path, full())).values["extra_args"] == (
        "--chat-template",
        "/models/m/chat.jinja",
        "--override-generation-config",
        {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "frequency_penalty": 0.1, "presence_penalty": -0.1},
        "--attention-backend",
        "FLASH",
        "--enable-expert-parallel",
        "--swap-space",
        "4",
    )


def test_a_card_never_feeds_composition(tmp_path: Path) -> None:
    docs = full()
    before = resolve(_compose(tmp_path / "a", docs)).values
    card = docs["presets/quick.yaml"]["card"]
    card.update(K=9, engine="llama-cpp", default_for_family=True, routing_family="other")
    card["context"]["max_model_len"] = 1
    assert resolve(_compose(tmp_path / "b", docs)).values == before


CONFLICTS: dict[str, tuple[list[tuple[str, str, Any]], str, str, str]] = {
    "parent model": (
        [("profiles/fast.yaml", "parent_model", "drafting")],
        "presets/quick.yaml",
        "profile",
        "'fast' is a profile of 'drafting', the preset's model is 'm'",
    ),
    "gpus": ([("models/m.yaml", "requires.min_gpu_count", 4)], "presets/quick.yaml", "hardware", "needs 4"),
    "vram": (
        [("models/m.yaml", "requires.min_total_vram_mib", 44001)],
        "presets/quick.yaml",
        "hardware",
        "'h' has 44000 MiB in all, 'm' needs 44001 MiB",
    ),
    "capability": (
        [("models/m.yaml", "requires.min_cuda_capability", [8, 9])],
        "presets/quick.yaml",
        "hardware",
        "'h' promises CUDA capability 8.6, 'm' needs 8.9",
    ),
    "capability 10 is above 9": (
        [("models/m.yaml", "requires.min_cuda_capability", [10, 0])],
        "presets/quick.yaml",
        "hardware",
        "needs 10.0",
    ),
    "blocklist": (
        [("models/m.yaml", "requires.gpu_blocklist", ["a5000"])],
        "presets/quick.yaml",
        "hardware",
        "'h' matches 'a5000', which 'm' refuses",
    ),
    "kv": (
        [("models/m.yaml", "kv_cache_dtype", "turbo")],
        "profiles/fast.yaml",
        "compression_plan.default_kv_dtype",
        "'fp8', but 'm' is fixed to 'turbo'",
    ),
    "structured without drafts": (
        [("profiles/fast.yaml", "spec_decode_override", None)],
        "profiles/fast.yaml",
        "role",
        "'structured' needs speculative decoding",
    ),
    "default with K": (
        [("presets/plain.yaml", "profile", "fast")],
        "presets/plain.yaml",
        "routing.default_for_family",
        "true, but the preset composes to K=4; a family default has K=1",
    ),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_layers_that_do_not_go_together(name: str, tmp_path: Path) -> None:
    changes, file, path, said = CONFLICTS[name]
    docs = full()
    for where, key, value in changes:
        holder, last = holder_of(docs[where], key)
        holder[last] = value
    catalog = load_catalog(write(tmp_path, docs))
    with pytest.raises(CatalogError) as caught:
        compose_all(catalog)
    at = render(docs[file])[1][path].value
    found = [f for f in caught.value.findings if f.file == f"{tmp_path}/{file}" and f.path == path]
    assert [(f.line, f.column, said in f.message) for f in found] == [(*at, True)]
    with pytest.raises(CatalogError):
        compose(catalog, "plain" if file == "presets/plain.yaml" else "quick")


ROUTING: dict[str, tuple[list[tuple[str, str, Any]], str, str, str]] = {
    "rule of a single_preset family": (
        [("routing/families.yaml", "families[0].routing", "single_preset")],
        "routing/rules.yaml",
        "rules[0].model_family",
        "it has no rules",
    ),
    "default of a single_preset family": (
        [("routing/families.yaml", "families[0].routing", "single_preset")],
        "presets/plain.yaml",
        "routing.default_for_family",
        "allowed here: false",
    ),
    "default without a family": (
        [("models/m.yaml", "model_family", "unknown")],
        "presets/plain.yaml",
        "routing.default_for_family",
        "its model declares no family",
    ),
    "two defaults": (
        [("presets/quick.yaml", "routing.default_for_family", True)],
        "presets/quick.yaml",
        "routing.default_for_family",
        "'plain' is the default of 'fam' already",
    ),
    "rule of another family": (
        [("routing/rules.yaml", "rules[0].model_family", "lone")],
        "routing/rules.yaml",
        "rules[0].preset_key",
        "'quick' is of family 'fam', the rule of 'lone'",
    ),
    "gap of another family": (
        [("routing/gaps.yaml", "coverage_gaps[0].model_family", "lone")],
        "routing/gaps.yaml",
        "coverage_gaps[0].fallback_preset",
        "'plain' is of family 'fam', the gap of 'lone'",
    ),
    "family twice": (
        [("routing/families.yaml", "families[1].id", "fam")],
        "routing/families.yaml",
        "families[1].id",
        "'fam' is used twice",
    ),
    "family unknown": (
        [("routing/families.yaml", "families[1].id", "unknown")],
        "routing/families.yaml",
        "families[1].id",
        "'unknown' means no family",
    ),
}


@pytest.mark.parametrize("name", ROUTING)
def test_routing_that_contradicts_itself(name: str, tmp_path: Path) -> None:
    changes, file, path, said = ROUTING[name]
    docs = full()
    for where, key, value in changes:
        holder, last = holder_of(docs[where], key)
        holder[last] = value
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    found = [f for f in caught.value.findings if f.file == f"{tmp_path}/{file}" and f.path == path]
    at = render(docs[file])[1][path].value
    assert [(f.line, f.column, said in f.message) for f in found] == [(*at, True)]


def test_ids_of_rules_and_gaps_are_unique(tmp_path: Path) -> None:
    docs = full()
    docs["routing/rules.yaml"]["rules"] *= 2
    docs["routing/gaps.yaml"]["coverage_gaps"] *= 2
    with pytest.raises(CatalogError) as caught:
        load_catalog(write(tmp_path, docs))
    assert [f.path for f in caught.value.findings] == ["coverage_gaps[1].missing_cell", "rules[1].id"]


EVIDENCE: dict[str, tuple[list[tuple[str, str, Any]], str | None]] = {
    "as it is": ([], None),
    "no comparison": ([("evidence/E1.yaml", "comparison", None)], "has no comparison; 'measured' needs both arms"),
    "inferred needs none": (
        [("evidence/E1.yaml", "comparison", None), ("routing/rules.yaml", "rules[0].evidence_tag", "inferred")],
        None,
    ),
    "target without an arm": (
        [("evidence/E1.yaml", "comparison.arms[0].preset", "old")],
        "no arm of 'E1' is 'quick'; arms: old, plain",
    ),
    "another K": ([("evidence/E1.yaml", "comparison.arms[0].K", 3)], "measured 'quick' at another K"),
    "loses": ([("evidence/E1.yaml", "comparison.arms[0].value", 99.0)], "the arm 'quick' is not better (-1.0 %)"),
    "draws": ([("evidence/E1.yaml", "comparison.arms[0].value", 100)], "is not better (+0.0 %)"),
    "lower is better": (
        [("evidence/E1.yaml", "comparison.metric", "TTFT_ms")],
        "the arm 'quick' is not better (-50.1 %)",
    ),
    "another family": ([("evidence/E1.yaml", "model_family", "lone")], "is about family 'lone'"),
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_carries_its_rule_or_says_why_not(name: str, tmp_path: Path) -> None:
    changes, said = EVIDENCE[name]
    docs = full()
    for where, key, value in changes:
        holder, last = holder_of(docs[where], key)
        holder[last] = value
    catalog = load_catalog(write(tmp_path, docs))
    found = check_evidence(catalog)
    if said is None:
        assert found == []
        return
    line, column = render(docs["routing/rules.yaml"])[1]["rules[0].evidence"].value
    assert [(f.line, f.column, f.path, said in f.message) for f in found] == [(line, column, "rules[0].evidence", True)]
    with pytest.raises(CatalogError):
        compose_all(catalog)


def test_a_citation_is_made_from_the_raw_figures(tmp_path: Path) -> None:
    docs = full()
    catalog = load_catalog(write(tmp_path, docs))
    assert catalog.evidence["E1"].cite("quick") == (
        "P1 (2026-01-02): agg_TPS K=4 200.5 vs K=1 100 at concurrency 8, mode A (+100.5 %); "
        "with a grammar: 250 tokens/s at concurrency 8, mode B; record presets/evidence/E1.yaml"
    )
    docs["evidence/E1.yaml"].update(comparison=None, figures=Raw("[]"), date=None, verdict="K=4 wins \u00fcber")
    catalog = load_catalog(write(tmp_path, docs))
    assert catalog.evidence["E1"].cite("quick") == "P1: K=4 wins \\xfcber; record presets/evidence/E1.yaml"
    assert catalog.evidence["E1"].gain_percent("quick") is None


def test_an_unknown_preset_is_a_key_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        _compose(tmp_path, full(), "nobody")
