"""Verbs that talk to a running gateway: status, models, quiesce, drain, readmit; and how every such verb asks.

Exit: 0 done, 1 not achieved and the state is known, 2 usage or configuration (credentials too), 3 refused as things
are, 4 the authority is unsafe or uncertain, 5 no answer: the outcome is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sndr.cli.output import CommandError, one_line, write_out
from sndr.cli.router.advice import Where, exit_code, next_commands
from sndr.errors import InputError

if TYPE_CHECKING:
    from sndr.router.client import Answer, Client, RefusedError
    from sndr.router.configuration import BootConfig

__all__ = ["ask", "connect", "drain", "models", "online_options", "quiesce", "readmit", "status"]

_MODELS_SHOWN: Final = 3
_NAME_SHOWN: Final = 60
_Function = TypeVar("_Function", bound=Callable[..., Any])


def online_options(function: _Function) -> _Function:
    """The options that every online verb has."""
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="Print the gateway's answer as it came."),
        click.option("--auth-env", metavar="NAME", help="Environment variable with the credential."),
        click.option("--url", metavar="URL", help="http://HOST:PORT or unix:/PATH of the gateway."),
        click.option("--config", "config_path", metavar="FILE", help="Boot file that names address and credential."),
    ):
        function = decorate(function)
    return function


def connect(config_path: str | None, url: str | None, auth_env: str | None) -> Client:
    """A client for the gateway that the options name.

    The address is `url`, else the boot file's first listener, else the default one. The credential comes from the
    variable `auth_env`, else from the boot file's operator variable, `SNDR_ROUTER_OPERATOR_TOKEN` or the boot file's
    client variable, whichever is set first. Over TLS the boot file names the certificate to expect; one behind `url`
    must be trusted by the system.
    """
    from sndr.router import client

    address, tls_cert = client.DEFAULT_URL, None
    config = _boot(config_path)
    if config is not None:
        address = client.address_of(config)
        tls_cert = config.paths.tls_cert if url is None else None
    if auth_env is not None and not os.environ.get(auth_env):
        raise CommandError("credential_missing", f"the environment variable {auth_env} is not set", 2)
    name = _in_use(_variables(config, auth_env))
    token = None if name is None else os.environ[name]
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise CommandError("credential_invalid", f"{name} holds characters that no header can carry", 2)
    try:
        return client.Client(url or address, token, tls_cert=tls_cert)
    except InputError as error:
        raise CommandError(error.code, error.message, 2) from error


def _boot(config_path: str | None) -> BootConfig | None:
    if config_path is None:
        return None
    from sndr.router import configuration

    return configuration.load(config_path, None)


def _variables(config: BootConfig | None, auth_env: str | None) -> list[str]:
    """Variables that may hold the credential; the first one that is set does."""
    from sndr.router import client

    if auth_env is not None:
        return [auth_env]
    if config is None:
        return [client.OPERATOR_TOKEN_ENV]
    server = config.server
    return [name for name in (server.operator_auth_env, client.OPERATOR_TOKEN_ENV, server.auth_env) if name]


def _in_use(names: list[str]) -> str | None:
    return next((name for name in names if os.environ.get(name)), None)


def ask(question: Callable[[Client], Answer], config_path: str | None, url: str | None, auth_env: str | None) -> Answer:
    from sndr.router.client import RefusedError, TransportError

    try:
        with connect(config_path, url, auth_env) as client:
            return question(client)
    except RefusedError as error:
        message = _explained(error, Where(config_path, url, auth_env))
        raise CommandError(error.code, message, exit_code(error.status, error.code)) from error
    except TransportError as error:
        raise CommandError(error.code, f"{error.message}; {without_answer(error.sent)}", 5) from error


def without_answer(sent: bool) -> str:
    """What is known where no answer came."""
    if sent:
        return "the outcome is unknown: run sndr router status"
    return "nothing was sent: is the gateway running, and is this its address?"


def _explained(error: RefusedError, where: Where) -> str:
    """The gateway's sentence, and what belongs to it: whose credential, the probe's reason, the legal next steps."""
    if error.status in (401, 403):
        names = _variables(_boot(where.config_path), where.auth_env)
        name = _in_use(names)
        origin = "no credential was sent" if name is None else f"the value of {name} was sent"
        return f"{error.message}; {origin}" if name == names[0] else f"{error.message}; {origin}: set {names[0]}"
    reason = error.body.get("reason")
    said = f"{error.message} ({reason})" if isinstance(reason, str) else error.message
    commands = next_commands(error.body, where)
    return f"{said} Next: {' | '.join(commands)}" if commands else said


@click.command("status")
@click.option("--check", is_flag=True, help="Compare the authority file with the gateway's memory of it instead.")
@online_options
def status(check: bool, config_path: str | None, url: str | None, auth_env: str | None, as_json: bool) -> int:
    """Show the gateway, its tiers and its routes as they are now. With --check: exit 4 unless the file is as it was."""
    if check:
        answer = ask(lambda client: client.check_authority(), config_path, url, auth_env)
        result = answer.document["result"]
        _print(answer, as_json, lambda it: f"authority file: {it['result']}\n")
        return 0 if result == "consistent" else 4
    answer = ask(lambda client: client.status(), config_path, url, auth_env)
    where = Where(config_path, url, auth_env)
    _print(answer, as_json, lambda it: _status_text(it, where))
    return 0


@click.command("models")
@online_options
def models(config_path: str | None, url: str | None, auth_env: str | None, as_json: bool) -> None:
    """List the aliases that the credential may use."""
    answer = ask(lambda client: client.models(), config_path, url, auth_env)
    _print(answer, as_json, _models_text)


@click.command("quiesce")
@click.argument("tier")
@click.option("--reason", metavar="TEXT", help="Why; shown in status until the tier is readmitted.")
@online_options
def quiesce(
    tier: str, reason: str | None, config_path: str | None, url: str | None, auth_env: str | None, as_json: bool
) -> None:
    """Stop new requests to TIER; running ones go on."""
    answer = ask(lambda client: client.quiesce(tier, reason), config_path, url, auth_env)
    _print(answer, as_json, lambda it: f"{tier} takes no new requests; {_running(it)} still running\n")


@click.command("drain")
@click.argument("tier")
@click.option("--timeout", "timeout_s", type=click.IntRange(1, 900), default=60, show_default=True, metavar="SECONDS")
@online_options
def drain(
    tier: str, timeout_s: int, config_path: str | None, url: str | None, auth_env: str | None, as_json: bool
) -> int:
    """Wait until the quiesced TIER is idle; nothing is ever cut. Exit 1 when the time runs out first."""
    answer = ask(lambda client: client.drain(tier, timeout_s), config_path, url, auth_env)

    def text(it: Mapping[str, Any]) -> str:
        if it["drained"]:
            return f"{tier} is idle\n"
        return f"{tier} is not idle after {timeout_s} s: {_running(it['tier'])} still running, and left running\n"

    _print(answer, as_json, text)
    return 0 if answer.document["drained"] else 1


@click.command("readmit")
@click.argument("tier")
@online_options
def readmit(tier: str, config_path: str | None, url: str | None, auth_env: str | None, as_json: bool) -> None:
    """Let TIER take requests again, after a fresh probe by the gateway proved it."""
    answer = ask(lambda client: client.readmit(tier), config_path, url, auth_env)

    def text(it: Mapping[str, Any]) -> str:
        held = "" if it["tier"]["admitting"] else "; a route change still holds it"
        return f"{tier} is readmitted ({it['reason']}){held}\n"

    _print(answer, as_json, text)


# -- text for people --------------------------------------------------------------------------------------------------


def _print(answer: Answer, as_json: bool, text: Callable[[Any], str]) -> None:
    write_out(answer.raw.decode("utf-8") if as_json else text(answer.document))


def _running(tier: Mapping[str, Any]) -> str:
    count = tier["in_flight"]
    return "1 request is" if count == 1 else f"{count} requests are"


def _status_text(it: Mapping[str, Any], where: Where) -> str:
    from sndr.cli.router.text import ago, count, span, table

    lines = [
        f"sndr {it['version']} {it['state']} on {', '.join(it['listen'])} for {span(it['uptime_s'])}",
        f"configuration {it['config_sha256'][:12]}",
    ]
    ledger = it.get("ledger")
    if ledger is not None:
        lines.append(
            f"ledger: {ledger['rows']} rows, {ledger['unresolved']} unresolved, {ledger['lag_ms']} ms behind"
            if ledger["enabled"]
            else "ledger: off"
        )
    lines += [
        f"log of {name}: {count(lost, 'line')} dropped that nobody took"
        for name, lost in it.get("dropped_log_lines", {}).items()
        if lost
    ]
    if it.get("routing_table") is not None:
        lines += _table_lines(it["routing_table"])
    if it.get("route_authority") is not None:
        from sndr.cli.router.routes_text import authority_lines

        lines += authority_lines(it, where)
    rows = [["TIER", "READY", "ADMITTING", "RUNNING", "QUEUED", "CHECKED", "MODEL", "SERVER"]]
    for tier in it["tiers"]:
        limit = tier["max_concurrency"]
        rows.append(
            [
                tier["id"],
                _readiness(tier),
                _admission(tier),
                str(tier["in_flight"]) if limit is None else f"{tier['in_flight']}/{limit}",
                str(tier["queued"]),
                ago(tier["checked_at"]),
                tier["model"] or "-",
                tier.get("base_url", ""),
            ]
        )
    lines = [*map(one_line, lines), "", *table(rows)]
    aliases = [["ALIAS", "ROUTE"]]
    for alias, target in it["aliases"].items():
        family = target.get("family")
        aliases.append([alias, target["tier"] if family is None else f"family {family}, else {target['natural']}"])
    lines += ["", *table(aliases)]
    return "\n".join(lines) + "\n"


def _table_lines(table: Mapping[str, Any]) -> list[str]:
    from sndr.cli.router.text import count

    name = (table["content_sha256"] or "unreadable")[:12]
    if table["state"] != "in_force":
        lines = [f"routing table: not used: {table.get('reason') or 'degraded'}"]
    else:
        lines = [f"routing table: {name} in force"]
        if "rules" in table:
            lines[0] += f", {count(table['rules'], 'rule')}, {count(table['coverage_gaps'], 'coverage gap')}"
    on_disk = table.get("on_disk")
    if on_disk is not None and on_disk["changed"]:
        now = (on_disk["content_sha256"] or "no table")[:12]
        lines.append(f"routing table on disk: {now}, not {name}; a restart would read it")
    return lines


def _readiness(tier: Mapping[str, Any]) -> str:
    if tier["ready"]:
        return "yes"
    seen = tier.get("observed_models") or []
    if tier["reason"] != "identity_mismatch" or not seen:
        return f"no: {tier['reason']}"
    named = ", ".join(one_line(str(model))[:_NAME_SHOWN] for model in seen[:_MODELS_SHOWN])
    return f"no: identity_mismatch (serves {named}{', ...' if len(seen) > _MODELS_SHOWN else ''})"


def _admission(tier: Mapping[str, Any]) -> str:
    if tier["quiesced"]:
        reason = tier.get("quiesce_reason")
        return f"no: quiesced ({reason})" if reason else "no: quiesced"
    return "no: held" if tier["held"] else "yes"


def _models_text(it: Mapping[str, Any]) -> str:
    from sndr.cli.router.text import table

    rows = [["MODEL", "READY", "CONTEXT", "MAX OUTPUT"]]
    for entry in it["data"]:
        ready = "yes" if entry.get("ready") else "no"
        numbers = [str(entry.get(key) or "-") for key in ("context_window", "max_output_tokens")]
        rows.append([entry["id"], ready, *numbers])
    return "\n".join(table(rows)) + "\n"
