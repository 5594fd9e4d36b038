"""T2R: one learned affine map and a relu, shared by queries and keys.

    phi(x) = relu(W x + b) in R^r, W and b per head

Trained first on the teacher's attention maps (`luna.convert.maps.attention_cross_entropy`,
Hedgehog's loss) it is the method called T2R-HH. A query whose features are all zero returns 0. The
public code (jungokasai/T2R) also multiplies the query, not the key, by d^(-1/2) before the map, and
keeps denominators above 1e-2 (`eps=1e-2`).
"""

from __future__ import annotations

from torch import Tensor

from luna.base import Mask, Paper, Slot, at_least, register
from luna.feature_maps.headwise import HeadwiseLinear
from luna.linear import KernelAttention


@register("t2r")
class T2R(KernelAttention):
    title = "T2R"
    family = "learned kernels"
    marker = "v"
    paper = Paper(
        "Finetuning Pretrained Transformers into RNNs", 2021, "https://arxiv.org/abs/2103.13076"
    )
    complexity = "O(n r (d + e))"
    tokenwise = True
    fused_map = "relu"

    def __init__(self, slot: Slot, *, r: int | None = None, eps: float = 1e-6):
        super().__init__(slot, eps=eps)
        at_least("t2r", 1, r=r)
        self.feature_dim = slot.head_dim if r is None else r
        self.map = HeadwiseLinear(slot.n_heads, slot.head_dim, self.feature_dim)

    def map_parameters(self) -> tuple[Tensor, ...]:
        assert self.map.bias is not None
        return self.map.weight, self.map.bias

    def phi(self, x: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.map(x).relu()
