"""Transcripts of the machine: a comment, a command, `----`, and what the machine asked for.

    python -m tests.support.machine_transcripts --rewrite     records what happens now into every transcript

Commands: `start`, `kill`, `shutdown`, `alias x=b`, `replace a=m2 [b=n2] [prepare] [managed]`, `rollback [unready]`,
`resume [evidence]`, `drain`, `cancel`, `verify`, `reassert [before]`. After `with` stands how the world answers, where
it is not willing: `W2=uncertain`, `W1=failed`, `W3=lost`, `leases=timeout`, `rows=2`, `precheck=failed`,
`identity=mismatch`, `ready=no`, `admitting=no`; `kill=W2` ends the process after the rename of that write.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.effects import Code
from sndr.router.core.invariants import check_machine, check_record, check_step
from sndr.router.core.transaction import Machine, State, next_actions, step
from tests.support.machine import boot, call, record, replacement, update

FOLDER = Path(__file__).parent.parent / "scenarios" / "machine"


class Killed(Exception):  # noqa: N818 - an event of the world
    """The process ended."""


class Scene:
    """One history: the file, the process, and what they say."""

    def __init__(self) -> None:
        self.shown = record()
        self.before = self.shown
        self.machine = Machine()
        self.number = 0

    def play(self, line: str) -> str:
        """Carry out one command line; what happened, a line per effect, then the state."""
        command, _, rest = line.partition(" with ")
        answers = dict(word.split("=", 1) for word in rest.split())
        words = command.split()
        lines: list[str] = []
        try:
            if words[0] == "kill":
                raise Killed
            self._run(self._event(words), answers, lines)
        except Killed:
            self.machine = Machine()
            lines.append("killed")
        machine = self.machine
        if machine.record is not None and machine.state is not State.STOPPED:
            attention = "-" if machine.attention is None else machine.attention.code.value
            assert machine.published is not None
            lines.append(
                f"= {machine.standing.value} r{machine.published.route_revision} "
                f"gates: {','.join(machine.gated) or '-'} attention: {attention} "
                f"next: {','.join(next_actions(machine)) or '-'}"
            )
        return "\n".join(lines)

    def _event(self, words: list[str]) -> fx.Event:
        machine, verb, rest = self.machine, words[0], words[1:]
        pairs = dict(word.split("=", 1) for word in rest if "=" in word)
        if verb == "start":
            return fx.Start(self.shown)
        if verb == "shutdown":
            return fx.Shutdown()
        mine = call(machine)
        tx = machine.receipt.id if machine.receipt is not None else "-"
        if verb == "alias":
            ((alias, tier),) = pairs.items()
            return update(machine, alias, tier, tx=self._fresh())
        if verb == "replace":
            return replacement(machine, pairs, tx=self._fresh(), prepares="prepare" in rest, managed="managed" in rest)
        if verb == "rollback":
            given = machine.fallback if machine.state is State.UNCERTAIN else machine.record
            assert given is not None
            undone = "0" * 64 if given.previous is None else given.previous.effective_route_sha256
            parent = None if machine.state is State.IDLE else tx
            return fx.RollBack(mine, self._fresh(), undone, parent, accepts_unready="unready" in rest)
        if verb == "reassert":
            shown = self.before if "before" in rest else self.shown
            return fx.Reassert(mine, shown.transaction and shown.transaction.id, shown.write_seq)
        if verb == "resume":
            return fx.Resume(mine, tx, self._evidence() if "evidence" in rest else None)
        kinds = {"drain": fx.Drain, "cancel": fx.Cancel, "verify": fx.Verify}
        return kinds[verb](mine, tx)

    def _fresh(self) -> str:
        self.number += 1
        return f"t{self.number}"

    def _evidence(self) -> rc.Evidence:
        assert self.machine.receipt is not None
        assert isinstance(self.machine.receipt.change, rc.TierReplacement)
        return rc.Evidence(
            rc.Campaign("spring", "ef" * 32),
            {
                tier: rc.Container(
                    container_id="0123456789ab",
                    image_id="sha256:" + "cd" * 32,
                    started_at="1970-01-01T00:00:00Z",
                    observed_at="1970-01-01T00:00:01Z",
                    observer="ops@host",
                    served_model=str(patch["model"]),
                )
                for tier, patch in self.machine.receipt.change.tiers.items()
            },
        )

    def _run(self, event: fx.Event, answers: dict[str, str], lines: list[str]) -> None:
        queue = [event]
        while queue:
            taken = queue.pop(0)
            after, effects = step(self.machine, taken)
            assert check_step(self.machine, taken, after, effects) == ()
            assert check_machine(after) == ()
            self.machine = after
            for effect in effects:
                if isinstance(effect, fx.Proceed):
                    queue.append(effect.event)
                    continue
                text, fact = self._perform(effect, answers)
                lines.append(text)
                if fact is not None:
                    queue.append(fact)
                if isinstance(effect, fx.Persist) and answers.get("kill") == effect.kind.value:
                    raise Killed

    def _perform(self, effect: fx.Effect, answers: dict[str, str]) -> tuple[str, fx.Fact | None]:
        match effect:
            case fx.Persist():
                return self._write(effect, answers.get(effect.kind.value, "durable"))
            case fx.CloseGate(scope=scope):
                return f"close gate {','.join(scope)}", None
            case fx.OpenGate(scope=scope):
                return f"open gate {','.join(scope)}", None
            case fx.Publish(revision=revision):
                return f"publish r{revision.route_revision}", None
            case fx.Retire(scope=scope, revision=revision_number):
                return f"retire {','.join(scope)} before r{revision_number}", None
            case fx.AbandonWait():
                return "abandon the wait", None
            case fx.Reply(code=code):
                return f"reply {'done' if code is None else code.value}", None
            case fx.Serve():
                return "serve", None
            case fx.Refuse(code=code):
                return f"refuse to start: {code.value}", None
            case fx.Stop():
                return "stop", None
            case _:
                return self._ask(effect, answers)

    def _ask(self, effect: fx.Effect, answers: dict[str, str]) -> tuple[str, fx.Fact | None]:
        match effect:
            case fx.ProbeReady(ticket=ticket, targets=targets):
                ready = answers.get("ready") != "no"
                fact: fx.Fact = fx.TargetsReady(ticket) if ready else fx.TargetsUnready(ticket)
                return f"probe {_names(targets)}: {'ready' if ready else 'not ready'}", fact
            case fx.CheckAdmitting(ticket=ticket, tiers=tiers):
                admits = answers.get("admitting") != "no"
                fact = fx.TargetsAdmitting(ticket) if admits else fx.TargetsNotAdmitting(ticket)
                return f"admission of {','.join(tiers)}: {'open' if admits else 'closed'}", fact
            case fx.Precheck(ticket=ticket, targets=targets):
                failed = answers.get("precheck") == "failed"
                fact = fx.PrecheckFailed(ticket) if failed else fx.PrecheckPassed(ticket)
                return f"precheck {_names(targets)}: {'failed' if failed else 'passed'}", fact
            case fx.AwaitLeases(ticket=ticket, scope=scope):
                late = answers.get("leases") == "timeout"
                fact = fx.DrainTimedOut(ticket, 2, 1) if late else fx.LeasesReleased(ticket, 2, 2)
                return f"await leases of {','.join(scope)}: {'timed out' if late else 'released'}", fact
            case fx.CountRows(ticket=ticket, scope=scope):
                left = int(answers.get("rows", "0"))
                fact = fx.RowsUnresolved(ticket, unresolved=left) if left else fx.RowsResolved(ticket)
                return f"count rows of {','.join(scope)}: {left} unresolved", fact
            case fx.ProbeIdentity(ticket=ticket, targets=targets):
                if answers.get("identity") == "mismatch":
                    return f"identity of {_names(targets)}: mismatch", fx.IdentityFailed(ticket)
                observed = tuple(tier.model or "" for _, tier in targets)
                return f"identity of {_names(targets)}: proved", fx.IdentityProved(ticket, observed)
            case _:
                raise AssertionError(effect)

    def _write(self, effect: fx.Persist, fate: str) -> tuple[str, fx.Fact]:
        assert check_record(effect.record, boot()) == ()
        receipt = effect.record.transaction
        says = f"r{effect.record.current.route_revision}" + ("" if receipt is None else f" {receipt.state.value}")
        text = f"write {effect.kind.value} ({says}): {fate}"
        if fate == "failed":
            return text, fx.WriteFailed(effect.ticket)
        if fate == "lost":
            return text, fx.WriteRefused(effect.ticket, Code.AUTHORITY_LOCK_LOST)
        self.before, self.shown = self.shown, effect.record
        return text, fx.WriteUncertain(effect.ticket) if fate == "uncertain" else fx.Written(effect.ticket)


def _names(targets: fx.Targets) -> str:
    return ",".join(f"{name}={tier.model}" for name, tier in targets)


def replay(text: str) -> str:
    """The transcript with its expectations replaced by what happens."""
    scene, blocks = Scene(), []
    for block in text.strip().split("\n\n"):
        given = block.split("\n----", 1)[0].splitlines()
        commands = [line for line in given if line and not line.startswith("#")]
        if not commands:
            blocks.append("\n".join(given))
            continue
        (command,) = commands
        blocks.append("\n".join([*given, "----", scene.play(command)]).rstrip())
    return "\n\n".join(blocks) + "\n"


def main(arguments: list[str]) -> int:
    """Check every transcript, or with `--rewrite` record it again; 1 when one differs."""
    differs = 0
    for path in sorted(FOLDER.glob("*.txt")):
        text = path.read_text("utf-8")
        happened = replay(text)
        if happened != text:
            differs += 1
            print(path.name)
            if "--rewrite" in arguments:
                path.write_text(happened, "utf-8")
    return 1 if differs and "--rewrite" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
