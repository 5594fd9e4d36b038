"""The optimisers on given gradients, and the factors of all schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lra.base.config import Recipe, Schedule
from lra.training import optimizer as optimizers
from lra.training import schedule as schedules
from lra.training.sam import SAM
from luna.method import Method
from luna.traits import Rate

from .compare import Numbers
from .made import small
from .of_network import waves

SAM_OPTIONS = {"_target_": "lra.training.sam.SAM", "rho": 0.2, "betas": (0.9, 0.98), "eps": 1e-8}


class Own(Method):
    """A method two of whose parameters learn as they want to."""

    rates: ClassVar = {"slow": Rate(highest=1e-3, decay=False), "plain": Rate(decay=False)}

    def __init__(self) -> None:
        super().__init__(0)
        self.slow, self.plain, self.usual = (nn.Parameter(waves(3, shift=i)) for i in range(3))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = Own(), nn.Parameter(waves(4, shift=7))


def recipe(**changes: Any) -> Recipe:
    return replace(small().protocol.recipe, **{"steps": 30, "warmup": 6} | changes)


def optimizer() -> Numbers:
    """Weights after three steps with given gradients."""
    rule = recipe(schedule=Schedule.constant, warmup=0)
    usual, chosen, sam = Two(), Two(), Two()
    made = optimizers.build_optimizer(usual, rule)
    schedules.build_schedule(made, rule)  # which keeps each group below its highest rate
    named = {"betas": tuple(rule.betas), "eps": rule.eps}
    adamw = {"_target_": "torch.optim.AdamW"} | named
    sgd = {"_target_": "torch.optim.SGD", "momentum": 0.9}
    return {
        "adamw": _stepped(usual, made),
        "groups": _groups(made),
        "adamw by name": _stepped(chosen, optimizers.build_optimizer(chosen, rule, adamw)),
        "sgd": _stepped(two := Two(), optimizers.build_optimizer(two, rule, sgd)),
        "sam": _stepped(sam, optimizers.build_optimizer(sam, rule, SAM_OPTIONS)),
    }


def _groups(made: Optimizer) -> list[dict[str, Any]]:
    keys = ("lr", "weight_decay", "eps", "betas")
    numbers = [{key: group[key] for key in keys} for group in made.param_groups]
    sizes = [sum(p.numel() for p in group["params"]) for group in made.param_groups]
    return [facts | {"parameters": n} for facts, n in zip(numbers, sizes, strict=True)]


def _stepped(network: nn.Module, made: Optimizer) -> dict[str, list[float]]:
    for step in range(3):

        def loss(step: int = step) -> Tensor:
            """Its gradients depend on the weights, which an optimiser of two passes moves."""
            made.zero_grad()
            total = torch.zeros((), dtype=torch.float64)
            for p in network.parameters():
                total = total + (waves(*p.shape, shift=step) * p + p**4 / 3).sum()
            total.backward()
            return total

        if isinstance(made, SAM):
            made.step(loss)
        else:
            loss()
            made.step()
    return {name: p.detach().tolist() for name, p in network.named_parameters()}


def schedule() -> Numbers:
    """The rate of every group, and beta1, at each step of a short recipe."""
    numbers: Numbers = {rule.name: _rates(rule) for rule in Schedule}
    for name, facts in {"no warm-up": {"warmup": 0}, "one step": {"warmup": 0, "steps": 1}}.items():
        numbers[name] = {
            rule.name: [schedules.SCHEDULES[rule](s, replace(recipe(), **facts)) for s in range(3)]
            for rule in Schedule
        }
    return numbers


def _rates(rule: Schedule) -> dict[str, list[float]]:
    network = Two()
    wanted = recipe(schedule=rule, lr=0.02)
    made = optimizers.build_optimizer(network, wanted)
    follows = schedules.build_schedule(made, wanted)
    seen: dict[str, list[float]] = {"usual": [], "slow": [], "beta1": []}
    for _ in range(30):
        usual, slow, *_ = made.param_groups
        for name, value in zip(seen, (usual["lr"], slow["lr"], usual["betas"][0]), strict=True):
            seen[name].append(value)
        made.step()
        follows.step()
    return seen
