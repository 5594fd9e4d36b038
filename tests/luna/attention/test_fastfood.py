"""FastFood: its matrix, its kernel, and the authors' numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import luna
from luna.attention.fastfood import FastFood, hadamard

from ..kit import assert_defined, assert_golden, averaged, build, difference, qkv, shaken, wave


def dense_hadamard(n: int) -> Tensor:
    """H of +1 and -1 by Sylvester's construction."""
    H = torch.ones(1, 1, dtype=torch.float64)
    while len(H) < n:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return H


def dense_V(fastfood: FastFood, group: int = 0) -> Tensor:
    """V (D, d), block below block, as the formula has it."""
    d, H = fastfood.head_dim, dense_hadamard(fastfood.head_dim)
    blocks = []
    for S, G, b, order in zip(
        *(t[group] for t in (fastfood.S, fastfood.G, fastfood.b, fastfood.order)), strict=True
    ):
        P = torch.eye(d, dtype=torch.float64)[order]
        blocks.append(S.diag() @ H @ G.diag() @ P @ H @ b.diag() * d**-0.5)
    return torch.cat(blocks)


@pytest.mark.parametrize("n", [1, 2, 8, 32])
def test_butterflies_are_the_matrix(n: int):
    x = wave((3, n), 0.3)
    torch.testing.assert_close(hadamard(x), x @ dense_hadamard(n).mT)


@pytest.mark.parametrize("share", ["layer", "head"])
def test_transform_and_product_are_the_formula(share: str):
    fastfood = shaken("fastfood", blocks=3, share=share)
    x = qkv()[0]
    scaled = x * 32**-0.25
    for head in range(2):
        V = dense_V(fastfood, head if share == "head" else 0)
        expected = scaled[:, head] @ V.mT
        assert difference(fastfood.project(x)[:, head], expected) < 1e-10
        assert difference(fastfood.transform(x)[:, head], expected) < 1e-10


@pytest.mark.parametrize("features", ["rks", "prf"])
@pytest.mark.parametrize("causal", [False, True])
def test_formula(features: str, causal: bool):
    fastfood = shaken("fastfood", features=features, blocks=2, causal=causal)
    V = dense_V(fastfood)

    def dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q, k = (t * 32**-0.25 for t in (q, k))
        if features == "rks":
            A = (q.unsqueeze(3) - k.unsqueeze(2)) @ V.mT
            A = A.cos().mean(-1) + 1
        else:
            phi_q, phi_k = ((t @ V.mT - t.square().sum(-1, keepdim=True)).exp() for t in (q, k))
            A = phi_q @ phi_k.mT
        return averaged(A, v, mask, causal=causal)

    assert_defined(fastfood, dense, d_v=5)


def test_the_authors_numbers():
    """Of their smoothed features: one block of 4, in their order of axes (B, n, H, d)."""
    fastfood = luna.build("fastfood", n_heads=1, head_dim=4, max_len=5).double()
    with torch.no_grad():
        fastfood.order.copy_(torch.tensor([2, 0, 3, 1]))
        fastfood.S.copy_(wave((4,), 2))
        fastfood.G.copy_(wave((4,), 0.5))
        fastfood.b.copy_(wave((4,), 1))
    q, k, v = (wave((1, 5, 1, d), c).transpose(1, 2) for d, c in ((4, 0), (4, 1), (3, 2)))
    phi = [0.499999, 0.497050, 0.498605, 0.492892, 0.000725, -0.054234]
    phi += [0.037320, -0.084007, 1, 0.485786, 0.470768, 0.478549]
    found = fastfood.phi_q(q, None).detach().flatten()[:12]
    torch.testing.assert_close(found, torch.tensor(phi).double(), rtol=0, atol=1e-6)
    first = [0.463767, 0.383109, 0.298623, 0.468497, 0.388032, 0.303689]
    first += [0.472048, 0.391726, 0.307490, 0.473963, 0.393718, 0.309538]
    assert_golden(fastfood(q, k, v).transpose(1, 2), first, 5.831394)


def test_its_kernel_begins_as_the_gaussian_one():
    """With an error that falls as the square root of the blocks."""
    x, y = (0.5 * t for t in qkv(1, 1, 40)[:2])
    gaussian = (-(x - y).square().sum(-1) / (2 * 32**0.5)).exp()
    errors = []
    for blocks in (1, 16):
        squares = []
        for seed in range(8):
            torch.manual_seed(seed)
            fastfood = build("fastfood", blocks=blocks, smoothing=0.0, seed=seed).double()
            kernel = (fastfood.phi_q(x, None) * fastfood.phi_k(y, None)).sum(-1)
            squares.append((kernel - gaussian).square().mean())
        errors.append(torch.stack(squares).mean().sqrt().item())
    assert errors[0] < 0.2
    assert 3 < errors[0] / errors[1] < 5.3


def test_initialisation():
    """Rows as long as Gaussian vectors; those of the authors are nearly 0."""
    torch.manual_seed(0)
    x = torch.randn(1, 2, 1000, 32)
    unit = x.square().sum(-1) * 32**-0.5
    fastfood = build("fastfood", blocks=16)
    assert fastfood.b.abs().eq(1).all()
    ratio = fastfood.project(x).square().mean(-1) / unit
    assert abs(ratio.mean() - 1) < 0.1
    small = build("fastfood", blocks=16, init="authors")
    assert (small.project(x).square().mean(-1) / unit).mean() < 1e-4


def test_a_constant_of_one_makes_every_weight_positive():
    q, k, _ = qkv()
    assert (build("fastfood").double().matrix(5 * q, 5 * k) >= 0).all()
    assert (shaken("fastfood", smoothing=0.0).matrix(5 * q, 5 * k) < 0).any()


def test_the_permutation_is_saved():
    first, second = build("fastfood", seed=1), build("fastfood", seed=2)
    assert not torch.equal(first.order, second.order)
    second.load_state_dict(first.state_dict())
    q, k, v = (t.float() for t in qkv())
    assert torch.equal(first(q, k, v), second(q, k, v))


def test_frozen_diagonals_are_those_drawn_and_are_not_trained():
    frozen, learned = build("fastfood", projections="frozen"), build("fastfood")
    assert not [*frozen.parameters()]
    assert len([*learned.parameters()]) == 3
    assert frozen.state_dict().keys() == learned.state_dict().keys()
    q, k, v = (t.float() for t in qkv())
    torch.manual_seed(3)
    frozen = build("fastfood", projections="frozen")
    torch.manual_seed(3)
    assert torch.equal(frozen(q, k, v), build("fastfood")(q, k, v))
