"""`sndr router synthetic-serve`: a small model server for tests and demonstrations."""

from __future__ import annotations

import json
import os

import click

from sndr.cli.output import CommandError, write_out
from sndr.errors import InputError

__all__ = ["synthetic_serve"]


def _host_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise CommandError("invalid_listen", f"--listen {text!r}: expected HOST:PORT, for example 127.0.0.1:0", 2)
    return host.strip("[]"), int(port)


@click.command("synthetic-serve")
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="HOST:PORT; port 0 picks a free one.")
@click.option("--model", default="m1", show_default=True, help="Served model name.")
@click.option("--tokens", type=click.IntRange(min=0), help="Tokens per answer (8).")
@click.option("--token-delay-ms", type=click.FloatRange(min=0), help="Wait before each further token (0).")
@click.option(
    "--depth", type=click.IntRange(1, 64), default=1, show_default=True, help="Speculative depth (K) to play."
)
@click.option("--first-delay-ms", type=click.FloatRange(min=0), help="Wait before the response head (0).")
@click.option("--plan", "plan_json", help="Default plan as JSON (see the module's documentation).")
@click.option("--auth-env", help="Environment variable with the credential that requests must carry.")
@click.option(
    "--keepalive-idle-s", type=click.FloatRange(min=0), default=0, help="Close idle connections after (never)."
)
def synthetic_serve(
    listen: str,
    model: str,
    tokens: int | None,
    token_delay_ms: float | None,
    depth: int,
    first_delay_ms: float | None,
    plan_json: str | None,
    auth_env: str | None,
    keepalive_idle_s: float,
) -> None:
    """Serve numbered tokens in the OpenAI and Anthropic dialects, and misbehave when told to.

    With a depth above 1, tokens of tool calls and structured answers come sooner, all others later, and /metrics shows
    vLLM's counters for it.

    Prints one JSON line with its address once it listens; ends with SIGINT or SIGTERM.
    """
    import asyncio

    from sndr.router.synthetic import Options, Plan, SyntheticServer, parse_plan, serve

    host, port = _host_port(listen)
    members = {"tokens": tokens, "token_delay_ms": token_delay_ms, "first_delay_ms": first_delay_ms}
    try:
        given = json.loads(plan_json) if plan_json is not None else {}
        plan = parse_plan({k: v for k, v in members.items() if v is not None}, parse_plan(given, Plan()))
    except ValueError:
        raise CommandError("invalid_plan", "--plan: not JSON", 2) from None
    except InputError as error:
        raise CommandError(error.code, f"--plan: {error.message}", 2) from None
    token = None
    if auth_env is not None:
        token = os.environ.get(auth_env)
        if not token:
            raise CommandError("credential_missing", f"the environment variable {auth_env} is not set", 2)

    def announce(server: SyntheticServer) -> None:
        line = {
            "event": "listening",
            "address": server.address,
            "base_url": server.base_url,
            "model": model,
            "pid": os.getpid(),
        }
        write_out(json.dumps(line) + "\n")

    options = Options(
        host=host, port=port, model=model, token=token, plan=plan, keepalive_idle_s=keepalive_idle_s, depth=depth
    )  # fmt: skip
    try:
        asyncio.run(serve(options, announce))
    except InputError as error:
        raise CommandError(error.code, error.message, 2) from error
