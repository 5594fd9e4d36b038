"""Linformer: keys and values projected along the sequence to k rows (Linformer, eq. 7).

    K' = E (mask k)        V' = F (mask v)        out = softmax(q K'^T / sqrt(d)) V'

E and F are (k, max_len), their first n columns used: the method is tied to positions. Padding is
zeroed before the projection and the k projected rows are not masked, so with E = I a padded key
still gets the weight exp(0). The settings of the public codes are presets of
configs/attention/linformer.yaml (lucidrains': k=256 share=heads init=uniform).

`published`  Skyformer's code: E stays as it was drawn, a tensor hidden from the optimiser
`official`   no mask at all
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from luna.base import (
    Attention,
    LunaError,
    Mask,
    Paper,
    Slot,
    at_least,
    positive,
    register,
    zero_padding,
)

Share = Literal["none", "kv", "heads", "heads_kv"]
Init = Literal["normal", "paper", "uniform", "xavier"]


def _uniform(E: Tensor, bound: float) -> Tensor:
    return nn.init.uniform_(E, -bound, bound)


INIT: dict[str, Callable[[Tensor, float], Tensor]] = {
    "normal": lambda E, std: nn.init.normal_(E, std=std),
    "paper": lambda E, std: nn.init.normal_(E, std=E.shape[-2] ** -0.5),
    "uniform": lambda E, std: _uniform(E, E.shape[-2] ** -0.5),
    "xavier": lambda E, std: _uniform(E, math.sqrt(6 / sum(E.shape[-2:]))),  # of one (k, max_len)
}


@register("linformer")
class Linformer(Attention):
    title = "Linformer"
    family = "low rank"
    marker = "s"
    paper = Paper(
        "Linformer: Self-Attention with Linear Complexity", 2020, "https://arxiv.org/abs/2006.04768"
    )
    complexity = "O(n k d)"
    profiles = ("strict", "published", "official")
    declared = Attention.declared.but(
        holes_are_time=True,
        row_stochastic=False,  # the rows of F do not sum to 1
        convex=False,
        equivariant=False,
        cross_form=True,
        bound_to_max_len=True,
    )

    E: Tensor  # (H or 1, k, max_len); F is the values' own, where it is not E
    F: Tensor

    def __init__(
        self,
        slot: Slot,
        *,
        k: int = 128,
        share: Share = "kv",
        share_layers: bool = False,
        init: Init = "normal",
        init_std: float = 0.02,
        trained: bool | None = None,
    ):
        super().__init__(slot)
        at_least("linformer", 1, k=k)
        positive("linformer", init_std=init_std)
        self.trained = self.profile != "published" if trained is None else trained
        self.one_projection = share in ("kv", "heads_kv")  # E = F
        self._untied = share_layers  # until tie() is called

        heads = 1 if share in ("heads", "heads_kv") else self.n_heads
        for name in ("E",) if self.one_projection else ("E", "F"):
            projection = INIT[init](torch.empty(heads, k, self.max_len), init_std)
            if self.trained:
                self.register_parameter(name, nn.Parameter(projection))
            else:  # in the checkpoint all the same: a resumed run must keep its projection
                self.register_buffer(name, projection)

    def tie(self, first: Attention) -> None:
        if self._untied:
            assert isinstance(first, Linformer)
            self.E = first.E
            if not self.one_projection:
                self.F = first.F
            self._untied = False

    def projections(self, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """E and F cut to n columns, each (H or 1, k, n)."""
        if self._untied:
            raise LunaError(
                "linformer.share_layers=true needs a backbone that calls tie(first) on every layer"
            )
        E = self.E[..., :n].to(dtype)
        return E, E if self.one_projection else self.F[..., :n].to(dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.profile == "published":  # under strict they are 0 already; official reads them
            k, v = zero_padding(k, mask), zero_padding(v, mask)
        E, F = self.projections(k.shape[-2], q.dtype)
        K, V = E @ k, F @ v  # (B, H, k, d), (B, H, k, e)
        scores = (q * self.head_dim**-0.5) @ K.mT  # (B, H, n, k)
        return scores.softmax(-1) @ V

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        E, F = self.projections(k.shape[-2], q.dtype)
        if mask is not None and self.profile != "official":
            E, F = (t * mask[:, None, None, :] for t in (E, F))  # (B, H or 1, k, n)
        K = torch.einsum("...rj,...jd->...rd", E, k)
        weights = torch.einsum("bhid,bhrd->bhir", q, K) / math.sqrt(self.head_dim)
        weights = (weights - weights.amax(-1, keepdim=True)).exp()
        return (weights / weights.sum(-1, keepdim=True)) @ F
