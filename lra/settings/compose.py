"""Check what Hydra composed and make it a :class:`Run`; turn exceptions into one sentence and an
exit code.

It imports nothing heavier than OmegaConf and Hydra, so `--help`, `--cfg job` and misspelt keys
answer at once.
"""

from __future__ import annotations

import io
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from lra import data
from lra.base import disk, groups
from lra.base.config import (
    CONFIGS,
    Compute,
    Gate,
    Loggers,
    Model,
    Objective,
    Pooling,
    Pretrain,
    Protocol,
    Recipe,
    Trainer,
    UserError,
    nearest,
)

# Environment variable with settings for every command that takes any (docs/settings.md).
OVERRIDES = "LRA_OVERRIDES"
# A setting's key and value, whether the value is allowed, and what is.
Bound = tuple[str, Any, Callable[[Any], bool], str]
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
    logger: Loggers
    seed: int
    budget: float  # scales the protocol's steps, warm-up and number of evaluations
    min_evaluations: int  # kept however small the budget
    data_dir: str
    runs_dir: str
    rerun: bool  # repeat a finished run, in a folder of its own
    retries: int  # of a run that crashes or is killed, within a sweep
    limit_minutes: float | None  # a run that takes longer stops with a checkpoint


def check(cfg: DictConfig) -> Run:
    """The checked, resolved run of a composed config, scaled by its budget; UserError names the
    first mistake."""
    from lra.data.options import check_options

    row_of_own_task(cfg)
    try:
        typed = OmegaConf.merge(_schema(cfg), cfg)
        _implied_preset_exists(cast(DictConfig, typed))
        preset_exists(typed.attention)
        OmegaConf.resolve(typed)
        missing = sorted(OmegaConf.missing_keys(typed))
        if missing:
            raise UserError(
                f"{missing[0]} has no value: set it on the command line, {missing[0]}=..."
            )
        run = cast(Run, OmegaConf.to_object(typed))
    except OmegaConfBaseException as error:
        raise UserError(explain(error, cfg)) from error
    check_options(data.get(run.task.name), run.task)
    _fit_to_task(run)
    move_cost_facts(run)
    _ranges(run)
    _reference(run.compute.reference)
    scale(run)
    return run


def compose(overrides: Sequence[str]) -> Run:
    """The run that `lra train <overrides>` would start."""
    import hydra
    from hydra.errors import HydraException

    try:
        with initialised():
            return check(hydra.compose("train", list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error)) from error


def with_added(words: Sequence[str]) -> list[str]:
    """The words of a command with the settings of $LRA_OVERRIDES inserted after its own; prints
    what it adds."""
    added = shlex.split(os.environ.get(OVERRIDES, ""))
    if added:
        print(f"{OVERRIDES} adds {' '.join(added)}", file=sys.stderr)
    settings = [i for i, word in enumerate(words) if "=" in word and not word.startswith("-")]
    end = settings[-1] + 1 if settings else len(words)  # argparse needs them side by side
    return [*words[:end], *added, *words[end:]]


@contextmanager
def initialised() -> Iterator[None]:
    """Inside the block, hydra.compose reads configs/ and the user's folder."""
    import hydra

    from lra.settings import search_path

    search_path.install()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        yield


def _schema(cfg: DictConfig) -> DictConfig:
    """Run as an OmegaConf schema, with the Options of the chosen task. An attention's options stay
    unchecked here, because that needs torch: luna.build checks them before any data is read."""
    task = OmegaConf.select(cfg, "task.name")
    if task is None:
        raise UserError(f"task has no name; choose one: {', '.join(data.names())}")
    schema = OmegaConf.structured(Run)
    with open_dict(schema):
        schema.task = OmegaConf.structured(data.get(task).Options)
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


def _implied_preset_exists(cfg: DictConfig) -> None:
    """Refuse an attention without the preset that the protocol implies: the code that the protocol
    reproduces never ran it."""
    attention, implied = cfg.attention, cfg.protocol.preset
    if attention.preset == implied and implied not in attention.presets:
        raise UserError(
            f"attention '{attention.name}' has no published run under protocol "
            f"'{cfg.protocol.name}', so it has no preset '{implied}': give one of its own, "
            f"attention.preset={' or '.join(sorted(attention.presets, reverse=True))}"
        )


def preset_exists(attention: DictConfig) -> None:
    """UserError, naming the presets that exist, unless the chosen one is in `presets`."""
    presets, chosen = attention.get("presets"), attention.get("preset")
    if presets is not None and chosen not in presets:
        raise UserError(
            f"attention '{attention.name}' has no preset '{chosen}'"
            f"{nearest(str(chosen), map(str, presets))}"
        )


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


def _reference(reference: Any) -> None:
    """Check a reference in numbers; a name is checked later, where attentions are imported."""
    if isinstance(reference, str):
        return
    numbers = reference if isinstance(reference, dict) else {}
    limits = {"parameters", "flops", "examples"}
    if not numbers or set(numbers) - limits or not all(map(_is_count, numbers.values())):
        raise UserError(
            f"compute.reference must be an attention, or numbers greater than 0 for some of "
            f"{', '.join(sorted(limits))}: {{parameters: .., flops: ..}}; got {reference}"
        )


def _is_count(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and number > 0


def _ranges(run: Run) -> None:
    model, rules = run.model, run.protocol.data
    every, tolerance = run.protocol.evaluation.every, run.compute.tolerance
    sized = sorted({attention for methods in model.methods.values() for attention in methods})
    bounds: list[Bound] = [
        ("budget", run.budget, lambda x: x > 0, "greater than 0"),
        ("seed", run.seed, lambda x: 0 <= x < 2**31, "between 0 and 2**31 - 1"),
        ("min_evaluations", run.min_evaluations, lambda x: x >= 1, "at least 1"),
        ("retries", run.retries, lambda x: x >= 0, "at least 0"),
        ("limit_minutes", run.limit_minutes or 1, lambda x: x > 0, "greater than 0"),
        *_recipe_bounds("protocol.recipe", run.protocol.recipe),
        *_pretrain_bounds(run.pretrain),
        ("protocol.evaluation.every", every, lambda x: x >= 1, "at least 1"),
        ("protocol.data.max_length", rules.max_length, lambda x: 1 <= x <= rules.pad_to,
         f"between 1 and protocol.data.pad_to={rules.pad_to}"),
        ("model.n_layers", model.n_layers, lambda x: x >= 1, "at least 1"),
        ("model.n_heads", model.n_heads, lambda x: x >= 1 and model.qkv_dim % x == 0,
         f"a divisor of model.qkv_dim={model.qkv_dim}"),
        ("model.sizes_of", model.sizes_of,
         lambda x: x in (None, run.attention["name"], *sized),
         f"an attention of the model's file: {', '.join(sized)}"),
        ("model.dropout", model.dropout, lambda x: 0 <= x < 1, "in [0, 1)"),
        ("model.attention_dropout", model.attention_dropout, lambda x: 0 <= x < 1, "in [0, 1)"),
        ("trainer.devices", run.trainer.devices,
         lambda x: bool(x) if isinstance(x, list) else isinstance(x, int) and x >= 1,
         "a number of devices or a list of them, because it is part of the run's identity"),
        ("trainer.num_nodes", run.trainer.num_nodes, lambda x: x >= 1, "at least 1"),
        ("trainer.checkpoint_every", run.trainer.checkpoint_every, lambda x: x >= 1, "at least 1"),
        ("trainer.log_every", run.trainer.log_every, lambda x: x >= 1, "at least 1"),
        *((f"compute.tolerance.{measure}", share, lambda x: 0 < x <= 1,
           "greater than 0 and at most 1") for measure, share in vars(tolerance).items()),
        ("compute.solve", run.compute.solve, lambda x: not x or run.compute.mode is not Gate.off,
         "false under compute=off, which has no budget to meet"),
    ]  # fmt: skip
    for key, value, holds, allowed in bounds:
        if not holds(value):
            raise UserError(f"{key}={value} is out of range: it must be {allowed}")
    if not isinstance(run.attention.get("name"), str):
        raise UserError("attention has no name: choose a file of configs/attention, attention=luna")


def _recipe_bounds(key: str, recipe: Recipe) -> list[Bound]:
    return [
        (f"{key}.steps", recipe.steps, lambda x: x >= 1, "at least 1"),
        (f"{key}.batch", recipe.batch, lambda x: x >= 1, "at least 1"),
        (f"{key}.warmup", recipe.warmup, lambda x: x >= 0, "at least 0"),
        (f"{key}.lr", recipe.lr, lambda x: x > 0, "greater than 0"),
    ]


def _pretrain_bounds(pretrain: Pretrain) -> list[Bound]:
    if pretrain.name is Objective.none:
        return []
    rate = "between 0 and 1 under pretrain=masked, and null under pretrain=causal, which masks none"
    masked = pretrain.name is Objective.masked
    bounds: list[Bound] = [
        ("pretrain.rate", pretrain.rate,
         lambda x: 0 < x < 1 if masked else x is None, rate),
        ("pretrain.seed", pretrain.seed, lambda x: x is None or 0 <= x < 2**31,
         "null or between 0 and 2**31 - 1"),
        ("pretrain.every", pretrain.every, lambda x: x is not None and x >= 1, "at least 1"),
        ("pretrain.recipe", pretrain.recipe, lambda x: x is not None, "that of phase one"),
    ]  # fmt: skip
    return bounds + (_recipe_bounds("pretrain.recipe", pretrain.recipe) if pretrain.recipe else [])


def scale(run: Run) -> None:
    """Scale steps and warm-up of both phases by `budget`, keeping at least `min_evaluations`
    evaluations."""
    evaluation, pretrain = run.protocol.evaluation, run.pretrain
    evaluation.every = _scale(run.protocol.recipe, evaluation.every, run)
    if pretrain.recipe is not None and pretrain.every is not None:
        pretrain.every = _scale(pretrain.recipe, pretrain.every, run)


def _scale(recipe: Recipe, every: int, run: Run) -> int:
    """Scale a recipe; the steps between its evaluations. Training ends with an evaluation, so steps
    are rounded up to a multiple of them."""
    steps = max(1, round(recipe.steps * run.budget))
    recipe.warmup = round(recipe.warmup * run.budget)
    if run.budget != 1:
        evaluations = max(run.min_evaluations, round(steps / every))
        every = max(1, steps // evaluations)
    every = min(every, steps)
    recipe.steps = math.ceil(steps / every) * every
    return every


# ---------------------------------------------------------------------- errors


def explain(error: Exception, cfg: DictConfig | None = None) -> str:
    """Describe an error of Hydra or OmegaConf in one sentence."""
    from hydra.errors import ConfigCompositionException, MissingConfigException

    cause = error.__cause__
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        return f"unknown {group} '{name}'{nearest(name, error.options)}"
    missing = getattr(error, "missing_cfg_file", None) or ""
    if missing.startswith("hydra/"):
        return f"{missing} needs an extra that is not installed: docs/clusters.md"
    if isinstance(error, ConfigCompositionException) and isinstance(cause, OmegaConfBaseException):
        return explain(cause, cfg)
    key = str(getattr(error, "full_key", None) or getattr(error, "key", None) or "")
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        parent = error.parent_node
        name = key.rpartition(".")[2]
        if isinstance(parent, DictConfig) and (elsewhere := _places(name, parent)):
            return f"'{key}' is not a setting; did you mean {' or '.join(elsewhere)}?"
        known = [str(k) for k in parent] if isinstance(parent, DictConfig) else []
        return f"'{key}' is not a setting{nearest(name, known)}"
    looked_up = re.search(r"'(\w+)\.tasks\.", str(error))
    if isinstance(error, InterpolationKeyError) and cfg is not None and looked_up:
        group = looked_up[1]
        table = [str(task) for task in cfg[group].tasks if task != "others"]
        return (
            f"{group} '{cfg[group].name}' has no settings for task '{cfg.task.name}'; "
            f"it has them for {', '.join(table)}"
        )
    option = re.search(r"'(task\.\w+)'", str(error))
    if isinstance(error, InterpolationKeyError) and cfg is not None and option:
        return (
            f"a setting depends on {option[1]}, which task '{cfg.task.name}' does not have: "
            f"protocol '{cfg.protocol.name}' or model '{cfg.model.name}' is for another task"
        )
    if isinstance(error, MissingMandatoryValue):
        return f"{key} has no value: set it on the command line, {key}=..."
    first = str(error).strip().splitlines()[0]
    if unread := re.match(r"Error parsing override '(.*)'", first):
        return (
            f"cannot read '{unread[1]}': a setting is key=value, such as seed=2; in a shell put "
            "quotes around one with spaces or brackets"
        )
    if first.startswith("Ambiguous value"):  # seed=1,2
        return f"{first}: add -m for a sweep over the values, or quote the text"
    return f"{key}: {first}" if isinstance(error, ValidationError) and key else first


def _places(name: str, cfg: DictConfig) -> list[str]:
    """The settings of this name in the whole config that `cfg` is part of: lr is
    protocol.recipe.lr."""
    whole = cfg._get_root()  # OmegaConf has no public way up
    nested = OmegaConf.to_container(cast(DictConfig, whole), resolve=False)
    return list(_find(name, nested, "")) if isinstance(nested, dict) else []


def _find(name: str, nested: dict[Any, Any], above: str) -> Iterator[str]:
    for key, value in nested.items():
        if key == name:
            yield f"{above}{key}"
        elif isinstance(value, dict) and key not in TABLES:
            yield from _find(name, value, f"{above}{key}.")


def guard(command: Callable[[], Any]) -> int:
    """Run a command; a mistake of the user becomes one sentence on stderr and exit code 2."""
    from hydra.errors import HydraException

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
    print(f"error: {message}", file=sys.stderr)
    return 2
