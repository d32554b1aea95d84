"""``routing-table``: emit, validate, compare and explain the routing table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from sndr.cli.main import LazyGroup, not_empty
from sndr.cli.output import write_err, write_out
from sndr.errors import InputError
from sndr.resources import presets_dir

__all__ = ["TableInvalidError", "check", "routing_table"]

_MAX_PIN = 200


class TableInvalidError(InputError):
    """A table breaks the contract.

    Attributes:
        findings: One line for each fault: where the table comes from, the JSON pointer, what is wrong.
    """

    def __init__(self, name: str, findings: Sequence[object]) -> None:
        super().__init__("table_invalid", f"{name}: {len(findings)} faults")
        self.findings = [f"{name}: {finding}" for finding in findings]


def _out_path(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value == "-":
        raise click.BadParameter("to print the table, leave --out away", ctx, param)
    return not_empty(ctx, param, value)


def _pin(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (value.isprintable() and len(value) <= _MAX_PIN):
        raise click.BadParameter(f"allowed: up to {_MAX_PIN} printable characters", ctx, param)
    return value


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    lazy={
        "check": ("sndr.cli.table.commands:check", "Validate an existing table."),
        "diff": ("sndr.cli.table.diff:diff", "Say what moved between two tables, and which requests change preset."),
        "explain": ("sndr.cli.table.explain:explain", "Decide one request and say why, step by step."),
    },
)
@click.option("--json", "as_json", is_flag=True, help="Print the table (so does no option at all).")
@click.option("--validate", is_flag=True, help="Check the table instead of printing it; all faults are listed.")
@click.option("--out", metavar="FILE", callback=_out_path, help="Check, then replace FILE whole or not at all.")
@click.option("--vllm-pin", metavar="PIN", callback=_pin, help="The vLLM version to state in the table.")
@click.option("--presets", metavar="DIR", callback=not_empty, help="Read another catalog than the shipped one.")
@click.pass_context
def routing_table(
    ctx: click.Context, as_json: bool, validate: bool, out: str | None, vllm_pin: str | None, presets: str | None
) -> None:
    """Emit the routing table as JSON on standard output."""
    if ctx.invoked_subcommand is not None:
        if as_json or validate or (out, vllm_pin, presets) != (None, None, None):
            raise click.UsageError(f"options of {ctx.info_name} go without a verb; put them after the verb", ctx)
        return
    from sndr.cli.table.build import build_table
    from sndr.cli.table.catalog import load_catalog
    from sndr.cli.table.encode import encode

    catalog_dir = presets_dir() if presets is None else presets
    target = None
    if out is not None:
        from sndr.cli.table.target import resolve_target

        target = resolve_target(out, catalog_dir)
    table = build_table(load_catalog(catalog_dir), vllm_pin)
    text = encode(table)
    if validate or target is not None:
        _validate(table, catalog_dir, "routing-table")
    if target is not None:
        from sndr.cli.table.target import write_target

        write_target(target, text.encode("ascii"))
        write_err(f"routing-table: wrote {target.given}: {_summary(table)}")
    elif validate:
        write_err(f"routing-table: valid: {_summary(table)}")
    else:
        write_out(text)


@click.command()
@click.argument("file")
@click.option("--presets", metavar="DIR", callback=not_empty, help="The catalog that the evidence paths lie in.")
def check(file: str, presets: str | None) -> None:
    """Validate the routing table in FILE (- is standard input); all faults are listed."""
    from sndr.cli.table.document import read_json
    from sndr.cli.table.validate import hash_remark

    table: Any = read_json(file)
    name = "standard input" if file == "-" else file
    _validate(table, presets_dir() if presets is None else presets, name)
    if remark := hash_remark(table):
        write_err(f"{name}: {remark}")
    write_err(f"{name}: valid: {_summary(table)}")


def _validate(table: Any, catalog_dir: str, name: str) -> None:
    from sndr.cli.table.validate import table_findings

    findings = table_findings(table, catalog_dir)
    if findings:
        raise TableInvalidError(name, findings)


def _summary(table: Any) -> str:
    counts = ((len(table[key]), what) for key, what in _COUNTED)
    return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts)


_COUNTED = (("presets", "preset"), ("routing_rules", "rule"), ("coverage_gaps", "gap"))
