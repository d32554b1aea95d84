"""Live routes for scripts: preview, apply, resume, cancel, rollback, recover, hold list, drain-wait.

Each verb is one or two calls of the management API. Nothing is applied that was not previewed: the verbs that go on
with a change make a preview, and with `--preview ID --sha256 S --confirm` they apply one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sndr.cli.main import LazyGroup
from sndr.cli.output import CommandError, write_err, write_out
from sndr.cli.router.advice import Where, exit_code
from sndr.cli.router.online import ask, online_options
from sndr.cli.router.routes_text import attention_lines, failed_checks, holds_text, preview_text, receipt_text
from sndr.cli.router.text import count

if TYPE_CHECKING:
    from sndr.router.client import Answer, Client

__all__ = [
    "apply",
    "cancel",
    "drain_wait",
    "hold",
    "parse_aliases",
    "parse_fields",
    "preview",
    "recover",
    "refused_checks",
    "resume",
    "rollback",
    "timeouts",
    "with_where",
]

_DOCUMENT_MAX_BYTES: Final = 65_536
_TEXT_FIELDS: Final = frozenset({"base_url", "engine", "health_path", "model", "preset", "quantization"})
_ACTIONS: Final = ("drain", "resume", "cancel", "verify", "rollback", "reassert")

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_where(function: _Function) -> _Function:
    """The online options, of which the verb gets `where` and `as_json`."""

    @online_options
    @wraps(function)
    def run(config_path: str | None, url: str | None, auth_env: str | None, **more: Any) -> Any:
        return function(where=Where(config_path, url, auth_env), **more)

    return run  # type: ignore[return-value]  # click calls it with the options; its own signature is of no use


def timeouts(function: _Function) -> _Function:
    """How long an apply may wait."""
    for decorate in (
        click.option(
            "--verify-timeout", "verify_timeout_s", type=click.IntRange(0, 120), default=30, show_default=True,
            metavar="SECONDS", help="Longest wait for the target to prove itself.",
        ),
        click.option(
            "--drain-timeout", "drain_timeout_s", type=click.IntRange(1, 900), default=60, show_default=True,
            metavar="SECONDS", help="Longest wait for running streams; none is ever cut.",
        ),
    ):  # fmt: skip
        function = decorate(function)
    return function


def _applying(function: _Function) -> _Function:
    """The options with which a verb that previews applies a preview instead."""
    for decorate in (
        click.option("--confirm", is_flag=True, help="With --preview: do it."),
        click.option("--sha256", metavar="SHA256", help="With --preview: its preview_sha256."),
        click.option("--preview", "preview_id", metavar="ID", help="Apply this preview instead of making one."),
    ):
        function = decorate(function)
    return timeouts(function)


def _ask(where: Where, question: Callable[[Client], Answer]) -> Answer:
    return ask(question, where.config_path, where.url, where.auth_env)


# -- what the words mean ----------------------------------------------------------------------------------------------


def parse_aliases(words: tuple[str, ...]) -> dict[str, Any]:
    """``ALIAS=TIER``, ``ALIAS=FAMILY@TIER`` or ``ALIAS=FAMILY@TIER@family_default`` as the `aliases` of a change."""
    aliases: dict[str, Any] = {}
    for word in words:
        alias, equals, target = word.partition("=")
        parts = target.split("@")
        if not equals or not alias or not all(parts) or len(parts) > 3:
            raise click.UsageError(
                f"{word!r}: expected ALIAS=TIER, for example llm.primary=big, or ALIAS=FAMILY@NATURAL_TIER"
            )
        if alias in aliases:
            raise click.UsageError(f"{alias!r} is named twice")
        if len(parts) == 1:
            aliases[alias] = {"tier": target}
        else:
            reaction = parts[2] if len(parts) == 3 else "refuse"
            aliases[alias] = {"family": parts[0], "natural": parts[1], "on_unready": reaction}
    return aliases


def parse_fields(words: tuple[str, ...]) -> dict[str, Any]:
    """``--set FIELD=VALUE`` words: text fields take their value as it stands, the others JSON where it is JSON; `null`
    unsets. Whether a field exists and takes such a value is the gateway's to judge.
    """
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--set {word!r}: expected FIELD=VALUE, for example model=m2")
        if name in fields:
            raise click.UsageError(f"--set {name}: named twice")
        fields[name] = text
        if name not in _TEXT_FIELDS or text == "null":
            with suppress(ValueError, RecursionError):
                fields[name] = json.loads(text)
    return fields


def _read_document(option: str, path: str) -> dict[str, Any]:
    try:
        with click.open_file(path, "rb") as file:
            raw = file.read(_DOCUMENT_MAX_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"{option} {path}: {error.strerror}") from None
    if len(raw) > _DOCUMENT_MAX_BYTES:
        raise click.UsageError(f"{option} {path}: larger than {_DOCUMENT_MAX_BYTES} bytes")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise click.UsageError(f"{option} {path}: not a JSON object")
    return document


# -- preview and apply ------------------------------------------------------------------------------------------------


preview = LazyGroup("preview", help="Show what a change would do, and change nothing.")


@preview.command("alias")
@click.argument("words", nargs=-1, required=True, metavar="ALIAS=TIER...")
@with_where
def _preview_alias(words: tuple[str, ...], where: Where, as_json: bool) -> int:
    """Point aliases at other tiers, or at a model family: ALIAS=FAMILY@TIER, where TIER is its natural one."""
    return _preview({"op": "alias_update", "aliases": parse_aliases(words)}, where, as_json)


@preview.command("replace")
@click.argument("tier", required=False)
@click.option("--set", "fields", multiple=True, metavar="FIELD=VALUE", help="A field of TIER; repeatable.")
@click.option("--change", "change_path", metavar="FILE", help="JSON object: tier id -> fields to set (- is stdin).")
@click.option("--prepare", is_flag=True, help="Hold and drain only; resume goes on.")
@click.option("--managed", is_flag=True, help="The model is unloaded and loaded by its owner; resume takes evidence.")
@with_where
def _preview_replace(
    tier: str | None,
    fields: tuple[str, ...],
    change_path: str | None,
    prepare: bool,
    managed: bool,
    where: Where,
    as_json: bool,
) -> int:
    """Change what TIER is, or several tiers with --change."""
    tiers = {} if change_path is None else _read_document("--change", change_path)
    if tier is None and (fields or change_path is None):
        raise click.UsageError("name a TIER with --set FIELD=VALUE, or give --change FILE")
    if tier is not None:
        if tier in tiers:
            raise click.UsageError(f"{tier!r} is in --change already")
        tiers[tier] = parse_fields(fields)
    change = {
        "op": "tier_replacement", "tiers": tiers, "mode": "prepare" if prepare else "apply", "managed": managed,
    }  # fmt: skip
    return _preview(change, where, as_json)


@preview.command("rollback")
@click.option("--prepare", is_flag=True, help="Hold and drain only; resume goes on.")
@with_where
def _preview_rollback(prepare: bool, where: Where, as_json: bool) -> int:
    """Make the previous routes current again, under a new revision."""
    return _preview({"op": "rollback", "mode": "prepare" if prepare else "apply"}, where, as_json)


def _preview(change: Mapping[str, Any], where: Where, as_json: bool) -> int:
    answer = _ask(where, lambda client: client.preview(change))
    return _show_preview(answer, where, as_json)


def _show_preview(answer: Answer, where: Where, as_json: bool) -> int:
    document = answer.document
    if as_json:
        write_out(answer.raw.decode("utf-8"))
    else:
        write_out(preview_text(document))
    if not document["applicable"]:
        return refused_checks(document)
    if not as_json:
        words = ("apply", document["preview_id"], "--sha256", document["preview_sha256"], "--confirm")
        write_out(f"to apply it within {document['ttl_s']} s: {where.command(*words)}\n")
    return 0


def refused_checks(document: Mapping[str, Any]) -> int:
    """Say which checks failed, and with what that ends: as an apply would."""
    codes = failed_checks(document)
    write_err(f"sndr router: {codes[0]}: not applicable: {', '.join(codes)}; nothing was changed")
    return min(exit_code(409, code) for code in codes) if all(exit_code(409, code) == 1 for code in codes) else 3


@click.command("apply")
@click.argument("preview_id")
@click.option("--sha256", required=True, metavar="SHA256", help="The preview's preview_sha256.")
@click.option("--confirm", is_flag=True, help="Do it; without this the gateway refuses.")
@timeouts
@with_where
def apply(
    preview_id: str,
    sha256: str,
    confirm: bool,
    drain_timeout_s: int,
    verify_timeout_s: int,
    where: Where,
    as_json: bool,
) -> None:
    """Do what the preview PREVIEW_ID said. Repeating it is safe: the receipt comes again."""
    _apply(preview_id, sha256, confirm, drain_timeout_s, verify_timeout_s, where, as_json)


def _apply(
    preview_id: str,
    sha256: str,
    confirm: bool,
    drain_timeout_s: int,
    verify_timeout_s: int,
    where: Where,
    as_json: bool,
) -> None:
    answer = _ask(
        where,
        lambda client: client.apply(
            preview_id, sha256, confirm=confirm, drain_timeout_s=drain_timeout_s, verify_timeout_s=verify_timeout_s
        ),
    )
    write_out(answer.raw.decode("utf-8") if as_json else receipt_text(answer.document, where))


# -- going on with a change -------------------------------------------------------------------------------------------


def _go_on(
    change: Callable[[str | None], Mapping[str, Any]],
    preview_id: str | None,
    sha256: str | None,
    confirm: bool,
    drain_timeout_s: int,
    verify_timeout_s: int,
    where: Where,
    as_json: bool,
    identify: Callable[[Client], str | None] | None = None,
) -> int:
    """Preview what `change` makes of the transaction at hand, or apply the preview that is named."""
    if preview_id is None:
        if sha256 is not None or confirm:
            raise click.UsageError("--sha256 and --confirm go with --preview ID")
        name = identify or _transaction_id
        answer = _ask(where, lambda client: client.preview(change(name(client))))
        return _show_preview(answer, where, as_json)
    if sha256 is None:
        raise click.UsageError("--preview ID needs --sha256 S")
    _apply(preview_id, sha256, confirm, drain_timeout_s, verify_timeout_s, where, as_json)
    return 0


def _transaction_id(client: Client) -> str | None:
    transaction = client.routes().document["transaction"]
    return None if transaction is None else transaction["id"]


def _visible_transaction_id(client: Client) -> str | None:
    """Of the record on disk, which is the one that a reassert writes again; elsewhere the gateway refuses it."""
    visible = client.check_authority().document["visible"]
    return _transaction_id(client) if visible is None else visible["transaction_id"]


def _required(transaction_id: str | None) -> str:
    if transaction_id is None:
        raise CommandError("no_transaction", "no change is under way; nothing was changed", 3)
    return transaction_id


@click.command("resume")
@click.option("--evidence", "evidence_path", metavar="FILE", help="JSON evidence of a managed change (- is stdin).")
@_applying
@with_where
def resume(evidence_path: str | None, **options: Any) -> int:
    """Go on with the held change: drain, commit, publish, verify, readmit. Previews; see --preview."""
    if evidence_path is not None and options["preview_id"] is not None:
        raise click.UsageError("--evidence goes with making the preview, not with --preview")
    evidence = None if evidence_path is None else _read_document("--evidence", evidence_path)

    def change(transaction_id: str | None) -> Mapping[str, Any]:
        more = {} if evidence is None else {"evidence": evidence}
        return {"op": "resume", "transaction_id": _required(transaction_id), **more}

    return _go_on(change, **options)


@click.command("cancel")
@_applying
@with_where
def cancel(**options: Any) -> int:
    """Give the held change up, once the original target has proven itself. Previews; see --preview."""
    return _go_on(lambda transaction_id: {"op": "cancel", "transaction_id": _required(transaction_id)}, **options)


@click.command("rollback")
@click.option("--prepare", is_flag=True, help="Hold and drain only; resume goes on.")
@_applying
@with_where
def rollback(prepare: bool, **options: Any) -> int:
    """Make the previous routes current again, under a new revision. Previews; see --preview."""
    return _go_on(lambda _: {"op": "rollback", "mode": "prepare" if prepare else "apply"}, **options)


@click.command("recover")
@click.option("--action", type=click.Choice(_ACTIONS), help="How to go on; without it the legal ones are listed.")
@click.option("--accept-unready", is_flag=True, help="Roll back although the earlier server is down; stays held.")
@click.option("--evidence", "evidence_path", metavar="FILE", help="JSON evidence of a managed change (- is stdin).")
@_applying
@with_where
def recover(action: str | None, accept_unready: bool, evidence_path: str | None, **options: Any) -> int:
    """Go on after a failure in the way that you choose. Previews; see --preview."""
    if options["preview_id"] is None and action is None:
        return _list_actions(options["where"], options["as_json"])
    evidence = None if evidence_path is None else _read_document("--evidence", evidence_path)

    def change(transaction_id: str | None) -> Mapping[str, Any]:
        more: dict[str, Any] = {"accept_unready": True} if accept_unready else {}
        if evidence is not None:
            more["evidence"] = evidence
        return {"op": "recover", "transaction_id": transaction_id, "action": action, **more}

    if action == "reassert":
        return _go_on(change, identify=_visible_transaction_id, **options)
    return _go_on(lambda transaction_id: change(_required(transaction_id)), **options)


def _list_actions(where: Where, as_json: bool) -> int:
    """Nothing is chosen for the operator: what may be done is all that this says."""
    answer = _ask(where, lambda client: client.routes())
    if as_json:
        write_out(answer.raw.decode("utf-8"))
        return 0
    lines = attention_lines(answer.document, where)
    write_out("\n".join([f"state: {answer.document['state']}", *(lines or ["nothing to recover"])]) + "\n")
    return 0


# -- looking ----------------------------------------------------------------------------------------------------------


hold = LazyGroup("hold", help="The holds of route changes.")


@hold.command("list")
@with_where
def _hold_list(where: Where, as_json: bool) -> None:
    """Tiers that a route change holds, with what still runs there."""
    answer = _ask(where, lambda client: client.routes())
    write_out(answer.raw.decode("utf-8") if as_json else holds_text(answer.document, where))


@click.command("drain-wait")
@click.option("--timeout", "timeout_s", type=click.IntRange(1, 900), default=60, show_default=True, metavar="SECONDS")
@with_where
def drain_wait(timeout_s: int, where: Where, as_json: bool) -> int:
    """Wait until the held tiers are idle; changes nothing. Exit 1 when the time runs out first."""
    answer = _ask(where, lambda client: client.drain_wait(timeout_s))
    document = answer.document
    complete: bool = document["complete"]
    if as_json:
        write_out(answer.raw.decode("utf-8"))
    elif complete:
        write_out("drained: no stream and no open row is left in the scope\n")
    else:
        left = count(sum(document["leases"].values()), "stream")
        rows = count(document["unresolved"], "open row")
        write_out(f"not drained: {left} and {rows} left; every stream goes on\n")
    return 0 if complete else 1
