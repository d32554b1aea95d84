"""Starts the gateway under test: the product's own `run`, without the command line's imports in the RSS.

Usage: `gateway.py CONFIG [nolog] [nometrics] [nolease]`; each word leaves out a part that cannot be configured away, so
that its cost can be measured.
"""

from __future__ import annotations

import os
import sys

from sndr.router import app
from sndr.router.core.admission import Lease, TierRuntime
from sndr.router.wire import boot


def without(features: set[str], made: app.App) -> None:
    if "nolog" in features:
        made.gateway.journal = None  # type: ignore[misc]
    if "nometrics" in features:
        made.gateway.metrics = None  # type: ignore[misc]
    if "nolease" in features:
        runtime = next(iter(made.published.snapshot.runtimes.values()))
        lease = Lease(runtime, 0)
        TierRuntime.acquire = lambda *_: lease  # type: ignore[method-assign, assignment]
        Lease.delivered = Lease.release = lambda _: None  # type: ignore[method-assign]
        Lease.next_release_seq = lambda _: 0  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(
        app.run(
            boot.load(sys.argv[1], os.environ),
            attach=lambda made: without(set(sys.argv[2:]), made),
            allow_volatile=True,
        )
    )
