"""Kernelized attention: a Gaussian kernel in the place of the softmax (Skyformer, eq. 3).

    C_ij = exp(-||q_i - k_j||^2 / (2 sqrt(d)))        out_i = sum_j C_ij v_j        over valid j

Nothing is normalised: weights lie in (0, 1], row sums in (0, n], and the output grows with n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from luna.attention.softmax import alibi_bias
from luna.base import Attention, Mask, Paper, register
from luna.dropout import dropout


def gaussian(x: Tensor, z: Tensor) -> Tensor:
    """exp(-||x_i - z_j||^2 / 2): x (..., n, d), z (..., m, d) -> (..., n, m)."""
    half_x, half_z = (t.square().sum(-1) / -2 for t in (x, z))
    # Sums, not differences: the gradient of a subtrahend would be negated as an n x m matrix.
    exponent = x @ z.mT + half_x.unsqueeze(-1) + half_z.unsqueeze(-2)
    return exponent.clamp(max=0).exp()  # rounding of the expanded square can exceed 0


@register("kernelized")
class Kernelized(Attention):
    title = "Kernelized attention"
    family = "softmax and sparse"
    marker = "v"
    paper = Paper(
        "Skyformer: Remodel Self-Attention with Gaussian Kernel and Nyström Method",
        2021,
        "https://arxiv.org/abs/2111.00035",
    )
    complexity = "O(n² d)"
    declared = Attention.declared.but(
        cross_form=True,
        alibi_form=True,
        uses_dropout=True,
        row_stochastic=False,
        convex=False,
        linear_in_n=False,
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        scale = self.head_dim**-0.25
        # Without a normaliser the zero values of padding are all the mask that is needed.
        C = gaussian(q * scale, k * scale)  # (B, H, n, n)
        if self.slot.alibi:
            C = C * alibi_bias(q, k).exp()
        return dropout(C, self.slot.dropout, self.training) @ v

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        distance = torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")
        exponent = -distance.square() / (2 * self.head_dim**0.5)
        C = (exponent + alibi_bias(q, k) if self.slot.alibi else exponent).exp()
        return C if mask is None else C * mask[:, None, None, :]
