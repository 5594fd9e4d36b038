"""Ridge regression on the tokens so far, one for each token, in chunks.

    H_i = sum_(j <= i) k_j k_j^T + ridge I     S_i = sum_(j <= i) k_j v_j^T
    o_i = S_i^T H_i^-1 q_i

The published codes solve each H_i x = q_i by conjugate gradients. Here the solution is exact:
within a chunk H_i is H, that before the chunk, and one more outer product for each of its tokens,
so that by the identity of Woodbury, with K_i the keys of the chunk up to token i,

    H_i^-1 q_i = H^-1 (q_i - K_i^T M_i^-1 K_i H^-1 q_i)     M_i = I + K_i H^-1 K_i^T

M_i is the leading block of one matrix M of the chunk, and the Cholesky factor of a leading block is
the leading block of the factor. So one factor serves all tokens of a chunk: a forward substitution
reads earlier tokens alone, and what it gives for later ones is masked before the backward one.
Nothing depends on the tokens of a later row, and chunks do not wait for each other.

    B batch   H heads   n tokens   D width of q, k   e width of v   C tokens of a chunk   m chunks
"""

from __future__ import annotations

import torch
from torch import Tensor

from luna.scans import in_chunks

CHUNK = 32  # tokens; no result depends on it


def regression(q: Tensor, k: Tensor, v: Tensor, ridge: Tensor) -> Tensor:
    """S^T H^-1 q (B, H, n, e) with the sums over all keys, which may be of another sequence: q
    (B, H, n, D), k (B, H, m, D), v (B, H, m, e), ridge (H)."""
    factor = cholesky(with_ridge(k.mT @ k, ridge))
    return q @ torch.cholesky_solve(k.mT @ v, factor)


def prefix_regressions(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ridge: Tensor,
    state: tuple[Tensor, Tensor] | None = None,
    chunk: int | None = None,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """S (B, H, D, e) and the Gram matrix of the keys (B, H, D, D) after these tokens, which follow
    `state`, and o (B, H, n, e)."""
    n = q.shape[2]
    C = min(chunk or CHUNK, n)
    q, k, v = (in_chunks(t, C) for t in (q, k, v))
    S, gram = (None, None) if state is None else state
    S_before, S = sums_before(k.mT @ v, S)  # (B, H, m, D, e)
    before, gram = sums_before(k.mT @ k, gram)  # (B, H, m, D, D)

    factor = cholesky(with_ridge(before, ridge))
    given = torch.linalg.solve_triangular(factor, torch.cat([k.mT, q.mT], -1), upper=False)
    a, b = given.split(C, -1)  # (B, H, m, D, C): a^T a = K H^-1 K^T, a^T b = K H^-1 Q^T
    eye = torch.eye(C, dtype=q.dtype, device=q.device)
    inner = cholesky(eye + a.mT @ a)
    # Rows are the keys of a chunk, columns its queries: a key later than the query is masked.
    y = torch.linalg.solve_triangular(inner, a.mT @ b, upper=False).triu()
    w = torch.linalg.solve_triangular(inner.mT, y, upper=True)
    x = torch.linalg.solve_triangular(factor.mT, b - a @ w, upper=True).mT  # H_i^-1 q_i in rows
    out = x @ S_before + (x @ k.mT).tril() @ v
    return (S, gram), out.flatten(2, 3)[:, :, :n]


def sums_before(own: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums before each chunk (B, H, m, ., .), and the one after the last."""
    first = torch.zeros_like(own[:, :, 0]) if start is None else start
    sums = torch.cat([first.unsqueeze(2), own], 2).cumsum(2)
    return sums[:, :, :-1], sums[:, :, -1]


def with_ridge(gram: Tensor, ridge: Tensor) -> Tensor:
    """Gram matrices (B, H, ..., D, D) with the ridge of each head on their diagonals."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return gram + ridge.view(-1, *[1] * (gram.dim() - 2)) * eye


def cholesky(A: Tensor) -> Tensor:
    """The lower factor. A is positive definite by its ridge, so nothing is checked: a GPU does not
    wait, and NaN stays NaN."""
    factor: Tensor = torch.linalg.cholesky_ex(A)[0]
    return factor
