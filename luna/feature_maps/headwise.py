"""One affine map per head, and products of its outputs, of which learned feature maps are made."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class HeadwiseLinear(nn.Module):
    """y = W_h x + b_h for x (B, H, n, d_in); with n_heads=1 every head uses the same map."""

    def __init__(self, n_heads: int, d_in: int, d_out: int, *, bias: bool = True):
        super().__init__()
        self.d_in, self.d_out = d_in, d_out
        self.weight = nn.Parameter(torch.empty(n_heads, d_out, d_in))
        self.bias = nn.Parameter(torch.empty(n_heads, d_out)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The initialisation of nn.Linear, for each head's own d_in."""
        bound = self.d_in**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.to(x.dtype).mT  # (B, H, n, d_out)
        return y if self.bias is None else y + self.bias.to(x.dtype).unsqueeze(-2)


def products(x: Tensor) -> Tensor:
    """The d (d + 1) / 2 products x_a x_b, those with a < b times sqrt(2), so that
    products(x) . products(y) = (x . y)^2."""
    y = 2**0.5 * x
    mixed = [x[..., a : a + 1] * y[..., a + 1 :] for a in range(x.shape[-1] - 1)]
    return torch.cat([x.square(), *mixed], -1)
