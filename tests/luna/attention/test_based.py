"""Based: its kernel is the Taylor polynomial of softmax's."""

from __future__ import annotations

import pytest
import torch

from ..kit import build, difference, mask_of, qkv


@pytest.mark.parametrize("causal", [False, True])
def test_kernel_is_the_taylor_polynomial(causal: bool) -> None:
    attention = build("based", d_out=6, causal=causal)
    q, k, v = qkv(d_v=5)
    mask = mask_of("scatter")
    narrow = [
        torch.einsum("bhnd,hed->bhne", t, map.weight.double())
        for t, map in ((q, attention.map_q), (k, attention.map_k))
    ]
    s = torch.einsum("bhid,bhjd->bhij", *narrow) / 6**0.5
    weights = (1 + s + s**2 / 2) * mask[:, None, None, :]
    weights = weights.tril() if causal else weights
    expected = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30) @ v
    assert difference(attention(q, k, v, mask), expected, mask) < 1e-10
