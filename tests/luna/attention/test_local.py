"""Local attention: blocks, the strided pattern, and the Long Range Arena's code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..kit import MASKS, build, difference, mask_of, qkv


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
