"""Thin verbs over the doors of the router."""

from __future__ import annotations

from sndr.cli.main import LazyGroup

__all__ = ["router"]

router = LazyGroup(
    "router",
    help="Serve models behind one address and change their routes live.",
    lazy={
        "synthetic-serve": (
            "sndr.cli.router.synthetic:synthetic_serve",
            "A small model server for tests and demonstrations.",
        ),
    },
)
