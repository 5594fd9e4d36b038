"""The sums of linear attention, as pure functions.

For features phi_q, phi_k (B, H, n, D) and values v (B, H, n, e):

    S = phi_k^T v (D, e)    z = phi_k^T 1 (D)    o_i = S^T phi_q[i] / den(z . phi_q[i])

`absolute`: z and its products are those of |phi_q| and |phi_k|.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def denominator(c: Tensor, eps: float, signed: bool) -> Tensor:
    """max(c, eps); for signed features sgn(c) max(|c|, eps) with sgn(0) = +1."""
    if not signed:
        return c.clamp_min(eps)
    return torch.where(c < 0, c.clamp_max(-eps), c.clamp_min(eps))


def linear_sums(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, *, absolute: bool = False
) -> tuple[Tensor, Tensor]:
    """N (B, H, n, e) and c (B, H, n) of o = N / den(c), every query seeing every key:
    O(n D e) time, O(D e) state."""
    S = phi_k.transpose(-2, -1) @ v  # (B, H, D, e)
    N = phi_q @ S
    if absolute:
        phi_q, phi_k = phi_q.abs(), phi_k.abs()
    z = phi_k.sum(-2)  # (B, H, D)
    return N, (phi_q @ z.unsqueeze(-1)).squeeze(-1)


def causal_linear_sums(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, chunk: int = 128, *, absolute: bool = False
) -> tuple[Tensor, Tensor]:
    """`linear_sums` with query i seeing keys j <= i. A prefix carries what came before a chunk,
    a masked product handles the chunk itself: O(n (C (D + e) + D e)) time, and no n x D x e tensor
    (as a plain cumsum would store)."""
    n = v.shape[-2]
    C = min(chunk, n)
    pad = -n % C
    if pad:
        phi_q, phi_k, v = (F.pad(t, (0, 0, 0, pad)) for t in (phi_q, phi_k, v))
    phi_q, phi_k, v = (t.unflatten(-2, (-1, C)) for t in (phi_q, phi_k, v))  # (B, H, n/C, C, .)

    S = phi_k.transpose(-2, -1) @ v  # (B, H, n/C, D, e) of each chunk alone
    # Of all chunks before. cumsum(S) - S would let the rounding of later tokens of a chunk in.
    S = F.pad(S[:, :, :-1].cumsum(2), (0, 0, 0, 0, 1, 0))
    A = (phi_q @ phi_k.transpose(-2, -1)).tril()  # (B, H, n/C, C, C)
    N = phi_q @ S + A @ v

    if absolute:
        phi_q, phi_k = phi_q.abs(), phi_k.abs()
        A = (phi_q @ phi_k.mT).tril()
    z = F.pad(phi_k.sum(-2)[:, :, :-1].cumsum(2), (0, 0, 1, 0))  # (B, H, n/C, D)
    c = (phi_q @ z.unsqueeze(-1)).squeeze(-1) + A.sum(-1)
    return N.flatten(2, 3)[..., :n, :], c.flatten(2, 3)[..., :n]


class State(NamedTuple):
    """Streaming state: D (e + 1) numbers per head, and how many tokens have been seen."""

    S: Tensor  # (B, H, D, e)
    z: Tensor  # (B, H, D)
    t: int


def continued_sums(
    state: tuple[Tensor, Tensor] | None,
    phi_q: Tensor,
    phi_k: Tensor,
    v: Tensor,
    chunk: int = 128,
    *,
    absolute: bool = False,
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """`causal_linear_sums` of tokens that follow those of a state (S, z); the state comes first."""
    N, c = causal_linear_sums(phi_q, phi_k, v, chunk, absolute=absolute)
    S, z = phi_k.mT @ v, (phi_k.abs() if absolute else phi_k).sum(-2)
    if state is not None:
        N = N + phi_q @ state[0]
        phi_q = phi_q.abs() if absolute else phi_q
        c = c + (phi_q @ state[1].unsqueeze(-1)).squeeze(-1)
        S, z = S + state[0], z + state[1]
    return (S, z), N, c
