"""Whatever an operator sends to a preview or an apply is answered, and by a code that is documented."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sndr.errors import ControlError, RequestError
from sndr.router.wire.operator_api import PROBLEMS
from tests.support.routes_world import RoutesWorld

VALID: list[dict[str, Any]] = [
    {"op": "alias_update", "aliases": {"x": {"tier": "b"}}, "ttl_s": 60},
    {"op": "tier_replacement", "tiers": {"a": {"model": "m2", "params": {"k": [1, {"n": None}]}}}, "mode": "apply"},
    {"op": "rollback", "mode": "prepare", "accept_unready": True},
    {"op": "resume", "transaction_id": "t", "evidence": {"campaign": {"id": "c", "sha256": "0"}, "containers": {}}},
    {"op": "recover", "transaction_id": None, "action": "reassert"},
    {"preview_id": "p", "preview_sha256": "0" * 64, "confirm": True, "drain_timeout_s": 5, "verify_timeout_s": 0},
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(["a", "b", "x", "auto", "upstream", "http://127.0.0.1:8002/v1", "\ud800", "\x00", "A" * 3000]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["op", "tiers", "a", "model", "x", "tier", "serves", "\ud800", "é"]), inner)
    ),
    max_leaves=8,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A valid body with some of its places changed, or bytes of any kind."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    document: Any = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 3))):
        place = document
        while isinstance(place, dict) and place:
            key = draw(st.sampled_from(sorted(place)))
            if draw(st.booleans()) or not isinstance(place[key], dict):
                if draw(st.integers(0, 4)) == 0:
                    del place[key]
                else:
                    place[key] = draw(values)
                break
            place = place[key]
        if draw(st.integers(0, 3)) == 0:
            document[draw(st.text(max_size=5))] = draw(values)
    return json.dumps(document, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


@pytest.mark.req("R96", "R92")
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies(), applies=st.booleans(), held=st.booleans())
def test_every_body_has_an_answer(body: bytes, applies: bool, held: bool) -> None:
    world = RoutesWorld()
    try:
        if held:
            change = {"a": {"base_url": "http://127.0.0.1:8003/v1", "model": "m1"}}
            world.run(world.change(op="tier_replacement", tiers=change, mode="prepare"))
        written, machine = list(world.authority.kinds), world.coordinator.machine
        try:
            answer = world.run(world.routes.apply(body) if applies else world.routes.preview(body))
        except (ControlError, RequestError) as refusal:
            assert refusal.code in PROBLEMS
        else:
            json.dumps(answer, allow_nan=False).encode()
        assert (world.authority.kinds, world.coordinator.machine) == (written, machine)
        world.check()
    finally:
        world.close()
