"""Local attention: blocks, the strided pattern, and the Long Range Arena's code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..kit import MASKS, N, build, difference, mask_of, qkv


def weights(attention, mask: Tensor | None = None, n: int = N) -> Tensor:
    """The weights themselves, (B, H, n, n): the output for values that are the identity."""
    q, k, _ = qkv(n=n)
    return attention(q, k, torch.eye(n, dtype=q.dtype).expand(2, 2, n, n), mask)


@pytest.mark.parametrize(("back", "ahead"), [(0, 0), (1, 0), (0, 2), (1, 1), (9, 9)])
@pytest.mark.parametrize("n", [64, 61])
def test_gradient_pattern_is_the_band_of_blocks(back: int, ahead: int, n: int):
    q, k, v = (t.requires_grad_() for t in qkv(1, 1, n))
    out = build("local", n_heads=1, block=8, look_back=back, look_ahead=ahead)(q, k, v)
    block = torch.arange(n) // 8
    for i in (0, 7, 8, 30, n - 1):
        reached = torch.autograd.grad(out[0, 0, i].sum(), (k, v), retain_graph=True)
        seen = (block >= block[i] - back) & (block <= block[i] + ahead)
        for grad in reached:
            assert torch.equal(grad[0, 0].abs().sum(-1) > 0, seen)


def permutation(n: int, b: int) -> Tensor:
    """P[jb + i] = iN + j: where the row of the block form comes from; n a multiple of b."""
    return torch.arange(n).view(b, n // b).T.flatten()


@pytest.mark.parametrize(("back", "ahead"), [(0, 0), (1, 0), (1, 2)])
def test_strided_is_block_between_a_permutation_and_its_inverse(back: int, ahead: int):
    q, k, v = qkv()
    mask = mask_of("prefix")
    options = {"block": 16, "look_back": back, "look_ahead": ahead}
    P = permutation(64, 16)
    moved = build("local", **options)(q[:, :, P], k[:, :, P], v[:, :, P], mask[:, P])
    out = build("local", pattern="strided", **options)(q, k, v, mask)
    assert difference(out[:, :, P], moved) < 1e-12


@pytest.mark.parametrize(("n", "block"), [(64, 16), (61, 16), (37, 10)])
def test_strided_is_dense_attention_within_residues(n: int, block: int):
    residue = torch.arange(n) % -(-n // block)
    seen = weights(build("local", block=block, pattern="strided"), n=n) > 0
    assert torch.equal(seen[0, 1], residue[:, None] == residue[None, :])
    q, k, v = qkv(n=n)
    scores = (q @ k.mT / 32**0.5).masked_fill(residue[:, None] != residue, float("-inf"))
    out = build("local", block=block, pattern="strided")(q, k, v)
    assert difference(out, scores.softmax(-1) @ v) < 1e-12


def arena(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, b: int) -> Tensor:
    """The released code, group by group: length as (b, N), mask as (N, b), -1e10 in float32."""
    B, H, n, d = q.shape
    extra = b - n % b
    q, k, v = (torch.cat([t, t.new_zeros(B, H, extra, d)], 2) for t in (q, k, v))
    mask = torch.cat([mask, mask.new_ones(B, extra)], 1)
    N = (n + extra) // b
    out = torch.zeros_like(v)
    for example in range(B):
        for head in range(H):
            for g in range(N):
                tokens = [i * N + g for i in range(b)]
                real = mask[example, g * b : (g + 1) * b]
                bias = torch.where(real[:, None] & real[None, :], 0.0, -1e10)
                scores = q[example, head, tokens] @ k[example, head, tokens].T / d**0.5
                hidden = (scores.float() + bias).double() - scores.float().double()
                scores = torch.where(real[:, None], scores + hidden, scores * 0)
                out[example, head, tokens] = scores.softmax(-1) @ v[example, head, tokens]
    return out[:, :, :n]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("block", [16, 24])
def test_official_is_the_released_code(kind: str, block: int):
    q, k, v = qkv()
    mask = mask_of(kind)
    out = build("local", block=block, profile="official")(q, k, v, mask)
    assert difference(out, arena(q, k, v, mask, block)) < 1e-12
    aligned = build("local", block=block, pattern="strided")(q, k, v, mask)
    assert difference(out, aligned, mask) > 0.01  # filling and, with a mask, its misplacement


def test_official_rows_that_meet_padding_take_a_plain_mean():
    q, k, v = qkv()
    mask = torch.ones(2, 64, dtype=torch.bool)
    mask[:, :16] = False  # the mask entries that group 0, the tokens 0, 5, 10, ..., meets
    out = build("local", block=16, profile="official")(q, k, v, mask)
    mean = v[:, :, ::5].sum(2) / 16  # 13 tokens and 3 filling rows
    for t in (0, 5, 60):
        assert difference(out[:, :, t], mean) < 1e-12
