"""A sum of values divided by the root mean square of its channels, with a gain for each channel.

    N (B, H, n, e)   gain (H, 1, e)
    rms_i = max(sqrt(mean_j N_ij^2), least)      out_ij = gain_j N_ij / rms_i

`of_all_heads`: the mean is over the channels of all heads, and rms (B, 1, n) is one number for
them. `plain` is the definition. On a CPU with numba each pass over the tokens is one loop in
machine code; autograd's operations would read and write N some ten times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from luna.kernels import cpu


def plain(N: Tensor, gain: Tensor, least: float, of_all_heads: bool) -> tuple[Tensor, Tensor]:
    square = N.square().mean((1, 3) if of_all_heads else 3, keepdim=True)
    rms = square.clamp_min(least**2).sqrt()
    return N / rms * gain, rms.squeeze(-1)


def rms_norm(
    N: Tensor, gain: Tensor, least: float, *, of_all_heads: bool = False
) -> tuple[Tensor, Tensor]:
    """out (B, H, n, e) and, without a gradient, rms (B, H or 1, n)."""
    gain = gain.to(N.dtype)
    if cpu.runs_on(N) and not torch.compiler.is_compiling():
        return _Norm.apply(N, gain, least, of_all_heads)
    out, rms = plain(N, gain, least, of_all_heads)
    return out, rms.detach()


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, N: Tensor, gain: Tensor, least: float, of_all_heads: bool
    ) -> tuple[Tensor, Tensor]:
        from luna.kernels.rms_norm import by_numba

        out, rms = by_numba.forward(N, gain, least, of_all_heads)
        ctx.options = least, of_all_heads
        ctx.mark_non_differentiable(rms)
        ctx.save_for_backward(N, gain, rms)
        return out, rms

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        from luna.kernels.rms_norm import by_numba

        N, gain, rms = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return *by_numba.backward(grad, N, gain, rms, *ctx.options), None, None
        # These gradients shall be differentiated again, so they need a graph.
        inputs = N.view_as(N), gain.view_as(gain)
        wanted = [t for t in inputs if t.requires_grad]
        out, _ = plain(*inputs, *ctx.options)
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
        return *(next(found) if t.requires_grad else None for t in inputs), None, None
