"""cosFormer: the cosine identity, its horizon and what may not move it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import luna

from ..kit import build, difference, mask_of, qkv


def cosine(n: int, P: float) -> Tensor:
    i = torch.arange(1, n + 1, dtype=torch.float64)
    return torch.cos(math.pi * (i[:, None] - i[None, :]) / (2 * P))


def test_kernel_identity() -> None:
    attention = build("cosformer")
    q, k, _ = qkv()
    phi_q, phi_k = attention.features(q, k, None)
    assert phi_q.shape[-1] == attention.feature_dim == 64
    expected = (q.relu() @ k.relu().mT) * cosine(64, 128)
    assert difference(phi_q @ phi_k.mT, expected) < 1e-12
    assert (expected >= 0).all()


def test_published_follows_the_padded_length() -> None:
    attention = build("cosformer", profile="published")
    q, k, v = qkv(n=40)
    mask = mask_of("prefix", n=40)
    A = (q.relu() @ k.relu().mT) * cosine(40, 40)
    expected = A / A.sum(-1, keepdim=True) @ v
    assert difference(attention(q, k, v, mask), expected) < 1e-12
    assert difference(attention.matrix(q, k, mask) @ v, expected) < 1e-12
    longer = [torch.cat([t, torch.zeros_like(t[:, :, :8])], 2) for t in (q, k, v)]
    assert difference(attention(*longer)[:, :, :40], expected) > 1e-3


def test_knows_its_horizon() -> None:
    attention = build("cosformer", max_len=16)
    with pytest.raises(luna.LunaError, match=r"max_len=16 tokens and got 17"):
        attention(*qkv(n=17))
    causal = build("cosformer", max_len=3, causal=True)
    q, k, v = qkv(n=4)
    state = None
    for t in range(3):
        state, _ = causal.step(state, q[:, :, t], k[:, :, t], v[:, :, t])
    with pytest.raises(luna.LunaError, match="3 positions and got 4"):
        causal.step(state, q[:, :, 3], k[:, :, 3], v[:, :, 3])
