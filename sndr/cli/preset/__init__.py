"""``sndr preset``: the catalog's questions for a person at a terminal."""

from __future__ import annotations

from sndr.cli.main import LazyGroup

__all__ = ["preset"]

preset = LazyGroup(
    "preset",
    help="List, show, explain, recommend and validate presets.",
    short_help="List, show, explain, recommend and validate presets.",
    lazy={
        "list": ("sndr.cli.preset.listing:list_presets", "List the presets that match."),
        "show": ("sndr.cli.preset.listing:show", "Show one preset as it is written: pointers and card."),
        "explain": (
            "sndr.cli.preset.explain:explain",
            "Say what one preset composes to, and where each value is from.",
        ),
        "recommend": ("sndr.cli.preset.recommend:recommend", "Rank the presets for a workload or a request."),
        "validate": ("sndr.cli.preset.validate:validate", "Check the whole catalog, archive included."),
    },
)
