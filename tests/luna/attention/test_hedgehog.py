"""Hedgehog: its three feature maps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ..kit import assert_defined, averaged, build, difference, qkv


def cosh(q: Tensor, k: Tensor) -> Tensor:
    return 2 * torch.cosh(q.unsqueeze(3) + k.unsqueeze(2)).sum(-1)  # (B, H, n, n)


def test_cosh_at_init() -> None:
    attention = build("hedgehog", normalisation="exp")
    assert_defined(attention, lambda q, k, v, mask: averaged(cosh(q, k), v, mask), d_v=5)
    q, k, _ = qkv()
    phi_q, (phi_k, a) = attention.phi_q(q, None), attention.weigh(k)
    constants = q.abs().amax(-1).unsqueeze(-1) + a.unsqueeze(-2)
    ratio = (phi_q @ phi_k.mT) * constants.exp() / cosh(q, k)
    assert difference(ratio, torch.ones_like(ratio)) < 1e-12


def test_softmax_split_is_two_softmaxes_with_a_floor() -> None:
    attention = build("hedgehog")
    q, k, _ = qkv()
    phi_q, phi_k = attention.features(q, k, None)
    assert difference(phi_q, torch.cat([q.softmax(-1), (-q).softmax(-1)], -1)) < 1e-12
    assert difference(phi_k, torch.cat([k.softmax(-1), (-k).softmax(-1)], -1)) < 1e-12
    assert attention.features(100 * q, k, None)[0].min() == 1e-12


def test_softmax_joint_is_a_ratio_of_exponentials() -> None:
    attention = build("hedgehog", normalisation="softmax_joint")
    q, k, _ = qkv()
    for phi, y in zip(attention.features(q, k, None), (q, k), strict=True):
        whole = 2 * torch.cosh(2 * y).sum(-1, keepdim=True)
        assert difference(phi, torch.cat([(2 * y).exp(), (-2 * y).exp()], -1) / whole) < 1e-12


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"tie_qk": True}, 2 * (32 * 32 + 32)),
        ({"share_heads": True}, 2 * (32 * 32 + 32)),
        ({"share_heads": True, "tie_qk": True, "bias": False}, 32 * 32),
        ({"d_out": 20, "init": "kaiming"}, 4 * (32 * 20 + 20)),
    ],
)
def test_sharing(options: dict, count: int) -> None:
    attention = build("hedgehog", **options)
    assert sum(p.numel() for p in attention.parameters()) == count
    if options.get("tie_qk"):
        q, _, _ = qkv()
        phi_q, phi_k = attention.features(q, q, None)
        assert torch.equal(phi_q, phi_k)


def test_kaiming_is_of_the_3d_tensor() -> None:
    torch.manual_seed(0)
    attention = build("hedgehog", init="kaiming", d_out=24)
    bound = math.sqrt(6 / (32 * 24))
    assert 0.98 * bound < attention.map_q.weight.abs().max() <= bound
    assert attention.map_q.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not torch.equal(attention.map_q.weight, attention.map_k.weight)
    assert (attention.map_q.bias == 0).all()
