"""phi(x) = elu(x) + 1, the map of `linear`: D = d and no parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.linear_triton.calls import Call
from luna.kernels.linear_triton.shape import FeatureMap, Shape, precisions, sizes_of


@triton.jit
def features(x, real, maps, g, s: tl.constexpr):
    """phi (BLOCK, D), 0 at padding, and its slope."""
    slope = tl.where(x > 0, 1.0, tl.exp(tl.where(x > 0, 0.0, x)))
    phi = tl.where(x > 0, x + 1, slope)
    columns = tl.arange(0, s.dP)
    live = real[:, None] & (columns < s.d)[None, :]
    return tl.where(live, phi, 0.0), (slope,)


@triton.jit
def begin(results, b, g, unit, sizes, s: tl.constexpr):
    return results, (0,)


@triton.jit
def backward(dphi, phi, kept, x, real, maps, results, sums, g, s: tl.constexpr):
    return tl.where(real[:, None], dphi * kept[0], 0.0), sums


@triton.jit
def end(results, unit, sums, s: tl.constexpr):
    pass


MAP = FeatureMap(features, begin, backward, end)


@functools.cache
def _shape(
    d: int, e: int, causal: bool, eps: float, divided: bool, double: bool, **precision: Any
) -> Shape:
    half = causal and precision["rounded"]
    widths = sizes_of(1, d, d, e, ordered=False, causal_in_half=half)  # D = dP
    options = {
        "groups": 1,
        "signed": False,
        "absolute": False,
        "causal": causal,
        "eps": eps,
        "divided": divided,
    }
    options |= {"dtype": tl.float64 if double else tl.float32, **precision}
    given = {name: tl.constexpr(value) for name, value in options.items()}
    return Shape(map=MAP, **widths, **given)


def call(
    q: Tensor,
    v: Tensor,
    parameters: Sequence[Tensor],
    causal: bool,
    eps: float,
    divided: bool,
    segment: int,
) -> Call:
    double = v.dtype == torch.float64
    shape = _shape(q.shape[3], v.shape[3], causal, eps, divided, double, **precisions(v))
    return Call(shape, q, v, (v,), segment)  # kernels take no empty tuple


def gradients(
    call: Call, parameters: Sequence[Tensor]
) -> tuple[tuple[tuple[Tensor, ...], ...], Callable[[], list[Tensor]]]:
    """What both passes leave of the parameters, and how it is added up: nothing."""
    nothing = (call.maps[0],)
    return (nothing, nothing), list
