"""Which tiers a family alias promises limits for: exactly those that some request can be sent to."""

from __future__ import annotations

import json
from itertools import product
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sndr.contract import CONCURRENCY_MODES, OUTPUT_LENGTHS, load
from sndr.router.core.admission import Admission
from sndr.router.core.family import compile_families, serving
from sndr.router.core.projection import parse
from sndr.router.gateway.workload import Workload
from sndr.router.wire import openai_api
from sndr.router.wire.routing_table import TableState
from tests.support.contract_vectors import row, rule, table

PRESETS = ("p0", "p1", "p2")
TIERS = ("t0", "t1", "t2")
REQUESTS: dict[str, dict[str, Any]] = {
    "tool_call": {"tools": [1]},
    "structured_json": {"response_format": {"type": "json_object"}},
    "code_gen": {"category": "code"},
    "free_chat": {},
}


def some(values: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), min_size=1, unique=True)


RULES = st.lists(
    st.tuples(
        st.sampled_from(PRESETS),
        st.fixed_dictionaries(
            {},
            optional={
                "workload_class": some((*REQUESTS, "summarization")),
                "expected_output_length": some(OUTPUT_LENGTHS),
                "concurrency_mode": some(CONCURRENCY_MODES),
            },
        ),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=300)
@given(
    rules=RULES,
    default=st.sampled_from((*PRESETS, None)),
    depths=st.tuples(*[st.sampled_from((1, 4))] * 3),
    bound=st.one_of(st.permutations(PRESETS), st.tuples(*[st.sampled_from((None, *PRESETS))] * 3)),
    natural=st.sampled_from(TIERS),
    on_unready=st.sampled_from(("family_default", "refuse")),
)
def test_an_alias_is_served_by_the_tiers_that_its_requests_reach_and_by_no_other(
    rules: list[Any], default: str | None, depths: tuple[int, ...], bound: Any, natural: str, on_unready: str
) -> None:
    rows = [row(key, k=depth, default=key == default) for key, depth in zip(PRESETS, depths, strict=True)]
    loaded = load(table(rows, [rule(target, when) for target, when in rules], []))
    state = TableState("t", loaded, None)
    family = rows[0]["model_family"]
    routes = parse(
        {
            "aliases": {"x": {"family": family, "natural": natural, "on_unready": on_unready}},
            "tiers": {
                tier: {"base_url": f"http://h:{port}/v1", "preset": preset}
                for port, (tier, preset) in enumerate(zip(TIERS, bound, strict=True), 1)
            },
        },
        fill=True,
    )
    route = compile_families(routes, state.presets, Admission().gate)["x"]
    takes: set[str] = set()
    workload = Workload(loaded, lambda runtime: runtime in takes)  # type: ignore[comparison-overlap]
    snapshot: Any = SimpleNamespace(runtimes={tier: tier for tier in TIERS})
    head: Any = SimpleNamespace(fields={}, headers=[])
    reached, depth_of = set(), dict(zip(PRESETS, depths, strict=True))
    for members, length, busy in product(REQUESTS.values(), OUTPUT_LENGTHS, (0, 1)):
        route.gates[0].leases = busy
        body = {"model": "x", "expected_length": length, **members}
        request = openai_api.parse(json.dumps(body).encode())
        for ready in product((False, True), repeat=3):
            takes.clear()
            takes.update(tier for tier, takes_it in zip(TIERS, ready, strict=True) if takes_it)
            tier, routing = workload.choose(route, snapshot, "chat", request, head)
            reached.add(tier)
            assert routing is not None
            if routing.substitute == "on_unready":
                chosen = routing.decision.preset_key
                assert tier in takes
                assert chosen is not None
                assert default is not None
                assert depth_of[chosen] > 1 or depth_of[default] == 1, "from K=1 up to K>1"
    assert reached | {natural} == set(route.serving) == set(serving(routes, state.presets)["x"])
    assert route.serving[0] == natural
