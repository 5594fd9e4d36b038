"""The iterative inverse that Nyströmformer introduced and Skyformer reuses.

For a matrix A close to row-stochastic (Nyströmformer, section 3.2; Razavi et al., 2014):

    Z_0 = A^T / c        X = A Z        Z <- Z (13 I - X (15 I - X (7 I - X))) / 4

With e = 1 - x for an eigenvalue x of A Z, one step gives e' = 3/4 e^3 + 1/4 e^4: third order near
the inverse, but a small x only grows by 13/4 per step. Six steps therefore leave directions with
x < 3.25^-6 out. That truncation is part of the published methods; `steps=None` is the exact
pseudo-inverse.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from luna.base import LunaError

Constant = Literal["original", "per_head"]


def inverse(A: Tensor, steps: int | None, constant: Constant = "per_head") -> Tensor:
    """Z ~ A^+ for A (..., m, m) with non-negative entries."""
    if steps is None:
        return torch.linalg.pinv(A)
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    Z = A.mT / initial_constant(A, constant)
    for _ in range(steps):
        X = A @ Z
        Z = Z @ (13 * identity - X @ (15 * identity - X @ (7 * identity - X))) / 4
    return Z


def initial_constant(A: Tensor, constant: Constant) -> Tensor:
    """The largest column sum: it keeps the eigenvalues of A Z_0 = A A^T / c within (0, 1].

    `original` takes it over the whole tensor, as the public code does, and so lets the examples of
    a batch change each other; `per_head` takes it per matrix, which is ||A||_1 ||A||_inf where the
    rows of A sum to 1.
    """
    sums = A.sum(-2)  # (..., m)
    return sums.amax() if constant == "original" else sums.amax(-1)[..., None, None]


def resolve_constant(name: str, constant: Constant | None, profile: str) -> Constant:
    """The profile's constant unless one is chosen; strict may not couple a batch's examples."""
    if profile == "strict" and constant == "original":
        raise LunaError(
            f"{name}.constant='original' couples the examples of a batch: "
            "it needs profile=published; under strict the constant is 'per_head'"
        )
    return constant or ("original" if profile == "published" else "per_head")
