"""Based: its kernel is the Taylor polynomial of softmax's."""

from __future__ import annotations

import pytest
import torch

from ..kit import assert_defined, averaged, build


@pytest.mark.parametrize("causal", [False, True])
def test_kernel_is_the_taylor_polynomial(causal: bool) -> None:
    attention = build("based", d_out=6, causal=causal)

    def expected(q, k, v, mask):
        sides = ((q, attention.map_q), (k, attention.map_k))
        q, k = (torch.einsum("bhnd,hed->bhne", t, side.weight.double()) for t, side in sides)
        s = q @ k.mT / 6**0.5
        return averaged(1 + s + s**2 / 2, v, mask, causal=causal)

    assert_defined(attention, expected, d_v=5)
