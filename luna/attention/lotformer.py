"""LOTFormer: attention as two entropic transport plans glued at R learned pivots.

    S^Q = q Z^T / sqrt(d)  (n, R)     P^Q = argmax over P in U(a, zeta) of <P, S^Q> + eps H(P)
    S^K = Z k^T / sqrt(d)  (R, n)     P^K = argmax over P in U(zeta, a) of <P, S^K> + eps H(P)

    o = n_v P^Q (diag(1 / zeta) (P^K v))

with a uniform over the n_v real tokens and zeta = 1 / R, the masses of the pivots. The implied
matrix is of rank <= R, and doubly stochastic once Sinkhorn has converged; after T half-steps one
side is exact: its rows sum to 1 for odd T, its columns for even T.

`published`  the LRA code (anonymous13761234/LOTFormer): padding takes part, scores are clamped to
             +-50, and both plans are multiplied by R^(-1/2) where R^(+1/2) was meant, so that rows
             sum to 1 / R²
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import Attention, Mask, Paper, Slot, at_least, positive, register


class ShiftedLogSumExp(torch.autograd.Function):
    """logsumexp(S + shift, dim), keeping S, the shift and the result but not their sum.

    T half-steps share one S, so unrolling stores T (n + R) numbers instead of T n R; the backward
    makes each softmax again. The result must be finite.
    """

    @staticmethod
    def forward(ctx: Any, S: Tensor, shift: Tensor, dim: int) -> Tensor:
        total = S + shift
        top = total.amax(dim, keepdim=True)
        # The output is not made in place: torch.compile of torch 2.11 would lose its gradient.
        lse = total.sub_(top).exp_().sum(dim, keepdim=True).log() + top
        ctx.save_for_backward(S, shift, lse)
        ctx.other = -3 - dim  # -1 for -2 and -2 for -1: the shift is constant along it
        return lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        S, shift, lse = ctx.saved_tensors
        grad_S = (S + shift).sub_(lse).exp_() * grad
        return grad_S, grad_S.sum(ctx.other, keepdim=True), None


def sinkhorn(S: Tensor, log_mu: Tensor, log_nu: Tensor, half_steps: int) -> Tensor:
    """The plan P (..., N, M) after `half_steps` updates of the potentials, rows first.

    S is in units of eps. log_mu (..., N, 1) and log_nu (..., 1, M) are -inf where there is no mass,
    and the plan is 0 there.
    """
    g = torch.zeros_like(log_nu).masked_fill(log_nu.isneginf(), float("-inf"))
    f = log_mu - ShiftedLogSumExp.apply(S, g.expand(*S.shape[:-2], 1, S.shape[-1]), -1)
    for t in range(1, half_steps):
        if t % 2 == 0:
            f = log_mu - ShiftedLogSumExp.apply(S, g, -1)
        else:
            g = log_nu - ShiftedLogSumExp.apply(S, f, -2)
    return (S + f + g).exp()


# Added to all queries (or keys) it adds the same to all scores of a pivot.
BIAS = "a transport plan does not see what is added to all scores of a pivot"


@register("lotformer")
class LOTFormer(Attention):
    title = "LOTFormer"
    family = "low rank"
    marker = "X"
    paper = Paper(
        "LOTFormer: Doubly-Stochastic Linear Attention via Low-Rank Optimal Transport",
        2025,
        "https://arxiv.org/abs/2509.23436",
    )
    complexity = "O(n R (d + e + T))"
    profiles = ("strict", "published")
    declared = Attention.declared.but(
        idle=dict.fromkeys(("qkv.bias.q", "qkv.bias.k"), BIAS),
        row_stochastic=False,  # exactly so for an odd number of half-steps only
        convex=False,
        exempt={
            "constant": "after an even number of half-steps rows sum to 1 as far as Sinkhorn "
            "has converged"
        },
    )

    def __init__(self, slot: Slot, *, R: int = 32, eps: float = 0.1, half_steps: int = 50):
        super().__init__(slot)
        at_least("lotformer", 1, R=R, half_steps=half_steps)
        positive("lotformer", eps=eps)
        self.R, self.eps, self.half_steps = R, eps, half_steps
        self.glue = 1 / R if self.profile == "published" else R  # between the plans: 1 / zeta
        self.pivots = nn.Parameter(0.02 * torch.randn(slot.n_heads, R, slot.head_dim))

    def scores(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """S^Q (B, H, n, R) and S^K (B, H, R, n)."""
        Z = self.pivots.to(q.dtype) * self.head_dim**-0.5
        S_Q, S_K = q @ Z.mT, Z @ k.mT
        if self.profile == "published":
            S_Q, S_K = S_Q.clamp(-50, 50), S_K.clamp(-50, 50)
        return S_Q, S_K

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """4 n R (d + e) of products, and for both plans 5 per entry and half-step of Sinkhorn, a
        matrix-vector product in the log domain: without it the method's main cost would not
        count."""
        entries = len(q) * self.n_heads * q.shape[-2] * self.R
        return entries * (4 * (q.shape[-1] + v.shape[-1]) + 10 * self.half_steps)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        S_Q, S_K = self.scores(q, k)
        log_a, n_v = self._token_masses(q, mask)  # (B, 1, n), (B, 1, 1, 1)
        log_zeta = q.new_full((1, self.R), -math.log(self.R))
        P_Q = sinkhorn(S_Q / self.eps, log_a.unsqueeze(-1), log_zeta.unsqueeze(-2), self.half_steps)
        P_K = sinkhorn(S_K / self.eps, log_zeta.unsqueeze(-1), log_a.unsqueeze(-2), self.half_steps)
        return n_v * self.glue * (P_Q @ (P_K @ v))

    def _token_masses(self, q: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        n = q.shape[-2]
        if mask is None or self.profile == "published":
            return q.new_full((1, 1, n), -math.log(n)), q.new_full((1, 1, 1, 1), n)
        # An all-padded example has no mass to transport: it is computed as if unpadded, on zeros.
        mask = mask | ~mask.any(-1, keepdim=True)
        n_v = mask.sum(-1, keepdim=True).to(q.dtype)  # (B, 1)
        log_a = (-n_v.log()).expand(mask.shape).masked_fill(~mask, float("-inf"))
        return log_a.unsqueeze(1), n_v[:, None, None]

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        S_Q, S_K = self.scores(q, k)
        if mask is None or self.profile == "published":
            mask = torch.ones(len(q), q.shape[-2], dtype=torch.bool, device=q.device)
        mask = mask | ~mask.any(-1, keepdim=True)
        n_v = mask.sum(-1).to(q.dtype)  # (B,)
        a = (mask / n_v[:, None]).unsqueeze(1)  # (B, 1, n)
        zeta = q.new_full((1, 1, self.R), 1 / self.R)
        P_Q, P_K = self._plan(S_Q, a, zeta), self._plan(S_K, zeta, a)
        return self.glue * torch.einsum("b,bhir,bhrj->bhij", n_v, P_Q, P_K)

    def _plan(self, S: Tensor, mu: Tensor, nu: Tensor) -> Tensor:
        """Sinkhorn by the definition: potentials in units of S, nothing where a marginal is 0."""
        S = S.masked_fill((mu == 0).unsqueeze(-1) | (nu == 0).unsqueeze(-2), float("-inf"))
        u, v = torch.zeros_like(S[..., 0]), torch.zeros_like(S[..., 0, :])
        for t in range(self.half_steps):
            total = (S + u.unsqueeze(-1) + v.unsqueeze(-2)) / self.eps
            dim, marginal = (-1, mu) if t % 2 == 0 else (-2, nu)
            update = self.eps * (marginal.log() - total.logsumexp(dim))
            update = update.masked_fill(marginal == 0, 0)
            u, v = (u + update, v) if t % 2 == 0 else (u, v + update)
        return ((S + u.unsqueeze(-1) + v.unsqueeze(-2)) / self.eps).exp()
