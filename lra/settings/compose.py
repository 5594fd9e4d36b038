"""Check what Hydra composed and make it a :class:`Run`.

It imports nothing heavier than OmegaConf and Hydra, so `--help`, `--cfg job` and misspelt keys
answer at once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf, open_dict

from lra import data
from lra.base import groups
from lra.base.config import Input, Objective, Pooling, Tuned
from lra.base.errors import UserError, nearest
from lra.data.registry import BUILTIN, check_options
from lra.settings.command import typed
from lra.settings.errors import explained
from lra.settings.own import take_own
from lra.settings.presets import take_cost_facts
from lra.settings.ranges import check_ranges
from lra.settings.remarks import remark_on
from lra.settings.run import Run
from lra.settings.search_path import initialised


def compose(words: Sequence[str]) -> Run:
    run = check_settings(composed(words))
    vars(run).update(words=tuple(words), composed=copy.deepcopy(run))
    return run


def check_again(run: Run) -> None:
    """UserError for a run that was changed in Python since it was composed, to what no words would
    give: a value of another type, or out of its range."""
    if not isinstance(run, Run):
        raise UserError(
            f"a run is what lra.compose(words) gives, such as lra.compose(['experiment=demo']), "
            f"and not of type {type(run).__name__}"
        )
    with explained():
        OmegaConf.structured(run)
    check_options(data.get(run.task.name), run.task)
    check_ranges(run)


def command_of(run: Run) -> str:
    """Write the command of a run that was composed in Python, and whether it was changed since."""
    command = typed("train", run.words, run.callbacks)
    return command if run.composed == run else f"{command}, changed in Python"


def composed(words: Sequence[str]) -> DictConfig:
    """Compose the config of a run from words, unchecked."""
    if isinstance(words, str):
        raise UserError(f"words are a list of texts: lra.compose({words.split()})")
    remark_on(words)
    with explained(), initialised():
        try:
            return hydra.compose("train", list(words))
        except RecursionError as error:  # of Hydra's parser
            raise UserError("a setting has too many brackets inside each other") from error


def check_settings(cfg: DictConfig) -> Run:
    """Check and resolve a composed config, and scale it by its share of steps; UserError names the
    first mistake."""
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
    take_own(run)
    check_ranges(run)
    scale(run)
    if run.tune.name is not Tuned.none:
        vars(run).update(given=OmegaConf.to_container(cfg, resolve=False))
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
    """Set what the protocol leaves to the task's options: lengths, vocabulary, that labels of
    tokens are not pooled, and that numbers are read as such."""
    rules, task = run.protocol.data, data.of(run.task)
    if task.per_token:
        run.protocol.style.pooling = Pooling.none
    if task.channels or task.numeric:
        run.protocol.style.input = Input.numbers
    length = task.width(run.task, rules.max_length)
    rules.max_length = rules.max_length or length
    rules.pad_to = rules.pad_to or length
    rules.vocab = rules.vocab or task.vocab
    if run.pretrain.name is Objective.masked and run.pretrain.rate is None:
        rates = run.pretrain.rates
        run.pretrain.rate = rates.get(task.name, rates["others"])


def scale(run: Run) -> None:
    """Scale steps and warm-up of both phases by `steps_share`, keeping at least `min_evaluations`
    evaluations. Training ends with one, so steps are rounded up to a multiple of them."""
    protocol, pretrain = run.protocol, run.pretrain
    for recipe, evaluation in ((protocol.recipe, protocol.evaluation), (pretrain.recipe, pretrain)):
        if recipe is None or evaluation.every is None:
            continue
        steps = max(1, round(recipe.steps * run.steps_share))
        recipe.warmup = round(recipe.warmup * run.steps_share)
        if run.steps_share != 1:
            evaluations = max(run.min_evaluations, round(steps / evaluation.every))
            evaluation.every = max(1, steps // evaluations)
        evaluation.every = min(evaluation.every, steps)
        recipe.steps = math.ceil(steps / evaluation.every) * evaluation.every
