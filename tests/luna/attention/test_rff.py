"""Random Fourier features: the kernel, its variance, and a denominator that may be negative."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from luna.feature_maps.rff import FourierFeatures

from ..kit import build, difference, mask_of, qkv, softmax_attention


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    return (-(x - y).square().sum(-1) / (2 * x.shape[-1] ** 0.5)).exp()


def slope(x: list[int], y: list[float]) -> float:
    a, b = (torch.tensor(t, dtype=torch.float64).log() for t in (x, y))
    return float(((a - a.mean()) * (b - b.mean())).sum() / (a - a.mean()).square().sum())


def test_rate() -> None:
    d, pool = 8, 2**20
    x, y = (0.6 * t[0, 0, 0] for t in qkv(1, 1, 1, d)[:2])
    features = FourierFeatures(d, pool, seed=1)
    each = (features(x) * features(y)).view(2, pool).sum(0) * pool  # one per frequency
    k = float(gaussian(x, y))
    assert 0.2 < k < 0.8
    sizes = [4, 16, 64, 256, 1024]
    rmse = [(each.view(-1, P).mean(-1) - k).square().mean().sqrt().item() for P in sizes]
    assert rmse == pytest.approx([(1 - k * k) / math.sqrt(2 * P) for P in sizes], rel=0.05)
    assert abs(slope(sizes, rmse) + 0.5) < 0.02
    assert abs(each.mean().item() - k) < 4 * (1 - k * k) / math.sqrt(2 * pool)


def test_softmax_kernel() -> None:
    q, k, v = qkv(n=32, d=16)
    q, k = 0.5 * q, 0.5 * k
    exact, errors, sizes = softmax_attention(q, k, v), [], [256, 1024, 4096, 16384]
    for P in sizes:
        options = {"head_dim": 16, "P": P, "kernel": "softmax"}
        draws = [build("rff", seed=s, **options)(q, k, v) for s in range(4)]
        errors.append((torch.stack(draws) - exact).square().mean().sqrt().item())
    assert abs(slope(sizes, errors) + 0.5) < 0.1
    assert errors[-1] < 0.02
    limit = (build("rff", head_dim=16, P=16384)(q, k, v) - exact).square().mean().sqrt()
    assert limit > 3 * errors[-1]  # without the weights it is another attention


def test_features_are_the_formula() -> None:
    attention = build("rff", P=5, seed=3)
    q, k, v = qkv(d_v=9)
    mask = mask_of("scatter")
    Omega = attention.map.Omega.double()
    phi_q, phi_k = (
        torch.cat([u.cos(), u.sin()], -1) / 5**0.5
        for u in (32**-0.25 * q @ Omega.T, 32**-0.25 * k @ Omega.T)
    )
    A = (phi_q @ phi_k.mT) * mask[:, None, None, :]
    c = A.sum(-1, keepdim=True)
    c = torch.where(c < 0, c.clamp(max=-1e-2), c.clamp(min=1e-2))
    assert (c < 0).any()  # the sign of the denominator is in play, and is kept
    assert difference(attention(q, k, v, mask), A / c @ v, mask) < 1e-10


def test_counts_how_often_it_clamps() -> None:
    attention = build("rff", P=8, eps=0.5)
    q, k, _ = qkv()
    mask = mask_of("prefix")
    phi_q, phi_k = attention.features(q, k, mask)
    c = (phi_q @ phi_k.mT).sum(-1)
    dead = (c.abs() <= 0.5) & mask[:, None, :]
    rows = attention(q, k, torch.ones(2, 2, 64, 1).double(), mask)[..., 0]
    whole = (rows - 1).abs() < 1e-10
    assert torch.equal(whole, ~dead & mask[:, None, :])  # elsewhere rows sum to 1
    assert 0 < attention.dead_fraction < 0.5
    assert attention.dead_fraction.item() == pytest.approx((dead.sum() / (2 * mask.sum())).item())


def test_is_fixed() -> None:
    attention = build("rff", seed=1).train()
    assert list(attention.parameters()) == []
    Omega = attention.map.Omega.clone()
    attention(*qkv())
    attention.after_step()
    assert torch.equal(attention.map.Omega, Omega)
    assert torch.equal(build("rff", seed=1).map.Omega, Omega)
    assert not torch.equal(build("rff", seed=2).map.Omega, Omega)
    assert build("rff").map.Omega.shape == (32, 32)
