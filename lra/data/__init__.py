"""The tasks of the Long Range Arena, and a probe, from their sources to memory-mapped arrays.

    import lra.data
    from lra.data.prepare import find_or_prepare

    options = lra.data.configure("listops", ["source=tiny"])
    prepared = find_or_prepare(options, max_length=2000, data_dir="data")
    prepared.split("train").ids(index)  # or batches of tensors: lra.data.loader.Loader

Importing this costs nothing: the tasks are imported when one is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lra.config import UserError, nearest

if TYPE_CHECKING:
    from lra.data.task import Task, TaskOptions


@functools.cache
def tasks() -> dict[str, type[Task]]:
    """Every task by its name, in the order of the benchmark's tables."""
    from lra.data.image import Image
    from lra.data.listops.task import ListOps
    from lra.data.pathfinder.task import Pathfinder, Pathfinder64, Pathfinder256, PathX
    from lra.data.recall import Recall
    from lra.data.retrieval import Retrieval
    from lra.data.text import Text

    found: list[type[Task]] = [ListOps, Text, Retrieval, Image]
    found += [Pathfinder, Pathfinder64, PathX, Pathfinder256, Recall]
    return {task.name: task for task in found}


def names() -> list[str]:
    return list(tasks())


def arena() -> list[str]:
    """The tasks of the Long Range Arena, without the probes beside it."""
    return [name for name, task in tasks().items() if not task.probe]


def get(name: str) -> Task:
    """The task of that name."""
    if name not in tasks():
        raise UserError(f"unknown task '{name}'{nearest(name, tasks())}")
    return tasks()[name]()


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
