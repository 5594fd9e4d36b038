"""Skyformer: kernelized attention through m landmarks of the stacked queries and keys (eq. 4 to 7).

With X = [q; k] scaled by p^(-1/4), z the landmarks, P = [P_Q; P_K] the Gaussian kernel of X and z:

    M = kernel(z, z) + ridge I     delta = (M 1)^(-1/2)     N = diag(delta) M diag(delta)
    out = P_Q diag(delta) N^-1 diag(delta) P_K^T v

N is similar to a row-stochastic matrix, which is what the iterative inverse asks for. Landmarks are
m/2 queries and m/2 keys drawn with replacement, one draw u in [0, 1)^m for all examples and heads:
the tokens of rank floor(u n_b).

`strict`     ranks run over the real tokens; evaluation keeps one draw
`published`  real tokens are taken to be a prefix; evaluation redraws as well; one constant of the
             inverse for the whole batch; p = 32 whatever the head width
"""

from __future__ import annotations

import torch
from torch import Tensor

from luna.attention.kernelized import Kernelized, gaussian
from luna.attention.nystrom import inverse
from luna.base import Attention, LunaError, Mask, Slot, at_least, register, zero_padding

RESOLUTION = 2**24  # u = draw / RESOLUTION; as integers floor(u n) is exact and survives .half()


@register("skyformer")
class Skyformer(Attention):
    """Set `landmark_ids`, (m,) or (B, m) rows of the stacked [q; k], to choose the landmarks."""

    title = "Skyformer"
    family = "low rank"
    marker = "^"
    paper = Kernelized.paper
    complexity = "O(n m d + n m² + m³)"
    profiles = ("strict", "published")
    declared = Attention.declared.but(
        draws=True,
        row_stochastic=False,
        convex=False,
        equivariant=False,  # only if the landmarks move with the tokens
    )

    draw: Tensor  # (m,) integers u * RESOLUTION

    def __init__(
        self, slot: Slot, *, landmarks: int = 128, ridge: float = 0.1, inverse_steps: int | None = 6
    ):
        super().__init__(slot)
        if landmarks < 2 or landmarks % 2:
            raise LunaError(f"skyformer.landmarks must be even and at least 2, got {landmarks}")
        at_least("skyformer", 0, ridge=ridge)
        at_least("skyformer", 1, inverse_steps=inverse_steps)
        self.landmarks, self.ridge, self.inverse_steps = landmarks, ridge, inverse_steps
        self.published = self.profile == "published"
        self.bandwidth_dim = 32 if self.published else slot.head_dim  # p
        self.landmark_ids: Tensor | None = None
        self.register_buffer("draw", self._draw(torch.device("cpu")))  # of evaluation under strict

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        q, k, v = self._prepare(q, k, v, mask)
        X = torch.cat([q, k], dim=-2)  # (B, H, 2n, d)
        ids = self.ids(mask, q.shape[-2], q.device)[:, None, :, None]  # (B or 1, 1, m, 1)
        P = gaussian(X, torch.take_along_dim(X, ids, 2))  # (B, H, 2n, m)
        M = self._regular(torch.take_along_dim(P, ids, 2))  # the landmarks' rows of P
        delta = M.sum(-1).rsqrt()  # (B, H, m)
        N = delta.unsqueeze(-1) * M * delta.unsqueeze(-2)
        Z = inverse(N, self.inverse_steps, shared=self.published)
        W = delta.unsqueeze(-1) * Z * delta.unsqueeze(-2)  # (B, H, m, m)
        P_Q, P_K = P.chunk(2, dim=-2)  # (B, H, n, m)
        return P_Q @ ((P_K @ W).mT @ v)

    def ids(self, mask: Mask, n: int, device: torch.device) -> Tensor:
        """The landmarks as rows of [q; k], (B or 1, m): half of them queries, then half keys."""
        if self.landmark_ids is not None:
            return self.landmark_ids.to(device).view(-1, self.landmark_ids.shape[-1])
        fixed = self.profile == "strict" and not self.training
        draw = self.draw.to(device) if fixed else self._draw(device)
        n_valid = torch.full((1,), n, device=device) if mask is None else mask.sum(-1)
        position = draw * n_valid.unsqueeze(-1) // RESOLUTION  # (B or 1, m), rank among real tokens
        if mask is not None and self.profile == "strict":
            order = (~mask).byte().argsort(dim=-1, stable=True)  # valid positions first
            position = order.gather(-1, position)
        is_key = torch.arange(self.landmarks, device=device) >= self.landmarks // 2
        return position + n * is_key

    def _draw(self, device: torch.device) -> Tensor:
        generator = self.generator(device)
        return torch.randint(RESOLUTION, (self.landmarks,), generator=generator, device=device)

    def _prepare(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, ...]:
        """Scaled q and k, and zeros at padding: a zero value is what keeps a padded key out."""
        scale = self.bandwidth_dim**-0.25
        q, k = q * scale, k * scale
        return tuple(zero_padding(t, mask) for t in (q, k, v))

    def _regular(self, M: Tensor) -> Tensor:
        return M + self.ridge * torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n = q.shape[-2]
        ids = self.ids(mask, n, q.device)
        q, k, _ = self._prepare(q, k, k, mask)
        of_key = (ids >= n)[:, None, :, None]
        token = (ids % n)[:, None, :, None].expand(*q.shape[:2], -1, q.shape[-1])  # (B, H, m, d)
        z = torch.where(of_key, k.gather(2, token), q.gather(2, token))

        def kernel(a: Tensor, b: Tensor) -> Tensor:
            distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
            return distance.square().div(-2).exp()

        M = self._regular(kernel(z, z))
        delta = torch.diag_embed(M.sum(-1).pow(-0.5))
        W = delta @ inverse(delta @ M @ delta, self.inverse_steps, shared=self.published) @ delta
        A = kernel(q, z) @ W @ kernel(k, z).mT
        return A if mask is None else A * mask[:, None, None, :]
