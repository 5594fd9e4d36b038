"""Kernelized attention: the Gaussian kernel without normalisation (Skyformer, eq. 3)."""

from __future__ import annotations

import pytest
import torch

from ..kit import (
    MASKS,
    B,
    D,
    H,
    N,
    build,
    difference,
    mask_of,
    qkv,
    softmax_attention,
)


def test_translation_and_rotation_invariance():
    attention, (q, k, v) = build("kernelized"), qkv()
    out = attention(q, k, v)
    shift = torch.linspace(-1, 1, D, dtype=torch.float64)
    rotation = torch.linalg.qr(qkv(1, 1, D, D)[0][0, 0])[0]
    assert difference(attention(q + shift, k + shift, v), out) < 1e-10
    assert difference(attention(q @ rotation, k @ rotation, v), out) < 1e-10
    assert difference(attention(q, k + shift, v), out) > 0.1  # keys alone: unlike softmax


def test_duplicated_keys_double_the_output():
    attention, tensors = build("kernelized"), qkv()
    doubled = attention(*(torch.cat([t, t], 2) for t in tensors))
    assert difference(doubled[:, :, :N], 2 * attention(*tensors)) < 1e-10


@pytest.mark.parametrize("kind", MASKS)
def test_zero_scores_sum_the_values(kind):
    attention, (q, _, v), mask = build("kernelized"), qkv(), mask_of(kind)
    total = (v * mask[:, None, :, None]).sum(2, keepdim=True).expand_as(v)
    zero = torch.zeros_like(q)
    assert difference(attention(zero, zero, v, mask), total, mask) < 1e-10


def test_one_token():
    q, _, v = qkv(n=1)
    assert difference(build("kernelized")(q, q, v), v) < 1e-12


def test_equal_key_norms_and_normalised_rows_are_softmax():
    q, k, v = qkv()
    k = 3 * k / k.norm(dim=-1, keepdim=True)
    C = build("kernelized").matrix(q, k)
    assert difference(C / C.sum(-1, keepdim=True) @ v, softmax_attention(q, k, v)) < 1e-10


def test_softmax_kernel_between_two_diagonals():
    q, k, v = qkv()
    left, right = (torch.exp(-t.square().sum(-1) / (2 * D**0.5)) for t in (q, k))
    C = left[..., :, None] * torch.exp(q @ k.mT / D**0.5) * right[..., None, :]
    assert difference(build("kernelized")(q, k, v), C @ v) < 1e-10


def test_weights_never_exceed_one():
    """The expanded square rounds to either side of 0 where q = k; float32, large norms."""
    q = 100 * qkv()[0].float()
    weight = build("kernelized")(q, q, torch.eye(N).expand(B, H, N, N))
    assert weight.max() <= 1
    assert weight.diagonal(dim1=-2, dim2=-1).min() > 0.98


def test_dropout_acts_on_the_weights_and_only_in_training():
    attention = build("kernelized", dropout=0.25)
    q, k, _ = qkv()
    eye = torch.eye(N, dtype=torch.float64).expand(B, H, N, N)
    C = attention(q, k, eye)
    assert difference(C, attention.matrix(q, k)) < 1e-10
    torch.manual_seed(0)
    dropped = attention.train()(q, k, eye)
    gone = dropped == 0
    assert 0.23 < gone.double().mean() < 0.27
    assert difference(dropped, (C / 0.75).masked_fill(gone, 0)) < 1e-12
