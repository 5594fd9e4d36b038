"""Performer-ReLU: deterministic features, and the official code's blindness to padding."""

from __future__ import annotations

import pytest
import torch

from ..kit import build, difference, mask_of, qkv


@pytest.mark.parametrize("eps", [1e-3, 0.3])
def test_is_the_formula(eps: float) -> None:
    q, k, v = qkv(d_v=7)
    mask = mask_of("scatter")
    A = (q.relu() + eps) @ (k.relu() + eps).mT * mask[:, None, None, :]
    expected = A / A.sum(-1, keepdim=True) @ v
    assert difference(build("performer_relu", eps=eps)(q, k, v, mask), expected, mask) < 1e-12


def test_official_attends_padding() -> None:
    attention = build("performer_relu", profile="official")
    q, k, v = qkv()
    mask = mask_of("prefix")
    out = attention(q, k, v, mask)
    assert torch.equal(out, attention(q, k, v))
    assert torch.equal(out, build("performer_relu")(q, k, v))
    assert difference(out, build("performer_relu")(q, k, v, mask), mask) > 1e-3
    assert difference(attention.matrix(q, k, mask) @ v, out) < 1e-12
