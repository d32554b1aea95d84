"""The generated parts of docs/live-routes-machine.md.

python -m tests.support.machine_docs     writes them again
"""

from __future__ import annotations

from pathlib import Path

from sndr.router.core import effects as fx
from sndr.router.core.recovery import READ_ONLY, RECOVERY, AttentionCode
from sndr.router.core.transaction import STANDINGS, TRANSITIONS, State
from tests.support.machine_mutants import MUTANTS, SURVIVORS, WHAT

PAGE = Path(__file__).parent.parent.parent / "docs" / "live-routes-machine.md"
COMMANDS = (fx.UpdateAliases, fx.ReplaceTiers, fx.RollBack, fx.Drain, fx.Resume, fx.Cancel, fx.Verify, fx.Reassert)

ADVICE = {
    AttentionCode.INTERRUPTED: "the process ended, or a record was re-asserted, while the transaction was open",
    AttentionCode.DRAIN_TIMEOUT: "streams of the scope outlived the wait; they go on",
    AttentionCode.DRAIN_BLOCKED_USAGE: "usage rows of the scope have no end; `sndr router usage reconcile --confirm`",
    AttentionCode.DRAIN_BLOCKED_LEGACY: "unresolved rows from before the ledger knew tiers; reconcile them",
    AttentionCode.PRECHECK_FAILED: "the proposed server did not prove itself; nothing was committed for it",
    AttentionCode.CANCEL_TARGET_UNVERIFIED: "the original server no longer proves itself; load it, or resume",
    AttentionCode.VERIFY_FAILED: "the published server did not prove itself; repair it and verify, or roll back",
    AttentionCode.VERIFY_PENDING: "a rollback was accepted with its server down; start it, then verify",
    AttentionCode.WRITE_FAILED: "a write left no trace (disk full, error); free space or repair, then choose again",
    AttentionCode.WRITE_UNCERTAIN: "a write may or may not be durable; make the visible record certain",
    AttentionCode.READ_ONLY: "the store refuses to write; find out why, then restart",
    AttentionCode.CHANGED_EXTERNALLY: "somebody else wrote the authority file; restore it, then restart",
    AttentionCode.PATH_MOVED: "the directory of the authority file was replaced; restore it, then restart",
    AttentionCode.LOCK_LOST: "the lock file was replaced; make sure no second router runs, then restart",
}
"""What happened, for the operator's table."""


def diagram() -> str:
    """Every transition but those of a shutdown, as a Mermaid state diagram; facts that stay where they are left out."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for state, row in TRANSITIONS.items():
        for event, target in row.items():
            if event is not fx.Shutdown and target is not state:
                lines.append(f"    {state.value} --> {target.value}: {event.__name__}")
    return "\n".join([*lines, "```"])


def transitions() -> str:
    """One row per state: its standing, the commands it takes, and where each fact leads."""
    lines = ["| state | told as | commands | facts |", "|---|---|---|---|"]
    for state in State:
        row = TRANSITIONS[state]
        parts = [
            ", ".join(
                f"{event.__name__} → {target.value}" for event, target in row.items() if (event in COMMANDS) == kind
            )
            for kind in (True, False)
        ]
        lines.append(f"| {state.value} | {STANDINGS[state].value} | {parts[0] or '-'} | {parts[1]} |")
    return "\n".join(lines)


def recovery() -> str:
    """One row per standing and attention."""
    lines = ["| standing | attention | what happened | `recover --action` |", "|---|---|---|---|"]
    for standing, row in RECOVERY.items():
        for code, actions in row.items():
            offered = ", ".join(f"`{action.value}`" for action in actions) or "none: restart"
            lines.append(f"| {standing.value} | `{code.value}` | {ADVICE[code]} | {offered} |")
    assert set(ADVICE) >= READ_ONLY
    return "\n".join(lines)


def mutants() -> str:
    """One row per mutant, with the rule that catches it."""
    lines = ["| mutant | what it does | caught by |", "|---|---|---|"]
    lines += [f"| `{mutant.name}` | {WHAT[mutant.name]} | {mutant.invariant} |" for mutant in MUTANTS]
    lines += [f"| `{mutant.name}` | {why} | survives |" for mutant, why in SURVIVORS]
    return "\n".join(lines)


PARTS = {"diagram": diagram, "transitions": transitions, "recovery": recovery, "mutants": mutants}


def render(text: str) -> str:
    """The page with its generated parts as they are now."""
    for name, part in PARTS.items():
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{part()}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text("utf-8")), "utf-8")
