"""The authority file as bytes: a strict decoder, one canonical encoding, and the record between them.

A record has exactly one byte form. The decoder refuses whatever the standard one forgives (repeated keys, NaN, huge
numbers, deep nesting, a byte order mark, lone surrogates, spare whitespace), because two readers that forgive
differently see two different authorities.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from sndr.errors import AuthorityError, ControlError
from sndr.router.core.evidence import CONTAINER_PATTERN, IMAGE_PATTERN, INSTANT_PATTERN, SHA256_PATTERN
from sndr.router.core.projection import (
    ALIAS_PATTERN,
    INTEGER_MAX,
    NUMBER_DIGITS_MAX,
    STRING_MAX,
    TIER_ID_PATTERN,
    TIERS_MAX,
    FamilyTarget,
    FrozenJson,
    OnUnready,
    Projection,
    ProjectionError,
    Target,
    TierTarget,
    canonical,
    escape_key,
    freeze,
    parse,
    sha256_of_encoded,
    target_json,
    thaw,
    to_json,
)
from sndr.router.core.receipt import (
    EVENTS_MAX,
    OBSERVED_MAX,
    AliasUpdate,
    Campaign,
    ChangeSpec,
    Container,
    Drain,
    Event,
    Evidence,
    Fence,
    Identity,
    Op,
    Origin,
    Receipt,
    Record,
    Revision,
    Rollback,
    State,
    TierReplacement,
)

__all__ = [
    "CHANGE_BYTES_MAX",
    "DEPTH_MAX",
    "EVIDENCE_BYTES_MAX",
    "FILE_BYTES_MAX",
    "RECEIPT_BYTES_MAX",
    "SCHEMA",
    "Examination",
    "Problem",
    "StrictJsonError",
    "change_document",
    "content_sha256",
    "decode_strict",
    "encode_record",
    "evidence_document",
    "examine",
    "fence_document",
    "format_instant",
    "parse_change",
    "parse_evidence",
    "parse_instant",
    "parse_record",
    "receipt_document",
    "revision_document",
]

SCHEMA: Final = "sndr.route-authority/1"
FILE_BYTES_MAX: Final = 262_144
RECEIPT_BYTES_MAX: Final = 32_768
CHANGE_BYTES_MAX: Final = 16_384
EVIDENCE_BYTES_MAX: Final = 12_288
DEPTH_MAX: Final = 16

CORRUPT: Final = "route_state_corrupt"
UNSAFE: Final = "route_state_unsafe"
TOO_LARGE: Final = "route_state_too_large"

# An unterminated string ends at the end of the text, so that a hostile file costs one pass and not one per quote.
_STRINGS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_BRACKETS: Final = re.compile(r"[\[{\]}]")
_UUID4: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_INSTANT: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{3})Z")
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MEMBERS: Final = ("authority_id", "boot", "current", "digest", "previous", "schema", "transaction", "write_seq")
_RECEIPT_MEMBERS: Final = (
    "base",
    "change",
    "committed_revision",
    "created_at",
    "drain",
    "events",
    "evidence",
    "hold",
    "id",
    "identity",
    "managed",
    "op",
    "origin",
    "parent_id",
    "preview_sha256",
    "proposed_sha256",
    "scope",
    "state",
    "updated_at",
)
_EARLIER: Final = "earlier_evidence_sha256"
"""A member of a receipt that is there only where there is something to say: files from before any evidence lack it."""

_Member = TypeVar("_Member", bound=StrEnum)


class StrictJsonError(ValueError):
    """Bytes are not JSON in the narrow sense of this module; the message says why, never what they hold."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of an authority file: the start-up code it leads to, where it is, what is wrong."""

    code: str
    pointer: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.pointer}: {self.message}" if self.pointer else f"{self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class Examination:
    """What bytes say: the record if it could be built, and every problem in the order in which start-up checks."""

    record: Record | None
    problems: tuple[Problem, ...]


# --- strict JSON


def decode_strict(data: bytes, *, depth_max: int = DEPTH_MAX) -> object:
    """Decode UTF-8 JSON, refusing everything that two readers could understand differently.

    Bounds are checked before anything is converted: nesting before the recursive decoder runs, digits before a number
    is made. The caller bounds the size.

    Raises:
        StrictJsonError: never another exception, whatever the bytes are.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise StrictJsonError("starts with a byte order mark")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"is not UTF-8 at byte {error.start}") from None
    depth = 0
    for bracket in _BRACKETS.findall(_outside_strings(text)):
        depth += 1 if bracket in "[{" else -1
        if depth > depth_max:
            raise StrictJsonError(f"is nested deeper than {depth_max} levels")
    try:
        return json.loads(
            text,
            object_pairs_hook=_pairs,
            parse_constant=_refuse_constant,
            parse_int=_parse_integer,
            parse_float=_parse_float,
        )
    except json.JSONDecodeError as error:
        raise StrictJsonError(f"is not JSON at character {error.pos}: {error.msg}") from None


def _outside_strings(text: str) -> str:
    if "\\" in text:
        return _STRINGS.sub("", text)
    return "".join(text.split('"')[::2])  # without escapes every other piece is a string; much the cheaper way


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise StrictJsonError("repeats a key of an object")
    return result


def _refuse_constant(name: str) -> object:
    raise StrictJsonError(f"has {name}, which is not JSON")


def _check_digits(literal: str) -> None:
    if sum(character.isdigit() for character in literal) > NUMBER_DIGITS_MAX:
        raise StrictJsonError(f"has a number of more than {NUMBER_DIGITS_MAX} digits")


def _parse_integer(literal: str) -> int:
    _check_digits(literal)
    number = int(literal)
    if not -INTEGER_MAX <= number <= INTEGER_MAX:
        raise StrictJsonError(f"has an integer beyond +-{INTEGER_MAX}")
    return number


def _parse_float(literal: str) -> float:
    _check_digits(literal)
    number = float(literal)
    if number in (float("inf"), float("-inf")):
        raise StrictJsonError("has a number that is too large")
    return number


# --- instants and hashes


def format_instant(at_ms: int) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC with three decimals."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def parse_instant(text: str) -> int:
    """The inverse of `format_instant`, for its exact form alone.

    Raises:
        ValueError: another form, or a day that does not exist.
    """
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise ValueError("not an instant of the form 2026-01-31T12:00:00.000Z")
    year, month, day, hour, minute, second, millisecond = (int(group) for group in match.groups())
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1) + millisecond


def content_sha256(document: object) -> str:
    """Lower-case hex SHA-256 of the canonical bytes of a JSON value (previews, evidence)."""
    return hashlib.sha256(canonical(document)).hexdigest()


# --- record -> bytes


def encode_record(record: Record) -> bytes:
    """The file of a record.

    Raises:
        ControlError: `change_too_large`; a bound of the file, the receipt, its change or its evidence is exceeded.
    """
    transaction = b"null" if record.transaction is None else canonical(receipt_document(record.transaction))
    _check_bound(transaction, "the receipt", RECEIPT_BYTES_MAX)
    # The members in their canonical order; the routes are spliced in as the bytes that their values keep.
    head = b'{"authority_id":%b,"boot":%b,"current":%b,' % (
        canonical(record.authority_id),
        canonical({"projection_sha256": record.boot_sha256}),
        _encode_revision(record.current),
    )
    tail = b'"previous":%b,"schema":%b,"transaction":%b,"write_seq":%d}' % (
        b"null" if record.previous is None else _encode_revision(record.previous),
        canonical(SCHEMA),
        transaction,
        record.write_seq,
    )
    digest = hashlib.sha256(head + tail).hexdigest()
    data = b'%b"digest":"%b",%b' % (head, digest.encode(), tail)
    if len(data) > FILE_BYTES_MAX:
        raise ControlError("change_too_large", f"the authority file would take {len(data)} bytes of {FILE_BYTES_MAX}")
    return data


def _encode_revision(revision: Revision) -> bytes:
    return b'{"effective_route_sha256":%b,"projection":%b,"route_revision":%d}' % (
        canonical(revision.effective_route_sha256),
        revision.projection.encoded,
        revision.route_revision,
    )


def _check_bound(encoded: bytes, what: str, limit: int) -> None:
    if len(encoded) > limit:
        raise ControlError("change_too_large", f"{what} would take {len(encoded)} bytes of {limit}")


def revision_document(revision: Revision) -> dict[str, object]:
    """JSON of a revision, as in the file and in the operator's view."""
    return {
        "effective_route_sha256": revision.effective_route_sha256,
        "projection": to_json(revision.projection),
        "route_revision": revision.route_revision,
    }


def fence_document(fence: Fence) -> dict[str, object]:
    """JSON of a fence, as in the file and in every answer that names one."""
    return {"route_revision": fence.route_revision, "effective_route_sha256": fence.effective_route_sha256}


def receipt_document(receipt: Receipt) -> dict[str, object]:
    """JSON of a receipt, as in the file and in the operator's view."""
    drain, identity = receipt.drain, receipt.identity
    document: dict[str, object] = {
        "base": fence_document(receipt.base),
        "change": change_document(receipt.change),
        "committed_revision": receipt.committed_revision,
        "created_at": format_instant(receipt.created_at_ms),
        "drain": None
        if drain is None
        else {
            "at": format_instant(drain.at_ms),
            "complete": drain.complete,
            "cut": drain.cut,
            "finished": drain.finished,
            "leases_at_hold": drain.leases_at_hold,
            "unresolved": drain.unresolved,
        },
        "events": [
            {"at": format_instant(event.at_ms), "code": event.code, "seq": event.seq} for event in receipt.events
        ],
        "evidence": None if receipt.evidence is None else evidence_document(receipt.evidence),
        "hold": receipt.hold,
        "id": receipt.id,
        "identity": None
        if identity is None
        else {
            "at": format_instant(identity.at_ms),
            "observed": list(identity.observed),
            "proves": identity.proves,
        },
        "managed": receipt.managed,
        "op": receipt.op.value,
        "origin": receipt.origin.value,
        "parent_id": receipt.parent_id,
        "preview_sha256": receipt.preview_sha256,
        "proposed_sha256": receipt.proposed_sha256,
        "scope": list(receipt.scope),
        "state": receipt.state.value,
        "updated_at": format_instant(receipt.updated_at_ms),
    }
    if receipt.earlier_evidence_sha256 is not None:
        document[_EARLIER] = receipt.earlier_evidence_sha256
    return document


def change_document(change: ChangeSpec) -> dict[str, object]:
    """JSON of a change.

    Raises:
        ControlError: `change_too_large`.
    """
    document: dict[str, object] = {"kind": "rollback"}
    if isinstance(change, AliasUpdate):
        aliases = {alias: target_json(target) for alias, target in change.aliases.items()}
        document = {"aliases": aliases, "kind": "alias_update"}
    elif isinstance(change, TierReplacement):
        tiers = {tier: thaw(patch) for tier, patch in change.tiers.items()}
        document = {"kind": "tier_replacement", "tiers": tiers}
    _check_bound(canonical(document), "the change", CHANGE_BYTES_MAX)
    return document


def evidence_document(evidence: Evidence) -> dict[str, object]:
    """JSON of evidence.

    Raises:
        ControlError: `change_too_large`.
    """
    document: dict[str, object] = {
        "campaign": {"id": evidence.campaign.id, "sha256": evidence.campaign.sha256},
        "containers": {
            tier: {key: getattr(container, key) for key in _CONTAINER_FORMS}
            for tier, container in evidence.containers.items()
        },
    }
    _check_bound(canonical(document), "the evidence", EVIDENCE_BYTES_MAX)
    return document


# --- bytes -> record


def parse_record(data: bytes) -> Record:
    """The record in a file.

    Raises:
        AuthorityError: with the code of the first problem.
    """
    examination = examine(data)
    if examination.record is None:
        first = examination.problems[0]
        raise AuthorityError(first.code, f"{first.pointer}: {first.message}" if first.pointer else first.message)
    return examination.record


def examine(data: bytes, *, known: tuple[Projection, ...] = ()) -> Examination:
    """Everything that is wrong with the bytes by themselves, without a boot file beside them.

    The record is there only when there is no problem at all. A digest or a hash is checked even if the schema was not
    met, so that one look finds as much as it can.

    Args:
        data: The whole file.
        known: Routes that passed the parser before. The same bytes are not parsed again; other bytes are.
    """
    problems: list[Problem] = []
    if not data:
        return Examination(None, (Problem(CORRUPT, "", "is empty"),))
    if len(data) > FILE_BYTES_MAX:
        return Examination(None, (Problem(TOO_LARGE, "", f"is larger than {FILE_BYTES_MAX} bytes"),))
    try:
        document = decode_strict(data)
        if canonical(document) != data:
            problems.append(Problem(CORRUPT, "", "is not in canonical form (it was edited or damaged)"))
    except StrictJsonError as error:
        return Examination(None, (Problem(CORRUPT, "", str(error)),))
    except UnicodeEncodeError:
        return Examination(None, (Problem(CORRUPT, "", "has a lone surrogate"),))
    record = _read_record(_Object(document, "", problems), data, known)
    return Examination(record if not problems else None, tuple(problems))


def parse_change(document: object) -> ChangeSpec:
    """A change as an operator wrote it, in the form of the file (with `kind`).

    Raises:
        ControlError: `invalid_change` or `change_too_large`.
    """
    problems: list[Problem] = []
    _check_bound(canonical(document), "the change", CHANGE_BYTES_MAX)
    change = _read_change(_Object(document, "", problems))
    _refuse(problems, "invalid_change")
    assert change is not None
    return change


def parse_evidence(document: object) -> Evidence:
    """Evidence as an operator wrote it.

    Raises:
        ControlError: `evidence_invalid` or `change_too_large`.
    """
    problems: list[Problem] = []
    evidence = _read_evidence(_Object(document, "", problems))
    _refuse(problems, "evidence_invalid")
    _check_bound(canonical(document), "the evidence", EVIDENCE_BYTES_MAX)
    return evidence


def _refuse(problems: list[Problem], code: str) -> None:
    if problems:
        raise ControlError(code, "; ".join(f"{problem.pointer or '/'}: {problem.message}" for problem in problems))


_ABSENT: Final = object()


class _Object:
    """One JSON object while it is read: every member must be asked for, and nothing else may be there.

    A member that is missing or wrong adds a problem and reads as a harmless value of its type, so that the rest is
    still looked at; the result is used only if no problem was added.
    """

    __slots__ = ("_members", "is_object", "pointer", "problems")

    def __init__(self, value: object, pointer: str, problems: list[Problem]) -> None:
        self.pointer = pointer
        self.problems = problems
        self._members: dict[str, object] = {}
        self.is_object = type(value) is dict
        if type(value) is dict:
            self._members = value
        elif value is not _ABSENT:  # the parent has said that a member is missing
            self.bad(None, "must be an object")

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def bad(self, key: str | None, message: str, code: str = UNSAFE) -> None:
        pointer = self.pointer if key is None else self._at(key)
        self.problems.append(Problem(code, pointer, message))

    def _at(self, key: str) -> str:
        return f"{self.pointer}/{escape_key(key)}"

    def close(self, *keys: str, optional: Sequence[str] = ()) -> None:
        if not self.is_object:
            return
        for key in self._members:
            if key not in keys and key not in optional:
                self.bad(key, f"unknown key; allowed: {', '.join((*keys, *optional))}")
        for key in keys:
            if key not in self._members:
                self.bad(key, "is missing")

    def raw(self, key: str) -> object:
        return self._members.get(key)

    def child(self, key: str) -> _Object:
        return _Object(self._members.get(key, _ABSENT), self._at(key), self.problems)

    def optional_child(self, key: str) -> _Object | None:
        return None if self._members.get(key) is None else self.child(key)

    def items(self, key: str, limit: int) -> list[_Object]:
        value = self._members.get(key, [])
        if type(value) is not list or len(value) > limit:
            self.bad(key, f"must be an array of at most {limit} entries")
            return []
        return [_Object(item, f"{self._at(key)}/{index}", self.problems) for index, item in enumerate(value)]

    def texts(self, key: str, limit: int, pattern: re.Pattern[str]) -> tuple[str, ...]:
        value = self._members.get(key, [])
        if type(value) is not list or len(value) > limit:
            self.bad(key, f"must be an array of at most {limit} strings")
            return ()
        for item in value:
            if type(item) is not str or len(item) > STRING_MAX or pattern.fullmatch(item) is None:
                self.bad(key, "has an entry of the wrong form")
                return ()
        return tuple(value)

    def text(self, key: str, pattern: re.Pattern[str], form: str) -> str:
        value = self._members.get(key)
        if type(value) is str and len(value) <= STRING_MAX and pattern.fullmatch(value) is not None:
            return value
        if key in self._members:
            self.bad(key, f"must be {form}")
        return ""

    def optional_text(self, key: str, pattern: re.Pattern[str], form: str) -> str | None:
        return None if self._members.get(key) is None else self.text(key, pattern, f"{form} or null")

    def member(self, key: str, kind: type[_Member]) -> _Member:
        value = self._members.get(key)
        for candidate in kind:
            if type(value) is str and value == candidate.value:
                return candidate
        if key in self._members:
            self.bad(key, f"must be one of {', '.join(candidate.value for candidate in kind)}")
        return next(iter(kind))

    def integer(self, key: str, lowest: int) -> int:
        value = self._members.get(key)
        if type(value) is int and lowest <= value <= INTEGER_MAX:
            return value
        if key in self._members:
            self.bad(key, f"must be an integer from {lowest} to {INTEGER_MAX}")
        return lowest

    def optional_integer(self, key: str, lowest: int) -> int | None:
        return None if self._members.get(key) is None else self.integer(key, lowest)

    def boolean(self, key: str) -> bool:
        value = self._members.get(key)
        if type(value) is bool:
            return value
        if key in self._members:
            self.bad(key, "must be true or false")
        return False

    def instant(self, key: str) -> int:
        value = self._members.get(key)
        if type(value) is str:
            try:
                return parse_instant(value)
            except ValueError:
                pass
        if key in self._members:
            self.bad(key, "must be an instant of the form 2026-01-31T12:00:00.000Z")
        return 0

    def sha256(self, key: str) -> str:
        return self.text(key, SHA256_PATTERN, "64 lower-case hexadecimal digits")

    def bound(self, limit: int) -> None:
        size = len(canonical(self._members))
        if size > limit:
            self.bad(None, f"takes {size} bytes, at most {limit} are allowed")


def _read_record(root: _Object, data: bytes, known: tuple[Projection, ...]) -> Record:
    root.close(*_MEMBERS)
    if root.raw("schema") != SCHEMA and "schema" in root:
        root.bad("schema", f"must be {SCHEMA}; another release wrote this file")
    boot = root.child("boot")
    boot.close("projection_sha256")
    boot_sha256 = boot.sha256("projection_sha256")
    authority_id = root.text("authority_id", _UUID4, "a random UUID")
    write_seq = root.integer("write_seq", 1)
    shells = [root.child("current")]
    if root.raw("previous") is not None:
        shells.append(root.child("previous"))
    fences = [_read_fence(shell, "projection") for shell in shells]
    receipt_shell = root.optional_child("transaction")
    receipt = None if receipt_shell is None else _read_receipt(receipt_shell)
    stored = root.sha256("digest")
    if stored and stored != _digest(root, stored, data):
        root.bad("digest", "does not match the content (it was edited or damaged)", CORRUPT)
    revisions = [_read_revision(shell, fence, known) for shell, fence in zip(shells, fences, strict=True)]
    return Record(
        authority_id=authority_id,
        boot_sha256=boot_sha256,
        current=revisions[0],
        previous=revisions[1] if len(revisions) > 1 else None,
        transaction=receipt,
        write_seq=write_seq,
    )


def _digest(root: _Object, stored: str, data: bytes) -> str:
    head, found, tail = data.partition(b'"digest":"%b",' % stored.encode())
    if found and not root.problems:  # canonical so far: cutting the member out leaves the canonical rest
        return hashlib.sha256(head + tail).hexdigest()
    return content_sha256({key: root.raw(key) for key in root if key != "digest"})


def _read_fence(shell: _Object, *more: str) -> Fence:
    shell.close("effective_route_sha256", "route_revision", *more)
    return Fence(shell.integer("route_revision", 1), shell.sha256("effective_route_sha256"))


_NOTHING: Final = Projection(MappingProxyType({}), MappingProxyType({}))


def _read_revision(shell: _Object, fence: Fence, known: tuple[Projection, ...]) -> Revision:
    projection = _NOTHING
    if "projection" in shell:
        document = shell.raw("projection")
        encoded = canonical(document)
        if fence.effective_route_sha256 and fence.effective_route_sha256 != sha256_of_encoded(encoded):
            shell.bad("effective_route_sha256", "does not match the projection", CORRUPT)
        match = next((candidate for candidate in known if candidate.encoded == encoded), None)
        projection = _parse_projection(shell, document) if match is None else match
    return Revision(fence.route_revision, fence.effective_route_sha256, projection)


def _parse_projection(shell: _Object, document: object) -> Projection:
    try:
        return parse(document)
    except ProjectionError as error:
        for finding in error.findings:
            shell.problems.append(Problem(UNSAFE, f"{shell.pointer}/projection{finding.pointer}", finding.message))
        return _NOTHING


def _read_receipt(shell: _Object) -> Receipt:
    shell.close(*_RECEIPT_MEMBERS, optional=(_EARLIER,))
    shell.bound(RECEIPT_BYTES_MAX)
    change = _read_change(shell.child("change"))
    evidence = shell.optional_child("evidence")
    drain = shell.optional_child("drain")
    identity = shell.optional_child("identity")
    receipt = Receipt(
        id=shell.text("id", _UUID4, "a random UUID"),
        op=shell.member("op", Op),
        origin=shell.member("origin", Origin),
        state=shell.member("state", State),
        hold=shell.boolean("hold"),
        base=_read_fence(shell.child("base")),
        change=change or Rollback(),
        scope=shell.texts("scope", TIERS_MAX, TIER_ID_PATTERN),
        proposed_sha256=shell.sha256("proposed_sha256"),
        committed_revision=shell.optional_integer("committed_revision", 1),
        preview_sha256=shell.sha256("preview_sha256"),
        parent_id=shell.optional_text("parent_id", _UUID4, "a random UUID"),
        managed=shell.boolean("managed"),
        evidence=None if evidence is None else _read_evidence(evidence),
        drain=None if drain is None else _read_drain(drain),
        identity=None if identity is None else _read_identity(identity),
        events=tuple(_read_event(event) for event in shell.items("events", EVENTS_MAX)),
        created_at_ms=shell.instant("created_at"),
        updated_at_ms=shell.instant("updated_at"),
        earlier_evidence_sha256=shell.sha256(_EARLIER) if _EARLIER in shell else None,
    )
    if list(receipt.scope) != sorted(set(receipt.scope)):
        shell.bad("scope", "must be sorted, without repeats")
    if any(earlier.seq >= later.seq for earlier, later in zip(receipt.events, receipt.events[1:], strict=False)):
        shell.bad("events", "must have a strictly rising seq")
    return receipt


def _read_target(shell: _Object) -> Target:
    if "family" not in shell:
        shell.close("tier")
        return TierTarget(shell.text("tier", TIER_ID_PATTERN, "a tier id"))
    shell.close("family", "natural", "on_unready")
    return FamilyTarget(
        shell.text("family", _PRINTABLE, "a family: 1 to 2048 characters without control characters"),
        shell.text("natural", TIER_ID_PATTERN, "a tier id"),
        shell.member("on_unready", OnUnready),
    )


def _read_change(shell: _Object) -> ChangeSpec | None:
    shell.bound(CHANGE_BYTES_MAX)
    match shell.raw("kind"):
        case "alias_update":
            shell.close("aliases", "kind")
            entries = shell.child("aliases")
            aliases: dict[str, Target] = {}
            for alias in entries:
                if ALIAS_PATTERN.fullmatch(alias) is None:
                    entries.bad(alias, "is not an alias")
                aliases[alias] = _read_target(entries.child(alias))
            return AliasUpdate(MappingProxyType(aliases))
        case "tier_replacement":
            shell.close("kind", "tiers")
            patches = shell.child("tiers")
            tiers: dict[str, Mapping[str, FrozenJson]] = {}
            for tier_id in patches:
                if TIER_ID_PATTERN.fullmatch(tier_id) is None:
                    patches.bad(tier_id, "is not a tier id")
                frozen = freeze(patches.child(tier_id)._members)
                assert isinstance(frozen, Mapping)
                tiers[tier_id] = frozen
            return TierReplacement(MappingProxyType(tiers))
        case "rollback":
            shell.close("kind")
            return Rollback()
    shell.bad("kind", "must be one of alias_update, rollback, tier_replacement")
    return None


def _read_drain(shell: _Object) -> Drain:
    shell.close("at", "complete", "cut", "finished", "leases_at_hold", "unresolved")
    return Drain(
        at_ms=shell.instant("at"),
        complete=shell.boolean("complete"),
        cut=shell.integer("cut", 0),
        finished=shell.integer("finished", 0),
        leases_at_hold=shell.integer("leases_at_hold", 0),
        unresolved=shell.integer("unresolved", 0),
    )


def _read_identity(shell: _Object) -> Identity:
    shell.close("at", "observed", "proves")
    if shell.raw("proves") != "advertised_name" and "proves" in shell:
        shell.bad("proves", "must be advertised_name")
    return Identity(shell.instant("at"), shell.texts("observed", OBSERVED_MAX, _PRINTABLE))


def _read_event(shell: _Object) -> Event:
    shell.close("at", "code", "seq")
    return Event(shell.instant("at"), shell.text("code", _CODE, "a code"), shell.integer("seq", 1))


_LINE: Final = "a string without control characters"
_CONTAINER_FORMS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "container_id": (CONTAINER_PATTERN, "12 to 64 lower-case hexadecimal digits"),
    "image_id": (IMAGE_PATTERN, "sha256: and 64 lower-case hexadecimal digits"),
    "observed_at": (INSTANT_PATTERN, "an instant in UTC, as 2026-01-31T12:00:00Z"),
    "observer": (_PRINTABLE, _LINE),
    "served_model": (_PRINTABLE, _LINE),
    "started_at": (INSTANT_PATTERN, "an instant in UTC, as 2026-01-31T12:00:00Z"),
}


def _read_evidence(shell: _Object) -> Evidence:
    shell.close("campaign", "containers")
    shell.bound(EVIDENCE_BYTES_MAX)
    campaign = shell.child("campaign")
    campaign.close("id", "sha256")
    containers = shell.child("containers")
    read: dict[str, Container] = {}
    for tier_id in containers:
        if TIER_ID_PATTERN.fullmatch(tier_id) is None:
            containers.bad(tier_id, "is not a tier id")
        container = containers.child(tier_id)
        container.close(*_CONTAINER_FORMS)
        read[tier_id] = Container(**{key: container.text(key, *form) for key, form in _CONTAINER_FORMS.items()})
    return Evidence(Campaign(campaign.text("id", _PRINTABLE, _LINE), campaign.sha256("sha256")), MappingProxyType(read))
