"""Model servers and a gateway that the tests of one file share: they ask for them by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gateway import Gateway, unbroken_gateway
from tests.support.raw_upstream import RawUpstream, raw_upstream
from tests.support.synthetic import Synthetic, synthetic_process


@pytest.fixture(scope="module")
def synthetic() -> Iterator[Synthetic]:
    """A synthetic model server, as a process of its own."""
    with synthetic_process() as server:
        yield server


@pytest.fixture(scope="module")
def raw() -> Iterator[RawUpstream]:
    """A model server that answers with the bytes it is given."""
    with raw_upstream() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(
    request: pytest.FixtureRequest, synthetic: Synthetic, raw: RawUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with the file's BOOT, in which `{synthetic}` and `{raw}` are those servers."""
    boot = request.module.BOOT.format(synthetic=synthetic.base_url, raw=raw.base_url)
    with unbroken_gateway(boot, tmp_path_factory.mktemp("gateway")) as process:
        yield process
