"""LUNA against the paper's listing, on the same weights: values and every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import luna
from luna.attention.luna import Listing, Luna
from luna.feature_maps.options import LunaOptions
from luna.kernels import cpu

from ..kit import difference, mask_of, qkv, shaken
from ..listing import by_listing, listed

B, H, n, d = 2, 2, 37, 16
FAST = ["piecewise", "fused"]


def build(**options: Any) -> Luna:
    """In training mode."""
    if options.get("evaluate") == "fused" and not cpu.AVAILABLE:
        pytest.skip("needs numba: pip install 'luna-lra[fast]'")
    return shaken("luna", head_dim=d, **options).train()


def assert_is_the_listing(attention: Luna, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None):
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    ours, theirs = attention(*leaves, mask), listed(attention, *leaves, mask)
    upstream = torch.randn(ours.shape, dtype=ours.dtype)
    gradients = (
        torch.autograd.grad(out, [*leaves, *attention.parameters()], upstream)
        for out in (ours, theirs)
    )
    for mine, other in zip(*([o, *g] for o, g in zip((ours, theirs), gradients, strict=True)),
                           strict=True):  # fmt: skip
        assert difference(mine, other) < 1e-11 * max(1, float(other.detach().abs().max()))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        *({"evaluate": how} for how in ("dense", *FAST)),
        *({"evaluate": how, "share": "head", "nonneg": False} for how in FAST),
        {"shared_channels": True},
        {"activation": "gelu"},
        {"activation": "leaky_relu"},
        {"activation": "tanh", "shared_channels": True, "nonneg": False},
        {"M": 3, "L": 5, "hidden": 7, "evaluate": "fused"},
        {"chunk": 100, "evaluate": "dense"},
    ],
    ids=str,
)
def test_every_evaluation_is_the_listing(options: dict[str, Any], causal: bool):
    assert_is_the_listing(
        build(causal=causal, **options), *qkv(B, H, n, d), mask_of("scatter", n=n)
    )


def test_initialisation_is_the_listings():
    """W ~ N(0, 1) / sqrt(d), beta 0, torch's own for linear layers: moments and bounds."""
    torch.manual_seed(0)
    sizes = {"M": 200, "L": 200}
    attention = luna.build("luna", n_heads=1, head_dim=d, max_len=8, **sizes)
    theirs = Listing(d, LunaOptions(**sizes))
    projections, channels = attention.map.projections, attention.map.channels
    assert (projections.bias == 0).all()
    assert projections.weight.abs().max() > 3 * d**-0.5  # normal, not uniform
    for weight, reference in [
        (projections.weight, [theirs.W]),
        (channels.e, [m.weight for m in theirs.first]),
        (channels.f, [m.bias for m in theirs.first]),
        (channels.a, [m.weight for m in theirs.second]),
        (channels.g, [m.bias for m in theirs.second]),
    ]:
        drawn = torch.cat([t.flatten() for t in reference])
        assert weight.std().item() == pytest.approx(drawn.std().item(), rel=0.1)
        assert weight.mean().abs() < 0.1 * drawn.abs().max()
        if weight is not projections.weight:  # a normal's largest is anything
            assert weight.abs().max().item() == pytest.approx(drawn.abs().max().item(), rel=0.05)


def test_features_are_the_listings_projection_by_projection():
    """phi_{iL+l}: the order counts for envelopes and checkpoints, not for the output."""
    attention, x = build(M=3, L=5), qkv(B, H, n, d)[0]
    assert difference(attention.phi_q(x, None), by_listing(attention).phi(x)) < 1e-13
