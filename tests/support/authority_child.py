"""A process that makes durable changes and says what it was told: the victim of kills, failed calls and power cuts.

    python -m tests.support.authority_child PATH OPERATION [--kill-at N] [--wait] [--count N] [--broken WRITER]

Prints `ready`, waits for a line with `--wait`, runs the operation and prints `told REVISION WRITE_SEQ SHA256` for each
answer that reached the caller, or `refused CODE`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from sndr.durable import PosixDisk
from sndr.errors import AuthorityError
from sndr.router.core.receipt import Record
from sndr.router.store import authority as store
from sndr.router.wire.record import encode_record
from tests.support import records
from tests.support.broken_writers import BROKEN


class KillingDisk(PosixDisk):
    """The real disk; the process dies before the call with this number."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_") or name == "left" or not callable(value):
            return value
        left = super().__getattribute__("left")
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left = left - 1
        return value


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _told(record: Record) -> None:
    _say(f"told {record.current.route_revision} {record.write_seq} {record.current.effective_route_sha256}")


def _report(result: store.WriteResult) -> None:
    if isinstance(result, store.Written):
        _told(result.record)
    else:
        _say(f"refused {type(result).__name__} {result.code}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("operation")
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--broken", choices=sorted(BROKEN))
    options = parser.parse_args()
    if options.broken is not None:
        store.replace_file = BROKEN[options.broken]  # type: ignore[assignment]
    disk = KillingDisk()
    boot = records.boot()
    step = next((step for step in records.steps() if step.name == options.operation), None)
    authority = None
    if step is not None:
        with open(options.path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            stream.write(encode_record(step.before))
            stream.flush()
            os.fsync(stream.fileno())
    if options.operation not in ("init", "W0"):
        authority = store.open_authority(options.path, boot, disk=disk, allow_volatile=True)
    _say("ready")
    if options.wait:
        sys.stdin.readline()
    disk.left = options.kill_at
    try:
        if step is not None:
            assert authority is not None
            _report(authority.write(step.after, boot))
        elif options.operation == "flips":
            assert authority is not None
            for number in range(options.count):
                tier = ("secondary", "primary")[number % 2]
                now = authority.record.current.projection.aliases["llm.primary"]
                if getattr(now, "tier", None) == tier:
                    continue
                _report(authority.write(records.alias_update(authority.record, "llm.primary", tier), boot))
        elif options.operation == "init":
            _told(store.create(options.path, boot, disk=disk, allow_volatile=True))
        else:
            _told(store.open_authority(options.path, boot, disk=disk, allow_volatile=True).record)
    except AuthorityError as error:
        _say(f"refused AuthorityError {error.code}")
    _say("done")


if __name__ == "__main__":
    main()
