"""Damaged catalog files against the strict reader: ``python -m tests.support.catalog_fuzz SECONDS [SEED]``.

Whatever the bytes are, the reader returns a value or findings, never anything else; and libyaml's parser and PyYAML's
own come to the same end. The gate runs a few thousand cases of one seed.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import yaml

from sndr.cli.table import catalog as catalog_module
from sndr.cli.table.fields import Block, Finding, Sink
from sndr.resources import presets_dir
from tests.support.catalog import FULL, TABLES, render

_BITS = [
    b": ", b"- ", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"!!int ", b"!x ", b"|\n", b">-\n", b"\t", b"\xff", b"\x00",
    b"---\n", b"...\n", b'"', b"'", b"\\x", b"\\u0000", b"? ", b"<<: ", b"null", b"~", b"#", b"%", b"\xc2\x85",
    b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"9" * 30, b".inf", b"1e999", b"\r", b"\n\n", b"@", b"`",
]  # fmt: skip
_FOLDERS = ("models", "hardware", "profiles", "presets", "evidence")


def seeds() -> list[tuple[bytes, Block]]:
    """Return good files and the tables that read them."""
    found = [(render(FULL[file])[0].encode(), table) for file, table in TABLES.items()]
    tables = {file.partition("/")[0]: table for file, table in TABLES.items()}
    for folder in _FOLDERS:
        found += [(path.read_bytes(), tables[folder]) for path in sorted(Path(presets_dir(), folder).glob("*.yaml"))]
    return found


def damage(source: random.Random, files: list[tuple[bytes, Block]]) -> tuple[bytes, Block]:
    """Return one of the files, spoiled in one to four places."""
    text, table = source.choice(files)
    data = bytearray(text)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(data) + 1)
        match source.randrange(4):
            case 0:
                data[at:at] = source.choice(_BITS)
            case 1:
                del data[at : at + source.randint(1, 20)]
            case 2:
                data[at : at + 1] = bytes([source.randrange(256)])
            case _:
                other = source.choice(files)[0]
                start = source.randrange(len(other))
                data[at:at] = other[start : start + source.randint(1, 60)]
    return bytes(data), table


def read(data: bytes, table: Block, parser: object) -> object:
    """Return the value, or the word for how it was refused; anything but the reader's own exception gets out."""
    before, catalog_module._PARSER = catalog_module._PARSER, parser
    try:
        node = catalog_module.parse_yaml(data)
    except catalog_module._BadFileError as error:
        assert error.line >= 1
        assert error.column >= 1
        return "refused"
    finally:
        catalog_module._PARSER = before
    findings: list[Finding] = []
    value = table.read(node, "", Sink("f", findings))
    assert (value is None) == bool(findings), data
    assert len(findings) <= Sink.LIMIT
    return "refused" if value is None else value


def fuzz(seed: int, *, runs: int | None = None, seconds: float | None = None) -> tuple[int, int]:
    """Return how many files were read and how many of them were still good.

    Raises:
        AssertionError: The parsers disagree, or a value came with findings; the bytes are in the message.
    """
    source, files = random.Random(seed), seeds()
    end = None if seconds is None else time.monotonic() + seconds
    done = good = 0
    while (runs is None or done < runs) and (end is None or time.monotonic() < end):
        data, table = damage(source, files)
        value = read(data, table, yaml.cyaml.CParser)
        if done % 10 == 0:  # the slow parser takes ten times as long
            assert read(data, table, None) == value, data
        done += 1
        good += value != "refused"
    return done, good


if __name__ == "__main__":
    read_count, good_count = fuzz(int((sys.argv[2:] or ["0"])[0]), seconds=float(sys.argv[1]))
    print(f"{read_count} files read, {good_count} still good")
