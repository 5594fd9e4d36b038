"""The delta rule, in chunks: a state that forgets, reads what it holds under a key, and writes the
difference to what it should hold.

    S_i = e^(g_i) S_(i-1) + k_i (w_i - (e^(g_i) S_(i-1))^T r_i)^T     o_i = S_i^T q_i     g_i <= 0

g is one number for all features, or one for each. r_i, what is read, and w_i, what is written, are
beta_i k_i and beta_i v_i of one strength beta, or of gates apart: one of what is erased, one of
what is written. Tokens with r = w = g = 0, such as padding, are as if they were not there. Within a
chunk the corrections of its tokens depend on each other like unknowns of a triangular system, one
token a row (Yang et al. 2024, https://arxiv.org/abs/2406.06484; with decay
https://arxiv.org/abs/2412.06464, of each feature https://arxiv.org/abs/2510.26692):

    T_ij = 1 at j = i, sum_c r_ic k_jc exp(g_(j+1),c + ... + g_i,c) below the diagonal, else 0
    [U W] = T^-1 [w, e^G r]           G_i = g_1 + ... + g_i
    y = U - W S                       what each token writes, S being the state before
    o = e^G q S + A y                 A as T, of q in place of r and with its diagonal
    S' = e^(G_C) S + (e^(G_C - G) k)^T y

Time and memory are linear in n; chunks follow each other in a loop.

    B batch   H heads   n tokens   D width of q, k   e width of v   C tokens of a chunk   m chunks
"""

from __future__ import annotations

import torch
from torch import Tensor

from luna.scans import FLOOR, dense_weights, in_chunks, lower_weights

CHUNK = 64  # tokens; no result depends on it


def rule_scan(
    q: Tensor,
    k: Tensor,
    r: Tensor,
    w: Tensor,
    g: Tensor,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The state S (B, H, D, e) after these tokens, which follow `state`, and o (B, H, n, e), of
    q, k, r (B, H, n, D), w (B, H, n, e), and g (B, H, n, 1) or (B, H, n, D). Decays of single
    features below FLOOR count as FLOOR."""
    n = q.shape[2]
    C = min(chunk or CHUNK, n)
    g = g if g.shape[-1] == 1 else g.clamp_min(FLOOR)
    q, k, r, w, g = (in_chunks(t, C) for t in (q, k, r, w, g))
    G = g.cumsum(-2)  # (B, H, m, C, 1 or D), within chunks alone
    T, A = pairs(r, q, k, G)
    U, W = corrections(T, r, w, G)
    Q, K = q * G.exp(), k * (G[..., -1:, :] - G).exp()
    kept = G[..., -1:, :].exp().mT  # (B, H, m, 1 or D, 1), of the state after a chunk

    S = q.new_zeros(*q.shape[:2], q.shape[-1], w.shape[-1]) if state is None else state
    out = []
    # `unbind`, for the gradient of `U[:, :, c]` would be as large as U, once for each chunk
    chunks = (t.unbind(2) for t in (U, W, Q, A, K, kept))
    for U_c, W_c, Q_c, A_c, K_c, kept_c in zip(*chunks, strict=True):
        y = U_c - W_c @ S
        out.append(Q_c @ S + A_c @ y)
        S = kept_c * S + K_c.mT @ y
    return S, torch.cat(out, 2)[:, :, :n]


def pairs(r: Tensor, q: Tensor, k: Tensor, G: Tensor) -> tuple[Tensor, ...]:
    """T and A (..., C, C): what earlier keys, and its own, give to each r and each q."""
    if G.shape[-1] > 1:
        return lower_weights(torch.stack([r, q]), k, G).unbind()
    L = decays(G)
    return (r @ k.mT) * L, (q @ k.mT) * L


def decays(G: Tensor) -> Tensor:
    """e^(G_i - G_j) (..., C, C) of j <= i. No exponent is above 0, for those of later tokens are
    masked before the exponential."""
    later = G.new_ones(G.shape[-2], G.shape[-2], dtype=torch.bool).triu(1)
    return (G - G.mT).masked_fill(later, float("-inf")).exp()


def corrections(T: Tensor, r: Tensor, w: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """U (..., C, e) and W (..., C, D): what tokens write is U - W S."""
    solved = solve(T, torch.cat([w, G.exp() * r], -1))
    U, W = solved.split([w.shape[-1], r.shape[-1]], -1)
    return U, W


def solve(T: Tensor, given: Tensor) -> Tensor:
    """T^-1 of what is given (..., C, .). Read is what stands below the diagonal, which is 1."""
    return torch.linalg.solve_triangular(T, given, upper=False, unitriangular=True)


def dense_delta(q: Tensor, k: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """The weights (B, H, n, n) of all pairs, one direction, from the definition: A T^-1 diag(beta),
    beta (B, H, n, 1) being the strength of what is read and of what is written."""
    r, n = beta * k, q.shape[2]
    eye = torch.eye(n, dtype=q.dtype, device=q.device).expand(*q.shape[:2], n, n)
    if g.shape[-1] == 1:
        T, A = pairs(r, q, k, g.cumsum(-2))
    else:
        T, A = dense_weights(r, k, g), dense_weights(q, k, g)
    return A @ solve(T, eye) * beta.mT


# ---------------------------------------------------------------------- several steps for a token


def product_scan(
    q: Tensor,
    k: Tensor,
    r: Tensor,
    w: Tensor,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`rule_scan` without decay of k, r, w (B, H, n, s, .), s steps for a token; q reads after its
    last one."""
    s = k.shape[3]
    read = torch.zeros_like(k)
    read[..., -1, :] = q
    read, k, r, w = (t.flatten(2, 3) for t in (read, k, r, w))
    S, out = rule_scan(read, k, r, w, torch.zeros_like(k[..., :1]), state, chunk)
    return S, out[:, :, s - 1 :: s]


def product_alone(q: Tensor, k: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """What each token reads (B, H, n, e) of its own steps alone: each writes the difference to what
    the earlier ones have put under its key."""
    read = torch.zeros_like(w[..., 0, :])
    written: list[Tensor] = []
    for j in range(k.shape[3]):
        y = w[..., j, :]
        for i, earlier in enumerate(written):
            y = y - (r[..., j, :] * k[..., i, :]).sum(-1, keepdim=True) * earlier
        written.append(y)
        read = read + (q * k[..., j, :]).sum(-1, keepdim=True) * y
    return read
