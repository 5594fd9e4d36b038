"""The operator around the kernels: what torch sees and differentiates."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from luna.base import LunaError
from luna.heads import gradients_like, memory_for, side_by_side
from luna.kernels.checked import on_gpu
from luna.kernels.direct import is_unseen
from luna.kernels.linear_triton.segments import rows_like, segment_of
from luna.kernels.mapped.reference import gradients_with_a_graph
from luna.kernels.scalar_mlp.operator import no_second_derivative

MAPS = {"elu": 0, "relu": 2}  # files beside this one, and how many parameters each map has

INPUTS = "Tensor q, Tensor k, Tensor v, Tensor mask, Tensor[] parameters"
RESULTS = "Tensor out, Tensor c, Tensor S, Tensor z"
OPTIONS = "str map, bool causal, float eps, bool divided"


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"luna.kernels.mapped.{name}")


def _engine_of_cpu(causal: bool, *_: Any) -> ModuleType:
    assert not causal
    return _module("by_numba")


def _width(q: Tensor, parameters: Sequence[Tensor]) -> int:
    """D: rows of the first parameter (groups, D, d), or the width of a token."""
    return parameters[0].shape[1] if parameters else q.shape[3]


def _results(q, k, v, mask, parameters, map, causal, eps, divided) -> tuple[Tensor, ...]:
    B, H, n, e = v.shape
    D = _width(q, parameters)
    D *= -(-n // segment_of(B * H * n)) if causal else 1
    inside = torch.float64 if v.dtype == torch.float64 else torch.float32
    # Sums of values may be too large for half precision.
    out = rows_like(v, v.dtype if divided else inside)
    shapes = (B, H, n), (B, H, D, e), (B, H, D)
    return out, *(v.new_empty(shape, dtype=inside) for shape in shapes)


def _compute(*arguments):
    """o, or N if it is not divided (B, H, n, e), c (B, H, n); for backward S (B, H, D, e),
    z (B, H, D), or, if causal, those that each segment of a sequence starts from."""
    check_tensors(*arguments[:6])
    results = _results(*arguments)
    q, k, v, mask, parameters, name, *options = arguments
    if not on_gpu(q.device.type):
        by_numba = _engine_of_cpu(*options)
        by_numba.forward((q, k, v, mask), parameters, results, *options[1:])
        return results
    call = _module(name).call(q, v, parameters, *options, segment_of(results[1].numel()))
    call.forward(q, k, v, mask, results)
    return results


attention = torch.library.custom_op(
    "luna::mapped_attention",
    _compute,
    mutates_args=(),
    schema=f"({INPUTS}, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.custom_op(
    "luna::mapped_attention_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {INPUTS}, {RESULTS}, {OPTIONS}) -> (Tensor, Tensor[])",
)
def _attention_backward(grad, q, k, v, *others):
    """Gradients of q, k, v side by side, and of the parameters."""
    memory = memory_for(q, v)
    return memory, _compute_backward(side_by_side(memory, q, v), grad, q, k, v, *others)


def _compute_backward(
    of_inputs, grad, q, k, v, mask, parameters, out, c, S, z, map, causal, eps, divided
) -> list[Tensor]:
    """Fill the gradients of q, k, v; return those of the parameters."""
    if not on_gpu(q.device.type):
        by_numba = _engine_of_cpu(causal)
        tensors, results = (q, k, v, mask), (c, S, z)
        return by_numba.backward(grad, tensors, parameters, results, of_inputs, eps, divided)
    module = _module(map)
    call = module.call(q, v, parameters, causal, eps, divided, segment_of(c.numel()))
    of_map, totals = module.gradients(call, parameters)
    call.backward(grad, (q, k, v, mask), (out, c, S, z), of_inputs, of_map)
    return totals()


def check_tensors(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, parameters: Sequence[Tensor], name: str
) -> None:
    """Refuse tensors that do not fit together: the kernels index raw memory."""
    if fits := [t.dim() for t in (q, v)] == [4, 4] and len(parameters) == MAPS.get(name, -1):
        B, H, n, d = q.shape
        fits = k.shape == q.shape and v.shape[:3] == q.shape[:3] and mask.shape == (B, n)
        fits = fits and mask.dtype == torch.bool and q.dtype == k.dtype == v.dtype
        fits = fits and all(t.device == q.device for t in (k, v, mask, *parameters))
        if fits and parameters:
            W, bias = parameters
            fits = W.dim() == 3 and len(W) in (1, H) and W.shape[2] == d
            fits = fits and bias.shape == W.shape[:2]
    if not fits:
        tensors = (q, k, v, mask, *parameters)
        each = ", ".join(f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in tensors)
        raise LunaError(
            f"the fused attention '{name}' needs q, k (B, H, n, d), v (B, H, n, e) and mask (B, n) "
            "of one dtype and on one device, and its map's parameters, W (1 or H, D, d) and "
            f"b (1 or H, D) or none; got {each}"
        )


def _save(ctx, inputs, output) -> None:
    q, k, v, mask, parameters, *ctx.options = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(q, k, v, mask, *output, *parameters)


def _backward(ctx, grad: Tensor, *_):
    q, k, v, mask, out, c, S, z, *parameters = ctx.saved_tensors
    if torch.is_grad_enabled() and not on_gpu(q.device.type):
        tensors = q, k, v, mask, *parameters
        of_inputs = gradients_with_a_graph(grad, tensors, *ctx.options)
        return *of_inputs[:4], of_inputs[4:], None, None, None, None
    saved = q, k, v, mask, parameters, out, c, S, z
    if is_unseen(grad, q):
        memory = gradients_like(q, k, v)
        of_parameters = _compute_backward(memory, grad, *saved, *ctx.options)
    else:
        packed, of_parameters = _attention_backward(grad, *saved, *ctx.options)
        memory = side_by_side(packed, q, v)
    return *memory, None, of_parameters, None, None, None, None


class _Direct(torch.autograd.Function):
    """The same where no operator is needed: luna/kernels/direct.py."""

    @staticmethod
    def forward(ctx, options, q, k, v, mask, *parameters):
        inputs = q, k, v, mask, parameters, *options
        results = _compute(*inputs)
        _save(ctx, inputs, results)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        dq, dk, dv, _, of_parameters, *_ = _backward(ctx, grad)
        return None, dq, dk, dv, None, *of_parameters


def attend(q, k, v, mask, parameters, *options) -> tuple[Tensor, ...]:
    """What `attention` returns."""
    if is_unseen(q, k, v, mask, *parameters):
        return _Direct.apply(options, q, k, v, mask, *parameters)
    return attention(q, k, v, mask, parameters, *options)


@_attention_backward.register_fake
def _(grad, q, k, v, mask, parameters, *_):
    return memory_for(q, v), [torch.empty_like(p) for p in parameters]


attention.register_fake(_results)
attention.register_autograd(_backward, setup_context=_save)
_attention_backward.register_autograd(no_second_derivative)
