"""The authority's files without a gateway: init, rebase, inspect, fsck, backup, through the command line."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sndr.cli.main import console_root, run
from sndr.errors import AuthorityError, ControlError, InputError
from sndr.router import offline
from sndr.router.core import projection as routes
from sndr.router.core.receipt import Fence, Record
from sndr.router.store import authority as store
from sndr.router.store import usage_db
from sndr.router.wire.record import encode_record, parse_record
from tests.support import records

TOML = """
[server]
route_state_path = "{directory}/routes.json"
{usage}
[[router.tiers]]
id = "primary"
base_url = "http://127.0.0.1:8000/v1"
model = "{model}"
health_path = "/health"
[[router.tiers]]
id = "secondary"
base_url = "http://127.0.0.1:8001/v1"
model = "s1"
health_path = "/health"
[router.model_routes]
"llm.primary" = "primary"
"llm.secondary" = "secondary"
"""


class Site:
    """A state directory and a boot file, and the verbs run on them."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = directory / "state"
        self.state.mkdir(mode=0o700)
        self.path = self.state / "routes.json"
        self.usage = self.state / "usage.db"
        self.config = directory / "router.toml"
        self._capsys = capsys
        self.write()

    def write(self, model: str = "m1", usage: bool = True) -> None:
        line = f'usage_path = "{self.usage}"' if usage else ""
        self.config.write_text(TOML.format(directory=self.state, usage=line, model=model))

    def run(self, verb: str, *args: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        words = ["router", verb, "--config", str(self.config), "--allow-volatile-filesystem", *args]
        code = run(console_root(), words, "sndr")
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, verb: str, *args: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run(verb, *args, "--json")[1])
        return document

    def record(self) -> Record:
        return parse_record(self.path.read_bytes())

    def put(self, record: Record) -> None:
        self.path.unlink(missing_ok=True)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as stream:
            stream.write(encode_record(record))

    def rebase(self, *args: str) -> tuple[int, str, str]:
        fence = self.record().current.fence
        return self.run(
            "init",
            "--rebase",
            "--expect-revision",
            str(fence.route_revision),
            "--expect-sha",
            fence.effective_route_sha256,
            *args,
        )


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


@pytest.mark.req("R78")
def test_init_shows_first_and_writes_only_when_confirmed(site: Site) -> None:
    code, out, _ = site.run("init")
    assert code == 0
    assert "nothing was written; run it again with --confirm" in out
    assert os.listdir(site.state) == []
    plan = site.json("init")
    assert (plan["applied"], plan["from"], plan["to"]["route_revision"]) == (False, None, 1)
    code, out, _ = site.run("init", "--confirm")
    assert code == 0
    assert "created" in out
    assert site.record().current.route_revision == 1
    assert site.record().boot_sha256 == plan["to"]["effective_route_sha256"]
    assert sorted(os.listdir(site.state))[:2] == ["routes.json", "routes.json.lock"]
    for args in ((), ("--confirm",)):
        before = site.path.read_bytes()
        code, _, err = site.run("init", *args)
        assert code == 2
        assert err.startswith("sndr router: route_state_exists: ")
        assert site.path.read_bytes() == before


@pytest.mark.req("R102")
def test_init_makes_an_empty_ledger_only_where_there_is_none(site: Site) -> None:
    assert site.json("init", "--confirm")["usage_store"] == str(site.usage)
    usage_db.UsageDb.open(str(site.usage), readonly=True).close()
    site.path.unlink()
    assert site.json("init", "--confirm")["usage_store"] is None
    site.path.unlink()
    site.usage.unlink()
    assert "empty usage ledger" in site.run("init", "--confirm")[1]


@pytest.mark.req("R78", "R65")
def test_init_creates_no_directory_and_repairs_none(site: Site) -> None:
    site.state.chmod(0o755)
    code, _, err = site.run("init")
    assert (code, err.split(": ")[1]) == (2, "route_custody_directory")
    site.state.chmod(0o700)
    site.state.rmdir()
    code, _, err = site.run("init", "--confirm")
    assert (code, err.split(": ")[1]) == (2, "route_custody_directory")
    assert not site.state.exists()


@pytest.mark.parametrize(
    "args",
    [
        ("--expect-revision", "1"),
        ("--expect-sha", "0" * 64),
        ("--keep-live",),
        ("--rebase",),
        ("--rebase", "--expect-revision", "1"),
        ("--rebase", "--expect-revision", "0", "--expect-sha", "0" * 64),
        ("--rebase", "--expect-revision", "1", "--expect-sha", "X"),
    ],
)
def test_half_a_rebase_is_a_usage_error(args: tuple[str, ...], site: Site) -> None:
    code, _, err = site.run("init", *args)
    assert code == 2
    assert "usage" in err


@pytest.mark.req("R80")
def test_a_rebase_goes_forward_and_forgets_what_was_before(site: Site) -> None:
    site.run("init", "--confirm")
    site.put(records.completed(records.committed(records.held(replace(site.record(), write_seq=4)))))
    old = site.record()
    site.write(model="m3")
    code, out, _ = site.rebase()
    assert code == 0
    assert '/tiers/primary/model: "m2" -> "m3"' in out
    assert site.record() == old
    code, out, _ = site.rebase("--confirm")
    assert code == 0
    new = site.record()
    assert new.authority_id == old.authority_id
    assert new.current.route_revision == old.current.route_revision + 1
    assert new.current.projection.tiers["primary"].model == "m3"
    assert (new.previous, new.transaction) == (None, None)
    assert new.write_seq == old.write_seq + 1
    assert site.run("fsck")[0] == 0


@pytest.mark.req("R80")
def test_a_rebase_may_keep_live_changes_and_then_rises_only_if_something_differs(site: Site) -> None:
    site.run("init", "--confirm")
    site.put(records.alias_update(replace(site.record(), write_seq=4)))
    site.write(model="m3")
    code, out, _ = site.rebase("--keep-live", "--confirm")
    assert code == 0
    assert "revision 2" in out
    now = site.record()
    assert now.current.route_revision == 2
    assert now.current.projection.aliases["llm.primary"] == routes.TierTarget("secondary")
    assert now.current.projection.tiers["primary"].model == "m1"
    assert now.boot_sha256 != routes.sha256(now.current.projection)
    text = site.config.read_text().replace('id = "secondary"', 'id = "other"').replace('"secondary"', '"other"')
    site.config.write_text(text)
    code, _, _ = site.rebase("--keep-live", "--confirm")
    assert code == 0
    assert site.record().current.route_revision == 3
    assert set(site.record().current.projection.tiers) == {"primary", "other"}


@pytest.mark.req("R80")
def test_a_rebase_is_refused_when_the_operator_is_wrong_or_something_is_open(site: Site) -> None:
    site.run("init", "--confirm")
    sha = site.record().current.effective_route_sha256
    for revision, wanted in (("2", sha), ("1", "0" * 64)):
        code, _, err = site.run("init", "--rebase", "--expect-revision", revision, "--expect-sha", wanted, "--confirm")
        assert (code, err.split(": ")[1]) == (2, "route_fence_mismatch")
    site.put(records.held(replace(site.record(), write_seq=4)))
    before = site.path.read_bytes()
    code, _, err = site.rebase("--confirm")
    assert (code, err.split(": ")[1]) == (2, "transaction_in_progress")
    assert site.path.read_bytes() == before


def test_a_damaged_file_is_neither_rebased_nor_called_clean(site: Site) -> None:
    site.run("init", "--confirm")
    fence = site.record().current.fence
    site.path.write_bytes(b"{}")
    for _ in range(2):
        code, _, err = site.run(
            "init", "--rebase", "--expect-revision", "1", "--expect-sha", fence.effective_route_sha256, "--confirm"
        )
        assert (code, err.split(": ")[1]) == (2, "route_state_unsafe")
    assert site.path.read_bytes() == b"{}"
    code, _, err = site.run("fsck")
    assert code == 1
    assert "/authority_id: is missing" in err


@pytest.mark.req("R63")
def test_a_running_router_keeps_offline_writers_out(site: Site) -> None:
    site.run("init", "--confirm")
    running = store.open_authority(str(site.path), records.boot(), allow_volatile=True)
    code, _, err = site.rebase("--confirm")
    assert (code, err.split(": ")[1]) == (3, "route_lock_held")
    assert site.run("inspect")[0] == 0
    assert site.run("backup", str(site.state / "copy"))[0] == 0
    running.close()


def test_a_rebase_whose_write_fails_says_what_is_known(site: Site) -> None:
    site.run("init", "--confirm")

    class Failing(store.PosixDisk):
        __slots__ = ("left",)

        def fsync(self, fd: int) -> None:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    files = offline.load(str(site.config))
    for left, kind, code in (
        (2, ControlError, "authority_write_failed"),
        (3, AuthorityError, "authority_write_uncertain"),
    ):
        disk = Failing()
        disk.left = left
        with pytest.raises(kind) as failure:
            offline.rebase(files, site.record().current.fence, confirm=True, allow_volatile=True, disk=disk)
        assert failure.value.code == code


def test_a_rebase_beyond_the_last_revision_or_into_nonsense_is_refused(site: Site) -> None:
    site.run("init", "--confirm")
    first = site.record()
    site.put(replace(first, current=replace(first.current, route_revision=routes.INTEGER_MAX - 1)))
    code, _, err = site.rebase("--confirm")
    assert (code, err.split(": ")[1]) == (2, "revision_exhausted")
    heavy = {f"t{i}": {"base_url": "http://h/v1", "params": {"a": "x" * 2000, "b": "y" * 1500}} for i in range(24)}
    light = {f"t{i}": {"base_url": "http://h/v1"} for i in range(24)} | {
        f"u{i}": {"base_url": "http://h/v1", "params": {"a": "x" * 2000}} for i in range(12)
    }
    live = routes.parse({"aliases": {}, "tiers": heavy}, fill=True)
    boot = routes.parse({"aliases": {}, "tiers": light}, fill=True)
    site.put(records.first(live))
    files = replace(offline.load(str(site.config)), projection=boot)
    with pytest.raises(ControlError) as refusal:
        offline.rebase(files, records.first(live).current.fence, keep_live=True, allow_volatile=True)
    assert refusal.value.code == "invalid_change"


@pytest.mark.req("R62")
def test_inspect_says_that_it_is_unfenced_and_what_it_sees(site: Site) -> None:
    site.run("init", "--confirm")
    site.put(records.committed(records.held(replace(site.record(), write_seq=4))))
    (site.state / f".routes.json.{'a' * 32}.tmp").write_bytes(b"x")
    code, out, err = site.run("inspect")
    assert (code, err) == (0, "")
    assert "(unfenced: read without the lock)" in out
    assert "current:  revision 2" in out
    assert "previous: revision 1" in out
    assert "tier_replacement committed, scope primary, held" in out
    assert "leftover of an interrupted write: .routes.json." in out
    document = site.json("inspect")
    assert document["unfenced"] is True
    assert document["current"]["route_revision"] == 2
    assert document["transaction"]["hold"] is True
    site.put(records.alias_update(replace(records.first(site.record().previous.projection), write_seq=9)))  # type: ignore[union-attr]
    assert "alias_update completed\n" in site.run("inspect")[1]


@pytest.mark.req("R72", "R75")
def test_fsck_names_every_planted_violation(site: Site) -> None:
    site.run("init", "--confirm")
    assert site.run("fsck") == (0, f"{site.path}: clean\n", "")
    assert site.json("fsck")["problems"] == []
    document = json.loads(encode_record(records.committed(records.held(site.record()))))
    document["transaction"]["scope"] = ["ghost"]
    document["transaction"]["drain"]["cut"] = 3
    document["previous"]["route_revision"] = 9
    del document["digest"]
    document["digest"] = hashlib.sha256(routes.canonical(document)).hexdigest()
    site.path.write_bytes(routes.canonical(document))
    site.path.chmod(0o640)
    (site.state / "routes.json.lock").chmod(0o644)
    site.state.chmod(0o750)
    code, out, err = site.run("fsck")
    assert code == 1
    found = [line.split(": ")[:2] for line in err.splitlines()]
    for expected in (
        ["route_custody_directory", str(site.state)],
        ["route_custody_mode", f"{site.path}.lock"],
        ["route_custody_mode", str(site.path)],
        ["route_state_unsafe", "/transaction/scope"],
        ["route_state_unsafe", "/transaction/drain"],
        ["route_state_unsafe", "/previous/route_revision"],
    ):
        assert expected in found
    assert f"{len(found)} findings" in out


@pytest.mark.req("R60", "R97", "R102")
def test_fsck_compares_with_boot_file_and_ledger(site: Site) -> None:
    site.run("init", "--confirm")
    site.write(model="m3")
    assert site.run("fsck")[2].startswith("route_boot_mismatch: /boot/projection_sha256: ")
    site.write()
    with sqlite3.connect(site.usage) as db:
        db.execute(
            "INSERT INTO authorities (authority_id, max_route_revision) VALUES (?, 5)", (site.record().authority_id,)
        )
    db.close()
    assert site.run("fsck")[2].startswith("route_state_rolled_back: ")
    site.write(usage=False)
    assert site.run("fsck")[2].startswith("usage_store_required: ")
    site.write()
    site.usage.unlink()
    for side in ("-wal", "-shm"):
        Path(f"{site.usage}{side}").unlink(missing_ok=True)
    assert site.run("fsck")[2].startswith("usage_store_missing: ")


def test_a_ledger_that_breaks_while_it_is_read_is_a_finding(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.run("init", "--confirm")

    def broken(self: object, authority_id: str) -> int:
        raise sqlite3.DatabaseError("disk image is malformed")

    monkeypatch.setattr(usage_db.UsageDb, "max_route_revision", broken)
    assert site.run("fsck")[2].startswith("usage_unusable: ")
    monkeypatch.setattr(usage_db.UsageDb, "backup", broken)
    code, _, err = site.run("backup", str(site.state / "copy"))
    assert (code, err.split(": ")[1]) == (2, "backup_failed")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: None, "route_state_missing"),
        (lambda path: path.mkdir(), "route_custody_type"),
        (lambda path: path.symlink_to("x"), "route_custody_type"),
        (lambda path: os.mkfifo(path), "route_custody_type"),
    ],
)
def test_what_cannot_be_read_is_exit_2(make: Any, code: str, site: Site) -> None:
    usage_db.create(str(site.usage))
    make(site.path)
    for verb in ("fsck", "inspect"):
        status, _, err = site.run(verb)
        assert status == 2
        assert code in err
    assert site.run("backup", str(site.state / "copy"))[0] == 2


def test_fsck_of_a_directory_that_is_not_there_is_exit_2(site: Site) -> None:
    site.state.rmdir()
    code, _, err = site.run("fsck")
    assert code == 2
    assert "route_custody_directory" in err


def test_looking_survives_a_disk_that_does_not(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.run("init", "--confirm")

    class Broken(store.PosixDisk):
        __slots__ = ()

        def listdir(self, fd: int) -> list[str]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    seen = store.look(str(site.path), disk=Broken(), allow_volatile=True)
    assert [problem.code for problem in seen.problems] == ["route_state_unsafe"]
    assert [problem.code for problem in store.look("routes.json").problems] == ["route_custody_parent"]
    monkeypatch.setattr("sndr.router.store.custody._PLATFORM", "linux")
    monkeypatch.setattr("sndr.router.store.custody._read_text", lambda path: "")
    assert [problem.code for problem in store.look(str(site.path)).problems] == ["route_filesystem_unsupported"]


@pytest.mark.req("R97")
def test_a_backup_is_ledger_first_private_and_overwrites_nothing(site: Site) -> None:
    site.run("init", "--confirm")
    target = site.state / "copy"
    code, out, _ = site.run("backup", str(target))
    assert code == 0
    assert out.split() == [str(target / "usage.db"), str(target / "routes.json")]
    assert (target / "routes.json").read_bytes() == site.path.read_bytes()
    assert [stat.S_IMODE((target / name).stat().st_mode) for name in os.listdir(target)] == [0o600, 0o600]
    code, _, err = site.run("backup", str(target))
    assert (code, err.split(": ")[1]) == (2, "backup_exists")
    document = site.json("backup", str(site.state / "second"))
    assert document["route_revision"] == 1
    assert len(document["files"]) == 2
    open_directory = site.state / "open"
    open_directory.mkdir(mode=0o755)
    assert site.run("backup", str(open_directory))[2].split(": ")[1] == "backup_directory_open"
    assert site.run("backup", str(site.config))[2].split(": ")[1] == "backup_failed"
    site.write(usage=False)
    assert len(site.json("backup", str(site.state / "third"))["files"]) == 1


def test_a_backup_of_two_files_with_one_name_is_refused(site: Site) -> None:
    site.run("init", "--confirm")
    files = replace(offline.load(str(site.config)), usage_path="/elsewhere/routes.json")
    with pytest.raises(InputError, match="same name"):
        offline.backup(files, str(site.state / "copy"), allow_volatile=True)


@pytest.mark.scenario("S18")
def test_a_backup_can_be_started_from(site: Site) -> None:
    site.run("init", "--confirm")
    site.put(records.alias_update(replace(site.record(), write_seq=4)))
    target = site.state / "copy"
    site.run("backup", str(target))
    opened = store.open_authority(str(target / "routes.json"), records.boot(), allow_volatile=True)
    assert opened.record.current.fence == Fence(2, site.record().current.effective_route_sha256)
    opened.close()


def test_a_boot_file_without_an_authority_is_refused(site: Site) -> None:
    site.config.write_text("\n".join(line for line in site.config.read_text().split("\n") if "route_state" not in line))
    code, _, err = site.run("inspect")
    assert (code, err.split(": ")[1]) == (2, "route_state_not_configured")
    site.config.write_text("[server]\nnonsense = 1\n")
    code, _, err = site.run("inspect")
    assert code == 2
    assert "nonsense" in err
