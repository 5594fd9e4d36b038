"""A run whose optimiser or schedule somebody chose by `_target_` (configs/optimizer, schedule).

Runs that choose neither are trained by LRAModule and lra/training/optim.py as ever: nothing here is
part of their code.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from lra.base.config import Recipe, Schedule
from lra.base.errors import UserError, first_line
from lra.base.targets import arguments_of, check_options, resolve, targets_in
from lra.data.loader import Batch
from lra.model.pretrain import asked_of
from lra.settings.own import arguments
from lra.settings.run import Run
from lra.training.module import LRAModule
from lra.training.optim import StepSchedule, rates_of
from luna.base import Rate

DECAY = "weight_decay"


class CustomModule(LRAModule):
    """Trains as LRAModule does, by another optimiser or another schedule."""

    def __init__(self, network: nn.Module, run: Run):
        super().__init__(network, run.protocol.recipe, asked_of(run), run.seed)
        self.chosen = run.optimizer, run.schedule
        self._passes_of = -1  # the step that the last pass was of
        self._drawn: dict[str, Tensor] = {}  # random state before the first pass of a step
        self._highest: list[float | None] = []
        # Here a mistake in its options, or a parameter that it cannot train, costs no preparation.
        optimizer = build_optimizer(self, run.optimizer, self.recipe)
        self.several_passes = needs_closure(type(optimizer))
        build_schedule(optimizer, run.schedule, self.recipe, highest_rates(optimizer))

    def configure_optimizers(self) -> Any:
        optimizer = build_optimizer(self, self.chosen[0], self.recipe)
        self._highest = highest_rates(optimizer)
        schedule = build_schedule(optimizer, self.chosen[1], self.recipe, self._highest)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        super().lr_scheduler_step(scheduler, metric)
        for group, most in zip(scheduler.optimizer.param_groups, self._highest, strict=True):
            if most is not None and group["lr"] > most * (1 + 1e-6):
                raise UserError(
                    f"schedule={self.chosen[1]['_target_']} gives {group['lr']:.3g} to parameters "
                    f"whose method allows {most:.3g} at most: write the schedule as a function of "
                    "the step, which is scaled for them"
                )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """An optimiser with several passes a step, such as SAM, measures its gradients on one
        function: each pass draws the dropout of the first, which alone is what metrics show."""
        again, self._passes_of = self._passes_of == self.global_step, self.global_step
        if not self.several_passes:
            return super().training_step(batch, batch_idx)
        on_gpu, measured = self.device.type == "cuda", self.meter.sums
        if again:
            torch.set_rng_state(self._drawn["cpu"])
            if on_gpu:
                torch.cuda.set_rng_state(self._drawn["cuda"], self.device)
        else:
            self._drawn = {"cpu": torch.get_rng_state()}
            if on_gpu:
                self._drawn["cuda"] = torch.cuda.get_rng_state(self.device)
        loss = super().training_step(batch, batch_idx)
        if again:
            self.meter.sums = measured
        return loss


# ---------------------------------------------------------------------- what can be refused early


def check_chosen(run: Run) -> None:
    """UserError for an optimiser or a schedule that cannot be imported or has unknown options, or
    that does not fit how the run is executed. It builds nothing."""
    for setting in ("optimizer", "schedule"):
        if options := getattr(run, setting):
            check_options(setting, resolve(setting, options["_target_"]), arguments(options))
    if run.schedule:
        _check_schedule(run.schedule)
    if not run.optimizer:
        return
    made, target = resolve("optimizer", run.optimizer["_target_"]), run.optimizer["_target_"]
    if isinstance(made, type) and not issubclass(made, Optimizer):
        raise UserError(f"optimizer={target} is no torch.optim.Optimizer: derive it from that")
    if not needs_closure(made):
        return
    if run.trainer.precision.startswith("16-mixed"):
        raise UserError(
            f"optimizer={target} passes several times through the network in one step, which "
            "trainer.precision=16-mixed cannot: use bf16-mixed or 32-true"
        )
    if run.trainer.compile.name == "graphs":
        raise UserError(
            f"optimizer={target} passes several times through the network in one step, which CUDA "
            "graphs overwrite: use trainer.compile=default"
        )
    if run.trainer.strategy == "fsdp":
        raise UserError(
            f"optimizer={target} needs all gradients in one place, which trainer.strategy=fsdp "
            "divides: use ddp"
        )


def _check_schedule(options: dict[str, Any]) -> None:
    made = resolve("schedule", options["_target_"])
    if isinstance(made, type) and not issubclass(made, LRScheduler):
        raise UserError(
            f"schedule={options['_target_']} is neither a function of the step nor a subclass of "
            "torch.optim.lr_scheduler.LRScheduler"
        )
    if isinstance(made, type) and issubclass(made, ReduceLROnPlateau):
        raise UserError(
            f"schedule={options['_target_']} follows a score, which a step does not have: choose a "
            "schedule that follows the steps"
        )


def needs_closure(made: Callable[..., Any]) -> bool:
    """Say if an optimiser asks for gradients itself: its step cannot be called without a function
    that computes them."""
    step = getattr(made, "step", None)  # a function may make an optimiser too
    parameter = inspect.signature(step).parameters.get("closure") if step else None
    return parameter is not None and parameter.default is parameter.empty


# ---------------------------------------------------------------------- the optimiser


def build_optimizer(network: nn.Module, options: dict[str, Any], recipe: Recipe) -> Optimizer:
    """Build the optimiser with the recipe's rate and decay, and a group of parameters for each rate
    that a method asks for (`Method.rates`), behind that of all others."""
    if not options:
        options = {"_target_": "torch.optim.AdamW", "betas": tuple(recipe.betas), "eps": recipe.eps}
    target = options["_target_"]
    made = resolve("optimizer", target)
    taken = arguments_of(made)
    values = {"lr": recipe.lr, DECAY: recipe.weight_decay}
    known = {name: v for name, v in values.items() if taken is None or name in taken}
    if DECAY not in known and recipe.weight_decay:
        raise UserError(
            f"optimizer={target} takes no weight_decay, but protocol.recipe.weight_decay is "
            f"{recipe.weight_decay:g}: set it to 0"
        )
    of_parameter = rates_of(network)
    groups: dict[Rate, list[nn.Parameter]] = {Rate(): []}
    for parameter in network.parameters():
        groups.setdefault(of_parameter.get(parameter, Rate()), []).append(parameter)
    by_rate = [
        {"params": parameters, "highest": rate.highest}
        | ({} if rate.decay or DECAY not in known else {DECAY: 0.0})
        for rate, parameters in groups.items()
    ]
    optimizer = built("optimizer", made, target, by_rate, **arguments(options), **known)
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer={target} is no torch.optim.Optimizer")
    return optimizer


def highest_rates(optimizer: Optimizer) -> list[float | None]:
    return [group.get("highest") for group in optimizer.param_groups]


def built(setting: str, made: Callable[..., Any], target: str, *first: Any, **options: Any) -> Any:
    """Call a class of the user's; what it raises becomes one sentence."""
    from hydra.utils import instantiate

    for inner in targets_in(options):
        resolve(setting, inner)
    try:
        if "_target_" in str(options):  # an option that is an object itself
            options = instantiate(options, _convert_="all")
        return made(*first, **options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{setting}={target} cannot be built: {first_line(error)}") from error


# ---------------------------------------------------------------------- the schedule


def build_schedule(
    optimizer: Optimizer,
    options: dict[str, Any],
    recipe: Recipe,
    highest: list[float | None],
) -> LRScheduler:
    """Build the schedule, which is stepped once after each step of the optimiser."""
    if not options:
        if recipe.schedule is Schedule.onecycle and "betas" not in optimizer.param_groups[0]:
            raise UserError(
                "the schedule onecycle moves betas, which this optimizer does not have: choose "
                "another, such as schedule=cosine"
            )
        return StepSchedule(optimizer, recipe, highest)
    target, words = options["_target_"], _filled(arguments(options), recipe)
    made = resolve("schedule", target)
    if isinstance(made, type):
        for group, most in zip(optimizer.param_groups, highest, strict=True):
            group["lr"] = group["lr"] if most is None else min(group["lr"], most)
        return built("schedule", made, target, optimizer, **words)
    facts = {"steps": recipe.steps, "warmup": recipe.warmup}
    taken = arguments_of(made)
    words = {k: v for k, v in facts.items() if taken is None or k in taken} | words
    rule = partial(_factor, made, target, words)
    factors = [rule(s) for s in range(recipe.steps)] if any(highest) else []
    peak = recipe.lr * max(factors, default=1.0)
    rule(0)  # refuses what is no number before anything is trained
    shares = [1.0 if most is None else min(1.0, most / peak) for most in highest]
    return LambdaLR(optimizer, [partial(_times, share, rule) for share in shares])


def _times(share: float, rule: Callable[[int], float], step: int) -> float:
    return share * rule(step)


def _factor(made: Callable[..., Any], target: str, words: dict[str, Any], step: int) -> float:
    """Ask a function of the user's for the factor of a step."""
    value = built("schedule", made, target, step, **words)
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UserError(
            f"schedule={target} gives {value!r:.50} at step {step}: it must return a number from 0 "
            "on, by which the rate is multiplied"
        )
    return float(value)


def _filled(options: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Put numbers for "{steps}" and "{warmup}", which the budget has scaled."""
    facts = {"{steps}": recipe.steps, "{warmup}": recipe.warmup}
    return {
        key: facts.get(value, value) if isinstance(value, str) else value
        for key, value in options.items()
    }
