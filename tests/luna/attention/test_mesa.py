"""The mesa layer: least squares, the authors' numbers, and its causal form by factors of chunks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from luna.ridge import prefix_regressions, regression

from ..kit import assert_defined, assert_golden, build, by_example, difference, qkv, shaken, wave


def of_length_1(t: Tensor) -> Tensor:
    return t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def least_squares(q: Tensor, k: Tensor, v: Tensor, ridge: Tensor) -> Tensor:
    """The map W that fits values to keys with sqrt(ridge) W near 0, by LAPACK's least squares on
    rows (k_j, v_j) and one row (sqrt(ridge) e_c, 0) for each channel of the keys; then q W."""
    d = k.shape[-1]
    weights = ridge.sqrt().view(1, -1, 1, 1) * torch.eye(d, dtype=k.dtype)
    rows = torch.cat([k, weights.expand(*k.shape[:2], d, d)], 2)
    values = torch.cat([v, v.new_zeros(*v.shape[:2], d, v.shape[-1])], 2)
    return q @ torch.linalg.lstsq(rows, values).solution


def ridge_of(method: Any) -> Tensor:
    return 0.25 + softplus(method.raw_ridge.detach())


def test_it_is_least_squares():
    """In both directions, of the real tokens; to 1e-10, where 1e-6 was asked for."""
    method = shaken("mesa", norm=False)

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return least_squares(of_length_1(silu(q)), of_length_1(silu(k)), v, ridge_of(method))

    assert_defined(method, by_example(defined), d_v=5)


def test_causal_it_is_least_squares_of_each_prefix():
    method = shaken("mesa", norm=False, causal=True)

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = of_length_1(silu(q)), of_length_1(silu(k))
        rows = [
            least_squares(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], ridge_of(method))
            for i in range(q.shape[2])
        ]
        return torch.cat(rows, 2)

    assert_defined(method, by_example(defined), d_v=5)


def given() -> tuple[Tensor, ...]:
    """What the golden is of: q, k of length 1 and v (1, 2, 6, 3), and a ridge for each head."""
    q, k, v = (wave((1, 6, 2, 3), s).transpose(1, 2) for s in (0, 1, 2))
    q, k = (t / t.norm(dim=-1, keepdim=True) for t in (q, k))
    return q, k, v, torch.tensor([0.5, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_the_authors_numbers(chunk: int):
    """Of the exact form in fla-org/flash-linear-attention, without its gates."""
    q, k, v, ridge = given()
    first = [0.485396, 0.460794, 0.431587, 0.244686, 0.221638, 0.196375]
    first += [0.569819, 0.516479, 0.457979, 0.246150, 0.204167, 0.160144]
    out = prefix_regressions(q, k, v, ridge, chunk=chunk)[1]
    assert_golden(out.transpose(1, 2), first, 4.483475, 10.382320)
    whole = regression(q, k, v, ridge)
    assert difference(whole[:, :, -1], out[:, :, -1]) < 1e-12


@pytest.mark.parametrize("chunk", [1, 7, 16, 37, 64])
def test_chunks_after_a_state_with_gradients(chunk: int):
    """Around the borders of chunks every row is the regression of its own prefix."""
    q, k = (of_length_1(wave((2, 2, 37, 8), s, 2.0)).requires_grad_() for s in (0, 1))
    v = wave((2, 2, 37, 5), 2)
    ridge = torch.tensor([0.3, 1.0], dtype=torch.float64, requires_grad=True)
    expected = torch.cat(
        [regression(*(t[:, :, : i + 1] for t in (q, k, v)), ridge)[:, :, -1:] for i in range(37)],
        2,
    )
    state, first = prefix_regressions(*(t[:, :, :11] for t in (q, k, v)), ridge)
    later = [t[:, :, 11:] for t in (q, k, v)]
    second = prefix_regressions(*later, ridge, state, chunk)[1]
    assert difference(torch.cat([first, second], 2), expected) < 1e-11
    weights = wave((2, 2, 37, 5), 5)
    whole = prefix_regressions(q, k, v, ridge, chunk=chunk)[1]
    ours = torch.autograd.grad((whole * weights).sum(), (q, k, ridge))
    theirs = torch.autograd.grad((expected * weights).sum(), (q, k, ridge))
    assert all(difference(a, b) < 1e-9 for a, b in zip(ours, theirs, strict=True))


def test_similar_keys_do_not_disturb_each_other():
    """Two keys at 45 degrees: what one holds is read as it is, where sums would mix both in."""
    k = torch.tensor([[1.0, 0.0], [math.sqrt(0.5), math.sqrt(0.5)]]).double()[None, None]
    v = torch.eye(2).double()[None, None]
    out = regression(k, k, v, torch.tensor([1e-9]).double())
    assert difference(out, v) < 1e-7
    assert (k @ k.mT @ v - v).abs().max() > 0.7


def test_a_large_ridge_leaves_the_sums_of_linear_attention():
    q, k, v, _ = given()
    ridge = torch.tensor([1e8, 1e8]).double()
    assert difference(1e8 * regression(q, k, v, ridge), q @ k.mT @ v) < 1e-6


def test_the_ridge_is_of_each_head_positive_and_not_decayed():
    method = build("mesa")
    assert torch.allclose(method.ridge(torch.zeros(1)), torch.ones(2))
    torch.nn.init.constant_(method.raw_ridge, -1e4)
    assert torch.equal(method.ridge(torch.zeros(1)), torch.full((2,), 0.25))
    assert [rate.decay for rate in method.rates.values()] == [False]
    assert method(*(t.float() for t in qkv())).isfinite().all()


def test_the_norm():
    plain, normed = shaken("mesa", norm=False), shaken("mesa")
    normed.load_state_dict(plain.state_dict(), strict=False)
    out = plain(*qkv())
    rms = (out.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert difference(normed(*qkv()), normed.norm.gain * out / rms) < 1e-10


@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_in_float32(causal: bool):
    """Thousands of keys in 32 dimensions, among them 500 that are equal."""
    method = build("mesa", causal=causal, norm=False)
    q, k, v = qkv(1, 2, 4096)
    k[:, :, 100:600] = k[:, :, :1]
    exact = method.double()(q, k, v)
    single = method.float()(q.float(), k.float(), v.float())
    assert (single - exact).norm() / exact.norm() < 1e-4
