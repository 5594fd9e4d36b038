"""LUNA's attention in one operator that never stores features (n x M L).

    q, k (B, H, n, d)   v (B, H, n, e)   mask (B, n) bool or None
    W (G, M, d), bias (G, M)             projections; G = 1, or H with parameters per head
    e, f, a, g                           the scalar MLPs, as in luna/kernels/scalar_mlp
    nonneg                               what their outputs go through: OUTPUTS there

Returns o (B, H, n, e), 0 at padding, and the sums of weights c (B, H, n), which carry no gradient.
README.md beside this file explains how; the definition is `luna.attention.luna.Listing`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from luna.base import LunaError
from luna.kernels import checked, cpu
from luna.kernels.checked import on_gpu
from luna.kernels.luna_attention.reference import plain
from luna.kernels.luna_attention.segments import STATE
from luna.kernels.scalar_mlp import OUTPUTS, SLOPES, Activation, Nonneg, at_least_single
from luna.kernels.scalar_mlp.piecewise import check_mlps, tables


def on_cpu(device: str) -> bool:
    return device == "cpu" and cpu.AVAILABLE


def is_default(device: str) -> bool:
    """Whether evaluate=auto takes the kernels on a type of device."""
    return on_cpu(device) or (on_gpu(device) and "fused" not in checked.LEFT_OUT)


def check(device: str) -> None:
    """Refuse a type of device without kernels; meta, which has shapes only, needs none."""
    if device == "meta" or on_gpu(device) or on_cpu(device):
        return
    needs = {
        "cpu": "numba: pip install 'luna-lra[fast]'",
        "cuda": "triton: pip install 'luna-lra[triton]' on Linux",
    }
    raise LunaError(
        f"the fused attention on {device} needs {needs[device]}"
        if device in needs
        else f"there is no fused attention for {device}: use evaluate='auto'"
    )


def luna_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    W: Tensor,
    bias: Tensor,
    e: Tensor,
    f: Tensor,
    a: Tensor,
    g: Tensor,
    *,
    activation: Activation = "relu",
    nonneg: Nonneg = True,
    causal: bool = False,
    eps: float = 1e-6,
    compare: bool = False,
) -> tuple[Tensor, Tensor]:
    """Every query sees every real key, or if `causal` those not after it. q, k, v in one dtype;
    half precision is computed in float32 and o returned in it.

    Where there is no kernel, features are computed: on GPUs for float64 and for M L e > 8192, on
    CPUs for causal attention inside torch.compile. With `compare` they are computed on a GPU too
    where its kernels differ from the reference.
    """
    device, dtype = q.device.type, v.dtype
    if activation not in SLOPES:
        raise LunaError(f"the fused attention needs {' or '.join(SLOPES)}, not '{activation}'")
    check(device)
    inside = torch.float64 if dtype == torch.float64 else torch.float32
    W, bias = W.to(inside), bias.to(inside)
    blocks = causal and on_cpu(device) and not on_gpu(device)
    too_large = W.shape[1] * g.shape[1] * v.shape[3] > STATE
    no_kernel = device == "cuda" and (inside == torch.float64 or too_large)
    no_kernel = no_kernel or (blocks and torch.compiler.is_compiling())
    check_mlps(len(W), e, f, a, g)
    e, f, a, g = (at_least_single(t) for t in (e, f, a, g))
    parameters = W, bias, e, f, a, g
    options: dict[str, Any] = {"nonneg": nonneg, "causal": causal, "eps": eps}
    options["activation"] = activation
    if compare and on_gpu(device) and not no_kernel:
        no_kernel = not _kernels_are_right(q, k, v, mask, *parameters, **options)
    if no_kernel:
        q, k, v = q.to(inside), k.to(inside), v.to(inside)
        out, c = plain(q, k, v, mask, *parameters, **options)
        return out.to(dtype), c

    make_tables = tables
    if not on_gpu(device):  # whose kernels read half precision as it stands
        q, k, v = q.to(inside), k.to(inside), v.to(inside)
        if device == "cpu":
            from luna.kernels.scalar_mlp.compiled import compiled_tables as make_tables
    maps = W, bias, *make_tables(e, f, a, g, SLOPES[activation], inside)
    if blocks:
        from luna.kernels.luna_attention.host import causal_attention

        out, c = causal_attention(q, k, v, mask, *maps, nonneg=nonneg, eps=eps)
    else:
        from luna.kernels.luna_attention.operator import attention

        output = list(OUTPUTS).index(nonneg)
        out, c, _, _ = attention(q, k, v, _marks(q, mask), *maps, causal, output, eps)
    return out.to(dtype), c


def _marks(q: Tensor, mask: Tensor | None) -> Tensor:
    return q.new_ones(len(q), q.shape[2], dtype=torch.bool) if mask is None else mask


def _kernels_are_right(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *parameters: Tensor, **options: Any
) -> bool:
    def kernels(*tensors: Tensor) -> Tensor:
        return luna_attention(*tensors, **options)[0][-1:]

    def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
        """The last example alone, because features take memory."""
        last = (t[-1:] for t in (q, k, v, mask))
        return plain(*last, *parameters, evaluate="piecewise", **options)[0]

    tensors = q, k, v, _marks(q, mask), *parameters
    return checked.is_right("fused", kernels, reference, tensors, *options.values())
