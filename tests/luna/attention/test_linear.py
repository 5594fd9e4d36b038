"""The linear Transformer (elu + 1) and the uniform control."""

from __future__ import annotations

import pytest
import torch

from ..kit import MASKS, N, build, difference, mask_of, qkv

PROFILES = ("strict", "published", "official")


def test_features_are_exponentials_below_0_and_shifted_above():
    q, k, v = qkv()
    phi_q, phi_k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
    kernel = phi_q @ phi_k.mT
    expected = kernel @ v / kernel.sum(-1, keepdim=True)
    assert difference(build("linear")(q, k, v), expected) < 1e-10


def test_profiles_differ_in_the_denominator_only_without_a_mask():
    """eps is a lower bound under strict and is added by the public codes."""
    q, k, v = qkv()
    exact = build("linear", eps=1e-300)(q, k, v)
    for profile in PROFILES:
        attention = build("linear", profile=profile, eps=0.5)
        phi_q, phi_k = attention.features(q, k, None)
        c = (phi_q @ phi_k.sum(2, keepdim=True).mT).clamp_min(1e-300)
        den = c.clamp_min(0.5) if profile == "strict" else c + 0.5
        assert difference(attention(q, k, v), exact * c / den) < 1e-10


@pytest.mark.parametrize("kind", ["prefix", "scatter"])
def test_official_ignores_the_mask(kind: str):
    q, k, v = qkv()
    m = mask_of(kind)
    attention = build("linear", profile="official")
    assert difference(attention(q, k, v, m), attention(q, k, v)) == 0
    published = build("linear", profile="published")
    assert difference(published(q, k, v, m), build("linear")(q, k, v, m), m) < 1e-6
    assert difference(published(q, k, v, m), published(q, k, v), m) > 1e-3


@pytest.mark.parametrize("kind", MASKS)
def test_uniform_is_the_mean_of_the_valid_values(kind: str):
    q, k, v = qkv(d_v=7)
    m = mask_of(kind)
    out = build("uniform")(q, k, v, m)
    for b in range(2):
        mean = sum(v[b, :, j] for j in range(N) if m[b, j]) / m[b].sum()
        expected = mean.unsqueeze(1).expand(-1, N, -1) * m[b, :, None]
        assert difference(out[b], expected) < 1e-12
    assert torch.equal(out, build("uniform")(3 * q, k + 1, v, m))
