"""What normalises hidden states: each token by its channels, or each channel by its tokens.

B batch   n tokens   E d_model
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra.base.config import Norm, Style
from luna.base import Mask

MOMENTUM = 0.1  # of running statistics: torch's default, and so S4's


class LayerNorm(nn.LayerNorm):
    """Each token by itself, so that padding is in no other token's norm."""

    def forward(self, x: Tensor, mask: Mask = None) -> Tensor:
        return super().forward(x)


class BatchNorm(nn.Module):
    """Each channel of x (B, n, E) by its mean and variance over the real tokens of the batch; in
    evaluation by their running averages, which are saved with the weights.

    A running variance is of the population: of N tokens N / (N - 1) times the one of the batch, as
    in nn.BatchNorm1d.
    """

    over_batch = True  # a batch in pieces, or forward twice, has other statistics
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_var", torch.ones(d_model))

    def forward(self, x: Tensor, mask: Mask = None) -> Tensor:
        if mask is None or not self.training:
            return F.batch_norm(
                x.flatten(0, -2),
                self.running_mean,
                self.running_var,
                self.weight,
                self.bias,
                self.training,
                MOMENTUM,
                self.eps,
            ).view(x.shape)
        real = mask.unsqueeze(-1)
        N = real.sum().clamp_min(1)
        mean = (x * real).sum((0, 1)) / N
        var = ((x - mean).square() * real).sum((0, 1)) / N
        self._keep(mean.detach(), var.detach() * N / (N - 1).clamp_min(1))
        return (x - mean) * (var + self.eps).rsqrt() * self.weight + self.bias

    @torch.no_grad()
    def _keep(self, mean: Tensor, var: Tensor) -> None:
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), MOMENTUM)
        self.running_var.lerp_(var.to(self.running_var.dtype), MOMENTUM)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


def norm(style: Style, d_model: int) -> LayerNorm | BatchNorm:
    kind = BatchNorm if style.norm is Norm.batch else LayerNorm
    return kind(d_model, eps=style.ln_eps)
