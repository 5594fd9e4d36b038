"""Skyformer (eq. 4 to 7), strict and as published."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..kit import MASKS, B, D, N, build, difference, mask_of, qkv

PROFILES = ("strict", "published")
QUERIES = torch.tensor([1, 4, 7, 11, 20, 31])  # valid under every mask of the fixture
KEYS = torch.tensor([2, 5, 13, 22, 25, 37])


def sky(ids: Tensor | None = None, **options):
    attention = build("skyformer", **({"landmarks": 12} | options))
    attention.landmark_ids = ids
    return attention


def fixed(n: int = N) -> Tensor:
    return torch.cat([QUERIES, n + KEYS])


def written_out(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, ids: Tensor, *, p: int = D, ridge: float = 0.1
) -> Tensor:
    """The public code: one constant for the batch, six steps, diagonal matrices written out."""
    keep = mask[:, None, :, None].to(q.dtype)
    q, k, v = q * keep / p**0.25, k * keep / p**0.25, v * keep
    z = torch.cat([q, k], 2)[:, :, ids]
    squares = ((t[:, :, :, None] - z[:, :, None]).square().sum(-1) for t in (q, k, z))
    P_Q, P_K, M = ((-s / 2).exp() for s in squares)
    eye = torch.eye(len(ids), dtype=q.dtype)
    M = M + ridge * eye
    delta = torch.diag_embed(M.sum(-1) ** -0.5)
    A = delta @ M @ delta
    Z = A.mT / A.sum(-2).max()
    for _ in range(6):
        X = A @ Z
        Z = 0.25 * Z @ (13 * eye - X @ (15 * eye - X @ (7 * eye - X)))
    return P_Q @ delta @ Z @ delta @ P_K.mT @ v


@pytest.mark.parametrize("kind", MASKS)
def test_published_is_the_public_code(kind):
    (q, k, v), mask = qkv(), mask_of(kind)
    out = sky(fixed(), profile="published")(q, k, v, mask)
    assert difference(out, written_out(q, k, v, mask, fixed()), mask) < 1e-11


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


def test_normalisation_is_neutral(monkeypatch):
    (q, k, v), seen = qkv(), []

    def record(N_: Tensor, steps: int | None, constant: str) -> Tensor:
        seen.append(N_)
        return torch.linalg.inv(N_)

    monkeypatch.setattr("luna.attention.skyformer.inverse", record)
    out = sky(fixed())(q, k, v)
    X = torch.cat([q, k], 2)
    C = build("kernelized").matrix(X, X)
    P = C[..., fixed()]
    M = P[:, :, fixed()] + 0.1 * torch.eye(12, dtype=P.dtype)
    P_Q, P_K = P[:, :, :N], P[:, :, N:]
    assert difference(out, P_Q @ torch.linalg.solve(M, P_K.mT @ v)) < 1e-11
    eigenvalues = torch.linalg.eigvalsh(seen[0])
    assert (eigenvalues.amax(-1) - 1).abs().max() < 1e-12
    assert (eigenvalues.amin(-1) >= 0.1 / M.sum(-1).amax(-1)).all()


def test_draws():
    """Published redraws at every call; strict does in training, and evaluates on one draw."""
    tensors = qkv()
    for profile, training, redrawn in (
        ("published", False, True),
        ("published", True, True),
        ("strict", True, True),
        ("strict", False, False),
    ):
        attention = sky(profile=profile).train(training)
        assert (difference(attention(*tensors), attention(*tensors)) > 1e-3) is redrawn

    again = sky().train()
    saved = again.state_dict()
    first = again(*tensors)
    other = sky(seed=3).train()
    assert difference(other(*tensors), first) > 1e-3
    other.load_state_dict(saved)
    assert difference(other(*tensors), first) == 0


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


def test_bandwidth():
    """p is 32 in the public code whatever the head width, and the head width under strict."""
    q, k, v = qkv(d=8)
    mask = mask_of("full")
    for options, p in (
        ({"profile": "published"}, 32),
        ({}, 8),
        ({"bandwidth_dim": 5}, 5),
        ({"profile": "published", "bandwidth_dim": 8}, 8),
    ):
        attention = sky(fixed(), head_dim=8, constant=None, **options)
        expected = written_out(q, k, v, mask, fixed(), p=p)
        tolerance = 1e-11 if attention.profile == "published" else 1e-2  # the constant differs
        assert difference(attention(q, k, v), expected) < tolerance * expected.abs().max()


def test_half_module_keeps_its_landmarks():
    attention = sky()
    ids = attention.ids(None, N, torch.device("cpu"))
    assert torch.equal(attention.bfloat16().ids(None, N, torch.device("cpu")), ids)
