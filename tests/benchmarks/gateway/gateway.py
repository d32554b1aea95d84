"""Starts the gateway under test: the product's own `run`, without the command line's imports in the RSS."""

from __future__ import annotations

import os
import sys

from sndr.router import app
from sndr.router.wire import boot

if __name__ == "__main__":
    sys.exit(app.run(boot.load(sys.argv[1], os.environ)))
