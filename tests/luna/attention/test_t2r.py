"""T2R: its relu map."""

from __future__ import annotations

import pytest
import torch

from ..kit import assert_defined, averaged, build


def test_is_the_formula() -> None:
    attention = build("t2r", r=20)
    W, b = attention.map.weight.double(), attention.map.bias.double()

    def expected(q, k, v, mask):
        phi_q, phi_k = ((torch.einsum("hrd,bhnd->bhnr", W, t) + b[:, None]).relu() for t in (q, k))
        return averaged(phi_q @ phi_k.mT, v, mask)

    assert_defined(attention, expected, d_v=9)


def test_parameters_and_init() -> None:
    torch.manual_seed(0)
    attention = build("t2r", r=48)
    assert sum(p.numel() for p in attention.parameters()) == 2 * (48 * 32 + 48)
    for p in attention.parameters():
        assert p.abs().max() <= 32**-0.5
        assert p.std().item() == pytest.approx(32**-0.5 / 3**0.5, rel=0.1)
    assert build("t2r").feature_dim == 32
