"""Linear attention whose weights fall along the way, in one operator for GPUs: the map of `lion`.

    q, k (B, H, n, d)   v (B, H, n, e)   mask (B, n) bool or None
    g (2, B, H, n)      logarithms of decays, 0 at padding: those with which what stands before
                        arrives at each token, and those for what comes from behind; causal, g is
                        (1, B, H, n)

    o_i = sum_j M_ij phi(q_i) . phi(k_j) v_j / sum_j M_ij phi(q_i) . phi(k_j)
    M_ij = exp(g_0,j+1 + ... + g_0,i) for j <= i      exp(g_1,i + ... + g_1,j-1) for j > i

Returns o (B, H, n, e), 0 at padding. The sums are those of luna/scans.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from luna.kernels import checked
from luna.kernels.checked import on_gpu
from luna.kernels.decayed.operator import attention

NAME = "decayed silu"
STATE = 8192  # numbers of S at most: above, registers spill by the kilobyte

Definition = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def is_default(device: str) -> bool:
    """Say whether the kernels are taken on a type of device: they were not found wrong."""
    return on_gpu(device) and NAME not in checked.LEFT_OUT


def decayed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    g: Tensor,
    definition: Definition,
    *,
    eps: float,
) -> Tensor:
    """Half precision is computed in float32 and o returned in it. The first call with such shapes
    is compared with definition(q, k, v, mask, g), which is used where the kernels differ; and on a
    GPU for float64 and for d e > 8192."""
    dtype = v.dtype
    inside = torch.float64 if dtype == torch.float64 else torch.float32
    real = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool) if mask is None else mask
    fits = q.device.type != "cuda"
    fits = fits or (dtype != torch.float64 and q.shape[3] * v.shape[3] <= STATE)
    if fits and checked.is_right(
        NAME,
        lambda q, k, v, real, g: attention(q, k, v, real, g.to(inside), eps)[0][-1:],
        lambda q, k, v, real, g: definition(q[-1:], k[-1:], v[-1:], real[-1:], g[:, -1:]),
        (q, k, v, real, g.to(inside)),
        len(g),
        eps,
    ):
        return attention(q, k, v, real, g.to(inside), eps)[0]
    q, k, v, g = (t.to(inside) for t in (q, k, v, g))
    return definition(q, k, v, real, g).to(dtype)
