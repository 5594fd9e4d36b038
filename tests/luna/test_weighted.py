"""Keys with log weights (luna/weighted.py) where exponents are large: what the conformance suite
holds at ordinary sizes holds here, without overflow and without a look at the future."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from luna.testing.cases import longer

from .kit import build, difference, mask_of, qkv

N, D = 37, 16
LARGE: list[tuple[str, dict[str, Any], float]] = [
    ("performer", {"m": 24}, 10.0),
    ("hedgehog", {"normalisation": "exp"}, 5.0),
]
large_exponents = pytest.mark.parametrize(("name", "options", "scale"), LARGE)


@large_exponents
def test_a_causal_row_is_what_its_prefix_gives(name: str, options: dict, scale: float):
    sizes = {"head_dim": D, "max_len": 64, **options}
    causal, whole = build(name, causal=True, **sizes), build(name, **sizes)
    whole.load_state_dict(causal.state_dict())
    q, k, v = qkv(n=N, d=D)
    q, k = scale * q, scale * k
    rows = [whole(*(t[:, :, : i + 1] for t in (q, k, v)))[:, :, -1] for i in range(N)]
    expected = torch.stack(rows, 2)
    for causal.chunk in (1, 7, N):
        assert difference(causal(q, k, v), expected) < 1e-10
    state = None
    for t in range(N):
        state, o = causal.step(state, q[:, :, t], k[:, :, t], v[:, :, t])
        assert difference(o, expected[:, :, t]) < 1e-10


@large_exponents
def test_padding_is_no_part_of_the_largest_exponent(name: str, options: dict, scale: float):
    """Among long keys a padded one, which is 0, would have the largest exponent by far."""
    attention, mask = build(name, head_dim=D, **options), mask_of("scatter", n=N)
    q, k, v = qkv(n=N, d=D)
    q, k = 2 * scale * q, 2 * scale * k
    out = attention(q, k, v, mask)
    assert out.abs().amax() > 0.1
    longer_mask, *padded = longer(5, mask, q, k, v)
    assert difference(attention(*padded, longer_mask)[:, :, :N], out, mask) < 1e-10
    alone = attention(q[:1], k[:1], v[:1], mask[:1])
    assert difference(out[:1], alone, mask[:1]) < 1e-10
