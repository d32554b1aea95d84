"""Every interleaving of the machine with clients, disk, upstream and operator: an alias of a model family."""

from __future__ import annotations

from tests.support.machine_gate import Search


class TestFamilies(Search):
    NAME = "a family alias, one client"
