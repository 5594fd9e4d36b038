"""A task's options: configs/task/<name>.yaml and `key=value` words, checked against its schema.

Read as plain YAML, without Hydra.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.base import groups
from lra.base.config import UserError, first_line, nearest
from lra.data import registry
from lra.data.task import Task, TaskOptions, plain_value


def configure(name: str, overrides: Sequence[str] = (), protocol: str = "luna") -> TaskOptions:
    """Read configs/task/<name>.yaml with `key=value` overrides, typed and checked; what that file
    leaves to the protocol comes from the protocol's file. UserError names a wrong override."""
    task = registry.get(name)
    cfg = _load(task, protocol)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UserError(f"'{override}' is not a setting: settings are written key=value")
        if key not in cfg or key == "name":
            others = sorted(map(str, cfg.keys() - {"name"}))
            raise UserError(f"task '{task.name}' has no option '{key}'{nearest(key, others)}")
        try:  # a string becomes whatever the schema says
            is_yaml = value == "null" or value.startswith(("[", "{"))
            cfg[key] = yaml.safe_load(value) if is_yaml else value
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            raise UserError(f"{key}={value}: {first_line(error)}") from error
    try:
        options = cast(TaskOptions, OmegaConf.to_object(cfg))
    except OmegaConfBaseException as error:  # of ${...} in a value
        raise UserError(f"the options of task '{task.name}': {first_line(error)}") from error
    check_options(task, options)
    return options


def check_options(task: Task, options: TaskOptions) -> None:
    """Refuse an unknown source, an option that this source does not read, a value out of range."""
    if options.source not in task.sources:
        raise UserError(
            f"task '{task.name}' has no source '{options.source}'"
            f"{nearest(options.source, task.sources)}"
        )
    usual = defaults(task)
    for field in dataclasses.fields(options):
        sources = field.metadata.get("sources", task.sources)
        if options.source not in sources and getattr(options, field.name) != usual[field.name]:
            raise UserError(
                f"{field.name} is read by source={' and source='.join(sources)} only, "
                f"not by source={options.source}"
            )
        value, least = getattr(options, field.name), field.metadata.get("least")
        if options.source in sources and least is not None and value < least:
            raise UserError(f"{field.name}={value} is out of range: it must be at least {least}")
    task.check_options(options)


def defaults(task: Task) -> dict[str, Any]:
    """Read the options of the task's YAML under the default protocol, by name."""
    return vars(OmegaConf.to_object(_load(task, "luna")))


def overrides(task: Task, options: TaskOptions) -> list[str]:
    """Spell the `key=value` words that turn the defaults into these options."""
    usual = defaults(task)
    return [
        f"{key}={'null' if value is None else plain_value(value)}"
        for key, value in vars(options).items()
        if value != usual[key]
    ]


def default_length(task: Task, protocol: str = "luna") -> int:
    """Read the number of ids per example: the protocol's, or else the benchmark's."""
    table = groups.read("protocol", protocol).get("tasks", {})
    return table.get(task.name, {}).get("max_length", task.max_length)


def as_config(task: Task) -> dict[str, Any]:
    """List the options of a task without a file, for Hydra."""
    cfg = OmegaConf.merge(OmegaConf.structured(task.Options), _named(task))
    return cast(dict[str, Any], OmegaConf.to_container(cfg, enum_to_str=True))


def _named(task: Task) -> dict[str, str]:
    return {"name": task.name, "source": next(iter(task.sources))}


def _load(task: Task, protocol: str) -> DictConfig:
    rules, file = groups.read("protocol", protocol), groups.find("task", task.name)
    try:
        # A task without a file has its defaults in its dataclass.
        values: Any = _named(task) if file is None else groups.read("task", task.name)
        cfg = OmegaConf.merge(OmegaConf.structured(task.Options), values)
        if any(OmegaConf.is_interpolation(cfg, str(key)) for key in cfg):
            cfg = OmegaConf.create({"protocol": rules, "task": cfg}).task
            OmegaConf.resolve(cfg)
        OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        where = file or f"the Options of task '{task.name}'"
        raise UserError(f"{where}: {first_line(error)}") from error
    return cast(DictConfig, cfg)
