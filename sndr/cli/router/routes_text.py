"""Previews, receipts and holds as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sndr.cli.output import one_line
from sndr.cli.router.advice import ADVICE, Where, next_commands
from sndr.cli.router.text import ago, count, table

__all__ = [
    "attention_lines",
    "authority_lines",
    "failed_checks",
    "holds_text",
    "preview_text",
    "receipt_text",
]


def failed_checks(preview: Mapping[str, Any]) -> list[str]:
    """Codes of the checks that keep a preview from being applied."""
    return [
        str(check["code"] or check["name"])
        for check in preview["checks"]
        if not check["ok"] and check.get("blocking", True)
    ]


def preview_text(preview: Mapping[str, Any]) -> str:
    """What a change would do, and whether it may."""
    base, affected = preview["base"], preview.get("affected") or {}
    scope = preview["scope"]
    lines = [f"{preview['op']} of revision {base['route_revision']} ({base['effective_route_sha256'][:12]})"]
    lines += [f"  {entry['path']}: {_value(entry['from'])} -> {_value(entry['to'])}" for entry in preview["diff"]]
    aliases = ", ".join(affected.get("aliases") or ()) or "none"
    lines.append(f"aliases affected: {aliases}; {count(affected.get('in_flight') or 0, 'stream')} running")
    lines.append(f"held meanwhile: {', '.join(scope)}" if scope else "held meanwhile: nothing")
    lines += [_check_line(check) for check in preview["checks"]]
    if "evidence" in (preview.get("requires") or ()):
        lines.append("requires: evidence to resume")
    lines.append(f"steps: {', '.join(preview['will'])}" if preview["will"] else "steps: none")
    return "\n".join(map(one_line, lines)) + "\n"


def _check_line(check: Mapping[str, Any]) -> str:
    """A check that failed without forbidding anything is a warning."""
    tier = f" {check['tier']}" if check.get("tier") else ""
    if check["ok"]:
        return f"  ok    {check['name']}{tier}"
    said = f"{check['code'] or 'failed'}{f' ({reason})' if (reason := check.get('reason')) else ''}"
    return f"  {'FAIL' if check.get('blocking', True) else 'WARN'}  {check['name']}{tier}: {said}"


def _value(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def receipt_text(receipt: Mapping[str, Any], where: Where) -> str:
    """What became of a change, and what may be asked for next."""
    changed = receipt.get("changed")
    head = f"{receipt['op']} {receipt['state']}"
    if changed is not None and changed.get("to") is not None:
        to = changed["to"]
        before = changed["from"]["route_revision"]
        head += f": revision {before} -> {to['route_revision']} ({to['effective_route_sha256'][:12]})"
    lines = [head + (" (applied before; nothing done now)" if receipt.get("replayed") else "")]
    if receipt["scope"]:
        streams = receipt.get("streams") or {}
        held = "still held" if receipt["held"] else "admitting"
        lines.append(f"tiers {', '.join(receipt['scope'])}: {held}")
        lines.append(f"streams in scope: {streams.get('in_scope_finished', 0)} finished, {streams.get('cut', 0)} cut")
    identity = receipt.get("identity")
    if identity is not None:
        lines.append(f"served: {', '.join(identity['observed'])} (an advertised name, no proof of weights)")
    return "\n".join([*map(one_line, lines), *attention_lines(receipt, where)]) + "\n"


def attention_lines(place: Mapping[str, Any], where: Where) -> list[str]:
    """What needs a person, and what may be asked for next."""
    code = place.get("attention")
    said = [] if code is None else [f"attention: {code}: {ADVICE.get(code, 'see the log')}"]
    return [*said, *(f"next: {command}" for command in next_commands(place, where))]


def authority_lines(status: Mapping[str, Any], where: Where) -> list[str]:
    """The authority in a few lines: where it stands, the last change, what needs a person."""
    authority = status["route_authority"]
    receipt = authority.get("last_receipt")
    writable = "" if authority["writable"] else ", READ-ONLY"
    revision, sha256 = status["route_revision"], status["effective_route_sha256"][:12]
    stands = f"authority {authority['authority_id'][:8]} {authority['state']}{writable}"
    lines = [f"routes: revision {revision} ({sha256}), {stands}"]
    if receipt is not None and receipt["op"] is not None:
        line = f"last change: {receipt['op']} {receipt['state']}"
        if receipt.get("events"):
            line += f" {ago(receipt['events'][-1]['at'])}"
        if receipt["scope"]:
            streams = receipt["streams"]
            finished = count(streams["in_scope_finished"], "stream")
            line += f", tiers {', '.join(receipt['scope'])}, {finished} finished, {streams['cut']} cut"
        lines.append(line)
    return [*lines, *attention_lines(authority, where)]


def holds_text(view: Mapping[str, Any], where: Where) -> str:
    """Which tiers a route change holds, and what still runs there."""
    rows = [["TIER", "RUNNING", "BY GENERATION", "UNRESOLVED"]]
    for tier in view["tiers"]:
        if tier["held"]:
            by_generation = ", ".join(f"{number}: {held}" for number, held in tier["leases"].items())
            rows.append([tier["id"], str(sum(tier["leases"].values())), by_generation, str(tier["unresolved"])])
    lines = table(rows) if len(rows) > 1 else ["no tier is held"]
    return "\n".join([*lines, *attention_lines(view, where)]) + "\n"
