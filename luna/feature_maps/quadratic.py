"""The features of a squared inner product, which Based and ReBased share."""

from __future__ import annotations

import torch
from torch import Tensor


def products(x: Tensor) -> Tensor:
    """The d (d + 1) / 2 products x_a x_b, those with a < b times sqrt(2), so that
    products(x) . products(y) = (x . y)^2."""
    y = 2**0.5 * x
    mixed = [x[..., a : a + 1] * y[..., a + 1 :] for a in range(x.shape[-1] - 1)]
    return torch.cat([x.square(), *mixed], -1)
