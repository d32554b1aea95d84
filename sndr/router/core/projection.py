"""The routes as one value: which alias selects which tier, and what each tier is.

`parse` is the only validator of a projection. The boot configuration, a live change and the authority file all pass
through it, so none of them can hold something that another refuses.

The JSON form has one representation per meaning: every key is present, null when unset, durations are whole
milliseconds, `serves` is sorted. `canonical` gives it exact bytes, `sha256` an identity that content alone decides.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import urlsplit

__all__ = [
    "BOOT_LOCKED",
    "GATEWAY_MEMBERS",
    "INTEGER_MAX",
    "REPLACEABLE",
    "Change",
    "Endpoint",
    "FamilyTarget",
    "Finding",
    "FrozenJson",
    "OnUnready",
    "Overlap",
    "Projection",
    "ProjectionError",
    "Target",
    "Tier",
    "TierTarget",
    "apply_aliases",
    "apply_tiers",
    "canonical",
    "changed_tiers",
    "compare_endpoints",
    "diff",
    "endpoint",
    "escape_key",
    "freeze",
    "is_valid",
    "merge_live",
    "parse",
    "restart_only",
    "sha256",
    "sha256_of_encoded",
    "target_json",
    "thaw",
    "tier_of",
    "tier_sha256",
    "to_json",
]

INTEGER_MAX: Final = 2**53 - 1
ALIASES_MAX: Final = 256
TIERS_MAX: Final = 64
PROJECTION_BYTES_MAX: Final = 98_304
OBJECT_BYTES_MAX: Final = 4_096
OBJECT_DEPTH_MAX: Final = 8
STRING_MAX: Final = 2_048
NUMBER_DIGITS_MAX: Final = 16
ALIAS_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9._:/@+-]{0,127}")
TIER_ID_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ENV_NAME_PATTERN: Final = re.compile(r"[A-Z][A-Z0-9_]{0,127}")
ENDPOINTS: Final = ("chat", "completions", "embeddings", "messages", "rerank", "responses")
DEFAULT_SERVES: Final = ("chat", "completions")
UPSTREAM: Final = "upstream"
_HASH_PREFIX: Final = b"sndr.route/1\n"
_HOST_PATTERN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")
_HEALTH_PATTERN: Final = re.compile(r"/[!-\"$-~]{0,1023}")
_FREE_CONTROLS: Final = frozenset("\t\n\r")

FrozenJson: TypeAlias = "bool | int | float | str | tuple[FrozenJson, ...] | Mapping[str, FrozenJson] | None"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault in an input.

    Attributes:
        pointer: JSON pointer of the place.
        message: What is wrong and what is allowed; never repeats a value that could be a credential.
        code: Stable id of a refused live change; `invalid_change` for plain faults.
    """

    pointer: str
    message: str
    code: str = "invalid_change"


class ProjectionError(Exception):
    """A projection or a change is not acceptable; carries every finding, in document order."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(f"{finding.pointer or '/'}: {finding.message}" for finding in findings))
        self.findings = findings


class OnUnready(StrEnum):
    """What a family alias does when the chosen tier cannot serve."""

    REFUSE = "refuse"
    FAMILY_DEFAULT = "family_default"


@dataclass(frozen=True, slots=True)
class TierTarget:
    """An alias that selects exactly one tier."""

    tier: str


@dataclass(frozen=True, slots=True)
class FamilyTarget:
    """An alias whose tier is decided per request within a model family; `natural` is the tier of last resort."""

    family: str
    natural: str
    on_unready: OnUnready = OnUnready.REFUSE


Target: TypeAlias = TierTarget | FamilyTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A routing target. Names, order and meaning are those of the boot file; durations are milliseconds."""

    admission_timeout_ms: int | None = None
    auth_env: str | None = None
    base_url: str
    context_limit: int | str | None = None
    engine: str | None = None
    extra_body: Mapping[str, FrozenJson] | None = None
    extra_body_defaults: Mapping[str, FrozenJson] | None = None
    first_byte_timeout_ms: int | None = None
    health_path: str | None = None
    idle_timeout_ms: int | None = None
    max_concurrency: int | None = None
    max_output_tokens: int | None = None
    model: str | None = None
    model_identity: bool = True
    params: Mapping[str, FrozenJson] | None = None
    preset: str | None = None
    quantization: str | None = None
    serves: tuple[str, ...] = DEFAULT_SERVES
    stream_usage: bool = True
    tool_support: bool = True
    total_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """What the gateway routes by. Deeply immutable; both mappings iterate in sorted order of their keys.

    Attributes:
        encoded: The canonical bytes. Two values are equal if these are: Python takes 1, 1.0 and True for the same.
    """

    aliases: Mapping[str, Target] = field(compare=False)
    tiers: Mapping[str, Tier] = field(compare=False)
    encoded: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoded", canonical(to_json(self)))


TIER_KEYS: Final = tuple(member.name for member in fields(Tier))
BOOT_LOCKED: Final = frozenset({"auth_env", "model_identity", "serves"})
REPLACEABLE: Final = frozenset(TIER_KEYS) - BOOT_LOCKED
GATEWAY_MEMBERS: Final = frozenset({"background", "model", "stream", "stream_options"})
"""Members of a request that no tier may set: another model than the one whose identity was proven, a stream where the
client asked for none, work that outlives its connection."""
_CONTAINER_KEYS: Final = ("extra_body", "extra_body_defaults", "params", "serves")
_RESERVED: Final = frozenset({"replicas"})


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two projections; `before` and `after` are JSON values (None also stands for absent)."""

    pointer: str
    before: FrozenJson
    after: FrozenJson


# --- canonical bytes and hashes


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: object) -> bytes:
    """The only byte form of a JSON value: UTF-8, keys sorted by code point, no whitespace, no needless escapes.

    Raises:
        ValueError: a number is not finite, or a string has a lone surrogate.
    """
    return _CANONICAL.encode(value).encode("utf-8")


def sha256(projection: Projection) -> str:
    """`effective_route_sha256`: lower-case hex; equal for equal content, whatever the revision or environment."""
    return sha256_of_encoded(projection.encoded)


def sha256_of_encoded(encoded: bytes) -> str:
    """`sha256` of canonical bytes that are not, or not yet, a value."""
    return hashlib.sha256(_HASH_PREFIX + encoded).hexdigest()


def tier_sha256(tier: Tier) -> str:
    """Identity of one tier's definition."""
    return hashlib.sha256(canonical(_tier_json(tier))).hexdigest()


def to_json(projection: Projection) -> dict[str, object]:
    """The JSON form; `parse` of it gives an equal value."""
    return {
        "aliases": {alias: target_json(target) for alias, target in projection.aliases.items()},
        "tiers": {tier_id: _tier_json(tier) for tier_id, tier in projection.tiers.items()},
    }


def thaw(value: FrozenJson) -> object:
    """A frozen JSON value as ordinary dictionaries and lists, for an encoder that knows only these."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value


def freeze(value: object) -> FrozenJson:
    """A decoded JSON value as an immutable one; `thaw` undoes it. Checks nothing."""
    if isinstance(value, dict):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list):
        return tuple(freeze(item) for item in value)
    assert value is None or isinstance(value, (bool, int, float, str))
    return value


def tier_of(target: Target) -> str:
    """The tier that an alias leads to by itself: its only one, or the natural one of its family."""
    return target.tier if isinstance(target, TierTarget) else target.natural


def target_json(target: Target) -> dict[str, object]:
    """A target as the projection's JSON has it."""
    if isinstance(target, TierTarget):
        return {"tier": target.tier}
    return {"family": target.family, "natural": target.natural, "on_unready": target.on_unready.value}


def _tier_json(tier: Tier) -> dict[str, object]:
    document = {key: getattr(tier, key) for key in TIER_KEYS}
    for key in _CONTAINER_KEYS:
        document[key] = thaw(document[key])
    return document


# --- parsing


class _Faults:
    """Collects findings so that one run reports them all."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def add(self, pointer: str, message: str, code: str = "invalid_change") -> None:
        self.found.append(Finding(pointer, message, code))


def parse(document: object, *, fill: bool = False) -> Projection:
    """Validate the JSON form of a projection.

    Args:
        document: Decoded JSON (or TOML) values; nothing is converted, a float is not an integer, true is not 1.
        fill: Accept a shorter form, as written by people: missing tier keys take their defaults, `serves` may be in
            any order, a trailing slash of `base_url` is dropped, alias names are trimmed and lower-cased. Without it,
            as for the authority file, every key must be present and in its one form.

    Raises:
        ProjectionError: with all findings.
    """
    faults = _Faults()
    root = _object(document, "", faults)
    _keys(root, ("aliases", "tiers"), "", faults)
    tiers: dict[str, Tier] = {}
    known: set[str] = set()
    given_tiers = _object(root.get("tiers", {}), "/tiers", faults)
    if not 0 < len(given_tiers) <= TIERS_MAX and "tiers" in root:
        faults.add("/tiers", f"1 to {TIERS_MAX} tiers are allowed, found {len(given_tiers)}", "change_too_large")
    for tier_id in _sorted_keys(given_tiers, "/tiers", faults):
        pointer = f"/tiers/{escape_key(tier_id)}"
        if TIER_ID_PATTERN.fullmatch(tier_id) is None:
            faults.add(pointer, "a tier id is 1 to 64 of a-z 0-9 . _ - and starts with a letter or digit")
            continue
        known.add(tier_id)
        tier = _parse_tier(given_tiers[tier_id], pointer, faults, fill=fill)
        if tier is not None:
            tiers[tier_id] = tier
    aliases = _parse_aliases(root.get("aliases", {}), known, faults, fill=fill)
    if not faults.found:
        result = Projection(MappingProxyType(aliases), MappingProxyType(tiers))
        size = len(result.encoded)
        if size <= PROJECTION_BYTES_MAX:
            return result
        faults.add("", f"the routes take {size} bytes, at most {PROJECTION_BYTES_MAX} are allowed", "change_too_large")
    raise ProjectionError(tuple(faults.found))


def is_valid(projection: Projection, trusted: Iterable[Projection] = ()) -> bool:
    """Whether `parse` would accept the value. Tiers that a trusted projection shares are not looked at again."""
    if any(projection.tiers is other.tiers for other in trusted):
        faults = _Faults()
        aliases = {alias: target_json(target) for alias, target in projection.aliases.items()}
        again = _parse_aliases(aliases, set(projection.tiers), faults, fill=False)
        return not faults.found and again == projection.aliases and len(projection.encoded) <= PROJECTION_BYTES_MAX
    try:
        return parse(to_json(projection)) == projection
    except ProjectionError:
        return False


def _parse_aliases(given: object, known: set[str], faults: _Faults, *, fill: bool) -> dict[str, Target]:
    entries = _object(given, "/aliases", faults)
    if len(entries) > ALIASES_MAX:
        faults.add("/aliases", f"at most {ALIASES_MAX} aliases are allowed, found {len(entries)}", "change_too_large")
    aliases: dict[str, Target] = {}
    for written in _sorted_keys(entries, "/aliases", faults):
        pointer = f"/aliases/{escape_key(written)}"
        alias = written.strip().lower() if fill else written
        if ALIAS_PATTERN.fullmatch(alias) is None:
            faults.add(pointer, "an alias is 1 to 128 of a-z 0-9 . _ : / @ + - and starts with a letter or digit")
            continue
        if alias in aliases:
            faults.add(pointer, f"alias {alias} is named twice")
            continue
        target = _parse_target(entries[written], pointer, known, faults)
        if target is not None:
            aliases[alias] = target
    return dict(sorted(aliases.items()))


def _parse_target(given: object, pointer: str, known: set[str], faults: _Faults) -> Target | None:
    before = len(faults.found)
    entry = _object(given, pointer, faults)
    if "family" in entry:
        _keys(entry, ("family", "natural", "on_unready"), pointer, faults)
        family = _text(entry.get("family"), f"{pointer}/family", faults)
        natural = _tier_name(entry.get("natural"), f"{pointer}/natural", known, faults)
        given_reaction = entry.get("on_unready")
        reaction = next((member for member in OnUnready if member.value == given_reaction), None)
        if reaction is None:
            faults.add(f"{pointer}/on_unready", f"must be one of {', '.join(OnUnready)}")
            return None
        return FamilyTarget(family, natural, reaction) if len(faults.found) == before else None
    _keys(entry, ("tier",), pointer, faults)
    tier = _tier_name(entry.get("tier"), f"{pointer}/tier", known, faults)
    return TierTarget(tier) if len(faults.found) == before else None


def _tier_name(given: object, pointer: str, known: set[str], faults: _Faults) -> str:
    if type(given) is not str:
        faults.add(pointer, "must be a tier id")
        return ""
    if given not in known:
        faults.add(pointer, "names a tier that is not configured", "unknown_tier")
    return given


def _parse_tier(given: object, pointer: str, faults: _Faults, *, fill: bool) -> Tier | None:
    before = len(faults.found)
    entry = _object(given, pointer, faults)
    _keys(entry, TIER_KEYS, pointer, faults, required=("base_url",) if fill else TIER_KEYS)
    values: dict[str, object] = {}
    for key in TIER_KEYS:
        if key in entry:
            place = f"{pointer}/{key}"
            values[key] = _FIELD_PARSERS[key](entry[key], place, faults, fill)
    if len(faults.found) > before:
        return None
    return Tier(**values)  # type: ignore[arg-type]  # each value came out of the parser of its own field


def _object(given: object, pointer: str, faults: _Faults) -> dict[str, object]:
    if type(given) is dict:
        return given
    faults.add(pointer, f"must be an object, not {_kind(given)}")
    return {}


def _keys(
    entry: dict[str, object],
    allowed: tuple[str, ...],
    pointer: str,
    faults: _Faults,
    *,
    required: tuple[str, ...] | None = None,
) -> None:
    for key in _sorted_keys(entry, pointer, faults):
        if key in allowed:
            continue
        place = f"{pointer}/{escape_key(key)}"
        if key in _RESERVED:
            faults.add(place, f"{key} is a reserved word and not supported", "replacement_unsupported")
        else:
            faults.add(place, f"unknown key; allowed: {', '.join(allowed)}")
    for key in allowed if required is None else required:
        if key not in entry and (required is not None or entry or not pointer):
            faults.add(f"{pointer}/{key}", "is missing")


def _sorted_keys(entry: dict[str, object], pointer: str, faults: _Faults) -> list[str]:
    keys = [key for key in entry if type(key) is str]
    if len(keys) < len(entry):
        faults.add(pointer, "every key must be a string")
    return sorted(keys)


def _text(given: object, pointer: str, faults: _Faults) -> str:
    problem = _text_problem(given)
    if problem is not None:
        faults.add(pointer, problem)
        return ""
    assert isinstance(given, str)
    return given


def _text_problem(given: object) -> str | None:
    if type(given) is not str:
        return f"must be a string, not {_kind(given)}"
    if not 0 < len(given) <= STRING_MAX:
        return f"must have 1 to {STRING_MAX} characters"
    return _character_problem(given, allowed=frozenset())


def _character_problem(text: str, *, allowed: frozenset[str]) -> str | None:
    if text.isascii() and text.isprintable():
        return None
    for character in text:
        code = ord(character)
        if (code < 0x20 or 0x7F <= code <= 0x9F) and character not in allowed:
            return f"has the control character U+{code:04X}"
        if 0xD800 <= code <= 0xDFFF:
            return f"has the lone surrogate U+{code:04X}"
    return None


def _kind(given: object) -> str:
    if given is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(given), f"a {type(given).__name__}")


def escape_key(key: str) -> str:
    """One part of a JSON pointer (Source: RFC 6901 section 3) that stays on one line, whatever was written."""
    shown = key.replace("~", "~0").replace("/", "~1")[:STRING_MAX]
    return "".join(character if character.isprintable() else f"\\u{ord(character):04x}" for character in shown)


_FieldParser: TypeAlias = Callable[[object, str, _Faults, bool], object]


def _optional_text(given: object, pointer: str, faults: _Faults, _fill: bool) -> str | None:
    return None if given is None else _text(given, pointer, faults)


def _boolean(given: object, pointer: str, faults: _Faults, _fill: bool) -> bool:
    if type(given) is bool:
        return given
    faults.add(pointer, f"must be true or false, not {_kind(given)}")
    return False


def _integer(lowest: int, unit: str) -> _FieldParser:
    def parse_integer(given: object, pointer: str, faults: _Faults, _fill: bool) -> int | None:
        if given is None:
            return None
        if type(given) is not int or not lowest <= given <= INTEGER_MAX:
            faults.add(pointer, f"must be a whole number of {unit} from {lowest} to {INTEGER_MAX}, or null")
            return None
        return given

    return parse_integer


def _concurrency(given: object, pointer: str, faults: _Faults, fill: bool) -> object:
    if given == "auto":
        faults.add(pointer, "auto is a reserved word and not supported", "replacement_unsupported")
        return None
    return _integer(1, "requests")(given, pointer, faults, fill)


def _context_limit(given: object, pointer: str, faults: _Faults, fill: bool) -> object:
    if type(given) is str:
        if given != UPSTREAM:
            faults.add(pointer, f'must be a whole number of tokens from 1 to {INTEGER_MAX}, "{UPSTREAM}" or null')
        return given
    return _integer(1, "tokens")(given, pointer, faults, fill)


def _env_name(given: object, pointer: str, faults: _Faults, _fill: bool) -> str | None:
    if given is None:
        return None
    if type(given) is not str or ENV_NAME_PATTERN.fullmatch(given) is None:
        faults.add(pointer, "must be the name of an environment variable (A-Z 0-9 _, at most 128), or null")
        return None
    return given


def _health_path(given: object, pointer: str, faults: _Faults, _fill: bool) -> str | None:
    if given is None:
        return None
    if type(given) is not str or _HEALTH_PATTERN.fullmatch(given) is None:
        faults.add(pointer, "must start with / and have at most 1024 visible ASCII characters without #, or null")
        return None
    return given


def _serves(given: object, pointer: str, faults: _Faults, fill: bool) -> tuple[str, ...]:
    allowed = ", ".join(ENDPOINTS)
    if type(given) is not list or not given or not all(type(item) is str and item in ENDPOINTS for item in given):
        faults.add(pointer, f"must be a non-empty array of {allowed}")
        return ()
    ordered = tuple(sorted(set(given)))
    if len(ordered) != len(given) or (not fill and list(ordered) != given):
        faults.add(pointer, "must not repeat an entry" if fill else "must be sorted, without repeats")
    return ordered


def _base_url(given: object, pointer: str, faults: _Faults, fill: bool) -> str:
    problem = _text_problem(given)
    if problem is not None:
        faults.add(pointer, problem, "endpoint_invalid")
        return ""
    assert isinstance(given, str)
    url = given.rstrip("/") if fill else given
    problem = _url_problem(url)
    if problem is not None:
        faults.add(pointer, problem, "endpoint_invalid")
    return url


def _url_problem(url: str) -> str | None:
    """Why `url` cannot be the base of a tier, or None. The text never repeats the URL: it may hold a password."""
    if not url.isascii() or " " in url or "\\" in url:
        return "must be ASCII without spaces or backslashes"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a valid URL"
    host = parts.hostname
    if not url.startswith(("http://", "https://")) or not host:
        return "must be http://HOST[:PORT][/PREFIX] or the same with https"
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        return "must not contain a user name or password"
    if "?" in url or "#" in url:
        return "must not contain a query or fragment"
    if url.endswith("/"):
        return "must not end with /"
    if port == 0 or parts.netloc.endswith(":"):
        return "has an empty or zero port"
    address = _address(host)
    if address is None:
        if "[" in parts.netloc or len(host) > 253 or _HOST_PATTERN.fullmatch(host) is None or _looks_numeric(host):
            return "has a host that is neither a name nor an IP address"
    elif address.is_unspecified or address.is_multicast or str(address) == "255.255.255.255":
        return "has an address that no server can have"
    elif address.is_link_local:
        return "has a link-local address, where machines keep their metadata and credentials"
    return None


_OBJECT_LABEL: Final = f"at most {OBJECT_BYTES_MAX} bytes and {OBJECT_DEPTH_MAX} levels"


def _free_object(given: object, pointer: str, faults: _Faults, _fill: bool) -> Mapping[str, FrozenJson] | None:
    if given is None:
        return None
    if type(given) is not dict:
        faults.add(pointer, f"must be an object or null, not {_kind(given)}")
        return None
    before = len(faults.found)
    frozen = _freeze(given, pointer, 1, faults)
    if len(faults.found) > before:
        return None
    if len(canonical(thaw(frozen))) > OBJECT_BYTES_MAX:
        faults.add(pointer, f"is too large: {_OBJECT_LABEL} are allowed", "change_too_large")
    assert isinstance(frozen, Mapping)
    return frozen


def _body_members(given: object, pointer: str, faults: _Faults, fill: bool) -> Mapping[str, FrozenJson] | None:
    """Members of every request's body, without those that the gateway itself answers for."""
    frozen = _free_object(given, pointer, faults, fill)
    for name in sorted(GATEWAY_MEMBERS.intersection(frozen or ())):
        faults.add(f"{pointer}/{name}", f"must not be set: {', '.join(sorted(GATEWAY_MEMBERS))} are the gateway's own")
    return frozen


def _freeze(given: object, pointer: str, depth: int, faults: _Faults) -> FrozenJson:
    if isinstance(given, (dict, list)) and depth > OBJECT_DEPTH_MAX:
        faults.add(pointer, f"is nested too deep: {_OBJECT_LABEL} are allowed", "change_too_large")
        return None
    if type(given) is dict:
        frozen = {}
        for key in _sorted_keys(given, pointer, faults):
            place = f"{pointer}/{escape_key(key)}"
            problem = (
                _character_problem(key, allowed=frozenset()) if len(key) <= STRING_MAX else "has a key that is too long"
            )
            if problem is not None:
                faults.add(place, problem)
                continue
            frozen[key] = _freeze(given[key], place, depth + 1, faults)
        return MappingProxyType(frozen)
    if type(given) is list:
        return tuple(_freeze(item, f"{pointer}/{index}", depth + 1, faults) for index, item in enumerate(given))
    problem = _scalar_problem(given)
    if problem is not None:
        faults.add(pointer, problem)
        return None
    assert given is None or isinstance(given, (bool, int, float, str))
    return given


def _scalar_problem(given: object) -> str | None:
    if given is None or type(given) is bool:
        return None
    if type(given) is int:
        return None if -INTEGER_MAX <= given <= INTEGER_MAX else f"must be within +-{INTEGER_MAX}"
    if type(given) is float:
        if not math.isfinite(given):
            return "must be a finite number"
        digits = sum(character.isdigit() for character in repr(given))
        return None if digits <= NUMBER_DIGITS_MAX else f"has more than {NUMBER_DIGITS_MAX} digits"
    if type(given) is str:
        if len(given) > STRING_MAX:
            return f"must have at most {STRING_MAX} characters"
        return _character_problem(given, allowed=_FREE_CONTROLS)
    return f"must be a JSON value, not {_kind(given)}"


_FIELD_PARSERS: Final[Mapping[str, _FieldParser]] = {
    "admission_timeout_ms": _integer(0, "milliseconds"),
    "auth_env": _env_name,
    "base_url": _base_url,
    "context_limit": _context_limit,
    "engine": _optional_text,
    "extra_body": _body_members,
    "extra_body_defaults": _body_members,
    "first_byte_timeout_ms": _integer(1, "milliseconds"),
    "health_path": _health_path,
    "idle_timeout_ms": _integer(1, "milliseconds"),
    "max_concurrency": _concurrency,
    "max_output_tokens": _integer(1, "tokens"),
    "model": _optional_text,
    "model_identity": _boolean,
    "params": _free_object,
    "preset": _optional_text,
    "quantization": _optional_text,
    "serves": _serves,
    "stream_usage": _boolean,
    "tool_support": _boolean,
    "total_timeout_ms": _integer(1, "milliseconds"),
}


# --- changes


def apply_aliases(projection: Projection, aliases: object) -> Projection:
    """Point existing aliases at existing tiers, or at a family with an existing natural tier.

    `{"llm.primary": {"tier": "secondary"}}`, `{"gemma": {"family": "f", "natural": "k1", "on_unready": "refuse"}}`.

    Raises:
        ProjectionError: codes `unknown_alias`, `unknown_tier`, `no_effective_change`, `invalid_change`.
    """
    faults = _Faults()
    given = _object(aliases, "/aliases", faults)
    targets: dict[str, Target] = dict(projection.aliases)
    for alias in _sorted_keys(given, "/aliases", faults):
        pointer = f"/aliases/{escape_key(alias)}"
        if alias not in projection.aliases:
            faults.add(
                pointer,
                "is not an alias of this router; the set of aliases changes with a restart only",
                "unknown_alias",
            )
            continue
        target = _parse_target(given[alias], pointer, set(projection.tiers), faults)
        if target is None:
            continue
        targets[alias] = target
    if not faults.found and (not given or any(targets[alias] == projection.aliases[alias] for alias in given)):
        faults.add(
            "/aliases", "at least one alias, each to another target than now, must be named", "no_effective_change"
        )
    if faults.found:
        raise ProjectionError(tuple(faults.found))
    return Projection(MappingProxyType(targets), projection.tiers)


def apply_tiers(projection: Projection, patches: object, *, allow_same: bool = False) -> Projection:
    """Replace fields of existing tiers: `{"primary": {"base_url": "http://127.0.0.1:8001/v1", "model": "m2"}}`.

    Args:
        projection: What is current.
        patches: Per tier the fields to set; null unsets one. The result passes `parse` again as a whole.
        allow_same: Accept a patch that changes nothing (a model restarted in place is a new generation all the same).

    Raises:
        ProjectionError: codes `unknown_tier`, `restart_only`, `replacement_unsupported`, `endpoint_invalid`,
            `no_effective_change`, `change_too_large`, `invalid_change`.
    """
    faults = _Faults()
    given = _object(patches, "/tiers", faults)
    if not given and not faults.found:
        faults.add("/tiers", "at least one tier must be named", "no_effective_change")
    document = to_json(projection)
    tiers = document["tiers"]
    assert isinstance(tiers, dict)
    for tier_id in _sorted_keys(given, "/tiers", faults):
        pointer = f"/tiers/{escape_key(tier_id)}"
        if tier_id not in projection.tiers:
            faults.add(
                pointer, "is not a tier of this router; the set of tiers changes with a restart only", "unknown_tier"
            )
            continue
        patch = _object(given[tier_id], pointer, faults)
        for key in _sorted_keys(patch, pointer, faults):
            if key in BOOT_LOCKED or key == "id":
                faults.add(f"{pointer}/{key}", f"{key} changes with a restart only", "restart_only")
        if UPSTREAM in (projection.tiers[tier_id].context_limit, patch.get("context_limit")):
            faults.add(
                f"{pointer}/context_limit",
                "a tier whose context limit is read from its server cannot be replaced live",
                "replacement_unsupported",
            )
        tiers[tier_id] = {**tiers[tier_id], **patch}
    if faults.found:
        raise ProjectionError(tuple(faults.found))
    result = parse(document, fill=True)
    if not allow_same:
        same = [tier_id for tier_id in sorted(given) if not _differ(result.tiers[tier_id], projection.tiers[tier_id])]
        if same:
            raise ProjectionError(
                tuple(Finding(f"/tiers/{tier_id}", "is what it was already", "no_effective_change") for tier_id in same)
            )
    return result


def merge_live(boot: Projection, live: Projection) -> Projection:
    """New boot routes that keep what was changed live: the offline rebase with `--keep-live`.

    Names come from `boot`. A tier that both have keeps its live replaceable fields and takes its locked ones from
    `boot`; a tier whose context limit is its server's takes everything from there. An alias that both have keeps its
    live target if the tier that it leads to still exists.

    Raises:
        ProjectionError: the mixture is not acceptable.
    """
    tiers: dict[str, object] = {}
    for tier_id, tier in boot.tiers.items():
        ours, theirs = _tier_json(tier), live.tiers.get(tier_id)
        if theirs is not None and UPSTREAM not in (tier.context_limit, theirs.context_limit):
            ours = {**_tier_json(theirs), **{key: ours[key] for key in BOOT_LOCKED}}
        tiers[tier_id] = ours
    aliases: dict[str, object] = {}
    for alias, target in boot.aliases.items():
        now = live.aliases.get(alias)
        aliases[alias] = target_json(now if now is not None and tier_of(now) in boot.tiers else target)
    return parse({"aliases": aliases, "tiers": tiers})


def changed_tiers(before: Projection, after: Projection) -> tuple[str, ...]:
    """Ids, sorted, of the tiers whose definition differs or that only one side has."""
    ids = set(before.tiers) | set(after.tiers)
    return tuple(sorted(tier_id for tier_id in ids if _differ(before.tiers.get(tier_id), after.tiers.get(tier_id))))


def _differ(one: Tier | None, other: Tier | None) -> bool:
    if one is None or other is None:
        return one is not other
    return one is not other and canonical(_tier_json(one)) != canonical(_tier_json(other))


def restart_only(boot: Projection, live: Projection) -> tuple[Finding, ...]:
    """Where `live` differs from `boot` in what only a restart may change: names and locked fields."""
    faults = _Faults()
    for kind, ours, theirs in (("aliases", boot.aliases, live.aliases), ("tiers", boot.tiers, live.tiers)):
        for name in sorted(set(ours) ^ set(theirs)):
            where = "the boot file" if name in ours else "the live routes"
            faults.add(f"/{kind}/{escape_key(name)}", f"exists in {where} only", "restart_only")
    for tier_id in sorted(set(boot.tiers) & set(live.tiers)):
        for key in sorted(BOOT_LOCKED):
            if getattr(boot.tiers[tier_id], key) != getattr(live.tiers[tier_id], key):
                faults.add(f"/tiers/{tier_id}/{key}", "differs from the boot file", "restart_only")
        if (boot.tiers[tier_id].context_limit == UPSTREAM) != (live.tiers[tier_id].context_limit == UPSTREAM):
            faults.add(f"/tiers/{tier_id}/context_limit", "differs from the boot file", "restart_only")
    return tuple(faults.found)


def diff(before: Projection, after: Projection) -> tuple[Change, ...]:
    """Every place where two projections differ, in document order: leaves, and whole entries of one side."""
    return tuple(_diff(to_json(before), to_json(after), ""))


def _diff(before: object, after: object, pointer: str) -> Iterator[Change]:
    if type(before) is dict and type(after) is dict:
        for key in sorted(set(before) | set(after)):
            yield from _diff(before.get(key), after.get(key), f"{pointer}/{escape_key(key)}")
    elif canonical(before) != canonical(after):  # bytes, because 1 == 1.0 == True in Python
        yield Change(pointer, freeze(before), freeze(after))


# --- endpoints


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a URL leads: `host` is a normalised literal address, `loopback`, or a lower-case name."""

    scheme: str
    host: str
    port: int
    is_literal: bool


class Overlap(StrEnum):
    """Whether two endpoints can be one server."""

    SAME = "same"
    DIFFERENT = "different"
    UNPROVABLE = "unprovable"


def endpoint(url: str) -> Endpoint:
    """The normalised origin of a URL that `parse` accepted; all spellings of loopback become one."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = _address(host)
    if address is not None:
        loopback = address.is_loopback or address.is_unspecified
        return Endpoint(parts.scheme, "loopback" if loopback else str(address), port, True)
    if host == "localhost" or host.endswith(".localhost") or host in ("ip6-localhost", "ip6-loopback"):
        return Endpoint(parts.scheme, "loopback", port, True)
    return Endpoint(parts.scheme, host, port, False)


def compare_endpoints(one: Endpoint, other: Endpoint) -> Overlap:
    """Whether two endpoints are the same server, as far as their spelling tells.

    Different ports are different servers. On one port, two literal addresses are compared; a name may resolve to
    anything, so a name beside something else than itself cannot be told apart. The scheme is no evidence of difference.
    """
    if one.port != other.port:
        return Overlap.DIFFERENT
    if one.host == other.host:
        return Overlap.SAME
    return Overlap.DIFFERENT if one.is_literal and other.is_literal else Overlap.UNPROVABLE


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _looks_numeric(host: str) -> bool:
    # resolvers read 127.1, 0x7f000001 and 2130706433 as addresses; ip_address does not
    last = host.rstrip(".").rsplit(".", 1)[-1]
    return last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last) is not None
