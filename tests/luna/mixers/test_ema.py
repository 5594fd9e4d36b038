"""EMA: the FFT form and the chunks are the averages token by token, with the authors' numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import luna
from luna import LunaError
from luna.diagonal import kernel
from luna.mixers.ema import EMA, Averages

from ..kit import assert_golden, wave


def ema(**options) -> EMA:
    torch.manual_seed(0)
    return luna.mixer("ema", n_heads=1, max_len=256, **{"d_model": 8, **options}).double()


def averages(of: Averages, u: Tensor) -> Tensor:
    """N^(-1/2) gamma . s_t, (B, n, E), of inputs u (B, n, E), one token after the other."""
    p, a = of.delta.sigmoid(), of.alpha.sigmoid()
    s, out = torch.zeros_like(p), []
    for u_t in u.unbind(1):
        s = (1 - p * a) * s + p * of.beta * u_t.unsqueeze(-1)  # (B, E, N)
        out.append((of.gamma * s).sum(-1) / math.sqrt(p.shape[1]))
    return torch.stack(out, 1)


def first_lag(of: Averages) -> Tensor:
    """K[0], (E)."""
    return (of.gamma * of.delta.sigmoid() * of.beta).mean(-1) * of.gamma.shape[1] ** 0.5


@pytest.mark.parametrize("form", ["causal", "once", "twice"])
@pytest.mark.parametrize("n", [1, 37, 64, 65, 150])
def test_it_is_the_recurrence(form: str, n: int):
    mixer = ema(causal=form == "causal", lag0="twice" if form == "twice" else "once")
    x = torch.randn(2, n, 8).double()
    u = mixer.inward(x)
    y = averages(mixer.average.ahead, u) + mixer.average.omega * u
    if form != "causal":
        y = y + averages(mixer.average.behind, u.flip(1)).flip(1)
    if form == "once":
        y = y - first_lag(mixer.average.behind) * u
    torch.testing.assert_close(mixer(x), mixer.outward(F.silu(y)), rtol=1e-10, atol=1e-10)


def test_the_authors_numbers():
    """Of their module, for 2 channels with 2 averages and 5 tokens; its parameters hold the second
    direction behind the first."""
    mixer = ema(d_model=2, dims=2, lag0="twice")
    shifts = {"delta": 0, "alpha": 0.5, "beta": 1, "gamma": 1.5}
    with torch.no_grad():
        for name, shift in shifts.items():
            ahead, back = wave((4, 2), shift).chunk(2)
            getattr(mixer.average.ahead, name).copy_(ahead)
            getattr(mixer.average.behind, name).copy_(back)
        mixer.average.omega.copy_(wave((2,), 2))
        for linear in (mixer.inward, mixer.outward):
            torch.nn.init.eye_(linear.weight)
        mixer.outward.bias.zero_()
    first = [1.296351, 1.478580, 1.951480, 2.175948, 2.478249]
    first += [2.713505, 2.778506, 3.008880, 2.742452, 2.956126]
    assert_golden(mixer(wave((1, 5, 2), 0.4)), first, 23.580076)


def test_one_average_falls_geometrically():
    """K[l] = p r^l, whose sum is 1 / a: what a constant input comes to."""
    of = Averages(3, 1).double()
    with torch.no_grad():
        of.beta.fill_(1)
        of.gamma.fill_(1)
    p, a = of.delta.sigmoid(), of.alpha.sigmoid()
    K = of.kernel(500)
    expected = p * (1 - p * a) ** torch.arange(500)
    torch.testing.assert_close(K, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(K.sum(-1), 1 / a[:, 0], rtol=1e-10, atol=0)


def test_a_kernel_does_not_depend_on_its_length():
    of = Averages(3, 16).double()
    torch.testing.assert_close(of.kernel(300)[:, :70], of.kernel(70), rtol=0, atol=1e-14)


def test_saturated_gates_stay_finite():
    """r would round to 0, whose logarithm is infinite."""
    weights = torch.ones(1, 1, requires_grad=True)
    of = Averages(1, 1)
    with torch.no_grad():
        of.delta.fill_(40.0)
        of.alpha.fill_(40.0)
    K = kernel(weights, of.system()[0], 100)
    assert K[0, 0] == 1
    assert (K[0, 1:] < 1e-15).all()
    K.sum().backward()
    assert of.delta.grad.isfinite().all()
    assert of.alpha.grad.isfinite().all()


def test_initialisation():
    mixer = ema(d_model=512)
    assert (mixer.average.ahead.beta.sign() == torch.tensor([1.0, -1.0]).repeat(8)).all()
    r = mixer.average.ahead.system()[0].exp()
    assert abs(r.mean() - 0.75) < 0.01
    assert abs(mixer.average.omega.std() - 1) < 0.1
    assert not torch.equal(mixer.average.ahead.gamma, mixer.average.behind.gamma)


def test_twice_has_no_causal_form():
    with pytest.raises(LunaError, match="lag0='twice' counts a token in both directions"):
        ema(causal=True, lag0="twice")


def test_long_sequences_in_float32_and_bfloat16():
    mixer = ema()
    x = torch.randn(1, 8192, 8).double()
    exact = mixer(x)
    single = mixer.float()(x.float())
    assert (single - exact).norm() / exact.norm() < 1e-5
    half = mixer(x.bfloat16())
    assert (half - exact).norm() / exact.norm() < 2e-2


@pytest.mark.parametrize("causal", [False, True])
def test_flops_by_hand(causal: bool):
    """Two projections of 8 x 8, 8 kernels of 4 averages and 64 lags, 3 FFTs of length 128."""
    kernels = (1 if causal else 2) * 8 * 64 * 4 * 2
    transforms = 3 * 8 * 5 * 64 * 7 + 8 * 65 * 6
    x = torch.empty(3, 64, 8)
    expected = 3 * (64 * 4 * 8 * 8 + kernels + transforms)
    assert ema(dims=4, causal=causal).flops(x) == expected
