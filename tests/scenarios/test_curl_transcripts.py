"""curl's recorded view of a gateway; recorded anew by `python -m tests.support.curl_transcripts --rewrite`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import curl_transcripts

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.mark.parametrize("path", curl_transcripts.transcripts(), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    with curl_transcripts.gateway_url() as url:
        now = curl_transcripts.play(path, url)
    assert now.split("\n") == path.read_text().split("\n")
