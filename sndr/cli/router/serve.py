"""`sndr router serve`: run the gateway in the foreground."""

from __future__ import annotations

import os

import click

from sndr.cli.router.refusals import coded

__all__ = ["serve"]


@click.command("serve")
@click.option("--config", "config_path", required=True, metavar="FILE", help="The boot file (TOML).")
@click.option("--listen", multiple=True, metavar="ADDR", help="Listen here instead of server.listen; repeatable.")
@click.option(
    "--log-format", type=click.Choice(["json", "text"]), default="json", help="Form of the log's lines; default json."
)
@click.option("--allow-volatile-filesystem", "allow_volatile", is_flag=True, hidden=True)
@coded
def serve(config_path: str, listen: tuple[str, ...], log_format: str, allow_volatile: bool) -> int:
    """Serve until SIGTERM or SIGINT; a second signal ends the process at once.

    Running requests get server.shutdown_grace_s to finish. The log goes to standard error, one line per
    event. SIGHUP opens the decision log again and reloads certificate and key.
    Exit: 0 after an orderly stop, 2 when the gateway refuses to start, 3 when another one holds a lock.
    """
    from sndr.router import app, configuration

    config = configuration.load(config_path, os.environ, listen=listen)
    return app.run(config, allow_volatile=allow_volatile, log_form="text" if log_format == "text" else "json")
