"""Random Fourier features: the kernel, its variance, and a denominator that may be negative."""

from __future__ import annotations

import pytest
import torch

from ..kit import assert_defined, build, mask_of, qkv


def test_features_are_the_formula() -> None:
    attention = build("rff", P=5, seed=3)

    def expected(q, k, v, mask):
        turned = (32**-0.25 * t @ attention.map.Omega.double().T for t in (q, k))
        phi_q, phi_k = (torch.cat([u.cos(), u.sin()], -1) / 5**0.5 for u in turned)
        A = phi_q @ phi_k.mT * mask[:, None, None, :]
        c = A.sum(-1, keepdim=True)
        assert (c < 0).any()  # the sign of the denominator is in play, and is kept
        return A / torch.where(c < 0, c.clamp(max=-1e-2), c.clamp(min=1e-2)) @ v

    assert_defined(attention, expected, d_v=9)


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
