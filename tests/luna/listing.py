"""The paper's listing (`luna.attention.luna.Listing`) on given weights, for comparison with what
computes the same faster. Gradients reach the weights that are given."""

from __future__ import annotations

import torch
from torch import Tensor

from luna.attention.luna import Listing, Luna
from luna.feature_maps.options import LunaOptions


def listing(
    W: Tensor,
    beta: Tensor,
    e: Tensor,
    f: Tensor,
    a: Tensor,
    g: Tensor,
    *,
    causal: bool = False,
    eps: float = 1e-6,
    **options,
) -> Listing:
    """W (M, d), beta (M), e and f (C, w), a (L, w), g (L): one group of the shapes that
    luna/kernels/scalar_mlp documents."""
    shared = len(e) < len(g)
    sizes = {"M": len(W), "L": len(g), "hidden": a.shape[1], "shared_channels": shared}
    with torch.device("meta"):
        module = Listing(W.shape[1], LunaOptions(**sizes, **options), causal=causal, eps=eps)
    _put(module, W=W, beta=beta)
    for l, (first, second) in enumerate(zip(module.first, module.second, strict=True)):
        rows = slice(None) if shared else slice(l, l + 1)
        _put(first, weight=e[l, :, None], bias=f[l])
        _put(second, weight=a[rows], bias=g[rows])
    return module


def _put(module: torch.nn.Module, **weights: Tensor) -> None:
    for name, weight in weights.items():
        assert module._parameters.pop(name).shape == weight.shape
        setattr(module, name, weight)


def by_listing(attention: Luna, *, group: int = 0, **options) -> Listing:
    """The listing with the parameters of LUNA's learned feature map; `options` in place of what
    the attention was built with."""
    projections, psi = attention.map.projections, attention.map.channels
    weights = (projections.weight, projections.bias, psi.e, psi.f, psi.a, psi.g)
    options = {"activation": psi.activation, "nonneg": psi.nonneg} | options
    return listing(
        *(w[group] for w in weights), causal=attention.causal, eps=attention.eps, **options
    )


def listed(attention: Luna, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """What attention(q, k, v, mask) must be, head by head where each head has a map of its own."""
    one_map = len(attention.map.projections.weight) == 1
    heads = [slice(None)] if one_map else [slice(h, h + 1) for h in range(q.shape[1])]
    parts = [
        by_listing(attention, group=g)(q[:, h], k[:, h], v[:, h], mask) for g, h in enumerate(heads)
    ]
    out = torch.cat(parts, 1)
    return out if mask is None else out.masked_fill(~mask[:, None, :, None], 0)


def channels(u: Tensor, *psi: Tensor, **options) -> Tensor:
    """The scalar MLPs e, f, a, g of every group: u (G, N) -> (G, N, L)."""
    none = u.new_zeros(1, 1), u.new_zeros(1)  # projections: `psi` has none
    groups = zip(u, *psi, strict=True)
    return torch.stack([listing(*none, *mlps, **options).psi(row) for row, *mlps in groups])
