"""KL-Transformer: its kernels, the authors' numbers, and when it draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import luna
from luna.attention.klt import KLT

from ..kit import assert_defined, assert_golden, averaged, build, difference, qkv, shaken, wave


def frequencies(klt: KLT, omega: Tensor) -> tuple[Tensor, ...]:
    """w_r, and w'_r, (H, d, m), head by head."""
    if klt.weighted:
        return ((klt.spread / 2).exp().unsqueeze(-1) * omega + klt.mu.unsqueeze(-1),)
    turned = torch.stack([sigma.mT @ omega for sigma in klt.spread])
    return turned + klt.mu.unsqueeze(-1), turned - klt.mu.unsqueeze(-1)


@pytest.mark.parametrize("kind", ["gmm_prf", "gmm_rks"])
@pytest.mark.parametrize("causal", [False, True])
def test_formula(kind: str, causal: bool):
    klt = shaken("klt", kind=kind, m=20, smoothing=2.0, causal=causal)
    klt.samples = wave((32, 20), 0.4, 1.5)

    def dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q, k = (t * 32**-0.25 for t in (q, k))
        w = frequencies(klt, klt.samples)
        if kind == "gmm_prf":
            phi_q, phi_k = ((t @ w[0] - t.square().sum(-1, keepdim=True)).exp() for t in (q, k))
            A = phi_q @ phi_k.mT
        else:
            gap = q.unsqueeze(3) - k.unsqueeze(2)  # (B, H, n, n, d)
            A = sum((gap @ each.unsqueeze(1)).cos().mean(-1) for each in w) + 4
        return averaged(A, v, mask, causal=causal)

    assert_defined(klt, dense, d_v=5)


def given(kind: str, omega: Tensor, spread: Tensor) -> KLT:
    options = {"kind": kind, "m": omega.shape[1]}
    klt = luna.build("klt", n_heads=2, head_dim=4, max_len=5, **options).double()
    klt._omega = omega
    with torch.no_grad():
        klt.spread.copy_(spread)
        klt.mu.copy_(wave((2, 4), 0.1))
    return klt


def test_the_authors_numbers():
    """Of their feature maps, for 2 heads of 4, in their order of axes (B, n, H, d)."""
    q = wave((1, 5, 2, 4), 0).transpose(1, 2)
    prf = given("gmm_prf", wave((4, 3), 0.3), wave((2, 4), 0.6))
    phi, a = prf.weigh(q)
    features = phi * a.exp().unsqueeze(-1) * 3**-0.5
    first = [1.020089, 1.050303, 1.075701, 4.092067, 4.715210, 5.339049]
    first += [2.420296, 2.964746, 3.546702, 7.815707, 10.335720, 13.249933]
    assert_golden(features.transpose(1, 2), first, 99.130373)

    rks = given("gmm_rks", wave((4, 2), 0.3), wave((2, 4, 4), 0.6))
    first = [0.393298, 0.323173, 0.587636, 0.628935, 0.537553, 0.481209]
    first += [0.459387, 0.518110, 0.36, 0.406034, 0.344797, 0.578910]
    assert_golden(rks.phi_q(q, None).transpose(1, 2), first, 8.629662, 40.145230)


def test_without_spread_and_mean_it_is_the_gaussian_kernel():
    klt = build("klt", m=200_000).double()
    with torch.no_grad():
        klt.spread.zero_()
        klt.mu.zero_()
    klt._omega = klt._draw()
    x, y = (0.3 * t for t in qkv(1, 2, 4)[:2])
    (phi, a), (psi, b) = klt.weigh(x), klt.weigh(y)
    found = (phi * psi).mean(-1) * (a + b).exp()
    expected = (-(x - y).square().sum(-1) / (2 * 32**0.5)).exp()
    assert difference(found, expected) < 0.02


def test_cosines_of_a_token_with_itself():
    """2 + s^2."""
    klt = shaken("klt", kind="gmm_rks", m=8)
    klt._omega = klt._draw()
    phi = klt.phi_q(qkv()[0], None)
    torch.testing.assert_close(phi.square().sum(-1), torch.full_like(phi[..., 0], 2 + 0.36**2))


def test_training_draws_anew_and_an_evaluation_does_not():
    klt, tokens = build("klt", m=8).double(), qkv()
    assert torch.equal(klt(*tokens), klt(*tokens))
    klt.train()
    assert not torch.equal(klt(*tokens), klt(*tokens))
    assert not torch.equal(build("klt", m=8, seed=1).double()(*tokens), klt.eval()(*tokens))


def test_queries_and_keys_of_a_training_step_share_a_draw():
    """In the causal form too: its rows are those of the matrix."""
    klt, (q, k, v) = shaken("klt", m=8, causal=True).train(), qkv()
    state = klt.get_extra_state()
    out = klt(q, k, v)
    klt.set_extra_state(state)
    assert difference(klt.matrix(q, k) @ v, out) < 1e-10


def test_initialisation():
    """Xavier's bounds, of torch's fan-in and fan-out."""
    prf, rks = build("klt"), build("klt", kind="gmm_rks")
    for t, bound in (
        (prf.spread, (6 / (32 + 2)) ** 0.5),
        (prf.mu, 32**-0.5),
        (rks.spread, (6 / (32 * 32 + 2 * 32)) ** 0.5),
        (rks.mu, 1 / 32),
    ):
        assert 0.9 * bound < t.abs().max() <= bound
