"""Agent attention: agents from a plain loop over segments, both softmaxes from their formula."""

from __future__ import annotations

import pytest
import torch

from ..kit import MASKS, build, difference, mask_of, qkv, softmax_attention


@pytest.mark.parametrize("m", [5, 61])  # 61: more agents than some example has tokens
@pytest.mark.parametrize("kind", MASKS)
def test_formula(kind: str, m: int) -> None:
    q, k, v = qkv(d_v=5)
    mask = mask_of(kind)
    out = build("agent", agents=m)(q, k, v, mask)
    for b in range(2):
        real = mask[b].nonzero().squeeze(1).tolist()
        count = min(m, len(real))
        segments: list[list[int]] = [[] for _ in range(count)]
        for rank, token in enumerate(real):
            segments[rank * count // len(real)].append(token)
        own = [t[b : b + 1][:, :, real] for t in (q, k, v)]
        agents = torch.stack([q[b : b + 1][:, :, s].mean(2) for s in segments], 2)
        gathered = softmax_attention(agents, own[1], own[2])
        expected = softmax_attention(own[0], agents, gathered)
        assert difference(out[b : b + 1][:, :, real], expected) < 1e-12
