"""The linear Transformer (elu + 1) and the uniform control."""

from __future__ import annotations

import pytest
import torch

from ..kit import assert_defined, build, by_example, difference, mask_of, qkv


@pytest.mark.parametrize("profile", ["strict", "published", "official"])
def test_profiles_differ_in_the_denominator_and_the_mask(profile: str):
    """eps is a lower bound under strict and is added by the public codes, of which the official one
    ignores the mask."""

    def expected(q, k, v, mask):
        phi_q, phi_k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
        A = phi_q @ phi_k.mT
        A = A if profile == "official" else A * mask[:, None, None, :]
        c = A.sum(-1, keepdim=True)
        return A @ v / (c.clamp_min(3000) if profile == "strict" else c + 3000)

    assert_defined(build("linear", profile=profile, eps=3000.0), expected, d_v=5)


def test_by_default_hardly_anything_is_added():
    q, k, v = qkv()
    m = mask_of("prefix")
    strict, published = (build("linear", profile=p)(q, k, v, m) for p in ("strict", "published"))
    assert 0 < difference(published, strict, m) < 1e-6


def test_uniform_is_the_mean_of_the_valid_values():
    mean = by_example(lambda q, k, v: v.mean(2, keepdim=True).expand_as(v))
    assert_defined(build("uniform"), mean, d_v=7)
    q, k, v = qkv(d_v=7)
    for m in (None, mask_of("scatter")):
        assert torch.equal(build("uniform")(q, k, v, m), build("uniform")(3 * q, k + 1, v, m))
