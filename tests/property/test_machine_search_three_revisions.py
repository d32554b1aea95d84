"""Every interleaving of the machine with clients, disk, upstream and operator: three revisions, no client."""

from __future__ import annotations

from tests.support.machine_gate import Search


class TestThreeRevisions(Search):
    NAME = "three revisions, no client"
