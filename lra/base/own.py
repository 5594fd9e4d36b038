"""Tasks, metrics and attentions of a user who has no package: files in the folder of --config-dir.

    mine/tasks/foo.py   mine/metrics/foo.py   mine/attentions/foo.py

Each registers a class under the name of its file. The folder is shown to Python as an installed
package whose entry points these files are, so all that finds plug-ins finds them too.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any

GROUPS = {"tasks": "lra.tasks", "metrics": "lra.metrics", "attentions": "luna.attention"}
NAME = "lra-config-dir"  # of the package that the folder stands for


class Folder(Distribution):
    def __init__(self, path: Path):
        self.path = path

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return f"Name: {NAME}\nVersion: 0\n"
        if filename != "entry_points.txt":
            return None
        lines = list[str]()
        for kind, group in GROUPS.items():
            files = sorted((self.path / kind).glob("[!_]*.py"))
            lines += [f"[{group}]", *(f"{file.stem} = {file.stem}" for file in files)]
        return "\n".join(lines)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return self.path / path


class Finder(DistributionFinder):
    """On sys.meta_path, where importlib.metadata asks for packages; it imports nothing."""

    def __init__(self, folder: Path):
        self.folder = folder
        kinds = (folder / kind for kind in GROUPS)
        here = [str(place) for place in (folder, *filter(Path.is_dir, kinds))]
        self.places = [place for place in here if place not in sys.path]

    def find_spec(self, *args: Any) -> None:
        return None

    def find_distributions(
        self, context: DistributionFinder.Context = importlib.metadata.DistributionFinder.Context()
    ) -> Iterable[Distribution]:
        return [Folder(self.folder)] if context.name in (None, NAME) else []


def know(folder: Path | None) -> None:
    """Find the modules of this folder, behind all others so that they hide none, and no longer
    those of another one."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, Finder)]
    if [finder.folder for finder in finders] == ([folder] if folder else []):
        return
    for finder in finders:
        sys.meta_path.remove(finder)
        sys.path[:] = [place for place in sys.path if place not in finder.places]
    if folder:
        finder = Finder(folder)
        sys.meta_path.append(finder)
        sys.path.extend(finder.places)
