"""The gate begins with the files that take long."""

from __future__ import annotations

import pytest

from tests.support.cli import ROOT
from tests.support.order import LONG


def test_every_long_file_is_there() -> None:
    assert [name for name in LONG if not (ROOT / name).is_file()] == []
    assert len(set(LONG)) == len(LONG)


def test_they_come_first(request: pytest.FixtureRequest) -> None:
    names = [item.path.relative_to(ROOT).as_posix() for item in request.session.items]
    places = [LONG.index(name) if name in LONG else len(LONG) for name in names]
    assert places == sorted(places)
