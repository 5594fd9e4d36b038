"""A convolution in the place of attention."""

from __future__ import annotations

import pytest
import torch

import luna

B, H, N, D = 2, 2, 9, 3


def test_every_channel_has_its_own_filter_over_the_neighbours():
    torch.manual_seed(0)
    attention = luna.build("conv", n_heads=H, head_dim=D, max_len=N, kernel=3)
    q, k, v = torch.randn(3, B, H, N, D)
    expected = torch.zeros_like(v)
    for h in range(H):
        for c in range(D):
            for i in range(N):
                for j in (-1, 0, 1):
                    if 0 <= i + j < N:
                        weight = attention.weight[h * D + c, 0, j + 1]
                        expected[:, h, i, c] += weight * v[:, h, i + j, c]
    torch.testing.assert_close(attention(q, k, v), expected)
    torch.testing.assert_close(attention(k, q, v), expected)  # what they hold is no matter
    with pytest.raises(luna.LunaError, match="its filters are for 3 channels"):
        attention(q, k, v[..., :2])
