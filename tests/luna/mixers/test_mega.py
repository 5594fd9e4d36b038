"""Mega: averages, gates and attention from its definition, whole, in chunks and streamed, with the
authors' numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import luna
from luna import LunaError
from luna.mixers.mega import Mega, laplace

from ..kit import Sizes, assert_golden, mask_of, wave
from .test_ema import averages, first_lag

FORMS = pytest.mark.parametrize("weights", ["softmax", "laplace"])


def mega(**options) -> Mega:
    """With weights that are far from their small beginnings."""
    torch.manual_seed(0)
    sizes = {"d_model": 6, "n_heads": 1, "max_len": 64, "z": 3, "dims": 2}
    mixer = luna.mixer("mega", **sizes | options).double().eval()
    with torch.no_grad():
        for p in mixer.parameters():
            p.add_(0.5 * torch.randn_like(p))
    return mixer


def weight(mixer: Mega, q: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
    """Those of one query q (s) for keys (m, s)."""
    if mixer.weights == "softmax":
        return (keys @ q / math.sqrt(len(q)) + bias).softmax(0)
    t = keys @ q / len(keys) + bias
    return (1 + torch.erf((t - 0.5**0.5) / (2 * math.sqrt(1 / (4 * math.pi)) ** 2) ** 0.5)) / 2


def definition(mixer: Mega, x: Tensor, real: Tensor) -> Tensor:
    """Of one example x (n, E), token by token; its chunks are those of the positions."""
    n, E = x.shape
    x = x * real.unsqueeze(1)
    of = mixer.average
    y = averages(of.ahead, x[None])[0]
    if not mixer.causal:
        y = y + averages(of.behind, x[None].flip(1)).flip(1)[0]
        y = y if of.lag0 == "twice" else y - first_lag(of.behind) * x
    m = F.silu(y + of.omega * x)
    z, v = F.silu(mixer.shared(m)), F.silu(mixer.value(x))
    q, k = mixer.gamma_q * z + mixer.beta_q, mixer.gamma_k * z + mixer.beta_k
    u, r, h = mixer.read(m).split([E, v.shape[1], E], 1)
    rows = []
    for i in range(n):
        C = mixer.chunk_length or n
        first = i // C * C
        last = i + 1 if mixer.causal else min(first + C, n)
        seen = [j for j in range(first, last) if real[j]]
        bias = mixer.R[[len(mixer.R) // 2 + j - i for j in seen]]
        A_v = weight(mixer, q[i], k[seen], bias) @ v[seen] if seen else 0 * v[i]
        rows.append(u[i].sigmoid() * (F.silu(h[i] + mixer.inner(F.silu(r[i]) * A_v)) - x[i]))
    return torch.stack(rows) * real.unsqueeze(1)


@FORMS
@pytest.mark.parametrize("chunk", [None, 5, 40])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_its_definition(weights: str, chunk: int | None, causal: bool):
    mixer = mega(weights=weights, chunk=chunk, causal=causal)
    x = torch.randn(2, 23, 6).double()
    for kind in ("full", "prefix", "scatter"):
        mask = mask_of(kind, 2, 23)
        expected = torch.stack([definition(mixer, x[b], mask[b]) for b in range(2)])
        torch.testing.assert_close(mixer(x, mask), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk", [None, 5])
def test_it_streams(chunk: int | None):
    """What its own prefixes do not give, for their keys know what follows them."""
    mixer, x = mega(chunk=chunk, causal=True), torch.randn(2, 23, 6).double()
    mask = torch.ones(2, 23, dtype=torch.bool)
    mask[0, 1:4] = False
    expected, state, out = mixer(x, mask), None, []
    for part in (slice(0, 7), slice(7, 8), slice(8, 10), slice(10, 23)):
        state, rows = mixer.steps(state, x[:, part], mask[:, part] if part.start == 0 else None)
        out.append(rows)
    torch.testing.assert_close(torch.cat(out, 1), expected, rtol=1e-10, atol=1e-10)
    assert state[1].shape[1] == (23 if chunk is None else 3)  # keys that are still seen


def test_a_stream_has_an_end_where_every_distance_has_a_number():
    mixer, x = mega(causal=True), torch.randn(1, 65, 6).double()
    state, _ = mixer.steps(None, x[:, :64])
    with pytest.raises(LunaError, match="max_len=64 tokens and got 65"):
        mixer.step(state, x[:, 64])
    chunked = mega(causal=True, chunk=8)
    state, _ = chunked.steps(None, x[:, :64])
    chunked.step(state, x[:, 64])


GOLDEN = {
    # weights, chunk: what comes first, the sum, the sum of sizes
    ("softmax", None): ([0.544990, -0.036399, 0.146892, 1.067635], 20.977560, 21.050358),
    ("laplace", None): ([-0.321098, -0.703199, -0.779669, 0.563032], 3.296774, 11.724373),
    ("softmax", 3): ([0.647885, 0.101184, 0.301480, 1.181484], 30.849860, 30.849860),
}


@pytest.mark.parametrize(("weights", "chunk"), GOLDEN)
def test_the_authors_numbers(weights: str, chunk: int | None):
    """Of their module in both directions, its norm left out, less its input: 5 tokens, or 6 in
    chunks, of which the last is padding. Its parameters are waves in the order of their names."""
    n = 5 if chunk is None else 6
    options = {"weights": weights, "chunk": chunk, "lag0": "twice", "max_len": n}
    mixer = mega(d_model=4, **options)
    with torch.no_grad():
        copy_authors(mixer)
    real = torch.arange(n).unsqueeze(0) < n - 1
    out = mixer(wave((1, n, 4), 0.4), real)[:, :-1]
    first, total, sizes = GOLDEN[weights, chunk]
    # Theirs has the two constants of laplace to six places.
    assert_golden(out, first, total, sizes, close=1e-6 if weights == "softmax" else 1e-5)


def copy_authors(mixer: Mega) -> None:
    """Of E = 4, s = 3, F = 8, N = 2: theirs holds both directions in one tensor, q and k in one, a
    bias behind the attention, and u, z, r, W_m in one map."""
    for i, name in enumerate(("beta", "gamma")):
        q, k = wave((2, 3), 0.1 * i, 0.7)
        getattr(mixer, f"{name}_q").copy_(q)
        getattr(mixer, f"{name}_k").copy_(k)
    for i, name in enumerate(("alpha", "beta", "delta", "gamma"), 4):
        ahead, behind = wave((8, 2), 0.1 * i, 0.7).chunk(2)
        getattr(mixer.average.ahead, name).copy_(ahead)
        getattr(mixer.average.behind, name).copy_(behind)
    mixer.average.omega.copy_(wave((4,), 0.8, 0.7))
    bias, weight = wave((19,), 0.9, 0.7), wave((19, 4), 1.0, 0.7)
    bias[15:] += wave((4,), 0.2, 0.7)
    z = torch.zeros(19, dtype=torch.bool)
    z[4:7] = True
    mixer.shared.weight.copy_(weight[z])
    mixer.shared.bias.copy_(bias[z])
    mixer.read.weight.copy_(weight[~z])
    mixer.read.bias.copy_(bias[~z])
    mixer.inner.weight.copy_(wave((4, 8), 0.3, 0.7))
    mixer.R.copy_(wave((len(mixer.R),), 1.1, 0.7))
    mixer.value.bias.copy_(wave((8,), 1.2, 0.7))
    mixer.value.weight.copy_(wave((8, 4), 1.3, 0.7))


def test_laplace_is_near_the_square_of_a_relu():
    """Its mean and variance are chosen so that both meet with the same slope at sqrt(2)."""
    t = torch.tensor([-1.0, 0.0, 0.5**0.5, 2.0], dtype=torch.float64)
    torch.testing.assert_close(laplace(t)[2], torch.tensor(0.5).double())
    assert laplace(t)[0] < 1e-8
    assert laplace(t)[3] > 1 - 1e-5
    gradient = torch.func.grad(laplace)(t[2])
    torch.testing.assert_close(gradient, torch.tensor(2**0.5).double())  # as of t^2 at sqrt(1/2)


def test_dropout_takes_weights():
    """All of them where it rounds to 1: then values do not matter."""
    mixer, x = mega(dropout=0.999999).train(), torch.randn(1, 8, 6).double()
    without = mixer(x)
    with torch.no_grad():
        mixer.value.weight.mul_(2)
    torch.testing.assert_close(mixer(x), without)


def test_chunks_are_linear_in_memory():
    peaks = []
    for n in (1024, 2048):
        mixer = luna.mixer("mega", d_model=8, n_heads=1, max_len=n, chunk=64)
        with Sizes() as sizes:
            mixer(torch.randn(1, n, 8)).sum().backward()
        peaks.append(sizes.peak)
        assert not any(shape.count(n) > 1 for shape in sizes.shapes)
    assert peaks[1] < 2.5 * peaks[0]


def test_it_begins_as_the_authors_do():
    mixer = luna.mixer("mega", d_model=64, n_heads=1, max_len=256)
    for part in (mixer.value, mixer.shared, mixer.read, mixer.inner):
        assert abs(part.weight.std() - 0.02) < 0.002
    assert (mixer.read.bias == 0).all()
    assert abs(mixer.R.std() - 0.02) < 0.005
    assert (mixer.beta_q == 0).all()


def test_long_sequences_in_float32():
    mixer, x = mega(chunk=64), torch.randn(1, 4096, 6).double()
    exact = mixer(x)
    single = mixer.float()(x.float())
    assert (single - exact).norm() / exact.norm() < 1e-4
