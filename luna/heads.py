"""Projections as heads: padded rows cleared in place, gradients where backward reads them.

A projection (B, n, parts, H, d) holds q, k and v side by side. Attention reads views of it, and its
gradients are written side by side in the same order, so that neither is copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from luna.base import Mask, zero_padding

INDEXED_ON = {"cpu"}  # devices that do not wait for the number of padded rows


def clear_padding(t: Tensor, mask: Mask) -> Tensor:
    """Write 0 at padding into t (B, n, ...)."""
    if mask is not None and t.device.type in INDEXED_ON:
        t[(~mask).nonzero(as_tuple=True)] = 0
    elif mask is not None:  # without waiting for a GPU
        t.masked_fill_(~mask.reshape(*mask.shape, *[1] * (t.dim() - 2)), 0)
    return t


def side_by_side(memory: Tensor, q: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Views like q, k and v of memory (B, n, H (2 d + e)): gradients that stand there are where the
    backward pass of one projection reads them."""
    H, d, e = q.shape[1], q.shape[3], v.shape[3]
    parts = memory.split([H * d, H * d, H * e], -1)
    return tuple(t.unflatten(-1, (H, -1)).transpose(1, 2) for t in parts)


def gradients_like(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Memory for their gradients, as whoever made them reads it: in their own order, or side by
    side where they may be views of one projection."""
    inputs = q, k, v
    if all(t.is_contiguous() for t in inputs):
        return tuple(torch.empty_like(t) for t in inputs)
    return side_by_side(memory_for(q, v), q, v)


def memory_for(q: Tensor, v: Tensor) -> Tensor:
    (B, H, n, d), e = q.shape, v.shape[3]
    return q.new_empty(B, n, H * (2 * d + e))


def split_heads(qkv: Tensor, mask: Mask) -> tuple[Tensor, ...]:
    """Views (B, H, n, d) of projections (B, n, parts, H, d), which nobody else may read: padded
    rows become 0 in place."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return tuple(zero_padding(t, mask) for t in qkv.permute(2, 0, 3, 1, 4).unbind(0))
    return _Heads.apply(qkv, mask)


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, mask: Mask) -> tuple[Tensor, ...]:
        ctx.mask, ctx.strides = mask, qkv.stride()
        return clear_padding(qkv, mask).permute(2, 0, 3, 1, 4).unbind(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        of_b, of_n, of_part, of_h, of_d = ctx.strides
        places = {
            (t.untyped_storage().data_ptr(), t.storage_offset() - i * of_part, *t.stride())
            for i, t in enumerate(grads)
        }
        wanted = (of_b, of_h, of_n, of_d)
        if len(places) == 1 and grads[0].stride() == wanted and not torch.is_grad_enabled():
            B, H, n, d = grads[0].shape  # they stand side by side already
            packed = grads[0].as_strided((B, n, len(grads), H, d), ctx.strides)
        else:
            packed = torch.stack([t.transpose(1, 2) for t in grads], 2)
        return clear_padding(packed, ctx.mask), None
