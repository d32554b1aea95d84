"""The model server behind the gateway of each table: it answers with the bytes it is given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.raw_upstream import RawUpstream, raw_upstream


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream() as server:
        yield server
