#!/usr/bin/env python3
"""Promote another model on a tier: prepare, unload, load, observe, resume. Whoever runs this owns the model servers.

    export SNDR_ROUTER_OPERATOR_TOKEN=...
    promote.py --url http://127.0.0.1:8710 --tier primary --set model=m2 --set base_url=http://127.0.0.1:8001/v1 \\
        --campaign night-7 --campaign-file plan.json --unload ./unload.sh --load ./load.sh --observe ./observe.sh

The gateway starts and stops nothing. `--unload` runs once the tier is drained, `--load` after it, and `--observe`
prints one JSON object about the container that now serves: container_id, image_id, started_at, observer, served_model
(and observed_at; without it, now). The gateway checks the form, the model's name and the age of this, and stores it as
what an operator asserted. It cannot see which weights were loaded, and nothing here says so.

Any failure ends the script with the tier still held, and with what the gateway offers next. Nothing is rolled back and
nothing is tried again: that is a person's decision. Exit 0 only if the transaction is completed.

`--go-on` takes up the very change that an earlier run left held, whatever ended that run or the gateway since. It waits
for the drain and then runs all three commands: one that was run before must do no harm when it is run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sndr.errors import SndrError
from sndr.router.client import OPERATOR_TOKEN_ENV, Client


def say(step: str, text: str) -> None:
    """One line per step, so that a log of this is a log of the promotion."""
    print(f"{datetime.now(UTC):%H:%M:%S} {step}: {text}", flush=True)


def setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE; the value is JSON where it can be read as such, else a string."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("--set takes KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def observed(command: str) -> dict[str, Any]:
    """What the observer says about the container."""
    text = subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S602 - the operator's own command
    container: dict[str, Any] = json.loads(text)
    if not isinstance(container, dict):
        raise ValueError("the observer must print one JSON object")  # noqa: TRY004 - what was printed, not a wrong call
    container.setdefault("observed_at", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    return container


def apply(client: Client, change: dict[str, Any], drain_timeout_s: int, verify_timeout_s: int) -> dict[str, Any]:
    """Preview a change, show its checks, apply it."""
    preview = client.preview(change).document
    for check in preview["checks"]:
        say(change["op"], f"{check['name']} {'ok' if check['ok'] else check['code']}")
    receipt: dict[str, Any] = client.apply(
        preview["preview_id"], preview["preview_sha256"], confirm=True,
        drain_timeout_s=drain_timeout_s, verify_timeout_s=verify_timeout_s,
    ).document  # fmt: skip
    return receipt


def prepare(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    """Hold the tier and drain it; the resume that will be due."""
    change = {"op": "tier_replacement", "tiers": {options.tier: dict(options.set)}, "mode": "prepare", "managed": True}
    prepared = apply(client, change, options.drain_timeout, options.verify_timeout)
    if not (prepared["held"] and prepared["drain"] and prepared["drain"]["complete"]):
        raise RuntimeError("the tier is not drained")
    cut = prepared["streams"]["cut"]
    say("prepared", f"transaction {prepared['transaction_id']}, held {prepared['scope']}, {cut} streams cut")
    return {"op": "resume", "transaction_id": prepared["transaction_id"]}


def take_up(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    """The resume of the change that an earlier run left held, drained by now."""
    view = client.routes().document
    open_ = view["transaction"]
    wanted = {"kind": "tier_replacement", "tiers": {options.tier: dict(options.set)}}
    if open_ is None or open_["state"] != "held" or not open_["managed"] or open_["change"] != wanted:
        raise RuntimeError("there is no held change of this tier and with these settings to go on with")
    drain = client.drain_wait(options.drain_timeout).document
    if not drain["complete"]:
        raise RuntimeError(f"not drained: {drain['leases']} run, {drain['unresolved']} rows of the ledger have no end")
    say("taken up", f"transaction {open_['id']}, held {open_['scope']}, drained")
    if view["attention"] is None:
        return {"op": "resume", "transaction_id": open_["id"]}
    return {"op": "recover", "action": "resume", "transaction_id": open_["id"]}


def promote(client: Client, options: argparse.Namespace, campaign: dict[str, str]) -> dict[str, Any]:
    """The whole order; raises where it stops."""
    resume = take_up(client, options) if options.go_on else prepare(client, options)
    for step, command in (("unload", options.unload), ("load", options.load)):
        say(step, command)
        subprocess.run(command, shell=True, check=True)  # noqa: S602 - the operator's own command
    container = observed(options.observe)
    say("observed", f"{container.get('container_id')} says that it serves {container.get('served_model')}")
    evidence = {"campaign": campaign, "containers": {options.tier: container}}
    return apply(client, {**resume, "evidence": evidence}, options.drain_timeout, options.verify_timeout)


def stopped(client: Client, why: str) -> int:
    """Say why, and how things stand as far as the gateway answers."""
    print(f"stopped: {why}", file=sys.stderr)
    try:
        view = client.routes().document
    except SndrError as error:
        print(f"how things stand is unknown, ask again: {error.code}: {error}", file=sys.stderr)
    else:
        print(f"state {view['state']}, held {view['held_tiers']}, next {view['next']}", file=sys.stderr)
    return 1


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Promote another model on one tier of a running gateway.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--tier", required=True)
    parser.add_argument("--set", action="append", required=True, type=setting, metavar="KEY=VALUE")
    parser.add_argument("--campaign", required=True, help="its id")
    parser.add_argument("--campaign-file", required=True, type=Path, help="the document that decided it")
    parser.add_argument("--unload", required=True, metavar="COMMAND")
    parser.add_argument("--load", required=True, metavar="COMMAND")
    parser.add_argument("--observe", required=True, metavar="COMMAND")
    parser.add_argument("--drain-timeout", type=int, default=300)
    parser.add_argument("--verify-timeout", type=int, default=60)
    parser.add_argument("--go-on", action="store_true", help="with the held change of an earlier run")
    options = parser.parse_args()
    try:  # before anything is held: what would be missing at the end
        campaign = {"id": options.campaign, "sha256": hashlib.sha256(options.campaign_file.read_bytes()).hexdigest()}
        gateway = Client(options.url, os.environ.get(OPERATOR_TOKEN_ENV))
    except (OSError, SndrError) as error:
        parser.error(str(error))
    with gateway as client:
        try:
            receipt = promote(client, options, campaign)
        except KeyboardInterrupt:
            return stopped(client, "interrupted")
        except (SndrError, RuntimeError, OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
            return stopped(client, f"{getattr(error, 'code', type(error).__name__)}: {error}")
        if receipt["state"] != "completed":
            return stopped(client, f"the transaction is {receipt['state']}")
    say("done", f"revision {receipt['changed']['to']['route_revision']}, proves {receipt['proves']}")
    print(json.dumps(receipt))
    return 0


if __name__ == "__main__":
    sys.exit(main())
