"""The two small networks that were trained beside the authors' code (test_s4.py): their settings,
their weights, which are formulas, their batches, and a dropout that draws nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor, nn

import lra
import luna.dropout
from lra.settings.compose import Run
from lra.training.module import LRAModule
from lra.training.run import build

B, N, STEPS = 3, 10, 10
SIZES = ("model.n_layers=2", "model.d_model=6", "model.n_heads=1", "attention.state=4")
RECIPE = ("protocol.recipe.steps=10", "protocol.recipe.warmup=3", "protocol.evaluation.every=5")
# Of Image with its dropout; of ListOps, whose padding the authors count into their statistics, so
# that the two are compared without any.
WORDS = {
    "image": ("task=image8", *SIZES, *RECIPE, "protocol.data.pad_to=64"),
    "listops": ("task=listops", *SIZES, *RECIPE),
}


def waves(*shape: int, shift: float = 0.0) -> Tensor:
    """Numbers between -1 and 1 that no generator draws."""
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (numbers * 1.7 + shift).cos().view(shape)


def run_of(case: str) -> Run:
    return lra.compose([*WORDS[case], "protocol=s4", "attention=s4d"])


def module_of(case: str) -> LRAModule:
    """In double precision, with weights near those of the start that no two parameters share."""
    module = build(run_of(case)).double()
    with torch.no_grad():
        for i, (name, p) in enumerate(sorted(module.network.named_parameters())):
            drawn = waves(*p.shape, shift=i)
            near = name.endswith(("log_dt", "A_log_decay", "A_frequency", ".b"))
            p.copy_(p.mean() + 0.2 * drawn if near else 0.5 * drawn)
            if name.endswith("A_frequency"):
                p.copy_(torch.arange(p.shape[1]) * 3.0 + 0.2 * drawn + 0.5)
            if name.endswith(("norm1.weight", "norm.weight")):
                p.add_(1)
            if name.endswith("log_dt"):
                p.copy_(-2 + 0.5 * drawn)
    return module.train()


def batch(case: str, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a step."""
    labels = (torch.arange(B) + step) % 3
    places = torch.arange(B * N).view(B, N) * 7 + 3 * step
    return (places * 5 % 256 if case == "image" else 1 + places % 15), labels


@contextmanager
def dropout_by_formula() -> Iterator[None]:
    """Every dropout keeps what a formula of its number in the step says."""
    numbers, usual = count(), luna.dropout.dropout

    def keep(x: Tensor, p: float, training: bool = True) -> Tensor:
        if not p:
            return x
        kept = waves(*x.shape, shift=next(numbers)) > 2 * p - 1
        return x * kept / (1 - p)

    luna.dropout.dropout = keep  # type: ignore[assignment]
    try:
        yield
    finally:
        luna.dropout.dropout = usual


def forward(module: nn.Module, ids: Tensor) -> Tensor:
    with dropout_by_formula():
        return module.network(ids)  # type: ignore[operator, no-any-return]
