"""Live routes for people: `swap` and `replace` show what a change does, ask, and watch it happen.

The change itself runs on the gateway. This process may be interrupted or lose its connection at any time; what goes on
without it, and the next legal command, are always said.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from sndr.cli.output import CommandError, write_err, write_out
from sndr.cli.router.advice import ADVICE, Where, exit_code, next_commands
from sndr.cli.router.online import ask, connect, without_answer
from sndr.cli.router.routes import parse_aliases, parse_fields, refused_checks, timeouts, with_where
from sndr.cli.router.routes_text import preview_text, receipt_text
from sndr.cli.router.text import count
from sndr.errors import SndrError

if TYPE_CHECKING:
    from sndr.router.client import Answer, Client

__all__ = ["replace", "swap"]

_LOOK_S: Final = 0.2

_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command("swap")
@click.argument("words", nargs=-1, required=True, metavar="ALIAS=TIER...")
@_yes
@timeouts
@with_where
def swap(
    words: tuple[str, ...], yes: bool, drain_timeout_s: int, verify_timeout_s: int, where: Where, as_json: bool
) -> int:
    """Point aliases at other tiers: shown first, then asked, then done. Running streams stay where they are.

    ALIAS=FAMILY@TIER points an alias at a model family, of which TIER is the natural tier.
    """
    change = {"op": "alias_update", "aliases": parse_aliases(words)}
    return _change(change, yes, drain_timeout_s, verify_timeout_s, where, as_json)


@click.command("replace")
@click.argument("tier")
@click.option("--set", "fields", multiple=True, required=True, metavar="FIELD=VALUE", help="What changes; repeatable.")
@_yes
@timeouts
@with_where
def replace(
    tier: str,
    fields: tuple[str, ...],
    yes: bool,
    drain_timeout_s: int,
    verify_timeout_s: int,
    where: Where,
    as_json: bool,
) -> int:
    """Replace what TIER is: shown first, then asked, then watched until it serves. Its running streams finish first."""
    change = {"op": "tier_replacement", "tiers": {tier: parse_fields(fields)}, "mode": "apply", "managed": False}
    return _change(change, yes, drain_timeout_s, verify_timeout_s, where, as_json)


def _change(
    change: Mapping[str, Any], yes: bool, drain_timeout_s: int, verify_timeout_s: int, where: Where, as_json: bool
) -> int:
    if not yes and not _is_asked_by_a_person():
        raise click.UsageError("without a terminal nobody can be asked: add --yes, or use preview and apply")
    preview: Mapping[str, Any] = ask(
        lambda client: client.preview(change), where.config_path, where.url, where.auth_env
    ).document
    say = _say_nothing if as_json else write_out
    say(preview_text(preview))
    if not preview["applicable"]:
        return refused_checks(preview)
    if not yes and not _is_confirmed():
        write_err("sndr router: not confirmed: nothing was changed")
        return 1
    return _Apply(preview, drain_timeout_s, verify_timeout_s, where, as_json).run()


def _say_nothing(_: str) -> None:
    return


def _is_asked_by_a_person() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _is_confirmed() -> bool:
    write_out("Do it? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class _Apply:
    """One apply on a thread of its own, watched from this one."""

    def __init__(
        self, preview: Mapping[str, Any], drain_timeout_s: int, verify_timeout_s: int, where: Where, as_json: bool
    ) -> None:
        self._preview = preview
        self._drain_timeout_s = drain_timeout_s
        self._verify_timeout_s = verify_timeout_s
        self._where = where
        self._as_json = as_json
        self._answer: Answer | None = None
        self._error: SndrError | None = None
        self._ended = threading.Event()
        self._again = where.command("apply", preview["preview_id"], "--sha256", preview["preview_sha256"], "--confirm")

    def run(self) -> int:
        """Apply and watch; the exit code."""
        with self._connect() as watcher:
            # a daemon: an interrupted command ends at once, and the gateway goes on
            threading.Thread(target=self._apply, daemon=True).start()
            progress = Progress(self._preview, _say_nothing if self._as_json else write_out)
            try:
                while not self._ended.wait(_LOOK_S):
                    progress.show(_look(watcher))
            except KeyboardInterrupt:
                self._say_interrupted(_look(watcher))
                raise
            return self._finish(watcher, progress)

    def _connect(self) -> Client:
        return connect(self._where.config_path, self._where.url, self._where.auth_env)

    def _apply(self) -> None:
        try:
            with self._connect() as client:
                self._answer = client.apply(
                    self._preview["preview_id"],
                    self._preview["preview_sha256"],
                    confirm=True,
                    drain_timeout_s=self._drain_timeout_s,
                    verify_timeout_s=self._verify_timeout_s,
                )
        except SndrError as error:
            self._error = error
        finally:
            self._ended.set()

    def _finish(self, watcher: Client, progress: Progress) -> int:
        from sndr.router.client import RefusedError, TransportError

        answer, error = self._answer, self._error
        if answer is not None:
            progress.end(answer.document)
            write_out(answer.raw.decode("utf-8") if self._as_json else receipt_text(answer.document, self._where))
            return 0
        if isinstance(error, RefusedError):
            progress.show(_look(watcher))
            write_err(f"sndr router: {error.code}: {ADVICE.get(error.code, error.message)}")
            self._say_next(next_commands(error.body, self._where) or [self._where.command("status")])
            return exit_code(error.status, error.code)
        if error is None:  # a fault of this program ended the thread
            raise CommandError("unreachable", "the apply ended without an answer; run sndr router status", 5)
        sent = not isinstance(error, TransportError) or error.sent
        write_err(f"sndr router: {error.code}: {error.message}; {without_answer(sent)}")
        self._say_next([self._where.command("status"), self._again])
        return 5

    def _say_interrupted(self, view: Mapping[str, Any] | None) -> None:
        write_err(f"sndr router: interrupted: {_what_goes_on(view, self._preview)}")
        commands = [] if view is None else next_commands(view, self._where)
        self._say_next([self._where.command("status"), *commands])

    @staticmethod
    def _say_next(commands: list[str]) -> None:
        for command in commands:
            write_err(f"next: {command}")


def _look(client: Client) -> Mapping[str, Any] | None:
    """The view; None where it cannot be had now, which is no reason to stop watching."""
    try:
        document: Mapping[str, Any] = client.routes().document
    except SndrError:
        return None
    return document


def _what_goes_on(view: Mapping[str, Any] | None, preview: Mapping[str, Any]) -> str:
    """What the gateway does without whoever watched."""
    if view is None:
        return "the gateway does not answer now; what it does is unknown"
    transaction = view["transaction"]
    if transaction is None or transaction["id"] != preview["transaction_id"]:
        return "the gateway has not begun the change, and may still"
    if not transaction["hold"]:
        return f"the change is {transaction['state']}"
    left = count(streams_left(view, preview["scope"]), "stream")
    return f"the change goes on on the gateway: {transaction['state']}, {left} left in {', '.join(preview['scope'])}"


def streams_left(view: Mapping[str, Any], scope: list[str]) -> int:
    """Streams in the scope that are not over, in every generation."""
    return sum(sum(tier["leases"].values()) for tier in view["tiers"] if tier["id"] in scope)


class Progress:
    """The steps of a change as lines, each said once; a drain whenever its number changes."""

    def __init__(self, preview: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._preview = preview
        self._say = say
        self._steps = list(preview["will"])
        self._left: int | None = None

    def show(self, view: Mapping[str, Any] | None) -> None:
        """Say what is new in a view."""
        transaction = None if view is None else view["transaction"]
        if view is None or transaction is None or transaction["id"] != self._preview["transaction_id"]:
            return
        scope = self._preview["scope"]
        self._step("hold", f"{', '.join(scope)} takes no new requests")
        if transaction["state"] == "held":
            left = streams_left(view, scope)
            if left and left != self._left:
                self._say(f"drain    {count(left, 'stream')} left\n")
            self._left = left
        if transaction["committed_revision"] is not None and transaction["state"] != "held":
            self._drained(transaction)
            self._step("commit", f"revision {transaction['committed_revision']} is on disk")
            if view["route_revision"] >= transaction["committed_revision"]:
                self._step("publish", f"revision {view['route_revision']} is in force")
        if transaction["state"] == "completed":
            self._completed(transaction)

    def end(self, receipt: Mapping[str, Any]) -> None:
        """Say the steps that happened between the last view and the answer."""
        self._step("hold", f"{', '.join(receipt['scope'])} takes no new requests")
        self._drained(receipt)
        to = (receipt.get("changed") or {}).get("to")
        if to is not None:
            self._step("commit", f"revision {to['route_revision']} is on disk")
            self._step("publish", f"revision {to['route_revision']} is in force")
        if receipt["state"] == "completed":
            self._completed(receipt)

    def _drained(self, transaction: Mapping[str, Any]) -> None:
        drain = transaction.get("drain")
        if drain is not None:
            self._step("drain", f"{count(drain['finished'], 'stream')} finished, {drain['cut']} cut")

    def _completed(self, transaction: Mapping[str, Any]) -> None:
        observed = (transaction.get("identity") or {}).get("observed") or ()
        self._step("verify", f"the server says {', '.join(observed)}" if observed else "done")
        self._step("readmit", f"{', '.join(self._preview['scope'])} takes requests again")

    def _step(self, name: str, what: str) -> None:
        if name in self._steps:
            self._steps.remove(name)
            self._say(f"{name:<8} {what}\n")
