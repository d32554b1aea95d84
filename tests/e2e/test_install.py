"""A wheel, an editable install and the checkout all find the catalog and the schemas, and print the same table."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.cli import ROOT, run_cli

_EPOCH = {"SOURCE_DATE_EPOCH": "1750000000"}


def _clean_environment(**more: str) -> dict[str, str]:
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    return {**{key: value for key, value in os.environ.items() if key not in dropped}, **more}


def _run(*args: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(arg) for arg in args], cwd=cwd, env=_clean_environment(**_EPOCH), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip
    assert done.returncode == code, f"{args}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def _build(kind: str, source: Path, folder: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=source)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def _environment(folder: Path, *install: str | Path) -> Path:
    """Make an empty environment that sees this one's dependencies but not its sndr, and install into it offline."""
    _run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q")
    _run(*pip, "--no-deps", "--no-index", "--no-build-isolation", *install, cwd=folder.parent)
    return folder / "bin"


def _check(bin_folder: Path, cwd: Path, package: Path) -> None:
    python = bin_folder / "python"
    where = _run(python, "-c", "import sndr; print(sndr.__file__)", cwd=cwd).stdout.strip()
    assert Path(where) == package / "__init__.py"
    printed = _run(python, "-m", "sndr.cli", "routing-table", "--json", cwd=cwd).stdout
    assert printed == run_cli("routing-table", env={**os.environ, **_EPOCH}, cwd=ROOT).stdout
    _run(python, "-m", "sndr.cli", "routing-table", "--validate", "--out", "routing.json", cwd=cwd)
    assert (cwd / "routing.json").read_text() == printed
    _run(python, "-m", "sndr.cli", "routing-table", "check", "routing.json", cwd=cwd)
    refused = _run(bin_folder / "sndr", "routing-table", cwd=cwd, code=2)
    assert "python3 -m sndr.cli routing-table" in refused.stderr
    assert _run(bin_folder / "sndr", "--version", cwd=cwd).stdout.startswith("sndr ")
    code = "import sndr.cli.schemas as s; print(s.table_schema()['$id'])"
    assert _run(python, "-c", code, cwd=cwd).stdout == "urn:sndr:routing-table:v1\n"


def test_a_wheel_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    bin_folder = _environment(tmp_path / "venv", wheel)
    (tmp_path / "elsewhere").mkdir()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    package = tmp_path / "venv" / "lib" / version / "site-packages" / "sndr"
    _check(bin_folder, tmp_path / "elsewhere", package)
    legacy = package / "cli" / "legacy" / "routing_schema.json"
    assert legacy.read_bytes() == (package / "_data" / "schemas" / "routing_schema.json").read_bytes()


def test_an_editable_install_reads_the_checkout(tmp_path: Path) -> None:
    bin_folder = _environment(tmp_path / "venv", "-e", ROOT)
    (tmp_path / "elsewhere").mkdir()
    _check(bin_folder, tmp_path / "elsewhere", ROOT / "sndr")
    code = "import sndr.resources as r; print(r.presets_dir(), r.schemas_dir())"
    found = _run(bin_folder / "python", "-c", code, cwd=tmp_path).stdout.split()
    assert found == [str(ROOT / "presets"), str(ROOT / "schemas")]


def _tracked(*folders: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_the_catalog_and_the_schemas_and_nothing_else(wheel: Path) -> None:
    expected = _tracked("sndr") | {f"sndr/_data/{name}" for name in _tracked("presets", "schemas")}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert held == expected
        for name in held:
            source = ROOT / name.removeprefix("sndr/_data/")
            assert archive.read(name) == source.read_bytes(), name


def test_a_wheel_made_from_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    archive = _build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # an argument since Python 3.11.4
        tar.extractall(tmp_path)
    (source,) = tmp_path.glob("sndr-*")
    assert {"tests", "docs", ".ci", "README.md", "LICENSE"} <= {path.name for path in source.iterdir()}
    second = _build("wheel", source, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(second) as two:
        assert sorted(one.namelist()) == sorted(two.namelist())
        assert all(one.read(name) == two.read(name) for name in one.namelist())
