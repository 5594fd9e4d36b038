"""LRU: the scan in both directions is the recurrence, with the numbers of public code."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import luna
from luna.diagonal import SHORT, scan
from luna.mixers.lru import LRU, taken

from ..kit import assert_golden, wave


def lru(**options) -> LRU:
    torch.manual_seed(0)
    sizes = {"d_model": 6, "n_heads": 1, "max_len": 256, "state": 3}
    return luna.mixer("lru", **sizes | options).double()


def recurrence(mixer: LRU, C: Tensor, x: Tensor) -> Tensor:
    """Re(C s_t), (B, n, E), one token after the other."""
    decay = torch.exp(torch.complex(-mixer.nu.exp(), mixer.theta.exp()))
    B, C = (torch.complex(*both) for both in (mixer.B, C))
    s, out = torch.zeros(len(x), len(decay), dtype=B.dtype), []
    for x_t in x.unbind(1):
        s = decay * s + mixer.gamma.exp() * (x_t.to(B.dtype) @ B.T)
        out.append((s @ C.T).real)
    return torch.stack(out, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, SHORT, SHORT + 1, 5 * SHORT + 3])
def test_it_is_the_recurrence(causal: bool, n: int):
    mixer, x = lru(causal=causal), torch.randn(2, n, 6).double()
    y = recurrence(mixer, mixer.C, x) + mixer.d * x
    if not causal:  # what the other direction knew one token earlier
        back = recurrence(mixer, mixer.C_back, x.flip(1)).flip(1)
        y = y + F.pad(back[:, 1:], (0, 0, 0, 1))
    expected = mixer.outward(F.gelu(y))
    torch.testing.assert_close(mixer(x), expected, rtol=1e-10, atol=1e-10)


def test_the_numbers_of_public_code():
    """Of adrian-valente/lru_experiments, for 3 states of 2 channels and 5 tokens. It multiplies by
    gamma, a negative number, in place of e^gamma, and its own term is a whole matrix."""
    mixer = lru(d_model=2, causal=True)
    with torch.no_grad():
        mixer.nu.copy_(wave((3,), 0.3))
        mixer.theta.copy_(wave((3,), -1))
        gamma = 0.5 * torch.log1p(-torch.exp(-2 * mixer.nu.exp()))
        mixer.gamma.copy_((-gamma).log())
        mixer.B.copy_(-torch.stack([wave((3, 2), 0), wave((3, 2), 0.5)]))
        mixer.C.copy_(torch.stack([wave((2, 3), 1), wave((2, 3), 1.5)]))
    u = wave((1, 5, 2), 0.4)
    y = taken(mixer.C, scan(*mixer.system(u))) + u @ wave((2, 2), 2).T
    first = [0.800307, 0.701048, 1.127113, 0.989050, 1.405274]
    first += [1.234175, 1.626198, 1.428897, 1.781985, 1.566339]
    assert_golden(y, first, sum(first))


def test_it_begins_on_a_ring():
    mixer = lru(state=4000, r_min=0.6, r_max=0.9, phase=1.0)
    square = torch.exp(-2 * mixer.nu.exp())
    assert square.min() > 0.36 - 1e-6
    assert square.max() < 0.81 + 1e-6
    assert abs(square.mean() - (0.36 + 0.81) / 2) < 0.01  # uniform in area
    assert mixer.theta.exp().max() <= 1
    assert abs(mixer.theta.exp().mean() - 0.5) < 0.02
    torch.testing.assert_close(mixer.gamma.exp().square(), 1 - square, rtol=1e-5, atol=1e-5)


def test_states_of_white_noise_are_as_large_as_their_inputs():
    mixer, x = lru(d_model=32, state=32, r_max=0.95), torch.randn(4, 600, 32).double()
    v, z = mixer.system(x)
    size = (v / mixer.gamma.exp()).abs().square().mean()
    assert abs(scan(v, z)[:, 200:].abs().square().mean() / size - 1) < 0.1


def test_no_decay_is_above_1_whatever_is_learned():
    """And a state that never falls stays finite, as do its gradients."""
    mixer, x = lru(), torch.randn(1, 300, 6).double()
    with torch.no_grad():
        mixer.nu.copy_(torch.tensor([-60.0, 0.0, 8.0]))
    decay = mixer.system(x)[1].exp().abs()
    assert (decay <= 1).all()
    out = mixer(x)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in mixer.parameters())


def test_phases_do_not_pass_a_circle():
    """In public code the logarithm of a phase is drawn as if it were the phase: up to e^6.28."""
    assert lru(state=4000).theta.exp().max() <= 2 * math.pi


def test_long_sequences_in_float32():
    mixer, x = lru(state=32), torch.randn(1, 4096, 6).double()
    exact = mixer(x)
    single = mixer.float()(x.float())
    assert (single - exact).norm() / exact.norm() < 1e-4
