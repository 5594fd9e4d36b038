"""Inputs, masks and measures that the tests of attentions share.

Unless a test says otherwise: float64, evaluation mode, B = 2, H = 2, n = 64, d = 32, q, k, v from
N(0, 1) with a fixed seed; results are compared on valid rows, by the largest absolute difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import luna
from luna import Attention
from luna.sums import denominator
from luna.testing.memory import Sizes  # noqa: F401  # for the tests of single methods

B, H, N, D = 2, 2, 64, 32
MASKS = ("full", "prefix", "scatter")
Definition = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # of q, k, v, mask


def build(
    name: str, *, n_heads: int = H, head_dim: int = D, max_len: int = 128, **options
) -> Attention:
    return luna.build(name, n_heads=n_heads, head_dim=head_dim, max_len=max_len, **options).eval()


def shaken(name: str, *, init: int = 0, **options) -> Attention:
    """In float64, parameters moved off their initial zeros and ones, so that none is forgotten."""
    torch.manual_seed(init)
    attention = build(name, **options).double()
    with torch.no_grad():
        for p in attention.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return attention


def qkv(
    batch: int = B, heads: int = H, n: int = N, d: int = D, *, d_v: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(batch, heads, n, width, generator=generator, dtype=torch.float64)
        for width in (d, d, d_v or d)
    )
    return q, k, v


def mask_of(kind: str, batch: int = B, n: int = N) -> Tensor:
    """full; prefix, 50 and 40 tokens of 64 in turn; scatter, every third token masked."""
    position = torch.arange(n).expand(batch, n)
    if kind == "full":
        return torch.ones(batch, n, dtype=torch.bool)
    if kind == "scatter":
        return position % 3 != 0
    real = torch.tensor([n * (50, 40)[b % 2] // 64 for b in range(batch)])
    return position < real[:, None]


def extend(extra: int, mask: Tensor, *tensors: Tensor, value: float | None = None) -> list[Tensor]:
    """Append `extra` masked tokens of garbage, or of `value`: the mask first, then the tensors."""
    generator = torch.Generator().manual_seed(99)
    longer = [torch.cat([mask, mask.new_zeros(mask.shape[0], extra)], 1)]
    for t in tensors:
        shape = (*t.shape[:2], extra, t.shape[3])
        garbage = 10 * torch.randn(shape, generator=generator, dtype=t.dtype)
        longer.append(torch.cat([t, garbage if value is None else garbage.fill_(value)], 2))
    return longer


def difference(a: Tensor, b: Tensor, mask: Tensor | None = None) -> float:
    """Largest absolute difference on valid rows; NaN counts as infinite."""
    gap = (a - b).detach().abs().nan_to_num(nan=float("inf"))
    return float(gap.max() if mask is None else gap.masked_fill(~mask[:, None, :, None], 0).max())


def normalised(sums: Sequence[Tensor], *, eps: float = 1e-6, signed: bool = False) -> Tensor:
    """o = N / den(c) of the sums that luna/linear.py returns."""
    N, c = sums
    return N / denominator(c, eps, signed).unsqueeze(-1)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The dense definition, with a boolean key mask."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
    return scores.softmax(-1) @ v


def averaged(A: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
    """Averages of the valid values (if causal, of no later ones) by weights A (B, H, n, n)."""
    A = A if mask is None else A * mask[:, None, None, :]
    A = A.tril() if causal else A
    return A / A.sum(-1, keepdim=True).clamp_min(1e-30) @ v


def by_example(definition: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Definition:
    """What a definition without a mask gives to the valid tokens of each example alone."""

    def of_all(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        out = torch.zeros_like(v)
        for b, real in enumerate(mask):
            out[b][:, real] = definition(*(t[b : b + 1, :, real] for t in (q, k, v)))[0]
        return out

    return of_all


def assert_defined(
    attention: Attention,
    definition: Definition,
    *,
    masks: Sequence[str | None] = MASKS,
    n: int = N,
    d_v: int | None = None,
    close: float = 1e-10,
) -> None:
    """Hold an attention to its definition on valid rows. (Its matrix is held to it by the
    conformance suite.)"""
    q, k, v = qkv(n=n, d=attention.head_dim, d_v=d_v)
    for kind in masks:
        mask = None if kind is None else mask_of(kind, n=n)
        expected = definition(q, k, v, mask)
        size = max(1, float(expected.detach().abs().max()))
        assert difference(attention(q, k, v, mask), expected, mask) < close * size, kind
