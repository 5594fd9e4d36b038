"""Linear attention with a small feature map in one operator, which stores no features.

    q, k (B, H, n, d)   v (B, H, n, e)   mask (B, n) bool or None
    phi: one of PHI, of a token alone, the same for queries and keys; its parameters as it has them

Returns o = N / c (B, H, n, e), 0 at padding, and the sums of weights c (B, H, n), which carry no
gradient; with `divided=False` the weighted sums of values N in place of o, in float32. A new map is
a file like elu.py, a line in PHI and one in `operator.MAPS`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from luna.kernels import checked, cpu
from luna.kernels.checked import on_gpu
from luna.kernels.mapped.operator import attend
from luna.kernels.mapped.reference import PHI, plain

__all__ = ["PHI", "is_default", "mapped_attention", "takes"]

STATE = 8192  # numbers of S at most on a GPU: above, registers spill by the kilobyte


def is_default(name: str, device: str, *, causal: bool) -> bool:
    """Say whether the kernels are taken on a type of device: on a GPU none of them was found wrong;
    on a CPU there is machine code."""
    if on_gpu(device):
        return f"mapped {name}" not in checked.LEFT_OUT
    return device == "cpu" and cpu.AVAILABLE and not causal


def takes(q: Tensor) -> bool:
    """Say whether the kernels of q's device take its type: on a CPU float64 is for the definition,
    as something to hold them to."""
    return on_gpu(q.device.type) or q.dtype != torch.float64


def mapped_attention(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *parameters: Tensor,
    causal: bool,
    eps: float,
    divided: bool = True,
) -> tuple[Tensor, Tensor]:
    """Half precision is computed in float32 and o returned in it. On a GPU the first call with such
    shapes is compared with the definition, which is used where the kernels differ, for float64 and
    for D e > 8192."""
    dtype = v.dtype
    inside = torch.float64 if dtype == torch.float64 else torch.float32
    real = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool) if mask is None else mask
    options: dict[str, Any] = {"causal": causal, "eps": eps, "divided": divided}
    tensors = q, k, v, real, *(p.to(inside) for p in parameters)

    def kernels(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, real, *parameters = tensors
        out, c, _, _ = attend(q, k, v, real, parameters, name, causal, eps, divided)
        return out, c

    def reference(q: Tensor, k: Tensor, v: Tensor, real: Tensor, *p: Tensor) -> Tensor:
        """The last example alone, because features take memory."""
        return plain(name, *(t[-1:] for t in (q, k, v, real)), *p, **options)[0]

    if not on_gpu(q.device.type):
        q, k, v = q.to(inside), k.to(inside), v.to(inside)
        out, c = kernels(q, k, v, *tensors[3:])
        return out.to(dtype) if divided else out, c
    D = parameters[0].shape[1] if parameters else q.shape[3]
    fits = q.device.type != "cuda" or (dtype != torch.float64 and D * v.shape[3] <= STATE)
    if fits and checked.is_right(
        f"mapped {name}", lambda *t: kernels(*t)[0][-1:], reference, tensors, *options.values()
    ):
        out, c = kernels(*tensors)
    else:
        q, k, v = q.to(inside), k.to(inside), v.to(inside)
        out, c = plain(name, q, k, v, *tensors[3:], **options)
    return out.to(dtype) if divided else out, c
