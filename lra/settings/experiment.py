"""What decides a run's result. Its hash, with that of the data and the declared versions of the
code (lra/base/versions.py), is the run's identity, a record holds it, and a network is built of it.

Everything else of a `Run` (lra/settings/compose.py) is how it is executed: folders, devices,
loggers, limits, and the budget that it is compared with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from lra import data
from lra.base import versions
from lra.base.config import Model, Objective, Pretrain, Protocol
from lra.base.errors import UserError

SCHEMA_VERSION = 2  # of the settings and of result.json
# Keys of model and protocol from which a task's row was taken; the rows themselves do not decide.
LOOKED_UP = ("tasks", "methods", "sizes_of", "preset")
# What a run has only where somebody chose it: the identity of all other runs does not know of it.
CHOSEN = ("optimizer", "schedule", "callbacks", "debug", "tune")


@dataclass(frozen=True)
class Experiment:
    task: Any  # the task's own Options
    attention: dict[str, Any]  # name, dwc and the method's own options
    model: Model
    protocol: Protocol
    pretrain: Pretrain
    steps_share: float
    precision: str
    processes: int  # each draws its own dropout, and sees its share of a batch
    seed: int
    chosen: dict[str, Any] = field(default_factory=dict)  # of CHOSEN, what decides the result

    def settings(self) -> dict[str, Any]:
        """Everything but the seed, as a config.yaml and a record hold it. Of the task's options
        only those count that its source reads."""
        everything = plain(asdict(self))
        task = data.get(self.task.name)
        facts = {key: everything[key] for key in ("attention", "model", "protocol", "steps_share")}
        facts["task"] = {"name": task.name, "source": self.task.source} | task.matters(self.task)
        facts["precision"] = self.precision
        facts["metrics"] = data.of(self.task).metric_names
        if self.processes > 1:
            facts["processes"] = self.processes
        if self.pretrain.name is not Objective.none:
            facts["pretrain"] = everything["pretrain"]
            del facts["pretrain"]["rates"]
        for key in LOOKED_UP:
            facts["model"].pop(key, None)
            facts["protocol"].pop(key, None)
        return versions.without_added(facts | everything["chosen"])

    def numerics(self) -> dict[str, int]:
        """The declared versions of its method and of its parts (lra/base/versions.py)."""
        parts = versions.of_training(pretrained=self.pretrain.name is not Objective.none)
        return versions.numerics_of(self.attention["name"], parts)

    def identity(self, fingerprint: str, numerics: Mapping[str, int] | None = None) -> str:
        """Hash everything but the seed; `numerics` are others than today's."""
        return identity_of(self.settings(), fingerprint, numerics or self.numerics())


def identity_of(
    settings: Mapping[str, Any], fingerprint: str | None, numerics: Mapping[str, int] | None = None
) -> str:
    """Hash settings and versions as a config.yaml or a record holds them."""
    facts: list[Any] = [SCHEMA_VERSION, settings, fingerprint]
    if moved := versions.raised(numerics or {}):
        facts.append(moved)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def read_experiment(settings: dict[str, Any], seed: int) -> Experiment:
    """Read what a config.yaml or a record holds, checked against its schemas."""
    if "${" in str(settings):  # would be looked up in this machine's environment
        raise UserError("its settings hold an interpolation, ${..}")
    if not settings["protocol"]["recipe"]["batch"] >= 1:
        raise UserError("its settings have no batch of examples")
    return Experiment(
        task=_options_of(settings["task"]),
        attention=dict(settings["attention"]),
        model=_typed(Model, settings["model"]),
        protocol=_typed(Protocol, settings["protocol"] | {"tasks": {}}),
        pretrain=_typed(Pretrain, settings.get("pretrain", {"name": "none"})),
        steps_share=settings["steps_share"],
        precision=settings["precision"],
        processes=settings.get("processes", 1),
        seed=seed,
        chosen={key: settings[key] for key in CHOSEN if key in settings},
    )


def _typed(schema: type, values: dict[str, Any]) -> Any:
    return deepcopy(_typed_once(schema, json.dumps(values, sort_keys=True)))


def _options_of(settings: dict[str, Any]) -> data.TaskOptions:
    task = data.get(settings["name"])  # another one may have this name later
    return deepcopy(_options_once(task, json.dumps(settings, sort_keys=True)))


@cache
def _options_once(task: data.Task, values: str) -> data.TaskOptions:
    return data.configure(task.name, settings=json.loads(values))


@cache
def _typed_once(schema: type, values: str) -> Any:
    """Checking takes 10 ms, and thousands of records have the same settings."""
    from omegaconf import OmegaConf

    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), json.loads(values)))


def plain(value: Any) -> Any:
    """Turn enums and tuples into values that JSON and YAML can hold."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value.name if isinstance(value, Enum) else value
