"""The file of operator quiescence."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import pytest

from sndr.router.store import admission
from sndr.router.store.admission import AdmissionFile, AdmissionStateError


def save(path: Path, quiesced: dict[str, str | None]) -> None:
    async def main() -> None:
        file = AdmissionFile(str(path))
        try:
            await file.save(quiesced)
        finally:
            await file.close()

    asyncio.run(main())


def test_one_thread_writes_all_and_none_is_needed_to_close(tmp_path: Path) -> None:
    async def main() -> None:
        file = AdmissionFile(str(tmp_path / "admission.json"))
        await file.close()
        for tier in ("a", "b"):
            await file.save({tier: None})
        assert [thread.name for thread in threading.enumerate()].count("sndr-admission") == 1
        await file.close()

    asyncio.run(main())
    assert AdmissionFile(str(tmp_path / "admission.json")).load() == {"b": None}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "admission.json"
    for content in ({"b": None, "a": "promotion"}, {}):
        save(path, content)
        assert AdmissionFile(str(path)).load() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_there_is_nothing_quiesced(tmp_path: Path) -> None:
    assert AdmissionFile(str(tmp_path / "none")).load() == {}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"\xff", b"{", b'{"schema":"sndr.admission-state/2","quiesced":{}}',
        b'{"schema":"sndr.admission-state/1"}', b'{"schema":"sndr.admission-state/1","quiesced":[]}',
        b'{"schema":"sndr.admission-state/1","quiesced":{"A b":null}}',
        b'{"schema":"sndr.admission-state/1","quiesced":{"a":1}}',
        b'{"schema":"sndr.admission-state/1","quiesced":{"a":"x","a":"y"}}', b" " * 70_000,
    ],
)  # fmt: skip
def test_a_file_that_leaves_doubt_stops_the_start_and_stays_as_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "admission.json"
    path.write_bytes(data)
    with pytest.raises(AdmissionStateError) as caught:
        AdmissionFile(str(path)).load()
    assert (caught.value.code, caught.value.exit_code) == ("admission_state_invalid", 2)
    assert path.read_bytes() == data


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(AdmissionStateError):
        AdmissionFile(str(tmp_path)).load()


def test_a_save_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "admission.json"
    save(path, {"a": None})
    path.chmod(0o600)
    missing = tmp_path / "missing" / "admission.json"
    with pytest.raises(OSError):
        save(missing, {"a": None})
    assert AdmissionFile(str(path)).load() == {"a": None}


def test_a_disk_that_stalls_holds_the_end_no_longer_than_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()

    def stall(*_: object) -> None:
        writing.set()
        assert go_on.wait(30)

    monkeypatch.setattr(admission, "write_atomic", stall)

    async def main() -> None:
        file = AdmissionFile(str(tmp_path / "admission.json"))
        saving = asyncio.create_task(file.save({"a": None}))
        await asyncio.to_thread(writing.wait, 30)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await file.close()
        assert not saving.done()  # it is the disk that was given up, not the write
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "sndr-admission")
        go_on.set()
        await saving
        await file.close()

    asyncio.run(main())
