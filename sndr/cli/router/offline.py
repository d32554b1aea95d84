"""`sndr router init | inspect | fsck | backup`: the authority's files, without a gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sndr.cli.output import one_line, write_err, write_out
from sndr.cli.router.refusals import coded
from sndr.cli.router.text import count

if TYPE_CHECKING:
    from sndr.router.offline import Fence, Inspection, Plan

__all__ = ["backup", "fsck", "init", "inspect"]

_SHA_PATTERN = r"[0-9a-f]{64}"

_config = click.option("--config", "config", required=True, metavar="FILE", help="The boot file (TOML).")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
_volatile = click.option("--allow-volatile-filesystem", "allow_volatile", is_flag=True, hidden=True)


@click.command("init")
@_config
@click.option("--confirm", is_flag=True, help="Do it; without this only say what would be done.")
@click.option("--rebase", is_flag=True, help="Bind an existing authority to a changed boot file.")
@click.option("--expect-revision", type=click.IntRange(min=1), help="With --rebase: the current revision.")
@click.option("--expect-sha", metavar="SHA256", help="With --rebase: the current effective_route_sha256.")
@click.option("--keep-live", is_flag=True, help="With --rebase: keep live changes of what both have.")
@_json
@_volatile
@coded
def init(
    config: str,
    confirm: bool,
    rebase: bool,
    expect_revision: int | None,
    expect_sha: str | None,
    keep_live: bool,
    as_json: bool,
    allow_volatile: bool,
) -> None:
    """Create the authority file (revision 1 = the boot routes), or bind it to a changed boot file.

    Nothing is written without --confirm. A router never does this by itself, and nothing overwrites an existing file.
    """
    from sndr.router import offline

    expected = _expected(rebase, expect_revision, expect_sha, keep_live)
    files = offline.load(config)
    if expected is not None:
        plan = offline.rebase(files, expected, keep_live=keep_live, confirm=confirm, allow_volatile=allow_volatile)
    elif confirm:
        plan = offline.create(files, allow_volatile=allow_volatile)
    else:
        plan = offline.plan_create(files, allow_volatile=allow_volatile)
    write_out(_encode(plan.to_json()) if as_json else _plan_text(plan))


def _expected(rebase: bool, revision: int | None, sha: str | None, keep_live: bool) -> Fence | None:
    import re

    from sndr.router.offline import Fence

    if not rebase:
        if revision is not None or sha is not None or keep_live:
            raise click.UsageError("--expect-revision, --expect-sha and --keep-live need --rebase")
        return None
    if revision is None or sha is None:
        raise click.UsageError("--rebase needs --expect-revision N and --expect-sha S (see sndr router inspect)")
    if re.fullmatch(_SHA_PATTERN, sha) is None:
        raise click.UsageError("--expect-sha: expected 64 lower-case hexadecimal digits")
    return Fence(revision, sha)


def _plan_text(plan: Plan) -> str:
    verb = "created" if plan.before is None else "rebased"
    lines = [f"{verb if plan.applied else f'to be {verb}'}: {plan.path}"]
    if plan.before is not None:
        lines.append(f"from: revision {plan.before.route_revision}, sha256 {plan.before.effective_route_sha256}")
    lines.append(f"to:   revision {plan.after.route_revision}, sha256 {plan.after.effective_route_sha256}")
    lines += [f"  {change['path']}: {_short(change['from'])} -> {_short(change['to'])}" for change in plan.diff()]
    if plan.usage_store is not None:
        lines.append(f"{'with' if plan.applied else 'together with'} an empty usage ledger: {plan.usage_store}")
    if not plan.applied:
        lines.append("nothing was written; run it again with --confirm")
    return "\n".join(map(one_line, lines)) + "\n"


@click.command("inspect")
@_config
@_json
@_volatile
@coded
def inspect(config: str, as_json: bool, allow_volatile: bool) -> int:
    """Print what is visible of the authority, without its lock: it may not survive a power cut.

    Exit 0: a start would accept it. 1: it would not. 2: it cannot be read.
    """
    from sndr.router import offline

    seen = offline.inspect(offline.load(config), allow_volatile=allow_volatile)
    _say_problems(seen)
    write_out(_encode(seen.to_json()) if as_json else _inspection_text(seen))
    return _exit_code(seen)


def _inspection_text(seen: Inspection) -> str:
    lines = [f"{seen.path} (unfenced: read without the lock)"]
    record = seen.record
    if record is not None:
        current = record.current
        lines += [
            f"authority {record.authority_id}, write {record.write_seq}",
            f"current:  revision {current.route_revision}, sha256 {current.effective_route_sha256}",
        ]
        document = seen.to_json()["current"]
        assert isinstance(document, dict)
        lines += [f"  alias {alias} -> {_short(to)}" for alias, to in document["projection"]["aliases"].items()]
        lines += [
            f"  tier {tier_id}: {tier.model or '(any model)'} at {tier.base_url}"
            for tier_id, tier in current.projection.tiers.items()
        ]
        if record.previous is not None:
            lines.append(
                f"previous: revision {record.previous.route_revision}, sha256 {record.previous.effective_route_sha256}"
            )
        receipt = record.transaction
        if receipt is not None:
            scope = f", scope {' '.join(receipt.scope)}" if receipt.scope else ""
            held = ", held" if receipt.hold else ""
            lines.append(f"transaction {receipt.id}: {receipt.op} {receipt.state}{scope}{held}")
    lines += [f"leftover of an interrupted write: {name}" for name in seen.leftovers]
    return "\n".join(map(one_line, lines)) + "\n"


@click.command("fsck")
@_config
@_json
@_volatile
@coded
def fsck(config: str, as_json: bool, allow_volatile: bool) -> int:
    """Check directory, lock file and authority as a start would, and name every fault instead of the first.

    Changes nothing and needs no lock. Exit 0: clean. 1: findings. 2: the file cannot be read.
    """
    from sndr.router import offline

    seen = offline.inspect(offline.load(config), allow_volatile=allow_volatile)
    if as_json:
        document = seen.to_json()
        write_out(_encode({key: document[key] for key in ("path", "readable", "problems", "leftovers")}))
    else:
        _say_problems(seen)
        write_out(
            f"{seen.path}: {count(len(seen.problems), 'finding')}\n" if seen.problems else f"{seen.path}: clean\n"
        )
    return _exit_code(seen)


@click.command("backup")
@_config
@click.argument("directory", metavar="DIR")
@_json
@_volatile
@coded
def backup(config: str, directory: str, as_json: bool, allow_volatile: bool) -> None:
    """Copy the usage ledger, then the authority if there is one, into DIR. Works beside a running router.

    Overwrites nothing; DIR is made where it is absent, and is for its owner alone. What was running at that moment has
    no end in the copy: after a restore, sndr router usage reconcile --confirm closes it.
    """
    from sndr.router import offline

    done = offline.backup_of(config, directory, allow_volatile=allow_volatile)
    if as_json:
        fence = {
            "route_revision": None if done.fence is None else done.fence.route_revision,
            "effective_route_sha256": None if done.fence is None else done.fence.effective_route_sha256,
        }
        write_out(_encode({"object": "route.backup", "files": list(done.files), **fence}))
    else:
        write_out("".join(f"{path}\n" for path in done.files))


def _say_problems(seen: Inspection) -> None:
    for problem in seen.problems:
        write_err(str(problem))


def _exit_code(seen: Inspection) -> int:
    if not seen.readable:
        return 2
    return 1 if seen.problems else 0


def _encode(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 120 else f"{text[:117]}..."
