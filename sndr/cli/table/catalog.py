"""The catalog: YAML files to frozen layers, read strictly.

One reader serves every file. It refuses what YAML allows and people trip over (anchors, tags, duplicate keys, tabs,
several documents, YAML 1.1 words), refuses what is not a plain file before it can block, and reports every fault of
every file with its place. Nothing is returned unless everything was good.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import yaml

from sndr.cli.table import layers
from sndr.cli.table.fields import MAPPING, SCALAR, SEQUENCE, Block, Finding, Node, Sink, hint
from sndr.cli.table.layers import (
    Evidence,
    Family,
    Gap,
    Hardware,
    Model,
    Preset,
    Profile,
    Rule,
    SpecDecode,
)
from sndr.contract import UNKNOWN_FAMILY
from sndr.errors import InputError
from sndr.resources import presets_dir

__all__ = ["MAX_FILE_BYTES", "Catalog", "CatalogError", "Place", "load_catalog", "parse_yaml"]

MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 24
_MAX_HINTS = 100  # near words are looked for among all ids; a catalog of 10,000 dangling pointers must not take an hour
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z", re.ASCII)
_PARSER: Any = getattr(yaml, "CParser", None) or getattr(getattr(yaml, "cyaml", None), "CParser", None)
_T = TypeVar("_T")


class CatalogError(InputError):
    """The catalog is wrong; `findings` says where and why, all of it."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(sorted(set(findings), key=lambda f: (f.file, f.line, f.column, f.path, f.message)))
        count = len(self.findings)
        super().__init__("catalog_invalid", f"the catalog has {count} fault{'s' if count != 1 else ''}")


class Place(NamedTuple):
    """Where a value was written.

    Attributes:
        file: As shown to the reader.
        line: Counted from 1; the nearest block's when the file leaves the key out.
        column: Counted from 1.
        stated: The key is there.
    """

    layer: str
    file: str
    line: int
    column: int
    stated: bool


class Catalog(NamedTuple):
    """Everything that the table and the preset verbs are made from.

    Attributes:
        root: The folder.
        shown: The folder as it is shown in findings.
        presets: The active presets by id, sorted.
        archived: The archived presets by id; empty unless the archive was asked for.
        profiles: By id; archived ones too if the archive was asked for.
        families: By id; the label ``unknown`` is not among them.
        custom_workloads: Words that cards may use besides the standard workloads.
        archived_ids: Ids of the archived presets (known in any case, from the file names).
    """

    root: str
    shown: str
    models: Mapping[str, Model]
    hardware: Mapping[str, Hardware]
    profiles: Mapping[str, Profile]
    presets: Mapping[str, Preset]
    archived: Mapping[str, Preset]
    families: Mapping[str, Family]
    rules: tuple[Rule, ...]
    gaps: tuple[Gap, ...]
    evidence: Mapping[str, Evidence]
    custom_workloads: tuple[str, ...]
    archived_ids: frozenset[str]

    def shown_path(self, file: str) -> str:
        """Return a layer's file as findings show it."""
        return f"{self.shown}/{file}"

    def place(self, layer: str, file: str, path: str) -> Place:
        """Return where a key stands, by reading its file once more; the file's start if it is gone.

        Only findings and ``explain`` ask, so a load keeps no places in memory.
        """
        return Place(layer, self.shown_path(file), *_locate(self.root, file, path))

    def finding(self, file: str, path: str, message: str) -> Finding:
        """Return a finding about a key of a file that was read without one."""
        line, column, _ = _locate(self.root, file, path)
        return Finding(self.shown_path(file), line, column, path, message)


# ---------------------------------------------------------------------------------------------------------------- YAML


class _BadFileError(Exception):
    def __init__(self, message: str, line: int = 1, column: int = 1, path: str = "(file)") -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
        self.path = path


def _read_file(path: str) -> bytes:
    """Return a regular file's bytes; never waits on a FIFO or a device, never reads more than the limit."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _BadFileError(f"cannot be read: {error.strerror}") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise _BadFileError(f"is {_kind(info.st_mode)}; a YAML file is expected")
        if info.st_size > MAX_FILE_BYTES:
            raise _BadFileError(f"has {info.st_size} bytes; at most {MAX_FILE_BYTES} are allowed")
        data = b""
        while len(data) <= MAX_FILE_BYTES:
            more = os.read(fd, MAX_FILE_BYTES + 1 - len(data))
            if not more:
                return data
            data += more
        raise _BadFileError(f"is longer than {MAX_FILE_BYTES} bytes, which is all that is allowed")
    except OSError as error:
        raise _BadFileError(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    ):
        if test(mode):
            return name
    return "not a regular file"


def parse_yaml(data: bytes) -> Node:
    """Return the one document in `data` as nodes.

    Raises:
        _BadFileError: It is not UTF-8, not YAML, or uses a part of YAML that the catalog does not allow.
    """
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise _BadFileError("starts with a byte order mark; save it as UTF-8 without one", path="(document)")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        raise _BadFileError(
            f"byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8", line, column, "(document)"
        ) from None
    tab = text.find("\t")
    if tab >= 0:  # libyaml lets some of them pass and PyYAML's own parser does not; a reader sees none of them
        start = text.rfind("\n", 0, tab) + 1
        where = "a tab" if text[start:tab].strip(" ") else "a tab in the indentation"
        line = text.count("\n", 0, tab) + 1
        raise _BadFileError(f"{where}; write blanks", line, tab - start + 1, "(document)")
    try:
        return _build(data)
    except yaml.YAMLError as error:
        raise _yaml_error(error, text) from None


def _yaml_error(error: yaml.YAMLError, text: str) -> _BadFileError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        parts = [p for p in (getattr(error, "problem", None), getattr(error, "context", None)) if p]
        return _BadFileError(f"not YAML: {', '.join(parts)}", mark.line + 1, mark.column + 1, "(document)")
    position = getattr(error, "position", None)
    if isinstance(position, int):  # a character that YAML refuses; the place is an offset
        for offset, character in enumerate(text):
            if not character.isprintable() and character not in "\n\r\t\x85\u2028\u2029":
                line = text.count("\n", 0, offset) + 1
                column = offset - (text.rfind("\n", 0, offset) + 1) + 1
                return _BadFileError(
                    f"not YAML: the character U+{ord(character):04X} is not allowed", line, column, "(document)"
                )
    return _BadFileError("not YAML: a character is not allowed", path="(document)")


def _build(data: bytes) -> Node:
    """Turn parse events into nodes; libyaml's parser if PyYAML has it, else PyYAML's own."""
    parser: Any = _PARSER(data) if _PARSER is not None else yaml.SafeLoader(data)
    next_event: Callable[[], Any] = parser.get_event
    root: Node | None = None
    stack: list[Node] = []
    while True:
        event = next_event()
        if event is None:
            break
        kind = type(event)
        if kind is yaml.ScalarEvent:
            node = Node(SCALAR, event.value, event.style is None or event.style == "", *_at(event))
            _plainly(event, node)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            node = Node(MAPPING if kind is yaml.MappingStartEvent else SEQUENCE, [], False, *_at(event))
            _plainly(event, node)
            if len(stack) >= _MAX_DEPTH:
                raise _BadFileError(f"nested deeper than {_MAX_DEPTH} levels", node.line, node.column, "(document)")
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            done = stack.pop()
            if kind is yaml.MappingEndEvent:
                flat = done.value
                done.value = list(zip(flat[::2], flat[1::2], strict=True))
            continue
        elif kind is yaml.AliasEvent:
            raise _BadFileError("an alias (*name); write the value out", *_at(event), "(document)")
        elif kind is yaml.DocumentStartEvent:
            if root is not None:
                raise _BadFileError(
                    "a second document starts here; one file is one document", *_at(event), "(document)"
                )
            if event.version or event.tags:
                raise _BadFileError("a % directive; leave it out", *_at(event), "(document)")
            continue
        else:
            continue
        if stack:
            stack[-1].value.append(node)
        else:
            root = node
        if node.kind is not SCALAR:
            stack.append(node)
    if root is None:
        raise _BadFileError("is empty; a mapping is expected", path="(document)")
    return root


def _at(event: Any) -> tuple[int, int]:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1


def _plainly(event: Any, node: Node) -> None:
    """Refuse what hides behind a value: anchors and tags."""
    if event.anchor is not None:
        raise _BadFileError(
            "an anchor (&name); anchors and aliases are not allowed, write the value out",
            node.line,
            node.column,
            "(document)",
        )
    if event.tag is not None:
        raise _BadFileError(
            f"the tag {event.tag}; tags are not allowed, write the plain value", node.line, node.column, "(document)"
        )


def _locate(root: str, file: str, path: str) -> tuple[int, int, bool]:
    """Return line and column of a value (a block's are its key's), or of the nearest block around it and False."""
    try:
        node = parse_yaml(_read_file(os.path.join(root, file)))
    except _BadFileError:
        return 1, 1, False
    line, column = node.line, node.column
    for index, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", path):
        if index and node.kind == SEQUENCE and int(index) < len(node.value):
            node = node.value[int(index)]
            line, column = node.line, node.column
            continue
        found = [pair for pair in node.value if pair[0].value == name] if node.kind == MAPPING else []
        if not found:
            return line, column, False
        key, node = found[0]
        line, column = (node.line, node.column) if node.line == key.line else (key.line, key.column)
    return line, column, True


# ---------------------------------------------------------------------------------------------------------------- load


_PLACES = (  # a folder that is no layer, the folders in it, the files in it
    ("", ("models", "hardware", "profiles", "presets", "routing", "evidence", "archive"), ()),
    ("archive", ("presets", "profiles"), ()),
    ("routing", (), ("families.yaml", "workloads.yaml", "rules.yaml", "gaps.yaml")),
)


def _is_data(name: str) -> bool:
    """Whether a file's name promises data; hidden files and editors' backups do not."""
    stem, _, suffix = name.rpartition(".")
    return stem != "" and name[0] != "." and suffix.lower() in ("yaml", "yml", "json")


def _holds_data(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and any(_is_data(name) for name in os.listdir(entry.path))
    except OSError:
        return False  # not ours, and not readable


class _Loader:
    def __init__(self, root: str, shown: str) -> None:
        self.root = root
        self.shown = shown
        self.findings: list[Finding] = []

    def add(self, file: str, message: str) -> None:
        self.findings.append(Finding(f"{self.shown}/{file}" if file else self.shown, 1, 1, "(file)", message))

    def names(self, folder: str) -> list[str]:
        """Return the ids in a folder, sorted; odd names are findings, hidden files and other kinds are not ours."""
        ids = []
        for name in self.entries(folder):
            stem, _, suffix = name.rpartition(".")
            if suffix != "yaml":
                self.add(f"{folder}/{name}", f"is never read; name it {stem}.yaml or move it out of the catalog")
            elif not _ID.match(stem):
                self.add(f"{folder}/{name}", "the file's name is its id: letters, digits and ._- (at most 100)")
            else:
                ids.append(stem)
        return sorted(ids)  # not the order of the files' names: `a.yaml` comes behind `a-b.yaml`

    def entries(self, folder: str, expected: tuple[str, ...] = ()) -> list[str]:
        """Return the names in a folder that look like data, sorted; a folder among them that holds data is a finding.

        Args:
            folder: Relative to the catalog's.
            expected: The folders that belong there.
        """
        names = []
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                for entry in entries:
                    if _is_data(entry.name):
                        names.append(entry.name)
                    elif entry.name not in expected and entry.name[0] != "." and _holds_data(entry):
                        place = f"{folder}/{entry.name}" if folder else entry.name
                        self.add(place, "is a folder that is never read; move it out of the catalog")
        except FileNotFoundError:
            return []
        except OSError as error:
            self.add(folder, f"cannot be read: {error.strerror}")
        return sorted(names)

    def strays(self) -> None:
        """Name the data in places where no layer is: it would never be read."""
        for folder, folders, files in _PLACES:
            for name in self.entries(folder, folders):
                if name not in files:
                    allowed = f"allowed here: {', '.join(files or folders)}"
                    self.add(f"{folder}/{name}" if folder else name, f"is never read; {allowed}")

    def read(self, file: str, block: Block) -> dict[str, Any] | None:
        """Return one file's fields, or record its faults."""
        shown = f"{self.shown}/{file}"
        try:
            node = parse_yaml(_read_file(os.path.join(self.root, file)))
        except _BadFileError as error:
            self.findings.append(Finding(shown, error.line, error.column, error.path, error.message))
            return None
        return block.read(node, "", Sink(shown, self.findings))

    def layer(self, folder: str, block: Block, make: Callable[..., _T], **more: Any) -> dict[str, _T]:
        """Return a folder's entries by id."""
        found = {}
        for name in self.names(folder):
            file = f"{folder}/{name}.yaml"
            values = self.read(file, block)
            if values is not None:
                found[name] = make(id=name, file=file, **more, **values)
        return found

    def items(self, file: str, block: Block, key: str, make: Callable[..., _T]) -> tuple[_T, ...]:
        """Return the entries of a file that holds one list."""
        values = self.read(file, block)
        return () if values is None else tuple(make(**item) for item in values[key])


def _spec(value: Mapping[str, Any] | None) -> SpecDecode | None:
    return None if value is None else SpecDecode(**value)


def _model(**values: Any) -> Model:
    return Model(**{**values, "spec_decode": _spec(values["spec_decode"])})


def _profile(**values: Any) -> Profile:
    return Profile(**{**values, "spec_decode_override": _spec(values["spec_decode_override"])})


def _rule(**values: Any) -> Rule:
    return Rule(**{**values, "when": _axes(values["when"])})


def _gap(**values: Any) -> Gap:
    return Gap(**{**values, "cell": _axes(values["cell"])})


def _axes(when: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    return {axis: words for axis, words in when.items() if words is not None}


def load_catalog(root: str | os.PathLike[str] | None = None, *, archive: bool = False) -> Catalog:
    """Read a catalog.

    Args:
        root: Its folder; the shipped catalog when None.
        archive: Read the archived presets and profiles too.

    Raises:
        CatalogError: Something in it is wrong: a file, a field, or a pointer from one entry to another.
    """
    folder = presets_dir() if root is None else os.fspath(root)
    loader = _Loader(folder, _shown(folder, given=root is not None))
    if not os.path.isdir(folder):
        loader.add("", "is not a folder; name the folder that holds models, hardware, profiles, presets and routing")
        raise CatalogError(loader.findings)
    families = loader.items("routing/families.yaml", layers.FAMILIES, "families", Family)
    workloads = loader.read("routing/workloads.yaml", layers.WORKLOADS)
    presets = loader.layer("presets", layers.PRESET, Preset, archived=False)
    archived_ids = loader.names("archive/presets")
    archived = loader.layer("archive/presets", layers.PRESET, Preset, archived=True) if archive else {}
    profiles = loader.layer("profiles", layers.PROFILE, _profile)
    archived_profiles = loader.layer("archive/profiles", layers.PROFILE, _profile) if archive else {}
    catalog = Catalog(
        root=folder,
        shown=loader.shown,
        models=MappingProxyType(loader.layer("models", layers.MODEL, _model)),
        hardware=MappingProxyType(loader.layer("hardware", layers.HARDWARE, Hardware)),
        profiles=MappingProxyType({**archived_profiles, **profiles}),
        presets=MappingProxyType(presets),
        archived=MappingProxyType(archived),
        families=MappingProxyType({family.id: family for family in families}),
        rules=loader.items("routing/rules.yaml", layers.RULES, "rules", _rule),
        gaps=loader.items("routing/gaps.yaml", layers.GAPS, "coverage_gaps", _gap),
        evidence=MappingProxyType(loader.layer("evidence", layers.EVIDENCE, Evidence)),
        custom_workloads=workloads["custom"] if workloads else (),
        archived_ids=frozenset(archived_ids),
    )
    for twin in sorted(archived_ids & presets.keys()):
        loader.add(f"archive/presets/{twin}.yaml", f"is also an active preset (presets/{twin}.yaml); keep one of them")
    for twin in sorted(archived_profiles.keys() & profiles.keys()):
        loader.add(f"archive/profiles/{twin}.yaml", f"is also an active profile (profiles/{twin}.yaml); keep one")
    loader.strays()
    if not presets and not loader.findings:
        loader.add("presets", "holds no preset (<id>.yaml); a catalog has at least one")
    if loader.findings:  # pointers into a file that could not be read would only repeat its fault
        raise CatalogError(loader.findings)
    findings = list(_check_pointers(catalog, families))
    if findings:
        raise CatalogError(findings)
    return catalog


def _shown(folder: str, given: bool) -> str:
    """Return the catalog's folder as findings show it: as it was named, or relative to where we are."""
    if given:
        return folder.rstrip("/") or folder or "(empty path)"
    try:
        here = os.getcwd()
    except OSError:  # the folder that we were started in is gone
        return folder
    return os.path.relpath(folder, here) if folder.startswith(here.rstrip("/") + "/") else folder


def _check_pointers(catalog: Catalog, families: tuple[Family, ...]) -> Iterable[Finding]:
    """Yield every pointer that leads nowhere and every id that is used twice."""

    hints: dict[tuple[str, str], str] = {}

    def dangling(file: str, path: str, what: str, word: str, known: Iterable[str]) -> Finding:
        if (what, word) not in hints and len(hints) < _MAX_HINTS:
            hints[what, word] = "; " + hint(word, sorted(known))
        return catalog.finding(file, path, f"there is no {what} '{word}'{hints.get((what, word), '')}")

    def repeated(file: str, key: str, ids: list[str]) -> Iterable[Finding]:
        seen: set[str] = set()
        for place, word in enumerate(ids):
            if word in seen:
                yield catalog.finding(file, key.format(place), f"'{word}' is used twice; ids are unique")
            seen.add(word)

    yield from repeated("routing/families.yaml", "families[{}].id", [family.id for family in families])
    yield from repeated("routing/rules.yaml", "rules[{}].id", [rule.id for rule in catalog.rules])
    yield from repeated(
        "routing/gaps.yaml",
        "coverage_gaps[{}].missing_cell",
        [f"{g.model_family} {g.missing_cell}" for g in catalog.gaps],
    )
    known_presets = {*catalog.presets, *catalog.archived_ids}
    for place, family in enumerate(families):
        if family.id == UNKNOWN_FAMILY:
            yield catalog.finding(
                "routing/families.yaml", f"families[{place}].id", "'unknown' means no family; choose another id"
            )
    for model in catalog.models.values():
        if model.model_family != UNKNOWN_FAMILY and model.model_family not in catalog.families:
            yield dangling(model.file, "model_family", "family", model.model_family, catalog.families)
    for profile in catalog.profiles.values():
        if profile.parent_model not in catalog.models:
            yield dangling(profile.file, "parent_model", "model", profile.parent_model, catalog.models)
        if profile.target_hardware is not None and profile.target_hardware not in catalog.hardware:
            yield dangling(profile.file, "target_hardware", "hardware", profile.target_hardware, catalog.hardware)
    words = {*layers.STANDARD_WORKLOADS, *catalog.custom_workloads}
    for preset in (*catalog.presets.values(), *catalog.archived.values()):
        for key, what, known in (
            ("model", "model", catalog.models),
            ("hardware", "hardware", catalog.hardware),
            ("profile", "profile", catalog.profiles),
        ):
            word: str = getattr(preset, key)
            if word not in known:
                yield dangling(preset.file, key, what, word, known)
        fallback = preset.card["fallback_preset"]
        if fallback is not None and fallback not in known_presets:
            yield dangling(preset.file, "card.fallback_preset", "preset", fallback, known_presets)
        for key in ("workload_allow", "workload_deny"):
            for place, word in enumerate(preset.card[key]):
                if word not in words:
                    yield dangling(preset.file, f"card.{key}[{place}]", "workload", word, words)
    for record in catalog.evidence.values():
        if record.model_family not in catalog.families:
            yield dangling(record.file, "model_family", "family", record.model_family, catalog.families)
        if record.hardware not in catalog.hardware:
            yield dangling(record.file, "hardware", "hardware", record.hardware, catalog.hardware)
        for place, arm in enumerate(record.comparison["arms"] if record.comparison else ()):
            if arm["preset"] not in known_presets:
                yield dangling(record.file, f"comparison.arms[{place}].preset", "preset", arm["preset"], known_presets)
    yield from _check_routing(catalog, dangling)


def _check_routing(catalog: Catalog, dangling: Callable[..., Finding]) -> Iterable[Finding]:
    """Yield what is wrong between rules, gaps, defaults and the presets that they name."""

    def family_of(key: str) -> str | None:
        """Return a preset's family; None when its model pointer dangles, which is said elsewhere."""
        preset = catalog.presets[key]
        model = catalog.models.get(preset.model)
        return None if model is None else model.model_family

    file = "routing/rules.yaml"
    for place, rule in enumerate(catalog.rules):
        at = f"rules[{place}]"
        if rule.model_family not in catalog.families:
            yield dangling(file, f"{at}.model_family", "family", rule.model_family, catalog.families)
        elif catalog.families[rule.model_family].routing == "single_preset":
            yield catalog.finding(
                file,
                f"{at}.model_family",
                f"'{rule.model_family}' is a single_preset family (routing/families.yaml): it has no rules",
            )
        if rule.preset_key not in catalog.presets:
            archived = " (it is archived)" if rule.preset_key in catalog.archived_ids else ""
            yield dangling(file, f"{at}.preset_key", f"active{archived} preset", rule.preset_key, catalog.presets)
        elif family_of(rule.preset_key) not in (None, rule.model_family):
            yield catalog.finding(
                file,
                f"{at}.preset_key",
                f"'{rule.preset_key}' is of family '{family_of(rule.preset_key)}', the rule of '{rule.model_family}'",
            )
        if rule.evidence not in catalog.evidence:
            yield dangling(file, f"{at}.evidence", "evidence record", rule.evidence, catalog.evidence)
    file = "routing/gaps.yaml"
    for place, gap in enumerate(catalog.gaps):
        at = f"coverage_gaps[{place}]"
        if gap.model_family not in catalog.families:
            yield dangling(file, f"{at}.model_family", "family", gap.model_family, catalog.families)
        if gap.fallback_preset not in catalog.presets:
            yield dangling(file, f"{at}.fallback_preset", "active preset", gap.fallback_preset, catalog.presets)
        elif family_of(gap.fallback_preset) not in (None, gap.model_family):
            yield catalog.finding(
                file,
                f"{at}.fallback_preset",
                f"'{gap.fallback_preset}' is of family '{family_of(gap.fallback_preset)}', "
                f"the gap of '{gap.model_family}'",
            )
        if gap.was is not None and gap.was not in catalog.archived_ids:
            yield dangling(file, f"{at}.was", "archived preset", gap.was, catalog.archived_ids)
    defaults: dict[str, str] = {}
    for preset in catalog.presets.values():
        if not preset.default_for_family:
            continue
        family = family_of(preset.id)
        path = "routing.default_for_family"
        if family is None:
            continue
        if family == UNKNOWN_FAMILY:
            yield catalog.finding(preset.file, path, "true, but its model declares no family; allowed here: false")
        elif family in catalog.families and catalog.families[family].routing == "single_preset":
            yield catalog.finding(
                preset.file, path, f"true, but '{family}' is a single_preset family; allowed here: false"
            )
        elif family in defaults:
            yield catalog.finding(
                preset.file, path, f"true, but '{defaults[family]}' is the default of '{family}' already; allowed: one"
            )
        else:
            defaults[family] = preset.id
