"""LOTFormer: its transport plans, what half-steps guarantee, and what the backward keeps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import luna
from luna.attention.lotformer import sinkhorn

from ..kit import build, difference, mask_of, qkv


def sharp(**options) -> luna.Attention:
    """Pivots far from their start, so that plans are far from uniform."""
    torch.manual_seed(1)
    attention = build("lotformer", **options).double()
    with torch.no_grad():
        attention.pivots.mul_(27)
    return attention


@pytest.mark.parametrize(("eps", "half_steps"), [(0.1, 49), (0.1, 50), (1.0, 5), (1.0, 6), (1, 1)])
def test_parity(eps: float, half_steps: int) -> None:
    attention = sharp(R=8, eps=eps, half_steps=half_steps)
    q, k, _ = qkv(1, 2, 50)
    v = torch.eye(50, dtype=torch.float64).expand(1, 2, 50, 50)
    A = attention(q, k, v)
    rows, columns = ((A.sum(dim) - 1).abs().max() for dim in (-1, -2))
    exact, loose = (rows, columns) if half_steps % 2 else (columns, rows)
    assert exact < 1e-12
    assert loose > 1e-9


def stored(half_steps: int) -> int:
    """Bytes that a forward of the plans keeps for its backward."""
    S = torch.randn(1, 1, 256, 32).requires_grad_()
    mu, nu = torch.full((256, 1), -math.log(256)), torch.full((1, 32), -math.log(32))
    storages: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        sinkhorn(S, mu, nu, half_steps)
    return sum(storages.values())


def test_memory_of_a_half_step() -> None:
    per_step = (stored(110) - stored(10)) / 100
    assert per_step <= 4 * (256 + 32) * 2  # potentials, not plans: 4 bytes, n or R of them


def test_published() -> None:
    """Rows sum to 1 / R^2, scores are clamped, and padding carries mass like any other token."""
    attention = sharp(profile="published")
    assert attention.pivots.shape == (2, 32, 32)
    assert build("lotformer", R=640).pivots.std().item() == pytest.approx(0.02, rel=0.05)
    q, k, v = qkv()
    out = attention(q, k, v, mask_of("prefix"))
    assert torch.equal(out, attention(q, k, v))
    assert difference(out * 32**2, sharp()(q, k, v)) < 1e-10
    assert difference(attention.matrix(q, k, mask_of("prefix")) @ v, out) < 1e-10
    S_Q, S_K = attention.scores(1e3 * q, -1e3 * k)
    assert max(S_Q.abs().max(), S_K.abs().max()) == 50
    assert sharp().scores(1e3 * q, k)[0].abs().max() > 50
