"""Linear attention with a small feature map, from all features: the definition of every kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.sums import causal_linear_sums, denominator, linear_sums

# The definitions: x (B, H, n, d) and parameters -> (B, H, n, D).
PHI: dict[str, Callable[..., Tensor]] = {
    "elu": lambda x: F.elu(x) + 1,
    "relu": lambda x, W, b: (x @ W.mT + b.unsqueeze(1)).relu(),
}


def plain(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor,
    *parameters: Tensor,
    causal: bool,
    eps: float,
    divided: bool,
) -> tuple[Tensor, Tensor]:
    """The attention (luna/kernels/mapped/__init__.py) with all features."""
    rows = real[:, None, :, None]
    q, k, v = (t.masked_fill(~rows, 0) for t in (q, k, v))
    phi_q, phi_k = (PHI[name](x, *parameters) * rows for x in (q, k))
    N, c = (causal_linear_sums if causal else linear_sums)(phi_q, phi_k, v)
    out = N / denominator(c, eps, signed=False).unsqueeze(-1) if divided else N
    return out, c.detach()


def gradients_with_a_graph(
    grad: Tensor,
    tensors: Sequence[Tensor],
    name: str,
    causal: bool,
    eps: float,
    divided: bool,
) -> list[Tensor | None]:
    """The gradients of q, k, v and the parameters where they shall themselves be differentiated;
    tensors are q, k, v, mask and the parameters."""
    # Aliases: q, k and v may be one tensor, and each wants its own share of the gradient.
    inputs = [t.view_as(t) for t in tensors]
    q, k, v, mask, *parameters = inputs
    out, _ = plain(name, q, k, v, mask, *parameters, causal=causal, eps=eps, divided=divided)
    wanted = [t for t in inputs if t.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if t.requires_grad else None for t in inputs]
