"""LUNA's attention in one operator that never stores features (n x M L).

    q, k (B, H, n, d)   v (B, H, n, e)   mask (B, n) bool or None
    W (G, M, d), bias (G, M)             projections; G = 1, or H with parameters per head
    e, f, a, g                           the scalar MLPs, as in luna/kernels/scalar_mlp
    nonneg                               what their outputs go through: OUTPUTS there

Returns o = N / c (B, H, n, e), 0 at padding, and the sums of weights c (B, H, n), which carry no
gradient. With `divided=False` it returns the weighted sums of values N in place of o, in float32 or
float64, for those who divide by something else. With `absolute=True` c are the sums of
|phi(q_i)| . |phi(k_j)|, for features of both signs.
README.md beside this file explains how; the definition is `luna.attention.luna.Listing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from luna.base import LunaError
from luna.kernels import checked, cpu
from luna.kernels.checked import on_gpu
from luna.kernels.luna_attention.operator import attend, check_tensors
from luna.kernels.luna_attention.reference import plain
from luna.kernels.scalar_mlp import OUTPUTS, SLOPES, Activation, Nonneg, at_least_single
from luna.kernels.scalar_mlp.operator import check_mlps, tables

STATE = 8192  # numbers of S at most on a GPU: above, registers spill by the kilobyte


def on_cpu(device: str) -> bool:
    return device == "cpu" and cpu.AVAILABLE


def is_default(device: str) -> bool:
    """Say whether evaluate=auto takes the kernels on a type of device."""
    return on_cpu(device) or (on_gpu(device) and "fused" not in checked.LEFT_OUT)


def check(device: str) -> None:
    """Refuse a type of device without kernels; meta, which has shapes only, needs none."""
    if device == "meta" or on_gpu(device) or on_cpu(device):
        return
    if device not in ("cpu", "cuda"):
        raise LunaError(f"there is no fused attention for {device}: use evaluate='auto'")
    package, extra = ("numba", "fast") if device == "cpu" else ("triton", "triton")
    needs = f"{package}: pip install 'luna-lra[{extra}]'"
    raise LunaError(f"the fused attention on {device} needs {needs}")


def luna_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    W: Tensor,
    bias: Tensor,
    *mlps: Tensor,
    activation: Activation = "relu",
    nonneg: Nonneg = True,
    causal: bool = False,
    eps: float = 1e-6,
    divided: bool = True,
    absolute: bool = False,
    compare: bool = False,
) -> tuple[Tensor, Tensor]:
    """Every query sees every real key, or if `causal` those not after it. q, k, v in one dtype;
    half precision is computed in float32 and o returned in it.

    Where there is no kernel, features are computed: on GPUs for float64 and for M L e > 8192, on
    CPUs for causal attention inside torch.compile. With `compare` they are computed on a GPU too
    where its kernels differ from the reference.
    """
    if activation not in SLOPES:
        raise LunaError(f"the fused attention needs {' or '.join(SLOPES)}, not '{activation}'")
    check(q.device.type)
    check_mlps(len(W), *mlps)
    real = q.new_ones(*q.shape[:-3], *q.shape[-2:-1], dtype=torch.bool) if mask is None else mask
    check_tensors(q, k, v, real, W, bias)

    # In the precision of the computation; kernels for GPUs read half precision as it stands.
    dtype = v.dtype
    inside = torch.float64 if dtype == torch.float64 else torch.float32
    parameters = W.to(inside), bias.to(inside), *(at_least_single(t) for t in mlps)
    gpu = on_gpu(q.device.type)
    if not gpu:
        q, k, v = q.to(inside), k.to(inside), v.to(inside)

    # Features where there is no kernel, or where it is found to be wrong.
    options: dict[str, Any] = {
        "activation": activation,
        "nonneg": nonneg,
        "causal": causal,
        "eps": eps,
        "divided": divided,
        "absolute": absolute and not nonneg,  # no other output is below 0
    }
    takes = _kernels_take(q, v, parameters, causal)
    if takes and compare and gpu:
        takes = _kernels_are_right(q, k, v, real, *parameters, **options)
    if not takes:
        out, c = plain(q.to(inside), k.to(inside), v.to(inside), mask, *parameters, **options)
        return out.to(dtype) if divided else out, c

    kernels = _causal_on_cpu if causal and not gpu else _by_kernels
    out, c = kernels(q, k, v, mask, real, *parameters, **options)
    return out.to(dtype) if divided else out, c


def _by_kernels(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    real: Tensor,
    *parameters: Tensor,
    activation: Activation,
    nonneg: Nonneg,
    causal: bool,
    eps: float,
    divided: bool,
    absolute: bool,
) -> tuple[Tensor, Tensor]:
    output = list(OUTPUTS).index(nonneg)
    maps = _tables(parameters, activation)
    out, c, _, _ = attend(q, k, v, real, *maps, causal, output, eps, divided, absolute)
    return out, c


def _causal_on_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    real: Tensor,
    *parameters: Tensor,
    activation: Activation,
    causal: bool,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    from luna.kernels.luna_attention.causal_on_cpu import causal_attention

    return causal_attention(q, k, v, mask, *_tables(parameters, activation), **options)


def _tables(parameters: Sequence[Tensor], activation: Activation) -> tuple[Tensor, ...]:
    """W, bias, and the scalar MLPs as keys and a table of lines."""
    W, bias, e, f, a, g = parameters
    return W, bias, *tables(e, f, a, g, SLOPES[activation], W.dtype)


def _kernels_take(q: Tensor, v: Tensor, parameters: Sequence[Tensor], causal: bool) -> bool:
    """Say whether there are kernels for these tensors; see `luna_attention` for where not."""
    device = q.device.type
    if on_gpu(device):
        W, *_, g = parameters
        state = W.shape[1] * g.shape[1] * v.shape[3]
        return device != "cuda" or (W.dtype != torch.float64 and state <= STATE)
    return not (causal and on_cpu(device) and torch.compiler.is_compiling())


def _kernels_are_right(*tensors: Tensor, **options: Any) -> bool:
    def kernels(*tensors: Tensor) -> Tensor:
        return luna_attention(*tensors, **options)[0][-1:]

    def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
        """The last example alone, because features take memory."""
        last = (t[-1:] for t in (q, k, v, mask))
        return plain(*last, *parameters, evaluate="piecewise", **options)[0]

    return checked.is_right("fused", kernels, reference, tensors, *options.values())
