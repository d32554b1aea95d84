"""Damaged authority files and management bodies, for as long as one likes:

    python -m tests.crash.fuzz --seconds 600 --seed 1

Every file is refused with its own error, or is exactly the bytes that its record encodes to; every body is refused with
a request error, or read. Nothing else may come out. Exit 1 if something did.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter

from sndr.errors import SndrError
from sndr.router.wire import operator_api
from sndr.router.wire.record import canonical, content_sha256, encode_record, parse_record
from tests.support import records

PIECES = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"1e999", b"NaN", b"-1", b"0", b"9" * 20, b"1.0",
    b"\xff", b"\x00", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000", b" ", b"\n", b'"a":1,"a":2', b"held", b"completed",
    b"[" * 40,
)  # fmt: skip
BODIES: list[dict[str, object]] = [
    {"op": "alias_update", "aliases": {"x": {"tier": "b"}}, "ttl_s": 60},
    {
        "op": "tier_replacement",
        "tiers": {"a": {"model": "m2", "max_concurrency": 3}},
        "mode": "prepare",
        "managed": True,
    },
    {"op": "rollback", "accept_unready": True},
    {
        "op": "resume",
        "transaction_id": "t",
        "evidence": {"campaign": {"id": "c", "sha256": "ab" * 32}, "containers": {}},
    },
    {"op": "recover", "transaction_id": None, "action": "reassert"},
    {"preview_id": "p", "preview_sha256": "ab" * 32, "confirm": True, "drain_timeout_s": 5, "verify_timeout_s": 0},
]


def mutate(data: bytes, chance: random.Random) -> bytes:
    """One to four changes: a piece in, a range out, a byte, a range twice, an end cut off."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        width = chance.choice((1, 1, 4, 30))
        kind = chance.randrange(6)
        if kind == 0:
            changed[at:at] = chance.choice(PIECES)
        elif kind == 1:
            del changed[at : at + width]
        elif kind == 2 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 3:
            changed[at:at] = changed[at : at + width]
        elif kind == 4:
            changed[at : at + width] = chance.choice(PIECES)
        else:
            del changed[at:]
    return bytes(changed)


ODD: tuple[object, ...] = (None, True, -1, 0, 2**53, 1.5, "", "held", "\ud800", "x" * 3000, [], {}, [None] * 20)


def reseal(data: bytes, chance: random.Random) -> bytes:
    """A whole file in the right form and with the right digest, one value of which is another or missing."""
    document = json.loads(data)
    del document["digest"]
    place: object = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place))) if isinstance(place, list) else []
        key = chance.choice(keys)
        inner = place[key]  # type: ignore[index]  # a container, as its keys were
        if isinstance(inner, dict | list) and inner and chance.random() < 0.8:
            place = inner
            continue
        if chance.random() < 0.3 and isinstance(place, dict):
            place.pop(key)
            if chance.random() < 0.5:
                place[f"{key}s"] = inner
        else:
            place[key] = chance.choice(ODD)  # type: ignore[index]  # as above
        break
    try:
        document["digest"] = content_sha256(document)
        return canonical(document)
    except (ValueError, UnicodeEncodeError):
        return data


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.fuzz")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    files = [encode_record(record) for step in records.steps() for record in (step.before, step.after)]
    bodies = [json.dumps(body).encode() for body in BODIES]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    ends = time.monotonic() + options.seconds
    while time.monotonic() < ends and len(wrong) < 20:
        for _ in range(50):
            data = chance.choice((mutate, reseal))(chance.choice(files), chance)
            counts["files"] += 1
            try:
                record = parse_record(data)
            except SndrError:
                continue
            except Exception as error:
                wrong.append(f"file {data!r}: {error!r}")
                continue
            counts["files read"] += 1
            if encode_record(record) != data:
                wrong.append(f"file {data!r}: read as another one")
        for _ in range(50):
            data = mutate(chance.choice(bodies), chance)
            read = operator_api.parse_apply if b"preview_id" in data else operator_api.parse_preview
            counts["bodies"] += 1
            try:
                read(data)
            except SndrError:
                continue
            except Exception as error:
                wrong.append(f"body {data!r}: {error!r}")
                continue
            counts["bodies read"] += 1
    for one in wrong:
        print(one)
    print(f"seed {options.seed}: {dict(counts)}, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
