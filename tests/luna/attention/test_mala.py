"""MALA: its weights from their formula."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import elu

from ..kit import assert_defined, build, by_example, difference


def test_formula() -> None:
    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """beta phi(q) . phi(k) - gamma."""
        m = k.shape[2]
        phi_q, phi_k = (elu(q) + 1) / (32**0.5 * m), elu(k) + 1
        z = phi_q @ phi_k.sum(2, keepdim=True).mT
        A = (1 + 1 / z) * (phi_q @ phi_k.mT) - z / m
        assert difference(A.sum(-1), torch.ones(A.shape[:-1])) < 1e-9
        return A @ v

    assert_defined(build("mala"), by_example(dense), d_v=5, close=1e-9)
