"""T2R: one learned affine map and a relu, shared by queries and keys.

    phi(x) = relu(W x + b) in R^r, W and b per head

Trained first on the teacher's attention maps (`luna.convert.losses.attention_cross_entropy`,
Hedgehog's loss) it is the method called T2R-HH. A query whose features are all zero returns 0. The
public code (jungokasai/T2R) keeps denominators above 1e-2 (`eps=t2r_original`) and multiplies the
query, not the key, by d^(-1/2) before the map (`scale_q`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from luna.base import Paper, Slot, at_least, positive, register
from luna.feature_maps.headwise import HeadwiseLinear
from luna.linear import KernelAttention

T2R_ORIGINAL = 1e-2


@register("t2r")
class T2R(KernelAttention):
    paper = Paper(
        title="Finetuning Pretrained Transformers into RNNs",
        year=2021,
        url="https://arxiv.org/abs/2103.13076",
    )
    complexity: ClassVar[str] = "O(n r (d + e))"
    tokenwise = True

    def __init__(
        self,
        slot: Slot,
        *,
        r: int | None = None,
        eps: float | Literal["t2r_original"] = 1e-6,
        scale_q: bool = False,
    ):
        super().__init__(slot, eps=T2R_ORIGINAL if eps == "t2r_original" else eps)
        at_least("t2r", 1, r=r)
        positive("t2r", eps=self.eps)
        self.feature_dim = slot.head_dim if r is None else r
        self.scale_q = scale_q
        self.map = HeadwiseLinear(slot.n_heads, slot.head_dim, self.feature_dim)

    def phi(self, x: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        return self.map(x).relu()

    def phi_q(self, q: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        return self.phi(q * self.head_dim**-0.5 if self.scale_q else q, mask, start)
