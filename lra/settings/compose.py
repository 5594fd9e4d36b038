"""Check what Hydra composed and make it a :class:`Run`; turn exceptions into one sentence and an
exit code.

It imports nothing heavier than OmegaConf and Hydra, so `--help`, `--cfg job` and misspelt keys
answer at once.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
)

from lra import data
from lra.base import disk, groups
from lra.base.config import (
    CONFIGS,
    Compute,
    Gate,
    Model,
    Objective,
    Pooling,
    Pretrain,
    Protocol,
    Recipe,
    Trainer,
    UserError,
    nearest,
    printable,
)
from lra.settings.experiment import Experiment

# Keys of a config that hold no settings: Hydra's own, and tables where settings are looked up.
TABLES = ("hydra", "presets", "tasks", "methods", "knobs", "later", "rates")


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
            self.task, self.attention, self.model, self.protocol, self.pretrain, self.budget,
            self.trainer.precision, self.processes, self.seed,
        )  # fmt: skip


# What a value other than None must be, in words and as a function, and the settings it holds for.
RANGES: dict[str, tuple[Callable[[Any, Run], bool], str]] = {
    "greater than 0": (
        lambda x, _: x > 0,
        "budget limit_minutes protocol.recipe.lr pretrain.recipe.lr",
    ),
    "at least 1": (
        lambda x, _: x >= 1,
        "min_evaluations protocol.recipe.steps protocol.recipe.batch protocol.evaluation.every "
        "pretrain.recipe.steps pretrain.recipe.batch pretrain.every model.n_layers "
        "trainer.num_nodes trainer.checkpoint_every trainer.log_every",
    ),
    "at least 0": (lambda x, _: x >= 0, "retries protocol.recipe.warmup pretrain.recipe.warmup"),
    "between 0 and 2**31 - 1": (lambda x, _: 0 <= x < 2**31, "seed pretrain.seed"),
    "in [0, 1)": (lambda x, _: 0 <= x < 1, "model.dropout model.attention_dropout"),
    "greater than 0 and at most 1": (
        lambda x, _: 0 < x <= 1,
        "compute.tolerance.parameters compute.tolerance.flops compute.tolerance.examples",
    ),
    "between 1 and protocol.data.pad_to={run.protocol.data.pad_to}": (
        lambda x, run: 1 <= x <= run.protocol.data.pad_to,
        "protocol.data.max_length",
    ),
    "a divisor of model.qkv_dim={run.model.qkv_dim}": (
        lambda x, run: x >= 1 and run.model.qkv_dim % x == 0,
        "model.n_heads",
    ),
    "the run's attention, or one of model.methods": (
        lambda x, run: any(x in [run.attention["name"], *m] for m in run.model.methods.values()),
        "model.sizes_of",
    ),
    "a number of devices or a list of them, because it is part of the run's identity": (
        lambda x, _: bool(x) if isinstance(x, list) else isinstance(x, int) and x >= 1,
        "trainer.devices",
    ),
    "false under compute=off, which has no budget to meet": (
        lambda x, run: not x or run.compute.mode is not Gate.off,
        "compute.solve",
    ),
    "none, unless pretrain.recipe and pretrain.every are set": (
        lambda x, run: x is Objective.none or bool(run.pretrain.recipe and run.pretrain.every),
        "pretrain.name",
    ),
    "between 0 and 1 under pretrain=masked, and null under pretrain=causal, which masks none": (
        lambda x, run: 0 < x < 1 and run.pretrain.name is not Objective.causal,
        "pretrain.rate",
    ),
}


def check_settings(cfg: DictConfig) -> Run:
    """Check and resolve a composed config, and scale it by its budget; UserError names the first
    mistake."""
    from lra.data.options import check_options

    row_of_own_task(cfg)
    try:
        typed = OmegaConf.merge(_schema(cfg), cfg)
        groups.fill_in_preset(typed.attention, typed.task.name)
        OmegaConf.resolve(typed)
        missing = sorted(OmegaConf.missing_keys(typed))
        if missing:
            raise UserError(
                f"{missing[0]} has no value: set it on the command line, {missing[0]}=..."
            )
        run = cast(Run, OmegaConf.to_object(typed))
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error
    check_options(data.get(run.task.name), run.task)
    _fit_to_task(run)
    move_cost_facts(run)
    _check_ranges(run)
    _check_reference(run.compute.reference)
    scale(run)
    return run


def compose(overrides: Sequence[str]) -> Run:
    import hydra
    from hydra.errors import HydraException

    try:
        with initialised(overrides):
            return check_settings(hydra.compose("train", list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error)) from error


@contextmanager
def initialised(words: Sequence[str]) -> Iterator[None]:
    """Let hydra.compose read configs/ and the user's folder inside the block, for these words."""
    import hydra

    from lra.settings import search_path

    search_path.install(words)
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        yield


def _schema(cfg: DictConfig) -> DictConfig:
    """Make Run an OmegaConf schema, with the Options of the chosen task. An attention's options
    stay unchecked here, because that needs torch: luna.build checks them before data are read."""
    from lra.settings.search_path import method_options

    name, attention = OmegaConf.select(cfg, "task.name"), OmegaConf.select(cfg, "attention.name")
    if name is None:
        raise UserError(f"task has no name; choose one: {', '.join(data.names())}")
    schema, task = OmegaConf.structured(Run), data.get(name)
    with open_dict(schema):
        schema.task = OmegaConf.structured(task.Options)
        schema.task.source = next(iter(task.sources))
        if isinstance(attention, str) and groups.find("attention", attention) is None:
            options = method_options(attention)
            schema.attention = {k: v for k, v in options.items() if k not in cfg.attention}
    return schema


def row_of_own_task(cfg: DictConfig) -> None:
    """Give the protocol the row of a task that is not ours: the task's settings over `others`."""
    name, rows = OmegaConf.select(cfg, "task.name"), cfg.protocol.get("tasks")
    if name is None or rows is None or name in rows or "others" not in rows:
        return
    if name in data.builtin_tasks():
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


def move_cost_facts(run: Run) -> None:
    """Move what an attention's file says about its cost to `run.compute`; the options that remain
    are built and identify the run. Later options are left out at the values that they had before
    they were options, so that older runs of the same settings are found."""
    about = {key: run.attention.pop(key, None) for key in groups.NO_OPTIONS}
    for option, value in (about["later"] or {}).items():
        if run.attention.get(option) == value:
            del run.attention[option]
    run.compute.preset = about["preset"]
    run.compute.knobs = about["knobs"] or {}
    exempt = about["exempt"]
    run.compute.exempt = exempt.get(run.task.name) if isinstance(exempt, dict) else exempt


def _check_reference(reference: Any) -> None:
    if isinstance(reference, str):
        return
    limits = {"parameters", "flops", "examples"}
    numbers = reference if isinstance(reference, dict) else {}
    allowed = all(type(number) in (int, float) and number > 0 for number in numbers.values())
    if not numbers or set(numbers) - limits or not allowed:
        raise UserError(
            f"compute.reference must be an attention, or numbers greater than 0 for some of "
            f"{', '.join(sorted(limits))}: {{parameters: .., flops: ..}}; got {reference}"
        )


def _check_ranges(run: Run) -> None:
    for words, (allowed, keys) in RANGES.items():
        for key in keys.split():
            value: Any = run
            for name in key.split("."):
                value = getattr(value, name, None)  # pretrain.recipe may be None
            if value is not None and not allowed(value, run):
                raise UserError(
                    f"{key}={value} is out of range: it must be {words.format(run=run)}"
                )
    if not isinstance(run.attention.get("name"), str):
        raise UserError("attention has no name: choose a file of configs/attention, attention=luna")


def scale(run: Run) -> None:
    """Scale steps and warm-up of both phases by `budget`, keeping at least `min_evaluations`
    evaluations."""
    evaluation, pretrain = run.protocol.evaluation, run.pretrain
    evaluation.every = _scale(run.protocol.recipe, evaluation.every, run)
    if pretrain.recipe is not None and pretrain.every is not None:
        pretrain.every = _scale(pretrain.recipe, pretrain.every, run)


def _scale(recipe: Recipe, every: int, run: Run) -> int:
    """Scale a recipe, and return the steps between its evaluations. Training ends with an
    evaluation, so steps are rounded up to a multiple of them."""
    steps = max(1, round(recipe.steps * run.budget))
    recipe.warmup = round(recipe.warmup * run.budget)
    if run.budget != 1:
        evaluations = max(run.min_evaluations, round(steps / every))
        every = max(1, steps // evaluations)
    every = min(every, steps)
    recipe.steps = math.ceil(steps / every) * every
    return every


# ---------------------------------------------------------------------- errors


def explain(error: Exception) -> str:
    """Describe an error of Hydra or OmegaConf: an unknown choice or key with the nearest names, any
    other one in the library's own words."""
    from hydra.errors import ConfigCompositionException, MissingConfigException

    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        return f"unknown {group} '{name}'{nearest(name, error.options)}"
    missing = getattr(error, "missing_cfg_file", None) or ""
    if missing.startswith("hydra/"):
        return f"{missing} needs an extra that is not installed: docs/clusters.md"
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException) and isinstance(cause, OmegaConfBaseException):
        return explain(cause)
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        key, parent = str(error.full_key or error.key), error.parent_node
        name = key.rpartition(".")[2]
        if not isinstance(parent, DictConfig):
            return f"'{key}' is not a setting"
        elsewhere = _places(name, parent)
        close = f"; did you mean {' or '.join(elsewhere)}?" if elsewhere else ""
        return f"'{key}' is not a setting{close or nearest(name, map(str, parent))}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if full_key := getattr(error, "full_key", None):  # the lines that follow repeat it
        return f"{full_key}: {lines[0]}"
    return "invalid settings: " + ", ".join(lines)


def _places(name: str, cfg: DictConfig) -> list[str]:
    """Find the settings of this name in the whole config of `cfg`: lr is protocol.recipe.lr."""

    def find(nested: Any, above: str) -> Iterator[str]:
        for key, value in nested.items():
            if key == name:
                yield f"{above}{key}"
            elif isinstance(value, dict) and key not in TABLES:
                yield from find(value, f"{above}{key}.")

    whole = cast(DictConfig, cfg._get_root())  # OmegaConf has no public way up
    return list(find(OmegaConf.to_container(whole, resolve=False), ""))


def guard(command: Callable[[], Any]) -> int:
    """Run a command; a mistake of the user becomes one sentence on stderr and exit code 2."""
    from hydra.errors import HydraException

    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # terminals whose encoding has no × or ─ print ?
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting with 1
    try:
        command()
    except (UserError, HydraException, OmegaConfBaseException) as error:
        message = str(error) if isinstance(error, UserError) else explain(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # nobody reads the output any more: `lra ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # raised outside of disk_errors, for example in Hydra
        if error.errno not in (*disk.FULL, *disk.BROKEN):
            raise
        place = error.filename or "this command's files"
        message = disk.sentence(error, place, "point runs_dir and data_dir elsewhere") or ""
    except ValueError as error:
        luna = sys.modules.get("luna")  # if it is not imported, the error is not its own
        if luna is None or not isinstance(error, luna.LunaError):
            raise
        message = str(error)
    else:
        return 0
    for number, line in enumerate(message.splitlines()):
        print(printable(line if number else f"error: {line}"), file=sys.stderr)
    return 2
