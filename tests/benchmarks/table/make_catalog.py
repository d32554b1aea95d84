"""Write a catalog of N presets, each with a profile of its own: copies of shipped ones under numbered names.

Usage: python tests/benchmarks/table/make_catalog.py N FOLDER
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

SHIPPED = Path(__file__).parents[3] / "presets"


def make_catalog(count: int, folder: Path) -> None:
    """Write the catalog; `folder` must not exist.

    Models, hardware, routing data and evidence are the shipped ones, and the shipped presets stay, so that the rules'
    and gaps' targets exist; they count.
    """
    shutil.copytree(SHIPPED, folder)
    sources = []
    for file in sorted((SHIPPED / "presets").glob("*.yaml")):
        text = file.read_text("utf-8").replace("default_for_family: true", "default_for_family: false")
        line = next(line for line in text.splitlines() if line.startswith("profile: "))
        profile = line.removeprefix("profile: ").strip("'\"")
        sources.append((text, line, (SHIPPED / "profiles" / f"{profile}.yaml").read_text("utf-8")))
    for number in range(count - len(sources)):
        text, line, profile_text = sources[number % len(sources)]
        name = f"made-{number:05d}"
        (folder / "presets" / f"{name}.yaml").write_text(text.replace(line, f"profile: {name}"), "utf-8")
        (folder / "profiles" / f"{name}.yaml").write_text(profile_text, "utf-8")


if __name__ == "__main__":
    make_catalog(int(sys.argv[1]), Path(sys.argv[2]))
