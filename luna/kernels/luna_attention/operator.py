"""The operators around the kernels of LUNA's attention: what torch sees and differentiates."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from luna.base import LunaError
from luna.kernels.checked import on_gpu
from luna.kernels.luna_attention.segments import block_of, empty_rows_like, segment_of
from luna.kernels.scalar_mlp.piecewise import no_second_derivative


def _engine(q: Tensor) -> ModuleType:
    """The module that computes on q's device. Its forward and backward take the arguments of the
    operators, the last three by name."""
    if on_gpu(q.device.type):
        from luna.kernels.luna_attention import device  # imports triton

        return device
    from luna.kernels.luna_attention import host  # imports numba

    return host


def _check(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, W: Tensor, bias: Tensor, keys: Tensor,
    table: Tensor,
) -> None:  # fmt: skip
    """Refuse tensors that do not fit together: both engines index raw memory."""
    (B, H, n, d), (G, M), K = q.shape, W.shape[:2], table.shape[1]
    fits = k.shape == q.shape and v.shape[:3] == q.shape[:3] and mask.shape == (B, n)
    fits = fits and G in (1, H) and W.shape == (G, M, d) and bias.shape == (G, M)
    fits = fits and keys.shape == (G, K - 1) and table.shape == (G, K, table.shape[2])
    floats = q, k, v, W, bias, keys, table
    fits = fits and mask.dtype == torch.bool and q.dtype == k.dtype == v.dtype
    fits = fits and all(t.is_floating_point() and t.device == mask.device for t in floats)
    if not fits:
        names = ("q", "k", "v", "W", "bias", "keys", "table", "mask")
        tensors = zip(names, (*floats, mask), strict=True)
        each = ", ".join(f"{name} {t.dtype} {tuple(t.shape)} on {t.device}" for name, t in tensors)
        raise LunaError(
            "the fused attention needs q, k (B, H, n, d), v (B, H, n, e), mask (B, n) and maps of "
            f"1 or H groups for width d, of one dtype and on one device; got {each}"
        )


@torch.library.custom_op("luna::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    W: Tensor,
    bias: Tensor,
    keys: Tensor,
    table: Tensor,
    causal: bool,
    output: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o (B, H, n, e), c (B, H, n); for backward S (B, H, D, e), z (B, H, D), or, if causal, those
    that each segment of a sequence starts from, (B, H, segments D, .)."""
    tensors = q, k, v, mask, W, bias, keys, table
    _check(*tensors)
    return _engine(q).forward(*tensors, causal=causal, output=output, eps=eps)


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
    output: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, W, bias, table."""
    tensors = grad, q, k, v, mask, W, bias, keys, table, out, c, S, z
    return _engine(q).backward(*tensors, causal=causal, output=output, eps=eps)


@attention.register_fake
def _(q, k, v, mask, W, bias, keys, table, causal, output, eps):
    B, H, n, e = v.shape
    M, L = W.shape[1], table.shape[2] // 2
    D = M * L
    if causal:
        D *= -(-n // segment_of(B * H * n, block_of(M, L)))
    S = table.new_empty(B, H, D, e)
    return empty_rows_like(v), S.new_empty(B, H, n), S, S.new_empty(B, H, D)


@_attention_backward.register_fake
def _(grad, q, k, v, mask, W, bias, keys, table, out, c, S, z, causal, output, eps):
    first = [empty_rows_like(t) for t in (q, k, v)]
    return *first, *(t.new_empty(t.shape) for t in (W, bias, table))


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.causal, ctx.output, ctx.eps = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, grad: Tensor, *_):
    *dqkv, dW, dbias, dtable = _attention_backward(
        grad, *ctx.saved_tensors, ctx.causal, ctx.output, ctx.eps
    )
    return *dqkv, None, dW, dbias, None, dtable, None, None, None


attention.register_autograd(_backward, setup_context=_save)
_attention_backward.register_autograd(no_second_derivative)
