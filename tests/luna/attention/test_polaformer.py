"""PolaFormer: signed parts, powers, two streams, local branch and gate."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import luna

from ..kit import MASKS, B, D, H, N, build, difference, mask_of, qkv

BARE = {"gate": "none", "local": "none"}


def pola(**options):
    """Every parameter away from its start, so that none of them can be forgotten; float64."""
    attention = build("polaformer", **(BARE | options)).double()
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
    assert difference(attention(q, k, v, mask), expected, mask) < 1e-10
    for A, B_ in zip(streams, attention.streams(q, k, mask), strict=True):
        assert difference(A, B_, mask) < 1e-10


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


@pytest.mark.parametrize("gate", ["x", "q"])
def test_gate_multiplies_attention_and_local_branch(gate):
    q, k, v = qkv()
    source = {"x": hidden(), "q": q.transpose(1, 2).reshape(B, N, H * D)}[gate]
    attention = pola(gate=gate, local="conv1d")
    g = attention.gate(source).view(B, N, H, D).transpose(1, 2)
    ungated = attention(q, k, v, x=hidden()) / g
    with torch.no_grad():
        attention.gate.weight.zero_()
        attention.gate.bias.fill_(1)
    assert difference(ungated * g, attention(q, k, v, x=hidden()) * g) < 1e-10


def test_gate_needs_hidden_states_of_the_heads_width():
    attention, tensors = build("polaformer"), qkv()
    with pytest.raises(luna.LunaError, match="needs the hidden states"):
        attention(*tensors)
    with pytest.raises(luna.LunaError, match="width n_heads"):
        attention(*tensors, x=hidden(width=H * D + 1))
    for gate in ("q", "none"):
        other = build("polaformer", gate=gate)
        assert not other.needs_x
        other(*tensors)


@pytest.mark.parametrize("kind", ["full", "scatter"])
def test_local_branch_in_one_dimension(kind):
    """Five taps per channel of a head, the same for all heads; masked values are zeros."""
    attention, (q, k, v), mask = pola(local="conv1d"), qkv(), mask_of(kind)
    plain = build("polaformer", **BARE).double()
    plain.load_state_dict(attention.state_dict(), strict=False)
    added = attention(q, k, v, mask) - plain(q, k, v, mask)
    v = torch.nn.functional.pad(v.masked_fill(~mask[:, None, :, None], 0), (0, 0, 2, 2))
    w, bias = attention.local.weight, attention.local.bias  # (d, 1, 5), (d,)
    expected = sum(w[:, 0, t] * v[:, :, t : t + N] for t in range(5)) + bias
    assert difference(added, expected, mask) < 1e-12


def test_local_branch_on_the_grid():
    """5 x 5 taps on the 8 x 8 grid of 64 tokens, row by row."""
    attention, (q, k, v) = pola(local="conv2d", max_len=N), qkv()
    plain = build("polaformer", **BARE, max_len=N).double()
    plain.load_state_dict(attention.state_dict(), strict=False)
    added = attention(q, k, v) - plain(q, k, v)
    w = attention.local.weight  # (d, 1, 5, 5)
    for r, c in ((0, 0), (3, 4), (7, 2), (1, 7)):
        expected = attention.local.bias + sum(
            w[:, 0, i + 2, j + 2] * v[:, :, 8 * (r + i) + c + j]
            for i in range(-2, 3)
            for j in range(-2, 3)
            if 0 <= r + i < 8 and 0 <= c + j < 8
        )
        assert difference(added[:, :, 8 * r + c, None], expected[:, :, None]) < 1e-12
    with pytest.raises(luna.LunaError, match="do not fill a grid of 8 x 8"):
        attention(*qkv(n=60))
    with pytest.raises(luna.LunaError, match="square grid of max_len tokens, got max_len=65"):
        pola(local="conv2d", max_len=65)


def test_published_switches_the_local_branch_on():
    options = {"max_len": N, "profile": "published"}
    assert build("polaformer").local is None
    assert build("polaformer", **options).local.kind == "conv1d"
    assert build("polaformer", **options, local="conv2d").local.kind == "conv2d"
    assert build("polaformer", **options, local="none").local is None


def test_value_width():
    q, k, v = qkv(d_v=6)
    attention = pola()
    same, opposite = attention.streams(q, k)
    expected = torch.cat([same @ v[..., :3], opposite @ v[..., 3:]], -1)
    assert difference(attention(q, k, v), expected) < 1e-12
    with pytest.raises(luna.LunaError, match="must be even, got 7"):
        attention(q, k, torch.cat([v, v[..., :1]], -1))
    for options in ({"gate": "q"}, {"local": "conv1d"}):
        with pytest.raises(luna.LunaError, match="the values have 6"):
            pola(**options)(q, k, v)


def test_parameters():
    """E: N C, tau: C, rho: C, local branch: d (taps + 1), gate: C² + C."""
    C, n = H * D, 121
    for options, more in (
        (BARE, 0),
        ({"local": "conv1d"}, D * 6),
        ({"local": "conv2d"}, D * 26),
        ({"gate": "x"}, C * C + C),
    ):
        attention = build("polaformer", max_len=n, **(BARE | options))
        assert sum(p.numel() for p in attention.parameters()) == n * C + 2 * C + more
