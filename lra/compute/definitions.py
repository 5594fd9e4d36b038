"""Modules that are counted by what they compute and not by what their code does to compute it.

A fast evaluation must not make a method look smaller than its mathematics, nor a blocked one
larger; and where a method contracts in the log domain, torch sees no product at all. What the code
executes is counted as well, and reported beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lra.compute.ops import SEVERAL, Work
from luna.attention.informer import Informer
from luna.attention.longformer import Longformer
from luna.attention.lotformer import LOTFormer
from luna.feature_maps.learned import Channels


def channels(module: Channels, u: Tensor, *_: Any) -> Work:
    """LUNA's scalar MLPs as its listing has them, whatever `evaluate` is: for each scalar two
    linear layers, 1 -> w and w -> 1 a channel, and apart from these an activation of each hidden
    unit, a bias and a relu of each channel."""
    C, w = module.e.shape[1:]
    L = module.g.shape[1]
    flops = u.numel() * (2 * C * w + 2 * L * w)
    return Work(flops, module.flops(u.numel()) - flops)


def longformer(module: Longformer, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Work:
    """The keys of a token's window, with a softmax over them. The code cuts the band out of whole
    chunks."""
    flops = len(q) * module.flops(q.shape[-2], v.shape[-1])
    scores = flops // (2 * (q.shape[-1] + v.shape[-1]))
    return Work(flops, SEVERAL["aten._softmax"] * scores)


def lotformer(module: LOTFormer, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Work:
    """A half-step of Sinkhorn is a matrix-vector product in the log domain, 5 an entry: without it
    the method's main cost would be no FLOPs at all. The plans themselves are element-wise, 8 an
    entry."""
    n = q.shape[-2]
    plans = 8 * n * module.R * module.n_heads
    return Work(len(q) * (module.flops(n, v.shape[-1]) - plans), len(q) * plans)


def informer(module: Informer, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Work:
    """The sampled scores and the active rows. The code computes nothing else, but it draws n x U
    random numbers to do so, and a search over settings would draw them for each."""
    n, e = q.shape[-2], v.shape[-1]
    U, u = module.counts(n)
    means = module.n_heads * n * e
    elements = module.n_heads * n * (2 * U + SEVERAL["aten._softmax"] * min(u, n)) + means
    return Work(len(q) * (module.flops(n, e) - means), len(q) * elements)


DEFINITIONS: dict[type[nn.Module], Callable[..., Work]] = {
    Channels: channels,
    Longformer: longformer,
    LOTFormer: lotformer,
    Informer: informer,
}
