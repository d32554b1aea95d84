"""The command line's root and its one edge.

Two roots share every verb: the ``sndr`` console script, and ``python3 -m sndr.cli``, which alone has
``routing-table``. Verbs are imported when used (:class:`LazyGroup`), so that start-up pays for one of them. Errors
become one line on standard error and an exit code here and nowhere else.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from sndr import __version__
from sndr.cli.output import close_stdout, write_err
from sndr.errors import SndrError

__all__ = ["LazyGroup", "allowed", "console_root", "module_root", "not_empty", "run", "run_process"]

_TABLE = ("sndr.cli.table.commands:routing_table", "Emit, validate, compare and explain the routing table.")
_VERBS: Mapping[str, tuple[str, str]] = {
    "preset": ("sndr.cli.preset:preset", "List, show, explain, recommend and validate presets."),
    "demo": ("sndr.cli.demo:demo", "Show live route changes on this machine, without any configuration."),
    "router": ("sndr.cli.router:router", "Serve models behind one address and change their routes live."),
}


class LazyGroup(click.Group):
    """A group whose verbs are imported when used.

    A verb's function returns None (exit 0) or its exit code as an int.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the group.

        Args:
            lazy: Verb name -> (``module:attribute`` of its click command, one line for the help page).
            elsewhere: Names that are deliberately not verbs here -> the command to run instead.
        """
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})
        self.elsewhere = dict(elsewhere or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Ask for a verb where none is given; what click itself does then differs between its versions."""
        if not args and not self.invoke_without_command:
            names = ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"a verb is needed (allowed: {names}); --help says what each does", ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every verb's name, those declared lazily first, without importing any."""
        return [*self.lazy, *(name for name in super().list_commands(ctx) if name not in self.lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb, importing it now if it is a lazy one."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or say which names come near it."""
        name = args[0]
        if name in self.elsewhere:
            raise click.UsageError(f"{name} is not a verb of {ctx.command_path}; run: {self.elsewhere[name]}", ctx)
        if name[:1] != "-" and name not in self.list_commands(ctx):
            raise click.UsageError(f"no verb {name!r} {allowed(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs' section of the help page without importing the lazy ones."""
        rows = [
            (name, self.lazy[name][1] if name in self.lazy else self.commands[name].get_short_help_str(limit=100))
            for name in self.list_commands(ctx)
        ]
        if rows:
            with formatter.section("Verbs"):
                formatter.write_dl(rows)


def allowed(name: str, names: Sequence[str]) -> str:
    """Return ``(allowed: ...)`` for a name that is not among `names`, or the near ones when there are any."""
    import difflib  # only a wrong name pays for it

    near = difflib.get_close_matches(name, names, n=3)
    return f"(did you mean {' or '.join(near)}?)" if near else f"(allowed: {', '.join(names)})"


def not_empty(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty value (an unset variable in a script), which would otherwise pass for one that was not given."""
    if value == "":
        raise click.BadParameter("empty; leave the option away or give it a value", ctx, param)
    return value


def _root(name: str, verbs: Mapping[str, tuple[str, str]], elsewhere: Mapping[str, str]) -> LazyGroup:
    def callback() -> None:
        """Routes with evidence for people who run their own model servers."""

    group = LazyGroup(name, lazy=verbs, elsewhere=elsewhere, callback=callback, help=callback.__doc__)
    return click.version_option(__version__, message="sndr %(version)s")(group)


def console_root() -> LazyGroup:
    """Return the root of the ``sndr`` console script."""
    return _root("sndr", _VERBS, {"routing-table": "python3 -m sndr.cli routing-table"})


def module_root() -> LazyGroup:
    """Return the root of ``python3 -m sndr.cli``: the console script's verbs and ``routing-table``."""
    return _root("sndr", {"routing-table": _TABLE, **_VERBS}, {})


def run(root: LazyGroup, args: Sequence[str], prog: str) -> int:
    """Run one command and return its exit code; nothing but the signals' own exceptions gets past.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        BrokenPipeError: The reader of standard output went away.
    """
    words = list(args)
    place = f"sndr {words[0]}" if words and words[0] in root.lazy else "sndr"
    try:
        with root.make_context(prog, words) as ctx:
            result = root.invoke(ctx)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort as aborted:
        raise KeyboardInterrupt from aborted
    except click.ClickException as error:
        write_err(f"{place}: usage: {error.format_message()}")
        return error.exit_code
    except SndrError as error:
        return _report(place, error)
    except BrokenPipeError:
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename is not None else ""
        write_err(f"{place}: io_error: {name}{error.strerror or error}")
        return 1
    except Exception as error:  # the last edge: a fault of ours is still one line, not a traceback
        if os.environ.get("SNDR_TRACEBACK"):
            raise
        write_err(f"{place}: internal_error: {type(error).__name__}: {error} (SNDR_TRACEBACK=1 shows where)")
        return 1


def run_process(root: LazyGroup, args: Sequence[str], prog: str) -> NoReturn:
    """Run one command as the whole process: exit with its code, or end by the signal that ended it.

    A closed pipe ends the process by SIGPIPE and Ctrl-C by SIGINT, both without a word, as other Unix filters end.
    """
    try:
        code = run(root, args, prog)
        try:
            close_stdout()
        except SndrError as error:
            code = _report("sndr", error) if code == 0 else code
    except KeyboardInterrupt:
        _end_by(signal.SIGINT)
    except BrokenPipeError:
        _end_by(signal.SIGPIPE)
    sys.exit(code)


def _report(place: str, error: SndrError) -> int:
    """Say what went wrong: each finding of an input on a line of its own, or the one error."""
    findings: Sequence[object] = getattr(error, "findings", ())
    for finding in findings:
        write_err(str(finding))
    if not findings:
        write_err(f"{place}: {error.code}: {error.message}")
    code: int = getattr(error, "exit_code", 1)
    return code


def _end_by(number: signal.Signals) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # the signal was blocked
