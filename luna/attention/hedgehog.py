"""Hedgehog: learned exponential features of both signs.

    y = W x + b, W and b per head, one map for queries and one for keys

    exp             [exp(y), exp(-y)]                     the paper's formula
    softmax_split   [softmax(y), softmax(-y)], >= 1e-12   HazyResearch/lolcats
    softmax_joint   softmax([2y, -2y])                    fla-org/flash-linear-attention

These are three different functions. `exp` is stabilised exactly: a constant per query, and one per
example and head for the keys; a constant per key, as public code has it, would change the
attention. The public stable form is therefore not offered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from luna.base import LunaError, Mask, Paper, Slot, at_least, register
from luna.feature_maps.headwise import HeadwiseLinear
from luna.weighted import TINY, WeightedKernelAttention

FLOOR = 1e-12


def softmax_split(y: Tensor) -> Tensor:
    return torch.cat([y.softmax(-1), (-y).softmax(-1)], dim=-1).clamp_min(FLOOR)


def softmax_joint(y: Tensor) -> Tensor:
    return torch.cat([2 * y, -2 * y], dim=-1).softmax(-1)


def scaled_exp(y: Tensor) -> tuple[Tensor, Tensor]:
    """[exp(y), exp(-y)] = e^a phi with phi <= 1: (phi (..., 2d'), a (...))."""
    a = y.abs().amax(-1)
    return (torch.cat([y, -y], dim=-1) - a.unsqueeze(-1)).exp(), a


BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax_split": softmax_split,
    "softmax_joint": softmax_joint,
}


@register("hedgehog")
class Hedgehog(WeightedKernelAttention):
    title = "Hedgehog"
    family = "learned kernels"
    marker = "^"
    paper = Paper(
        "The Hedgehog & the Porcupine: Expressive Linear Attentions with Softmax Mimicry",
        2024,
        "https://arxiv.org/abs/2402.04347",
    )
    complexity = "O(n d' (d + e))"

    def __init__(
        self,
        slot: Slot,
        *,
        normalisation: Literal["exp", "softmax_split", "softmax_joint"] = "softmax_split",
        d_out: int | None = None,
        init: Literal["identity", "kaiming"] = "identity",
        bias: bool = True,
        share_heads: bool = False,
        tie_qk: bool = False,
    ):
        super().__init__(slot, eps=TINY)
        d_out = slot.head_dim if d_out is None else d_out
        at_least("hedgehog", 1, d_out=d_out)
        if init == "identity" and d_out != slot.head_dim:
            raise LunaError(
                f"hedgehog.init='identity' needs d_out = head_dim = {slot.head_dim}, got {d_out}; "
                "use init='kaiming'"
            )
        self.bounded = BOUNDED.get(normalisation)
        self.weighted = self.bounded is None
        self.tokenwise = not self.weighted
        self.feature_dim = 2 * d_out

        maps = 1 if share_heads else slot.n_heads
        self.map_q = HeadwiseLinear(maps, slot.head_dim, d_out, bias=bias)
        self.map_k = self.map_q if tie_qk else HeadwiseLinear(maps, slot.head_dim, d_out, bias=bias)
        for each in (self.map_q, self.map_k):
            _initialise(each, init)

    def phi_q(self, q: Tensor, mask: Mask, start: int = 0) -> Tensor:
        y = self.map_q(q)
        return self.bounded(y) if self.bounded else scaled_exp(y)[0]

    def phi_k(self, k: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.bounded(self.map_k(k)) if self.bounded else super().phi_k(k, mask, start)

    def weigh(self, k: Tensor) -> tuple[Tensor, Tensor]:
        return scaled_exp(self.map_k(k))


def _initialise(linear: HeadwiseLinear, init: str) -> None:
    if init == "identity":
        for weight in linear.weight:
            nn.init.eye_(weight)
    else:  # lolcats: Kaiming-uniform on the 3-d tensor, whose fan-in is d d'
        bound = (6 / (linear.d_in * linear.d_out)) ** 0.5
        nn.init.uniform_(linear.weight, -bound, bound)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
