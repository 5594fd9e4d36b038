"""The normalised linear attention that every feature map runs on (luna/linear.py)."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from luna.base import LunaError, Slot
from luna.linear import KernelAttention
from luna.sums import causal_linear_sums, denominator, linear_sums

from .kit import Sizes, build, difference, mask_of, normalised, qkv

B, H, n, D, e = 2, 2, 37, 6, 5


def features(seed: int = 0, signed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    phi_q, phi_k, v = (
        torch.randn(B, H, n, width, generator=generator, dtype=torch.float64) for width in (D, D, e)
    )
    return (phi_q, phi_k, v) if signed else (phi_q.abs(), phi_k.abs(), v)


def test_denominator_keeps_the_sign():
    c = torch.tensor([-2.0, -1e-9, -0.0, 0.0, 1e-9, 2.0], dtype=torch.float64)
    signed = [-2.0, -1e-3, 1e-3, 1e-3, 1e-3, 2.0]  # sgn(0) = +1
    assert denominator(c, 1e-3, signed=True).tolist() == signed
    assert denominator(c, 1e-3, signed=False).tolist() == [1e-3] * 5 + [2.0]


def test_memory_holds_no_state_per_position():
    """A plain cumsum would store n x D x e numbers; chunks of C store n/C of these states."""
    n, C, D, e = 2048, 128, 16, 16
    tensors = [torch.rand(1, 1, n, width, requires_grad=True) for width in (D, D, e)]
    with Sizes() as sizes:
        normalised(causal_linear_sums(*tensors, chunk=C)).sum().backward()
    assert sizes.largest <= n * C
    with Sizes() as sizes:
        normalised(linear_sums(*tensors)).sum().backward()
    assert sizes.largest <= n * max(D, e)


class Relu(KernelAttention):
    name: ClassVar[str] = "relu"
    feature_dim = D

    def phi(self, x: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        return x.relu()


def relu(**slot) -> Relu:
    return Relu(Slot(n_heads=H, head_dim=D, max_len=64, **slot)).eval()


def dead_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Queries 0 and 5 of example 0, head 0 have no positive feature; padded ones too, elsewhere."""
    q, k, v = features(signed=True)
    q = q.abs()
    q[0, 0, [0, 5]] *= -1
    q[1, :, 36] *= -1
    return q, k, v


@pytest.mark.parametrize("causal", [False, True])
def test_dead_queries_return_zero_and_are_counted(causal: bool):
    q, k, v = dead_inputs()
    k = k.abs()
    m = mask_of("full", n=n)
    m[1, 30:] = False
    attention = relu(causal=causal)
    out = attention(q, k, v, m)
    assert (out[0, 0, [0, 5]] == 0).all()
    assert attention.dead_fraction.item() == pytest.approx(2 / (H * (n + 30)))
    attention(q, k, v)
    assert attention.dead_fraction.item() == pytest.approx((2 + H) / (B * H * n))


# ---------------------------------------------------------------------- what divides


def normed(kernel: Tensor, sizes: Tensor, v: Tensor, normalise: str) -> Tensor:
    N = kernel @ v
    if normalise == "rms":
        return N / N.square().mean(-1, keepdim=True).sqrt()
    c = (kernel if normalise == "sum" else sizes).sum(-1, keepdim=True)
    return N / torch.where(c < 0, c.clamp(max=-1e-2), c.clamp(min=1e-2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalise", ["sum", "abs", "rms"])
def test_signed_features_are_divided_as_the_slot_says(normalise: str, causal: bool):
    """A gain per channel multiplies normalise=rms."""
    q, k, v = qkv(n=n, d=8)
    attention = build("rff", head_dim=8, P=5, normalise=normalise, causal=causal)
    phi_q, phi_k = attention.features(q, k, None)
    kernel, sizes = phi_q @ phi_k.mT, phi_q.abs() @ phi_k.abs().mT
    if causal:
        kernel, sizes = kernel.tril(), sizes.tril()
    expected = normed(kernel, sizes, v, normalise)
    assert sum(p.numel() for p in attention.parameters()) == (2 * 8 if normalise == "rms" else 0)
    if normalise == "rms":
        gain = torch.linspace(0.5, 2, 16).view(2, 1, 8)
        attention.gain.data.copy_(gain)
        expected = expected * gain
    assert difference(attention(q, k, v), expected) < 1e-9 * expected.abs().max()


def test_a_query_without_features_is_0_and_counted_under_rms():
    q, k, v = dead_inputs()
    attention = Relu(Slot(n_heads=H, head_dim=D, max_len=64, normalise="rms")).eval()
    q.requires_grad_()
    out = attention(q, k.abs(), torch.cat([v, v[..., :1]], -1))
    assert (out[0, 0, [0, 5]] == 0).all()
    assert attention.dead_fraction.item() == pytest.approx((2 + H) / (B * H * n))
    assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("softmax", {"normalise": "rms"}, "'softmax' does not take normalise='rms'"),
        ("transnormer", {"normalise": "abs"}, "'transnormer' does not take normalise='abs'"),
        ("linear", {"normalise": "sums"}, "must be one of sum, abs, rms, got 'sums'; did you mean"),
    ],
)
def test_what_does_not_divide_so_is_refused(name: str, options: dict, words: str):
    with pytest.raises(LunaError, match=words):
        build(name, **options)


def test_rms_has_gains_for_values_as_wide_as_a_head():
    with pytest.raises(LunaError, match="a gain for each of 32 channels"):
        build("linear", normalise="rms")(*qkv(d_v=5))
