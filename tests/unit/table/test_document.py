"""JSON documents are read strictly, and each refusal is one line that starts with the name."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sndr.cli.table import document
from sndr.errors import InputError


def test_a_value_is_returned_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(b'{"a": [1, 2.5, null, "\\u00e9"]}')
    assert document.read_json(str(file)) == {"a": [1, 2.5, None, "\u00e9"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "t.json: empty"),
        (b" \n", "t.json: empty"),
        (b"[1e999]", "t.json: the number 1e999 is beyond what a double holds"),
        (b"[-1e999]", "t.json: the number -1e999 is beyond"),
        (b"{", "t.json: not JSON at line 1 column 2: Expecting property name"),
        (b"{} {}", "t.json: not JSON at line 1 column 4: Extra data"),
        (b'{"a":1,"a":2}', "t.json: "),
        (b"[NaN]", "t.json: "),
        (b"[-Infinity]", "t.json: "),
        (b"\xef\xbb\xbf{}", "t.json: starts with a byte order mark"),
        (b'{"\xff":1}', "t.json: not UTF-8 at byte 2"),
        (b"[" * 200_000, "t.json: nested too deep"),
        (b"1" * 5000, "t.json: a number of 5000 digits is longer than any that is read"),
    ],
)
def test_what_is_not_strict_json_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        document.parse_json(data, "t.json")
    assert caught.value.message.startswith(message)
    assert caught.value.code == "json_invalid"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name, why in {
        "none": "No such file",
        ".": "not a file",
        "loop": "Too many levels",
        "a\0b": "embedded null",
    }.items():
        path = str(tmp_path / name)
        with pytest.raises(InputError, match=why) as caught:
            document.read_document(path)
        assert caught.value.message.startswith(path)
    with pytest.raises(InputError, match="not a file"):
        document.read_document("/dev/zero")


def test_a_file_above_the_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_BYTES", 10)
    file = tmp_path / "big"
    file.write_bytes(b" " * 11)
    with pytest.raises(InputError, match="larger than"):
        document.read_document(str(file))


def test_a_pipe_without_a_writer_is_empty_and_one_with_a_writer_is_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert document.read_document(str(fifo)) == b""
    keeps_data = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer_end = os.open(fifo, os.O_WRONLY)
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(document.read_json(str(fifo))))
    thread.start()
    with open(writer_end, "wb") as writer:
        writer.write(b"[1]")
    thread.join(10)
    os.close(keeps_data)
    assert results == [[1]]
