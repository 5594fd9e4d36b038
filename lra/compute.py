"""Parameters and FLOPs of a network, counted by one rule: a multiply-add is 2; per example,
forward.

The attention says its own FLOPs beside its formula (`Attention.flops`); every linear layer around
it costs 2 x inputs x outputs per token it is applied to. Element-wise work around the slot is not
counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from lra import data, model
from lra.compose import Run
from lra.model.network import Network


@dataclass(frozen=True)
class Count:
    parameters: int  # trainable
    attention_parameters: int  # of the slots alone: the method and its local branch
    flops: int  # forward, one example at full stored length
    attention_flops: int

    def ratio(self, reference: Count) -> tuple[float, float]:
        return self.parameters / reference.parameters, self.flops / reference.flops


def count(network: Network) -> Count:
    """Count a network on any device, the meta device included."""
    layers = [block.attention for block in network.encoder.blocks]
    slots = [s for layer in layers for s in (layer.attention, layer.local) if s is not None]
    inside = {id(m) for slot in slots for m in slot.modules()}
    n, documents = network.embedding.max_len, 2 if network.dual else 1

    attention = documents * sum(slot.flops(n) for slot in slots)
    around = documents * n * _linear(m for m in network.encoder.modules() if id(m) not in inside)
    return Count(
        parameters=_trainable([network]),
        attention_parameters=_trainable(slots),
        flops=attention + around + _linear(network.head.modules()),
        attention_flops=attention,
    )


def count_run(run: Run, attention: dict | None = None) -> Count:
    """Count what `run` would train, or the same with another attention; nothing is allocated."""
    task = data.get(run.task.name)
    with torch.device("meta"):
        network = model.build(
            task, attention or run.attention, run.model, run.protocol, seed=run.seed
        )
    return count(network)


def reference(run: Run) -> Count:
    """The measure that `compute.reference` names: that attention at its defaults, same backbone."""
    return count_run(run, {"name": run.compute.reference})


def show(run: Run) -> None:
    own = count_run(run)
    print(f"{run.task.name}/{run.attention['name']}, model {run.model.name}, per example, forward")
    print(f"  parameters {own.parameters:>14,}  of which attention {own.attention_parameters:>12,}")
    print(f"  FLOPs      {own.flops:>14,}  of which attention {own.attention_flops:>12,}")
    if run.compute.mode == "report":
        parameters, flops = own.ratio(reference(run))
        print(
            f"  ratio to {run.compute.reference}: parameters x{parameters:.3f}, FLOPs x{flops:.3f}"
        )


def _linear(modules) -> int:
    return sum(2 * m.in_features * m.out_features for m in modules if isinstance(m, nn.Linear))


def _trainable(modules: list[nn.Module]) -> int:
    return sum(p.numel() for m in modules for p in m.parameters() if p.requires_grad)
