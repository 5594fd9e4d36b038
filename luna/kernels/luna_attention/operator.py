"""The operators around the kernels of LUNA's attention: what torch sees and differentiates."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from luna.base import LunaError
from luna.heads import gradients_like, memory_for, side_by_side
from luna.kernels.checked import on_gpu
from luna.kernels.direct import is_unseen
from luna.kernels.linear_triton.segments import rows_like, segment_of
from luna.kernels.scalar_mlp.operator import no_second_derivative

INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor mask, Tensor W, Tensor bias, Tensor keys, Tensor table"
)
RESULTS = "Tensor out, Tensor c, Tensor S, Tensor z"
OPTIONS = "bool causal, int output, float eps, bool divided, bool absolute"


def _engine(q: Tensor) -> ModuleType:
    """The module that computes on q's device: its forward and backward fill the results."""
    if on_gpu(q.device.type):
        from luna.kernels.luna_attention import by_triton

        return by_triton
    from luna.kernels.luna_attention import by_numba

    return by_numba


def _results(
    q, k, v, mask, W, bias, keys, table, causal, output, eps, divided, absolute
) -> tuple[Tensor, ...]:
    B, H, n, e = v.shape
    D = W.shape[1] * table.shape[2] // 2
    D *= -(-n // segment_of(B * H * n)) if causal else 1
    shapes = (B, H, n), (B, H, D, e), (B, H, D)
    # Sums of values may be too large for half precision.
    out = rows_like(v, v.dtype if divided else table.dtype)
    return out, *(table.new_empty(shape) for shape in shapes)


def _like(*tensors: Tensor) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in tensors]


def _gradients(grad, q, k, v, mask, W, bias, keys, table, *_) -> tuple[Tensor, ...]:
    return memory_for(q, v), *_like(W, bias, table)


def _compute(*arguments):
    """o, or N if it is not divided (B, H, n, e), c (B, H, n); for backward S (B, H, D, e),
    z (B, H, D), or, if causal, those that each segment of a sequence starts from,
    (B, H, segments D, .)."""
    check_tensors(*arguments[:8])
    results = _results(*arguments)
    _engine(results[0]).forward(arguments, results, segment_of(results[1].numel()))
    return results


attention = torch.library.custom_op(
    "luna::attention",
    _compute,
    mutates_args=(),
    schema=f"({INPUTS}, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.custom_op(
    "luna::attention_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {INPUTS}, {RESULTS}, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _attention_backward(*arguments):
    """Gradients of q, k, v side by side, of W, bias, table."""
    memory, *maps = _gradients(*arguments)
    of_inputs = side_by_side(memory, arguments[1], arguments[3])
    _compute_backward(arguments, (*of_inputs, *maps))
    return memory, *maps


def _compute_backward(arguments: tuple, gradients: tuple[Tensor, ...]) -> None:
    c = arguments[10]
    _engine(c).backward(arguments, gradients, segment_of(c.numel()))


def check_tensors(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, W: Tensor, bias: Tensor, *lines: Tensor
) -> None:
    """Refuse tensors that do not fit together: both engines index raw memory."""
    floats, keys, table = (q, k, v, W, bias, *lines), *(lines or (bias, W))  # which fit
    if fits := [t.dim() for t in (q, v, W, table)] == [4, 4, 3, 3]:
        B, H, n, d = q.shape
        G, M = W.shape[:2]
        fits = k.shape == q.shape and v.shape[:3] == q.shape[:3] and mask.shape == (B, n)
        fits = fits and G in (1, H) and W.shape == (G, M, d) and bias.shape == (G, M)
        fits = fits and len(table) == G and keys.shape == (G, table.shape[1] - bool(lines))
        fits = fits and mask.dtype == torch.bool and q.dtype == k.dtype == v.dtype
        fits = fits and all(t.is_floating_point() and t.device == mask.device for t in floats)
    if not fits:
        tensors = (*floats, mask)  # in this order
        each = ", ".join(f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in tensors)
        raise LunaError(
            "the fused attention needs q, k (B, H, n, d), v (B, H, n, e), mask (B, n) and maps of "
            f"1 or H groups for width d, of one dtype and on one device; got {each}"
        )


def _save(ctx, inputs, output) -> None:
    tensors, ctx.options = inputs[:8], inputs[8:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, grad: Tensor, *_):
    saved = ctx.saved_tensors  # once: what computes activations again allows no more
    arguments = grad, *saved, *ctx.options
    q, k, v, *_ = saved
    if is_unseen(grad, q) and not torch.is_grad_enabled():
        of_inputs = gradients_like(q, k, v)
        W, bias, _, table = saved[4:8]
        maps = _like(W, bias, table)
        _compute_backward(arguments, (*of_inputs, *maps))
    else:
        memory, *maps = _attention_backward(*arguments)
        of_inputs = side_by_side(memory, q, v)
    dW, dbias, dtable = maps
    options = [None] * len(ctx.options)
    return *of_inputs, None, dW, dbias, None, dtable, *options


class _Direct(torch.autograd.Function):
    """The same where no operator is needed: luna/kernels/direct.py."""

    @staticmethod
    def forward(ctx, *inputs):
        results = _compute(*inputs)
        _save(ctx, inputs, results)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, grad, *_):
        return (None,) * len(ctx.needs_input_grad) if grad is None else _backward(ctx, grad)


def attend(*inputs) -> tuple[Tensor, ...]:
    """What `attention` returns."""
    return _Direct.apply(*inputs) if is_unseen(*inputs[:8]) else attention(*inputs)


attention.register_fake(_results)
_attention_backward.register_fake(_gradients)
attention.register_autograd(_backward, setup_context=_save)
_attention_backward.register_autograd(no_second_derivative)
