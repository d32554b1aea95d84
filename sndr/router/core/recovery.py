"""What an operator may do after something went wrong: attention codes, and the actions each of them leaves.

Attention lives in memory only. It says that the machine stopped where it was and that a person must choose; the choice
is always made through a preview created after the event, and nothing is chosen for anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

__all__ = ["READ_ONLY", "RECOVERY", "Action", "Attention", "AttentionCode", "Standing"]


class Standing(StrEnum):
    """What operators and consumers are told of the machine's state."""

    STOPPED = "stopped"
    IDLE = "idle"
    HELD = "held"
    COMMITTED = "committed"
    UNCERTAIN = "uncertain"


class Action(StrEnum):
    """The actions of `op=recover`."""

    DRAIN = "drain"
    RESUME = "resume"
    CANCEL = "cancel"
    VERIFY = "verify"
    ROLLBACK = "rollback"
    REASSERT = "reassert"


class AttentionCode(StrEnum):
    """Why the machine waits for a person."""

    INTERRUPTED = "interrupted"
    DRAIN_TIMEOUT = "drain_timeout"
    DRAIN_BLOCKED_USAGE = "drain_blocked_usage"
    DRAIN_BLOCKED_LEGACY = "drain_blocked_legacy"
    PRECHECK_FAILED = "precheck_failed"
    CANCEL_TARGET_UNVERIFIED = "cancel_target_unverified"
    VERIFY_FAILED = "verify_failed"
    VERIFY_PENDING = "verify_pending"
    WRITE_FAILED = "write_failed"
    WRITE_UNCERTAIN = "write_uncertain"
    READ_ONLY = "authority_read_only"
    CHANGED_EXTERNALLY = "authority_changed_externally"
    PATH_MOVED = "authority_path_moved"
    LOCK_LOST = "authority_lock_lost"


@dataclass(frozen=True, slots=True)
class Attention:
    """One event that needs a person; `seq` counts them within the process."""

    seq: int
    code: AttentionCode


READ_ONLY: Final = frozenset(
    {AttentionCode.READ_ONLY, AttentionCode.CHANGED_EXTERNALLY, AttentionCode.PATH_MOVED, AttentionCode.LOCK_LOST}
)
"""The file is no longer what this process left there: nothing is written any more, only a restart looks again."""


_BEFORE_COMMIT: Final = (Action.RESUME, Action.CANCEL)
_DRAIN_RAN_OUT: Final = (Action.DRAIN, *_BEFORE_COMMIT)
_AFTER_COMMIT: Final = (Action.VERIFY, Action.ROLLBACK)
_RESTART_ONLY: Final[tuple[Action, ...]] = ()

RECOVERY: Final[Mapping[Standing, Mapping[AttentionCode, tuple[Action, ...]]]] = MappingProxyType(
    {
        Standing.IDLE: MappingProxyType(dict.fromkeys(sorted(READ_ONLY), _RESTART_ONLY)),
        Standing.HELD: MappingProxyType(
            {
                AttentionCode.INTERRUPTED: _BEFORE_COMMIT,
                AttentionCode.DRAIN_TIMEOUT: _DRAIN_RAN_OUT,
                AttentionCode.DRAIN_BLOCKED_USAGE: _DRAIN_RAN_OUT,
                AttentionCode.DRAIN_BLOCKED_LEGACY: _DRAIN_RAN_OUT,
                AttentionCode.PRECHECK_FAILED: _BEFORE_COMMIT,
                AttentionCode.CANCEL_TARGET_UNVERIFIED: _BEFORE_COMMIT,
                AttentionCode.WRITE_FAILED: _BEFORE_COMMIT,
                **dict.fromkeys(sorted(READ_ONLY), _RESTART_ONLY),
            }
        ),
        Standing.COMMITTED: MappingProxyType(
            {
                AttentionCode.INTERRUPTED: _AFTER_COMMIT,
                AttentionCode.VERIFY_FAILED: _AFTER_COMMIT,
                AttentionCode.VERIFY_PENDING: _AFTER_COMMIT,
                AttentionCode.PRECHECK_FAILED: _AFTER_COMMIT,
                AttentionCode.WRITE_FAILED: _AFTER_COMMIT,
                **dict.fromkeys(sorted(READ_ONLY), _RESTART_ONLY),
            }
        ),
        Standing.UNCERTAIN: MappingProxyType(
            {
                # Rollback only where the write of unknown outcome was a commit: it overtakes the revision in doubt.
                AttentionCode.WRITE_UNCERTAIN: (Action.REASSERT, Action.ROLLBACK),
                **dict.fromkeys(sorted(READ_ONLY), _RESTART_ONLY),
            }
        ),
    }
)
"""Per standing and attention, the actions that a recover preview may offer. An absent cell cannot occur."""
