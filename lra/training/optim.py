"""The optimiser and the learning-rate schedules, as functions of the optimiser step s = 0, 1, ...

The optimiser is always AdamW with decay on every parameter,
theta <- theta - lr (m / (sqrt(v) + eps) + decay theta), which is also what flax.optim.Adam computed
in the 2020 code. Protocols differ in the numbers and in the schedule.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from lra.base.config import Recipe, Schedule
from lra.base.errors import UserError
from luna.base import Method, Rate

Rule = Callable[[int, Recipe], float]  # of the optimiser step


def build_optimizer(
    network: nn.Module, recipe: Recipe, *, fused: bool | None = None
) -> tuple[Optimizer, LRScheduler]:
    """Build the optimiser, `fused` into one kernel or as torch chooses, and its schedule, which is
    stepped once after each optimiser step. Parameters for which a method has a rate of its own
    (`Method.rates`) are groups behind all others."""
    of_parameter = rates_of(network)
    groups: dict[Rate, list[nn.Parameter]] = {Rate(): []}
    for parameter in network.parameters():
        groups.setdefault(of_parameter.get(parameter, Rate()), []).append(parameter)
    optimizer = AdamW(
        [
            {"params": parameters, "weight_decay": recipe.weight_decay if rate.decay else 0.0}
            for rate, parameters in groups.items()
        ],
        lr=recipe.lr,
        betas=(recipe.betas[0], recipe.betas[1]),
        eps=recipe.eps,
        fused=fused,
    )
    return optimizer, StepSchedule(optimizer, recipe, [rate.highest for rate in groups])


def rates_of(network: nn.Module) -> dict[nn.Parameter, Rate]:
    """The parameters that do not learn as others do, by the patterns of their methods."""
    found: dict[nn.Parameter, Rate] = {}
    for method in network.modules():
        for pattern, rate in method.rates.items() if isinstance(method, Method) else ():
            named = dict(method.named_parameters())
            matched = [name for name in named if fnmatch.fnmatchcase(name, pattern)]
            if not matched:
                raise UserError(
                    f"'{method.name}' has a rate for parameters named '{pattern}', and none is "
                    f"named so: it has {', '.join(named) or 'none'}"
                )
            found |= {named[name]: rate for name in matched}
    return found


class StepSchedule(LambdaLR):
    """Multiplies recipe.lr by the schedule, scaled where that would exceed the highest rate of a
    group; the one-cycle schedule moves beta1 too."""

    def __init__(
        self, optimizer: Optimizer, recipe: Recipe, highest: Sequence[float | None] = (None,)
    ):
        self._recipe = recipe

        def factor(most: float | None) -> Callable[[int], float]:
            share = 1.0 if most is None else min(1.0, most / peak(recipe))
            return lambda s: share * SCHEDULES[recipe.schedule](s, recipe)

        super().__init__(optimizer, [factor(most) for most in highest])

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        if self._recipe.schedule is Schedule.onecycle:
            for group in self.optimizer.param_groups:
                group["betas"] = (onecycle_beta1(self.last_epoch, self._recipe), group["betas"][1])

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "_recipe"}


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
    Schedule.onecycle: onecycle,
    Schedule.cosine_floor: cosine_floor,
}
