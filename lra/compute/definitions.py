"""Modules that are counted by their mathematical definition, not by the work of their code.

A fast evaluation must not make a method look smaller than its mathematics, nor a blocked one
larger; and torch sees no product where a method contracts in the log domain. What the code executes
is counted too, and reported beside the definition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lra.compute.ops import SEVERAL, OpWork
from lra.model.rotary import Rotary
from luna.attention.informer import Informer
from luna.attention.longformer import Longformer
from luna.attention.lotformer import LOTFormer
from luna.feature_maps.learned import Channels


def channels(module: Channels, u: Tensor, *_: Any) -> OpWork:
    """LUNA's scalar MLPs as dense layers, whatever `evaluate` is. Per scalar and channel: linear
    layers 1 -> w and w -> 1; element-wise an activation per hidden unit, a bias and a relu per
    channel."""
    C, w = module.e.shape[1:]
    L = module.g.shape[1]
    flops = u.numel() * (2 * C * w + 2 * L * w)
    return OpWork(flops, module.flops(u.numel()) - flops)


def longformer(module: Longformer, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> OpWork:
    """Scores and softmax over the keys of each token's window; the code computes whole chunks and
    cuts the band out."""
    flops = len(q) * module.flops(q.shape[-2], v.shape[-1])
    scores = flops // (2 * (q.shape[-1] + v.shape[-1]))
    return OpWork(flops, SEVERAL["aten._softmax"] * scores)


def lotformer(module: LOTFormer, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> OpWork:
    """A half-step of Sinkhorn is a matrix-vector product in the log domain, 5 FLOPs per entry:
    without it the method's main cost would not count. The plans are element-wise, 8 per entry."""
    n = q.shape[-2]
    plans = 8 * n * module.R * module.n_heads
    return OpWork(len(q) * (module.flops(n, v.shape[-1]) - plans), len(q) * plans)


def informer(module: Informer, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> OpWork:
    """The sampled scores and the active rows. The code computes just these; the definition saves a
    search over settings from drawing n x U random numbers for each."""
    n, e = q.shape[-2], v.shape[-1]
    U, u = module.counts(n)
    means = module.n_heads * n * e
    elements = module.n_heads * n * (2 * U + SEVERAL["aten._softmax"] * min(u, n)) + means
    return OpWork(len(q) * (module.flops(n, e) - means), len(q) * elements)


def rotary(module: Rotary, x: Tensor, *_: Any) -> OpWork:
    """A product of each pair of channels with a 2 x 2 rotation: 4 FLOPs per channel. The code
    multiplies and adds element by element."""
    return OpWork(4 * x.numel())


DEFINITIONS: dict[type[nn.Module], Callable[..., OpWork]] = {
    Channels: channels,
    Longformer: longformer,
    LOTFormer: lotformer,
    Informer: informer,
    Rotary: rotary,
}
