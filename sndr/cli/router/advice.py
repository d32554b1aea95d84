"""What a failed route change means for whoever made it: exit code, advice, and the commands that are legal next.

One table serves the verbs and the operator guide; a test holds it against every code that the gateway can answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

__all__ = ["ADVICE", "NOT_ACHIEVED", "UNSAFE", "Where", "exit_code", "next_commands"]

UNSAFE: Final = frozenset(
    {
        "authority_changed_externally",
        "authority_lock_lost",
        "authority_path_moved",
        "authority_read_only",
        "authority_write_uncertain",
    }
)
"""The authority is unsafe, or a write's outcome is unknown: exit 4."""

NOT_ACHIEVED: Final = frozenset(
    {
        "cancel_target_unverified",
        "drain_blocked_legacy",
        "drain_blocked_usage",
        "precheck_failed",
        "target_not_ready",
    }
)
"""Conflicts by their HTTP status which say that a try did not come to its end, not that it was turned away: exit 1."""

_CONFLICTS: Final = frozenset({409, 412, 422, 428})

_FIX: Final = "nothing changed; correct the change and make a new preview"
_RESTART: Final = "nothing is written any more; find out who touched the file, then restart the gateway"

ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        # the request
        "invalid_request": "nothing changed; the detail says what is wrong with the request",
        "invalid_timeout": "nothing changed; give whole seconds: drain 1 to 900, verify 0 to 120",
        "invalid_change": _FIX,
        "change_too_large": "nothing changed; change less at once",
        "operator_required": "nothing changed; use the operator's credential",
        "not_found": "the gateway runs without a route authority: set server.route_state_path and run init",
        "confirmation_required": "nothing changed; add --confirm",
        # the preview
        "preview_unknown": "nothing changed; the preview is gone (a restart, or newer ones): make a new one",
        "preview_expired": "nothing changed; make a new preview and apply it in time",
        "preview_stale": "nothing changed; something moved since the preview: make a new one and read it again",
        "preview_consumed": "the preview was used already: look at the status, then make a new one",
        "preview_mismatch": "nothing changed; the hash is not the preview's: copy both from one preview",
        "precondition_failed": "nothing changed; the routes are not at the revision that If-Match names",
        # the state
        "transaction_in_progress": "nothing changed; finish or cancel the change at hand first",
        "no_transaction": "nothing changed; no change is under way",
        "transaction_changed": "somebody else moved the change on: look at the status",
        "already_committed": "nothing changed; after the commit roll back instead of cancelling",
        "not_committed": "nothing changed; before the commit resume or cancel",
        "recovery_required": "nothing changed; the change at hand needs a recovery, chosen by a person",
        "no_previous": "nothing changed; there are no earlier routes to go back to",
        "no_effective_change": "nothing to do; the routes are like this already",
        "management_busy": "nothing changed; another management call is running: repeat in a moment",
        "shutting_down": "the gateway is stopping; the state stays as it is on disk: look again after the restart",
        # the change
        "unknown_alias": _FIX,
        "unknown_tier": _FIX,
        "mixed_change": "nothing changed; change aliases and tiers one after the other",
        "restart_only": "nothing changed; this field changes with the boot file and init --rebase",
        "replacement_unsupported": "nothing changed; this tier cannot be replaced live: boot file and restart",
        "identity_required": "nothing changed; give the tier model, health_path and model_identity first",
        "endpoint_invalid": _FIX,
        "shared_endpoint": "nothing changed; another kind of traffic uses this server, and its end cannot be proven",
        "shared_endpoint_unprovable": "nothing changed; write the server's address as numbers, so that it compares",
        "endpoint_overlap": "nothing changed; another tier uses this server: replace both in one change",
        "revision_exhausted": "nothing changed; no revision number is left: make a new authority file",
        # the target
        "target_not_ready": "nothing changed; get the target's server ready, then make a new preview",
        "readiness_not_configured": "nothing changed; a target needs a health_path, so that readiness can be seen",
        "target_not_admitting": "nothing changed; readmit the target tier, or wait for the change that holds it",
        "precheck_failed": "nothing committed; get the right model served there, then recover",
        "cancel_target_unverified": "still held; get the original model served again, then cancel, or resume",
        "identity_mismatch": "committed and held: the server serves another model; correct it and verify, or roll back",
        "identity_unavailable": "committed and held: the server does not answer; start it and verify, or roll back",
        # the drain
        "drain_timeout": "held, every stream goes on; wait again, resume, or cancel",
        "drain_blocked_usage": "held; rows of the ledger have no end: usage reconcile --confirm, then recover",
        "drain_blocked_legacy": "held; old rows of the ledger have no end: usage reconcile --confirm, then recover",
        # evidence
        "evidence_required": "nothing changed; a managed change resumes with --evidence FILE only",
        "evidence_invalid": "nothing changed; correct the evidence file",
        "evidence_mismatch": "nothing changed; the evidence is of another tier or model, or from before the hold",
        "evidence_replayed": "nothing changed; this evidence was used before: observe the container again",
        # the disk
        "authority_write_failed": "the last durable state stands; the log says why the write failed; repeat",
        "authority_no_space": "the last durable state stands; make room on the disk, then repeat",
        "authority_write_uncertain": "routes unchanged in memory, unknown on disk: recover --action reassert",
        "authority_read_only": _RESTART,
        "authority_changed_externally": _RESTART,
        "authority_path_moved": _RESTART,
        "authority_lock_lost": _RESTART,
        # attention that is no answer's code
        "interrupted": "the gateway was restarted in the middle; the scope is held: choose how to go on",
        "verify_failed": "committed and held; correct the server and verify, or roll back",
        "verify_pending": "rolled back and held; start the earlier model, then verify",
        "write_failed": "the last durable state stands; free the disk, then choose how to go on",
        "write_uncertain": "routes unchanged in memory, unknown on disk: recover --action reassert",
    }
)
"""Code -> what is the case, and what to do."""


@dataclass(frozen=True, slots=True)
class Where:
    """How the gateway was named on the command line, to name it so again."""

    config_path: str | None
    url: str | None
    auth_env: str | None

    def command(self, *words: str) -> str:
        """A command to paste."""
        named = (("--config", self.config_path), ("--url", self.url), ("--auth-env", self.auth_env))
        options = [word for option, value in named if value is not None for word in (option, value)]
        return shlex.join(["sndr", "router", *words, *options])


def exit_code(status: int, code: str) -> int:
    """What a refused call ends with."""
    if code in UNSAFE:
        return 4
    if code in NOT_ACHIEVED:
        return 1
    if status in _CONFLICTS:
        return 3
    return 2 if status < 500 else 1


def next_commands(place: Mapping[str, Any], where: Where) -> list[str]:
    """The legal next steps of the change at hand, as commands.

    Args:
        place: A problem, a receipt or the view: the members `next` and `attention`, and whether it is managed.
    """
    actions: Sequence[str] = [action for action in place.get("next") or () if isinstance(action, str)]
    verb = ("recover", "--action") if place.get("attention") is not None else ()
    return [where.command(*verb, action) for action in actions]
