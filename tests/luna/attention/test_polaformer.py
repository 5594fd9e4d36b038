"""PolaFormer: signed parts, powers, two streams, local branch and gate."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import luna

from ..kit import MASKS, B, D, H, N, build, difference, mask_of, qkv


def pola(**options):
    """Every parameter away from its start, so that none of them can be forgotten; float64."""
    attention = build("polaformer", **options).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in attention.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype), alpha=0.5)
    return attention


def hidden(n: int = N, width: int = H * D) -> Tensor:
    generator = torch.Generator().manual_seed(8)
    return torch.randn(B, n, width, generator=generator, dtype=torch.float64)


def by_channel(attention, q: Tensor, k: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices of both streams from the definition, one channel at a time."""
    n = q.shape[2]
    same, opposite = (torch.zeros(*q.shape[:2], n, n, dtype=q.dtype) for _ in "so")
    for h in range(q.shape[1]):
        for c in range(q.shape[3]):
            s = math.log1p(math.exp(attention.tau[h, 0, c].item()))
            p = 1 + attention.alpha / (1 + math.exp(-attention.rho[h, 0, c].item()))
            x, y = q[:, h, :, c] / s, (k[:, h, :, c] + attention.E[h, :n, c]) / s
            (x_plus, x_minus), (y_plus, y_minus) = (
                (t.clamp(min=0) ** p, (-t).clamp(min=0) ** p) for t in (x, y)
            )
            for total, plus, minus in ((same, x_plus, x_minus), (opposite, x_minus, x_plus)):
                total[:, h] += (
                    plus[:, :, None] * y_plus[:, None] + minus[:, :, None] * y_minus[:, None]
                )
    visible = mask[:, None, None, :]
    same, opposite = (A * visible for A in (same, opposite))
    if attention.profile == "published":
        return tuple(A / (A.sum(-1, keepdim=True) + 1e-6 * n) for A in (same, opposite))
    return tuple(A / A.sum(-1, keepdim=True).clamp(min=1e-6) for A in (same, opposite))


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("profile", ["strict", "published"])
def test_each_stream_is_its_matrix_times_its_half(kind, profile):
    attention, (q, k, v), mask = pola(profile=profile), qkv(), mask_of(kind)
    streams = by_channel(attention, q, k, mask)
    expected = torch.cat([A @ half for A, half in zip(streams, v.chunk(2, -1), strict=True)], -1)
    if profile == "published":  # five taps per channel of a head, the same for all heads
        padded = torch.nn.functional.pad(v * mask[:, None, :, None], (0, 0, 2, 2))
        w = attention.local.weight  # (d, 1, 5)
        taps = sum(w[:, 0, t] * padded[:, :, t : t + N] for t in range(5))
        expected = expected + taps + attention.local.bias
    x = hidden()
    gate = attention.gate(x).view(B, N, H, D).transpose(1, 2)
    assert difference(attention(q, k, v, mask, x), gate * expected, mask) < 1e-10


def test_initial_power_and_scale():
    attention = build("polaformer")
    assert attention.alpha == 3
    assert torch.equal(attention.powers(), torch.full((H, 1, D), 2.5))
    one = torch.ones(1, H, 1, D)
    Q_s, _, K = attention.features(one, one, None)
    expected = torch.cat([one, 0 * one], -1) * math.log(2) ** -2.5
    assert difference(Q_s, expected) < 1e-5
    assert difference(K, expected) < 1e-5
    assert not attention.E.any()


def test_gate_needs_hidden_states_of_the_heads_width():
    attention, tensors = build("polaformer"), qkv()
    with pytest.raises(luna.LunaError, match="needs the hidden states"):
        attention(*tensors)
    with pytest.raises(luna.LunaError, match="width n_heads"):
        attention(*tensors, x=hidden(width=H * D + 1))
    with pytest.raises(luna.LunaError, match="must be that, and even, got 6"):
        attention(*qkv(d_v=6), x=hidden())


def test_parameters():
    """E: N C, tau: C, rho: C, gate: C² + C, local branch: d (taps + 1)."""
    C, n = H * D, 121
    for profile, more in (("strict", 0), ("published", D * 6)):
        attention = build("polaformer", max_len=n, profile=profile)
        count = sum(p.numel() for p in attention.parameters())
        assert count == n * C + 2 * C + C * C + C + more
