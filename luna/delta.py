"""The delta rule, in chunks: a state that forgets, reads what it holds under a key, and writes the
difference to what it should hold.

    S_i = e^(g_i) S_(i-1) + beta_i k_i (v_i - e^(g_i) S_(i-1)^T k_i)^T     o_i = S_i^T q_i

with g_i <= 0, one number for all features. Tokens with beta = g = 0, such as padding, are as if
they were not there. Within a chunk the corrections of its tokens depend on each other like unknowns
of a triangular system, one token a row (Yang et al. 2024, https://arxiv.org/abs/2406.06484; with
decay https://arxiv.org/abs/2412.06464):

    T = I + stril(diag(beta) (k k^T) * L)     L_ij = exp(g_(j+1) + ... + g_i)
    [U W] = T^-1 [beta v, beta e^G k]         G_i = g_1 + ... + g_i
    w = U - W S                               what each token writes, S being the state before
    o = e^G q S + ((q k^T) * L) w             S' = e^(G_C) S + (e^(G_C - G) k)^T w

Time and memory are linear in n; chunks follow each other in a loop.

    B batch   H heads   n tokens   D width of q, k   e width of v   C tokens of a chunk   m chunks
"""

from __future__ import annotations

import torch
from torch import Tensor

from luna.scans import in_chunks

CHUNK = 64  # tokens; no result depends on it
TINY = 1e-6  # of squared lengths, as in the authors' kernels: a zero key stays zero


def delta_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The state S (B, H, D, e) after these tokens, which follow `state`, and o (B, H, n, e), of
    q, k (B, H, n, D), v (B, H, n, e), beta and g (B, H, n, 1)."""
    n = q.shape[2]
    C = min(chunk or CHUNK, n)
    q, k, v, beta, g = (in_chunks(t, C) for t in (q, k, v, beta, g))
    G = g.cumsum(-2)  # (B, H, m, C, 1), within chunks alone
    U, W = corrections(k, v, beta, G)
    A = (q @ k.mT) * decays(G)
    Q, K = q * G.exp(), k * (G[..., -1:, :] - G).exp()
    kept = G[..., -1:, :].exp()  # (B, H, m, 1, 1), of the state after a chunk

    S = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]) if state is None else state
    out = []
    for c in range(q.shape[2]):
        w = U[:, :, c] - W[:, :, c] @ S
        out.append(Q[:, :, c] @ S + A[:, :, c] @ w)
        S = kept[:, :, c] * S + K[:, :, c].mT @ w
    return S, torch.cat(out, 2)[:, :, :n]


def decays(G: Tensor) -> Tensor:
    """L (..., C, C). No exponent is above 0, for those of later tokens are masked before the
    exponential."""
    later = G.new_ones(G.shape[-2], G.shape[-2], dtype=torch.bool).triu(1)
    return (G - G.mT).masked_fill(later, float("-inf")).exp()


def system(k: Tensor, beta: Tensor, G: Tensor) -> Tensor:
    """T - I, (..., C, C): how much each token corrects for those before it."""
    return (beta * (k @ k.mT) * decays(G)).tril(-1)


def corrections(k: Tensor, v: Tensor, beta: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """U (..., C, e) and W (..., C, D): what tokens write is U - W S."""
    given = torch.cat([beta * v, beta * G.exp() * k], -1)
    # Only what stands below the diagonal is read.
    solved = torch.linalg.solve_triangular(
        system(k, beta, G), given, upper=False, unitriangular=True
    )
    U, W = solved.split([v.shape[-1], k.shape[-1]], -1)
    return U, W


def dense_delta(q: Tensor, k: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """The weights (B, H, n, n) of all pairs, one direction: ((q k^T) * L) T^-1 diag(beta)."""
    G = g.cumsum(-2)
    n = q.shape[2]
    eye = torch.eye(n, dtype=q.dtype, device=q.device).expand(*q.shape[:2], n, n)
    inverse = torch.linalg.solve_triangular(
        system(k, beta, G), eye, upper=False, unitriangular=True
    )
    return ((q @ k.mT) * decays(G)) @ inverse * beta.mT


def unit(t: Tensor) -> Tensor:
    """Rows of length 1; a row of 0 stays 0."""
    return t * (t.square().sum(-1, keepdim=True) + TINY).rsqrt()
