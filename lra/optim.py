"""The optimiser and the learning rate of every protocol, as functions of the optimiser step s = 0,
1, 2, ...

The optimiser is always AdamW, decay on every parameter: theta <- theta - lr (m / (sqrt(v) + eps) +
decay theta), which is also what flax.optim.Adam did in the 2020 code. A protocol differs in its
numbers and in its schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from lra.config import Recipe, Schedule

Rule = Callable[[int, Recipe], float]  # of the optimiser step


def build(parameters: Iterable[nn.Parameter], recipe: Recipe) -> tuple[Optimizer, LRScheduler]:
    """The scheduler is stepped once after each optimiser step; its state is plain values."""
    optimizer = AdamW(
        parameters,
        lr=recipe.lr,
        betas=(recipe.betas[0], recipe.betas[1]),
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
    )
    return optimizer, StepSchedule(optimizer, recipe)


class StepSchedule(LambdaLR):
    """recipe.lr times the schedule's multiplier; under one-cycle beta1 as well."""

    def __init__(self, optimizer: Optimizer, recipe: Recipe):
        beta1 = BETA1.get(recipe.schedule)
        self._beta1 = _bind(beta1, recipe) if beta1 else None
        super().__init__(optimizer, _bind(SCHEDULES[recipe.schedule], recipe))

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        if self._beta1 is not None:
            for group in self.optimizer.param_groups:
                group["betas"] = (self._beta1(self.last_epoch), group["betas"][1])

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "_beta1"}


def _bind(rule: Rule, recipe: Recipe) -> Callable[[int], float]:
    return lambda s: rule(s, recipe)


def ramp(s: int, recipe: Recipe) -> float:
    """0 at the first step, 1 from step `warmup` on."""
    return min(1.0, s / recipe.warmup) if recipe.warmup else 1.0


def constant(s: int, recipe: Recipe) -> float:
    return ramp(s, recipe)


def rsqrt(s: int, recipe: Recipe) -> float:
    """1 / sqrt(s) after the warm-up (LRA: ListOps, Text, Retrieval), so lr is not the peak."""
    return ramp(s, recipe) / math.sqrt(max(s, recipe.warmup, 1))


def cosine(s: int, recipe: Recipe) -> float:
    """Half a cosine whose period is all the steps and which starts after the warm-up (LRA:
    Image, Pathfinder): it ends short of its minimum."""
    past = max(0.0, (s - recipe.warmup) / recipe.steps)
    return ramp(s, recipe) * max(0.0, 0.5 * (1 + math.cos(math.pi * (past % 1))))


def triangle(s: int, recipe: Recipe) -> tuple[float, bool]:
    """How far up between the ends and the peak, which is the last warm-up step; and whether it
    is ahead."""
    peak, last = max(recipe.warmup - 1, 0), recipe.steps - 1
    if s < peak:
        return s / peak, True
    return max(0.0, 1 - (s - peak) / max(last - peak, 1)), False


def onecycle(s: int, recipe: Recipe) -> float:
    """Linear from 1/25 to 1 and down to 1/250,000: OneCycleLR's defaults (Skyformer,
    Nystromformer)."""
    height, rising = triangle(s, recipe)
    low = 1 / 25 if rising else 1 / 25 / 1e4
    return low + (1 - low) * height


def onecycle_beta1(s: int, recipe: Recipe) -> float:
    """0.95 to 0.85 and back: OneCycleLR cycles Adam's momentum by default, whatever `betas`
    says."""
    height, _ = triangle(s, recipe)
    return 0.95 - 0.10 * height


def cosine_floor(s: int, recipe: Recipe) -> float:
    """Linear from a tenth to 1, then half a cosine to 0.4 of the peak (LOTFormer); the first
    step has climbed."""
    if s < recipe.warmup:
        return 0.1 + 0.9 * (s + 1) / recipe.warmup
    past = min(1.0, (s - recipe.warmup) / max(1, recipe.steps - recipe.warmup))
    return 0.4 + 0.6 * 0.5 * (1 + math.cos(math.pi * past))


SCHEDULES: dict[Schedule, Rule] = {
    Schedule.constant: constant,
    Schedule.rsqrt: rsqrt,
    Schedule.cosine: cosine,
    Schedule.onecycle: onecycle,
    Schedule.cosine_floor: cosine_floor,
}

BETA1: dict[Schedule, Rule] = {Schedule.onecycle: onecycle_beta1}
