"""Mamba-2: the scan in both directions is the recurrence token by token, gate and norm included,
with the authors' numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import luna
from luna.mixers.mamba2 import Mamba2
from luna.scans import CHUNK

from ..kit import assert_golden, mask_of, wave


def mamba2(**options) -> Mamba2:
    torch.manual_seed(0)
    sizes = {"d_model": 8, "n_heads": 2, "max_len": 256, "state": 3}
    return luna.mixer("mamba2", **sizes | options).double()


def recurrence(mixer: Mamba2, given: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """S_t^T c, what of it is the token's own, and x, all (B, n, H, e), from the inputs of the
    convolution (B, n, .) and dt (B, n, H), one token after the other."""
    kernel, H = mixer.conv.kernel, mixer.n_heads
    padded = F.pad(given, (0, 0, kernel - 1, 0))
    S, y, own, values = 0.0, [], [], []
    for t in range(given.shape[1]):
        taps = padded[:, t : t + kernel] * mixer.conv.weight[:, 0].T
        x, b, c = F.silu(taps.sum(1) + mixer.conv.bias).split(mixer.parts_of_conv, -1)
        x = x.unflatten(-1, (H, -1))  # (B, H, e)
        written = torch.einsum("bh,bn,bhe->bhne", steps[:, t], b, x)
        S = torch.exp(-mixer.log_a.exp() * steps[:, t])[..., None, None] * S + written
        y.append(torch.einsum("bhne,bn->bhe", S, c))
        own.append(torch.einsum("bhne,bn->bhe", written, c))
        values.append(x)
    return torch.stack(y, 1), torch.stack(own, 1), torch.stack(values, 1)


def definition(mixer: Mamba2, x: Tensor, *, causal: bool) -> Tensor:
    z, given, steps = (x @ mixer.inward.weight.T).split(mixer.sizes, -1)
    dt = F.softplus(steps + mixer.dt_bias)
    y, _, values = recurrence(mixer, given, dt)
    y = y + mixer.D.view(-1, 1) * values
    if not causal:
        back, own, _ = recurrence(mixer, given.flip(1), dt.flip(1))
        y = y + (back - own).flip(1)
    y = y.flatten(2) * F.silu(z)
    rms = (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return mixer.gain * y / rms @ mixer.outward.weight.T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, CHUNK, 2 * CHUNK + 5])
def test_it_is_the_recurrence(causal: bool, n: int):
    mixer, x = mamba2(causal=causal), torch.randn(2, n, 8).double()
    expected = definition(mixer, x, causal=causal)
    torch.testing.assert_close(mixer(x), expected, rtol=1e-10, atol=1e-10)


def test_the_authors_numbers():
    """Of their block, with the scan of their minimal listing: its parameters are waves in the order
    of their names there."""
    mixer = mamba2(d_model=4, conv=3, causal=True)
    places = {
        "log_a": 0,
        "D": 1,
        "conv.bias": 2,
        "conv.weight": 3,
        "dt_bias": 4,
        "inward.weight": 5,
        "gain": 6,
        "outward.weight": 7,
    }
    with torch.no_grad():
        for name, p in mixer.named_parameters():
            p.copy_(wave(tuple(p.shape), 0.1 * places[name], 0.7))
    first = [-1.839351, -2.131936, -1.131317, 0.555544, 1.458562, 1.857329]
    first += [1.129464, -0.283518, 1.748058, 2.165504, 1.269384, -0.396728]
    assert_golden(mixer(wave((1, 5, 4), 0.4)), first, 14.141187, 27.669410)


def test_without_a_convolution_directions_are_alike():
    mixer, x = mamba2(conv=1), torch.randn(2, 37, 8).double()
    torch.testing.assert_close(mixer(x.flip(1)), mixer(x).flip(1), rtol=1e-10, atol=1e-10)


def test_without_a_convolution_holes_are_not_there():
    mixer, x, mask = mamba2(conv=1), torch.randn(2, 37, 8).double(), mask_of("scatter", n=37)
    out = mixer(x, mask)
    for b, real in enumerate(mask):
        alone = mixer(x[b : b + 1, real])
        torch.testing.assert_close(out[b : b + 1, real], alone, rtol=1e-10, atol=1e-10)


def test_complete_decay_leaves_what_the_convolution_sees():
    """Then no state outlives its token: a row is one of its own kernel of tokens."""
    mixer, x = mamba2(), torch.randn(1, 20, 8).double()
    with torch.no_grad():
        mixer.log_a.fill_(12.0)
        mixer.dt_bias.fill_(1.0)
    other = x.clone()
    other[:, 10] += 1
    moved = (mixer(other) - mixer(x)).abs().amax(-1)[0] > 1e-12
    assert moved.nonzero().flatten().tolist() == [10, 11, 12, 13]


def test_it_begins_as_the_authors_do():
    mixer = mamba2(d_model=512, n_heads=256)
    a, dt = mixer.log_a.exp(), F.softplus(mixer.dt_bias)
    assert 1 <= a.min() < 2
    assert 15 < a.max() <= 16
    assert 0.000999 < dt.min() < 0.002
    assert 0.05 < dt.max() < 0.1001
    assert (mixer.D == 1).all()


def test_long_sequences_in_float32():
    mixer, x = mamba2(), torch.randn(1, 4096, 8).double()
    exact = mixer(x)
    single = mixer.float()(x.float())
    assert (single - exact).norm() / exact.norm() < 1e-4
