"""Check what Hydra composed and make it a :class:`Run`.

It imports nothing heavier than OmegaConf and Hydra, so `--help`, `--cfg job` and misspelt keys
answer at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf, open_dict

from lra import data
from lra.base import groups
from lra.base.config import (
    Compute,
    Gate,
    Mask,
    Model,
    Objective,
    Pad,
    Pooling,
    Pretrain,
    Protocol,
    Trainer,
    UserError,
    nearest,
)
from lra.data.registry import BUILTIN, check_options
from lra.settings.errors import explained
from lra.settings.experiment import Experiment
from lra.settings.presets import take_cost_facts
from lra.settings.search_path import initialised


@dataclass
class Run:
    """The complete settings of one training run: one dataclass per config group; `task` is the
    task's own Options."""

    task: Any
    attention: dict[str, Any]  # name, dwc and the method's own options, checked by luna.build
    model: Model
    protocol: Protocol
    pretrain: Pretrain
    compute: Compute
    trainer: Trainer
    logger: dict[str, Any]  # by name, each with its class and arguments
    seed: int
    budget: float  # scales the protocol's steps, warm-up and number of evaluations
    min_evaluations: int  # kept however small the budget
    data_dir: str
    runs_dir: str
    rerun: bool  # repeat a finished run, in a folder of its own
    retries: int  # of a run that crashes or is killed, within a sweep
    limit_minutes: float | None  # a run that takes longer stops with a checkpoint

    @property
    def processes(self) -> int:
        devices = self.trainer.devices
        return self.trainer.num_nodes * (len(devices) if isinstance(devices, list) else devices)

    @property
    def experiment(self) -> Experiment:
        """The part that decides its result."""
        return Experiment(
            self.task,
            self.attention,
            self.model,
            self.protocol,
            self.pretrain,
            self.budget,
            self.trainer.precision,
            self.processes,
            self.seed,
        )


def _is_reference(value: Any, _: Run) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, str)
    numbers = [type(number) in (int, float) and number > 0 for number in value.values()]
    return bool(numbers) and all(numbers) and value.keys() <= {"parameters", "flops", "examples"}


PRECISIONS = ("32-true", "tf32", "bf16-mixed", "16-mixed", "64-true", "bf16-true", "16-true")
# Settings, what a value other than None must be, and the same in words.
RANGES: list[tuple[str, Callable[[Any, Run], bool], str]] = [
    (
        "budget limit_minutes protocol.recipe.lr pretrain.recipe.lr protocol.recipe.eps "
        "pretrain.recipe.eps",
        lambda x, _: 0 < x < math.inf,
        "finite and greater than 0",
    ),
    (
        "min_evaluations protocol.recipe.steps protocol.recipe.batch protocol.evaluation.every "
        "pretrain.recipe.steps pretrain.recipe.batch pretrain.every trainer.threads "
        "trainer.num_nodes model.n_layers trainer.checkpoint_every trainer.log_every",
        lambda x, _: x > 0,
        "at least 1",
    ),
    (
        "retries protocol.recipe.warmup pretrain.recipe.warmup protocol.recipe.weight_decay "
        "pretrain.recipe.weight_decay",
        lambda x, _: x >= 0,
        "at least 0",
    ),
    (
        "protocol.recipe.betas pretrain.recipe.betas",
        lambda x, _: len(x) == 2 and all(0 <= beta < 1 for beta in x),
        "two numbers in [0, 1)",
    ),
    ("trainer.precision", lambda x, _: x in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
    ("seed pretrain.seed", lambda x, _: 0 <= x < 2**31, "between 0 and 2**31 - 1"),
    ("model.dropout model.attention_dropout", lambda x, _: 0 <= x < 1, "in [0, 1)"),
    (
        "compute.tolerance.parameters compute.tolerance.flops compute.tolerance.examples",
        lambda x, _: 0 < x <= 1,
        "greater than 0 and at most 1",
    ),
    (
        "compute.reference",
        _is_reference,
        "an attention, or numbers greater than 0 for some of "
        "examples, flops, parameters: {{parameters: .., flops: ..}}",
    ),
    (
        "compute.solve",
        lambda x, run: not x or run.compute.mode is not Gate.off,
        "false under compute=off, which has no budget to meet",
    ),
    (
        "protocol.data.max_length",
        lambda x, run: 1 <= x <= run.protocol.data.pad_to,
        "between 1 and protocol.data.pad_to={run.protocol.data.pad_to}",
    ),
    (
        "protocol.data.pad",
        lambda x, run: (
            x is not Pad.sorted
            or not {run.protocol.style.pooling, run.protocol.data.mask} & {Pooling.mean, Mask.none}
        ),
        "full or batch where the mean or the mask takes padding for tokens",
    ),
    (
        "model.n_heads",
        lambda x, run: x >= 1 and run.model.qkv_dim % x == 0,
        "a divisor of model.qkv_dim={run.model.qkv_dim}",
    ),
    (
        "model.sizes_of",
        lambda x, run: any(x in [run.attention["name"], *m] for m in run.model.methods.values()),
        "the run's attention, or one of model.methods",
    ),
    (
        "trainer.devices",
        lambda x, _: x >= 1 if type(x) is int else isinstance(x, list) and {*map(type, x)} == {int},
        "a number of devices or a list of them, because it is part of the run's identity",
    ),
    (
        "pretrain.name",
        lambda x, run: x is Objective.none or bool(run.pretrain.recipe and run.pretrain.every),
        "none, unless pretrain.recipe and pretrain.every are set",
    ),
    (
        "pretrain.rate",
        lambda x, run: 0 < x < 1 and run.pretrain.name is not Objective.causal,
        "between 0 and 1 under pretrain=masked, and null under pretrain=causal, which masks none",
    ),
]


def compose(words: Sequence[str]) -> Run:
    return check_settings(composed(words))


def composed(words: Sequence[str]) -> DictConfig:
    """Compose the config of a run from words, unchecked."""
    with explained(), initialised():
        return hydra.compose("train", list(words))


def check_settings(cfg: DictConfig) -> Run:
    """Check and resolve a composed config, and scale it by its budget; UserError names the first
    mistake."""
    row_of_own_task(cfg)
    with explained():
        typed = OmegaConf.merge(_schema(cfg), cfg)
        attention = cast(dict[str, Any], OmegaConf.to_container(typed.attention, resolve=True))
        typed.compute.update(take_cost_facts(attention, typed.task.name))
        typed.attention = attention
        OmegaConf.resolve(typed)
        run = cast(Run, OmegaConf.to_object(typed))
    check_options(data.get(run.task.name), run.task)
    _fit_to_task(run)
    for keys, allowed, words in RANGES:
        for key in keys.split():
            value: Any = run
            for name in key.split("."):
                value = getattr(value, name, None)  # pretrain.recipe may be None
            if value is not None and not allowed(value, run):
                must = words.format(run=run)
                raise UserError(f"{key}={value} is out of range: it must be {must}")
    scale(run)
    return run


def task_settings(name: str, protocol: str) -> tuple[dict[str, Any], int]:
    """Compose a task's options under a protocol, and read its length there: the task's own where
    the protocol has no row for it."""
    task = data.get(name)
    cfg = composed([f"task={name}", f"protocol={protocol}"])
    row_of_own_task(cfg)
    with explained():
        options = cast(dict[str, Any], OmegaConf.to_container(cfg.task, resolve=True))
        length = cfg.protocol.data.max_length if name in (cfg.protocol.get("tasks") or {}) else 0
    return options, length or task.max_length


def _schema(cfg: DictConfig) -> DictConfig:
    """Make Run an OmegaConf schema, with the Options of the chosen task. An attention's options
    stay unchecked here, because that needs torch: luna.build checks them before data are read."""
    name, attention = OmegaConf.select(cfg, "task.name"), OmegaConf.select(cfg, "attention.name")
    if name is None or not isinstance(attention, str):
        missing = "task" if name is None else "attention"
        raise UserError(f"{missing} has no name: choose one, such as task=listops attention=luna")
    schema, task = OmegaConf.structured(Run), data.get(name)
    with open_dict(schema):
        schema.task = OmegaConf.structured(task.Options)
        schema.task.source = next(iter(task.sources))
        if groups.find("attention", attention) is None:
            import luna

            options = luna.options(attention).items()
            schema.attention = {k: "???" if p.default is p.empty else p.default for k, p in options}
    return schema


def row_of_own_task(cfg: DictConfig) -> None:
    """Give the protocol the row of a task that is not ours: the task's settings over `others`."""
    name, rows = OmegaConf.select(cfg, "task.name"), cast(Any, cfg.protocol.get("tasks") or {})
    if name in (None, *rows, *BUILTIN) or "others" not in rows:
        return
    task = data.get(name)
    if unknown := sorted(task.settings.keys() - rows.others.keys()):
        raise UserError(
            f"{type(task).__name__}.settings: '{unknown[0]}' is not a setting of protocol "
            f"'{cfg.protocol.name}'{nearest(unknown[0], map(str, rows.others))}"
        )
    with open_dict(cfg):
        cfg.protocol.tasks[name] = OmegaConf.merge(rows.others, task.settings)


def _fit_to_task(run: Run) -> None:
    """Set what the protocol leaves to the task's options: lengths, vocabulary, and that labels of
    tokens are not pooled."""
    rules, task = run.protocol.data, data.of(run.task)
    if task.per_token:
        run.protocol.style.pooling = Pooling.none
    length = task.width(run.task, rules.max_length)
    rules.max_length = rules.max_length or length
    rules.pad_to = rules.pad_to or length
    rules.vocab = rules.vocab or task.vocab
    if run.pretrain.name is Objective.masked and run.pretrain.rate is None:
        rates = run.pretrain.rates
        run.pretrain.rate = rates.get(task.name, rates["others"])


def scale(run: Run) -> None:
    """Scale steps and warm-up of both phases by `budget`, keeping at least `min_evaluations`
    evaluations. Training ends with one, so steps are rounded up to a multiple of them."""
    protocol, pretrain = run.protocol, run.pretrain
    for recipe, evaluation in ((protocol.recipe, protocol.evaluation), (pretrain.recipe, pretrain)):
        if recipe is None or evaluation.every is None:
            continue
        steps = max(1, round(recipe.steps * run.budget))
        recipe.warmup = round(recipe.warmup * run.budget)
        if run.budget != 1:
            evaluations = max(run.min_evaluations, round(steps / evaluation.every))
            evaluation.every = max(1, steps // evaluations)
        evaluation.every = min(evaluation.every, steps)
        recipe.steps = math.ceil(steps / evaluation.every) * evaluation.every
