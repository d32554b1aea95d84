"""Which file ``--out`` means, and what it refuses before anything else happens."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sndr.cli.table.target import Target, resolve_target, write_target
from sndr.errors import InputError


def test_links_are_followed_also_to_a_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "there.json").write_text("old")
    for name in ("there.json", "not-yet.json"):
        link = tmp_path / f"link-{name}"
        link.symlink_to(real / name)
        second = tmp_path / f"second-{name}"
        second.symlink_to(link.name)
        for given in (link, second):
            target = resolve_target(str(given), "/nowhere")
            assert (target.given, target.path) == (str(given), str(real / name))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("fifo", "a FIFO, not a regular file; it is left as it is"),
        ("folder", "a folder, not a regular file; it is left as it is"),
        ("socket", "a socket, not a regular file; it is left as it is"),
        ("link to a device", "a device, not a regular file; it is left as it is"),
        ("loop", "a symbolic link that leads nowhere"),
        ("missing folder", "there is no folder"),
        ("file as folder", "Not a directory"),
        ("final slash", "a folder's name"),
        ("nul", "null"),
    ],
)
def test_what_is_not_a_regular_file_is_refused(tmp_path: Path, make: str, why: str) -> None:
    given = str(tmp_path / "x")
    match make:
        case "fifo":
            os.mkfifo(given)
        case "folder":
            os.mkdir(given)
        case "socket":
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(given)
        case "link to a device":
            os.symlink("/dev/full", given)
        case "loop":
            os.symlink("x", given)
        case "missing folder":
            given += "/y"
        case "file as folder":
            Path(given).write_text("")
            given += "/y"
        case "final slash":
            given += "/"
        case "nul":
            given += "\0"
    with pytest.raises(InputError) as caught:
        resolve_target(given, "/nowhere")
    assert caught.value.code == "out_refused"
    assert caught.value.message.startswith(f"{given}: ")
    assert why in caught.value.message


def test_a_file_inside_the_catalog_is_refused_under_any_name(tmp_path: Path) -> None:
    catalog = tmp_path / "presets"
    (catalog / "deep").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(catalog)
    (tmp_path / "file").symlink_to(catalog / "deep" / "t.json")
    for given in ("presets/t.json", "presets/deep/t.json", "alias/deep/t.json", "presets/../presets/t.json", "file"):
        with pytest.raises(InputError, match="inside the catalog"):
            resolve_target(str(tmp_path / given), str(catalog))
    assert resolve_target(str(tmp_path / "t.json"), str(catalog)).path == str(tmp_path / "t.json")


def test_a_lock_that_cannot_be_made_is_said_at_once_and_not_taken_for_held() -> None:
    """/proc refuses new files with "no such file", which the lock's library takes for a reason to wait."""
    with pytest.raises(InputError) as caught:
        write_target(Target("/proc/sndr.json", "/proc/sndr.json"), b"{}")
    assert caught.value.code == "out_failed"
    assert (
        caught.value.message == "/proc/sndr.json: /proc/sndr.json.lock: No such file or directory; nothing was changed"
    )


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    target = resolve_target(str(tmp_path / "t.json"), "/nowhere")
    (tmp_path / "t.json.lock").symlink_to("elsewhere")
    with pytest.raises(InputError, match="its lock") as caught:
        write_target(target, b"{}")
    assert caught.value.code == "out_refused"
    assert sorted(os.listdir(tmp_path)) == ["t.json.lock"]
