"""``routing-table``: emit, validate, compare and explain the routing table."""

from __future__ import annotations

import click

from sndr.cli.main import LazyGroup

__all__ = ["routing_table"]


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    lazy={
        "check": ("sndr.cli.table.commands:check", "Validate an existing table."),
        "diff": ("sndr.cli.table.diff:diff", "Say what moved between two tables, and which requests change preset."),
        "explain": ("sndr.cli.table.explain:explain", "Decide one request and say why, step by step."),
    },
)
@click.pass_context
def routing_table(ctx: click.Context) -> int | None:
    """Emit the routing table as JSON on standard output."""
    return None if ctx.invoked_subcommand else 1
