"""Door: the boot file for the command line: read it, show what it means, print its schema.

The gateway itself gets a finished `BootConfig`; this is where a path, the environment and this machine's names come in.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sndr.errors import InputError
from sndr.router.wire import boot
from sndr.router.wire.boot import BootConfig, BootError
from sndr.router.wire.boot_model import Boot
from sndr.router.wire.boot_reference import reference
from sndr.router.wire.toml_keys import locate, show

__all__ = [
    "BootConfig",
    "BootError",
    "check_certificate",
    "effective_json",
    "effective_toml",
    "family_faults",
    "json_schema",
    "load",
    "notes",
    "reference",
]

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def load(path: str, env: Mapping[str, str] | None, *, listen: Sequence[str] = ()) -> BootConfig:
    """Read and check a boot file on this machine.

    Args:
        env: The environment; None checks the file alone and leaves credentials unresolved.
        listen: Addresses that replace ``server.listen``.

    Raises:
        BootError: with every fault of the file.
    """
    return boot.load(path, env, listen=listen, own_hosts=_own_hosts())


def _own_hosts() -> frozenset[str]:
    """Names and addresses of this machine, as far as its resolver knows them."""
    names = {socket.gethostname().lower()}
    with contextlib.suppress(OSError):  # a machine may not know its own name
        names.update(str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None))
    return frozenset(name for name in names if name and "%" not in name)


def notes(config: BootConfig) -> list[str]:
    """What is worth knowing about a valid configuration, one sentence each."""
    found = []
    if config.server.operator_auth_env is None:
        found.append("server.operator_auth_env is not set: every /v1/admin path is 404")
    if config.server.usage_path is None:
        found.append("server.usage_path is not set: requests are not accounted for")
    if config.server.admission_state_path is None and config.server.operator_auth_env is not None:
        found.append("server.admission_state_path is not set: a restart forgets which tiers are quiesced")
    found += [
        f"tier {tier_id} has no health_path: it is not probed and always counts as ready"
        for tier_id, tier in config.projection.tiers.items()
        if tier.health_path is None
    ]
    return found


def family_faults(config: BootConfig, findings: Sequence[str], *, of_table: bool) -> BootError:
    """What is wrong with the family aliases, or with their routing table, as faults of the boot file."""
    path = ("router", "routing_table" if of_table else "family_routes")
    line = _line_of(config, path)
    return BootError([boot.Finding(config.source, line, show(path), text) for text in findings])


def check_certificate(config: BootConfig) -> None:
    """Read the listeners' certificate and key as a start would.

    Raises:
        BootError: They cannot be used.
    """
    if config.paths.tls_cert is None or config.paths.tls_key is None:
        return
    from sndr.router.net.tls import Certificate  # most boot files have none, and ssl takes long to import

    try:
        Certificate(config.paths.tls_cert, config.paths.tls_key)
    except InputError as error:
        key, _, text = error.message.partition(": ")
        line = _line_of(config, ("server", "tls_key" if key == "server.tls_key" else "tls_cert"))
        raise BootError([boot.Finding(config.source, line, key, text)]) from error


def _line_of(config: BootConfig, path: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError, UnicodeDecodeError), open(config.source, encoding="utf-8") as file:
        return locate(file.read(boot.MAX_FILE_BYTES)).line_of(path)
    return 1


def effective_json(config: BootConfig) -> str:
    """The effective configuration and its hash, as one line of JSON."""
    document = {"config_sha256": config.config_sha256, "effective": dict(config.effective)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def json_schema() -> str:
    """JSON Schema of the boot file, generated from the models that parse it."""
    schema = Boot.model_json_schema()
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:sndr:schema:router_config.v1",
        **_without_titles(schema),
        "title": "Boot configuration of sndr router",
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _without_titles(value: Any) -> Any:
    """pydantic titles every property with its own name, which says nothing."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "title" or not isinstance(item, str)}
        return {key: _without_titles(item) for key, item in kept.items()}
    return [_without_titles(item) for item in value] if isinstance(value, list) else value


def effective_toml(config: BootConfig) -> str:
    """The effective configuration as a boot file that means the same: every default written out."""
    server, router = dict(config.effective["server"]), dict(config.effective["router"])
    clients, cors = server.pop("clients"), server.pop("cors")
    tiers, routes, families = router.pop("tiers"), router.pop("model_routes"), router.pop("family_routes")
    listed = {key: router.pop(key) for key in ("purpose_models", "audio_routes")}
    lines = ["[server]", *_pairs(server), "", "[server.cors]", *_pairs(cors)]
    for client in clients:
        lines += ["", "[[server.clients]]", *_pairs(client)]
    lines += ["", "[router]", *_pairs(router)]
    for tier_id, tier in tiers.items():
        lines += ["", "[[router.tiers]]", *_pairs({"id": tier_id, **tier})]
    for name, entries in listed.items():
        for entry in entries:
            lines += ["", f"[[router.{name}]]", *_pairs(entry)]
    lines += ["", "[router.model_routes]", *_pairs(routes)]
    for alias, family in families.items():
        lines += ["", f"[router.family_routes.{_key(alias)}]", *_pairs(family)]
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if value is not None:
            yield f"{_key(key)} = {_value(value)}"


def _key(name: str) -> str:
    return name if _PLAIN_KEY.fullmatch(name) else _value(name)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(_pairs(value)) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the one character that only JSON leaves bare
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float) and value.is_integer():
        return str(int(value)) if abs(value) < 1e15 else repr(value)
    return json.dumps(value)
