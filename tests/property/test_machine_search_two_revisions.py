"""Every interleaving of the machine with clients, disk, upstream and operator: two revisions, one client."""

from __future__ import annotations

from tests.support.machine_gate import Search


class TestTwoRevisions(Search):
    NAME = "two revisions, one client"
