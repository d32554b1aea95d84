"""`sndr router usage …`: the usage ledger for operators.

Exit: 0 done, 2 usage, configuration or a ledger that cannot be used, 3 refused as things are (lock held, unresolved
rows), 5 a gateway was asked and did not answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from sndr.cli.main import LazyGroup
from sndr.cli.output import one_line, write_out
from sndr.cli.router.refusals import coded
from sndr.errors import AuthorityError

__all__ = ["coverage", "coverage_text", "usage"]

_config = click.option("--config", "config_path", metavar="FILE", help="Boot file that names the ledger.")
_file = click.option("--file", "file", metavar="FILE", help="The ledger itself, instead of --config.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
_confirm = click.option("--confirm", is_flag=True, help="Do it; without this only say what would be done.")


def _path(config_path: str | None, file: str | None) -> str:
    from sndr.router import usage as door

    if (config_path is None) == (file is None):
        raise click.UsageError("name the ledger: --config FILE or --file FILE")
    return file if file is not None else door.locate(str(config_path))


@click.group("usage", cls=LazyGroup)
def usage() -> None:
    """Reports over the usage ledger, and its care."""


@usage.command("status")
@_config
@_file
@_json
@coded
def status(config_path: str | None, file: str | None, as_json: bool) -> None:
    """Size, age and unresolved rows."""
    from sndr.router import usage as door

    found = door.status(_path(config_path, file))
    write_out(_encode(found) if as_json else _status_text(found))


@usage.command("report")
@_config
@_file
@click.option(
    "--by",
    type=click.Choice(["alias", "client", "tier", "revision", "day"]),
    default="alias",
    show_default=True,
    help="What to sum over.",
)
@click.option("--since", metavar="WHEN", help="YYYY-MM-DD, an RFC 3339 time, or an age (24h, 7d).")
@_json
@coded
def report(config_path: str | None, file: str | None, by: str, since: str | None, as_json: bool) -> None:
    """Requests by outcome and tokens, summed."""
    from sndr.router import usage as door

    start = None if since is None else door.parse_instant(since)
    found = door.report(_path(config_path, file), by, start)
    write_out(_encode(found) if as_json else _report_text(found))


@usage.command("export")
@_config
@_file
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@click.option("--since", metavar="WHEN", help="YYYY-MM-DD, an RFC 3339 time, or an age (24h, 7d).")
@coded
def export(config_path: str | None, file: str | None, form: str, since: str | None) -> None:
    """Every row on standard output, oldest first."""
    from sndr.router import usage as door

    path = _path(config_path, file)
    start = None if since is None else door.parse_instant(since)
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        if len(lines) >= 1000:
            write_out("".join(lines))
            lines.clear()

    door.export(path, form, write, start)
    write_out("".join(lines))


@usage.command("prune")
@_config
@_file
@click.option("--before", required=True, metavar="WHEN", help="YYYY-MM-DD, an RFC 3339 time, or an age (90d).")
@_confirm
@_json
@coded
def prune(config_path: str | None, file: str | None, before: str, confirm: bool, as_json: bool) -> None:
    """Delete resolved rows that are older; unresolved ones always stay."""
    from sndr.router import usage as door

    path, instant = _path(config_path, file), door.parse_instant(before)
    count = door.prune(path, instant) if confirm else door.prunable(path, instant)
    if as_json:
        write_out(_encode({"object": "usage.prune", "path": path, "rows": count, "applied": confirm}))
    else:
        write_out(f"{count} rows deleted\n" if confirm else f"{count} rows would be deleted; add --confirm\n")


@usage.command("migrate")
@_config
@_file
@click.option("--backup", metavar="FILE", help="Where the copy of the old ledger goes (default: beside it).")
@_confirm
@_json
@coded
def migrate(config_path: str | None, file: str | None, backup: str | None, confirm: bool, as_json: bool) -> None:
    """Bring a ledger of schema 3 to schema 4, with a copy of it first; needs the gateway to be down."""
    from sndr.router import usage as door

    done = door.migrate(_path(config_path, file), confirm=confirm, backup=backup)
    if as_json:
        write_out(_encode(done.to_json()))
    elif done.from_schema == done.to_schema:
        write_out(f"{done.path}: has schema {done.to_schema} already\n")
    elif done.applied:
        write_out(f"{done.path}: schema {done.to_schema}, {done.rows} rows; the old ledger is {done.backup}\n")
    else:
        write_out(f"{done.path}: schema {done.from_schema}, {done.rows} rows would be migrated; add --confirm\n")


@usage.command("reconcile")
@_config
@_file
@click.option("--url", metavar="URL", help="http://HOST:PORT or unix:/PATH of a running gateway.")
@click.option("--auth-env", metavar="NAME", help="Environment variable with the operator's credential.")
@_confirm
@_json
@coded
def reconcile(
    config_path: str | None, file: str | None, url: str | None, auth_env: str | None, confirm: bool, as_json: bool
) -> None:
    """Close the rows that dead runs left open, as `interrupted`: what their upstream did is unknown.

    Through the running gateway when there is one, else on the file, under its lock.
    """
    from dataclasses import asdict

    from sndr.router import usage as door

    if not confirm:
        found = door.status(_path(config_path, file))
        write_out(_encode(found) if as_json else _status_text(found) + "nothing was changed; add --confirm\n")
        return
    answer: Mapping[str, Any]
    if url is None:
        path = _path(config_path, file)
        try:
            answer = asdict(door.reconcile(path))
        except AuthorityError as error:
            if error.code != "usage_lock_held" or config_path is None:
                raise
            answer = _ask_gateway(config_path, url, auth_env)
    else:
        answer = _ask_gateway(config_path, url, auth_env)
    write_out(_encode(answer) if as_json else _reconcile_text(answer))


def _ask_gateway(config_path: str | None, url: str | None, auth_env: str | None) -> Mapping[str, Any]:
    from sndr.cli.router.online import ask

    document: Mapping[str, Any] = ask(lambda client: client.reconcile(), config_path, url, auth_env).document
    return document


@click.command("coverage")
@_config
@_file
@click.option("--since", metavar="WHEN", help="YYYY-MM-DD, an RFC 3339 time, or an age (24h, 7d).")
@click.option("--family", metavar="NAME", help="Only this model family.")
@_json
@coded
def coverage(config_path: str | None, file: str | None, since: str | None, family: str | None, as_json: bool) -> None:
    """How the requests to family aliases were decided, and how fast each tier was.

    The share of each rule, default and coverage gap, and per tier and cell the medians of tokens per second (from the
    lease to the end of delivery) and of the time to the first byte.
    """
    from sndr.router import usage as door

    start = None if since is None else door.parse_instant(since)
    found = door.coverage(_path(config_path, file), start, family)
    write_out(_encode(found) if as_json else coverage_text(found))


# -- text for people --------------------------------------------------------------------------------------------------


def _encode(value: object) -> str:
    return json.dumps(value) + "\n"


def _status_text(found: Mapping[str, Any]) -> str:
    from sndr.cli.router.text import ago, table

    lines = [
        f"{found['path']}: schema {found['schema']}, {found['rows']} rows, {found['bytes'] / 1e6:.1f} MB",
        f"newest request: {ago(found['last_started_at'])}; unresolved: {found['unresolved']}",
    ]
    if found["runs"]:
        rows = [["RUN", "PID", "STARTED", "PROCESS", "UNRESOLVED", "TIERS"]]
        for run in found["runs"]:
            tiers = ", ".join(f"{tier or 'unknown'} {count}" for tier, count in run["tiers"].items())
            verdict = "dead" if run["verdict"] == "dead" else "may be alive"
            name = (run["run_id"] or "unknown")[:8]
            rows.append([name, str(run["pid"] or "-"), ago(run["started_at"]), verdict, str(run["unresolved"]), tiers])
        lines += ["", *table(rows)]
    return "\n".join(lines) + "\n"


def _report_text(found: Mapping[str, Any]) -> str:
    from sndr.cli.router.text import table

    names = ["requests", "completed", "client_gone", "refused", "interrupted", "unresolved"]
    head = [found["by"].upper(), "REQUESTS", "COMPLETED", "CLIENT GONE", "REFUSED", "INTERRUPTED", "UNRESOLVED"]
    rows = [[*head, "FAILED", "PROMPT", "COMPLETION", "CACHED"]]
    for group in found["groups"]:
        failed = sum(group[n] for n in ("upstream_reset", "upstream_timeout", "upstream_error", "shutdown_cut"))
        key = "-" if group["key"] is None else str(group["key"])
        tokens = [group["prompt_tokens"], group["completion_tokens"], group["cached_tokens"]]
        rows.append([key, *(str(group[n]) for n in names), str(failed), *map(str, tokens)])
    if len(rows) == 1:
        return "no requests\n"
    return "\n".join(table(rows)) + "\n"


def coverage_text(found: Mapping[str, Any]) -> str:
    """The coverage of family aliases as tables."""
    from sndr.cli.router.text import count, table

    lines: list[str] = []
    for family in found["families"]:
        lines += [""] if lines else []
        lines.append(one_line(f"family {family['family']}: {count(family['requests'], 'request')}"))
        rows = [["DECIDED BY", "PRESET", "TIER", "REQUESTS", "SHARE"]]
        for route in family["routes"]:
            name = f"rule {route['rule_id']}" if route["rule_id"] is not None else route["outcome"]
            if route["substitute"] is not None:
                name += f" ({route['substitute']})"
            rows.append([name, route["preset_key"] or "-", route["tier"] or "-", *_share(route)])
        lines += ["", *table(rows)]
        if family["gaps"]:
            rows = [["COVERAGE GAP", "REQUESTS", "SHARE"], *([g["gap"], *_share(g)] for g in family["gaps"])]
            lines += ["", *table(rows)]
        rows = [["WORKLOAD", "LENGTH", "MODE", "TIER", "REQUESTS", "COMPLETED", "TOKENS/S", "FIRST BYTE"]]
        for one in family["siblings"]:
            first = one["first_byte_ms_median"]
            rows.append(
                [
                    one["workload_class"], one["expected_output_length"], one["concurrency_mode"], one["tier"] or "-",
                    str(one["requests"]), str(one["completed"]), str(one["tokens_per_s_median"] or "-"),
                    "-" if first is None else f"{first:g} ms",
                ]
            )  # fmt: skip
        lines += ["", *table(rows)]
    return "\n".join(lines) + "\n" if lines else "no requests to family aliases\n"


def _share(part: Mapping[str, Any]) -> list[str]:
    return [str(part["requests"]), f"{part['share']:.1%}"]


def _reconcile_text(answer: Mapping[str, Any]) -> str:
    lines = [f"{answer['reconciled']} rows closed as interrupted, {answer['left']} left open"]
    lines += [
        f"  run {run['run_id'][:8]} ({run['verdict']}): {run['reconciled']} closed, {run['left']} left"
        for run in answer["runs"]
    ]
    if answer["reconciled"]:
        lines.append("their upstream may still be computing: the gateway cannot know")
    return "\n".join(lines) + "\n"
