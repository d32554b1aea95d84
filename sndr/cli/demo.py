"""`sndr demo`: live route changes, narrated, on this machine and without any configuration."""

from __future__ import annotations

import time

import click

from sndr.cli.output import write_out
from sndr.cli.router.text import is_coloured

__all__ = ["demo"]

_HEAD = "\x1b[1m"
_NAME = "\x1b[36m"
_PLAIN = "\x1b[0m"


@click.command("demo")
def demo() -> None:
    """Show live route changes: two model servers, a gateway, streaming clients; about 15 seconds.

    An alias moves, a tier is replaced by the wrong model and rolled back, then by the right one, and the gateway is
    killed in the middle of a change and recovers. Exit 0 only if every stream arrived whole. Everything happens on
    127.0.0.1 and in a temporary directory; nothing is left behind.
    """
    from sndr.router import demo as door

    started = time.monotonic()
    coloured = is_coloured()

    def report(name: str, text: str) -> None:
        if not name:
            write_out(f"\n{_HEAD}{text}{_PLAIN}\n" if coloured else f"\n{text}\n")
            return
        label = f"{_NAME}{name:<9}{_PLAIN}" if coloured else f"{name:<9}"
        write_out(f"{time.monotonic() - started:5.1f} s  {label} {text}\n")

    outcome = door.run(report)
    write_out(f"\nNo byte was lost: the clients got {outcome.tokens} of the {outcome.sent} tokens sent.\n")
