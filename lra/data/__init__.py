"""The tasks of the Long Range Arena, and others, from their sources to memory-mapped arrays.

    import lra.data
    from lra.data.prepare import find_or_prepare

    options = lra.data.configure("listops", ["source=tiny"])
    prepared = find_or_prepare(options, max_length=2000, data_dir="data")
    prepared.split("train").ids(index)  # or batches of tensors: lra.data.loader.Loader

`register`, `from_arrays` and `from_hf` are for tasks and data of your own (docs/tasks.md), whose
classes need `Task`, `TaskOptions`, `Example`, `RawSplit` and `Job`. Importing this costs nothing:
a name's module is imported when the name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra.data.arrays import Example
    from lra.data.memory import from_arrays, from_hf
    from lra.data.registry import (
        builtin_tasks,
        configure,
        get,
        lra_tasks,
        names,
        of,
        of_facts,
        register,
    )
    from lra.data.task import Job, RawSplit, Source, Task, TaskOptions

__all__ = [
    "Example",
    "Job",
    "RawSplit",
    "Source",
    "Task",
    "TaskOptions",
    "builtin_tasks",
    "configure",
    "from_arrays",
    "from_hf",
    "get",
    "lra_tasks",
    "names",
    "of",
    "of_facts",
    "register",
]


def __getattr__(name: str) -> Any:
    for module in ("task", "arrays", "registry", "memory") if name in __all__ else ():
        holder = importlib.import_module(f"lra.data.{module}")
        if hasattr(holder, name):
            return getattr(holder, name)
    raise AttributeError(f"module 'lra.data' has no attribute '{name}'")
