"""Kernelized attention: the Gaussian kernel without normalisation (Skyformer, eq. 3)."""

from __future__ import annotations

import torch

from ..kit import (
    B,
    D,
    H,
    N,
    build,
    difference,
    qkv,
)


def test_softmax_kernel_between_two_diagonals():
    q, k, v = qkv()
    left, right = (torch.exp(-t.square().sum(-1) / (2 * D**0.5)) for t in (q, k))
    C = left[..., :, None] * torch.exp(q @ k.mT / D**0.5) * right[..., None, :]
    attention = build("kernelized")
    assert difference(attention(q, k, v), C @ v) < 1e-10
    assert difference(attention.matrix(q, k), C) < 1e-10


def test_weights_never_exceed_one():
    """The expanded square rounds to either side of 0 where q = k; float32, large norms."""
    q = 100 * qkv()[0].float()
    weight = build("kernelized")(q, q, torch.eye(N).expand(B, H, N, N))
    assert weight.max() <= 1
    assert weight.diagonal(dim1=-2, dim2=-1).min() > 0.98
