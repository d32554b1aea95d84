#!/usr/bin/env python3
"""Look at a live change of a real deployment, and report what was seen. Run by an operator; part of no test gate.

    export SNDR_ROUTER_OPERATOR_TOKEN=... SNDR_ROUTER_CLIENT_TOKEN=...
    acceptance.py --url http://127.0.0.1:8710 --move chat.default=big --other chat.small --streams 4 --out report.json

While streams of the moved alias and of another one run, the alias is moved to a tier that the boot file has, and back.
The report has one line per question: `seen` with what was seen, `not seen` where this run could not tell,
`contradicted` where it saw the opposite. A stream counts as running across the change only if its answer had begun
before the change was asked for and ended after the change was answered. It says nothing about weights, about quality,
about power cuts or about any other moment than this. Exit 0 if everything was seen, 1 if something was contradicted, 2
if something was not seen or the script ended early; then the report says where the alias was left.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from sndr.errors import SndrError
from sndr.router.client import OPERATOR_TOKEN_ENV, Client

CLIENT_TOKEN_ENV = "SNDR_ROUTER_CLIENT_TOKEN"  # noqa: S105 - the name of a variable
PROMPT = "Count from one to two hundred in words, separated by commas."
SETTLE_S = 5.0


@dataclass
class Stream:
    """One streamed answer, as its client saw it; moments are of the monotonic clock."""

    alias: str
    id: str = field(default_factory=lambda: f"acceptance-{uuid.uuid4()}")
    head_at: float | None = None
    """When its answer began."""
    ended: float = 0.0
    status: int | None = None
    revision: str | None = None
    is_whole: bool = False
    gave_up: bool = False
    """It took longer than this script waits: nobody knows how it would have ended."""
    fault: str | None = None

    def ran_across(self, began: float, ended: float) -> bool:
        """Whether it was being answered during the whole of a change."""
        return self.status == 200 and self.head_at is not None and self.head_at < began and self.ended > ended


@dataclass
class Findings:
    """Answers to the questions, in order."""

    lines: list[dict[str, str]] = field(default_factory=list)
    moved: str | None = None
    """Where the alias may be, while it is not where it was."""

    def add(self, question: str, fact: bool | None, detail: str) -> None:
        """`fact` None: this run could not tell."""
        word = "not seen" if fact is None else "seen" if fact else "contradicted"
        self.lines.append({"question": question, "result": word, "detail": detail})
        print(f"{word}: {question} ({detail})")


def stream(url: str, token: str | None, one: Stream, max_tokens: int, longest_s: float) -> None:
    """Read one streamed answer to its end, or as long as this script waits."""
    headers = {"x-request-id": one.id} | ({} if token is None else {"authorization": f"Bearer {token}"})
    body = {
        "model": one.alias, "stream": True, "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": PROMPT}],
    }  # fmt: skip
    deadline = time.monotonic() + longest_s
    try:
        with (
            httpx.Client(timeout=longest_s, trust_env=False) as http_,
            http_.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as response,
        ):
            one.status = response.status_code
            one.revision = response.headers.get("x-sndr-route-revision")
            one.head_at = time.monotonic()
            last = b""
            for piece in response.iter_bytes():
                last = (last + piece)[-64:]
                if time.monotonic() > deadline:
                    one.gave_up = True
                    break
            one.is_whole = not one.gave_up and last.rstrip().endswith(b"data: [DONE]")
    except httpx.TimeoutException:
        one.gave_up = True
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        one.fault = type(error).__name__
    one.ended = time.monotonic()


def move(client: Client, alias: str, tier: str) -> tuple[float, float, dict[str, Any]]:
    """Move an alias; when it was asked for, when it was answered, the receipt."""
    preview = client.preview({"op": "alias_update", "aliases": {alias: {"tier": tier}}}).document
    began = time.monotonic()
    receipt = client.apply(preview["preview_id"], preview["preview_sha256"], confirm=True).document
    return began, time.monotonic(), receipt


def judge_streams(
    findings: Findings, streams: list[Stream], other: str, window: tuple[float, float], told: int
) -> None:
    """What the streams say about a change between two moments, which made revision `told`."""
    crossing = [one for one in streams if one.ran_across(*window) and not one.gave_up]
    cut = [one for one in crossing if not one.is_whole]
    detail = f"{len(crossing)} of {len(streams)} streams ran across the change"
    findings.add("no stream was cut by the change", None if not crossing else not cut, f"{detail}, {len(cut)} were cut")
    others = [one for one in streams if one.alias == other]
    bad = [one for one in others if not one.gave_up and (one.status != 200 or not one.is_whole)]
    across = [one for one in crossing if one.alias == other]
    findings.add(
        "the other alias was served throughout", False if bad else True if across else None,
        f"{len(across)} of its {len(others)} streams ran across the change, {len(bad)} were not whole",
    )  # fmt: skip
    old = [one for one in crossing if one.revision is not None]
    kept = all(
        str(one.revision).isascii() and str(one.revision).isdigit() and int(one.revision or 0) < told for one in old
    )
    findings.add(
        "running streams kept their routes", kept if old else None, f"{len(old)} with a revision in their head"
    )


def judge_probe(client: Client, findings: Findings, probe: Stream, tier: str, told: int) -> None:
    """Whether a request after the change went the new way: by its head, and by its row in the ledger."""
    if probe.status != 200:
        findings.add("a new request follows the new route", None, f"status {probe.status}, {probe.fault}")
        return
    went = client.call("GET", f"/v1/requests/{probe.id}").document["tier"]
    follows = probe.revision == str(told) and went == tier
    findings.add("a new request follows the new route", follows, f"revision {probe.revision}, tier {went}")


def all_ended(client: Client) -> int:
    """Rows without an end, once what is on its way to the disk had time to get there."""
    ends = time.monotonic() + SETTLE_S
    while (left := int(client.status().document["ledger"]["unresolved"])) and time.monotonic() < ends:
        time.sleep(0.2)
    return left


def run(client: Client, options: argparse.Namespace, findings: Findings) -> None:
    """The whole look."""
    alias, tier = options.move
    token = os.environ.get(CLIENT_TOKEN_ENV)
    view = client.routes().document
    aliases = view["current"]["projection"]["aliases"]
    original = aliases[alias].get("tier")
    before = client.status().document
    if original is None or original == tier:
        raise ValueError(f"{alias} must lead to another tier than {tier}, and to a tier at all")
    if aliases[options.other].get("tier") in (None, original):
        raise ValueError(f"{options.other} must lead to another tier than {alias} does")
    streams = [Stream(name) for name in (alias, options.other) for _ in range(options.streams)]
    threads = [
        threading.Thread(target=stream, args=(options.url, token, one, options.tokens, options.longest), daemon=True)
        for one in streams
    ]
    for thread in threads:
        thread.start()
    time.sleep(options.lead)
    findings.moved = f"{alias} led to {original}, and may lead to {tier} now"
    began, ended, receipt = move(client, alias, tier)
    told = receipt["changed"]["to"]["route_revision"]
    probe = Stream(alias)
    stream(options.url, token, probe, 8, options.longest)
    for thread in threads:
        thread.join()
    judge_streams(findings, streams, options.other, (began, ended), told)
    after = client.status().document
    process = before["started_at"] == after["started_at"]
    findings.add("the process is the one from before", process, f"started at {after['started_at']}")
    boot = before["config_sha256"] == after["config_sha256"]
    findings.add("the boot file is the one from before", boot, after["config_sha256"][:12])
    judge_probe(client, findings, probe, tier, told)
    _, _, back = move(client, alias, original)
    findings.moved = None
    to = back["changed"]["to"]
    restored = to["effective_route_sha256"] == view["effective_route_sha256"] and to["route_revision"] > told
    findings.add("going back restores the content under a later revision", restored, f"revision {told} and then "
                 f"{to['route_revision']}")  # fmt: skip
    check = client.check_authority().document["result"]
    findings.add("the file is what the process remembers", check == "consistent", check)
    left = all_ended(client)
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
    parser.add_argument("--longest", type=float, default=600, help="seconds that a stream may take")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    findings = Findings()
    fault = None
    try:  # a report that cannot be written is found before anything is moved
        options.out.write_text("")
        gateway = Client(options.url, os.environ.get(OPERATOR_TOKEN_ENV))
    except (OSError, SndrError) as error:
        parser.error(str(error))
    with gateway as client:
        try:
            run(client, options, findings)
        except KeyboardInterrupt:
            fault = "interrupted"
        except (SndrError, ValueError, KeyError) as error:
            fault = f"{getattr(error, 'code', type(error).__name__)}: {error}"
    if fault is not None:
        print(f"ended early: {fault}", file=sys.stderr)
    if findings.moved is not None:
        print(findings.moved, file=sys.stderr)
    report = {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "url": options.url,
        "ended_early": fault,
        "left_moved": findings.moved,
        "findings": findings.lines,
        "claims_nothing_about": ["weights", "quality", "power cuts", "any other moment"],
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    results = {line["result"] for line in findings.lines}
    if "contradicted" in results:
        return 1
    return 2 if fault or "not seen" in results else 0


if __name__ == "__main__":
    sys.exit(main())
