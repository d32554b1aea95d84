"""For every test: the gate's coverage stays in this process; neither the caller's shell nor a slow machine decides."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.support.offline import stay_here
from tests.support.order import LONG

stay_here()

# No test asserts how long something took; a machine with other work is slow now and then.
settings.register_profile("sndr", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sndr")

for name in ("SOURCE_DATE_EPOCH", "SNDR_TRACEBACK"):
    os.environ.pop(name, None)


def pytest_configure(config: pytest.Config) -> None:
    """The gate starts coverage through the environment; what tests start would each pay for it otherwise.

    With workers it is they who run tests, so the process that starts them leaves the variables for them to inherit.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", default=None):
        for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
            os.environ.pop(name, None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The files that take long come first, in the order of the list; everything else stays as it was."""
    places = {config.rootpath / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))


# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that: the processes that tests
# interrupt would go on for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
