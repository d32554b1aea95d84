"""Files and paths that an authority must refuse: with their code, quickly, and without touching a byte."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sndr.errors import AuthorityError
from sndr.router.core import projection as routes
from sndr.router.core.receipt import Identity, Record
from sndr.router.store import authority as store
from sndr.router.store import custody
from sndr.router.wire.record import FILE_BYTES_MAX, encode_record
from tests.support import records

CORRUPT = "route_state_corrupt"
UNSAFE = "route_state_unsafe"
TOO_LARGE = "route_state_too_large"
Case = tuple[str, bytes, str]


def _good() -> bytes:
    record = records.committed(records.managed(records.first()))
    assert record.transaction is not None
    seen = Identity(records.AT_MS, ("m2", "m2-lora"))
    return encode_record(replace(record, transaction=replace(record.transaction, identity=seen)))


def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_good())
    return document


def _seal(document: dict[str, Any]) -> bytes:
    """Canonical bytes with a digest that fits: only the meaning is wrong."""
    document = {key: value for key, value in document.items() if key != "digest"}
    document["digest"] = hashlib.sha256(routes.canonical(document)).hexdigest()
    return routes.canonical(document)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    if isinstance(value, dict):
        for key in value:
            yield from _paths(value[key], (*at, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from _paths(value[index], (*at, index))


def _change(at: tuple[Any, ...], change: Callable[[Any, Any], None]) -> dict[str, Any]:
    document = _document()
    holder: Any = document
    for part in at[:-1]:
        holder = holder[part]
    change(holder, at[-1])
    return document


def _name(at: tuple[Any, ...]) -> str:
    return "/".join(map(str, at))


def _set(value: Any) -> Callable[[Any, Any], None]:
    return lambda holder, key: holder.__setitem__(key, value)


def _byte_cases() -> Iterator[Case]:
    good = _good()
    yield "empty", b"", CORRUPT
    for text in ("null", "[]", "{}", '"x"', "7", "true", " ", "\n", "{", "]", "nul"):
        yield (
            f"whole file is {text!r}",
            text.encode(),
            UNSAFE if text in ("null", "[]", "{}", '"x"', "7", "true") else CORRUPT,
        )
    yield "byte order mark", b"\xef\xbb\xbf" + good, CORRUPT
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        yield encoding, good.decode().encode(encoding), CORRUPT
    yield "trailing newline", good + b"\n", CORRUPT
    yield "leading space", b" " + good, CORRUPT
    yield "two documents", good + good, CORRUPT
    yield "trailing NUL", good + b"\0", CORRUPT
    yield "indented", json.dumps(json.loads(good), indent=1, sort_keys=True).encode(), CORRUPT
    yield "keys unsorted", json.dumps(dict(reversed(json.loads(good).items())), separators=(",", ":")).encode(), CORRUPT
    yield "escaped ASCII", good.replace(b'"held"', b'"\\u0068eld"'), CORRUPT
    yield "escaped slash", good.replace(b"http://", b"http:\\/\\/"), CORRUPT
    yield "invalid UTF-8", good.replace(b"operator", b"operat\xff\xfe"), CORRUPT
    yield "overlong UTF-8", good.replace(b"operator", b"operat\xc0\xaf"), CORRUPT
    yield "lone surrogate", good.replace(b"operator", b"\\ud800"), CORRUPT
    yield "surrogate bytes", good.replace(b"operator", b"\xed\xa0\x80"), CORRUPT
    yield "raw control character", good.replace(b"operator", b"op\x01rator"), CORRUPT
    yield "repeated key", good.replace(b'"cut":0', b'"cut":0,"cut":0'), CORRUPT
    yield "repeated top key", good.replace(b'"schema":', b'"schema":"x","schema":'), CORRUPT
    for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "00", "01", "+1", "1.", ".5", "0x1", "1_0", "١"):
        yield f"write_seq {number}", re.sub(rb'"write_seq":\d+', f'"write_seq":{number}'.encode(), good), CORRUPT
    for number in ("9" * 17, "9" * 400, "9" * 5_000, "0." + "1" * 17, "9007199254740992", "1e5", "-0"):
        yield (
            f"number {number[:20]} of {len(number)}",
            re.sub(rb'"write_seq":\d+', f'"write_seq":{number}'.encode(), good),
            CORRUPT,
        )
    for number in ("1.0", "-1", "0", "true", "null", '"1"', "[]", "{}"):
        data = re.sub(rb'"write_seq":\d+', f'"write_seq":{number}'.encode(), good)
        yield f"write_seq {number}", data, UNSAFE
    for opening in ("[", "{"):
        text = ('{"a":' if opening == "{" else "[") * 17
        yield f"17 deep {opening}", text.encode(), CORRUPT
        yield f"100 000 deep {opening}", (('{"a":' if opening == "{" else "[") * 40_000).encode(), CORRUPT
    yield "a string of quotes", b'"\\"' * 80_000, CORRUPT
    yield "only backslashes", b"\\" * 200_000, CORRUPT
    yield "an open string", b'{"' + b"\\" * 100_001, CORRUPT
    yield "just over the limit", b" " * (FILE_BYTES_MAX + 1), TOO_LARGE
    yield "at the limit, not JSON", b" " * FILE_BYTES_MAX, CORRUPT
    yield "html", b"<html>502 Bad Gateway</html>", CORRUPT
    yield "toml", b"[server]\nlisten = []\n", CORRUPT
    yield "sqlite", b"SQLite format 3\0" + b"\0" * 84, CORRUPT
    yield "git conflict", b"<<<<<<< HEAD\n" + good + b"\n=======\n", CORRUPT
    yield "zeros", b"\0" * len(good), CORRUPT
    for length in sorted({1, 2, 3, 10, 100, len(good) // 2, len(good) - 2, len(good) - 1}):
        yield f"first {length} bytes", good[:length], CORRUPT
    rng = random.Random(46)
    for _ in range(24):
        at, bit = rng.randrange(len(good)), rng.randrange(8)
        flipped = bytearray(good)
        flipped[at] ^= 1 << bit
        yield f"bit {bit} of byte {at}", bytes(flipped), f"{CORRUPT}|{UNSAFE}"
    for length in (512, 4096):
        torn = good[:length].ljust(len(good), b"\0") if length < len(good) else good + b"\0" * (length - len(good))
        yield f"torn at {length}", torn, CORRUPT


def _schema_cases() -> Iterator[Case]:
    for at in _paths(_document()):
        if at == ("digest",):
            continue
        inside_free_form = at[:4] == ("transaction", "change", "tiers", "primary") and len(at) > 4
        if isinstance(at[-1], str):
            removed = _change(at, lambda holder, key: holder.pop(key))
            if not inside_free_form and at[-2:-1] not in (("aliases",), ("tiers",), ("containers",)):
                yield f"without {_name(at)}", _seal(removed), f"{UNSAFE}|{CORRUPT}"
        yield f"{_name(at)} is {{'x': 1}}", _seal(_change(at, _set({"x": 1}))), f"{UNSAFE}|{CORRUPT}"
    document = _document()
    for at in (
        (),
        ("boot",),
        ("current",),
        ("previous",),
        ("transaction",),
        ("transaction", "base"),
        ("transaction", "drain"),
        ("transaction", "identity"),
        ("transaction", "evidence"),
        ("transaction", "evidence", "campaign"),
        ("transaction", "evidence", "containers", "primary"),
        ("transaction", "events", 0),
        ("current", "projection"),
        ("current", "projection", "tiers", "primary"),
        ("transaction", "change"),
    ):
        document = _document()
        holder: Any = document
        for part in at:
            holder = holder[part]
        holder["surprise"] = 1
        yield f"extra key in {_name(at) or 'the file'}", _seal(document), f"{UNSAFE}|{CORRUPT}"


def _meaning_cases() -> Iterator[Case]:
    def case(name: str, *changes: tuple[str, Any]) -> Case:
        document = _document()
        for where, value in changes:
            holder: Any = document
            *parents, last = where.split("/")
            for part in parents:
                holder = holder[int(part) if part.isdigit() else part]
            holder[last] = value
        return name, _seal(document), UNSAFE

    yield "digest", _good().replace(b'"digest":"', b'"digest":"0')[:-1] + b"}", f"{UNSAFE}|{CORRUPT}"
    sealed = _document()
    sealed["digest"] = "0" * 64
    yield "digest of something else", routes.canonical(sealed), CORRUPT
    for which in ("current", "previous"):
        document = _document()
        document[which]["effective_route_sha256"] = "0" * 64
        yield f"{which} hash", _seal(document), CORRUPT
    yield case("another format", ("schema", "sndr.route-authority/2"))
    yield case("not a UUID", ("authority_id", "x"))
    yield case("a UUID of another kind", ("authority_id", "6f0c1d2e-3a4b-1c5d-8e6f-708192a3b4c5"))
    yield case("upper-case UUID", ("authority_id", records.AUTHORITY_ID.upper()))
    yield case("hold without reason", ("transaction/hold", False))
    yield case("previous not older", ("previous/route_revision", 2))
    yield case("previous newer", ("previous/route_revision", 99))
    yield case("committed without previous", ("previous", None))
    yield case("committed as another revision", ("transaction/committed_revision", 9))
    yield case("committed as none", ("transaction/committed_revision", None))
    yield case("state completed, still held", ("transaction/state", "completed"))
    yield case("state cancelled after commit", ("transaction/state", "cancelled"), ("transaction/hold", False))
    yield case("state held after commit", ("transaction/state", "held"))
    yield case("unknown state", ("transaction/state", "paused"))
    yield case("empty scope", ("transaction/scope", []))
    yield case("scope of another tier", ("transaction/scope", ["secondary"]))
    yield case("scope names no tier", ("transaction/scope", ["ghost"]))
    yield case("scope twice", ("transaction/scope", ["primary", "primary"]))
    yield case("scope unsorted", ("transaction/scope", ["secondary", "primary"]))
    yield case("proposed hash", ("transaction/proposed_sha256", "0" * 64))
    yield case("base of nothing", ("transaction/base/route_revision", 7))
    yield case("op and change differ", ("transaction/op", "alias_update"))
    yield case("origin differs", ("transaction/origin", "rollback"))
    yield case("a parent without a rollback", ("transaction/parent_id", records.ROLLBACK_ID))
    yield case("streams were cut", ("transaction/drain/cut", 1))
    yield case("complete with unresolved", ("transaction/drain/unresolved", 1))
    yield (
        case("proves weights", ("transaction/identity/proves", "weights"))
        if _document()["transaction"]["identity"]
        else case("identity is text", ("transaction/identity", "m2"))
    )
    yield case("events out of order", ("transaction/events/0/seq", 5))
    yield case(
        "17 events",
        ("transaction/events", [{"at": "2026-01-01T00:00:00.000Z", "code": "x", "seq": i + 1} for i in range(17)]),
    )
    yield case("a day that does not exist", ("transaction/created_at", "2026-02-30T00:00:00.000Z"))
    yield case("local time", ("transaction/created_at", "2026-02-03T00:00:00.000+01:00"))
    yield case("no milliseconds", ("transaction/created_at", "2026-02-03T00:00:00Z"))
    yield case("evidence for another tier", ("transaction/evidence/containers", {}))
    yield case("evidence without managed", ("transaction/managed", False))
    yield case("long string", ("transaction/evidence/campaign/id", "x" * 2049))
    yield case("control character", ("transaction/evidence/campaign/id", "a\u0085b"))
    for where, value in (
        ("tiers/primary/base_url", "file:///etc/passwd"),
        ("tiers/primary/base_url", "http://user:pw@host/v1"),
        ("tiers/primary/base_url", "http://0.0.0.0:8000/v1"),
        ("tiers/primary/max_concurrency", True),
        ("tiers/primary/max_concurrency", 1.0),
        ("tiers/primary/max_concurrency", 0),
        ("tiers/primary/max_concurrency", "auto"),
        ("tiers/primary/serves", ["completions", "chat"]),
        ("tiers/primary/serves", []),
        ("tiers/primary/auth_env", "sk-secret"),
        ("tiers/primary/model_identity", 1),
        ("tiers/primary/context_limit", "big"),
        ("tiers/primary/health_path", "health"),
        ("tiers/primary/extra_body", {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {}}}}}}}}}),
        ("tiers/primary/params", {"x": "y" * 4096}),
        ("aliases/llm.primary", {"tier": "ghost"}),
        ("aliases/llm.primary", {"tier": "primary", "weight": 1}),
        ("aliases/llm.primary", {"family": "f", "natural": "ghost", "on_unready": "refuse"}),
        ("aliases", {}),
        ("tiers", {}),
    ):
        document = _document()
        holder: Any = document["current"]["projection"]
        *parents, last = where.split("/")
        for part in parents:
            holder = holder[part]
        holder[last] = value
        encoded = routes.canonical(document["current"]["projection"])
        document["current"]["effective_route_sha256"] = routes.sha256_of_encoded(encoded)
        yield f"routes: {where} = {str(value)[:30]}", _seal(document), UNSAFE


BYTE_CASES = [*_byte_cases(), *_schema_cases(), *_meaning_cases()]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    return directory


def _refused(path: Path | str, boot: routes.Projection | None = None, **options: Any) -> str:
    began = time.perf_counter()
    with pytest.raises(AuthorityError) as refusal:
        store.open_authority(
            str(path), records.boot() if boot is None else boot, allow_volatile=options.pop("volatile", True), **options
        )
    assert time.perf_counter() - began < 1
    assert "\n" not in refusal.value.message
    return refusal.value.code


def test_there_are_enough_cases() -> None:
    names = [name for name, _, _ in BYTE_CASES]
    assert len(set(names)) == len(names)
    contents = {data for _, data, _ in BYTE_CASES}
    print(f"{len(contents)} different files")
    assert len(contents) >= 250


def test_the_base_of_all_cases_is_accepted(state: Path) -> None:
    path = _place(state, _good())
    store.open_authority(str(path), records.boot(), allow_volatile=True).close()


@pytest.mark.req("R57", "R58", "R66", "R72", "R75")
@pytest.mark.invariant("INV-12")
@pytest.mark.scenario("S16")
@pytest.mark.parametrize(("data", "code"), [pytest.param(d, c, id=n) for n, d, c in BYTE_CASES])
def test_a_bad_file_is_refused_and_not_touched(data: bytes, code: str, state: Path) -> None:
    path = _place(state, data)
    before = path.stat()
    assert _refused(path) in code.split("|")
    after = path.stat()
    assert path.read_bytes() == data
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
    assert sorted(os.listdir(state)) == ["routes.json", "routes.json.lock"]


def _place(state: Path, data: bytes, name: str = "routes.json") -> Path:
    path = state / name
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)
    return path


# --- paths and kinds of files


def _fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)
    path.chmod(0o600)


def _symlink(path: Path) -> None:
    target = path.parent / "real.json"
    _place(path.parent, encode_record(records.first()), "real.json")
    path.symlink_to(target)


def _hard_link(path: Path) -> None:
    _place(path.parent, encode_record(records.first()))
    os.link(path, path.parent / "second.json")


def _mode(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        _place(path.parent, encode_record(records.first())).chmod(mode)

    return make


def _acl(path: Path) -> None:
    _place(path.parent, encode_record(records.first()))
    _set_acl(path, b"system.posix_acl_access")


def _set_acl(path: Path, name: bytes) -> None:
    entries = [
        (0x01, 6, 0xFFFFFFFF),
        (0x02, 4, 12345),
        (0x04, 0, 0xFFFFFFFF),
        (0x10, 4, 0xFFFFFFFF),
        (0x20, 0, 0xFFFFFFFF),
    ]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM):
            pytest.skip("this file system has no POSIX ACLs")
        raise
    path.chmod(0o700 if path.is_dir() else 0o600)


def _owner(path: Path) -> None:
    _place(path.parent, encode_record(records.first()))
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)


def _sparse(path: Path) -> None:
    _place(path.parent, b"")
    os.truncate(path, 10 << 30)


KINDS: list[tuple[str, Callable[[Path], object], str]] = [
    ("fifo", _fifo, "route_custody_type"),
    ("directory", lambda path: path.mkdir(mode=0o600), "route_custody_type"),
    ("socket", _socket, "route_custody_type"),
    ("symbolic link", _symlink, "route_custody_type"),
    ("dangling link", lambda path: path.symlink_to("nowhere"), "route_custody_type"),
    ("link to a device", lambda path: path.symlink_to("/dev/zero"), "route_custody_type"),
    ("hard link", _hard_link, "route_custody_links"),
    *(
        (f"mode {mode:04o}", _mode(mode), "route_custody_mode")
        for mode in (0, 0o400, 0o640, 0o644, 0o660, 0o700, 0o4600)
    ),
    ("POSIX ACL", _acl, "route_custody_acl|route_custody_mode"),
    ("another owner", _owner, "route_custody_owner"),
    ("10 GB of nothing", _sparse, TOO_LARGE),
    ("no file", lambda path: None, "route_state_missing"),
]


@pytest.mark.req("R58", "R66", "R74", "R75")
@pytest.mark.scenario("S16")
@pytest.mark.parametrize(("make", "code"), [pytest.param(m, c, id=n) for n, m, c in KINDS])
def test_a_bad_kind_of_file_is_refused(make: Callable[[Path], object], code: str, state: Path) -> None:
    path = state / "routes.json"
    make(path)
    names = sorted(os.listdir(state))
    assert _refused(path) in code.split("|")
    assert [name for name in sorted(os.listdir(state)) if name != "routes.json.lock"] == names


@pytest.mark.req("R74", "R79")
def test_a_missing_file_is_not_created_and_neither_is_its_lock(state: Path) -> None:
    assert _refused(state / "routes.json") == "route_state_missing"
    assert os.listdir(state) == []


@pytest.mark.req("R63")
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda lock: lock.symlink_to("routes.json"), "route_custody_type"),
        (lambda lock: lock.mkdir(), "route_custody_type"),
        (lambda lock: os.mkfifo(lock, 0o600), "route_custody_type"),
        (lambda lock: os.link(lock.parent / "routes.json", lock), "route_custody_links"),
        (lambda lock: (lock.touch(), lock.chmod(0o644)), "route_custody_mode"),
    ],
)
def test_a_bad_lock_file_is_refused(make: Callable[[Path], object], code: str, state: Path) -> None:
    path = _place(state, encode_record(records.first()))
    make(state / "routes.json.lock")
    assert _refused(path) == code


@pytest.mark.req("R65")
@pytest.mark.parametrize("mode", [0o755, 0o750, 0o770, 0o1777, 0o701])
def test_an_open_directory_is_refused(mode: int, state: Path) -> None:
    path = _place(state, encode_record(records.first()))
    state.chmod(mode)
    assert _refused(path) == "route_custody_directory"


@pytest.mark.req("R65")
def test_an_open_parent_a_linked_parent_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    state = parent / "state"
    state.mkdir(mode=0o700, parents=True)
    path = _place(state, encode_record(records.first()))
    parent.chmod(0o777)
    assert _refused(path) == "route_custody_parent"
    parent.chmod(0o755)
    (tmp_path / "link").symlink_to(parent)
    assert _refused(tmp_path / "link" / "state" / "routes.json") == "route_custody_parent"
    (tmp_path / "direct").symlink_to(state)
    assert _refused(tmp_path / "direct" / "routes.json") == "route_custody_directory"
    assert _refused(tmp_path / "absent" / "state" / "routes.json") == "route_custody_parent"
    assert _refused(tmp_path / "absent" / "routes.json") == "route_custody_directory"
    assert _refused(path / "routes.json") == "route_custody_directory"
    assert path.read_bytes() == encode_record(records.first())


@pytest.mark.req("R65")
def test_directories_of_other_users_are_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    parent = tmp_path / "parent"
    state = parent / "state"
    state.mkdir(mode=0o700, parents=True)
    path = _place(state, encode_record(records.first()))
    os.chown(state, 12345, -1)
    assert _refused(path) == "route_custody_directory"
    os.chown(state, 0, -1)
    os.chown(parent, 12345, -1)
    assert _refused(path) == "route_custody_parent"


@pytest.mark.req("R65", "R66")
def test_a_default_acl_of_the_directory_is_refused(state: Path) -> None:
    path = _place(state, encode_record(records.first()))
    _set_acl(state, b"system.posix_acl_default")
    assert _refused(path) == "route_custody_acl"


@pytest.mark.req("R7")
@pytest.mark.parametrize(
    "path",
    [
        "routes.json",
        "",
        "/",
        "/x/",
        "/x//routes.json",
        "/x/./routes.json",
        "/x/../routes.json",
        "/x/\0",
        "/x/.hidden",
        "/x/-dash",
        "/x/" + "n" * 129,
        "/x/sp ace",
        "/" + "d" * 1024 + "/routes.json",
        "/x/é",
    ],
)
def test_a_path_that_is_not_plain_and_absolute_is_refused(path: str) -> None:
    assert _refused(path) == "route_custody_parent"


@pytest.mark.req("R60")
@pytest.mark.parametrize(
    "change",
    [
        {"base_url": "http://127.0.0.1:9/v1"},
        {"model": "other"},
        {"auth_env": "KEY"},
        {"serves": ["chat"]},
        {"params": {"a": 1}},
        {"model_identity": False},
        {"context_limit": "upstream"},
        {"total_timeout_ms": 1},
    ],
)
def test_a_changed_boot_file_is_refused(change: dict[str, object], state: Path) -> None:
    path = _place(state, encode_record(records.first()))
    before = path.read_bytes()
    assert _refused(path, records.boot(**change)) == "route_boot_mismatch"
    assert path.read_bytes() == before


@pytest.mark.req("R60")
def test_other_names_in_the_boot_file_are_refused_and_the_remedy_is_named(state: Path) -> None:
    path = _place(state, encode_record(records.first()))
    document = routes.to_json(records.boot())
    tiers = document["tiers"]
    assert isinstance(tiers, dict)
    tiers["third"] = tiers["primary"]
    with pytest.raises(
        AuthorityError, match=r"init --config FILE --rebase --expect-revision 1 --expect-sha [0-9a-f]{64}"
    ):
        store.open_authority(str(path), routes.parse(document), allow_volatile=True)


@pytest.mark.req("R97")
def test_a_file_older_than_the_ledger_is_refused_untouched(state: Path) -> None:
    path = _place(state, encode_record(records.first()))
    assert (
        _refused(path, cross_check=lambda record: store.check_not_rolled_back(record, 2)) == "route_state_rolled_back"
    )
    assert path.read_bytes() == encode_record(records.first())
    for seen in (None, 1):
        store.open_authority(
            str(path),
            records.boot(),
            allow_volatile=True,
            cross_check=lambda record, s=seen: store.check_not_rolled_back(record, s),
        ).close()


# --- platform and file system


@pytest.mark.req("R5")
@pytest.mark.parametrize("name", ["O_DIRECTORY", "O_NOFOLLOW", "fchmod", "geteuid"])
def test_a_platform_without_the_primitives_is_refused(name: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _place(state, encode_record(records.first()))
    monkeypatch.delattr(custody.os, name)
    with pytest.raises(AuthorityError) as refusal:
        custody.check_platform()
    assert refusal.value.code == "route_platform_unsupported"
    assert name in refusal.value.message
    assert path.exists()


@pytest.mark.req("R5")
def test_a_platform_without_descriptors_or_locks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins
    import fcntl

    monkeypatch.setattr(custody.os, "supports_dir_fd", set())
    with pytest.raises(AuthorityError, match=r"missing here: open, stat, unlink, rename$"):
        custody.check_platform()
    monkeypatch.undo()
    monkeypatch.delattr(fcntl, "flock")
    with pytest.raises(AuthorityError, match="flock"):
        custody.check_platform()
    monkeypatch.undo()
    real = builtins.__import__

    def without_fcntl(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "fcntl":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_fcntl)
    with pytest.raises(AuthorityError, match="fcntl"):
        custody.check_platform()


@pytest.mark.req("R73")
@pytest.mark.parametrize(
    "fstype",
    ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "lustre", "ceph", "fuse", "fuse.sshfs", "fuseblk", "tmpfs", "ramfs"],
)
def test_a_file_system_that_promises_nothing_is_refused(
    fstype: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _place(state, encode_record(records.first()))
    _mounted(monkeypatch, f"7 1 0:1 / / rw - {fstype} none rw\n")
    assert _refused(path, volatile=False) == "route_filesystem_unsupported"


@pytest.mark.req("R73")
@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs", "overlay", "zfs"])
def test_a_local_file_system_is_accepted(fstype: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _place(state, encode_record(records.first()))
    _mounted(monkeypatch, f"7 1 0:1 / / rw shared:1 - {fstype} none rw\n")
    store.open_authority(str(path), records.boot()).close()


@pytest.mark.req("R73")
@pytest.mark.parametrize("name", ["routes.json", "routes.json.lock"])
def test_a_single_file_mount_is_refused(name: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _place(state, encode_record(records.first()))
    point = str(state / name).replace(" ", "\\040")
    _mounted(monkeypatch, f"7 1 0:1 / / rw - ext4 none rw\n8 7 0:1 /x {point} rw - ext4 none rw\n")
    assert _refused(path) == "route_filesystem_unsupported"


def _mounted(monkeypatch: pytest.MonkeyPatch, mountinfo: str, fdinfo: str = "pos:\t0\nmnt_id:\t7\n") -> None:
    monkeypatch.setattr(custody, "_PLATFORM", "linux")
    monkeypatch.setattr(custody, "_read_text", lambda path: mountinfo if "mountinfo" in path else fdinfo)


def test_the_mount_is_found_without_help_of_the_kernel(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _place(state, encode_record(records.first()))
    text = "7 1 0:1 / / rw - ext4 none rw\n"
    text += f"8 7 0:1 / {state.parent} rw - xfs a\n9 7 0:2 / {state.parent} rw - nfs b\nnonsense\n"
    _mounted(monkeypatch, text, fdinfo="pos:\t0\n")
    assert _refused(path) == "route_filesystem_unsupported"
    _mounted(monkeypatch, "", fdinfo="")
    assert _refused(path) == "route_filesystem_unsupported"

    def unreadable(path: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(custody, "_read_text", unreadable)
    assert _refused(path) == "route_filesystem_unsupported"
    monkeypatch.setattr(custody, "_PLATFORM", "darwin")
    store.open_authority(str(path), records.boot()).close()


def test_mount_points_are_unescaped() -> None:
    mounts = custody.parse_mountinfo("36 35 98:0 /mnt1 /mnt\\040two\\134x rw,noatime master:1 - ext3 /dev/root rw\n")
    assert mounts == (custody.Mount(36, "/mnt two\\x", "ext3"),)


@pytest.mark.req("R66")
def test_a_list_of_access_rights_that_cannot_be_read_is_no_licence(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _place(state, encode_record(records.first()))

    def unreadable(fd: int, name: str) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "getxattr", unreadable)
    assert _refused(path) == UNSAFE
    monkeypatch.delattr(os, "getxattr")  # a platform that has none
    store.open_authority(str(path), records.boot(), allow_volatile=True).close()


def test_a_directory_that_cannot_be_entered_is_refused(state: Path) -> None:
    path = _place(state, encode_record(records.first()))

    class Denied(store.PosixDisk):
        __slots__ = ()

        def open(self, name: str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
            if name == "state":
                raise PermissionError(errno.EACCES, "Permission denied")
            return super().open(name, flags, mode, dir_fd=dir_fd)

    assert _refused(path, disk=Denied()) == "route_custody_directory"


# --- races


@pytest.mark.req("R66")
def test_a_file_that_changes_while_it_is_opened_is_refused(state: Path) -> None:
    path = _place(state, encode_record(records.first()))
    other = _place(state, encode_record(records.first()), "other.json")

    class Swapping(store.PosixDisk):
        __slots__ = ("how",)

        def open(self, name: str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
            if name == "routes.json":
                self.how()
            return super().open(name, flags, mode, dir_fd=dir_fd)

    disk = Swapping()
    disk.how = lambda: os.replace(other, path)
    assert _refused(path, disk=disk) == "route_custody_type"

    def link() -> None:
        path.unlink()
        path.symlink_to("elsewhere")

    disk.how = link
    assert _refused(path, disk=disk) == "route_custody_type"


def test_a_file_that_grows_while_it_is_read_is_refused(state: Path) -> None:
    path = _place(state, encode_record(records.first()))

    class Growing(store.PosixDisk):
        __slots__ = ()

        def read(self, fd: int, size: int) -> bytes:
            with open(path, "ab") as stream:
                stream.write(b"x" * 100_000)
            return super().read(fd, size)

    assert _refused(path, disk=Growing()) == "route_custody_type"


def test_running_out_of_descriptors_is_not_called_corruption(state: Path) -> None:
    path = _place(state, encode_record(records.first()))

    class Exhausted(store.PosixDisk):
        __slots__ = ()

        def open(self, name: str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
            if name == "routes.json":
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().open(name, flags, mode, dir_fd=dir_fd)

    with pytest.raises(AuthorityError, match="Too many open files") as refusal:
        store.open_authority(str(path), records.boot(), disk=Exhausted(), allow_volatile=True)
    assert refusal.value.code == UNSAFE


@pytest.mark.req("R5")
@pytest.mark.parametrize(("number", "code"), [(errno.EINVAL, "route_dirsync_unsupported"), (errno.EIO, UNSAFE)])
def test_a_directory_that_cannot_be_synchronised_is_refused_untouched(number: int, code: str, state: Path) -> None:
    path = _place(state, encode_record(records.first()))
    before = path.read_bytes()

    class NoDirectorySync(store.PosixDisk):
        __slots__ = ()

        def fsync(self, fd: int) -> None:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(number, os.strerror(number))
            super().fsync(fd)

    assert _refused(path, disk=NoDirectorySync()) == code
    assert path.read_bytes() == before


def test_a_record_of_the_wrong_authority_is_not_a_secret(state: Path) -> None:
    """Refusals name places and rules, never content."""
    record: Record = records.managed(records.first())
    data = encode_record(record).replace(b"campaign-7", b"sk-topsecret")
    path = _place(state, data)
    with pytest.raises(AuthorityError) as refusal:
        store.open_authority(str(path), records.boot(), allow_volatile=True)
    assert "topsecret" not in refusal.value.message
