"""Typed readers over YAML nodes: a layer's fields are a table of these.

YAML's own types are not used. A node keeps its text and its place; the field that it stands in says what the text may
be. So ``no``, ``010``, ``1:30`` or ``2026-06-19`` in a text field are those very characters, and the same words in a
number field are an error instead of a surprise.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = [
    "Block",
    "Bool",
    "Capability",
    "Choice",
    "Date",
    "Field",
    "Finding",
    "Int",
    "ListOf",
    "MapOf",
    "Node",
    "Number",
    "Pointer",
    "Prose",
    "Reader",
    "Sink",
    "Text",
    "hint",
    "near",
]

SCALAR, SEQUENCE, MAPPING = "scalar", "sequence", "mapping"
_NAMES = {SCALAR: "a single value", SEQUENCE: "a list", MAPPING: "a mapping"}
_OTHER_NULLS = ("~", "Null", "NULL")
_INT = re.compile(r"(?:0|-?[1-9][0-9]*)\Z", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?\Z", re.ASCII)
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})\Z", re.ASCII)


class Node:
    """One YAML node.

    Attributes:
        kind: ``scalar``, ``sequence`` or ``mapping``.
        value: The text of a scalar, the nodes of a sequence, the (key, value) nodes of a mapping in file order.
        plain: A scalar without quotes; only such a one can be null, a number or a truth value.
        line: Counted from 1.
        column: Counted from 1.
    """

    __slots__ = ("column", "kind", "line", "plain", "value")

    def __init__(self, kind: str, value: Any, plain: bool, line: int, column: int) -> None:
        self.kind = kind
        self.value = value
        self.plain = plain
        self.line = line
        self.column = column

    def is_null(self) -> bool:
        """Tell whether this is the plain word null."""
        return self.plain and self.value == "null"


class Finding(NamedTuple):
    """One fault of the catalog, at its place.

    Attributes:
        file: As shown to the reader: the catalog's folder as it was named, then the path inside it.
        line: Counted from 1.
        column: Counted from 1.
        path: Dotted key path, list places in brackets; ``(file)`` or ``(document)`` for the whole of it.
        message: What is wrong; what is allowed.
    """

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.path}: {self.message}"


class Sink:
    """Collects the findings of one file, up to a number that a person reads.

    Attributes:
        full: There are that many; readers of many items stop (each unknown word is compared with the known ones, so a
            hostile file of a hundred thousand would take minutes).
    """

    __slots__ = ("file", "findings", "full", "start")
    LIMIT = 100

    def __init__(self, file: str, findings: list[Finding]) -> None:
        self.file = file
        self.findings = findings
        self.start = len(findings)
        self.full = False

    def add(self, node: Node, path: str, message: str) -> None:
        """Record a fault at a node."""
        if self.full:
            return
        self.full = len(self.findings) - self.start >= self.LIMIT - 1
        if self.full:
            message = f"this is fault {self.LIMIT} of the file; the rest of the file was not looked at"
        self.findings.append(Finding(self.file, node.line, node.column, path or "(document)", message))


class Reader(Protocol):
    """Turns a node into a value, or records why not and returns None."""

    def read(self, node: Node, path: str, sink: Sink) -> Any:
        """Return the value of `node`."""
        ...

    def describe(self) -> str:
        """Return what is allowed, as the end of a sentence."""
        ...


def near(word: str, words: Iterable[str]) -> str | None:
    """Return the known word that looks most like `word`, if one does."""
    import difflib  # only a wrong word pays for it

    found = difflib.get_close_matches(word, list(words), n=1)
    return found[0] if found else None


def hint(word: str, words: Sequence[str]) -> str:
    """Return what is allowed, and the near word if there is one: the end of a finding's sentence."""
    shown = list(words)
    listed = ", ".join(shown[:20]) + (f", ... ({len(shown)} in all)" if len(shown) > 20 else "")
    close = near(word, shown)
    return f"allowed: {listed or 'none'}" + (f" (did you mean {close}?)" if close else "")


def _quote(text: str) -> str:
    cut = text if len(text) <= 60 else text[:57] + "..."
    return "'" + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut) + "'"


def _got(node: Node) -> str:
    return "no value" if node.plain and node.value == "" else _NAMES[node.kind]


def _scalar(node: Node, path: str, sink: Sink, allowed: str) -> str | None:
    """Return the text of a scalar that is not null, else record what is wrong."""
    if node.kind != SCALAR:
        sink.add(node, path, f"{_NAMES[node.kind]} where {allowed} belongs")
    elif node.is_null():
        sink.add(node, path, f'null is not allowed here; write {allowed} (the word "null" needs quotes)')
    elif node.plain and node.value == "":
        sink.add(node, path, f"no value; write {allowed}")
    elif node.plain and node.value in _OTHER_NULLS:
        sink.add(node, path, f"'{node.value}' is null in some YAML; write {allowed}, or null where that is allowed")
    else:
        text: str = node.value
        return text
    return None


class Text:
    """One line of printable characters, taken as written."""

    __slots__ = ("limit", "pattern", "what")

    def __init__(self, what: str = "text", pattern: str | None = None, limit: int = 300) -> None:
        self.what = what
        self.pattern = re.compile(pattern + r"\Z", re.ASCII) if pattern else None
        self.limit = limit

    def describe(self) -> str:
        """Return what is allowed."""
        return self.what

    def read(self, node: Node, path: str, sink: Sink) -> str | None:
        """Return the text."""
        text = _scalar(node, path, sink, self.what)
        if text is None:
            return None
        if not text.strip():
            sink.add(node, path, f"blank; write {self.what}")
        elif not text.isprintable():
            sink.add(node, path, f"{_quote(text)} holds control characters or line ends; write {self.what} on one line")
        elif len(text) > self.limit:
            sink.add(node, path, f"{len(text)} characters; at most {self.limit} are allowed")
        elif self.pattern is not None and not self.pattern.match(text):
            sink.add(node, path, f"{_quote(text)} is not {self.what}")
        else:
            return text
        return None


class Prose:
    """Sentences for people; line ends and runs of blanks count as one blank."""

    __slots__ = ()

    def describe(self) -> str:
        """Return what is allowed."""
        return "a sentence"

    def read(self, node: Node, path: str, sink: Sink) -> str | None:
        """Return the sentence on one line."""
        text = _scalar(node, path, sink, self.describe())
        if text is None:
            return None
        line = " ".join(text.split())
        if not line:
            sink.add(node, path, "blank; write a sentence")
        elif not line.isprintable():
            sink.add(node, path, f"{_quote(line)} holds control characters; write printable text")
        elif len(line) > 2000:
            sink.add(node, path, f"{len(line)} characters; at most 2000 are allowed")
        else:
            return line
        return None


class Pointer(Text):
    """The id of another entry; whether it exists is asked once everything is read."""

    __slots__ = ()

    def __init__(self, what: str) -> None:
        super().__init__(f"the id of {what}", r"[A-Za-z0-9][A-Za-z0-9._-]*", 100)


class Choice:
    """One word of a closed list."""

    __slots__ = ("words",)

    def __init__(self, *words: str) -> None:
        self.words = words

    def describe(self) -> str:
        """Return what is allowed."""
        return f"one of {', '.join(self.words)}"

    def read(self, node: Node, path: str, sink: Sink) -> str | None:
        """Return the word."""
        text = _scalar(node, path, sink, self.describe())
        if text is None or text in self.words:
            return text
        sink.add(node, path, f"{_quote(text)} is not known; {hint(text, self.words)}")
        return None


class Bool:
    """true or false, without quotes."""

    __slots__ = ()

    def describe(self) -> str:
        """Return what is allowed."""
        return "true or false"

    def read(self, node: Node, path: str, sink: Sink) -> bool | None:
        """Return the truth value."""
        text = _scalar(node, path, sink, self.describe())
        if text is None:
            return None
        if node.plain and text in ("true", "false"):
            return text == "true"
        word = text.lower()
        meant = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}.get(word)
        end = f" (did you mean {meant}?)" if meant else ""
        what = _quote(text) if node.plain else f"the quoted text {_quote(text)}"
        sink.add(node, path, f"{what} is not a truth value; allowed: true, false{end}")
        return None


class Int:
    """A whole number in decimal digits, without quotes."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def describe(self) -> str:
        """Return what is allowed."""
        return f"a whole number from {self.low} to {self.high}"

    def read(self, node: Node, path: str, sink: Sink) -> int | None:
        """Return the number."""
        text = _scalar(node, path, sink, self.describe())
        if text is None:
            return None
        if not node.plain:
            sink.add(node, path, f"the quoted text {_quote(text)} is not a number; write {self.describe()}")
        elif not _INT.match(text):
            sink.add(node, path, f"{_quote(text)} is not a whole number in plain digits; write {self.describe()}")
        elif len(text) > 18 or not self.low <= int(text) <= self.high:
            sink.add(node, path, f"{_quote(text)} is out of range; write {self.describe()}")
        else:
            return int(text)
        return None


class Number:
    """A decimal number, without quotes; NaN and infinities are not numbers."""

    __slots__ = ("above", "high", "low")

    def __init__(self, low: float, high: float, above: bool = False) -> None:
        self.low = low
        self.high = high
        self.above = above

    def describe(self) -> str:
        """Return what is allowed."""
        start = f"above {self.low:g} and up" if self.above else f"from {self.low:g}"
        return f"a number {start} to {self.high:g}"

    def read(self, node: Node, path: str, sink: Sink) -> int | float | None:
        """Return the number, whole ones without a fraction as int."""
        text = _scalar(node, path, sink, self.describe())
        if text is None:
            return None
        if not node.plain:
            sink.add(node, path, f"the quoted text {_quote(text)} is not a number; write {self.describe()}")
        elif not _NUMBER.match(text) or len(text) > 40:
            sink.add(node, path, f"{_quote(text)} is not a decimal number; write {self.describe()}")
        else:
            value: int | float = int(text) if _INT.match(text) and len(text) < 19 else float(text)
            if self.low <= value <= self.high and not (self.above and value == self.low):
                return value
            sink.add(node, path, f"{_quote(text)} is out of range; write {self.describe()}")
        return None


class Date:
    """A day as YYYY-MM-DD; the value stays text."""

    __slots__ = ()

    def describe(self) -> str:
        """Return what is allowed."""
        return "a day as YYYY-MM-DD"

    def read(self, node: Node, path: str, sink: Sink) -> str | None:
        """Return the day."""
        text = _scalar(node, path, sink, self.describe())
        if text is None:
            return None
        parts = _DATE.match(text)
        if parts is None:
            sink.add(node, path, f"{_quote(text)} is not {self.describe()}")
            return None
        year, month, day = (int(part) for part in parts.groups())
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        days = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
        if not (2000 <= year <= 2999 and 1 <= month <= 12 and 1 <= day <= days[month - 1]):
            sink.add(node, path, f"{_quote(text)} is not in the calendar (years 2000 to 2999)")
            return None
        return text


class ListOf:
    """A list of distinct items of one kind."""

    __slots__ = ("high", "item", "low", "unique")

    def __init__(self, item: Reader, low: int = 0, high: int = 1000, unique: bool = True) -> None:
        self.item = item
        self.low = low
        self.high = high
        self.unique = unique

    def describe(self) -> str:
        """Return what is allowed."""
        return f"a list of {self.item.describe()}"

    def read(self, node: Node, path: str, sink: Sink) -> tuple[Any, ...] | None:
        """Return the items in file order."""
        if node.kind != SEQUENCE:
            sink.add(node, path, f"{_got(node)} where {self.describe()} belongs")
            return None
        if not self.low <= len(node.value) <= self.high:
            size = f"exactly {self.low}" if self.low == self.high else f"from {self.low} to {self.high}"
            sink.add(node, path, f"{len(node.value)} items; {size} are allowed")
            return None
        before = len(sink.findings)
        items: list[Any] = []
        for place, child in enumerate(node.value):
            if sink.full:
                break
            item = self.item.read(child, f"{path}[{place}]", sink)
            if self.unique and item is not None and item in items:
                sink.add(child, f"{path}[{place}]", f"{_quote(str(item))} is listed twice; list each item once")
            items.append(item)
        return tuple(items) if len(sink.findings) == before else None


class Capability:
    """A CUDA compute capability: [major, minor]."""

    __slots__ = ()
    _numbers = ListOf(Int(0, 99), 2, 2, unique=False)

    def describe(self) -> str:
        """Return what is allowed."""
        return "a CUDA capability as [major, minor]"

    def read(self, node: Node, path: str, sink: Sink) -> tuple[int, int] | None:
        """Return (major, minor)."""
        if node.kind != SEQUENCE:
            sink.add(node, path, f"{_got(node)} where {self.describe()} belongs")
            return None
        return self._numbers.read(node, path, sink)


class MapOf:
    """Free keys of one form, values of one kind."""

    __slots__ = ("item", "key", "what")

    def __init__(self, item: Reader, key: str, what: str) -> None:
        self.item = item
        self.key = re.compile(key + r"\Z", re.ASCII)
        self.what = what

    def describe(self) -> str:
        """Return what is allowed."""
        return f"a mapping from {self.what} to {self.item.describe()}"

    def read(self, node: Node, path: str, sink: Sink) -> dict[str, Any] | None:
        """Return the mapping in file order."""
        before = len(sink.findings)
        pairs = _pairs(node, path, sink, self.describe())
        if pairs is None:
            return None
        values: dict[str, Any] = {}
        for name, (key, child) in pairs.items():
            if sink.full:
                break
            if not self.key.match(name):
                sink.add(key, f"{path}.{name}", f"{_quote(name)} is not {self.what}")
            values[name] = self.item.read(child, f"{path}.{name}", sink)
        return values if len(sink.findings) == before else None


def _pairs(node: Node, path: str, sink: Sink, allowed: str) -> dict[str, tuple[Node, Node]] | None:
    """Return the members of a mapping by key; a repeated key is recorded and its first value kept."""
    if node.kind != MAPPING:
        sink.add(node, path, f"{_got(node)} where {allowed} belongs")
        return None
    pairs: dict[str, tuple[Node, Node]] = {}
    for key, child in node.value:
        if key.kind != SCALAR:
            sink.add(key, path, f"{_NAMES[key.kind]} as a key; keys are single words")
            continue
        name: str = key.value
        if name in pairs:
            where = f"{path}.{name}" if path else name
            sink.add(key, where, f"the key is written twice (first in line {pairs[name][0].line}); write it once")
            continue
        pairs[name] = (key, child)
    return pairs


class Field(NamedTuple):
    """One key of a block.

    Attributes:
        name: The key.
        reader: What its value may be.
        required: A block without the key is wrong.
        default: The value when the key is absent (or null).
        nullable: The word null may stand for the absent value.
    """

    name: str
    reader: Reader
    required: bool = True
    default: Any = None
    nullable: bool = False


class Block:
    """A mapping whose keys are known.

    Args:
        fields: Its keys, in the order in which they should be written.
        check: Asked once every field is good; returns (key path inside the block, message) pairs.
        sparse: Absent keys stay absent in the value instead of standing there as their default.
    """

    __slots__ = ("check", "fields", "known", "sparse")

    def __init__(
        self,
        fields: Sequence[Field],
        check: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] | None = None,
        sparse: bool = False,
    ) -> None:
        self.fields = tuple(fields)
        self.known = {field.name: field for field in fields}
        self.check = check
        self.sparse = sparse

    def describe(self) -> str:
        """Return what is allowed."""
        return f"a mapping with {', '.join(self.known)}"

    def read(self, node: Node, path: str, sink: Sink) -> dict[str, Any] | None:
        """Return every field's value, absent ones with their default."""
        before = len(sink.findings)
        pairs = _pairs(node, path, sink, "a mapping")
        if pairs is None:
            return None
        prefix = f"{path}." if path else ""
        for name in [name for name in pairs if name not in self.known]:
            if sink.full:
                return None
            sink.add(pairs[name][0], prefix + name, f"the key is not known; {hint(name, list(self.known))}")
        values: dict[str, Any] = {}
        for field in self.fields:
            name = field.name
            pair = pairs.get(name)
            if pair is None:
                if field.required:
                    sink.add(node, prefix + name, f"the key is missing; write {field.reader.describe()}")
                if not self.sparse:
                    values[name] = field.default
            elif field.nullable and pair[1].is_null():
                values[name] = field.default
            else:
                values[name] = field.reader.read(pair[1], prefix + name, sink)
        if len(sink.findings) != before:
            return None
        if self.check is not None:
            for inner, message in self.check(values):
                child = pairs[inner.partition(".")[0]][1] if inner.partition(".")[0] in pairs else node
                sink.add(child, prefix + inner if inner else path, message)
            if len(sink.findings) != before:
                return None
        return values
