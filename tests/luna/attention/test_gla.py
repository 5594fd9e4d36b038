"""GLA, retention and HGRN2: their recurrences, the authors' numbers, and what their decays say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, silu

import luna
from luna import LunaError
from luna.attention.gla import GLA
from luna.scans import dense_weights, scan

from ..kit import assert_defined, assert_golden, build, by_example, difference, qkv, shaken, wave

SHAPE = (1, 6, 2, 3)  # of the goldens: B, n, H, d
GIVEN = tuple(t.transpose(1, 2) for t in (wave(SHAPE, 0), wave(SHAPE, 1), wave((1, 6, 2, 2), 2)))


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """S_i^T q_i / sqrt(d), token by token; g (B, H, n, d)."""
    S, out = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3], dtype=k.dtype), []
    for i in range(q.shape[2]):
        S = g[:, :, i].exp().unsqueeze(-1) * S + k[:, :, i, :, None] * v[:, :, i, None, :]
        out.append(torch.einsum("bhd,bhde->bhe", q[:, :, i], S))
    return torch.stack(out, 2) / q.shape[3] ** 0.5


def both_ways(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    back = recurrence(*(t.flip(2) for t in (q, k, v, g))).flip(2)
    own = (q * k).sum(-1, keepdim=True) * v / q.shape[3] ** 0.5
    return recurrence(q, k, v, g) + back - own


def decays(gla: GLA, k: Tensor) -> Tensor:
    """g (B, H, n, d) as the header has it."""
    if gla.decay == "fixed":
        h = torch.arange(k.shape[1], dtype=k.dtype)
        return (1 - 2 ** (-5 - h)).log().view(1, -1, 1, 1).expand_as(k)
    if gla.keys == "complement":
        c = gla.slot.layer / gla.slot.n_layers
        return (c + (1 - c) * k.sigmoid()).log()
    narrow = k if gla.gates.narrow is None else k @ gla.gates.narrow.weight.mT
    logits = narrow @ gla.gates.map.weight.mT + gla.gates.map.bias.unsqueeze(1)
    return (logsigmoid(logits) / 16).expand_as(k)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decay": "scalar"},
        {"decay": "fixed"},
        {"keys": "complement"},
        {"keys": "complement", "layer": 1, "n_layers": 3},
    ],
    ids=str,
)
def test_formula(options: dict[str, Any]):
    gla = shaken("gla", norm=False, **options)

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        g = decays(gla, k)
        if gla.keys == "complement":
            q, k = silu(q), 1 - g.exp()
        return both_ways(q, k, v, g)

    assert_defined(gla, by_example(defined), d_v=5)


def test_the_norm():
    plain, normed = shaken("gla", norm=False), shaken("gla")
    normed.load_state_dict(plain.state_dict(), strict=False)
    out = plain(*qkv())
    rms = (out.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert difference(normed(*qkv()), normed.norm.gain * out / rms) < 1e-10
    with pytest.raises(LunaError, match="a gain for each of 32 channels"):
        normed(*qkv(d_v=5))


def test_the_published_gate_reads_the_hidden_states():
    gla = shaken("gla", gates="x", norm=False)
    q, k, v = qkv()
    x = wave((2, 64, 64), 0.5, 3.0)
    logits = x @ gla.gates.narrow.weight[0].mT @ gla.gates.map.weight[0].mT + gla.gates.map.bias
    g = (logsigmoid(logits) / 16).view(2, 64, 2, 32).transpose(1, 2)
    assert difference(gla(q, k, v, None, x), both_ways(q, k, v, g)) < 1e-10


def golden(g: Tensor, **options: Any) -> Tensor:
    """In the order of the authors, with log decays (B, n, H, d), if any, in place of the gates'."""
    gla = luna.build("gla", n_heads=2, head_dim=3, max_len=6, causal=True, norm=False, **options)
    if g.numel():
        gla.log_decay = lambda *_: g.transpose(1, 2)
    return gla.double()(*GIVEN).transpose(1, 2)


def test_the_authors_numbers():
    """Of the recurrence in fla-org/flash-linear-attention, one direction."""
    first = [0.143919, 0.136624, 0.535276, 0.493704, 1.635446, 1.505606]
    first += [1.822445, 1.617728, 2.835861, 2.525232, 2.268401, 1.939236]
    assert_golden(golden(logsigmoid(wave(SHAPE, 0.5, 2)) / 16), first, 29.468613, 33.456580)


def test_retention_by_the_authors_recurrence():
    first = [0.143919, 0.136624, 0.535276, 0.493704, 1.615347, 1.486526]
    first += [1.813624, 1.609591, 2.750969, 2.446251, 2.246475, 1.919419]
    assert_golden(golden(torch.empty(0), decay="fixed"), first, 28.700340, 32.988147)


@pytest.mark.parametrize(
    ("layer", "first", "total", "sizes"),
    [
        (
            0,
            [0.005073, 0.004816, 0.016121, 0.014869, 0.065060, 0.060226],
            -0.012298,
            2.311360,
        ),
        (
            1,
            [0.002537, 0.002408, 0.008060, 0.007434, 0.033056, 0.030612],
            0.116865,
            1.233585,
        ),
    ],
)
def test_hgrn2_by_the_authors_recurrence(
    layer: int, first: list[float], total: float, sizes: float
):
    """Layers 0 and 1 of two: lower bounds 0 and 1/2; the logits are the keys of the others times
    three."""
    slot = {"layer": layer, "n_layers": 2, "keys": "complement", "norm": False, "causal": True}
    gla = luna.build("gla", n_heads=2, head_dim=3, max_len=6, **slot).double()
    q, k, v = GIVEN
    assert_golden(gla(q, 3 * k, v).transpose(1, 2), first, total, sizes)


def test_both_ways_by_a_loop():
    """Each direction with decays of its own, and no scale."""
    q, k, v = wave((1, 2, 6, 3), 0), wave((1, 2, 6, 3), 1), wave((1, 2, 6, 2), 2)
    g, back = (logsigmoid(wave((1, 2, 6, 3), shift, 2)) / 16 for shift in (0.5, -0.5))
    first = [0.843022, 0.744374, 3.432323, 3.018023, 5.781437, 5.071090]
    first += [7.569020, 6.627546, 8.621552, 7.541410, 8.857744, 7.744107]
    assert_golden(scan(q, k, v, g, back)[1], first, 94.952159, 100.852450)
    assert_golden(dense_weights(q, k, g, back) @ v, first, 94.952159, 100.852450)


def test_retention_is_a_power_of_the_distance():
    gla = build("gla", decay="fixed", norm=False).double()
    q, k, _ = qkv()
    gamma = torch.tensor([1 - 1 / 32, 1 - 1 / 64], dtype=torch.float64).view(1, 2, 1, 1)
    n = torch.arange(64)
    expected = gamma ** (n[:, None] - n).abs() * (q @ k.mT) / math.sqrt(32)
    assert difference(gla.matrix(q, k), expected) < 1e-10


def test_without_decay_it_is_linear_attention():
    gla = shaken("gla", norm=False)
    with torch.no_grad():
        gla.gates.map.weight.zero_()
        gla.gates.map.bias.fill_(100.0)  # log sigmoid = 0
    q, k, v = qkv()
    assert difference(gla(q, k, v), q @ (k.mT @ v) / math.sqrt(32)) < 1e-10


def test_directions_are_alike():
    gla, given = shaken("gla"), qkv()
    flipped = gla(*(t.flip(2) for t in given)).flip(2)
    assert difference(flipped, gla(*given)) < 1e-12


def test_it_begins_with_a_memory_of_23_tokens():
    torch.manual_seed(0)
    gla = build("gla").double()
    g = gla.log_decay(qkv(4, 2, 512)[1], None, None)
    assert 20 < -1 / g.mean() < 26
    assert (gla.norm.gain == 1).all()


def test_long_sequences_in_float32_and_bfloat16():
    gla = build("gla")
    q, k, v = qkv(1, 2, 8192)
    exact = gla.double()(q, k, v)
    single = gla.float()(q.float(), k.float(), v.float())
    assert (single - exact).norm() / exact.norm() < 1e-5
    half = gla(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert (half - exact).norm() / exact.norm() < 2e-2
