"""Informer: which queries are active, what the others get, and what the mask does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import luna

from ..kit import MASKS, N, Sizes, build, difference, mask_of, qkv, softmax_attention

PROFILES = ("strict", "published")


def table(rows: int, U: int, high: int = N, seed: int = 3) -> Tensor:
    return torch.randint(high, (rows, U), generator=torch.Generator().manual_seed(seed))


def measure(q: Tensor, k: Tensor, samples: Tensor, divisor: int) -> Tensor:
    """max_j s_ij - (1 / divisor) sum_j s_ij over the sampled keys, entry by entry."""
    B, H, n, _ = q.shape
    M = q.new_zeros(B, H, n)
    for i in range(n):
        s = (q[:, :, i, None] * k[:, :, samples[i]]).sum(-1)
        M[:, :, i] = s.amax(-1) - s.sum(-1) / divisor
    return M


def active_rows(M: Tensor, u: int) -> Tensor:
    return (M.sort(-1, descending=True).values[..., u - 1 : u] <= M).unsqueeze(-1)


def unmasked(q: Tensor, k: Tensor, v: Tensor, active: Tensor) -> Tensor:
    return torch.where(active, softmax_attention(q, k, v), v.mean(2, keepdim=True))


@pytest.mark.parametrize(("n", "c", "U"), [(1024, 19, 133), (2048, 17, 136), (4096, 16, 144)])
def test_budget_at_the_lengths_of_the_arena(n: int, c: int, U: int):
    assert c * math.ceil(math.log(n)) == U
    for profile in ("strict", "published"):
        assert build("informer", max_len=n, profile=profile).count(n) == U
    strict, published = (build("informer", max_len=4096, profile=p) for p in PROFILES)
    assert strict.count(1000) == 144  # whatever the batch is padded to
    assert [published.count(n) for n in (1000, 100, 50)] == [16 * 7, 16 * 5, 50]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("profile", ["strict", "published"])
def test_n_minus_u_rows_are_the_mean_and_u_rows_are_softmax(kind: str, profile: str):
    q, k, v = qkv()
    mask = mask_of(kind)
    attention = build("informer", budget=12, profile=profile)
    u = attention.count(N)
    assert 10 < u < 20
    out = attention(q, k, v, mask)
    seen = mask if profile == "strict" else torch.ones_like(mask)
    mean = (seen[:, None, :, None] * v).sum(2, keepdim=True) / seen.sum(-1)[:, None, None, None]
    is_mean = (out - mean).abs().amax(-1) < 1e-12
    is_softmax = (out - softmax_attention(q, k, v, seen)).abs().amax(-1) < 1e-12
    real = seen[:, None].expand_as(is_mean)
    assert ((is_mean ^ is_softmax) | ~real).all()
    assert ((is_softmax & real).sum(-1) == u).all()
    assert ((is_mean & real).sum(-1) == real.sum(-1) - u).all()


def test_the_divisor_changes_the_ranking():
    """n in the public code, U for a mean."""
    q, k, v = qkv()
    samples = table(N, 15)
    outputs = {}
    for profile, divisor in (("strict", 15), ("published", N)):
        attention = build("informer", budget=12, profile=profile)
        attention.samples = samples
        active = active_rows(measure(q, k, samples, divisor), attention.count(N))
        outputs[profile] = attention(q, k, v)
        assert difference(outputs[profile], unmasked(q, k, v, active)) < 1e-12
    assert difference(outputs["strict"], outputs["published"]) > 0.01


def test_strict_samples_are_valid_keys_and_uniform():
    attention = build("informer", budget=12, max_len=128)
    mask = torch.arange(64) % 3 != 0
    real = mask.view(1, 1, 64, 1)
    draw = torch.rand(2000, 50, generator=torch.Generator().manual_seed(0))
    at = attention._positions(draw, real, attention._valid_first(real))
    share = torch.bincount(at.flatten(), minlength=64) / at.numel()
    assert not share[~mask].any()
    assert (share[mask] * mask.sum() - 1).abs().max() < 0.15
    top = attention._positions(torch.full((1, 1), 1 - 2**-24), real, attention._valid_first(real))
    assert top.item() == 62  # the last valid one: a product that rounds up stays in range


@pytest.mark.parametrize("kind", MASKS)
def test_sampled_keys_are_gathered_a_part_at_a_time(kind: str, monkeypatch):
    q, k, v = (t.requires_grad_() for t in qkv())
    mask = mask_of(kind)
    attention = build("informer", budget=12)
    whole = attention(q, k, v, mask)
    one_query = 2 * 2 * attention.count(N) * 32
    for limit in (1, 5 * one_query, 7 * one_query):
        monkeypatch.setattr("luna.attention.informer.GATHERED", limit)
        with Sizes() as sizes:
            out = attention(q, k, v, mask)
            out.square().sum().backward()
        assert difference(out, whole) < 1e-12
        assert sizes.largest <= max(limit, 2 * 2 * N * 32)
    assert luna.get("informer").declared.linear_in_n
