"""The tasks of the Long Range Arena, from their sources to memory-mapped arrays.

    import lra.data
    from lra.data.prepare import find_or_prepare

    options = lra.data.configure("listops", ["source=tiny"])
    prepared = find_or_prepare(options, max_length=2000, data_dir="data")
    prepared.split("train").ids(index)  # or batches of tensors: lra.data.loader.Loader

Importing this costs nothing; a task's module is imported when the task is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lra.config import UserError, nearest

if TYPE_CHECKING:
    from lra.data.task import Task, TaskOptions

TASKS = {
    "listops": "lra.data.listops:ListOps",
    "text": "lra.data.text:Text",
    "retrieval": "lra.data.retrieval:Retrieval",
    "image": "lra.data.image:Image",
    "pathfinder": "lra.data.pathfinder:Pathfinder",
    "pathfinder64": "lra.data.pathfinder:Pathfinder64",
    "pathx": "lra.data.pathfinder:PathX",
    "pathfinder256": "lra.data.pathfinder:Pathfinder256",
}


def names() -> list[str]:
    """Every task, in the order of the benchmark's tables."""
    return list(TASKS)


def get(name: str) -> Task:
    """The task of that name."""
    if name not in TASKS:
        raise UserError(f"unknown task '{name}'{nearest(name, TASKS)}")
    module, _, cls = TASKS[name].partition(":")
    return getattr(importlib.import_module(module), cls)()


def configure(name: str, overrides: Sequence[str] = (), protocol: str = "luna") -> TaskOptions:
    """configs/task/<name>.yaml with `key=value` overrides, typed and checked; what it leaves to the
    protocol is that one's."""
    from lra.data.options import read

    return read(get(name), overrides, protocol)
