"""``routing-table explain``: decide one request and say why, step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from sndr.cli.main import not_empty
from sndr.cli.output import one_line, write_err, write_out
from sndr.cli.table.document import read_document, read_json
from sndr.contract import Dialect, Explanation, Table, load
from sndr.contract import explain as explain_decision
from sndr.resources import presets_dir

__all__ = ["explain"]

_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


def _header(text: str) -> tuple[str, str]:
    """A header as a person writes it (Source: RFC 9110 section 5.1 for the name)."""
    name, colon, value = text.partition(":")
    if not colon or not name or not set(name.lower()) <= _TOKEN:
        raise click.UsageError(f"--header {text!r} is not a header (allowed: 'Name: value')")
    return name, value.strip(" \t")


def _lines(explanation: Explanation) -> Iterator[str]:
    decision = explanation.decision
    yield f"{decision.preset_key or 'no preset (route by model)'}  [{decision.outcome}]"
    yield ""
    for step in explanation.steps:
        result = "" if step.result is None else f" = {step.result}"
        yield f"{step.step:<3} {step.name}{result}: {step.reason}"


@click.command(short_help="Decide one request and say why, step by step.")
@click.argument("request")
@click.option(
    "--table", "table_file", metavar="FILE", callback=not_empty, help="The table to decide with (- for standard input)."
)
@click.option(
    "--presets",
    metavar="DIR",
    callback=not_empty,
    help="Emit the table from this catalog; without both, from the shipped one.",
)
@click.option("--in-flight", type=click.IntRange(min=0), help="Requests in flight in the family, this one included.")
@click.option("--input-tokens", type=click.IntRange(min=0), help="Tokens of the prompt, if known.")
@click.option("--header", "headers", multiple=True, metavar="'K: V'", help="A header of the request; may be repeated.")
@click.option(
    "--dialect",
    type=click.Choice(["chat", "responses", "messages"]),
    default="chat",
    help="What the request is; completions are read as chat.",
)
@click.option(
    "--family", callback=not_empty, help="The model family, when an alias fixes it instead of the request's model."
)
@click.option("--json", "as_json", is_flag=True, help="Print the decision record with its steps.")
def explain(
    request: str,
    table_file: str | None,
    presets: str | None,
    in_flight: int | None,
    input_tokens: int | None,
    headers: tuple[str, ...],
    dialect: Dialect,
    family: str | None,
    as_json: bool,
) -> int:
    """Decide where a request (a JSON file, or - for standard input) goes, with the reason of each step.

    A table that a consumer would refuse (unknown version, not JSON) is explained as the consumer acts on it: outcome
    degraded.
    """
    if table_file is not None and presets is not None:
        raise click.UsageError("--table and --presets exclude each other")
    if request == table_file == "-":
        raise click.UsageError("only one of REQUEST and --table can be standard input")
    pairs = [_header(text) for text in headers]
    body = read_json(request)
    table = _table(table_file, presets)
    for warning in table.warnings:
        write_err(f"warning: {warning}")
    explanation = explain_decision(
        table,
        body,
        in_flight=in_flight,
        input_tokens=input_tokens,
        headers=pairs,
        dialect=dialect,
        family=family,
    )
    if explanation.decision.warning is not None:
        write_err(f"warning: {explanation.decision.warning}")
    if as_json:
        write_out(json.dumps(explanation.record(), indent=2) + "\n")
    else:
        write_out("\n".join(one_line(line) for line in _lines(explanation)) + "\n")
    return 0


def _table(table_file: str | None, presets: str | None) -> Table:
    if table_file is not None:
        return load(read_document(table_file))
    from sndr.cli.table.build import build_table  # reads the catalog: not needed with --table
    from sndr.cli.table.catalog import load_catalog

    return load(build_table(load_catalog(presets or presets_dir())))
