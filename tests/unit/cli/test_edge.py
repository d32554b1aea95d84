"""The one edge: whatever a verb raises becomes lines and an exit code."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NoReturn

import click
import pytest

from sndr.cli.main import LazyGroup, allowed, console_root, module_root, run
from sndr.cli.output import CommandError, OutputError
from sndr.errors import InputError


def _root(callback: Callable[[], object]) -> LazyGroup:
    root = LazyGroup("sndr", lazy={"lazy": ("tests.unit.cli.test_edge:lazy_verb", "A lazy one.")})
    root.add_command(click.Command("verb", callback=callback))
    return root


lazy_verb = click.Command("lazy", callback=lambda: 7)


def _raise(error: BaseException) -> Callable[[], NoReturn]:
    def callback() -> NoReturn:
        raise error

    return callback


class _ManyError(InputError):
    findings = ("a.yaml:1:2: x: wrong", "b.yaml:3:4: y: wrong\ntoo")


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (InputError("some_code", "what"), 1, ["sndr: some_code: what"]),
        (CommandError("some_code", "what", 3), 3, ["sndr: some_code: what"]),
        (OutputError("output_failed", "what"), 1, ["sndr: output_failed: what"]),
        (_ManyError("some_code", "2 faults"), 1, ["a.yaml:1:2: x: wrong", "b.yaml:3:4: y: wrong\\ntoo"]),
        (OSError(errno.ENOENT, "No such file", "f\u00e9"), 1, ["sndr: io_error: f\\xe9: No such file"]),
        (OSError("odd"), 1, ["sndr: io_error: odd"]),
        (click.UsageError("what"), 2, ["sndr: usage: what"]),
        (click.FileError("name", "what"), 1, ["sndr: usage: Could not open file 'name': what"]),
        (click.exceptions.Exit(5), 5, []),
        (
            ZeroDivisionError("by zero"),
            1,
            ["sndr: internal_error: ZeroDivisionError: by zero (SNDR_TRACEBACK=1 shows where)"],
        ),
        (RecursionError("deep"), 1, ["sndr: internal_error: RecursionError: deep (SNDR_TRACEBACK=1 shows where)"]),
        (MemoryError(), 1, ["sndr: internal_error: MemoryError:  (SNDR_TRACEBACK=1 shows where)"]),
    ],
)
def test_an_error_is_lines_and_an_exit_code(
    error: BaseException, code: int, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_root(_raise(error)), ["verb"], "sndr") == code
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", lines)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError(errno.EPIPE, "Broken pipe")])
def test_signals_go_to_the_process(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run(_root(_raise(error)), ["verb"], "sndr")


def test_an_abort_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(_root(_raise(click.Abort())), ["verb"], "sndr")


def test_a_fault_of_ours_shows_its_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNDR_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(_root(_raise(ZeroDivisionError())), ["verb"], "sndr")


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (4, 4), ("text", 0)])
def test_a_verb_returns_nothing_or_its_exit_code(returned: object, code: int) -> None:
    assert run(_root(lambda: returned), ["verb"], "sndr") == code


def test_a_lazy_verb_is_listed_without_and_imported_when_used(capsys: pytest.CaptureFixture[str]) -> None:
    root = LazyGroup("sndr", lazy={"lazy": ("tests.unit.cli.no_such_module:x", "Never imported by help.")})
    root.add_command(click.Command("eager", help="An eager one."))
    assert run(root, ["--help"], "sndr") == 0
    listed = capsys.readouterr().out
    assert listed.index("lazy") < listed.index("eager")
    assert "Never imported by help." in listed
    assert run(_root(lambda: None), ["lazy"], "sndr") == 7


def test_errors_of_a_lazy_verb_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(module_root(), ["routing-table", "--nope"], "x") == 2
    assert capsys.readouterr().err.startswith("sndr routing-table: usage: ")


def test_names_near_and_allowed() -> None:
    assert allowed("chek", ["check", "diff"]) == "(did you mean check?)"
    assert allowed("zzz", ["check", "diff"]) == "(allowed: check, diff)"


def test_both_roots_share_the_verbs() -> None:
    context = click.Context(module_root())
    both = [name for name in module_root().list_commands(context) if name != "routing-table"]
    assert both == console_root().list_commands(context)
    assert all(module_root().get_command(context, name) is not None for name in module_root().list_commands(context))
    assert console_root().get_command(context, "routing-table") is None
