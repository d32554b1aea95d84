"""A client's own condition on the routes: answered under these, or not at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from sndr.router.wire.openai_api import Refused

if TYPE_CHECKING:
    from sndr.router.core.snapshot import Snapshot
    from sndr.router.wire.http1 import RequestHead

__all__ = ["FENCE_FIELDS", "Fence", "read_fence"]

_REVISION: Final = b"x-sndr-require-revision"
_SHA256: Final = b"x-sndr-require-route-sha256"
FENCE_FIELDS: Final = frozenset((_REVISION, _SHA256))
_LEAST: Final = re.compile(rb">=[ \t]*([0-9]{1,16})")
_HASH: Final = re.compile(rb"[0-9a-f]{64}")


class Fence(NamedTuple):
    """What a client requires of the routes that its request is answered under.

    Attributes:
        least: Smallest revision; 0 requires none.
        sha256s: Every one of them must be the hash of the routes; more than one is never met.
    """

    least: int
    sha256s: frozenset[str]

    def check(self, snapshot: Snapshot) -> None:
        """Compare with the routes that a request is about to be bound to.

        Raises:
            Refused: 412 `route_fence_mismatch` with the current values. Without authority there are none, and
                nothing can be required of them.
        """
        revision, sha256 = snapshot.route_revision, snapshot.effective_route_sha256
        if revision is not None and revision >= self.least and self.sha256s <= {sha256}:
            return
        if revision is None:
            message = "the routes have no revision here: there is no live authority"
        else:
            message = (
                f"the routes are at revision {revision} with hash {sha256}, which is not what the request requires"
            )
        current = {"route_revision": revision, "effective_route_sha256": sha256}
        raise Refused(412, "route_fence_mismatch", message, more=current)


def read_fence(head: RequestHead) -> Fence | None:
    """The condition in a request's head, or None.

    Raises:
        Refused: 400, a condition that cannot be understood must not be taken for met.
    """
    if FENCE_FIELDS.isdisjoint(head.fields):
        return None
    least, sha256s = 0, set()
    for name, value, _ in head.headers:
        if name == _REVISION:
            found = _LEAST.fullmatch(value)
            if found is None:
                raise Refused(400, "invalid_request", "must be `>=` and a revision", param="x-sndr-require-revision")
            least = max(least, int(found[1]))
        elif name == _SHA256:
            if _HASH.fullmatch(value) is None:
                raise Refused(
                    400, "invalid_request", "must be 64 lower-case hex digits", param="x-sndr-require-route-sha256"
                )
            sha256s.add(value.decode())
    return Fence(least, frozenset(sha256s))
