"""Entry points: ``python3 -m sndr.cli`` and the ``sndr`` console script.

Kept apart from :mod:`sndr.cli.main` so that Ctrl-C is quiet while the imports are still going on.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

__all__ = ["console", "module"]


def console() -> NoReturn:
    """Run as the ``sndr`` console script."""
    quiet = _quiet_interrupt()
    from sndr.cli.main import console_root, run_process

    _restore_interrupt(quiet)
    run_process(console_root(), sys.argv[1:], "sndr")


def module() -> NoReturn:
    """Run as ``python3 -m sndr.cli``."""
    quiet = _quiet_interrupt()
    from sndr.cli.main import module_root, run_process

    _restore_interrupt(quiet)
    run_process(module_root(), sys.argv[1:], "python3 -m sndr.cli")


def _quiet_interrupt() -> bool:
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False  # ignored by whoever started us (nohup, a shell's background job): leave it so
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return True


def _restore_interrupt(quiet: bool) -> None:
    if quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    module()
