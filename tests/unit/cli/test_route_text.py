"""Previews, receipts, progress and advice as text; what words on the command line mean."""

from __future__ import annotations

from typing import Any

import click
import pytest

from sndr.cli.router.advice import ADVICE, NOT_ACHIEVED, UNSAFE, Where, exit_code, next_commands
from sndr.cli.router.change import Progress
from sndr.cli.router.routes import parse_aliases, parse_fields, refused_checks
from sndr.cli.router.routes_text import holds_text, preview_text, receipt_text
from sndr.cli.router.usage import coverage_text
from sndr.router.wire.operator_api import PROBLEMS

HERE = Where("/etc/sndr/router.toml", None, None)
SHA = "ab" * 32

PREVIEW: dict[str, Any] = {
    "op": "tier_replacement", "applicable": True, "transaction_id": "t1", "scope": ["big"],
    "base": {"authority_id": "i", "route_revision": 6, "effective_route_sha256": SHA},
    "diff": [
        {"path": "/tiers/big/model", "from": "m1", "to": "m2"},
        {"path": "/tiers/big/max_concurrency", "from": None, "to": 8},
    ],
    "affected": {"aliases": ["llm.primary"], "in_flight": 1},
    "checks": [
        {"name": "candidate_identity", "ok": True, "code": None, "blocking": True, "tier": "big"},
        {"name": "served_identity", "ok": False, "code": "identity_mismatch", "blocking": False, "reason": "gone"},
    ],
    "requires": ["confirm", "evidence"],
    "will": ["hold", "drain", "commit", "publish", "verify", "readmit"],
}  # fmt: skip

RECEIPT: dict[str, Any] = {
    "op": "tier_replacement", "state": "completed", "replayed": False, "scope": ["big"], "held": False,
    "changed": {
        "from": {"route_revision": 6, "effective_route_sha256": "0" * 64},
        "to": {"route_revision": 7, "effective_route_sha256": SHA},
    },
    "drain": {"finished": 3, "cut": 0}, "identity": {"observed": ["m2"]},
    "streams": {"in_scope_finished": 3, "cut": 0}, "attention": None, "next": [],
}  # fmt: skip


def view(**transaction: Any) -> dict[str, Any]:
    return {
        "route_revision": 6,
        "transaction": {"id": "t1", "hold": True, "state": "held", "committed_revision": None, **transaction},
        "tiers": [
            {"id": "big", "held": True, "leases": {"1": 2, "7": 1}, "unresolved": 3},
            {"id": "small", "held": False, "leases": {"1": 9}, "unresolved": 9},
        ],
        "attention": None,
        "next": ["cancel"],
    }


def test_a_preview_shows_the_difference_who_is_affected_and_the_checks() -> None:
    assert preview_text(PREVIEW) == (
        "tier_replacement of revision 6 (abababababab)\n"
        "  /tiers/big/model: m1 -> m2\n"
        "  /tiers/big/max_concurrency: null -> 8\n"
        "aliases affected: llm.primary; 1 stream running\n"
        "held meanwhile: big\n"
        "  ok    candidate_identity big\n"
        "  WARN  served_identity: identity_mismatch (gone)\n"
        "requires: evidence to resume\n"
        "steps: hold, drain, commit, publish, verify, readmit\n"
    )


def test_only_checks_that_block_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        {"name": "target_ready", "ok": False, "code": "target_not_ready", "blocking": True},
        {"name": "warned", "ok": False, "code": "identity_mismatch", "blocking": False},
    ]
    assert refused_checks({"checks": checks}) == 1
    assert capsys.readouterr().err == (
        "sndr router: target_not_ready: not applicable: target_not_ready; nothing was changed\n"
    )
    checks.append({"name": "admitting", "ok": False, "code": "target_not_admitting", "blocking": True})
    assert refused_checks({"checks": checks}) == 3


def test_a_receipt_counts_the_streams_and_claims_no_weights() -> None:
    assert receipt_text(RECEIPT, HERE) == (
        "tier_replacement completed: revision 6 -> 7 (abababababab)\n"
        "tiers big: admitting\n"
        "streams in scope: 3 finished, 0 cut\n"
        "served: m2 (an advertised name, no proof of weights)\n"
    )
    held = {**RECEIPT, "state": "held", "held": True, "identity": None, "replayed": True, "next": ["resume", "cancel"]}
    held["changed"] = {"from": RECEIPT["changed"]["from"], "to": None}
    assert receipt_text(held, HERE) == (
        "tier_replacement held (applied before; nothing done now)\n"
        "tiers big: still held\n"
        "streams in scope: 3 finished, 0 cut\n"
        "next: sndr router resume --config /etc/sndr/router.toml\n"
        "next: sndr router cancel --config /etc/sndr/router.toml\n"
    )


EVIL = "\x1b[2J\nyes\r\u202e\xe9"
"""What a terminal would act on: clears the screen, fakes a line, turns the writing around."""


def test_words_of_others_stay_on_their_line_and_never_reach_the_terminal_as_commands() -> None:
    counted = {"requests": 1, "share": 1.0}
    route = {"outcome": "rule", "rule_id": EVIL, "preset_key": EVIL, "substitute": None, "tier": "k4", **counted}
    family = {"family": EVIL, "requests": 1, "routes": [route], "gaps": [{"gap": EVIL, **counted}], "siblings": []}
    texts = (
        coverage_text({"families": [family]}),
        preview_text({**PREVIEW, "diff": [{"path": "/tiers/big/model", "from": "m1", "to": EVIL}]}),
        receipt_text({**RECEIPT, "identity": {"observed": [EVIL]}}, HERE),
    )
    for text in texts:
        assert text.isascii()
        assert text.replace("\n", "").isprintable()
        assert "\\x1b[2J\\nyes\\x0d\\u202e\\xe9" in text
    assert texts[0].startswith("family \\x1b[2J\\nyes\\x0d\\u202e\\xe9: 1 request\n")


def test_holds_are_listed_with_what_runs_there() -> None:
    text = holds_text(view(), HERE)
    assert text.splitlines()[1] == "big   3        1: 2, 7: 1     3"
    assert "small" not in text
    assert holds_text({**view(), "tiers": [], "next": []}, HERE) == "no tier is held\n"


def test_the_next_commands_can_be_pasted() -> None:
    place = {"attention": None, "next": ["resume", "cancel"]}
    where = Where(None, "unix:/run/my gateway", "KEY")
    assert next_commands(place, where)[1] == "sndr router cancel --url 'unix:/run/my gateway' --auth-env KEY"
    after = {"attention": "verify_failed", "next": ["verify", "rollback"]}
    assert next_commands(after, HERE)[0] == "sndr router recover --action verify --config /etc/sndr/router.toml"
    assert next_commands({}, HERE) == []


@pytest.mark.parametrize(
    ("status", "code", "exits"),
    [
        (504, "drain_timeout", 1),
        (502, "identity_mismatch", 1),
        (409, "target_not_ready", 1),
        (409, "drain_blocked_usage", 1),
        (507, "authority_no_space", 1),
        (400, "invalid_change", 2),
        (403, "operator_required", 2),
        (404, "not_found", 2),
        (409, "preview_stale", 3),
        (412, "precondition_failed", 3),
        (422, "mixed_change", 3),
        (428, "confirmation_required", 3),
        (500, "authority_write_uncertain", 4),
        (503, "authority_lock_lost", 4),
    ],
)
def test_exit_codes(status: int, code: str, exits: int) -> None:
    assert exit_code(status, code) == exits


def test_the_codes_with_exits_of_their_own_exist() -> None:
    assert set(PROBLEMS) >= UNSAFE | NOT_ACHIEVED
    assert set(ADVICE) >= UNSAFE | NOT_ACHIEVED


def test_aliases_on_the_command_line() -> None:
    assert parse_aliases(("llm.primary=big", "a=b")) == {"llm.primary": {"tier": "big"}, "a": {"tier": "b"}}
    assert parse_aliases(("g=fam@k1", "h=fam@k1@family_default")) == {
        "g": {"family": "fam", "natural": "k1", "on_unready": "refuse"},
        "h": {"family": "fam", "natural": "k1", "on_unready": "family_default"},
    }
    for words in (("x",), ("=b",), ("a=",), ("a=b", "a=c")):
        with pytest.raises(click.UsageError):
            parse_aliases(words)


def test_fields_on_the_command_line() -> None:
    words = (
        "model=7",
        "max_concurrency=8",
        "engine=null",
        'params={"k": 1}',
        "tool_support=true",
        'new="x"',
        "context_limit=upstream",
    )
    assert parse_fields(words) == {
        "model": "7", "max_concurrency": 8, "engine": None, "params": {"k": 1}, "tool_support": True, "new": "x",
        "context_limit": "upstream",
    }  # fmt: skip
    assert parse_fields(("auth_env=KEY", 'serves=["chat"]')) == {"auth_env": "KEY", "serves": ["chat"]}
    for word in ("model", "=x"):
        with pytest.raises(click.UsageError):
            parse_fields((word,))
    with pytest.raises(click.UsageError):
        parse_fields(("model=a", "model=b"))


def test_progress_says_each_step_once_and_the_streams_that_are_left() -> None:
    said: list[str] = []
    progress = Progress(PREVIEW, said.append)
    progress.show(None)
    progress.show({**view(), "transaction": None})
    progress.show(view(id="another"))
    assert said == []
    progress.show(view())
    progress.show(view())
    one = view()
    one["tiers"][0]["leases"] = {"1": 1}
    progress.show(one)
    one["tiers"][0]["leases"] = {"1": 0}
    progress.show(one)
    progress.show(view(state="committed", committed_revision=7, drain={"finished": 3, "cut": 0}))
    progress.end(RECEIPT)
    progress.end(RECEIPT)
    assert said == [
        "hold     big takes no new requests\n",
        "drain    3 streams left\n",
        "drain    1 stream left\n",
        "drain    3 streams finished, 0 cut\n",
        "commit   revision 7 is on disk\n",
        "publish  revision 7 is in force\n",
        "verify   the server says m2\n",
        "readmit  big takes requests again\n",
    ]


def test_progress_of_an_alias_update_has_no_hold() -> None:
    said: list[str] = []
    receipt = {**RECEIPT, "scope": [], "drain": None, "identity": None}
    Progress({**PREVIEW, "scope": [], "will": ["commit", "publish"]}, said.append).end(receipt)
    assert said == ["commit   revision 7 is on disk\n", "publish  revision 7 is in force\n"]


def test_progress_of_a_prepare_stops_at_the_hold() -> None:
    said: list[str] = []
    receipt = {**RECEIPT, "state": "held", "changed": {"from": RECEIPT["changed"]["from"], "to": None}}
    Progress({**PREVIEW, "will": ["hold", "drain"]}, said.append).end(receipt)
    assert said == ["hold     big takes no new requests\n", "drain    3 streams finished, 0 cut\n"]
