"""The door for the command line: effective configuration, notes, published schema."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sndr.router import configuration
from sndr.router.wire import boot, boot_model
from tests.support.cli import ROOT

TEXT = """
[server]
listen = ["127.0.0.1:8710", "unix:/run/sndr.sock"]
auth_env = "KEY"
usage_path = "usage.db"
[[server.clients]]
id = "team"
auth_env = "TEAM"
aliases = ["llm*"]
max_concurrency = 4
[router]
probe_interval_s = 2.5
[[router.tiers]]
id = "a"
base_url = "http://127.0.0.1:9001/v1"
model = "m\\"1"
extra_body = { top_k = 5, nested = { "odd key" = [1.5, true, "x"] }, "dotted.key" = 1e300 }
params = {}
idle_timeout_s = 0.25
[router.model_routes]
llm.primary = "a"
"Meta/Llama:3" = "a"
"""


def test_the_effective_file_means_the_same() -> None:
    config = boot.parse(TEXT, None)
    again = boot.parse(configuration.effective_toml(config), None)
    assert again.effective == config.effective
    assert again.config_sha256 == config.config_sha256
    assert again.projection == config.projection


def test_the_json_form() -> None:
    config = boot.parse(TEXT, None)
    document = json.loads(configuration.effective_json(config))
    assert document == {"config_sha256": config.config_sha256, "effective": dict(config.effective)}


def test_notes_name_what_is_off() -> None:
    found = configuration.notes(boot.parse(TEXT, None))
    assert any("tier a has no health_path" in note for note in found)
    assert any("operator_auth_env" in note for note in found)
    assert not any("usage_path" in note for note in found)


def test_the_published_schema_is_current() -> None:
    published = (ROOT / "schemas" / "router_config.v1.json").read_text("utf-8")
    assert published == configuration.json_schema(), "write the output of `sndr router check --schema` there"


def test_the_reference_page_is_current_and_names_every_key() -> None:
    page = (ROOT / "docs" / "boot-reference.md").read_text("utf-8")
    assert page == configuration.reference(), "write the output of `sndr router check --reference` there"
    for model in (boot.Server, boot.Router, boot_model.TierKeys, boot.Client, boot_model.Cors, boot_model.PurposeModel):
        for key in model.model_fields:
            assert f"| `{key}` |" in page or f".{key}" in page


def schema_accepts(text: str) -> bool:
    schema: dict[str, Any] = json.loads(configuration.json_schema())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema).is_valid(tomllib.loads(text))


def test_the_schema_accepts_what_is_accepted_nested_routes_too() -> None:
    assert schema_accepts(TEXT)
    assert schema_accepts(TEXT + "[router.model_routes.deep.er]\nx = 'a'\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("idle_timeout_s", "idle_timeout"),
        ("0.25", '"0.25"'),
        ("0.25", "0"),
        ('id = "a"', 'id = "A"'),
        ("max_concurrency = 4", "max_concurrency = true"),
        ('auth_env = "KEY"', 'auth_env = "sk-1"'),
        ('llm.primary = "a"', "llm.primary = 1"),
    ],
)
def test_the_schema_refuses_what_is_refused(old: str, new: str) -> None:
    changed = TEXT.replace(old, new, 1)
    assert not schema_accepts(changed)
    with pytest.raises(boot.BootError):
        boot.parse(changed, None)
