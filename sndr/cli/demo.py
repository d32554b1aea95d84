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
@click.option("--workload", is_flag=True, help="Show routing by workload instead; about 5 seconds.")
def demo(workload: bool) -> None:
    """Show live route changes: two model servers, a gateway, streaming clients; about 15 seconds.

    An alias moves, a tier is replaced by the wrong model and rolled back, then by the right one, and the gateway is
    killed in the middle of a change and recovers. Exit 0 only if every stream arrived whole. Everything happens on
    127.0.0.1 and in a temporary directory; nothing is left behind.

    With --workload: two siblings of one model, one with speculation, a routing table with one rule, and what the ledger
    says about it afterwards.
    """
    started = time.monotonic()
    coloured = is_coloured()

    def report(name: str, text: str) -> None:
        if not name:
            write_out(f"\n{_HEAD}{text}{_PLAIN}\n" if coloured else f"\n{text}\n")
            return
        label = f"{_NAME}{name:<9}{_PLAIN}" if coloured else f"{name:<9}"
        write_out(f"{time.monotonic() - started:5.1f} s  {label} {text}\n")

    if workload:
        from sndr.cli.router.usage import coverage_text
        from sndr.router import demo_workload

        shown = demo_workload.run(report)
        write_out(f"\nsndr router coverage:\n\n{coverage_text(shown.coverage)}")
        return
    from sndr.router import demo as door

    outcome = door.run(report)
    write_out(f"\nNo byte was lost: the clients got {outcome.tokens} of the {outcome.sent} tokens sent.\n")
