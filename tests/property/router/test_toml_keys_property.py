"""The key locator on documents that Hypothesis writes: every key that tomllib finds has the line it was written on."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sndr.router.wire.toml_keys import KeyPath, locate

BARE = st.text("abcXYZ019_-", min_size=1, max_size=6)
KEYS = st.one_of(BARE, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=6))
FILLER = st.sampled_from(["", "# [not.a.table]\n", "\n\n", "  # x = 1 # \n", "\t\n"])
BLANK = st.sampled_from(["", " ", "\t", "  "])
SCALARS = st.sampled_from([
    "1", "true", "-3.5e3", "1979-05-27T07:32:00Z", "inf", '"plain"', '"a # b = \\"c\\" ]"', "'lit # [x] = '",
    '"""\nlong = 1\n[table]\n"""', "'''\nx = [\n'''", '"""a""b"""', '"""quote""""', "''''q''''", '"\\\\"', "'\\'",
])  # fmt: skip


def quoted(key: str) -> str:
    return json.dumps(key).replace("\x7f", "\\u007f")


class Writer:
    """Writes one document, and where each path went."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.text = ""
        self.lines: dict[KeyPath, int] = {}

    def line(self) -> int:
        return self.text.count("\n") + 1

    def key(self, name: str) -> str:
        is_bare = bool(name) and all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
        return name if is_bare and self.draw(st.booleans()) else quoted(name)

    def mark(self, path: KeyPath) -> None:
        while path and path not in self.lines:
            self.lines[path] = self.line()
            path = path[:-1]

    def pairs(self, at: KeyPath, depth: int, separator: str, ending: str) -> None:
        names = self.draw(st.lists(KEYS, max_size=3, unique=True))
        for number, name in enumerate(names):
            if number:
                self.text += separator
            dotted = [name, *self.draw(st.lists(BARE, max_size=1))]
            self.mark((*at, *dotted))
            dot = f"{self.draw(BLANK)}.{self.draw(BLANK)}"
            self.text += dot.join(self.key(part) for part in dotted) + f"{self.draw(BLANK)}={self.draw(BLANK)}"
            self.value((*at, *dotted), depth)
            self.text += ending

    def value(self, at: KeyPath, depth: int) -> None:
        kind = self.draw(st.sampled_from(["scalar", "array", "inline"] if depth < 3 else ["scalar"]))
        if kind == "scalar":
            self.text += self.draw(SCALARS)
        elif kind == "inline":
            self.text += "{" + self.draw(BLANK)
            self.pairs(at, depth + 1, f"{self.draw(BLANK)},{self.draw(BLANK)}", "")
            self.text += self.draw(BLANK) + "}"
        else:
            self.text += "[" + self.draw(FILLER)
            count = self.draw(st.integers(0, 3))
            for index in range(count):
                self.mark((*at, index))
                self.value((*at, index), depth + 1)
                self.text += self.draw(FILLER) + ("," if index + 1 < count or self.draw(st.booleans()) else "")
                self.text += self.draw(FILLER)
            self.text += "]"


@st.composite
def documents(draw: Any) -> tuple[str, dict[KeyPath, int]]:
    writer = Writer(draw)
    writer.text += draw(FILLER)
    writer.pairs((), 0, draw(FILLER), "\n")
    used = {path[0] for path in writer.lines}
    for name in draw(st.lists(KEYS.filter(lambda key: key not in used), max_size=3, unique=True)):
        is_array = draw(st.booleans())
        for index in range(draw(st.integers(1, 3)) if is_array else 1):
            writer.text += draw(FILLER)
            path: KeyPath = (name, index) if is_array else (name,)
            writer.mark(path)
            header = draw(BLANK) + writer.key(name) + draw(BLANK)
            writer.text += (f"[[{header}]]" if is_array else f"[{header}]") + draw(st.sampled_from(["\n", " # [x]\n"]))
            writer.pairs(path, 0, draw(FILLER), "\n")
    return writer.text, writer.lines


def paths(value: Any, at: KeyPath = ()) -> list[KeyPath]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in items for path in ((*at, key), *paths(item, (*at, key)))]


@settings(max_examples=400, deadline=None)
@given(documents())
def test_every_key_has_the_line_it_was_written_on(written: tuple[str, dict[KeyPath, int]]) -> None:
    text, lines = written
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        locate(text)  # a dotted key met a value that was there before: only that it does not fail
        return
    found = locate(text)
    assert found.lines == lines
    assert set(paths(document)) <= set(found.lines)
    assert found.repeated == []


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("[]{}=.,#\"'\\ \nab1"), max_size=40))
def test_any_text_ends_the_search_without_a_fault(text: str) -> None:
    found = locate(text)
    assert all(1 <= line <= text.count("\n") + 1 for line in found.lines.values())
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(paths(document)) <= set(found.lines)
