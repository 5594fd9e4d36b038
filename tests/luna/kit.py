"""Inputs, masks and measures that the tests of attentions share: those of luna.testing, at the
sizes of these tests.

Unless a test says otherwise: float64, evaluation mode, B = 2, H = 2, n = 64, d = 32, q, k, v from
N(0, 1) with a fixed seed; results are compared on valid rows, by the largest absolute difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import luna
from luna import Attention
from luna.sums import denominator
from luna.testing import cases
from luna.testing.cases import MASKS, difference
from luna.testing.memory import Sizes  # noqa: F401  # for the tests of single methods

B, H, N, D = 2, 2, 64, 32  # golden values are of these sizes; luna.testing has smaller ones
Definition = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # of q, k, v, mask


def build(
    name: str, *, n_heads: int = H, head_dim: int = D, max_len: int = 128, **options
) -> Attention:
    return luna.build(name, n_heads=n_heads, head_dim=head_dim, max_len=max_len, **options).eval()


def shaken(name: str, *, init: int = 0, **options) -> Attention:
    """In float64, parameters moved off their initial zeros and ones, so that none is forgotten."""
    torch.manual_seed(init)
    return cases.shaken(build(name, **options))


def qkv(
    batch: int = B, heads: int = H, n: int = N, d: int = D, *, d_v: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    return cases.qkv(batch, heads, n, d, d_v=d_v, seed=seed)


def mask_of(kind: str, batch: int = B, n: int = N) -> Tensor:
    return cases.mask_of(kind, n, batch)


def wave(shape: tuple[int, ...], shift: float, scale: float = 1.0) -> Tensor:
    """Numbers that every machine makes alike: inputs of golden values."""
    steps = torch.arange(math.prod(shape), dtype=torch.float64)
    return scale * torch.sin(0.1 * steps + shift).reshape(shape)


def assert_golden(
    out: Tensor,
    first: Sequence[float],
    total: float,
    sizes: float = 0.0,
    *,
    close: float = 1e-6,
) -> None:
    """Hold the first values, the sum of all, and (if given) that of their sizes, to a golden."""
    expected = torch.tensor(first, dtype=torch.float64)
    found = out.detach().flatten()
    torch.testing.assert_close(found[: len(first)], expected, rtol=0, atol=close)
    assert abs(found.sum() - total) < 10 * close
    assert not sizes or abs(found.abs().sum() - sizes) < 10 * close


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
