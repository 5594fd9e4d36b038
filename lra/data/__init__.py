"""The tasks of the Long Range Arena, and two probes, from their sources to memory-mapped arrays.

    import lra.data
    from lra.data.prepare import find_or_prepare

    options = lra.data.configure("listops", ["source=tiny"])
    prepared = find_or_prepare(options, max_length=2000, data_dir="data")
    prepared.split("train").ids(index)  # or batches of tensors: lra.data.loader.Loader

`register`, `from_arrays` and `from_hf` are for tasks and data of your own (docs/tasks.md), whose
classes need `Task`, `TaskOptions`, `Example`, `RawSplit` and `Job`. Importing this costs nothing:
the tasks are imported when one is asked for.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lra.base.config import UserError, nearest

if TYPE_CHECKING:
    from lra.data.arrays import Example
    from lra.data.own import from_arrays, from_hf, register
    from lra.data.task import Job, RawSplit, Source, Task, TaskOptions

__all__ = [
    "Example", "Job", "RawSplit", "Source", "Task", "TaskOptions", "arena", "configure",
    "from_arrays", "from_hf", "get", "names", "of", "of_facts", "ours", "register",
]  # fmt: skip

_PUBLIC = {
    "arrays": ("Example",),
    "own": ("from_arrays", "from_hf", "register"),
    "task": ("Job", "RawSplit", "Source", "Task", "TaskOptions"),
}


def __getattr__(name: str) -> Any:
    for module, public in _PUBLIC.items():
        if name in public:
            return getattr(importlib.import_module(f"lra.data.{module}"), name)
    raise AttributeError(f"module 'lra.data' has no attribute '{name}'")


@functools.cache
def ours() -> dict[str, type[Task]]:
    """The tasks of this package by their names, in the order of the benchmark's tables."""
    from lra.data.image import Image, Image8
    from lra.data.listops.task import ListOps
    from lra.data.pathfinder.task import Pathfinder, Pathfinder64, Pathfinder256, PathX
    from lra.data.recall import Recall
    from lra.data.retrieval import Retrieval
    from lra.data.text import Text

    found: list[type[Task]] = [ListOps, Text, Retrieval, Image]
    found += [Pathfinder, Pathfinder64, PathX, Pathfinder256, Image8, Recall]
    return {task.name: task for task in found}


def names() -> list[str]:
    """Ours, then those that were registered or installed (lra/data/own.py)."""
    from lra.data import own

    return [*ours(), *own.names()]


def arena() -> list[str]:
    """The tasks of the Long Range Arena, without the probes beside it."""
    return [name for name, task in ours().items() if not task.probe]


def get(name: str) -> Task:
    """The task of that name."""
    from lra.data import own

    task = ours().get(name) or own.get(name)
    if task is None:
        raise UserError(f"unknown task '{name}'{nearest(name, names())}")
    return task()


def of(options: TaskOptions) -> Task:
    """The task of these options, with the facts that they decide."""
    task = get(options.name)
    return task.configured(task.matters(options))


def of_facts(facts: dict[str, Any]) -> Task:
    """The task of a manifest's facts."""
    return get(facts["task"]).configured(facts["options"])


def configure(name: str, overrides: Sequence[str] = (), protocol: str = "luna") -> TaskOptions:
    """The options of configs/task/<name>.yaml with `key=value` overrides, typed and checked; what
    that file leaves to the protocol comes from the protocol's own."""
    from lra.data.options import read

    return read(get(name), overrides, protocol)
