"""The reference page of the boot file, written from the models that parse it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from sndr.router.wire import boot_model

__all__ = ["reference"]

_INTRO: Final = """\
# The boot file

<!-- Written by `sndr router check --reference`; a test keeps it current. Change the models, not this page. -->

`sndr router serve --config FILE` reads one TOML file, once, at its start. `sndr router check --config FILE` judges it
the same way without a gateway and prints it back with every default written out.

- **Everything is judged at once.** Unknown keys at any depth, wrong types, values out of range, repeated keys and names
  that lead nowhere are reported together, as `FILE:LINE: key: what is wrong`, with the nearest valid name; exit code 2.
- **Nothing is ignored.** Words that are reserved for later are refused with that reason.
- **Secrets are not in it.** Keys that end in `auth_env` hold the *name* of an environment variable (`A-Z`, `0-9`, `_`).
  Something that looks like a credential is refused, and its text is not repeated.
- **Units.** Durations are seconds (fractions down to a millisecond), sizes bytes. A boolean is never a number.
- **Paths** may start with `~`; a relative path is relative to the folder of the boot file.
- `config_sha256` in the status and the metrics is the SHA-256 of the effective configuration: comments, order and the
  spelling of defaults do not change it, neither do the values of environment variables.

An editor can check the file with the JSON Schema in `schemas/router_config.v1.json` (`sndr router check --schema`).
"""

_SECTIONS: Final[tuple[tuple[str, type[BaseModel], str], ...]] = (
    ("[server]", boot_model.Server, "server"),
    ("[server.cors]", boot_model.Cors, "server.cors"),
    ("[[server.clients]]", boot_model.Client, "server.clients"),
    ("[router]", boot_model.Router, "router"),
    ("[[router.tiers]]", boot_model.TierKeys, "router.tiers"),
    ("[router.model_routes]", boot_model.RouteTree, "router.model_routes"),
    ("[router.family_routes.ALIAS]", boot_model.FamilyLeaf, "router.family_routes"),
    ("[[router.purpose_models]]", boot_model.PurposeModel, "router.purpose_models"),
    ("[[router.audio_routes]]", boot_model.AudioRoute, "router.audio_routes"),
    ("[router.routing_table]", boot_model.RoutingTable, "router.routing_table"),
)

_NOTES: Final[Mapping[str, str]] = {
    "server.clients": """\
The client `default` is the one of `server.auth_env`; the ids here must differ from it and from each other, and so must
all credentials. Every glob must match an alias.
""",
    "router.tiers": """\
One tier is one server. `replicas` and `max_concurrency = "auto"` are reserved words and refused. A tier whose address
is one of the gateway's own listeners is refused in any spelling. Every tier must be named by a route, or run a `preset`
where there are family routes. A server that is not there does not prevent the start.
""",
    "router.model_routes": """\
Each key is an alias: the model name that clients send. Each value is a tier id.

```toml
[router.model_routes]
llm.primary = "big"               # a dotted key needs no quotes
"qwen3:8b" = "small"              # other characters do
"meta-llama/llama-3" = "big"
```

Aliases are trimmed and lower-cased, and then match `[a-z0-9][a-z0-9._:/@+-]{0,127}`. Two that become equal are an
error, also `"a.b"` beside a nested `a.b`. Only `llm` beside `llm.primary` needs quotes around the dotted one, because
TOML takes the unquoted key for a table.
""",
    "router.family_routes": """\
Each alias of a model family is a table of its own; its tier is decided per request from the
[routing table](workload-routing.md). Tiers take part by their `preset`.

```toml
[router.family_routes.gemma]
family = "gemma4_moe_26b_a4b"
natural = "gemma-k1"
```
""",
}


def reference() -> str:
    """The page, as Markdown."""
    return "\n".join([_INTRO, *(part for section in _SECTIONS for part in _section(*section))])


def _section(header: str, model: type[BaseModel], path: str) -> Iterator[str]:
    yield f"## `{header}`\n"
    if path in _NOTES:
        yield _NOTES[path]
    schema = model.model_json_schema()
    properties = schema.get("properties")
    if not properties:
        return
    nested = {other for _, _, other in _SECTIONS}
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    for name, about in properties.items():
        if f"{path}.{name}" in nested:
            continue
        default = "required" if name in schema.get("required", ()) else _default(about.get("default"))
        yield f"| `{name}` | {_type(about, schema)} | {default} | {_meaning(about)} |"
    yield ""


def _meaning(about: Mapping[str, Any]) -> str:
    text: str = about["description"]
    return text.replace("|", "\\|")


def _default(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{json.dumps(value)}`"


def _type(about: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in about:
        about = schema["$defs"][about["$ref"].rpartition("/")[2]]
    if "anyOf" in about:
        return " or ".join(_type(one, schema) for one in about["anyOf"] if one.get("type") != "null")
    if "const" in about:
        return f"`{json.dumps(about['const'])}`"
    if "enum" in about:
        return ", ".join(f"`{json.dumps(value)}`" for value in about["enum"])
    kind = about.get("type")
    if kind == "array":
        return f"array of {_type(about['items'], schema)}"
    if kind in ("integer", "number"):
        word = "integer" if kind == "integer" else "seconds"
        low = about.get("minimum")
        high = about.get("maximum")
        if kind == "number" or (low, high) == (None, None):
            return word
        return f"{word}, {low} to {high}" if high is not None else f"{word}, at least {low}"
    names = {"string": "string", "boolean": "boolean", "object": "table"}
    pattern = about.get("pattern")
    if pattern == boot_model.ENV_NAME_PATTERN:
        return "name of a variable"
    return names[str(kind)] if pattern is None else f"`{pattern.strip('^$')}`"
