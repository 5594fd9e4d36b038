"""MALA: its weights from their formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from ..kit import MASKS, build, difference, mask_of, qkv


def dense(q: Tensor, k: Tensor, real: Tensor) -> Tensor:
    """beta phi(q) . phi(k) - gamma, of real tokens alone."""
    phi_q, phi_k = elu(q[real]) + 1, elu(k[real]) + 1
    m = len(phi_k)
    phi_q = phi_q / (32**0.5 * m)
    z = (phi_q @ phi_k.sum(0)).unsqueeze(-1)
    beta, gamma = 1 + 1 / z, z / m
    return beta * (phi_q @ phi_k.mT) - gamma


@pytest.mark.parametrize("kind", MASKS)
def test_formula(kind: str) -> None:
    q, k, v = qkv(d_v=5)
    mask = mask_of(kind)
    out = build("mala")(q, k, v, mask)
    for b in range(2):
        A = dense(q[b, 1], k[b, 1], mask[b])
        assert difference(A.sum(-1), torch.ones(len(A)).double()) < 1e-9
        expected = A @ v[b, 1][mask[b]]
        assert difference(out[b, 1][mask[b]], expected) < 1e-9 * max(1, expected.abs().max())
