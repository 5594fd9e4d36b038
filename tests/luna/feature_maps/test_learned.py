"""LUNA's positive outputs, the remedy for heads that die under the final relu."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import luna

SIZE = {"n_heads": 2, "head_dim": 4, "max_len": 9, "M": 3, "L": 2, "hidden": 5}


@pytest.mark.parametrize(
    ("nonneg", "function"), [("softplus", F.softplus), ("exp", lambda y: y.clamp(max=15).exp())]
)
@pytest.mark.parametrize("shared_channels", [False, True])
def test_positive_features_are_the_function_of_the_signed_ones(nonneg, function, shared_channels):
    options = SIZE | {"shared_channels": shared_channels}
    signed, positive = (luna.build("luna", nonneg=n, **options).double() for n in (False, nonneg))
    positive.load_state_dict(signed.state_dict())
    g = torch.Generator().manual_seed(0)
    x = 50 * torch.randn(2, 2, 9, 4, generator=g, dtype=torch.float64)
    expected = function(signed.phi_q(x, None) * 3**0.5) * 3**-0.5
    torch.testing.assert_close(positive.phi_q(x, None), expected)
    assert not positive.signed
    assert positive.convex
