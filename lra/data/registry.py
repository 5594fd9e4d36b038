"""The tasks by their names: those of this package, registered classes, installed packages.

A class needs its facts and `splits`; Task has a default for everything else (docs/tasks.md).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import re
import textwrap
from typing import Any, TypeVar

from lra.base import code
from lra.base.config import UserError, nearest
from lra.data.task import Task, TaskOptions

ENTRY_POINTS = "lra.tasks"
CONSTANTS = (bool, int, float, str, bytes, tuple, list, dict, type(None))
_registered: dict[str, type[Task]] = {}
T = TypeVar("T", bound=type[Task])


@functools.cache
def builtin_tasks() -> dict[str, Task]:
    """Import the tasks of this package: by name, in the order of the benchmark's tables."""
    from lra.data.image import Image, Image8
    from lra.data.listops.task import ListOps
    from lra.data.pathfinder.task import PATHFINDERS
    from lra.data.recall import Recall
    from lra.data.retrieval import Retrieval
    from lra.data.text import Text

    tasks: list[Task] = [ListOps(), Text(), Retrieval(), Image()]
    tasks += [*PATHFINDERS, Image8(), Recall()]
    return {task.name: task for task in tasks}


def lra_tasks() -> list[str]:
    """Name the tasks of the Long Range Arena, without the probes beside it."""
    return [name for name, task in builtin_tasks().items() if not task.probe]


def added_tasks() -> list[str]:
    return sorted({*_registered, *_entries()})


def names() -> list[str]:
    return [*builtin_tasks(), *added_tasks()]


def get(name: str) -> Task:
    """Give the task of that name; an installed one is imported now."""
    if name in builtin_tasks():
        return builtin_tasks()[name]
    entry = _entries().get(name)
    if entry is not None and name not in _registered:
        try:
            register(entry.load())
        except (ImportError, AttributeError) as error:
            raise UserError(
                f"task '{name}' of {entry.value} cannot be imported: {error}"
            ) from error
    if name not in _registered:
        raise UserError(f"unknown task '{name}'{nearest(name, names())}")
    return _registered[name]()


def of(options: TaskOptions) -> Task:
    """Give the task of these options, with the facts that they decide."""
    task = get(options.name)
    return task.configured(task.matters(options))


def of_facts(facts: dict[str, Any]) -> Task:
    return get(facts["task"]).configured(facts["options"])


def register(task: T) -> T:
    """Make a class known as `task=<name>`: a decorator. Its data are prepared anew when its code
    changes."""
    check_class(task)
    digest = task.encoding.get("code", "")
    if digest in ("", *(getattr(base, "encoding", {}).get("code") for base in task.__mro__[1:])):
        # Both: a parent's hash misses this class, and this one may miss the parent (in a notebook).
        task.encoding = {**task.encoding, "code": digest + _hash_class(task)}
    _registered[task.name] = task
    return task


def _hash_class(task: type[Task]) -> str:
    """Hash the module of a class with what it imports of its own package; of a class that was typed
    into a notebook, for which Python finds no file, hash its functions and constants."""
    if code.find_source(task.__module__) is not None:
        return code.hash_modules(task.__module__)
    lines = []
    for name, value in vars(task).items():
        function = getattr(value, "__func__", getattr(value, "fget", value))  # of a decorator
        if inspect.isfunction(function):
            try:
                lines.append(textwrap.dedent(inspect.getsource(function)))
            except OSError as error:
                raise UserError(
                    f"the source of {task.__name__} cannot be found: define it in a file or a "
                    "notebook"
                ) from error
        elif not name.startswith("__") and isinstance(value, CONSTANTS):
            lines.append(f"{name} = {value!r}")
    return code.parse("\n".join(lines).encode())[0]


def check_class(task: type[Task]) -> None:
    """Refuse a class that lacks what a task needs."""
    name = getattr(task, "name", "")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(
            f"the name of a task is lower-case letters, digits and underscores, not {name!r}"
        )
    if name in builtin_tasks():
        raise UserError(f"there is a task '{name}' already; choose another name")
    missing = [key for key in ("classes", "vocab", "max_length") if not hasattr(task, key)]
    if missing:
        raise UserError(f"task '{name}' lacks {', '.join(missing)}")
    if not dataclasses.is_dataclass(task.Options) or not issubclass(task.Options, TaskOptions):
        raise UserError(f"{name}.Options must be a dataclass that extends lra.data.TaskOptions")
    for field in dataclasses.fields(task.Options):
        open_ = field.default is field.default_factory is dataclasses.MISSING
        if open_ and field.name not in ("name", "source"):
            raise UserError(f"{name}.Options.{field.name} needs a default")


def _entries() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
