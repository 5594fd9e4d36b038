"""The normalised linear attention that every feature map runs on (luna/linear.py)."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from luna.base import Slot
from luna.linear import KernelAttention
from luna.sums import causal_linear_sums, denominator, linear_sums

from .kit import Sizes, mask_of, normalised

B, H, n, D, e = 2, 2, 37, 6, 5


def features(seed: int = 0, signed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    phi_q, phi_k, v = (
        torch.randn(B, H, n, width, generator=generator, dtype=torch.float64) for width in (D, D, e)
    )
    return (phi_q, phi_k, v) if signed else (phi_q.abs(), phi_k.abs(), v)


def test_denominator_keeps_the_sign():
    c = torch.tensor([-2.0, -1e-9, -0.0, 0.0, 1e-9, 2.0], dtype=torch.float64)
    signed = [-2.0, -1e-3, 1e-3, 1e-3, 1e-3, 2.0]  # sgn(0) = +1
    assert denominator(c, 1e-3, signed=True).tolist() == signed
    assert denominator(c, 1e-3, signed=False).tolist() == [1e-3] * 5 + [2.0]


def test_memory_holds_no_state_per_position():
    """A plain cumsum would store n x D x e numbers; chunks of C store n/C of these states."""
    n, C, D, e = 2048, 128, 16, 16
    tensors = [torch.rand(1, 1, n, width, requires_grad=True) for width in (D, D, e)]
    with Sizes() as sizes:
        normalised(causal_linear_sums(*tensors, chunk=C)).sum().backward()
    assert sizes.largest <= n * C
    with Sizes() as sizes:
        normalised(linear_sums(*tensors)).sum().backward()
    assert sizes.largest <= n * max(D, e)


class Relu(KernelAttention):
    name: ClassVar[str] = "relu"
    feature_dim = D

    def phi(self, x: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        return x.relu()


def relu(**slot) -> Relu:
    return Relu(Slot(n_heads=H, head_dim=D, max_len=64, **slot)).eval()


def dead_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Queries 0 and 5 of example 0, head 0 have no positive feature; padded ones too, elsewhere."""
    q, k, v = features(signed=True)
    q = q.abs()
    q[0, 0, [0, 5]] *= -1
    q[1, :, 36] *= -1
    return q, k, v


@pytest.mark.parametrize("causal", [False, True])
def test_dead_queries_return_zero_and_are_counted(causal: bool):
    q, k, v = dead_inputs()
    k = k.abs()
    m = mask_of("full", n=n)
    m[1, 30:] = False
    attention = relu(causal=causal)
    out = attention(q, k, v, m)
    assert (out[0, 0, [0, 5]] == 0).all()
    assert attention.dead_fraction.item() == pytest.approx(2 / (H * (n + 30)))
    attention(q, k, v)
    assert attention.dead_fraction.item() == pytest.approx((2 + H) / (B * H * n))
