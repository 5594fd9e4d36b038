"""cosFormer: the cosine identity and its horizon."""

from __future__ import annotations

import math

import pytest
import torch

import luna

from ..kit import assert_defined, averaged, build, difference, qkv


@pytest.mark.parametrize(("profile", "horizon"), [("strict", 128), ("published", 40)])
def test_weights_are_relus_times_a_cosine(profile: str, horizon: int) -> None:
    """Angles are shares of max_len under strict; in the public code of the padded length n = 40,
    where padding is attended to."""
    i = torch.arange(40, dtype=torch.float64)
    cosine = torch.cos(math.pi * (i[:, None] - i[None, :]) / (2 * horizon))

    def expected(q, k, v, mask):
        return averaged(q.relu() @ k.relu().mT * cosine, v, mask if profile == "strict" else None)

    assert_defined(build("cosformer", profile=profile), expected, n=40, d_v=5)


def test_features_have_no_other_scale() -> None:
    q, k, _ = qkv()
    phi_q, phi_k = build("cosformer").features(q, k, None)
    assert difference((phi_q @ phi_k.mT).diagonal(0, -2, -1), (q.relu() * k.relu()).sum(-1)) < 1e-12


def test_a_stream_knows_its_horizon() -> None:
    causal = build("cosformer", max_len=3, causal=True)
    q, k, v = qkv(n=4)
    state, _ = causal.steps(None, q[:, :, :3], k[:, :, :3], v[:, :, :3])
    with pytest.raises(luna.LunaError, match="3 positions and got 4"):
        causal.step(state, q[:, :, 3], k[:, :, 3], v[:, :, 3])
