"""From a catalog to a table, its judges, and the command around them, inside this process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sndr.cli.main import module_root, run
from sndr.cli.table import validate as validate_module
from sndr.cli.table.build import build_table, generated_at
from sndr.cli.table.catalog import CatalogError, load_catalog
from sndr.cli.table.validate import hash_remark, resolves_in, table_findings
from sndr.errors import InputError
from sndr.resources import presets_dir
from tests.support.cli import ROOT


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    return build_table(load_catalog(presets_dir()), "1.2.3")


def _run(*args: str) -> int:
    return run(module_root(), ["routing-table", *args], "x")


def test_the_time_of_emission(monkeypatch: pytest.MonkeyPatch) -> None:
    for stated, shown in {"0": "1970-01-01T00:00:00Z", "253402300799": "9999-12-31T23:59:59Z"}.items():
        monkeypatch.setenv("SOURCE_DATE_EPOCH", stated)
        assert generated_at() == shown
    for stated in ("253402300800", "x", "\u0663", "1.0", "1" * 5000):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", stated)
        with pytest.raises(InputError, match="allowed: whole seconds since 1970"):
            generated_at()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "")
    assert generated_at() > "2024"


def test_layers_that_do_not_go_together_emit_nothing(tmp_path: Path) -> None:
    catalog = tmp_path / "presets"
    shutil.copytree(ROOT / "presets", catalog)
    file = catalog / "hardware" / "a5000-2x-24gbvram-16cpu-128gbram.yaml"
    file.write_text(file.read_text().replace("n_gpus: 2", "n_gpus: 1"))
    with pytest.raises(CatalogError) as caught:
        build_table(load_catalog(str(catalog)))
    assert len(caught.value.findings) > 1
    assert all("GPU" in str(finding) or "MiB" in str(finding) for finding in caught.value.findings)


def test_an_evidence_path_is_a_file_of_the_catalog(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "x.yaml").write_text("")
    (tmp_path.parent / "outside.yaml").write_text("")
    assert resolves_in(str(tmp_path), "presets/evidence/x.yaml")
    for path in ("evidence/x.yaml", "presets/evidence", "presets/../outside.yaml", "presets/", "/etc/passwd"):
        assert not resolves_in(str(tmp_path), path)


def test_the_published_schema_is_asked_when_the_library_is_content(
    shipped: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate_module, "check_structure", lambda table: [])
    broken = {**shipped, "presets": [{**shipped["presets"][0], "max_num_seqs": 0}], "a/b~c": 1}
    findings = [finding for finding in table_findings(broken, presets_dir()) if finding.code == "schema"]
    assert [str(finding) for finding in findings] == ["/presets/0/max_num_seqs: 0 is less than the minimum of 1"]
    long = {**shipped, "vllm_pin": ["x" * 1000]}
    (finding,) = (finding for finding in table_findings(long, presets_dir()) if finding.code == "schema")
    assert len(finding.message) < 250


def test_a_table_that_was_changed_after_its_emission_is_told(
    shipped: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hash_remark(shipped) is None
    assert hash_remark({key: value for key, value in shipped.items() if key != "content_sha256"}) is None
    file = tmp_path / "t.json"
    file.write_text(json.dumps({**shipped, "site": "a member of ours"}))
    assert _run("check", str(file)) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{file}: /content_sha256: the content's hash is ")
    assert second.startswith(f"{file}: valid: ")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--vllm-pin", "1") == 0
    text, said = capsys.readouterr()
    assert (json.loads(text)["vllm_pin"], said) == ("1", "")
    assert _run("--validate") == 0
    assert capsys.readouterr().out == ""
    file = tmp_path / "t.json"
    assert _run("--out", str(file)) == 0
    assert _run("check", str(file)) == 0
    assert capsys.readouterr().out == ""
    file.write_text(file.read_text().replace('"default_K": 1', '"default_K": 2'))
    assert _run("check", str(file)) == 1
    out, said = capsys.readouterr()
    assert out == ""
    assert f"{file}: /fallback/default_K: " in said
    for args in (["--out", ""], ["--out", "-"], ["--vllm-pin", "\udcff"], ["--json", "check", str(file)]):
        assert _run(*args) == 2
    assert capsys.readouterr().err.count("\n") == 4


def test_one_of_something_is_not_a_plural(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--validate") == 0
    assert ", 1 rule, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "member", "value"),
    [
        ("length_detection", "short_threshold_tokens", 5),
        ("fallback", "default_K", 2),
        ("workload_class_detection", "evaluation_order", [1]),
    ],
)
def test_a_fault_that_structure_and_meaning_both_see_is_said_once(
    shipped: dict[str, Any], section: str, member: str, value: object
) -> None:
    table = {**shipped, section: {**shipped[section], member: value}}
    pointers = [finding.pointer for finding in table_findings(table, presets_dir())]
    assert pointers.count(f"/{section}/{member}") == 1


def test_a_class_whose_priority_is_no_number_is_said_once(shipped: dict[str, Any]) -> None:
    table = json.loads(json.dumps(shipped))
    table["workload_class_detection"]["classes"]["tool_call"]["priority"] = "high"
    assert [finding.pointer for finding in table_findings(table, presets_dir())] == [
        "/workload_class_detection/classes/tool_call/priority"
    ]
