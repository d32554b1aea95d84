#!/usr/bin/env python3
"""Look at a live change of a real deployment, and report what was seen. Run by an operator; part of no test gate.

    export SNDR_ROUTER_OPERATOR_TOKEN=... SNDR_ROUTER_CLIENT_TOKEN=...
    acceptance.py --url http://127.0.0.1:8710 --move chat.default=big --other chat.small --streams 4 --out report.json

While streams of the moved alias and of another one run, the alias is moved to a tier that the boot file has, and back.
The report has one line per question: `seen` with what was seen, `not seen` where this run could not tell,
`contradicted` where it saw the opposite. It says nothing about weights, about quality, about power cuts or about any
other moment than this. Exit 0 if everything was seen, 1 if something was contradicted, 2 if something was not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from sndr.errors import SndrError
from sndr.router.client import OPERATOR_TOKEN_ENV, Client

CLIENT_TOKEN_ENV = "SNDR_ROUTER_CLIENT_TOKEN"  # noqa: S105 - the name of a variable
PROMPT = "Count from one to two hundred in words, separated by commas."


@dataclass
class Stream:
    """One streamed answer, as its client saw it."""

    alias: str
    began: float = 0.0
    ended: float = 0.0
    status: int | None = None
    revision: str | None = None
    is_whole: bool = False
    fault: str | None = None


@dataclass
class Findings:
    """Answers to the questions, in order."""

    lines: list[dict[str, str]] = field(default_factory=list)

    def add(self, question: str, fact: bool | None, detail: str) -> None:
        """`fact` None: this run could not tell."""
        word = "not seen" if fact is None else "seen" if fact else "contradicted"
        self.lines.append({"question": question, "result": word, "detail": detail})
        print(f"{word}: {question} ({detail})")


def stream(url: str, token: str | None, one: Stream, max_tokens: int) -> None:
    """Read one streamed answer to its end."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    body = {
        "model": one.alias, "stream": True, "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": PROMPT}],
    }  # fmt: skip
    one.began = time.time()
    try:
        with (
            httpx.Client(timeout=600, trust_env=False) as http_,
            http_.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as response,
        ):
            one.status = response.status_code
            one.revision = response.headers.get("x-sndr-route-revision")
            last = ""
            for line in response.iter_lines():
                last = line or last
            one.is_whole = last == "data: [DONE]"
    except httpx.HTTPError as error:
        one.fault = type(error).__name__
    one.ended = time.time()


def move(client: Client, alias: str, tier: str) -> tuple[float, float, dict[str, Any]]:
    """Move an alias; when it was asked for, when it was answered, the receipt."""
    preview = client.preview({"op": "alias_update", "aliases": {alias: {"tier": tier}}}).document
    began = time.time()
    receipt = client.apply(preview["preview_id"], preview["preview_sha256"], confirm=True).document
    return began, time.time(), receipt


def run(client: Client, options: argparse.Namespace, findings: Findings) -> None:
    """The whole look."""
    alias, tier = options.move
    token = os.environ.get(CLIENT_TOKEN_ENV)
    view = client.routes().document
    original = view["current"]["projection"]["aliases"][alias].get("tier")
    before = client.status().document
    if original is None or original == tier:
        raise ValueError(f"{alias} must lead to another tier than {tier}, and to a tier at all")
    streams = [Stream(name) for name in (alias, options.other) for _ in range(options.streams)]
    threads = [threading.Thread(target=stream, args=(options.url, token, one, options.tokens)) for one in streams]
    for thread in threads:
        thread.start()
    time.sleep(options.lead)
    began, ended, receipt = move(client, alias, tier)
    probe = Stream(alias)
    stream(options.url, token, probe, 8)
    for thread in threads:
        thread.join()
    after = client.status().document
    crossing = [one for one in streams if one.began < began and one.ended > ended]
    detail = f"{len(crossing)} of {len(streams)} streams ran across the change"
    cut = [one for one in crossing if not one.is_whole]
    findings.add("no stream was cut by the change", None if not crossing else not cut, f"{detail}, {len(cut)} were cut")
    others = [one for one in streams if one.alias == options.other]
    bad = [one for one in others if one.status != 200 or not one.is_whole]
    findings.add("the other alias was served throughout", not bad, f"{len(others)} streams, {len(bad)} not whole")
    process = before["started_at"] == after["started_at"]
    findings.add("the process is the one from before", process, f"started at {after['started_at']}")
    boot = before["config_sha256"] == after["config_sha256"]
    findings.add("the boot file is the one from before", boot, after["config_sha256"][:12])
    told = receipt["changed"]["to"]["route_revision"]
    follows = probe.status == 200 and probe.revision == str(told)
    findings.add("a new request follows the new route", follows, f"status {probe.status}, revision {probe.revision}")
    old = [one for one in crossing if one.revision is not None]
    kept = all(int(one.revision or 0) < told for one in old)
    findings.add(
        "running streams kept their routes", kept if old else None, f"{len(old)} with a revision in their head"
    )
    _, _, back = move(client, alias, original)
    restored = back["changed"]["to"]["effective_route_sha256"] == view["effective_route_sha256"]
    findings.add("going back restores the content under a later revision", restored, f"revision {told} and then "
                 f"{back['changed']['to']['route_revision']}")  # fmt: skip
    check = client.check_authority().document["result"]
    findings.add("the file is what the process remembers", check == "consistent", check)
    left = client.status().document["ledger"]["unresolved"]
    findings.add("the ledger has an end for everything", True if left == 0 else None, f"{left} open, of anybody")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Report what is seen of a live change of a real deployment.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--move", required=True, metavar="ALIAS=TIER", type=lambda text: tuple(text.split("=", 1)))
    parser.add_argument("--other", required=True, metavar="ALIAS", help="an alias that leads elsewhere")
    parser.add_argument("--streams", type=int, default=4, help="of each alias")
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--lead", type=float, default=2, help="seconds between the streams and the change")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    findings = Findings()
    fault = None
    with Client(options.url, os.environ.get(OPERATOR_TOKEN_ENV)) as client:
        try:
            run(client, options, findings)
        except (SndrError, ValueError, KeyError) as error:
            fault = f"{getattr(error, 'code', type(error).__name__)}: {error}"
            print(f"ended early: {fault}", file=sys.stderr)
    report = {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "url": options.url, "ended_early": fault,
        "findings": findings.lines, "claims_nothing_about": ["weights", "quality", "power cuts", "any other moment"],
    }  # fmt: skip
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    results = {line["result"] for line in findings.lines}
    if "contradicted" in results:
        return 1
    return 2 if fault or "not seen" in results else 0


if __name__ == "__main__":
    sys.exit(main())
