"""Skyformer (eq. 4 to 7), strict and as published."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from ..kit import MASKS, B, D, N, assert_defined, build, difference, mask_of, qkv

QUERIES = torch.tensor([1, 4, 7, 11, 20, 31])  # valid under every mask of the fixture
KEYS = torch.tensor([2, 5, 13, 22, 25, 37])


def sky(ids: Tensor | None = None, **options):
    attention = build("skyformer", **({"landmarks": 12} | options))
    attention.landmark_ids = ids
    return attention


def fixed(n: int = N) -> Tensor:
    return torch.cat([QUERIES, n + KEYS])


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, ids: Tensor) -> Tensor:
    """The public code: one constant for the batch, six steps, diagonal matrices written out."""
    keep = mask[:, None, :, None].to(q.dtype)
    q, k, v = q * keep / D**0.25, k * keep / D**0.25, v * keep
    z = torch.cat([q, k], 2)[:, :, ids]
    squares = ((t[:, :, :, None] - z[:, :, None]).square().sum(-1) for t in (q, k, z))
    P_Q, P_K, M = ((-s / 2).exp() for s in squares)
    eye = torch.eye(len(ids), dtype=q.dtype)
    M = M + 0.1 * eye
    delta = torch.diag_embed(M.sum(-1) ** -0.5)
    A = delta @ M @ delta
    Z = A.mT / A.sum(-2).max()
    for _ in range(6):
        X = A @ Z
        Z = 0.25 * Z @ (13 * eye - X @ (15 * eye - X @ (7 * eye - X)))
    return P_Q @ delta @ Z @ delta @ P_K.mT @ v


@pytest.mark.parametrize("width", [32, 8])  # p is 32 whatever the head width
def test_published_is_the_public_code(width):
    attention = sky(fixed(), profile="published", head_dim=width)
    assert_defined(attention, partial(written_out, ids=fixed()), close=1e-11)


def test_all_tokens_as_landmarks_without_ridge_is_kernelized():
    tensors = qkv()
    out = sky(torch.arange(2 * N), ridge=0.0, inverse_steps=None)(*tensors)
    assert difference(out, build("kernelized")(*tensors)) < 1e-12


@pytest.mark.parametrize("kind", MASKS)
def test_landmark_queries_are_interpolated(kind):
    """Exact at the rows that are landmarks, and only there: the sensitive test of indices."""
    (q, k, v), mask = qkv(), mask_of(kind)
    out = sky(fixed(), ridge=0.0, inverse_steps=None)(q, k, v, mask)
    gap = (out - build("kernelized")(q, k, v, mask)).abs().amax(-1)  # (B, H, n)
    landmark = torch.zeros(N, dtype=torch.bool).index_fill(0, QUERIES, True)
    assert gap[..., landmark].max() < 1e-11
    assert gap.amin(1)[mask & ~landmark].min() > 1e-3


def test_landmarks_are_valid_tokens_or_a_prefix():
    mask = mask_of("scatter")
    strict = build("skyformer", landmarks=128)
    ids = strict.ids(mask, N, torch.device("cpu"))
    assert ids.shape == (B, 128)
    assert (ids[:, :64] < N).all()
    assert (ids[:, 64:] >= N).all()
    assert mask.gather(1, ids % N).all()
    rank = strict.draw * mask[0].sum() // 2**24
    assert torch.equal(ids[0] % N, mask[0].nonzero().flatten()[rank])

    published = build("skyformer", landmarks=128, profile="published")
    ids = published.ids(mask, N, torch.device("cpu"))
    assert int((ids % N).max()) < int(mask[0].sum())  # the first n_b positions, masked or not
    assert not mask.gather(1, ids % N).all()


def test_published_redraws_at_every_call_and_strict_in_training():
    tensors = qkv()
    for profile, training in (("published", False), ("strict", True), ("strict", False)):
        attention = sky(profile=profile).train(training)
        redrawn = difference(attention(*tensors), attention(*tensors)) > 1e-3
        assert redrawn is (profile == "published" or training)
