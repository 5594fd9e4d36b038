"""The plain versions are the methods of the library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import luna
from lra.bench.plain import PLAIN, WHOLE


@contextmanager
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_the_plain_version_is_the_same_method(name: str):
    """So that their times may be compared; and one more check of the library's own."""
    n = 2 * WHOLE
    torch.manual_seed(0)
    attention = luna.build(name, n_heads=2, head_dim=32, max_len=n).eval().double()
    with torch.no_grad():
        for p in attention.parameters():
            p.add_(0.1 * torch.randn_like(p))
    q, k, v = (torch.randn(1, 2, n, 32).double() for _ in range(3))
    x = torch.randn(1, n, 64).double()
    with doubles():
        plain = PLAIN[name](attention, q, k, v, x)
    torch.testing.assert_close(attention(q, k, v, None, x), plain, rtol=1e-9, atol=1e-9)
