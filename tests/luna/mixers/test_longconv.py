"""Long convolutions: FFT, tree and stream are sums over pairs, with the authors' numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import luna
from luna import LunaError
from luna.diagonal import CHUNK
from luna.mixers.longconv import LongConv, causally

from ..kit import Sizes, assert_golden, wave


def longconv(**options) -> LongConv:
    """With kernels whose numbers are mostly above the threshold."""
    torch.manual_seed(0)
    sizes = {"d_model": 3, "n_heads": 1, "max_len": 300}
    mixer = luna.mixer("longconv", **sizes | options).double().eval()
    with torch.no_grad():
        for name, p in mixer.named_parameters():
            if name.startswith("K"):
                p.mul_(10)
    return mixer


def squashed(mixer: LongConv, K: Tensor) -> Tensor:
    return K.sign() * (K.abs() - mixer.threshold).clamp(min=0)


def definition(mixer: LongConv, x: Tensor) -> Tensor:
    """With a matrix (E, n, n) of the kernels' numbers."""
    n = x.shape[1]
    M, k = x.new_zeros(x.shape[2], n, n), squashed(mixer, mixer.K)
    for i in range(n):
        for j in range(i + 1):
            M[:, i, j] = k[:, i - j]
            if not mixer.causal and j < i:
                M[:, j, i] = squashed(mixer, mixer.K_back)[:, i - j - 1]
    return mixer.outward(F.gelu(torch.einsum("eij,bje->bie", M, x) + mixer.d * x))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
def test_it_is_the_sum_over_pairs(causal: bool, n: int):
    mixer, x = longconv(causal=causal), torch.randn(2, n, 3).double()
    torch.testing.assert_close(mixer(x), definition(mixer, x), rtol=1e-10, atol=1e-10)


def test_it_streams():
    mixer, x = longconv(causal=True), torch.randn(2, 150, 3).double()
    state, out = None, []
    for part in (slice(0, 70), slice(70, 71), slice(71, 150)):
        state, rows = mixer.steps(state, x[:, part])
        out.append(rows)
    torch.testing.assert_close(torch.cat(out, 1), mixer(x), rtol=1e-10, atol=1e-10)


def test_a_stream_ends_with_its_kernel():
    mixer, x = longconv(causal=True, max_len=8), torch.randn(1, 9, 3).double()
    state, _ = mixer.steps(None, x[:, :8])
    with pytest.raises(LunaError, match="max_len=8 tokens and got 9"):
        mixer.step(state, x[:, 8])


def test_no_later_token_is_in_a_sum():
    """Where a single FFT would carry its rounding: bit by bit, over several stretches."""
    u, k = torch.randn(1, 2, 4 * CHUNK + 3), torch.randn(2, 4 * CHUNK + 3)
    for t in (1, CHUNK - 1, CHUNK, 2 * CHUNK + 5):
        later = u.clone()
        later[..., t:] *= 1e6
        assert torch.equal(causally(later, k)[..., :t], causally(u, k)[..., :t])


def test_the_authors_numbers():
    """Of their block with one kernel a channel in each direction, for 3 channels and 6 tokens, with
    waves as parameters."""
    mixer = longconv(max_len=6, threshold=0.1, output="glu")
    with torch.no_grad():
        mixer.d.copy_(wave((3,), 0, 0.7))
        K, back = wave((2, 3, 6), 0.3, 0.7)
        mixer.K.copy_(K)
        mixer.K_back.copy_(back[:, :-1])  # the last of theirs is a lag that 6 tokens have not
        mixer.outward.maps.bias.copy_(wave((6,), 0.6, 0.7))
        mixer.outward.maps.weight.copy_(wave((6, 3), 0.9, 0.7))
    first = [1.363182, 1.574258, 1.635974, 1.883645, 2.147521, 2.194453]
    first += [2.659804, 3.007525, 3.042934, 3.390326, 3.822808, 3.861925]
    assert_golden(mixer(wave((1, 6, 3), 0.4)), first, 57.894272)


def test_small_numbers_of_a_kernel_are_no_numbers():
    mixer, x = longconv(threshold=10.0), torch.randn(1, 20, 3).double()
    torch.testing.assert_close(mixer(x), mixer.outward(F.gelu(mixer.d * x)))


def test_dropout_takes_lags_for_all_examples():
    mixer, x = longconv(kernel_dropout=0.5).train(), torch.randn(1, 20, 3).double()
    torch.manual_seed(1)
    both = mixer(x.expand(2, -1, -1))
    assert torch.equal(both[0], both[1])
    assert not torch.allclose(both[:1], mixer.eval()(x))


def test_it_begins_as_the_authors_do():
    torch.manual_seed(0)
    mixer = luna.mixer("longconv", d_model=64, n_heads=1, max_len=200)
    assert abs(mixer.K.std() - 0.002) < 1e-4
    assert mixer.K_back.shape == (64, 199)  # lag 0 is in K
    K = luna.mixer("longconv", d_model=64, n_heads=1, max_len=200, init="decay").K
    assert abs(K[:, 0].std() - 0.02) < 0.005
    assert abs(K[0, 100:].std() / 0.02 - 0.47) < 0.1  # exp(-l / L), the slowest
    assert K[-1, 100:].std() < 1e-6


def test_the_causal_form_is_linear_in_memory():
    peaks = []
    for n in (1024, 2048):
        mixer = luna.mixer("longconv", d_model=4, n_heads=1, max_len=n, causal=True)
        with Sizes() as sizes:
            mixer(torch.randn(1, n, 4)).sum().backward()
        peaks.append(sizes.peak)
        assert not any(shape.count(n) > 1 for shape in sizes.shapes)
    assert peaks[1] < 2.5 * peaks[0]


def test_long_sequences_in_float32():
    mixer = longconv(max_len=4096)
    x = torch.randn(1, 4096, 3).double()
    exact = mixer(x)
    single = mixer.float()(x.float())
    assert (single - exact).norm() / exact.norm() < 1e-4
