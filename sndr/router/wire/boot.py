"""The boot TOML: text in, one frozen configuration or every fault at once out.

The file is read once. Nothing in it is ignored: a reserved word is a fault that says so. Secrets
are named by environment variables; their values live in `Secrets`, which never prints them.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sndr.errors import InputError
from sndr.router.core import projection
from sndr.router.core.client_scope import may_use
from sndr.router.core.listener import (
    Listener,
    check_origin,
    check_proxy,
    is_loopback,
    is_own_listener,
    parse_listener,
)
from sndr.router.core.projection import ALIAS_PATTERN, ENV_NAME_PATTERN, TIER_ID_PATTERN
from sndr.router.wire import boot_model
from sndr.router.wire.boot_model import Boot, Client, FamilyLeaf, PurposeModel, Router, Server
from sndr.router.wire.toml_keys import KeyLines, KeyPath, locate, show

__all__ = ["BootConfig", "BootError", "Finding", "Paths", "Purpose", "Secrets", "load", "parse"]

MAX_FILE_BYTES: Final = 1 << 20
AUTHORITY_PATH_MAX_BYTES: Final = 1024

_RESERVED: Final = {"replicas": "is reserved: one tier is one server; write one tier for each"}
_CREDENTIAL: Final = re.compile(r"(AKIA|ASIA)[A-Z0-9]{16}\Z|(?=.*[0-9])[A-Z0-9]{24,}\Z")
_AUTHORITY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TOKEN: Final = re.compile(r"[!-~]+\Z")
_TIMEOUTS: Final = ("admission_timeout_s", "first_byte_timeout_s", "idle_timeout_s", "total_timeout_s")


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One fault of the boot file.

    Attributes:
        source: The file's path as it was given.
        line: Line in the file, from 1.
        path: Key path, empty for the file as a whole.
        message: What is wrong and what is allowed; never holds a value that could be a secret.
    """

    source: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.path + ': ' if self.path else ''}{self.message}"


class BootError(InputError):
    """The boot file cannot be used; carries every fault that was found, in the order of the file."""

    exit_code = 2

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(sorted(set(findings)))
        super().__init__("config_invalid", "; ".join(map(str, self.findings)))


class Secrets:
    """Values of the environment variables that the configuration names. Not printable, not comparable, not iterable."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)} hidden)"

    def left_out(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment without the variables that hold credentials."""
        return {name: value for name, value in env.items() if name not in self._values}

    def get(self, name: str | None) -> str | None:
        """Value of the variable, or None when the name is None or was not resolved."""
        return None if name is None else self._values.get(name)


@dataclass(frozen=True, slots=True)
class Paths:
    """Files that the configuration names, absolute: `~` expanded, the rest relative to the boot file's directory."""

    usage: str | None
    admission_state: str | None
    decision_log: str | None
    route_state: str | None
    tls_cert: str | None
    tls_key: str | None
    routing_table: str | None = None


@dataclass(frozen=True, slots=True)
class Purpose:
    """A model outside the routes: selected by its own name, at the endpoint of its kind.

    Attributes:
        kind: `embedding`, `rerank`, `stt` or `tts`.
        name: What clients ask for, normalised as an alias.
        tier: Its server, in the terms of a tier; `serves` is the one endpoint.
    """

    kind: str
    name: str
    tier: projection.Tier

    @property
    def id(self) -> str:
        """Its name in the ledger and the metrics; no tier can have it."""
        return f"{self.kind}:{self.name}"


_PURPOSE_ENDPOINTS: Final = {
    "embedding": "embeddings", "rerank": "rerank", "stt": "transcriptions", "tts": "speech",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BootConfig:
    """A valid boot configuration.

    Attributes:
        source: The file's path as it was given.
        server: Keys of ``[server]``, defaults filled in.
        router: Keys of ``[router]``, defaults filled in.
        clients: ``[[server.clients]]``, and first, when ``server.auth_env`` is set, the client ``default``.
        listeners: `server.listen`, parsed.
        paths: Files, absolute.
        projection: Aliases and tiers: the part that the live authority may change.
        purposes: ``[[router.purpose_models]]`` and ``[[router.audio_routes]]``.
        config_sha256: SHA-256 of the canonical effective configuration; names of variables included, values never.
        effective: The effective configuration as JSON values, in the shape that was hashed.
        secrets: Values of the named variables; empty when the environment was not read.
        own_hosts: Further names and addresses of this machine.
    """

    source: str
    server: Server
    router: Router
    clients: tuple[Client, ...]
    listeners: tuple[Listener, ...]
    paths: Paths
    projection: projection.Projection
    purposes: tuple[Purpose, ...]
    config_sha256: str
    effective: Mapping[str, Any]
    secrets: Secrets
    own_hosts: frozenset[str] = frozenset()


def load(
    path: str,
    env: Mapping[str, str] | None,
    *,
    listen: Sequence[str] = (),
    own_hosts: frozenset[str] = frozenset(),
) -> BootConfig:
    """Read and check a boot file.

    Args:
        env: The environment; None leaves credentials unresolved (a check on a machine that does not have them).
        listen: Addresses that replace ``server.listen``.
        own_hosts: Names and addresses of this machine, for the check that no tier is the gateway itself.

    Raises:
        BootError: with every fault of the file.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise BootError([Finding(path, 1, "", f"cannot be read: {exc.strerror}")]) from exc
    if len(data) > MAX_FILE_BYTES:
        raise BootError([Finding(path, 1, "", f"is larger than {MAX_FILE_BYTES} bytes")])
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise BootError([Finding(path, line, "", "is not UTF-8 text")]) from exc
    return parse(text, env, source=path, listen=listen, own_hosts=own_hosts)


def parse(
    text: str,
    env: Mapping[str, str] | None,
    *,
    source: str = "config.toml",
    listen: Sequence[str] = (),
    own_hosts: frozenset[str] = frozenset(),
) -> BootConfig:
    """Check the text of a boot file; as `load`, without reading."""
    text = text.replace("\r\n", "\n")
    lines = locate(text)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise BootError(_syntax_findings(exc, lines, source)) from exc
    except RecursionError as exc:
        raise BootError([Finding(source, 1, "", "is nested too deeply")]) from exc
    if listen:
        server = data.get("server", {})
        if isinstance(server, dict):
            data["server"] = {**server, "listen": list(listen)}
    check = _Check(data, lines, env, own_hosts, source)
    boot = check.structure()
    check.meaning()
    if check.findings or boot is None:
        raise BootError(check.findings)
    config = check.build(boot)
    if config is None:
        raise BootError(check.findings)
    return config


def _syntax_findings(error: tomllib.TOMLDecodeError, lines: KeyLines, source: str) -> list[Finding]:
    found = [
        Finding(source, repeat.line, show(repeat.path), f"is defined twice; the first time on line {repeat.first_line}")
        for repeat in lines.repeated
    ]
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
    text, line = (match.group(1), int(match.group(2) or 0)) if match else (str(error), 0)
    if not found or not text.startswith("Cannot "):
        last = max(lines.lines.values(), default=1)
        hint = ""
        if text == "Cannot overwrite a value" or text.startswith(("Cannot declare", "Cannot mutate")):
            hint = " (a dotted name beside its own first part, as llm.primary beside llm, needs quotes)"
        found.append(Finding(source, line or last, "", f"is not valid TOML: {text[:1].lower()}{text[1:]}{hint}"))
    return found


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return f"{value}"
    names: dict[type, str] = {str: "a string", list: "an array", dict: "a table"}
    return names.get(type(value), "a date or time")


_EXPECTED: Final = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}

_PATTERN_TEXT: Final = {
    boot_model.ENV_NAME_PATTERN: "must be the name of an environment variable (A-Z, 0-9, _, first a letter), not the"
    " credential itself",
    boot_model.TIER_ID_PATTERN: "must match [a-z0-9][a-z0-9._-]{0,63}",
    r"^/[!-~]*$": "must be a path that starts with /",
}


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _model_at(path: KeyPath) -> type[BaseModel] | None:
    """The model whose keys stand at `path`, None inside free-form values."""
    model: type[BaseModel] = Boot
    for part in path:
        if isinstance(part, int):
            continue
        info = model.model_fields.get(part)
        if info is None:
            return None
        below = [kind for kind in _flatten_annotation(info.annotation) if issubclass(kind, BaseModel)]
        if not below:
            return None
        model = below[0]
    return model


def _flatten_annotation(annotation: object) -> Iterator[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from _flatten_annotation(argument)


@dataclass(frozen=True, slots=True)
class _Alias:
    name: str
    raw: str
    path: KeyPath
    target: object


def _flatten(tree: Mapping[str, object], path: KeyPath, prefix: str = "") -> Iterator[_Alias]:
    for key, value in tree.items():
        raw = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and not isinstance(value.get("family"), str):
            yield from _flatten(value, (*path, key), raw)
        else:
            yield _Alias(raw.strip().lower(), raw, (*path, key), value)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> list[tuple[int, dict[str, Any]]]:
    return [(i, item) for i, item in enumerate(value) if isinstance(item, dict)] if isinstance(value, list) else []


class _Check:
    """Collects the findings of one document; checks of meaning leave values of a wrong type to the structure."""

    def __init__(
        self,
        data: dict[str, Any],
        lines: KeyLines,
        env: Mapping[str, str] | None,
        own_hosts: frozenset[str],
        source: str,
    ) -> None:
        self.source = source
        self.data = data
        self.lines = lines
        self.env = env
        self.own_hosts = own_hosts
        self.findings: list[Finding] = []
        self.secrets: dict[str, str] = {}
        self.listeners: list[Listener] = []
        self.server = _table(data.get("server"))
        self.router = _table(data.get("router"))
        self.tiers = _tables(self.router.get("tiers"))
        self.aliases: dict[str, _Alias] = {}
        self.purposes = [
            (("router", table, index), entry)
            for table in ("purpose_models", "audio_routes")
            for index, entry in _tables(self.router.get(table))
        ]
        self.purpose_names: dict[tuple[str, str], KeyPath] = {}

    def add(self, path: KeyPath, message: str) -> None:
        self.findings.append(Finding(self.source, self.lines.line_of(path), show(path), message))

    # -- structure: types, unknown keys, ranges -----------------------------------------------------------------------

    def structure(self) -> Boot | None:
        try:
            return Boot.model_validate(self.data)
        except ValidationError as exc:
            for error in exc.errors(include_url=False):
                self._structure_finding(error)
            return None

    def _structure_finding(self, error: ErrorDetails) -> None:
        path, value = self._document_path(error["loc"])
        kind, context = error["type"], error.get("ctx", {})
        name = str(error["loc"][-1])
        if kind == "missing":
            self.add(path, f"the key {name} is missing")
        elif kind == "extra_forbidden":
            self._unknown_key(path, name)
        elif path[-1:] == ("max_concurrency",) and value == "auto":
            self.add(path, 'must be an integer; "auto" is reserved: a limit is never guessed')
        elif path[-1:] == ("context_limit",):
            self.add(path, 'must be an integer of at least 1 or "upstream"')
        elif kind == "literal_error":
            allowed = re.findall(r"'([^']*)'", context["expected"])
            near = _nearest(value, allowed) if isinstance(value, str) else f", got {_kind(value)}"
            self.add(path, f"must be one of {', '.join(allowed)}{near}")
        elif kind == "string_pattern_mismatch":
            self.add(path, _PATTERN_TEXT[context["pattern"]])
        elif kind in _EXPECTED:
            self.add(path, f"must be {_EXPECTED[kind]}, got {_kind(value)}")
        elif kind in {"greater_than", "greater_than_equal", "less_than_equal", "finite_number"}:
            self.add(path, f"must be {_range_text(kind, context)}, got {_kind(value)}")
        elif kind in {"too_short", "string_too_short"}:
            self.add(path, "must not be empty")
        elif kind == "string_too_long":
            self.add(path, f"must have at most {context['max_length']} characters")
        else:
            self.add(path, error["msg"].removeprefix("Value error, "))

    def _document_path(self, loc: tuple[int | str, ...]) -> tuple[KeyPath, object]:
        """A pydantic location without its union tags, and the value there (the enclosing one for a missing key)."""
        value: Any = self.data
        path: KeyPath = ()
        for part in loc:
            is_key = isinstance(value, dict) and part in value
            if is_key or (isinstance(value, list) and isinstance(part, int) and part < len(value)):
                value = value[part]
                path = (*path, part)
        return path, value

    def _unknown_key(self, path: KeyPath, name: str) -> None:
        if name in _RESERVED and path[:2] == ("router", "tiers"):
            self.add(path, _RESERVED[name])
            return
        model = _model_at(path[:-1])
        allowed = sorted(model.model_fields) if model else []
        near = _nearest(name, allowed)
        self.add(path, f"unknown key{near}" if near else f"unknown key; allowed: {', '.join(allowed)}")

    # -- meaning: references, duplicates, credentials, addresses ------------------------------------------------------

    def meaning(self) -> None:
        self._check_tiers()
        self._check_routes()
        self._check_purposes()
        self._check_listeners()
        self._check_clients()
        self._check_credentials()
        self._check_files()
        self._check_table()

    def _check_tiers(self) -> None:
        seen: dict[str, int] = {}
        for index, tier in self.tiers:
            at: KeyPath = ("router", "tiers", index)
            name = tier.get("id")
            if isinstance(name, str):
                if name in seen:
                    first = self.lines.line_of(("router", "tiers", seen[name], "id"))
                    self.add((*at, "id"), f"the tier {_safe(name)} is defined twice; the first time on line {first}")
                seen.setdefault(name, index)
            given = tier.get("serves")
            serves: list[object] = given if isinstance(given, list) else []
            for number, endpoint in enumerate(serves):
                if serves.index(endpoint) < number:
                    self.add((*at, "serves", number), "is listed twice")
        if not self.tiers and not isinstance(self.data.get("router"), list | str | int | float):
            self.add(("router",), "needs at least one [[router.tiers]]")

    def _check_routes(self) -> None:
        ids = [tier["id"] for _, tier in self.tiers if isinstance(tier.get("id"), str)]
        named: set[str] = set()
        for table in ("model_routes", "family_routes"):
            tree = self.router.get(table)
            for alias in _flatten(tree, ("router", table)) if isinstance(tree, dict) else ():
                self._check_alias(alias, table, ids)
                target = alias.target.get("natural") if isinstance(alias.target, dict) else alias.target
                if isinstance(target, str):
                    named.add(target)
        families = bool(self.router.get("family_routes"))
        for index, tier in self.tiers:
            name = tier.get("id")
            if families and tier.get("preset"):
                continue  # a family alias may lead here: the routing table decides
            if isinstance(name, str) and TIER_ID_PATTERN.fullmatch(name) and name not in named:
                self.add(("router", "tiers", index), f"no route names the tier {name}; add it to [router.model_routes]")

    def _check_alias(self, alias: _Alias, table: str, ids: Sequence[str]) -> None:
        if not ALIAS_PATTERN.fullmatch(alias.name):
            self.add(alias.path, "an alias must match [a-z0-9][a-z0-9._:/@+-]{0,127} (after lower-casing)")
        elif alias.name in self.aliases:
            first = self.aliases[alias.name]
            self.add(
                alias.path,
                f"the alias {alias.name} is defined twice; the first time on line {self.lines.line_of(first.path)}",
            )
        else:
            self.aliases[alias.name] = alias
        if table == "model_routes" and isinstance(alias.target, dict):
            self.add(alias.path, "a route with a family belongs into [router.family_routes]")
        if table == "family_routes":
            self._check_family(alias, ids)
        elif isinstance(alias.target, str) and alias.target not in ids:
            known = f"; tiers: {', '.join(_safe(name) for name in ids[:16])}" if ids else ""
            self.add(alias.path, f"there is no tier {_safe(alias.target)}{_nearest(alias.target, ids) or known}")

    def _check_family(self, alias: _Alias, ids: Sequence[str]) -> None:
        if not isinstance(alias.target, dict):
            self.add(alias.path, "must be a table with the keys family and natural")
            return
        try:
            FamilyLeaf.model_validate(alias.target)
        except ValidationError as exc:
            for error in exc.errors(include_url=False):
                error["loc"] = (*alias.path, *error["loc"])
                if error["type"] == "extra_forbidden":
                    name = str(error["loc"][-1])
                    allowed = sorted(FamilyLeaf.model_fields)
                    self.add(
                        error["loc"], f"unknown key{_nearest(name, allowed) or '; allowed: ' + ', '.join(allowed)}"
                    )
                else:
                    self._structure_finding(error)
            return
        natural = alias.target["natural"]
        if natural not in ids:
            known = f"; tiers: {', '.join(_safe(name) for name in ids[:16])}" if ids else ""
            path = (*alias.path, "natural")
            self.add(path, f"there is no tier {_safe(natural)}{_nearest(natural, ids) or known}")

    def _check_table(self) -> None:
        table = self.router.get("routing_table")
        if isinstance(table, dict) and ("path" in table) == ("command" in table):
            self.add(("router", "routing_table"), "needs exactly one of path and command")

    def _check_purposes(self) -> None:
        for at, entry in self.purposes:
            kind, model = entry.get("kind"), entry.get("model")
            if not isinstance(kind, str) or not isinstance(model, str) or not model:
                continue
            path = (*at, "model")
            name = model.strip().lower()
            if not ALIAS_PATTERN.fullmatch(name):
                self.add(path, "must match [a-z0-9][a-z0-9._:/@+-]{0,127} (after lower-casing)")
                continue
            first = self.purpose_names.setdefault((kind, name), path)
            if first != path:
                line = self.lines.line_of(first)
                self.add(path, f"the {kind} model {name} is defined twice; the first time on line {line}")
            elif name in self.aliases and at[1] == "purpose_models":
                line = self.lines.line_of(self.aliases[name].path)
                self.add(path, f"{name} is also an alias (line {line}): one name selects one server")

    def _check_listeners(self) -> None:
        listen = self.server.get("listen", Server().listen)
        seen: set[str] = set()
        for index, text in enumerate(listen if isinstance(listen, list) else ()):
            at: KeyPath = ("server", "listen", index)
            if not isinstance(text, str):
                continue
            try:
                listener = parse_listener(text)
            except ValueError as exc:
                self.add(at, str(exc))
                continue
            if text in seen and listener.port != 0:
                self.add(at, "is listed twice")
            seen.add(text)
            self.listeners.append(listener)
        if not self.server.get("auth_env") and not self.server.get("clients"):
            for index, listener in enumerate(self.listeners):
                if not is_loopback(listener):
                    self.add(
                        ("server", "listen", index),
                        f"{listener.text} is open to other machines: set server.auth_env or [[server.clients]]"
                        " (no key is needed only on loopback or a unix socket)",
                    )
        self._check_texts(("server", "trusted_proxies"), self.server.get("trusted_proxies"), check_proxy)
        origins = _table(self.server.get("cors")).get("allow_origins")
        self._check_texts(("server", "cors", "allow_origins"), origins, check_origin)
        if isinstance(origins, list) and "*" in origins and len(origins) > 1:
            self.add(("server", "cors", "allow_origins"), 'says "*", which is every origin, beside others')
        for index, tier in self.tiers:
            self._check_base_url(("router", "tiers", index, "base_url"), tier.get("base_url"))
        for place, entry in self.purposes:
            self._check_base_url((*place, "base_url"), entry.get("base_url"))

    def _check_texts(self, path: KeyPath, values: object, check: Callable[[str], None]) -> None:
        for index, text in enumerate(values if isinstance(values, list) else ()):
            if isinstance(text, str):
                try:
                    check(text)
                except ValueError as exc:
                    self.add((*path, index), str(exc))

    def _check_base_url(self, path: KeyPath, url: object) -> None:
        if not isinstance(url, str) or not url:
            return
        try:
            projection.parse({"aliases": {}, "tiers": {"any": {"base_url": url}}}, fill=True)
        except projection.ProjectionError as exc:
            for finding in exc.findings:
                self.add(path, finding.message)
            return
        for listener in self.listeners:
            if is_own_listener(url, listener, self.own_hosts):
                self.add(path, f"is this gateway itself (it listens on {listener.text})")

    def _check_clients(self) -> None:
        seen = {"default": "server.auth_env"} if self.server.get("auth_env") else {}
        for index, client in _tables(self.server.get("clients")):
            at: KeyPath = ("server", "clients", index)
            name = client.get("id")
            if isinstance(name, str):
                if name in seen:
                    self.add((*at, "id"), f"the client {_safe(name)} is defined twice; the first time by {seen[name]}")
                seen.setdefault(name, f"line {self.lines.line_of((*at, 'id'))}")
            globs = client.get("aliases")
            for number, glob in enumerate(globs if isinstance(globs, list) else ()):
                names = [*self.aliases, *(name for _, name in self.purpose_names)]
                if isinstance(glob, str) and not any(may_use([glob], name) for name in names):
                    self.add((*at, "aliases", number), "matches no alias")

    def _check_credentials(self) -> None:
        users: list[tuple[KeyPath, object, bool]] = [
            (("server", key), self.server.get(key), True)
            for key in ("auth_env", "operator_auth_env", "metrics_auth_env")
        ]
        for index, client in _tables(self.server.get("clients")):
            users.append((("server", "clients", index, "auth_env"), client.get("auth_env"), True))
        for index, tier in self.tiers:
            users.append((("router", "tiers", index, "auth_env"), tier.get("auth_env"), False))
        for place, entry in self.purposes:
            users.append(((*place, "auth_env"), entry.get("auth_env"), False))
        own: dict[str, KeyPath] = {}
        operator: KeyPath = ("server", "operator_auth_env")
        live = bool(self.server.get("route_state_path"))
        for path, name, is_ours in users:
            if not isinstance(name, str) or not name or not ENV_NAME_PATTERN.fullmatch(name):
                continue
            if _CREDENTIAL.match(name):
                self.add(path, "looks like a credential; write the name of the environment variable that holds it")
                continue
            value = self._resolve(path, name)
            if value is None or not is_ours:
                continue
            if value in own:
                code = "route_operator_credential_shared: " if live and operator in (path, own[value]) else ""
                self.add(
                    path, f"{code}holds the same credential as {show(own[value])}; every caller needs one of its own"
                )
            own.setdefault(value, path)

    def _resolve(self, path: KeyPath, name: str) -> str | None:
        if self.env is None:
            return None
        value = self.env.get(name)
        if not value:
            live = path == ("server", "operator_auth_env") and self.server.get("route_state_path")
            code = "route_operator_credential_missing: " if live else ""
            self.add(path, f"{code}the environment variable {name} is {'empty' if value == '' else 'not set'}")
            return None
        if not _TOKEN.match(value):
            self.add(path, f"the environment variable {name} holds spaces, control or non-ASCII characters")
            return None
        self.secrets[name] = value
        return value

    def _check_files(self) -> None:
        seen: dict[str, str] = {}
        for key in (
            "usage_path",
            "admission_state_path",
            "decision_log_path",
            "route_state_path",
            "tls_cert",
            "tls_key",
        ):
            value = self.server.get(key)
            if not isinstance(value, str) or not value:
                continue
            if value.endswith("/"):
                self.add(("server", key), "must name a file, not a directory")
            elif key == "route_state_path":
                self._check_authority_path(value)
            where = os.path.normpath(os.path.expanduser(value))
            if where in seen:
                self.add(("server", key), f"is the same file as server.{seen[where]}")
            seen[where] = key
        for key, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
            if self.server.get(key) and not self.server.get(other):
                self.add(("server", key), f"needs server.{other} beside it")

    def _check_authority_path(self, value: str) -> None:
        """The path does not depend on the current directory, and its name leaves room for the lock's beside it."""
        path: KeyPath = ("server", "route_state_path")
        expanded = os.path.expanduser(value)
        if not os.path.isabs(expanded):
            self.add(path, "must be an absolute path (~ is allowed)")
        elif len(os.fsencode(expanded)) > AUTHORITY_PATH_MAX_BYTES:
            self.add(path, f"must have at most {AUTHORITY_PATH_MAX_BYTES} bytes")
        elif not _AUTHORITY_NAME.fullmatch(os.path.basename(expanded)):
            self.add(path, "must end in a file name of 1 to 128 letters, digits, . _ - that starts with none of . _ -")

    # -- result -------------------------------------------------------------------------------------------------------

    def build(self, boot: Boot) -> BootConfig | None:
        """The configuration; None when the projection has findings, which are then in `findings`."""
        projected, index_of = self._projection_json(boot)
        try:
            routes = projection.parse(projected, fill=True)
        except projection.ProjectionError as exc:
            for finding in exc.findings:
                path = _document_path_of_pointer(finding.pointer, index_of, self.aliases)
                self.add(path, finding.message)
            return None
        server = boot.server
        clients = list(server.clients)
        if server.auth_env is not None:
            clients.insert(0, Client(id="default", auth_env=server.auth_env))
        effective = _effective(boot, projected["aliases"])
        base = os.path.dirname(os.path.abspath(self.source))

        def place(name: str | None) -> str | None:
            return None if name is None else os.path.normpath(os.path.join(base, os.path.expanduser(name)))

        return BootConfig(
            source=self.source,
            server=server,
            router=boot.router,
            clients=tuple(clients),
            listeners=tuple(self.listeners),
            paths=Paths(
                usage=place(server.usage_path),
                admission_state=place(server.admission_state_path),
                decision_log=place(server.decision_log_path),
                route_state=place(server.route_state_path),
                tls_cert=place(server.tls_cert),
                tls_key=place(server.tls_key),
                routing_table=None if boot.router.routing_table is None else place(boot.router.routing_table.path),
            ),
            projection=routes,
            purposes=tuple(_purpose(keys) for keys in (*boot.router.purpose_models, *boot.router.audio_routes)),
            config_sha256=hashlib.sha256(projection.canonical(effective)).hexdigest(),
            effective=MappingProxyType(effective),
            secrets=Secrets(self.secrets),
            own_hosts=self.own_hosts,
        )

    def _projection_json(self, boot: Boot) -> tuple[dict[str, Any], dict[str, int]]:
        tiers: dict[str, Any] = {}
        index_of: dict[str, int] = {}
        for index, keys in enumerate(boot.router.tiers):
            tier = keys.model_dump()
            name = tier.pop("id")
            for key in _TIMEOUTS:
                seconds = tier.pop(key)
                tier[key.removesuffix("_s") + "_ms"] = None if seconds is None else round(seconds * 1000)
            tiers[name] = tier
            index_of[name] = index
        aliases = {
            name: {"tier": alias.target} if isinstance(alias.target, str) else _family(alias.target)
            for name, alias in self.aliases.items()
        }
        return {"aliases": aliases, "tiers": tiers}, index_of


def _family(target: object) -> object:
    return {"on_unready": "refuse", **target} if isinstance(target, dict) else target


def _purpose(keys: PurposeModel) -> Purpose:
    tier = {
        "base_url": keys.base_url,
        "model": keys.served_model or keys.model,
        "auth_env": keys.auth_env,
        "max_concurrency": keys.max_concurrency,
        "total_timeout_ms": None if keys.total_timeout_s is None else round(keys.total_timeout_s * 1000),
    }
    parsed = projection.parse({"aliases": {}, "tiers": {"any": tier}}, fill=True).tiers["any"]
    serves = (_PURPOSE_ENDPOINTS[keys.kind],)
    return Purpose(keys.kind, keys.model.strip().lower(), dataclasses.replace(parsed, serves=serves))


def _effective(boot: Boot, aliases: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults filled in, aliases normalised, tiers by id: equal for files that mean the same."""
    effective = boot.model_dump(mode="json", exclude={"router": {"model_routes", "family_routes"}})
    router = effective["router"]
    router["tiers"] = {tier.pop("id"): tier for tier in router["tiers"]}
    router["model_routes"] = {name: target["tier"] for name, target in aliases.items() if "tier" in target}
    router["family_routes"] = {name: target for name, target in aliases.items() if "tier" not in target}
    return effective


def _document_path_of_pointer(pointer: str, index_of: Mapping[str, int], aliases: Mapping[str, _Alias]) -> KeyPath:
    """JSON pointer into the projection -> key path in the boot file."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    if len(parts) >= 2 and parts[0] == "tiers" and parts[1] in index_of:
        rest: list[str | int] = [int(part) if part.isdigit() else part for part in parts[2:]]
        if rest and isinstance(rest[0], str) and rest[0].endswith("_timeout_ms"):
            rest[0] = rest[0].removesuffix("_ms") + "_s"
        return ("router", "tiers", index_of[parts[1]], *rest)
    if len(parts) >= 2 and parts[0] == "aliases" and parts[1] in aliases:
        return aliases[parts[1]].path
    return ("router", "tiers") if parts[:1] == ["tiers"] else ("router", "model_routes")


def _range_text(kind: str, context: Mapping[str, Any]) -> str:
    match kind:
        case "greater_than":
            return f"greater than {context['gt']:g}"
        case "greater_than_equal":
            return f"at least {context['ge']}"
        case "less_than_equal":
            return f"at most {context['le']:.0f}"
        case _:
            return "a finite number"


def _safe(name: str) -> str:
    """A name for a message: as it is when it looks like a name, else nothing of it (it may be anything)."""
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,63}", name) else "with this name"
