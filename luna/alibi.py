"""ALiBi: a score falls with the distance of its tokens (Press et al. 2022, arXiv:2108.12409).

    s_ij = q_i . k_j / sqrt(d) - m_h |i - j|,   m_h = 2^(-8 h / H) for heads h = 1 .. H

in both directions here; a causal form sees the half with j <= i. Only a method whose weights are
computed one by one can have it: it would turn a product of features into a sum over all pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def slopes(n_heads: int) -> Tensor:
    """m_h, (H). If H is no power of two: those of the next lower power P, then every second one
    of 2 P heads, as in the paper's code."""
    power = 1 << (n_heads.bit_length() - 1)
    found = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    found += [2 ** (-4 * h / power) for h in range(1, 2 * (n_heads - power), 2)]
    return torch.tensor(found)


def bias(q: Tensor, k: Tensor) -> Tensor:
    """-m_h |i - j|, (1, H, n, m), for queries that are the last n of the m tokens of k."""
    n, m = q.shape[2], k.shape[2]
    places = torch.arange(m, device=q.device)
    distance = (places[m - n :, None] - places).abs()
    return (-slopes(q.shape[1]).to(q.device)[:, None, None] * distance)[None].to(q.dtype)
