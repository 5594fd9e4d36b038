"""Kernelized attention: the Gaussian kernel without normalisation (Skyformer, eq. 3)."""

from __future__ import annotations

import torch

from ..kit import B, D, H, N, assert_defined, build, qkv


def test_softmax_kernel_between_two_diagonals():
    def expected(q, k, v, mask):
        left, right = (torch.exp(-t.square().sum(-1) / (2 * D**0.5)) for t in (q, k))
        C = left[..., :, None] * torch.exp(q @ k.mT / D**0.5) * right[..., None, :]
        return (C * mask[:, None, None, :]) @ v

    assert_defined(build("kernelized"), expected)


def test_weights_never_exceed_one():
    """The expanded square rounds to either side of 0 where q = k; float32, large norms."""
    q = 100 * qkv()[0].float()
    weight = build("kernelized")(q, q, torch.eye(N).expand(B, H, N, N))
    assert weight.max() <= 1
    assert weight.diagonal(dim1=-2, dim2=-1).min() > 0.98
