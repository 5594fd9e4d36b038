"""Tasks by their names (of this package, registered classes, installed packages), and options by
the words of a config or a command. A task's module is imported when its name is used.

A class needs its facts and `splits`; Task has a default for everything else (docs/tasks.md).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.base import code
from lra.base.errors import WRONG_TYPE, UserError, first_line, nearest, of_type
from lra.base.registry import Registry
from lra.data.task import Task, TaskOptions, plain_value

CONSTANTS = (bool, int, float, str, bytes, tuple, list, dict, type(None))
T = TypeVar("T", bound=type[Task])


# The tasks of this package in the order of the benchmark's tables, and where each is made.
BUILTIN = {
    "listops": "lra.data.listops.task:ListOps",
    "text": "lra.data.text:Text",
    "retrieval": "lra.data.retrieval:Retrieval",
    "image": "lra.data.image:Image",
    "pathfinder": "lra.data.pathfinder.task:Pathfinder32",
    "pathfinder64": "lra.data.pathfinder.task:Pathfinder64",
    "pathx": "lra.data.pathfinder.task:PathX",
    "pathfinder256": "lra.data.pathfinder.task:Pathfinder256",
    "image8": "lra.data.image:Image8",
    "image16": "lra.data.image:Image16",
    "recall": "lra.data.recall:Recall",
    "single": "lra.data.single:Single",
    "fuzzy": "lra.data.mad:Fuzzy",
    "memorise": "lra.data.mad:Memorise",
    "hops": "lra.data.hops:Hops",
    "forgetting": "lra.data.forgetting:Forgetting",
    "spatial": "lra.data.spatial:Spatial",
    "group": "lra.data.group:Words",
    "bytes": "lra.data.bytes:Bytes",
    "series": "lra.data.series:Series",
}


@functools.cache
def _builtin(name: str) -> Task:
    return TASKS.get(name)()


def builtin_tasks() -> dict[str, Task]:
    """Import all tasks of this package.

    returns  the tasks by their names, in the order of BUILTIN
    """
    return {name: _builtin(name) for name in BUILTIN}


def lra_tasks() -> list[str]:
    """Name the tasks of the Long Range Arena.

    returns  their names, without the probes beside it
    """
    return [name for name, task in builtin_tasks().items() if not task.probe]


def added_tasks() -> list[str]:
    return TASKS.others()


def names() -> list[str]:
    """Name all tasks.

    returns  their names, also of those that packages and notebooks have added
    """
    return TASKS.names()


def get(name: str) -> Task:
    """Give the task of that name, which is imported now.

    name     one of `lra.data.names()`
    returns  the task, with the defaults of its options
    """
    return _builtin(name) if name in BUILTIN else TASKS.get(name)()


def of(options: TaskOptions) -> Task:
    """Give the task of these options.

    options  from `configure`, or `task` of a run
    returns  the task, with the facts that the options decide
    """
    task = get(options.name)
    return task.configured(task.matters(options))


def of_facts(facts: dict[str, Any]) -> Task:
    """Give the task that prepared data were made for.

    facts    those of its manifest: `task`, and the `options` that decided the data
    returns  the task, with the facts that these options decide
    """
    return get(facts["task"]).configured(facts["options"])


def register(task: T) -> T:
    """Make a class known as `task=<name>`: a decorator. Its data are prepared anew when its code
    changes.

    task     a subclass of `Task`, with `name`, `classes`, `vocab`, `max_length` and `splits`
    returns  the class
    """
    check_class(task)
    digest = task.encoding.get("code", "")
    if digest in ("", *(getattr(base, "encoding", {}).get("code") for base in task.__mro__[1:])):
        # Both: a parent's hash misses this class, and this one may miss the parent (in a notebook).
        task.encoding = {**task.encoding, "code": digest + _hash_class(task)}
    TASKS.add(task.name, task)
    return task


TASKS = Registry[Task](
    "task", builtin=BUILTIN, entry_points="lra.tasks", register=register, unknown="unknown task"
)


def _hash_class(task: type[Task]) -> str:
    """Hash the module of a class with what it imports of its own package; of a class that was typed
    into a notebook, for which Python finds no file, hash its functions and constants."""
    if code.find_source(task.__module__) is not None:
        return code.hash_modules(task.__module__)
    return hash_body(task)


def hash_body(made: type) -> str:
    """Hash the functions and constants of a class."""
    lines = []
    for name, value in vars(made).items():
        function = getattr(value, "__func__", getattr(value, "fget", value))  # of a decorator
        if inspect.isfunction(function):
            lines.append(textwrap.dedent(_source_of(function, made)))
        elif not name.startswith("__") and isinstance(value, CONSTANTS):
            lines.append(f"{name} = {value!r}")
    return code.parse("\n".join(lines).encode())[0]


def _source_of(function: Callable[..., Any], made: type) -> str:
    try:
        return inspect.getsource(function)
    except OSError as error:  # typed into a Python that keeps no text of it
        raise UserError(
            f"{made.__name__} was typed where Python keeps no source, so nothing could tell an "
            "edited one from it: put it into a file, or a notebook's cell"
        ) from error


def check_class(task: type[Task]) -> None:
    """Refuse a class that lacks what a task needs."""
    name = getattr(task, "name", "")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,99}", name):
        raise UserError(
            "the name of a task is lower-case letters, digits and underscores, at most 100, "
            f"not {name!r:.120}"
        )
    if name in BUILTIN:
        raise UserError(f"there is a task '{name}' already; choose another name")
    if missing := [key for key in ("classes", "vocab", "max_length") if not hasattr(task, key)]:
        raise UserError(f"task '{name}' lacks {', '.join(missing)}")
    if task.asks != "classes" and task.per_token:
        raise UserError(f"task '{name}' asks for {task.asks} per token: only classes can be")
    try:
        _ = task().metric_names  # builds its target too
    except UserError as error:
        raise UserError(f"task '{name}': {error}") from error
    if not dataclasses.is_dataclass(task.Options) or not issubclass(task.Options, TaskOptions):
        raise UserError(f"{name}.Options must be a dataclass that extends lra.data.TaskOptions")


# ---------------------------------------------------------------------- options


def configure(
    name: str, words: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> TaskOptions:
    """Make the options of a task, typed and checked. UserError names a wrong word.

    name      of the task
    words     `key=value`, as on the command line
    settings  set before the words, such as the group `task` of a config
    returns   an instance of the task's Options
    """
    task, place = get(name), f"the options of task '{name}'"
    try:
        cfg = cast(DictConfig, OmegaConf.merge(_defaults(task), settings or {}))
        for word in words:
            place = word
            key, equals, value = word.partition("=")
            if not equals:
                raise UserError(f"'{word}' is not a setting: settings are written key=value")
            if key not in cfg or key == "name":
                others = sorted(map(str, cfg.keys() - {"name"}))
                raise UserError(f"task '{name}' has no option '{key}'{nearest(key, others)}")
            # a string becomes whatever the schema says
            is_yaml = value == "null" or value.startswith(("[", "{"))
            value = yaml.safe_load(value) if is_yaml else value
            OmegaConf.update(cfg, key, value, merge=False)
        options = cast(TaskOptions, OmegaConf.to_object(cfg))
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        if wrong := WRONG_TYPE.match(first_line(error)):
            raise UserError(of_type(place.partition("=")[0], *wrong.groups())) from error
        raise UserError(f"{place}: {first_line(error)}") from error
    check_options(task, options)
    return options


def check_options(task: Task, options: TaskOptions) -> None:
    """Refuse an unknown source, an option that this source does not read, a value out of range."""
    if options.source not in task.sources:
        raise UserError(
            f"task '{task.name}' has no source '{options.source}'"
            f"{nearest(options.source, task.sources)}"
        )
    for field in dataclasses.fields(options):
        sources = field.metadata.get("sources", task.sources)
        value, least = getattr(options, field.name), field.metadata.get("least")
        if options.source not in sources and value != field.default:
            raise UserError(
                f"{field.name} is read by source={' and source='.join(sources)} only, "
                f"not by source={options.source}"
            )
        if None not in (least, value) and not least <= value < float("inf"):
            raise UserError(f"{field.name}={value} is out of range: it must be at least {least}")
    task.check_options(options)


def overrides(task: Task, options: TaskOptions) -> list[str]:
    """Spell the `key=value` words that turn the defaults into these options, but for what files
    say, which nobody types."""
    usual = OmegaConf.to_object(_defaults(task))
    return [
        f"{key}={'null' if value is None else plain_value(value)}"
        for key, value in vars(options).items()
        if value != getattr(usual, key) and key not in task.in_files
    ]


def _defaults(task: Task) -> DictConfig:
    named = {"name": task.name, "source": next(iter(task.sources))}
    return cast(DictConfig, OmegaConf.merge(OmegaConf.structured(task.Options), named))
