"""The optimiser of a run: AdamW by its recipe, or what somebody chose by `_target_`
(configs/optimizer).

By the recipe it is AdamW with decay on every parameter,
theta <- theta - lr (m / (sqrt(v) + eps) + decay theta), which is also what flax.optim.Adam computed
in the 2020 code. Protocols differ in the numbers and in the schedule (schedule.py).
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from lra.base.config import Recipe
from lra.base.errors import UserError
from lra.base.targets import arguments_of, built, resolve
from lra.settings.own import arguments
from lra.settings.run import Run
from lra.training.memory import normed_over_batch
from luna.base import Method, Rate

ADAMW = "torch.optim.AdamW"
DECAY = "weight_decay"


def build_optimizer(
    network: nn.Module,
    recipe: Recipe,
    options: Mapping[str, Any] = {},
    *,
    fused: bool | None = None,
) -> Optimizer:
    """Build the optimiser of `options`, or AdamW by the recipe, which alone is `fused` into one
    kernel or as torch chooses. Rate and decay are the recipe's."""
    target = options.get("_target_", ADAMW)
    made = resolve("optimizer", target)
    words = arguments(options)
    if not options:
        words = {"betas": tuple(recipe.betas), "eps": recipe.eps, "fused": fused}
    taken = arguments_of(made)
    values = {"lr": recipe.lr, DECAY: recipe.weight_decay}
    known = {name: v for name, v in values.items() if taken is None or name in taken}
    if DECAY not in known and recipe.weight_decay:
        raise UserError(
            f"optimizer={target} takes no weight_decay, but protocol.recipe.weight_decay is "
            f"{recipe.weight_decay:g}: set it to 0"
        )
    groups = groups_of(network, recipe, decays=DECAY in known)
    optimizer = built("optimizer", made, target, groups, **words, **known)
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer={target} is no torch.optim.Optimizer")
    return optimizer


class Group(NamedTuple):
    """How some parameters learn."""

    lr: float | None = None  # by the recipe
    highest: float | None = None  # what the schedule must not exceed, by their method
    decay: bool = True


def groups_of(network: nn.Module, recipe: Recipe, *, decays: bool = True) -> list[dict[str, Any]]:
    """The groups of parameters: all that learn as the recipe says of all, and behind them one for
    each other way, by the recipe's patterns or by a method (`Method.rates`)."""
    of_parameter = rates_of(network)
    groups: dict[Group, list[nn.Parameter]] = {Group(): []}
    for name, parameter in network.named_parameters():
        rate = of_parameter.get(parameter, Rate())
        name = name.removeprefix("network.")  # of a LightningModule
        fits = [own["lr"] for own in recipe.rates if _fits(name, own["of"])]
        decay = rate.decay and not _fits(name, recipe.undecayed)
        group = Group(fits[0], None, decay) if fits else Group(None, rate.highest, decay)
        groups.setdefault(group, []).append(parameter)
    return [
        {"params": parameters, "highest": group.highest}
        | ({} if group.lr is None else {"lr": group.lr})
        | ({} if group.decay or not decays else {DECAY: 0.0})
        for group, parameters in groups.items()
    ]


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


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


def needs_closure(made: Callable[..., Any]) -> bool:
    """Say if an optimiser asks for gradients itself: its step cannot be called without a function
    that computes them."""
    step = getattr(made, "step", None)  # a function may make an optimiser too
    parameter = inspect.signature(step).parameters.get("closure") if step else None
    return parameter is not None and parameter.default is parameter.empty


def check_passes(options: Mapping[str, Any], network: nn.Module) -> None:
    """UserError for an optimiser that passes several times through a network in which each pass
    counts: statistics of norms over the batch would move several times in one step."""
    if options and needs_closure(resolve("optimizer", options["_target_"])):
        for name in normed_over_batch(network):
            raise UserError(
                f"optimizer={options['_target_']} passes several times through the network in one "
                f"step, each of which would move the statistics of {name}, a norm over the batch: "
                "choose another norm or optimiser"
            )


def check_optimizer(run: Run) -> None:
    """UserError for what is no optimiser, or does not fit how the run is executed. It builds
    nothing."""
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
