"""A kernel is compared with its reference before it is used: fakes on a CPU play the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import luna
from luna.kernels import checked
from luna.kernels import luna_attention as fused
from luna.kernels import scalar_mlp

FLOAT = torch.ones(2, 3), torch.arange(3.0)


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y.exp()


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad * 1.01


def fails(x: Tensor, y: Tensor) -> Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(checked, "LEFT_OUT", set())
    monkeypatch.setattr(checked, "_compared", set())
