"""Nyströmformer: softmax attention through m landmarks (Nyströmformer, eq. 13 and 14).

    F = softmax(q k'^T)  (n, m)     A = softmax(q' k'^T)  (m, m)     G = softmax(q' k^T)  (m, n)
    out = (F A^+) (G v)  [+ a depthwise convolution of v]

with q, k scaled by d^(-1/4), q', k' the means of m segments, and A^+ six steps of the iterative
inverse,

    Z_0 = A^T / c        X = A Z        Z <- Z (13 I - X (15 I - X (7 I - X))) / 4

With e = 1 - x for an eigenvalue x of A Z, one step gives e' = 3/4 e^3 + 1/4 e^4: third order near
the inverse, but a small x only grows by 13/4 per step. Six steps therefore leave directions with
x < 3.25^-6 out. That truncation is part of the published methods.

`strict`     segments are equal shares of each example's real tokens; with fewer than m of them
             each is its own landmark, and the landmarks left over take no part
`published`  segments are equal shares of the positions, padding counted as zeros, the first ones a
             token shorter where m does not divide n; F and A are not masked; the batch shares the
             constant of the inverse; n <= m is exact softmax attention
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from luna.base import (
    KEY_BIAS,
    Attention,
    AttentionTraits,
    LunaError,
    Mask,
    Paper,
    Slot,
    at_least,
    register,
    zero_padding,
)
from luna.blocks import masked_softmax, position_segments, segment_means, valid_segments

MASKED = 1e9  # subtracted from the scores of padded keys under `published`


def inverse(A: Tensor, steps: int | None, *, shared: bool) -> Tensor:
    """Z ~ A^+ for A (B, H, m, m) with entries >= 0; without `steps` the pseudo-inverse less noise.

    c is the largest column sum, which keeps the eigenvalues of A Z_0 = A A^T / c within (0, 1].
    Public code takes it over the whole batch (`shared`), whose examples then change each other.
    """
    if steps is None:
        return torch.linalg.pinv(A, rtol=torch.finfo(A.dtype).eps ** 0.5)
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    sums = A.sum(-2)  # (B, H, m)
    Z = A.mT / (sums.amax() if shared else sums.amax(-1)[..., None, None])
    for _ in range(steps):
        X = A @ Z
        Z = Z @ (13 * identity - X @ (15 * identity - X @ (7 * identity - X))) / 4
    return Z


def toeplitz(conv: nn.Conv2d, n: int, dtype: torch.dtype) -> Tensor:
    """The matrix (H, n, n) of a convolution along the sequence."""
    taps = conv.weight[:, 0, :, 0].to(dtype)  # (H, K)
    K, i = taps.shape[-1], torch.arange(n, device=taps.device)
    tap = i[None, :] - i[:, None] + K // 2  # the tap that row i applies to column j
    return taps[:, tap.clamp(0, K - 1)] * ((tap >= 0) & (tap < K))


@register("nystrom")
class Nystrom(Attention):
    title = "Nyströmformer"
    family = "low rank"
    marker = "v"
    paper = Paper(
        "Nyströmformer: A Nyström-Based Algorithm for Approximating Self-Attention",
        2021,
        "https://arxiv.org/abs/2102.03902",
    )
    complexity = "O(n m d + n m² + m³)"
    profiles = ("strict", "published")
    declared = Attention.declared.but(
        idle=KEY_BIAS,
        row_stochastic=False,  # only with the exact inverse
        convex=False,
        equivariant=False,
    )

    def __init__(
        self,
        slot: Slot,
        *,
        landmarks: int = 128,
        inverse_steps: int | None = 6,
        conv_kernel: int | None = None,
    ):
        super().__init__(slot)
        at_least("nystrom", 1, landmarks=landmarks, inverse_steps=inverse_steps)
        if conv_kernel is not None and (conv_kernel < 1 or conv_kernel % 2 == 0):
            raise LunaError(f"nystrom.conv_kernel must be odd and at least 1, got {conv_kernel}")
        self.landmarks, self.inverse_steps = landmarks, inverse_steps
        self.published = self.profile == "published"
        self.conv: nn.Conv2d | None = None
        if conv_kernel is not None:  # one filter per head, shared by its channels
            H = self.n_heads
            self.conv = nn.Conv2d(H, H, (conv_kernel, 1), groups=H, bias=False)

    def _traits(self) -> AttentionTraits:
        # The convolution counts stored places.
        return self.declared.but(holes_are_time=self.conv is not None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        q, k = (zero_padding(t, mask) * self.head_dim**-0.25 for t in (q, k))
        if self._exact(q.shape[-2]):
            out = self._minus(q @ k.mT, mask).softmax(-1) @ v
        else:
            F, A, G = self.factors(q, k, mask)
            out = (F @ inverse(A, self.inverse_steps, shared=self.published)) @ (G @ v)
        if self.conv is None:
            return out
        weight = self.conv.weight.to(v.dtype)
        return out + conv2d(zero_padding(v, mask), weight, padding="same", groups=self.n_heads)

    def factors(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """F (B, H, n, m), A (B, H, m, m) and G (B, H, m, n) of scaled q and k."""
        positions, member = self.segments(mask, q.shape[-2], q.device)
        landmark_q, landmark_k = (segment_means(t, positions, member) for t in (q, k))
        F, A, G = q @ landmark_k.mT, landmark_q @ landmark_k.mT, landmark_q @ k.mT
        if mask is None or self.published:
            return F.softmax(-1), A.softmax(-1), self._minus(G, mask).softmax(-1)
        present = member.any(-1)  # (B, m)
        column, row = present[:, None, None, :], present[:, None, :, None]
        F = masked_softmax(F, column)
        G = masked_softmax(G, mask[:, None, None, :])  # rows of absent landmarks meet zeros of F
        # Identity rows for absent landmarks keep A invertible and its largest column sum as it was.
        A = masked_softmax(A, column).masked_fill(~row, 0)
        return F, A + torch.diag_embed((~present).to(A.dtype)).unsqueeze(1), G

    def segments(self, mask: Mask, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        m = min(self.landmarks, n)
        if self.published:
            return position_segments(n, m, device)
        return valid_segments(mask, n, m, device)

    def _exact(self, n: int) -> bool:
        return self.published and n <= self.landmarks

    def _minus(self, scores: Tensor, mask: Mask) -> Tensor:
        return scores if mask is None else scores - MASKED * (~mask[:, None, None, :])

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        B, _, n, d = q.shape
        mask = torch.ones(B, n, dtype=torch.bool, device=q.device) if mask is None else mask
        q, k = (zero_padding(t, mask) / d**0.25 for t in (q, k))
        if self._exact(n):
            A = self._minus(q @ k.mT, mask).softmax(-1)
        else:
            A = self._product(q, k, mask)
        return A if self.conv is None else A + toeplitz(self.conv, n, q.dtype) * mask[:, None, None]

    def _product(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        """F Z G with an averaging matrix made of every token's segment number."""
        n = q.shape[-2]
        m, j = min(self.landmarks, n), torch.arange(n, device=q.device)
        if self.published:
            short = (n // m + 1) * m - n  # segments of length n // m
            late = short + (j - short * (n // m)) // (n // m + 1)
            segment = torch.where(j < short * (n // m), j // (n // m), late).expand_as(mask)
            counted, visible = torch.ones_like(mask), torch.ones_like(mask[:, :m])
        else:
            n_b = mask.sum(-1, keepdim=True)
            segment = (mask.cumsum(-1) - 1) * n_b.clamp(max=m) // n_b.clamp(min=1)
            counted, visible = mask, torch.arange(m, device=q.device) < n_b
        a = torch.arange(m, device=q.device)[:, None]
        inside = (segment.unsqueeze(1) == a) & counted.unsqueeze(1)
        average = inside.to(q.dtype) / inside.sum(-1, keepdim=True).clamp(min=1)  # (B, m, n)
        landmark_q, landmark_k = average.unsqueeze(1) @ q, average.unsqueeze(1) @ k

        shown = visible[:, None, None, :].to(q.dtype)

        def softmax(scores: Tensor, weight: Tensor) -> Tensor:
            weights = (scores - scores.amax(-1, keepdim=True)).exp() * weight
            return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)

        F = softmax(q @ landmark_k.mT, shown)
        A = softmax(landmark_q @ landmark_k.mT, shown)
        G = softmax(landmark_q @ k.mT, mask[:, None, None, :].to(q.dtype))
        absent = torch.diag_embed(1 - shown.squeeze(1).squeeze(1)).unsqueeze(1)
        A = A * shown.mT + absent
        return F @ inverse(A, self.inverse_steps, shared=self.published) @ (G * shown.mT)
