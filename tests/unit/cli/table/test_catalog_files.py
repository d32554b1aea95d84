"""What stands where a file should be, and how many files there are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sndr.cli.main import module_root, run
from sndr.cli.table import catalog as catalog_module
from sndr.cli.table.catalog import CatalogError, load_catalog
from sndr.cli.table.compose import compose_all
from sndr.resources import presets_dir
from tests.support.catalog import FULL, full, render, write

REPOSITORY = Path(__file__).parents[4]
FILE = "models/m.yaml"


def _findings(root: Path) -> list[str]:
    with pytest.raises(CatalogError) as caught:
        load_catalog(root)
    return [str(finding).removeprefix(f"{root}/") for finding in caught.value.findings]


def _process(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own: what must not hang is ended by the clock."""
    return subprocess.run(
        [sys.executable, "-m", "sndr.cli", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **more,  # type: ignore[call-overload]
    )


def _emit_as_process(root: Path, **more: object) -> str:
    """Emit; expect exit 1, silence on standard output, no traceback; return what was said."""
    done = _process("routing-table", "--json", "--presets", str(root), **more)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "internal_error" not in done.stderr
    return done.stderr.replace(f"{root}/", "")


def test_a_directory(tmp_path: Path) -> None:
    root = write(tmp_path, full())
    (root / FILE).unlink()
    (root / FILE).mkdir()
    assert _findings(root) == [f"{FILE}:1:1: (file): is a directory; a YAML file is expected"]


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    root = write(tmp_path, full())
    (root / FILE).unlink()
    os.mkfifo(root / FILE)
    assert _emit_as_process(root) == f"{FILE}:1:1: (file): is a FIFO; a YAML file is expected\n"


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_not_read(device: str, tmp_path: Path) -> None:
    root = write(tmp_path, full())
    (root / FILE).unlink()
    (root / FILE).symlink_to(device)
    (line,) = _emit_as_process(root).splitlines()
    assert line.startswith(f"{FILE}:1:1: (file): ")


def test_a_socket(tmp_path: Path) -> None:
    import socket

    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as server:
        root = write(Path(short), full())
        (root / FILE).unlink()
        server.bind(str(root / FILE))
        (line,) = _findings(root)
    assert line.startswith(f"{FILE}:1:1: (file): cannot be read: ")


@pytest.mark.parametrize(
    ("mode", "word"),
    [(0o010000, "a FIFO"), (0o020000, "a device"), (0o060000, "a device"), (0o140000, "not a regular file")],
)
def test_every_kind_has_a_word(mode: int, word: str) -> None:
    assert catalog_module._kind(mode) == word


def test_a_symlink_is_followed_and_a_loop_is_not(tmp_path: Path) -> None:
    root = write(tmp_path / "cat", full())
    (root / FILE).rename(tmp_path / "elsewhere")
    (root / FILE).symlink_to(tmp_path / "elsewhere")
    load_catalog(root)
    (root / FILE).unlink()
    (root / FILE).symlink_to("m.yaml")
    assert _findings(root) == [f"{FILE}:1:1: (file): cannot be read: Too many levels of symbolic links"]
    (root / FILE).unlink()
    (root / FILE).symlink_to("nowhere")
    assert _findings(root) == [f"{FILE}:1:1: (file): cannot be read: No such file or directory"]


def test_a_folder_that_loops(tmp_path: Path) -> None:
    root = write(tmp_path, full())
    for file in (root / "models").iterdir():
        file.unlink()
    (root / "models").rmdir()
    (root / "models").symlink_to("models")
    assert "models:1:1: (file): cannot be read: Too many levels of symbolic links" in _findings(root)


def test_a_file_where_a_folder_belongs(tmp_path: Path) -> None:
    root = write(tmp_path, full())
    for file in (root / "evidence").iterdir():
        file.unlink()
    (root / "evidence").rmdir()
    (root / "evidence").write_text("x")
    assert _findings(root) == ["evidence:1:1: (file): cannot be read: Not a directory"]


def test_a_hundred_megabytes_are_not_read(tmp_path: Path) -> None:
    root = write(tmp_path, full())
    os.truncate(root / FILE, 100_000_000)
    assert _findings(root) == [f"{FILE}:1:1: (file): has 100000000 bytes; at most 1048576 are allowed"]


def test_a_file_that_grows_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\n")
    monkeypatch.setattr(catalog_module.os, "read", lambda fd, size: b"#" * size)
    with pytest.raises(catalog_module._BadFileError, match="is longer than 1048576 bytes"):
        catalog_module._read_file(str(path))


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, size: int) -> bytes:
        raise OSError(5, "Input/output error")

    path = tmp_path / "x.yaml"
    path.write_text("a: 1\n")
    monkeypatch.setattr(catalog_module.os, "read", fail)
    with pytest.raises(catalog_module._BadFileError, match="cannot be read: Input/output error"):
        catalog_module._read_file(str(path))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may enter (pytest's own is for its user alone)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_an_unreadable_file(open_folder: Path) -> None:
    root = write(open_folder / "cat", full())
    os.chmod(root / FILE, 0)
    denied = f"{FILE}:1:1: (file): cannot be read: Permission denied"
    assert denied in _as_another_user(root)
    os.chmod(root / FILE, 0o644)
    os.chmod(root / "models", 0)
    assert "models:1:1: (file): cannot be read: Permission denied" in _as_another_user(root)
    os.chmod(root / "models", 0o755)


def _as_another_user(root: Path) -> list[str]:
    """Return the findings of a user whom file modes bind: root forks one, anybody else is one."""
    if os.geteuid() != 0:
        return _findings(root)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(writer, "\n".join(_findings(root)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(child, 0)
    return lines


def test_the_folder_that_we_are_in_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_catalog().presets


@pytest.mark.parametrize("name", ["m2.yml", "m2.YAML", "m2.json", "Yaml.Yml"])
def test_a_file_that_would_never_be_read(name: str, tmp_path: Path) -> None:
    root = write(tmp_path, {**full(), f"models/{name}": "a: 1\n"})
    (line,) = _findings(root)
    assert line.startswith(f"models/{name}:1:1: (file): is never read; name it ")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("m.yaml", "is never read; allowed here: models, hardware, profiles, presets, routing, evidence, archive"),
        ("rules.json", "is never read; allowed here: models, "),
        ("routing/rule.yaml", "is never read; allowed here: families.yaml, workloads.yaml, rules.yaml, gaps.yaml"),
        ("routing/rules.yml", "is never read; allowed here: families.yaml, "),
        ("archive/m.yaml", "is never read; allowed here: presets, profiles"),
        ("archive/models/m.yaml", "is a folder that is never read"),
        ("profile/m.yaml", "is a folder that is never read"),
        ("models/more/m.yaml", "is a folder that is never read"),
        ("presets/more/m.yml", "is a folder that is never read"),
        ("routing/more/m.yaml", "is a folder that is never read"),
    ],
)
def test_data_where_nothing_reads_it(place: str, said: str, tmp_path: Path) -> None:
    (line,) = _findings(write(tmp_path, {**full(), place: "a: 1\n"}))
    shown = os.path.dirname(place) if "folder" in said else place
    assert line.startswith(f"{shown}:1:1: (file): {said}")


@pytest.mark.parametrize(
    "place", ["notes/read.me", ".git/x.yaml", "models/.old/m.yaml", "routing/.rules.yaml", "README.md"]
)
def test_what_is_not_data_is_left_alone(place: str, tmp_path: Path) -> None:
    load_catalog(write(tmp_path, {**full(), place: "a: 1\n"}))


@pytest.mark.parametrize("name", ["a b.yaml", "-m.yaml", "caf\u00e9.yaml", "x" * 120 + ".yaml"])
def test_a_name_that_is_no_id(name: str, tmp_path: Path) -> None:
    (line,) = _findings(write(tmp_path, {**full(), f"models/{name}": "a: 1\n"}))
    assert line.startswith(f"models/{name}:1:1: (file): the file's name is its id: ")


def test_other_files_are_not_ours(tmp_path: Path) -> None:
    more = {"models/README.md": "x", "models/.m.yaml.swp": "x", "models/m.yaml~": "x", "models/.yaml": "x", "note": "x"}
    load_catalog(write(tmp_path, {**full(), **more}))


def test_an_empty_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(module_root(), ["routing-table", "--presets", str(tmp_path)], "sndr") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        f"{tmp_path}/routing/{name}.yaml:1:1: (file): cannot be read: No such file or directory"
        for name in ("families", "gaps", "rules", "workloads")
    ]
    docs = {file: doc for file, doc in full().items() if file.startswith("routing/")}
    docs["routing/rules.yaml"] = {"rules": []}
    docs["routing/gaps.yaml"] = {"coverage_gaps": []}
    assert _findings(write(tmp_path, docs)) == [
        "presets:1:1: (file): holds no preset (<id>.yaml); a catalog has at least one"
    ]


@pytest.mark.parametrize("what", ["missing", "file"])
def test_no_catalog_at_all(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "cat"
    if what == "file":
        root.write_text("x")
    assert run(module_root(), ["routing-table", "--presets", str(root)], "sndr") == 1
    assert capsys.readouterr().err.startswith(f"{root}:1:1: (file): is not a folder; name the folder that holds")


def test_ids_are_unique_across_the_archive(tmp_path: Path) -> None:
    docs = full()
    docs["archive/presets/quick.yaml"] = docs["archive/presets/old.yaml"]
    root = write(tmp_path, docs)
    line = "archive/presets/quick.yaml:1:1: (file): is also an active preset (presets/quick.yaml); keep one of them"
    assert _findings(root) == [line]
    (root / "archive/presets/quick.yaml").unlink()
    (root / "archive/profiles/fast.yaml").write_text(render(FULL["archive/profiles/older.yaml"])[0])
    load_catalog(root)
    with pytest.raises(CatalogError) as caught:
        load_catalog(root, archive=True)
    assert "is also an active profile" in str(caught.value.findings[0])


def test_hundreds_of_presets_in_order(tmp_path: Path) -> None:
    docs = full()
    text = render(docs["presets/quick.yaml"])[0]
    names = [*(f"q{number:04d}" for number in range(400)), "quick-b"]  # `quick-b.yaml` comes before `quick.yaml`
    more = {f"presets/{name}.yaml": text for name in names}
    catalog = load_catalog(write(tmp_path, {**docs, **more}))
    assert list(catalog.presets) == sorted(["plain", "quick", *names])
    assert len(compose_all(catalog)) == 403


def test_the_shipped_catalog_is_found_and_shown_from_where_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert load_catalog().shown == "presets"
    monkeypatch.chdir("/")
    assert load_catalog().shown in (presets_dir(), presets_dir().lstrip("/"))
    assert load_catalog(presets_dir() + "//").shown == presets_dir()


def test_a_place_in_a_file_that_has_gone(tmp_path: Path) -> None:
    catalog = load_catalog(write(tmp_path, full()))
    place = catalog.place("model", FILE, "requires.min_cuda_capability[1]")
    assert (place.line, place.column, place.stated) == (39, 28, True)
    assert catalog.place("model", FILE, "requires.nothing")[2:] == (36, 1, False)
    assert catalog.place("model", FILE, "gpu[7]").stated is False
    assert catalog.place("model", FILE, "requires.min_cuda_capability[9]").stated is False
    (tmp_path / FILE).unlink()
    assert catalog.place("model", FILE, "title")[2:] == (1, 1, False)


HOSTILE = {
    "unknown keys": "".join(f"key{number}: 1\n" for number in range(60_000)),
    "one key again and again": "title: x\n" * 100_000,
    "a list of words": "title: x\nrequires:\n  gpu_blocklist: [" + ", ".join(f"w{n}" for n in range(100_000)) + "]\n",
    "a list of odd things": "requires:\n  gpu_blocklist:\n" + "  - {a: 1}\n" * 900,
    "odd names": "system_env:\n" + "".join(f"  {number}: x\n" for number in range(60_000)),
    "one long word": "title: " + "x" * 1_000_000 + "\n",
    "questions": "? " * 400_000,
    "braces": "{a: {b: [" * 100,
    "quotes": "title: '" + "''" * 400_000 + "'\n",
    "escapes": 'title: "' + "\\u0041" * 160_000 + '"\n',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_in_a_readable_number_of_lines(name: str, tmp_path: Path) -> None:
    lines = _findings(write(tmp_path, {**full(), FILE: HOSTILE[name]}))
    assert 1 <= len(lines) <= 100
    assert all(len(line) < 700 for line in lines)
    if len(lines) == 100:
        assert lines[-1].endswith("this is fault 100 of the file; the rest of the file was not looked at")


def test_hundreds_of_dangling_pointers_are_all_named(tmp_path: Path) -> None:
    docs = full()
    texts = {}
    for number in range(300):
        docs["presets/quick.yaml"]["card"]["fallback_preset"] = f"nobody-{number}"
        texts[f"presets/q{number:03d}.yaml"] = render(docs["presets/quick.yaml"])[0]
    lines = _findings(write(tmp_path, {**full(), **texts}))
    assert len(lines) == 300
    assert sum("; allowed: " in line for line in lines) == 100
    assert all(": card.fallback_preset: there is no preset 'nobody-" in line for line in lines)


def test_the_empty_path_is_named() -> None:
    with pytest.raises(CatalogError) as caught:
        load_catalog("")
    assert str(caught.value.findings[0]).startswith("(empty path):1:1: (file): is not a folder")
