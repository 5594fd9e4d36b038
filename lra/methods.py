"""Which methods there are, and what their classes say of themselves, without an import of torch.

What our own say is kept in catalogue.json beside this file; `lra list --write` (`make tables`)
writes it. Any other method is asked: one of a plug-in, and a new one until then.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lra.base import groups
from lra.base.code import find_source
from lra.base.disk import read_json
from lra.base.places import PACKAGE

KEPT = PACKAGE / "catalogue.json"
ENTRY_POINTS = "luna.attention"  # as luna/registry.py has it, whose import would take torch
OTHER = "other"  # the family of a method that states none


@dataclass(frozen=True)
class Said:
    """What a class says of how its method is shown."""

    title: str  # what it is called in words
    family: str = OTHER
    marker: str = ""  # of matplotlib; empty where it states none


def names() -> list[str]:
    if "luna.method" in sys.modules:  # methods may be registered in this process
        return list(sys.modules["luna"].names())
    return sorted({*ours(), *groups.installed(ENTRY_POINTS)})


def ours() -> dict[str, str]:
    """The modules of our own methods, attentions and mixers, by name."""
    found: dict[str, str] = {}
    for folder in ("luna.attention", "luna.mixers"):
        package = find_source(folder)
        files = package.parent.glob("[!_]*.py") if package else ()
        found |= {file.stem: f"{folder}.{file.stem}" for file in files}
    return found


def kept() -> dict[str, dict[str, str]]:
    """What catalogue.json says of each of our methods."""
    return _read(KEPT)


@cache
def _read(file: Path) -> dict[str, Any]:
    return read_json(file) or {}


def said_of(name: str) -> Said:
    """What a method says of itself; of one that is not here, such as another's in a record, its
    name."""
    if row := kept().get(name):
        return Said(row["title"] or name, row["family"], row["marker"])
    if name not in names():
        return Said(name)
    import luna

    try:
        cls = luna.get(name)
    except Exception:  # whatever a plug-in raises: to be shown, a name suffices
        return Said(name)
    return Said(cls.title or name, cls.family, cls.marker)
