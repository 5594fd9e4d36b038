"""LUNA's attention with its features, for where there is no fused kernel."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from luna.kernels.scalar_mlp import OUTPUTS, Activation, Evaluate, Nonneg, over_groups, scalar_mlp
from luna.sums import causal_linear_sums, denominator, linear_sums


def features(x: Tensor, W: Tensor, bias: Tensor, channels: Callable[[Tensor], Tensor]) -> Tensor:
    """phi (B, H, n, M L) of x (B, H, n, d); channels map scalars (G, N) to (G, N, L)."""
    u = x @ W.mT + bias.unsqueeze(1)  # (B, H, n, M)
    return over_groups(u, len(W), channels).flatten(-2)


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    W: Tensor,
    bias: Tensor,
    *psi: Tensor,
    activation: Activation,
    nonneg: Nonneg,
    causal: bool,
    eps: float,
    divided: bool = True,
    absolute: bool = False,
    evaluate: Evaluate = "auto",
) -> tuple[Tensor, Tensor]:
    """See `luna_attention` for the arguments."""
    if mask is not None:
        real = mask[:, None, :, None]
        q, k, v = (t.masked_fill(~real, 0) for t in (q, k, v))

    def channels(u: Tensor) -> Tensor:
        y = scalar_mlp(u, *psi, activation=activation, evaluate=evaluate)
        return OUTPUTS[nonneg](y)

    phi_q, phi_k = (features(x, W, bias, channels) for x in (q, k))
    if mask is not None:
        phi_q, phi_k = phi_q * real, phi_k * real
    N, c = (causal_linear_sums if causal else linear_sums)(phi_q, phi_k, v, absolute=absolute)
    if not divided:
        return N, c.detach()
    return N / denominator(c, eps, not (nonneg or absolute)).unsqueeze(-1), c.detach()
