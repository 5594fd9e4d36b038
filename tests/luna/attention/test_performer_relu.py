"""Performer-ReLU: deterministic features, and the official code's blindness to padding."""

from __future__ import annotations

import pytest

from ..kit import assert_defined, averaged, build


@pytest.mark.parametrize("profile", ["strict", "official"])
@pytest.mark.parametrize("eps", [1e-3, 0.3])
def test_is_the_formula(eps: float, profile: str) -> None:
    def expected(q, k, v, mask):
        seen = mask if profile == "strict" else None
        return averaged((q.relu() + eps) @ (k.relu() + eps).mT, v, seen)

    assert_defined(build("performer_relu", eps=eps, profile=profile), expected, d_v=7)
