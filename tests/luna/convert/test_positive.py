"""LUNA's positive outputs, the remedy for heads that die under the final relu."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import luna
from luna.base import LunaError
from luna.convert import convert, distill
from luna.convert.swap import feature_maps

from .kit import bert, text

SIZE = {"n_heads": 2, "head_dim": 4, "max_len": 9, "M": 3, "L": 2, "hidden": 5}


@pytest.mark.parametrize(
    ("nonneg", "function"), [("softplus", F.softplus), ("exp", lambda y: y.clamp(max=15).exp())]
)
@pytest.mark.parametrize("shared_channels", [False, True])
def test_features_are_the_function_of_the_signed_ones(nonneg, function, shared_channels):
    options = SIZE | {"shared_channels": shared_channels}
    signed, positive = (luna.build("luna", nonneg=n, **options).double() for n in (False, nonneg))
    positive.load_state_dict(signed.state_dict())
    g = torch.Generator().manual_seed(0)
    x = 50 * torch.randn(2, 2, 9, 4, generator=g, dtype=torch.float64)
    expected = function(signed.phi_q(x, None) * 3**0.5) * 3**-0.5
    torch.testing.assert_close(positive.phi_q(x, None), expected)
    assert not positive.signed
    assert positive.convex


def test_a_dead_head_of_relu_is_alive_under_softplus():
    for nonneg, dead in ((True, 1.0), ("softplus", 0.0), ("exp", 0.0)):
        student = convert(bert(), "luna", nonneg=nonneg)
        name, phi = next(iter(feature_maps(student).items()))
        with torch.no_grad():
            phi.map.channels.a[1] = 0
            phi.map.channels.g[1] = -1
        report = distill(student, [text()], steps=3, redraw=False)
        assert report.before.dead[name][1] == dead
        assert report.after.dead[name][1] == dead


def test_other_words_are_refused():
    with pytest.raises(LunaError, match="nonneg must be bool or one of 'softplus', 'exp'"):
        luna.build("luna", nonneg="relu6", **SIZE)
