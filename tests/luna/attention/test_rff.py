"""Random Fourier features: the kernel, its variance, and a denominator that may be negative."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from luna.feature_maps.random import FourierFeatures

from ..kit import build, difference, mask_of, qkv


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
