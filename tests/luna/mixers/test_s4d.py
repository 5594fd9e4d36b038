"""S4D: the FFT form and the chunks are the recurrence, and the kernel is that of the authors."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import luna
from luna.mixers.s4d import convolve, kernel


def s4d(**options):
    torch.manual_seed(0)
    return luna.mixer("s4d", n_heads=1, max_len=256, **{"d_model": 8, **options}).double()


def wave(shape: tuple[int, ...], shift: float, scale: float = 1.0) -> Tensor:
    """Numbers that every machine makes alike."""
    steps = torch.arange(math.prod(shape), dtype=torch.float64)
    return scale * torch.sin(0.1 * steps + shift).reshape(shape)


def recurrence(z: Tensor, b: Tensor, c: Tensor, u: Tensor) -> Tensor:
    """2 Re(c . s_t), (B, n, E), of inputs u (B, n, E), one token after the other."""
    s, out = torch.zeros_like(b), []
    for u_t in u.unbind(1):
        s = z.exp() * s + b * u_t.unsqueeze(-1)  # (B, E, N / 2)
        out.append(2 * (torch.view_as_complex(c) * s).sum(-1).real)
    return torch.stack(out, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 37, 150])
def test_it_is_the_recurrence(causal, n):
    mixer = s4d(causal=causal)
    x = torch.randn(2, n, 8).double()
    z, b = mixer.system()
    u = mixer.inward(x)
    y = recurrence(z, b, mixer.c, u) + mixer.d * u
    if not causal:  # what the other direction knew one token earlier
        back = recurrence(z, b, mixer.c_back, u.flip(1)).flip(1)
        y = y + F.pad(back[:, 1:], (0, 0, 0, 1))
    expected = mixer.outward(F.gelu(y))
    torch.testing.assert_close(mixer(x), expected, rtol=1e-10, atol=1e-10)


def test_the_initialisation_is_s4d_lin():
    mixer = s4d(d_model=512, state=6)
    A = torch.complex(-mixer.log_decay.exp(), mixer.frequency)
    expected = torch.tensor([complex(-0.5, math.pi * n) for n in range(3)])
    torch.testing.assert_close(A, expected.expand(512, 3).to(A.dtype), rtol=1e-6, atol=1e-6)
    dt = mixer.log_dt.exp()
    assert dt.min() > 0.000999
    assert dt.max() < 0.1001
    assert abs(dt.log().mean() - math.log(0.01)) < 0.2  # log-uniform: the mean is the middle


def test_the_hold_is_exact_for_short_steps():
    mixer = s4d().float()
    with torch.no_grad():
        mixer.log_dt.fill_(math.log(1e-6))
        _, b = mixer.system()
        z, exact = mixer.double().system()
    torch.testing.assert_close(b.to(exact.dtype), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(exact, z.exp().sub(1) / (z / 1e-6), rtol=1e-4, atol=0)


def test_the_authors_numbers():
    """Of the authors' code, for 2 channels, N = 4 and 6 tokens."""
    mixer = s4d(d_model=2, state=4, causal=True)
    with torch.no_grad():
        mixer.log_dt.copy_(torch.tensor([0.1, 0.05]).double().log())
        mixer.log_decay.copy_(math.log(0.5) + wave((2, 2), 0, 0.2))
        mixer.frequency.copy_(math.pi * torch.arange(2) + wave((2, 2), 1, 0.1))
        mixer.c.copy_(wave((2, 2, 2), 0.3))
        z, b = mixer.system()
        ahead = kernel(torch.view_as_complex(mixer.c) * b, z, 6)
    expected = [0.131735, 0.083843, 0.037443, -0.003251, -0.034986, -0.055715]
    expected += [0.133717, 0.115076, 0.095953, 0.076824, 0.058143, 0.040330]
    torch.testing.assert_close(ahead.flatten(), torch.tensor(expected).double(), rtol=0, atol=1e-6)
    u = wave((1, 2, 6), 0)
    y = convolve(u, ahead, wave((2, 6), 0.7, 0.5)) + wave((2, 1), 0.2) * u
    expected = [0.596636, 0.557207, 0.496651, 0.415431, 0.314984, 0.197981]
    expected += [2.159323, 1.938166, 1.672720, 1.368499, 1.031851, 0.669873]
    torch.testing.assert_close(y.flatten(), torch.tensor(expected).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_flops_by_hand(causal: bool):
    """Two projections of 8 x 8, 8 kernels of 4 complex numbers and 64 lags, 3 FFTs of 128."""
    kernels = (1 if causal else 2) * 8 * 64 * 4 * 8
    transforms = 3 * 8 * 5 * 64 * 7 + 8 * 65 * 6
    x = torch.empty(3, 64, 8)
    expected = 3 * (64 * 4 * 8 * 8 + kernels + transforms)
    assert s4d(state=8, causal=causal).flops(x) == expected
