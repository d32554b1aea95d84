"""Where each key of a TOML document stands: tomllib parses values but keeps no positions.

The scanner walks the text once and records, for every key path, the line on which it first appears. It does not judge
the document (tomllib does): on text that is not TOML it stops where it no longer understands and keeps what it found.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from dataclasses import dataclass, field
from typing import Final

__all__ = ["KeyLines", "KeyPath", "Repeated", "locate", "show"]

KeyPath = tuple[str | int, ...]
"""A path such as ``("router", "tiers", 0, "base_url")``; integers index arrays and arrays of tables."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_BLANK: Final = re.compile(r"[ \t]*")
_FILLER: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SCALAR: Final = re.compile(r"[^,\]}\r\n#]*")
_BASIC: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL: Final = re.compile(r"'[^'\n]*'")
_LONG_BASIC: Final = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', re.DOTALL)
_LONG_LITERAL: Final = re.compile(r"'''.*?'{3,5}(?!')", re.DOTALL)
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass(frozen=True, slots=True)
class Repeated:
    """A key or table that the document defines a second time."""

    path: KeyPath
    line: int
    first_line: int


@dataclass(slots=True)
class KeyLines:
    """Lines (from 1) of the key paths of one document, and the paths that are defined twice."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    repeated: list[Repeated] = field(default_factory=list)

    def line_of(self, path: KeyPath) -> int:
        """Line of `path`, or of the nearest enclosing key when the text does not have it (1 for the document)."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[:-1]
        return 1


def show(path: KeyPath) -> str:
    """The path as people write it: ``router.tiers[0].base_url``; odd keys are quoted."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            name = part if _PLAIN_KEY.match(part) else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
            out += f".{name}" if out else name
    return out


def locate(text: str) -> KeyLines:
    """Record the line of every key path in `text`."""
    scanner = _Scanner(text)
    with contextlib.suppress(_NotUnderstoodError, RecursionError):  # tomllib reports the fault
        scanner.document()
    return scanner.found


class _NotUnderstoodError(Exception):
    pass


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.found = KeyLines()
        self._line = 1
        self._counted = 0
        self._values: set[KeyPath] = set()
        self._headers: set[KeyPath] = set()
        self._array_sizes: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self._skip(_FILLER)
            if self.pos >= len(self.text):
                return
            if self.text.startswith("[[", self.pos):
                table = self._array_header()
            elif self.text[self.pos] == "[":
                table = self._table_header()
            else:
                self._pair(table)

    # -- headers ------------------------------------------------------------------------------------------------------

    def _resolve(self, keys: list[str]) -> KeyPath:
        """Names to a path: an array of tables on the way means its newest element."""
        path: KeyPath = ()
        for key in keys:
            path = (*path, key)
            if path in self._array_sizes:
                path = (*path, self._array_sizes[path] - 1)
        return path

    def _table_header(self) -> KeyPath:
        line = self._line_here()
        self.pos += 1
        keys = self._keys()
        self._expect("]")
        path = (*self._resolve(keys[:-1]), keys[-1])
        if path in self._headers or path in self._values:
            self.found.repeated.append(Repeated(path, line, self.found.line_of(path)))
        self._headers.add(path)
        self._mark(path, line)
        return path

    def _array_header(self) -> KeyPath:
        line = self._line_here()
        self.pos += 2
        keys = self._keys()
        self._expect("]")
        self._expect("]")
        array = (*self._resolve(keys[:-1]), keys[-1])
        index = self._array_sizes.get(array, 0)
        self._array_sizes[array] = index + 1
        path = (*array, index)
        self._mark(path, line)
        return path

    # -- pairs and values ---------------------------------------------------------------------------------------------

    def _pair(self, table: KeyPath) -> None:
        line = self._line_here()
        path = (*table, *self._keys())
        if path in self._values or path in self._headers:
            self.found.repeated.append(Repeated(path, line, self.found.line_of(path)))
        self._values.add(path)
        self._mark(path, line)
        self._expect("=")
        self._skip(_BLANK)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        char = self.text[self.pos : self.pos + 1]
        if char == "[":
            self._array(path)
        elif char == "{":
            self._inline_table(path)
        elif char in ('"', "'"):
            self._string()
        elif not self._skip(_SCALAR).strip():
            raise _NotUnderstoodError

    def _array(self, path: KeyPath) -> None:
        self.pos += 1
        index = 0
        while True:
            self._skip(_FILLER)
            if self._take("]"):
                return
            self._mark((*path, index), self._line_here())
            self._value((*path, index))
            index += 1
            self._skip(_FILLER)
            if not self._take(","):
                self._expect("]")
                return

    def _inline_table(self, path: KeyPath) -> None:
        self.pos += 1
        self._skip(_FILLER)
        while not self._take("}"):
            self._pair(path)
            self._skip(_FILLER)
            if not self._take(","):
                self._expect("}")
                return
            self._skip(_FILLER)

    def _string(self) -> str:
        for opening, pattern in (('"""', _LONG_BASIC), ("'''", _LONG_LITERAL), ('"', _BASIC), ("'", _LITERAL)):
            if self.text.startswith(opening, self.pos):
                match = pattern.match(self.text, self.pos)
                if match is None:
                    break
                self.pos = match.end()
                return match.group()
        raise _NotUnderstoodError

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._skip(_BLANK)
            bare = _BARE.match(self.text, self.pos)
            if bare:
                self.pos = bare.end()
                keys.append(bare.group())
            else:
                keys.append(_unquote(self._string()))
            self._skip(_BLANK)
            if not self._take("."):
                return keys

    # -- primitives ---------------------------------------------------------------------------------------------------

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.pos)
        if match is None:
            raise _NotUnderstoodError
        self.pos = match.end()
        return match.group()

    def _take(self, char: str) -> bool:
        if self.text.startswith(char, self.pos):
            self.pos += 1
            return True
        return False

    def _expect(self, char: str) -> None:
        self._skip(_BLANK)
        if not self._take(char):
            raise _NotUnderstoodError

    def _line_here(self) -> int:
        self._line += self.text.count("\n", self._counted, self.pos)
        self._counted = self.pos
        return self._line

    def _mark(self, path: KeyPath, line: int) -> None:
        while path and path not in self.found.lines:
            self.found.lines[path] = line
            path = path[:-1]


def _unquote(token: str) -> str:
    try:
        value = tomllib.loads(f"x = {token}")["x"]
    except tomllib.TOMLDecodeError as exc:
        raise _NotUnderstoodError from exc
    assert isinstance(value, str)
    return value
