"""The operators around the kernels of LUNA's attention: what torch sees and differentiates."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from luna.kernels import cpu
from luna.kernels.luna_attention.compiled import (
    SEGMENT,
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
)
from luna.kernels.scalar_mlp.compiled import grid

PARTS = 32  # at most, of the units, with parameter gradients of their own


def _units(q: Tensor) -> int:
    B, H, n, _ = q.shape
    return B * H * -(-n // SEGMENT)


def _per_head(sums: Tensor, q: Tensor) -> Tensor:
    """Sums of units (units, ...) as sums of heads (B, H, ...)."""
    B, H = q.shape[:2]
    return sums.unflatten(0, (H, B, -1)).sum(2).transpose(0, 1).contiguous()


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [t.detach().numpy() for t in tensors]


def _maps(W: Tensor, bias: Tensor, keys: Tensor, table: Tensor) -> tuple[np.ndarray, ...]:
    return *_arrays(W.contiguous(), bias.contiguous(), table), *grid(keys.detach().numpy())


@torch.library.custom_op("luna::attention", mutates_args=(), device_types="cpu")
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    W: Tensor,
    bias: Tensor,
    keys: Tensor,
    table: Tensor,
    nonneg: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o (B, H, n, e), c (B, H, n); for backward S (B, H, D, e), z (B, H, D)."""
    D, e, units = W.shape[1] * table.shape[2] // 2, v.shape[3], _units(q)
    maps = _maps(W, bias, keys, table)
    S, z = v.new_empty(units, D, e), v.new_empty(units, D)
    cpu.run(keys_kernel, units, *_arrays(k, v, mask), maps, nonneg, *_arrays(S, z))
    S, z = _per_head(S, q), _per_head(z, q)
    out, c = torch.empty_like(v), v.new_empty(v.shape[:3])
    cpu.run(
        queries_kernel,
        units,
        *_arrays(q, mask),
        maps,
        nonneg,
        *_arrays(S, z),
        eps,
        *_arrays(out, c),
    )
    return out, c, S, z


@torch.library.custom_op("luna::attention_backward", mutates_args=(), device_types="cpu")
def _attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    W: Tensor,
    bias: Tensor,
    keys: Tensor,
    table: Tensor,
    out: Tensor,
    c: Tensor,
    S: Tensor,
    z: Tensor,
    nonneg: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, W, bias, table."""
    G, units = len(W), _units(q)
    parts = G * min(units // G, max(1, PARTS // G))
    maps = _maps(W, bias, keys, table)
    dS, dz = S.new_empty(units, *S.shape[2:]), S.new_empty(units, S.shape[2])
    shared = [t.new_zeros(parts, *t.shape[1:]) for t in (W, bias, table)]
    dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
    given = _arrays(grad, q, mask), _arrays(S.mT.contiguous(), z), _arrays(out, c, dS, dz, dq)
    cpu.run(
        queries_backward_kernel, parts, *given[0], maps, nonneg, *given[1], eps, *given[2],
        *_arrays(*shared),
    )  # fmt: skip
    dS, dz = _per_head(dS, q), _per_head(dz, q)
    values = _arrays(k, v, mask), _arrays(dS, dS.mT.contiguous(), dz, dk, dv)
    cpu.run(keys_backward_kernel, parts, *values[0], maps, nonneg, *values[1], *_arrays(*shared))
    dW, dbias, dtable = (
        t.unflatten(0, (G, -1)).sum(1, dtype=torch.float64).to(t.dtype) for t in shared
    )
    return dq, dk, dv, dW, dbias, dtable


@_attention.register_fake
def _(q, k, v, mask, W, bias, keys, table, nonneg, eps):
    S = v.new_empty(*v.shape[:2], W.shape[1] * table.shape[2] // 2, v.shape[3])
    return torch.empty_like(v), v.new_empty(v.shape[:3]), S, S.new_empty(S.shape[:3])


@_attention_backward.register_fake
def _(grad, q, k, v, mask, W, bias, keys, table, out, c, S, z, nonneg, eps):
    first = [torch.empty_like(t) for t in (q, k, v)]
    return *first, *(t.new_empty(t.shape) for t in (W, bias, table))


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.nonneg, ctx.eps = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, grad: Tensor, *_):
    *found, dW, dbias, dtable = _attention_backward(grad, *ctx.saved_tensors, ctx.nonneg, ctx.eps)
    return *found, None, dW, dbias, None, dtable, None, None


_attention.register_autograd(_backward, setup_context=_save)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    W: Tensor,
    bias: Tensor,
    keys: Tensor,
    table: Tensor,
    *,
    nonneg: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """o (B, H, n, e) and the denominators' c (B, H, n); see `luna_attention` for the arguments."""
    if mask is None:
        mask = torch.ones(len(q), q.shape[2], dtype=torch.bool)
    out, c, _, _ = _attention(q, k, v, mask, W, bias, keys, table, nonneg, eps)
    return out, c
