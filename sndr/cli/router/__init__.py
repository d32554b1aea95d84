"""Thin verbs over the doors of the router."""

from __future__ import annotations

from sndr.cli.main import LazyGroup

__all__ = ["router"]

router = LazyGroup(
    "router",
    help="Serve models behind one address and change their routes live.",
    lazy={
        "init": ("sndr.cli.router.offline:init", "Create the authority file, or bind it to a changed boot file."),
        "inspect": ("sndr.cli.router.offline:inspect", "Print what is visible of the authority, without its lock."),
        "fsck": ("sndr.cli.router.offline:fsck", "Check the authority's files and name every fault."),
        "backup": ("sndr.cli.router.offline:backup", "Copy the usage ledger and the authority into a directory."),
        "synthetic-serve": (
            "sndr.cli.router.synthetic:synthetic_serve",
            "A small model server for tests and demonstrations.",
        ),
    },
)
