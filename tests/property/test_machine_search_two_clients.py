"""Every interleaving of the machine with clients, disk, upstream and operator: two clients."""

from __future__ import annotations

from tests.support.machine_gate import Search


class TestTwoClients(Search):
    NAME = "two clients"
