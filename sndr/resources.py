"""Where the shipped catalog and the published schemas lie: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import os

__all__ = ["presets_dir", "schemas_dir"]


def presets_dir() -> str:
    """Return the folder of the shipped catalog."""
    return _find("presets")


def schemas_dir() -> str:
    """Return the folder of the published JSON Schemas and conformance vectors."""
    return _find("schemas")


def _find(name: str) -> str:
    """Return the installed folder if there is one, else the checkout's (an editable install is a checkout)."""
    package = os.path.dirname(os.path.abspath(__file__))
    installed = os.path.join(package, "_data", name)
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), name)
