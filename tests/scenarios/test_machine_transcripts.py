"""The machine's transcripts still say what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machine_transcripts import FOLDER, main, replay

PATHS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.req("R26", "R32", "R37", "R39", "R41", "R44", "R77", "R84", "R87", "R89", "R103", "R118")
@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_transcript(path: Path) -> None:
    text = path.read_text("utf-8")
    assert replay(text) == text, "record it again with: python -m tests.support.machine_transcripts --rewrite"


def test_a_changed_transcript_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.machine_transcripts.FOLDER", tmp_path)
    (tmp_path / "one.txt").write_text("# c\n\nstart\n----\nwrong\n", "utf-8")
    assert main([]) == 1
    assert main(["--rewrite"]) == 0
    assert main([]) == 0
