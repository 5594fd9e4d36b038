"""The iterative inverse of Nyströmformer and Skyformer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import luna
from luna.inverse import initial_constant, inverse


def stochastic(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).softmax(-1)


def test_converges_on_a_well_conditioned_matrix():
    m = 16
    A = 0.9 * torch.eye(m, dtype=torch.float64) + 0.1 / m
    Z = inverse(A, 6)
    assert (A @ Z - torch.eye(m)).abs().max() < 1e-12


def test_one_step_on_a_scalar():
    """A = x, c = A: Z_0 = 1, so A Z_0 = x = 0.3 and one step makes it 1 - 3/4 0.7^3 - 1/4 0.7^4."""
    x = 0.3
    A = torch.tensor([[x, 0.0], [0.0, 1.0]], dtype=torch.float64)  # column sums 0.3 and 1
    Z = inverse(A, 1)  # c = 1, Z_0 = A^T: the first eigenvalue of A Z_0 is x²
    e = 1 - x**2
    assert float((A @ Z)[0, 0]) == pytest.approx(1 - (0.75 * e**3 + 0.25 * e**4), abs=1e-15)

    half = torch.tensor([[x**0.5, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert float((half @ inverse(half, 1))[0, 0]) == pytest.approx(0.682725, abs=1e-12)


def test_small_directions_are_left_out():
    """A direction of A Z_0 = x << 1 grows by 13/4 per step and no faster."""
    x = 1e-5
    A = torch.diag(torch.tensor([x**0.5, 1.0], dtype=torch.float64))
    grown = float((A @ inverse(A, 6))[0, 0])
    assert grown == pytest.approx(x * 3.25**6, rel=0.05)


def test_exact_is_the_pseudo_inverse():
    A = stochastic(2, 3, 8, 8)
    assert (A @ inverse(A, None) - torch.eye(8)).abs().max() < 1e-11
    flat = torch.full((4, 4), 0.25, dtype=torch.float64)  # rank 1: its pseudo-inverse is itself
    assert (inverse(flat, None) - flat).abs().max() < 1e-14


def test_original_constant_is_shared_by_the_batch():
    A = stochastic(2, 3, 8, 8)
    sharper = A.clone()
    sharper[1] = (40 * A[1]).softmax(-1)
    assert initial_constant(A, "original").shape == ()
    assert torch.equal(
        initial_constant(A, "per_head").amax(), initial_constant(A, "original")
    )  # the same column sum, of one matrix or of all
    same = [inverse(t, 6, "per_head")[0] for t in (A, sharper)]
    coupled = [inverse(t, 6, "original")[0] for t in (A, sharper)]
    assert torch.equal(*same)
    assert (coupled[0] - coupled[1]).abs().max() > 1e-3


def test_per_head_constant_is_the_product_of_norms():
    A = stochastic(2, 3, 8, 8)
    norms = torch.linalg.matrix_norm(A, 1) * torch.linalg.matrix_norm(A, float("inf"))
    assert (initial_constant(A, "per_head").flatten(1) - norms).abs().max() < 1e-14


@pytest.mark.parametrize("name", ["nystrom", "skyformer"])
def test_the_constant_is_the_profiles(name):
    slot = {"n_heads": 2, "head_dim": 8, "max_len": 16}
    assert luna.build(name, **slot).constant == "per_head"
    assert luna.build(name, **slot, profile="published").constant == "original"
    assert luna.build(name, **slot, profile="published", constant="per_head").constant == "per_head"
