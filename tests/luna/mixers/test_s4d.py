"""S4D: the FFT form and the chunks are the recurrence, and the kernel is that of the authors."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import luna
from luna.diagonal import CHUNK, convolve, kernel, powers
from luna.mixers.s4d import S4D

from ..kit import Sizes, assert_golden, wave

INITS = ("lin", "inv", "legs", "real")


def s4d(**options) -> S4D:
    torch.manual_seed(0)
    return luna.mixer("s4d", n_heads=1, max_len=256, **{"d_model": 8, **options}).double()


def recurrence(mixer: S4D, c: Tensor, u: Tensor) -> Tensor:
    """2 Re(c . s_t), or c . s_t of real states, (B, n, E), one token after the other."""
    dt, A = mixer.log_dt.exp().unsqueeze(-1), -mixer.A_log_decay.exp()
    if not mixer.real:
        A, c = torch.complex(A, mixer.A_frequency), 2 * torch.view_as_complex(c)
    s, out = torch.zeros_like(A), []
    for u_t in u.unbind(1):
        s = (dt * A).exp() * s + ((dt * A).exp() - 1) / A * u_t.unsqueeze(-1)  # (B, E, N / 2)
        out.append((c * s).sum(-1).real)
    return torch.stack(out, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, CHUNK, CHUNK + 1, 2 * CHUNK + 22])
@pytest.mark.parametrize("init", INITS)
def test_it_is_the_recurrence(causal: bool, n: int, init: str):
    mixer = s4d(causal=causal, init=init, state=4, output="glu" if n == 1 else "linear")
    x = torch.randn(2, n, 8).double()
    u = mixer.inward(x)
    y = recurrence(mixer, mixer.c, u) + mixer.d * u
    if not causal:  # what the other direction knew one token earlier
        back = recurrence(mixer, mixer.c_back, u.flip(1)).flip(1)
        y = y + F.pad(back[:, 1:], (0, 0, 0, 1))
    y = F.gelu(y)
    if n == 1:
        value, gate = mixer.outward.maps(y).chunk(2, -1)
        expected = value * gate.sigmoid()
    else:
        expected = mixer.outward(y)
    torch.testing.assert_close(mixer(x), expected, rtol=1e-10, atol=1e-10)


def test_it_begins_as_the_paper_says():
    """The frequencies of legs are eigenvalues of the authors' matrix."""
    inv = [8 / math.pi * (8 / (2 * n + 1) - 1) for n in range(4)]
    expected = {
        "lin": [math.pi * n for n in range(4)],
        "inv": inv,
        "legs": [19.8574, 5.3542, 1.9578, 0.4275],
    }
    for init, frequencies in expected.items():
        mixer = s4d(init=init, state=8)
        A = torch.complex(-mixer.A_log_decay.exp(), mixer.A_frequency)
        of_paper = torch.complex(torch.full((4,), -0.5), torch.tensor(frequencies))
        torch.testing.assert_close(A, of_paper.expand(8, 4).to(A.dtype), rtol=1e-5, atol=1e-5)
    decays = s4d(init="real", state=8).A_log_decay.exp()
    torch.testing.assert_close(decays, torch.arange(1.0, 9.0).double().expand(8, 8))


def test_steps_and_outputs_begin_as_drawn():
    mixer = s4d(d_model=512, state=6)
    dt = mixer.log_dt.exp()
    assert dt.min() > 0.000999
    assert dt.max() < 0.1001
    assert abs(dt.log().mean() - math.log(0.01)) < 0.2  # log-uniform: the mean is the middle
    assert abs(mixer.c.square().sum(-1).mean() - 1) < 0.1
    assert abs(s4d(d_model=512, init="real").c.square().mean() - 1) < 0.1
    # Inputs of HiPPO-LegS, those above 2 counting as 2.
    sizes = s4d(d_model=512, init="legs").c.square().sum(-1).mean(0).sqrt()
    assert abs(sizes[0] - 2) < 0.2
    assert abs(sizes[-1] - 0.5945) < 0.06


def test_a_state_without_oscillation_is_a_moving_average():
    """Real, K[l] = c b q^l with q = e^(-dt (n + 1)), so that one state never changes its sign."""
    mixer = s4d(init="real", state=2)
    z, b = mixer.system()
    K = kernel(b[:, :1], z[:, :1], 200)
    q = (-mixer.log_dt.exp()).exp().unsqueeze(-1)
    torch.testing.assert_close(K, (1 - q) * q ** torch.arange(200), rtol=1e-9, atol=0)
    assert (K.diff() < 0).all()


def test_a_kernel_does_not_depend_on_its_length():
    mixer = s4d()
    z, b = mixer.system()
    torch.testing.assert_close(kernel(b, z, 300)[:, :70], kernel(b, z, 70), rtol=0, atol=1e-14)


def test_a_long_sequence_fits_into_memory():
    """65,536 tokens of one head, forward and backward: below 1 GiB, where powers of all lags alone
    would take half of that for each direction."""
    mixer = luna.mixer("s4d", d_model=32, n_heads=1, max_len=2**16)
    x = torch.randn(1, 2**16, 32, requires_grad=True)
    with Sizes() as sizes:
        mixer(x).sum().backward()
    assert sizes.peak < 2**30
    assert not any(shape.count(2**16) > 1 for shape in sizes.shapes)


def test_long_sequences_in_float32():
    mixer = s4d()
    x = torch.randn(1, 4096, 8).double()
    exact = mixer(x)
    single = mixer.float()(x.float())
    assert (single - exact).norm() / exact.norm() < 1e-4


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore:Torchinductor does not support:UserWarning")
def test_compiled_gradients_of_vanishing_powers_are_finite():
    """e^(z l) becomes as small as a number can be, 1e-43 here, and 0. On a GPU two of three runs
    had NaN at once."""
    z = torch.complex(torch.full((1, 2), -0.05), torch.tensor([[0.0, 3.0]])).requires_grad_()
    weights, wanted = (
        torch.ones(1, 2, dtype=z.dtype, requires_grad=True),
        wave((1, 2000), 1.0).float(),
    )
    eager, compiled = (
        torch.autograd.grad(f(weights, z, 2000), (weights, z), wanted)
        for f in (kernel, torch.compile(kernel))
    )
    assert float(powers(z, 2000).abs().detach().amin()) < torch.finfo(torch.float32).tiny
    for ours, theirs in zip(compiled, eager, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", ["slot", "s4"])
@pytest.mark.parametrize("init", INITS)
def test_it_begins_in_the_default_dtype(init: str, block: str):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        mixer = luna.mixer("s4d", d_model=4, n_heads=1, max_len=8, init=init, block=block)
        assert {p.dtype for p in mixer.parameters()} == {torch.float64}
        assert mixer(torch.randn(2, 8, 4)).isfinite().all()
    finally:
        torch.set_default_dtype(before)


def test_parameters_are_real():
    """A complex one would stay in single precision in .double()."""
    assert all(p.dtype == torch.float64 for p in s4d(init="legs").parameters())
    assert powers(s4d().system()[0], 3).dtype == torch.complex128


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
        mixer.A_log_decay.copy_(math.log(0.5) + wave((2, 2), 0, 0.2))
        mixer.A_frequency.copy_(math.pi * torch.arange(2) + wave((2, 2), 1, 0.1))
        mixer.c.copy_(wave((2, 2, 2), 0.3))
        z, b = mixer.system()
        ahead = kernel(mixer.taken(mixer.c) * b, z, 6)
    expected = [0.131735, 0.083843, 0.037443, -0.003251, -0.034986, -0.055715]
    expected += [0.133717, 0.115076, 0.095953, 0.076824, 0.058143, 0.040330]
    assert_golden(ahead, expected, 0.679111)
    u = wave((1, 2, 6), 0)
    y = convolve(u, ahead, wave((2, 6), 0.7, 0.5)) + wave((2, 1), 0.2) * u
    expected = [0.596636, 0.557207, 0.496651, 0.415431, 0.314984, 0.197981]
    expected += [2.159323, 1.938166, 1.672720, 1.368499, 1.031851, 0.669873]
    assert_golden(y, expected, 11.419321)


@pytest.mark.parametrize("causal", [False, True])
def test_flops_by_hand(causal: bool):
    """Two projections of 8 x 8, 8 kernels of 4 complex numbers and 64 lags, 3 FFTs of 128."""
    kernels = (1 if causal else 2) * 8 * 64 * 4 * 8
    transforms = 3 * 8 * 5 * 64 * 7 + 8 * 65 * 6
    x = torch.empty(3, 64, 8)
    expected = 3 * (64 * 4 * 8 * 8 + kernels + transforms)
    assert s4d(state=8, causal=causal).flops(x) == expected


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("init", INITS)
def test_the_block_of_the_authors(init: str, shared: bool):
    """u = x, an input that is trained, steps by softplus: a sum over all pairs of tokens."""
    mixer = s4d(block="s4", output="glu", init=init, shared=shared, state=4)
    with torch.no_grad():
        mixer.b.add_(torch.randn_like(mixer.b) * 0.3)
    x = torch.randn(2, 9, 8).double()
    dt, A = F.softplus(mixer.log_dt).unsqueeze(-1), -mixer.A_log_decay.exp()
    b, c, c_back = mixer.b, mixer.c, mixer.c_back
    if init != "real":
        A = torch.complex(A, mixer.A_frequency)
        b, c, c_back = (torch.view_as_complex(t) for t in (b, 2 * c, 2 * c_back))
    b = b * ((dt * A).exp() - 1) / A
    y = mixer.d * x
    for i in range(9):
        for j in range(9):
            lag, weights = (i - j, c) if j <= i else (j - i - 1, c_back)
            y[:, i] = y[:, i] + (weights * b * (dt * A * lag).exp()).sum(-1).real * x[:, j]
    value, gate = mixer.outward.maps(F.gelu(y)).chunk(2, -1)
    torch.testing.assert_close(mixer.eval()(x), value * gate.sigmoid(), rtol=1e-10, atol=1e-10)


def test_the_block_of_the_authors_begins_as_theirs():
    mixer = s4d(block="s4", d_model=512, state=4, dt_min=1e-4)
    dt = F.softplus(mixer.log_dt)
    assert 0.9999e-4 < dt.min() < 1.1e-4
    assert dt.max() < 0.1001
    assert torch.equal(mixer.b[..., 0], torch.ones_like(mixer.b[..., 0]))
    assert not mixer.b[..., 1].any()
    legs = s4d(block="s4", init="legs", state=8, shared=True)
    old = s4d(init="legs", state=8, d_model=4096)
    assert legs.b.shape == (1, 4, 2)  # the size of c where there is no b, on the average
    spread = old.c.square().sum(-1).mean(0).sqrt()
    torch.testing.assert_close(legs.b[0, :, 0], spread, rtol=0.05, atol=0)
    assert set(legs.rates) == {"log_dt", "A_*", "b"}
    assert set(s4d().rates) == {"log_dt", "A_*"}
    assert not hasattr(legs, "inward")
