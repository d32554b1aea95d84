"""``routing-table`` as a user runs it: what goes where, what it exits with, what it leaves on disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import CONSOLE, MODULE, ROOT, environment, refused, run_cli

SUMMARY = r"\d+ presets, \d+ rules?, \d+ gaps?"


def test_bare_and_json_print_the_same_table() -> None:
    env = environment(SOURCE_DATE_EPOCH="1750000000")
    bare, as_json = run_cli("routing-table", env=env), run_cli("routing-table", "--json", env=env)
    assert (bare.returncode, bare.stderr) == (0, "")
    assert bare.stdout == as_json.stdout
    assert bare.stdout.isascii()
    assert bare.stdout.endswith("}\n")
    assert len(bare.stdout) < 50 * 1024
    table = json.loads(bare.stdout)
    assert table["generated_at"] == "2025-06-15T15:06:40Z"
    assert bare.stdout == json.dumps(table, indent=2) + "\n"


def test_it_prints_from_any_folder(tmp_path: Path) -> None:
    assert json.loads(run_cli("routing-table", cwd=tmp_path).stdout)["schema_version"] == 1


def test_printing_imports_nothing_that_only_other_verbs_need() -> None:
    code = (
        "import sys; sys.argv[1:] = ['routing-table', '--json']\n"
        "from sndr.cli.__main__ import module\n"
        "try: module()\n"
        "finally: print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = run_cli(entry=(MODULE[0], "-c", code))
    loaded = set(done.stderr.split())
    assert "yaml" in loaded
    assert not loaded & {"jsonschema", "httpx", "pydantic", "filelock", "httptools", "msgspec", "prometheus_client"}
    code = code.replace("name.split('.')[0]", "name")
    loaded = set(run_cli(entry=(MODULE[0], "-c", code)).stderr.split())
    assert "sndr.cli.table.catalog" in loaded
    assert not {name for name in loaded if name.startswith("sndr.router")}


def test_validate_says_so_on_standard_error_only() -> None:
    for args in (["--validate"], ["--validate", "--json"]):
        done = run_cli("routing-table", *args)
        assert (done.returncode, done.stdout) == (0, "")
        assert re.fullmatch(rf"routing-table: valid: {SUMMARY}\n", done.stderr)


def test_the_pin_is_stated_and_empty_is_null() -> None:
    pins = {"0.11.2": "0.11.2", "": None}
    for pin, stated in pins.items():
        assert json.loads(run_cli("routing-table", "--vllm-pin", pin).stdout)["vllm_pin"] == stated
    assert json.loads(run_cli("routing-table").stdout)["vllm_pin"] is None


def test_out_writes_what_would_be_printed(tmp_path: Path) -> None:
    env = environment(SOURCE_DATE_EPOCH="0")
    file = tmp_path / "routing.json"
    for args in (["--out"], ["--json", "--out"], ["--validate", "--out"]):
        file.unlink(missing_ok=True)
        done = run_cli("routing-table", *args, str(file), env=env)
        assert (done.returncode, done.stdout) == (0, "")
        assert re.fullmatch(rf"routing-table: wrote {file}: {SUMMARY}\n", done.stderr)
        assert file.read_text("ascii") == run_cli("routing-table", env=env).stdout
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert sorted(os.listdir(tmp_path)) == ["routing.json", "routing.json.lock"]


def test_out_follows_links_and_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for link, name in (("a", "there"), ("b", "not-yet")):
        target = tmp_path / "real" / name
        if name == "there":
            target.write_text("old")
            target.chmod(0o600)
        (tmp_path / link).symlink_to(f"real/{name}")
        assert run_cli("routing-table", "--out", str(tmp_path / link)).returncode == 0
        assert (tmp_path / link).is_symlink()
        assert json.loads(target.read_text())["schema_version"] == 1
    assert stat.S_IMODE((tmp_path / "real" / "there").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "args",
    [
        ["--out", ""],
        ["--out="],
        ["--out"],
        ["--out", "-"],
        ["--presets", ""],
        ["--nope"],
        ["--vllm-pin", "1\n2"],
        ["--vllm-pin", "1" * 201],
        ["--vllm-pin", "\udcff"],
    ],
)
def test_usage_errors(args: list[str]) -> None:
    assert refused(run_cli("routing-table", *args), 2)[0].startswith("sndr routing-table: usage: ")


def test_options_before_a_verb_and_unknown_verbs_are_usage_errors() -> None:
    for args in (["--json", "check", "x"], ["chek"], ["--validate", "diff", "a", "b"]):
        assert refused(run_cli("routing-table", *args), 2)[0].startswith("sndr routing-table: usage: ")
    assert "did you mean check?" in run_cli("routing-table", "chek").stderr


def test_a_device_is_refused_and_stays(tmp_path: Path) -> None:
    for device in ("/dev/full", "/dev/null"):
        said = refused(run_cli("routing-table", "--out", device), 1)
        assert said == [f"sndr routing-table: out_refused: {device}: a device, not a regular file; it is left as it is"]
        assert stat.S_ISCHR(os.stat(device).st_mode)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "a FIFO" in refused(run_cli("routing-table", "--out", str(fifo)), 1)[0]
    assert stat.S_ISFIFO(os.stat(fifo).st_mode)


def test_a_target_inside_the_catalog_is_refused(tmp_path: Path) -> None:
    catalog = tmp_path / "mine"
    shutil.copytree(ROOT / "presets", catalog)
    before = sorted(catalog.rglob("*"))
    for given in ("mine/routing.json", "mine/models/routing.json"):
        said = refused(run_cli("routing-table", "--presets", "mine", "--out", given, cwd=tmp_path), 1)
        assert said[0] == f"sndr routing-table: out_refused: {given}: inside the catalog mine; write it elsewhere"
    assert sorted(catalog.rglob("*")) == before


def test_a_broken_catalog_writes_nothing_and_lists_everything(tmp_path: Path) -> None:
    catalog = tmp_path / "presets"
    shutil.copytree(ROOT / "presets", catalog)
    (catalog / "models" / "bad.yaml").write_text("title: [\n")
    (catalog / "hardware" / "bad.yaml").write_text("x: 1\nx: 2\n")
    file = tmp_path / "routing.json"
    file.write_text("old")
    for args in ([], ["--validate"], ["--out", str(file)]):
        done = run_cli("routing-table", "--presets", str(catalog), *args)
        assert (done.returncode, done.stdout) == (1, "")
        said = done.stderr.splitlines()
        assert all(re.match(rf"{catalog}/(models|hardware)/bad\.yaml:\d+:\d+: \S+: ", line) for line in said), said
        assert {line.split("/")[-2] for line in said} == {"models", "hardware"}
    assert file.read_text() == "old"


def test_check_takes_a_file_and_standard_input(tmp_path: Path) -> None:
    text = run_cli("routing-table").stdout
    file = tmp_path / "t.json"
    file.write_text(text)
    done = run_cli("routing-table", "check", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(rf"{file}: valid: {SUMMARY}\n", done.stderr)
    done = run_cli("routing-table", "check", "-", stdin=text)
    assert re.fullmatch(rf"standard input: valid: {SUMMARY}\n", done.stderr)


def test_check_lists_every_fault_with_its_pointer(tmp_path: Path) -> None:
    table = json.loads(run_cli("routing-table").stdout)
    table["presets"][0]["spec_decode_K"] = 0
    table["routing_rules"][0]["preset_key"] = "nobody"
    table["routing_rules"][0]["evidence"] = "see presets/evidence/none.yaml"
    table["fallback"]["default_K"] = 4
    file = tmp_path / "t.json"
    file.write_text(json.dumps(table))
    done = run_cli("routing-table", "check", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    said = done.stderr.splitlines()
    pointers = [line.removeprefix(f"{file}: ").split(": ")[0] for line in said]
    assert all(line.startswith(f"{file}: /") for line in said)
    assert {
        "/presets/0/spec_decode_K",
        "/routing_rules/0/preset_key",
        "/routing_rules/0/evidence",
        "/fallback/default_K",
    } <= set(pointers)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "json_invalid"),
        (b"\xff", "json_invalid"),
        (b'{"a":1,"a":1}', "json_invalid"),
        (b"[" * 100_000, "json_invalid"),
        (b"[1e999", "json_invalid"),
    ],
)
def test_check_refuses_what_is_not_json(data: bytes, code: str) -> None:
    said = refused(run_cli("routing-table", "check", "-", stdin=data), 1)
    assert said[0].startswith(f"sndr routing-table: {code}: standard input: ")


@pytest.mark.parametrize("data", [b"null", b"[]", b"1e99", b'"x"', b"{}", b'{"schema_version":1,"presets":{}}'])
def test_check_finds_faults_in_any_json(data: bytes) -> None:
    done = run_cli("routing-table", "check", "-", stdin=data)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr
    assert all(line.startswith("standard input: /") for line in done.stderr.splitlines())


@pytest.mark.parametrize("epoch", ["-1", "1.5", "soon", " 1", "+1", "1_0", "\u0661", "9" * 40, "253402300800"])
def test_an_odd_source_date_epoch_is_an_error(epoch: str) -> None:
    said = refused(run_cli("routing-table", env=environment(SOURCE_DATE_EPOCH=epoch)), 1)
    assert said[0].startswith("sndr routing-table: source_date_epoch_invalid: SOURCE_DATE_EPOCH is ")


def test_two_emissions_of_one_moment_are_identical_whatever_the_hash_seed() -> None:
    texts = {
        run_cli("routing-table", env=environment(SOURCE_DATE_EPOCH="1", PYTHONHASHSEED=seed)).stdout
        for seed in ("0", "1", "2")
    }
    assert len(texts) == 1


def test_the_content_hash_ignores_who_and_when() -> None:
    first, second = (
        json.loads(run_cli("routing-table", env=environment(SOURCE_DATE_EPOCH=epoch)).stdout) for epoch in ("1", "2")
    )
    assert first["generated_at"] != second["generated_at"]
    assert first["content_sha256"] == second["content_sha256"]


def test_the_console_script_points_elsewhere() -> None:
    for args in (["routing-table"], ["routing-table", "--json"], ["routing-table", "--help"]):
        said = refused(run_cli(*args, entry=CONSOLE), 2)
        assert said == ["sndr: usage: routing-table is not a verb of sndr; run: python3 -m sndr.cli routing-table"]
    assert "routing-table" not in run_cli("--help", entry=CONSOLE).stdout
    assert "routing-table" in run_cli("--help").stdout


def test_names_with_odd_bytes_stay_on_one_ascii_line(tmp_path: Path) -> None:
    for name in (b"caf\xc3\xa9\n\x1b[31m", b"\xff\xfe"):
        path = os.fsencode(tmp_path) + b"/" + name + b"/x"
        done = subprocess.run(
            [*MODULE, "routing-table", "--out", path], env=environment(), capture_output=True, text=True, timeout=60
        )
        refused(done, 1)
