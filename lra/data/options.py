"""A task's options: the defaults of its class, or a composed config's, and `key=value` words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.base.config import UserError, first_line, nearest
from lra.data import registry
from lra.data.task import Task, TaskOptions, plain_value


def configure(
    name: str, words: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> TaskOptions:
    """Set `key=value` words over the defaults of a task, or over its settings in a config, typed
    and checked. UserError names a wrong word."""
    task = registry.get(name)
    try:
        schema = OmegaConf.structured(task.Options)
        cfg = cast(DictConfig, OmegaConf.merge(schema, _named(task), settings or {}))
    except OmegaConfBaseException as error:
        raise UserError(f"the options of task '{name}': {first_line(error)}") from error
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"'{word}' is not a setting: settings are written key=value")
        if key not in cfg or key == "name":
            others = sorted(map(str, cfg.keys() - {"name"}))
            raise UserError(f"task '{name}' has no option '{key}'{nearest(key, others)}")
        try:  # a string becomes whatever the schema says
            is_yaml = value == "null" or value.startswith(("[", "{"))
            cfg[key] = yaml.safe_load(value) if is_yaml else value
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            raise UserError(f"{key}={value}: {first_line(error)}") from error
    try:
        options = cast(TaskOptions, OmegaConf.to_object(cfg))
    except OmegaConfBaseException as error:  # of ${...} in a value
        raise UserError(f"the options of task '{name}': {first_line(error)}") from error
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
        if least is not None and value is not None and value < least:
            raise UserError(f"{field.name}={value} is out of range: it must be at least {least}")
    task.check_options(options)


def overrides(task: Task, options: TaskOptions) -> list[str]:
    """Spell the `key=value` words that turn the defaults into these options."""
    usual = vars(task.Options(**_named(task)))
    return [
        f"{key}={'null' if value is None else plain_value(value)}"
        for key, value in vars(options).items()
        if value != usual[key]
    ]


def _named(task: Task) -> dict[str, str]:
    return {"name": task.name, "source": next(iter(task.sources))}
