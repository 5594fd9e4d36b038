"""Performer: the estimator, its projection, its redraws and its quirks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import luna
from luna.feature_maps.random import gaussian_projection
from luna.sums import linear_sums

from ..kit import build, difference, mask_of, normalised, qkv


def exponents(attention: luna.Attention, x: Tensor) -> Tensor:
    x = x * x.shape[-1] ** -0.25
    return x @ attention.Omega.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2


def test_orthogonal_blocks() -> None:
    d, m = 16, 40  # two blocks and a half
    generator = torch.Generator().manual_seed(0)
    Omega = gaussian_projection(m, d, generator, orthogonal=True)
    assert Omega.shape == (m, d)
    for block in Omega.split(d):
        gram = block @ block.mT
        assert (gram - gram.diagonal().diag()).abs().max() < 1e-6
    assert Omega.norm(dim=-1).std() > 0.3  # of a chi variable: about 0.7
    assert (Omega[:d] @ Omega[d : 2 * d].mT).abs().max() > 1  # blocks are independent


def test_rows_are_standard_normal() -> None:
    generator = torch.Generator().manual_seed(0)
    Omega = gaussian_projection(8 * 4000, 8, generator, orthogonal=True).view(4000, 8, 8)
    for moment, expected, spread in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
        error = 4.5 * math.sqrt(spread / 4000)  # of each entry's mean over 4000 blocks
        assert (Omega.pow(moment).mean(0) - expected).abs().max() < error


def test_features_are_the_formula() -> None:
    attention = build("performer", m=40, eps=1e-3)
    q, k, _ = qkv()
    mask = mask_of("scatter")
    phi_q, phi_k = attention.features(q, k, mask)
    s = exponents(attention, q)
    assert difference(phi_q, 40**-0.5 * ((s - s.amax(-1, keepdim=True)).exp() + 1e-3)) < 1e-12
    s = exponents(attention, k)
    top = s.masked_fill(~mask[:, None, :, None], -math.inf).amax((-2, -1), keepdim=True)
    assert difference(phi_k, 40**-0.5 * ((s - top).exp() + 1e-3), mask) < 1e-12
    assert (phi_k.masked_select(~mask[:, None, :, None]) == 0).all()


def test_published_is_the_harness() -> None:
    attention = build("performer", profile="published", m=24)
    q, k, v = qkv(d_v=7)
    mask = mask_of("prefix")
    real = mask[:, None, :, None]
    k_0, v_0 = k * real * 32**-0.25, v * real
    u = 32**-0.25 * (32**-0.25 * q) @ attention.Omega.double().mT
    norm = (32**-0.5 * q).square().sum(-1, keepdim=True) / 2
    phi_q = 24**-0.5 * ((u - norm - u.amax(-1, keepdim=True)).exp() + 1e-4)
    u = 32**-0.25 * k_0 @ attention.Omega.double().mT
    norm = (32**-0.25 * k_0).square().sum(-1, keepdim=True) / 2
    # The maximum is of the whole batch, and padded keys stay in the denominator.
    phi_k = 24**-0.5 * ((u - norm - u.max()).exp() + 1e-4)
    expected = normalised(linear_sums(phi_q, phi_k, v_0), eps=0.0)
    assert difference(attention(q, k, v, mask), expected) < 1e-12


def test_official_redraws_from_the_queries() -> None:
    attention = build("performer", profile="official", m=16)
    q, k, v = qkv()
    first = attention(q, k, v)
    Omega = attention.Omega
    attention(q + 0.1, k, v)
    assert not torch.equal(attention.Omega, Omega)
    assert torch.equal(attention(q, k, v), first)
    fixed = build("performer", profile="official", m=16, redraw=0)
    assert torch.equal(fixed(q, k, v), fixed(q, k, v))


@pytest.mark.parametrize(
    ("options", "steps"), [({"redraw": 3}, 3), ({}, 1000), ({"redraw": 0}, 2000)]
)
def test_redraws_by_optimiser_steps(options: dict, steps: int) -> None:
    attention = build("performer", m=2, **options).train()
    Omega = attention.Omega
    q, k, v = qkv(n=4)
    attention(q, k, v)
    for _ in range(steps - 1):
        attention.after_step()
    attention(q, k, v)
    assert torch.equal(attention.Omega, Omega)
    attention.after_step()
    assert torch.equal(attention.Omega, Omega) == (options == {"redraw": 0})


def test_official_attends_padding_and_lifts_denominators() -> None:
    attention = build("performer", profile="official", m=16)
    q, k, v = qkv()
    assert torch.equal(attention(q, k, v, mask_of("prefix")), attention(q, k, v))
    far = build("performer", profile="official", m=1, eps=0.0, head_dim=4)
    q, k, v = qkv(n=2, d=4)
    q = q * 40  # exp(-|q|^2 / 2) is left outside the stabiliser and underflows
    assert (far(q, k, torch.ones_like(v)) < 0.5).any()


def test_resumes_its_schedule() -> None:
    first = build("performer", redraw=3, seed=1)
    for _ in range(5):
        first.after_step()
    second = build("performer", redraw=3, seed=2)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.Omega, first.Omega)
    first.after_step()
    second.after_step()
    assert torch.equal(second.Omega, first.Omega)
    assert not torch.equal(second.Omega, build("performer", redraw=3, seed=1).Omega)
