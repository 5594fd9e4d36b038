"""T2R: its relu map, its two thresholds, and T2R-HH, the same map under Hedgehog's loss."""

from __future__ import annotations

import pytest
import torch

import luna

from ..kit import build, difference, mask_of, qkv


def without_bias(**options) -> luna.Attention:
    attention = build("t2r", **options)
    attention.map.bias.data.zero_()
    return attention


def test_is_the_formula() -> None:
    attention = build("t2r", r=20)
    W, b = attention.map.weight.double(), attention.map.bias.double()
    q, k, v = qkv(d_v=9)
    mask = mask_of("scatter")
    phi_q, phi_k = ((torch.einsum("hrd,bhnd->bhnr", W, t) + b[:, None]).relu() for t in (q, k))
    A = (phi_q @ phi_k.mT) * mask[:, None, None, :]
    expected = A / A.sum(-1, keepdim=True) @ v
    assert difference(attention(q, k, v, mask), expected, mask) < 1e-12


def test_original_threshold() -> None:
    q, k, v = qkv()
    options = {"r": 2}
    small, original = without_bias(**options), without_bias(eps=1e-2, **options)
    original.load_state_dict(small.state_dict())
    assert (small.eps, original.eps) == (1e-6, 1e-2)
    q = 1e-4 * q  # sums between the two thresholds
    phi_q, phi_k = small.features(q, k, None)
    c = (phi_q @ phi_k.mT).sum(-1, keepdim=True)
    assert ((c > 1e-6) & (c < 1e-2)).double().mean() > 0.3
    N = phi_q @ (phi_k.mT @ v)
    assert difference(original(q, k, v), N / c.clamp_min(1e-2)) < 1e-12
    assert difference(small(q, k, v), N / c.clamp_min(1e-6)) < 1e-12


def test_parameters_and_init() -> None:
    torch.manual_seed(0)
    attention = build("t2r", r=48)
    assert sum(p.numel() for p in attention.parameters()) == 2 * (48 * 32 + 48)
    for p in attention.parameters():
        assert p.abs().max() <= 32**-0.5
        assert p.std().item() == pytest.approx(32**-0.5 / 3**0.5, rel=0.1)
    assert build("t2r").feature_dim == 32
