"""The operator around the kernels: what torch sees and differentiates."""

from __future__ import annotations

import torch
from torch import Tensor

from luna.base import LunaError
from luna.heads import memory_for, side_by_side
from luna.kernels.linear_triton.segments import rows_like
from luna.kernels.scalar_mlp.operator import no_second_derivative

INPUTS = "Tensor q, Tensor k, Tensor v, Tensor mask, Tensor g, float eps"
RESULTS = "Tensor out, Tensor c, Tensor S, Tensor z"


def block_of(d: int) -> int:
    """Tokens of a block, each of which keeps a state for each direction."""
    return 32 if d <= 64 else 16  # of more, registers spill by the kilobyte


def _results(q, k, v, mask, g, eps) -> tuple[Tensor, ...]:
    B, H, n, e = v.shape
    d = q.shape[3]
    blocks = -(-n // block_of(d))
    shapes = (B, H, n), (len(g), B, H, blocks, d, e), (len(g), B, H, blocks, d)
    return rows_like(v, v.dtype), *(g.new_empty(shape) for shape in shapes)


@torch.library.custom_op(
    "luna::decayed_attention",
    mutates_args=(),
    schema=f"({INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def attention(*arguments):
    """o (B, H, n, e) and c (B, H, n); for backward the sums that arrive at each block from before
    it and from behind, S (2, B, H, blocks, d, e) and z (2, B, H, blocks, d)."""
    from luna.kernels.decayed.calls import Call

    *inputs, eps = arguments
    check_tensors(*inputs)
    results = _results(*arguments)
    q, _, v, _, g = inputs
    Call(q, v, len(g), eps, block_of(q.shape[3])).forward(tuple(inputs), results)
    return results


@torch.library.custom_op(
    "luna::decayed_attention_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {INPUTS}, {RESULTS}) -> (Tensor, Tensor)",
)
def _attention_backward(grad, q, k, v, mask, g, eps, out, c, S, z):
    """Gradients of q, k, v side by side, and of g."""
    from luna.kernels.decayed.calls import Call

    memory = memory_for(q, v)
    call = Call(q, v, len(g), eps, block_of(q.shape[3]))
    inputs, results = (q, k, v, mask, g), (out, c, S, z)
    return memory, call.backward(grad, inputs, results, side_by_side(memory, q, v))


def check_tensors(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, g: Tensor) -> None:
    """Refuse tensors that do not fit together: the kernels index raw memory."""
    if fits := [t.dim() for t in (q, v, g)] == [4, 4, 4]:
        B, H, n, _ = q.shape
        fits = k.shape == q.shape and v.shape[:3] == q.shape[:3] and mask.shape == (B, n)
        fits = fits and len(g) in (1, 2) and g.shape[1:] == (B, H, n)
        fits = fits and mask.dtype == torch.bool and q.dtype == k.dtype == v.dtype
        fits = fits and g.dtype == (torch.float64 if v.dtype == torch.float64 else torch.float32)
        fits = fits and all(t.device == q.device for t in (k, v, mask, g))
    if not fits:
        tensors = (q, k, v, mask, g)
        each = ", ".join(f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in tensors)
        raise LunaError(
            "the fused attention with decays needs q, k (B, H, n, d), v (B, H, n, e) and mask "
            "(B, n) of one dtype and on one device, and decays (1 or 2, B, H, n) in float32, or "
            f"in float64 as the others; got {each}"
        )


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.eps = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, grad: Tensor, *_):
    q, k, v, mask, g, *results = ctx.saved_tensors
    memory, dg = _attention_backward(grad, q, k, v, mask, g, ctx.eps, *results)
    return *side_by_side(memory, q, v), None, dg, None


@_attention_backward.register_fake
def _(grad, q, k, v, mask, g, *_):
    return memory_for(q, v), torch.empty_like(g)


attention.register_fake(_results)
attention.register_autograd(_backward, setup_context=_save)
_attention_backward.register_autograd(no_second_derivative)
