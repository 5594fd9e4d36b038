"""Learning-rate schedules, as functions of the optimiser step s = 0, 1, ...: those of protocols,
and those that somebody chose by `_target_` (configs/schedule).

A schedule is the same for all groups of parameters, but scaled where it would exceed the highest
rate that a method allows (optimizer.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from lra.base.config import Recipe, Schedule
from lra.base.errors import UserError
from lra.base.targets import arguments_of, built, resolve
from lra.settings.own import arguments

Rule = Callable[[int, Recipe], float]  # of the optimiser step


def build_schedule(
    optimizer: Optimizer, recipe: Recipe, options: Mapping[str, Any] = {}
) -> LRScheduler:
    """Build the recipe's schedule, or the one of `options`. It is stepped once after each step of
    the optimiser."""
    if options:
        return _build_chosen(optimizer, recipe, options)
    if recipe.schedule is Schedule.onecycle and "betas" not in optimizer.param_groups[0]:
        raise UserError(
            "the schedule onecycle moves betas, which this optimizer does not have: choose "
            "another, such as schedule=cosine"
        )
    return StepSchedule(optimizer, recipe)


def shares_of(optimizer: Optimizer, peak: Callable[[], float]) -> list[float]:
    """By what the rates of each group are multiplied, so that a schedule with this peak, which is
    computed where it is needed, stays below the group's highest rate."""
    highest = [group.get("highest") for group in optimizer.param_groups]
    return [1.0 if most is None else min(1.0, most / peak()) for most in highest]


class StepSchedule(LambdaLR):
    """Multiplies recipe.lr by the recipe's schedule; the one-cycle schedule moves beta1 too."""

    def __init__(self, optimizer: Optimizer, recipe: Recipe):
        self._recipe = recipe

        def factor(share: float) -> Callable[[int], float]:
            return lambda s: share * SCHEDULES[recipe.schedule](s, recipe)

        shares = shares_of(optimizer, partial(peak, recipe))
        super().__init__(optimizer, [factor(share) for share in shares])

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        if self._recipe.schedule is Schedule.onecycle:
            for group in self.optimizer.param_groups:
                group["betas"] = (onecycle_beta1(self.last_epoch, self._recipe), group["betas"][1])

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "_recipe"}


# ---------------------------------------------------------------------- of the protocols


def peak(recipe: Recipe) -> float:
    """The highest rate of a schedule, which is not recipe.lr where it falls with the root of s."""
    return recipe.lr * max(SCHEDULES[recipe.schedule](s, recipe) for s in range(recipe.steps))


def ramp(s: int, recipe: Recipe) -> float:
    """0 at the first step, 1 from step `warmup` on."""
    return min(1.0, s / recipe.warmup) if recipe.warmup else 1.0


def rsqrt(s: int, recipe: Recipe) -> float:
    """1 / sqrt(s) after the warm-up (LRA: ListOps, Text, Retrieval), so lr is not the peak."""
    return ramp(s, recipe) / math.sqrt(max(s, recipe.warmup, 1))


def cosine(s: int, recipe: Recipe) -> float:
    """Half a cosine that starts after the warm-up and lasts as long as all steps, so training ends
    before its minimum (LRA: Image, Pathfinder)."""
    past = max(0.0, (s - recipe.warmup) / recipe.steps)
    return ramp(s, recipe) * max(0.0, 0.5 * (1 + math.cos(math.pi * (past % 1))))


def cosine_full(s: int, recipe: Recipe) -> float:
    """Half a cosine from the end of the warm-up to 0 after the last step, as transformers has it
    (S4)."""
    past = max(0, s - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return ramp(s, recipe) * max(0.0, 0.5 * (1 + math.cos(math.pi * past)))


def triangle(s: int, recipe: Recipe) -> tuple[float, bool]:
    """The height, 0 to 1, of a triangle that peaks at the last warm-up step; whether it rises."""
    peak, last = max(recipe.warmup - 1, 0), recipe.steps - 1
    if s < peak:
        return s / peak, True
    return max(0.0, 1 - (s - peak) / max(last - peak, 1)), False


def onecycle(s: int, recipe: Recipe) -> float:
    """1/25 to 1, then to 1/250,000, linear: OneCycleLR's defaults (Skyformer, Nystromformer)."""
    height, rising = triangle(s, recipe)
    low = 1 / 25 if rising else 1 / 25 / 1e4
    return low + (1 - low) * height


def onecycle_beta1(s: int, recipe: Recipe) -> float:
    """0.95 to 0.85 and back: OneCycleLR cycles Adam's momentum by default and ignores `betas`."""
    height, _ = triangle(s, recipe)
    return 0.95 - 0.10 * height


def cosine_floor(s: int, recipe: Recipe) -> float:
    """0.1 to 1, then half a cosine to 0.4 (LOTFormer); step 0 is already one step up."""
    if s < recipe.warmup:
        return 0.1 + 0.9 * (s + 1) / recipe.warmup
    past = min(1.0, (s - recipe.warmup) / max(1, recipe.steps - recipe.warmup))
    return 0.4 + 0.6 * 0.5 * (1 + math.cos(math.pi * past))


SCHEDULES: dict[Schedule, Rule] = {
    Schedule.constant: ramp,
    Schedule.rsqrt: rsqrt,
    Schedule.cosine: cosine,
    Schedule.cosine_full: cosine_full,
    Schedule.onecycle: onecycle,
    Schedule.cosine_floor: cosine_floor,
}


# ---------------------------------------------------------------------- chosen by `_target_`


def check_schedule(options: Mapping[str, Any]) -> None:
    """UserError for what is no schedule. It builds nothing."""
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


def check_rates(optimizer: Optimizer, target: str) -> None:
    """UserError for a rate above the highest one that a method allows: a class may do with the
    groups what it likes."""
    for group in optimizer.param_groups:
        most = group.get("highest")
        if most is not None and group["lr"] > most * (1 + 1e-6):
            raise UserError(
                f"schedule={target} gives {group['lr']:.3g} to parameters whose method allows "
                f"{most:.3g} at most: write the schedule as a function of the step, which is "
                "scaled for them"
            )


def _build_chosen(optimizer: Optimizer, recipe: Recipe, options: Mapping[str, Any]) -> LRScheduler:
    """A class gets the optimiser; a function is asked for the factor of each step."""
    target, words = options["_target_"], _filled(arguments(options), recipe)
    made = resolve("schedule", target)
    if isinstance(made, type):
        for group in optimizer.param_groups:
            if (most := group.get("highest")) is not None:
                group["lr"] = min(group["lr"], most)
        return built("schedule", made, target, optimizer, **words)
    facts = {"steps": recipe.steps, "warmup": recipe.warmup}
    taken = arguments_of(made)
    words = {k: v for k, v in facts.items() if taken is None or k in taken} | words
    rule = partial(_factor, made, target, words)
    rule(0)  # refuses what is no number before anything is trained
    shares = shares_of(optimizer, lambda: recipe.lr * max(map(rule, range(recipe.steps))))
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
