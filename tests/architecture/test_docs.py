"""Pages link to files that exist, and every page is reachable from the README."""

from __future__ import annotations

import re
from pathlib import Path

import click

from sndr.cli import main
from tests.support.cli import ROOT

_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def _pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in _pages()
        for link in _LINK.findall(page.read_text("utf-8"))
        if not (page.parent / link).exists()
    ]
    assert broken == []


_FENCED = re.compile(r"^(?:\$ |[a-z_]+=\S+ )?(?:python3 -m sndr\.cli|sndr) (.+?)(?:\\\n(.*))?$", re.MULTILINE)
_QUOTED = re.compile(r"`sndr ([^`\n]+)`")
_END = re.compile(r"[|<>&;#()…]|\.\.\.|\$\(")


def _commands() -> set[tuple[str, str]]:
    """(page, words after `sndr`) of every command on a page, as far as it is one command."""
    found = set()
    for page in _pages():
        parts = page.read_text("utf-8").replace("\\|", " ").split("```")  # every second one is a block
        found_here = [match for block in parts[1::2] for match in _FENCED.finditer(block)]
        found_here += [match for prose in parts[::2] for match in _QUOTED.finditer(prose)]
        for match in found_here:
            words = " ".join(group for group in match.groups() if group)
            found.add((page.name, _END.split(words)[0]))
    return found


def _fault(text: str) -> str | None:
    """Why there is no such command; None if there is."""
    command: click.Command = main.module_root()
    context = click.Context(command)
    words = iter(text.replace("'", "").replace('"', "").split())
    for word in words:
        if word.startswith("--"):
            name = word.partition("=")[0]
            option = next((one for one in command.get_params(context) if name in one.opts), None)
            if option is None:
                return f"no option {word}"
            if isinstance(option, click.Option) and not option.is_flag and name == word:
                next(words, None)
        elif isinstance(command, click.Group) and re.fullmatch("[a-z-]+", word):
            inner = command.get_command(context, word)
            if inner is None:
                return f"no verb {word}"
            command, context = inner, click.Context(inner, parent=context)
    return None


def test_commands_on_the_pages_exist_with_their_options() -> None:
    said = re.compile(r":(?: |$)|^[0-9]")  # a line that a command prints begins with its name as well
    commands = [(page, text) for page, text in sorted(_commands()) if not said.search(text)]
    assert len(commands) > 100
    wrong = [f"{page}: sndr {text}: {fault}" for page, text in commands if (fault := _fault(text)) is not None]
    assert not wrong, "\n".join(wrong)
    assert _fault("router replace big --set a=b --prepare") == "no option --prepare"
