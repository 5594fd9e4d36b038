"""The operators around the kernels of LUNA's attention: what torch sees and differentiates."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from luna.kernels.luna_attention import on_gpu
from luna.kernels.luna_attention.segments import block_of, segment_of


def _engine(q: Tensor) -> ModuleType:
    """What computes: forward and backward take the operators' arguments, the last three by name."""
    if on_gpu(q.device.type):
        from luna.kernels.luna_attention import device  # imports triton

        return device
    from luna.kernels.luna_attention import host  # imports numba

    return host


@torch.library.custom_op("luna::attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    W: Tensor,
    bias: Tensor,
    keys: Tensor,
    table: Tensor,
    causal: bool,
    nonneg: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o (B, H, n, e), c (B, H, n); for backward S (B, H, D, e), z (B, H, D), or, if causal, those
    that each segment of a sequence starts from, (B, H, segments D, .)."""
    tensors = q, k, v, mask, W, bias, keys, table
    return _engine(q).forward(*tensors, causal=causal, nonneg=nonneg, eps=eps)


@torch.library.custom_op("luna::attention_backward", mutates_args=())
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
    causal: bool,
    nonneg: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, W, bias, table."""
    tensors = grad, q, k, v, mask, W, bias, keys, table, out, c, S, z
    return _engine(q).backward(*tensors, causal=causal, nonneg=nonneg, eps=eps)


@_attention.register_fake
def _(q, k, v, mask, W, bias, keys, table, causal, nonneg, eps):
    B, H, n, e = v.shape
    M, L = W.shape[1], table.shape[2] // 2
    D = M * L
    if causal:
        D *= -(-n // segment_of(B * H * n, block_of(M, L)))
    S = table.new_empty(B, H, D, e)
    return torch.empty_like(v), S.new_empty(B, H, n), S, S.new_empty(B, H, D)


@_attention_backward.register_fake
def _(grad, q, k, v, mask, W, bias, keys, table, out, c, S, z, causal, nonneg, eps):
    first = [torch.empty_like(t) for t in (q, k, v)]
    return *first, *(t.new_empty(t.shape) for t in (W, bias, table))


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.causal, ctx.nonneg, ctx.eps = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, grad: Tensor, *_):
    *found, dW, dbias, dtable = _attention_backward(
        grad, *ctx.saved_tensors, ctx.causal, ctx.nonneg, ctx.eps
    )
    return *found, None, dW, dbias, None, dtable, None, None, None


_attention.register_autograd(_backward, setup_context=_save)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *maps: Tensor,
    causal: bool,
    nonneg: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """o (B, H, n, e) and the denominators' c (B, H, n), with the maps W, bias, keys and table."""
    if mask is None:
        mask = torch.ones(len(q), q.shape[2], dtype=torch.bool, device=q.device)
    out, c, _, _ = _attention(q, k, v, mask, *maps, causal, nonneg, eps)
    return out, c
