"""The one validator of routes, changes to them, and where a URL leads."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

import pytest

from sndr.router.core import projection as routes
from sndr.router.core.projection import Endpoint, FamilyTarget, OnUnready, Overlap, ProjectionError, TierTarget
from tests.support import records

URL = "http://127.0.0.1:8000/v1"


def _one(**tier: Any) -> dict[str, Any]:
    return {"aliases": {}, "tiers": {"t": {"base_url": URL, **tier}}}


def _findings(document: object, *, fill: bool = True) -> list[tuple[str, str]]:
    with pytest.raises(ProjectionError) as refusal:
        routes.parse(document, fill=fill)
    return [(finding.pointer, finding.message) for finding in refusal.value.findings]


def test_the_short_form_takes_defaults_and_its_long_form_parses_again() -> None:
    projection = routes.parse(
        {
            "aliases": {" LLM.Primary ": {"tier": "t"}, "g": {"family": "f", "natural": "t", "on_unready": "refuse"}},
            "tiers": {"t": {"base_url": f"{URL}/", "serves": ["completions", "chat"]}},
        },
        fill=True,
    )
    tier = projection.tiers["t"]
    assert projection.aliases["llm.primary"] == TierTarget("t")
    assert projection.aliases["g"] == FamilyTarget("f", "t", OnUnready.REFUSE)
    assert (tier.base_url, tier.serves, tier.model_identity, tier.tool_support, tier.stream_usage) == (
        URL,
        ("chat", "completions"),
        True,
        True,
        True,
    )
    assert routes.parse(routes.to_json(projection)) == projection
    assert set(routes.to_json(projection)["tiers"]["t"]) == set(routes.TIER_KEYS)  # type: ignore[index]


def test_every_fault_is_found_at_once() -> None:
    found = _findings(
        {
            "aliases": {"A!": {"tier": "t"}, "b": {"tier": "ghost"}, "c": [], "d": {"tier": 1}},
            "tiers": {"T": {}, "t": {"base_url": 7, "replicas": 2, "colour": "red"}, "u": {}},
            "more": 1,
        }
    )
    pointers = [pointer for pointer, _ in found]
    assert pointers == [
        "/more",
        "/tiers/T",
        "/tiers/t/colour",
        "/tiers/t/replicas",
        "/tiers/t/base_url",
        "/tiers/u/base_url",
        "/aliases/A!",
        "/aliases/b/tier",
        "/aliases/c",
        "/aliases/c/tier",
        "/aliases/d/tier",
    ]
    assert dict(found)["/tiers/t/replicas"] == "replicas is a reserved word and not supported"


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        (None, ""),
        ([], ""),
        ({}, "/aliases"),
        ({"aliases": {}, "tiers": {}}, "/tiers"),
        ({"aliases": {}, "tiers": {f"t{i}": {"base_url": URL} for i in range(65)}}, "/tiers"),
        ({"aliases": {f"a{i}": {"tier": "t"} for i in range(257)}, "tiers": {"t": {"base_url": URL}}}, "/aliases"),
        ({"aliases": {"a ": {"tier": "t"}, "A": {"tier": "t"}}, "tiers": {"t": {"base_url": URL}}}, "/aliases/a "),
        ({"aliases": {1: {}}, "tiers": {"t": {"base_url": URL}}}, "/aliases"),
        (
            {"aliases": {"a": {"family": "f", "natural": "t", "on_unready": "x"}}, "tiers": {"t": {"base_url": URL}}},
            "/aliases/a/on_unready",
        ),
        (
            {
                "aliases": {"a": {"family": "", "natural": "t", "on_unready": "refuse"}},
                "tiers": {"t": {"base_url": URL}},
            },
            "/aliases/a/family",
        ),
        ({"aliases": {"line\nbreak": {}}, "tiers": {"t": {"base_url": URL}}}, "/aliases/line\\u000abreak"),
        (_one(model=""), "/tiers/t/model"),
        (_one(model="x" * 2049), "/tiers/t/model"),
        (_one(model="a\x7fb"), "/tiers/t/model"),
        (_one(model="a\ud800"), "/tiers/t/model"),
        (_one(model=7), "/tiers/t/model"),
        (_one(max_concurrency=0), "/tiers/t/max_concurrency"),
        (_one(max_concurrency=True), "/tiers/t/max_concurrency"),
        (_one(max_concurrency=1.0), "/tiers/t/max_concurrency"),
        (_one(max_concurrency="auto"), "/tiers/t/max_concurrency"),
        (_one(max_output_tokens=2**53), "/tiers/t/max_output_tokens"),
        (_one(total_timeout_ms=0), "/tiers/t/total_timeout_ms"),
        (_one(admission_timeout_ms=-1), "/tiers/t/admission_timeout_ms"),
        (_one(context_limit="huge"), "/tiers/t/context_limit"),
        (_one(context_limit=0), "/tiers/t/context_limit"),
        (_one(auth_env="lower"), "/tiers/t/auth_env"),
        (_one(health_path="health"), "/tiers/t/health_path"),
        (_one(health_path="/a#b"), "/tiers/t/health_path"),
        (_one(serves=[]), "/tiers/t/serves"),
        (_one(serves=["chat", "chat"]), "/tiers/t/serves"),
        (_one(serves=["speech"]), "/tiers/t/serves"),
        (_one(serves="chat"), "/tiers/t/serves"),
        (_one(stream_usage=1), "/tiers/t/stream_usage"),
        (_one(params=[]), "/tiers/t/params"),
        (_one(params={"a": float("nan")}), "/tiers/t/params/a"),
        (_one(params={"a": float("inf")}), "/tiers/t/params/a"),
        (_one(params={"a": 1 / 3}), "/tiers/t/params/a"),
        (_one(params={"a": 2**53}), "/tiers/t/params/a"),
        (_one(params={"a": "x" * 2049}), "/tiers/t/params/a"),
        (_one(params={"a": "\x00"}), "/tiers/t/params/a"),
        (_one(params={"a": object()}), "/tiers/t/params/a"),
        (_one(params={"a": ["x" * 2000] * 3}), "/tiers/t/params"),
        (_one(params={"k" * 2049: 1}), "/tiers/t/params/" + "k" * 2048),
        (_one(params={"a\tb": 1}), "/tiers/t/params/a\\u0009b"),
        (_one(params={1: 1}), "/tiers/t/params"),
        (_one(params={"a": [[[[[[[[1]]]]]]]]}), "/tiers/t/params/a/0/0/0/0/0/0/0"),
    ],
)
@pytest.mark.req("R58")
def test_a_fault_is_named_where_it_is(document: object, pointer: str) -> None:
    found = _findings(document)
    assert pointer in [place for place, _ in found]


def test_line_breaks_are_text_inside_a_body_and_nowhere_else() -> None:
    projection = routes.parse(_one(extra_body_defaults={"stop": ["\n\n", "\t"]}), fill=True)
    assert projection.tiers["t"].extra_body_defaults == {"stop": ("\n\n", "\t")}
    assert _findings(_one(model="a\nb"))


@pytest.mark.req("R14")
def test_the_full_form_has_every_key_and_one_order() -> None:
    document = routes.to_json(routes.parse(_one(), fill=True))
    tier: dict[str, Any] = document["tiers"]["t"]  # type: ignore[index]
    for key in routes.TIER_KEYS:
        short = {name: value for name, value in tier.items() if name != key}
        assert (f"/tiers/t/{key}", "is missing") in _findings({"aliases": {}, "tiers": {"t": short}}, fill=False)
    swapped = {**tier, "serves": ["completions", "chat"]}
    assert _findings({"aliases": {}, "tiers": {"t": swapped}}, fill=False)[0][0] == "/tiers/t/serves"
    slashed = {**tier, "base_url": f"{URL}/"}
    assert _findings({"aliases": {}, "tiers": {"t": slashed}}, fill=False)[0][0] == "/tiers/t/base_url"
    upper = {"aliases": {"A": {"tier": "t"}}, "tiers": {"t": tier}}
    assert _findings(upper, fill=False)[0][0] == "/aliases/A"


@pytest.mark.req("R58")
def test_routes_that_are_too_large_as_a_whole_are_refused() -> None:
    tiers = {f"t{i}": {"base_url": URL, "params": {"a": "x" * 2000, "b": "y" * 1900}} for i in range(30)}
    assert "at most 98304" in _findings({"aliases": {}, "tiers": tiers})[0][1]


@pytest.mark.req("R47")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/v1", "file:///etc/passwd", "http://", "http:///v1", "http://user:pw@h/v1", "http://user@h/v1", "http://h?x=1",
        "http://h/v1#f", "http://h:0/v1", "http://h:/v1", "http://h:99999/v1", "http://0.0.0.0/v1", "http://[::]/v1",
        "http://255.255.255.255/v1",
        "http://169.254.169.254/v1", "http://[fe80::1]/v1",
        "http://224.0.0.1/v1", "http://127.1/v1", "http://0x7f000001/v1", "http://2130706433/v1",
        "http://-h/v1", "http://h..x/v1", "http://[::1/v1", "http://h h/v1", "http://h\\x/v1", "http://é/v1", "http://h/v1\n",
        "HTTP://h/v1", "http://" + "a." * 127 + "b", "http://[v1.x]/v1", 7, "", None,
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_a_tier_is_refused_without_repeating_it(url: object) -> None:
    found = _findings(_one(base_url=url))
    assert [pointer for pointer, _ in found] == ["/tiers/t/base_url"]
    with pytest.raises(ProjectionError) as refusal:
        routes.parse(_one(base_url=url), fill=True)
    assert refusal.value.findings[0].code == "endpoint_invalid"
    assert "pw" not in str(refusal.value)


@pytest.mark.parametrize(
    "url", ["http://h", "https://h.example./v1", "http://my_host:80", "http://[2001:db8::1]:1/a/b", "http://10.0.0.1"]
)
def test_a_plain_url_is_accepted(url: str) -> None:
    assert routes.parse(_one(base_url=url), fill=True).tiers["t"].base_url == url


# --- values


@pytest.mark.req("R10")
def test_a_projection_cannot_be_changed() -> None:
    projection = records.boot(params={"a": [1, {"b": 2}]})
    with pytest.raises(dataclasses.FrozenInstanceError):
        projection.aliases = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        projection.aliases["x"] = TierTarget("primary")  # type: ignore[index]
    params = projection.tiers["primary"].params
    assert params is not None
    with pytest.raises(TypeError):
        params["a"] = 1  # type: ignore[index]
    assert isinstance(params["a"], tuple)
    assert routes.thaw(params) == {"a": [1, {"b": 2}]}


@pytest.mark.req("R42", "R15")
@pytest.mark.parametrize("field", ["extra_body", "extra_body_defaults"])
@pytest.mark.parametrize("member", ["model", "stream", "stream_options", "background"])
def test_no_tier_sets_the_members_that_the_gateway_answers_for(field: str, member: str) -> None:
    for content in ({member: 1}, {"top_k": 5, member: None}):
        with pytest.raises(ProjectionError) as refused:
            routes.parse(_one(**{field: content}), fill=True)
        assert [finding.pointer for finding in refused.value.findings] == [f"/tiers/t/{field}/{member}"]
    assert routes.parse(_one(**{field: {"metadata": {member: 1}}}), fill=True)


@pytest.mark.req("R13")
def test_any_field_changes_the_hash_and_going_back_restores_it() -> None:
    base = records.boot()
    seen = {routes.sha256(base)}
    for change in (
        {"base_url": "http://127.0.0.1:9/v1"},
        {"model": "x"},
        {"extra_body": {"a": 1}},
        {"extra_body": {"a": 1.0}},
        {"extra_body": {"a": True}},
        {"extra_body_defaults": {"a": 1}},
        {"params": {}},
        {"auth_env": "KEY"},
        {"total_timeout_ms": 1},
        {"idle_timeout_ms": 1},
        {"serves": ["chat"]},
        {"tool_support": False},
        {"stream_usage": False},
        {"preset": "p"},
        {"quantization": "q"},
        {"engine": "e"},
        {"context_limit": "upstream"},
        {"health_path": None},
    ):
        changed = records.boot(**change)
        assert changed != base
        seen.add(routes.sha256(changed))
    assert len(seen) == 19
    assert routes.sha256(records.boot()) == routes.sha256(base)
    assert routes.tier_sha256(base.tiers["primary"]) != routes.tier_sha256(base.tiers["secondary"])


def test_one_and_true_are_different_values() -> None:
    one, true = records.boot(params={"a": 1}), records.boot(params={"a": True})
    assert one != true
    assert routes.changed_tiers(one, true) == ("primary",)
    assert routes.apply_tiers(one, {"primary": {"params": {"a": True}}}) == true


def test_a_number_that_json_does_not_have_has_no_canonical_form() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        routes.canonical(float("inf"))


# --- changes


@pytest.mark.req("R22", "R28")
def test_an_alias_moves_and_may_leave_its_tier_without_one() -> None:
    after = routes.apply_aliases(records.boot(), {"llm.primary": {"tier": "secondary"}})
    assert after.aliases["llm.primary"] == TierTarget("secondary")
    assert after.tiers == records.boot().tiers
    assert [change.pointer for change in routes.diff(records.boot(), after)] == ["/aliases/llm.primary/tier"]


@pytest.mark.req("R22", "R108")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"ghost": {"tier": "primary"}}, "unknown_alias"),
        ({"llm.primary": {"tier": "ghost"}}, "unknown_tier"),
        ({"llm.primary": {"tier": "primary"}}, "no_effective_change"),
        ({"llm.primary": {"tier": "secondary"}, "llm.secondary": {"tier": "secondary"}}, "no_effective_change"),
        ({}, "no_effective_change"),
        ({"llm.primary": {"family": "f", "natural": "gone", "on_unready": "refuse"}}, "unknown_tier"),
        ({"llm.primary": {"family": "f", "natural": "primary"}}, "invalid_change"),
        ({"llm.primary": "secondary"}, "invalid_change"),
        ([], "invalid_change"),
    ],
)
def test_an_alias_change_that_is_none_is_refused(change: object, code: str) -> None:
    with pytest.raises(ProjectionError) as refusal:
        routes.apply_aliases(records.boot(), change)
    assert refusal.value.findings[0].code == code


@pytest.mark.req("R30", "R108", "R109")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, "no_effective_change"),
        ([], "invalid_change"),
        ({"ghost": {}}, "unknown_tier"),
        ({"primary": {}}, "no_effective_change"),
        ({"primary": {"model": "m1"}}, "no_effective_change"),
        ({"primary": {"model": "m2"}, "secondary": {"model": "s1"}}, "no_effective_change"),
        ({"primary": {"colour": "red"}}, "invalid_change"),
        ({"primary": {"base_url": "nonsense"}}, "endpoint_invalid"),
        ({"primary": {"replicas": 2}}, "replacement_unsupported"),
        ({"primary": {"max_concurrency": "auto"}}, "replacement_unsupported"),
        ({"primary": {"context_limit": "upstream"}}, "replacement_unsupported"),
        ({"primary": []}, "invalid_change"),
        *(({"primary": {key: None}}, "restart_only") for key in sorted({*routes.BOOT_LOCKED, "id"})),
    ],
)
def test_a_tier_change_that_is_none_is_refused(change: object, code: str) -> None:
    with pytest.raises(ProjectionError) as refusal:
        routes.apply_tiers(records.boot(), change)
    assert refusal.value.findings[0].code == code


@pytest.mark.req("R30")
@pytest.mark.parametrize("key", sorted(routes.REPLACEABLE))
def test_every_replaceable_field_can_be_replaced(key: str) -> None:
    values = {
        "base_url": "http://h/v1", "health_path": "/x", "tool_support": False, "stream_usage": False,
        "extra_body": {}, "extra_body_defaults": {}, "params": {},
    }  # fmt: skip
    text = key in ("model", "engine", "quantization", "preset")
    value = values.get(key, "x" if text else 5)
    after = routes.apply_tiers(records.boot(), {"primary": {key: value}})
    assert [change.pointer for change in routes.diff(records.boot(), after)] == [f"/tiers/primary/{key}"]
    assert routes.changed_tiers(records.boot(), after) == ("primary",)


@pytest.mark.req("R109")
def test_a_tier_with_upstream_metadata_cannot_be_replaced_but_can_be_a_target() -> None:
    before = records.boot(context_limit="upstream")
    with pytest.raises(ProjectionError) as refusal:
        routes.apply_tiers(before, {"primary": {"context_limit": 5}})
    assert refusal.value.findings[0].code == "replacement_unsupported"
    routes.apply_aliases(before, {"llm.secondary": {"tier": "primary"}})


def test_the_same_definition_is_a_change_only_where_that_is_asked_for() -> None:
    assert routes.apply_tiers(records.boot(), {"primary": {}}, allow_same=True) == records.boot()


@pytest.mark.req("R72")
def test_what_only_a_restart_may_change_is_found() -> None:
    boot = routes.to_json(records.boot())
    live: Any = routes.to_json(records.boot())
    live["tiers"]["third"] = {**live["tiers"]["primary"]}
    live["aliases"]["x"] = live["aliases"].pop("llm.secondary")
    live["tiers"]["primary"]["auth_env"] = "KEY"
    live["tiers"]["secondary"]["context_limit"] = "upstream"
    live["aliases"]["llm.primary"] = {"family": "f", "natural": "secondary", "on_unready": "refuse"}
    found = routes.restart_only(routes.parse(boot), routes.parse(live))
    assert [finding.pointer for finding in found] == [
        "/aliases/llm.secondary",
        "/aliases/x",
        "/tiers/third",
        "/tiers/primary/auth_env",
        "/tiers/secondary/context_limit",
    ]
    assert {finding.code for finding in found} == {"restart_only"}
    changed = routes.apply_tiers(records.boot(), {"primary": {"model": "m9"}})
    assert routes.restart_only(records.boot(), changed) == ()


def test_additions_and_removals_are_whole_entries_in_a_diff() -> None:
    boot: Any = routes.to_json(records.boot(params={"a": [1]}))
    del boot["aliases"]["llm.secondary"], boot["tiers"]["secondary"]
    changes = routes.diff(records.boot(), routes.parse(boot))
    assert [change.pointer for change in changes] == [
        "/aliases/llm.secondary",
        "/tiers/primary/params",
        "/tiers/secondary",
    ]
    assert changes[1].after == MappingProxyType({"a": (1,)})
    assert changes[2].after is None
    assert routes.changed_tiers(records.boot(), routes.parse(boot)) == ("primary", "secondary")


def test_a_value_made_by_hand_is_checked() -> None:
    boot = records.boot()
    bad = routes.Projection(MappingProxyType({"x": TierTarget("ghost")}), boot.tiers)
    assert not routes.is_valid(bad)
    assert not routes.is_valid(bad, (boot,))
    assert routes.is_valid(boot)


@pytest.mark.req("R80")
def test_a_rebase_that_keeps_live_changes_takes_names_and_locked_fields_from_the_boot_file() -> None:
    live = routes.apply_tiers(records.boot(), {"primary": {"model": "m2"}, "secondary": {"model": "s2"}})
    live = routes.apply_aliases(live, {"llm.primary": {"tier": "secondary"}})
    boot: Any = routes.to_json(records.boot(auth_env="KEY", model="m3"))
    boot["tiers"]["third"] = {**boot["tiers"]["primary"], "model": "t1"}
    boot["aliases"]["llm.third"] = {"tier": "third"}
    boot["tiers"]["secondary"]["context_limit"] = "upstream"
    merged = routes.merge_live(routes.parse(boot), live)
    assert merged.tiers["primary"].model == "m2"
    assert merged.tiers["primary"].auth_env == "KEY"
    assert merged.tiers["third"].model == "t1"
    assert merged.tiers["secondary"].model == "s1"
    assert merged.aliases["llm.primary"] == TierTarget("secondary")
    del boot["tiers"]["secondary"], boot["aliases"]["llm.secondary"]
    merged = routes.merge_live(routes.parse(boot), live)
    assert merged.aliases["llm.primary"] == TierTarget("primary")
    assert "secondary" not in merged.tiers
    boot["aliases"]["llm.primary"] = {"family": "f", "natural": "primary", "on_unready": "refuse"}
    assert isinstance(routes.merge_live(routes.parse(boot), live).aliases["llm.primary"], FamilyTarget)


# --- endpoints


@pytest.mark.req("R110", "R111")
@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("http://127.0.0.1:80", "http://localhost/v1", Overlap.SAME),
        ("http://127.0.0.1:8000", "http://[::1]:8000/v1", Overlap.SAME),
        ("http://127.9.9.9:8000", "http://LOCALHOST.:8000", Overlap.SAME),
        ("http://[::ffff:127.0.0.1]:1", "http://ip6-localhost:1", Overlap.SAME),
        ("http://x.localhost:1", "http://127.0.0.1:1", Overlap.SAME),
        ("https://h", "http://H.:443", Overlap.SAME),
        ("http://10.0.0.1:1", "http://10.0.0.2:1", Overlap.DIFFERENT),
        ("http://10.0.0.1:1", "http://10.0.0.1:2", Overlap.DIFFERENT),
        ("http://h:1", "http://h:2", Overlap.DIFFERENT),
        ("http://h:1", "http://127.0.0.1:1", Overlap.UNPROVABLE),
        ("http://h:1", "http://g:1", Overlap.UNPROVABLE),
        ("http://[2001:db8:0::1]:1", "http://[2001:db8::1]:1", Overlap.SAME),
    ],
)
def test_endpoints_are_compared_as_far_as_spelling_tells(one: str, other: str, overlap: Overlap) -> None:
    assert routes.compare_endpoints(routes.endpoint(one), routes.endpoint(other)) is overlap
    assert routes.compare_endpoints(routes.endpoint(other), routes.endpoint(one)) is overlap


def test_an_endpoint_has_its_scheme_and_port() -> None:
    assert routes.endpoint("https://Example.com/v1") == Endpoint("https", "example.com", 443, False)
