"""`sndr router check`: judge a boot file without a gateway."""

from __future__ import annotations

import os

import click

__all__ = ["check"]


@click.command("check")
@click.option("--config", "config_path", metavar="FILE", help="The boot file (TOML).")
@click.option("--json", "as_json", is_flag=True, help="Print the effective configuration and its hash as JSON.")
@click.option("--without-env", is_flag=True, help="Judge the file alone: no credentials, no certificate.")
@click.option("--probe", is_flag=True, help="Ask the servers of family aliases what tells them apart.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of boot files and do nothing else.")
@click.option("--reference", is_flag=True, help="Print the reference of all keys as Markdown and do nothing else.")
def check(
    config_path: str | None, as_json: bool, without_env: bool, probe: bool, schema: bool, reference: bool
) -> None:
    """Check a boot file and print what it means, every default written out.

    The routing table that it names is read too (its command is run): every rule target and default of a used family
    must have a tier, and siblings must be different servers. Coverage gaps that requests can lie in are listed.

    The output is itself a boot file with the same meaning. Every fault is reported at once, each with its line.
    Exit: 0 the file is valid, 2 it is not.
    """
    from sndr.cli.output import write_err, write_out
    from sndr.router import configuration, routing_table

    if schema or reference:
        write_out(configuration.json_schema() if schema else configuration.reference())
        return
    if config_path is None:
        raise click.UsageError("Missing option '--config'.")
    config = configuration.load(config_path, None if without_env else os.environ)
    if not without_env:
        configuration.check_certificate(config)
    table = routing_table.load_table(config)
    judged = routing_table.judge(config, table)
    if probe and not judged.findings:
        routing_table.probe(config, table, judged)
    if judged.findings:
        for note in judged.notes:
            write_err(f"note: {note}")
        raise configuration.family_faults(config, judged.findings, of_table=table.fatal)
    head = f"# {config_path}: valid\n# config_sha256 {config.config_sha256}\n"
    write_out(configuration.effective_json(config) if as_json else head + configuration.effective_toml(config))
    for note in (*configuration.notes(config), *judged.notes):
        write_err(f"note: {note}")
