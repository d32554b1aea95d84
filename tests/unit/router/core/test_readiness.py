"""Readiness: thresholds both ways, what decides at once, what says nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sndr.router.core.projection import Tier
from sndr.router.core.readiness import (
    Observation,
    Reason,
    Thresholds,
    TierReadiness,
    initial,
    judge_health,
    judge_models,
    needs_probe,
    proven,
    step,
)

TIER = Tier(base_url="http://h:1/v1", model="m1", health_path="/health")
PASSED = Observation(True, Reason.IDENTITY_PASSED, ("m1",), 4096)
TIMED_OUT = Observation(False, Reason.TIMEOUT)
REFUSED = Observation(False, Reason.UNREACHABLE)
WRONG = Observation(False, Reason.IDENTITY_MISMATCH, ("m2",))


def run(*seen: Observation, failures: int = 2, successes: int = 1, is_serving: bool = False) -> TierReadiness:
    state = initial(TIER)
    for at, one in enumerate(seen):
        state = step(state, one, Thresholds(failures, successes), at=float(at), is_serving=is_serving)
    return state


def test_unknown_is_unready() -> None:
    assert initial(TIER) == TierReadiness(False, Reason.NOT_PROBED)


def test_without_a_health_path_a_tier_counts_as_ready_and_stays_so() -> None:
    tier = replace(TIER, health_path=None)
    state = initial(tier)
    assert (state.ready, state.reason, needs_probe(tier)) == (True, Reason.NOT_CONFIGURED, False)
    assert step(state, REFUSED, Thresholds(1, 1), at=1.0, is_serving=False).ready
    assert needs_probe(replace(tier, context_limit="upstream"))


@pytest.mark.parametrize("successes", [1, 2, 3])
def test_it_takes_so_many_passes_to_become_ready(successes: int) -> None:
    assert not run(*[PASSED] * (successes - 1), successes=successes).ready
    state = run(*[PASSED] * successes, successes=successes)
    assert (state.ready, state.reason, state.models, state.context_limit) == (True, PASSED.reason, ("m1",), 4096)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_it_takes_so_many_failures_in_a_row_to_become_unready(failures: int) -> None:
    almost = run(PASSED, *[REFUSED] * (failures - 1), failures=failures)
    assert (almost.ready, almost.reason) == (True, Reason.IDENTITY_PASSED)
    gone = run(PASSED, *[REFUSED] * failures, failures=failures)
    assert (gone.ready, gone.reason) == (False, Reason.UNREACHABLE)
    assert run(PASSED, *[REFUSED] * (failures - 1), PASSED, *[REFUSED] * (failures - 1), failures=failures).ready


def test_another_models_name_ejects_at_once() -> None:
    state = run(PASSED, WRONG, failures=5)
    assert (state.ready, state.reason, state.models) == (False, Reason.IDENTITY_MISMATCH, ("m2",))


def test_a_probe_that_timed_out_does_not_eject_a_tier_that_is_streaming() -> None:
    assert run(PASSED, *[TIMED_OUT] * 10, is_serving=True).ready
    assert not run(PASSED, *[TIMED_OUT] * 2, is_serving=False).ready
    assert not run(PASSED, *[REFUSED] * 2, is_serving=True).ready


def test_a_lack_of_our_own_descriptors_changes_nothing() -> None:
    state = run(PASSED, *[Observation(False, Reason.NO_RESOURCES)] * 5)
    assert (state.ready, state.failures, state.checked_at) == (True, 0, 5.0)


def test_a_fresh_proof_decides_alone() -> None:
    assert proven(initial(TIER), PASSED, at=1.0).ready
    assert not proven(run(PASSED), REFUSED, at=1.0).ready


@pytest.mark.parametrize(
    ("status", "reason"),
    [(200, Reason.HEALTH_PASSED), (204, Reason.HEALTH_PASSED), (301, Reason.REDIRECT), (503, Reason.HEALTH_STATUS)],
)
def test_health_is_2xx(status: int, reason: Reason) -> None:
    assert judge_health(status) is reason


def models(*names: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name, "max_model_len": 8192} for name in names]}).encode()


def test_identity_is_one_entry_equal_byte_for_byte() -> None:
    assert judge_models(TIER, 200, models("lora", "m1")) == Observation(
        True, Reason.IDENTITY_PASSED, ("lora", "m1"), 8192
    )
    for name in ("m1 ", "M1", "org/m1", "m"):
        assert judge_models(TIER, 200, models(name)).reason is Reason.IDENTITY_MISMATCH


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"data":{}}', b'{"data":[1]}', b'{"data":[{"id":1}]}', b'{"data":[{}]}', b"\xff",
        b'{"data":[],"data":[{"id":"m1"}]}', b'{"data":[{"id":"m2","id":"m1"}]}', b'{"data":[{"id":"m1","x":NaN}]}',
        rb'{"data":[{"id":"m1"},{"id":"\ud800"}]}', rb'{"data":[{"id":"m1"},{"id":"\u0000"}]}',
        rb'{"data":[{"id":"m1"},{"id":"\n"}]}', b'{"data":[{"id":"m1"},{"id":""}]}',
        b'{"data":[{"id":"m1"},{"id":"' + b"a" * 2049 + b'"}]}', b"[" * 100_000,
        b'\xef\xbb\xbf{"data":[{"id":"m1"}]}', '{"data":[{"id":"m1"}]}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_a_list_that_leaves_doubt_proves_nothing(body: bytes) -> None:
    assert judge_models(TIER, 200, body).reason is Reason.IDENTITY_MALFORMED


def test_what_is_proven_is_among_what_was_seen_however_long_the_list_is() -> None:
    seen = judge_models(TIER, 200, models(*(f"lora-{number}" for number in range(40)), "m1"))
    assert (seen.reason, seen.models[0], len(seen.models)) == (Reason.IDENTITY_PASSED, "m1", 16)


def test_the_lists_status_counts() -> None:
    assert judge_models(TIER, 401, models("m1")).reason is Reason.IDENTITY_STATUS
    assert judge_models(TIER, 302, models("m1")).reason is Reason.REDIRECT


def test_without_identity_only_the_context_length_is_read() -> None:
    tier = replace(TIER, model_identity=False, context_limit="upstream")
    assert judge_models(tier, 200, models("m1")) == Observation(True, Reason.HEALTH_PASSED, ("m1",), 8192)
    assert judge_models(tier, 200, models("m2")).context_limit is None


@pytest.mark.parametrize("seen", [REFUSED, WRONG, PASSED])
def test_a_proof_about_a_tier_that_is_not_probed_is_shown_and_decides_nothing(seen: Observation) -> None:
    state = replace(initial(replace(TIER, health_path=None)), models=("old",))
    after = proven(state, seen, at=5.0)
    assert (after.ready, after.reason, after.checked_at) == (True, Reason.NOT_CONFIGURED, 5.0)
    assert after.models == (seen.models or ("old",))


def test_a_proof_that_this_process_could_not_make_changes_nothing() -> None:
    state = run(PASSED)
    assert proven(state, Observation(False, Reason.NO_RESOURCES), at=9.0) == replace(state, checked_at=9.0)


def test_long_names_are_kept_as_far_as_a_view_has_room() -> None:
    seen = judge_models(TIER, 200, models(*(f"{number}" * 2_000 for number in range(9)), "m1"))
    assert (seen.reason, seen.models) == (Reason.IDENTITY_PASSED, ("0" * 2_000, "1" * 2_000, "m1"))
    assert judge_models(replace(TIER, model="8" * 2_000), 200, models(*seen.models, "8" * 2_000)).models == (
        "8" * 2_000, *seen.models
    )  # fmt: skip
