"""LUNA against the paper's listing; its options and the kernels of its ablation."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luna
from luna.attention.luna import Listing, Luna
from luna.feature_maps.options import LunaOptions

from ..kernels.kit import assert_close, with_gradients
from ..kit import difference, mask_of, qkv, shaken
from ..listing import by_listing, listed

B, H, n, d = 2, 2, 37, 16
F64 = torch.float64


def build(*, seed: int = 0, **options) -> Luna:
    return shaken("luna", init=seed, **({"head_dim": d} | options))


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    return qkv(B, H, n, d, seed=seed)


def normalise(kernel: Tensor, v: Tensor) -> Tensor:
    return kernel @ v / kernel.sum(-1, keepdim=True)


def set_(parameter: nn.Parameter, value: Tensor | float) -> None:
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(value, dtype=parameter.dtype).expand_as(parameter))


# ---------------------------------------------------------------------- the paper's listing


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"share": "head", "nonneg": False, "evaluate": "piecewise"},
        {"shared_channels": True, "activation": "leaky_relu"},
        {"activation": "gelu", "nonneg": "softplus"},
        {"activation": "tanh", "shared_channels": True, "nonneg": False},
        {"M": 3, "L": 5, "hidden": 7, "nonneg": "exp", "chunk": 100},
    ],
    ids=str,
)
def test_every_evaluation_is_the_listing(options: dict[str, Any], causal: bool):
    """Values and every gradient. (tests/luna/kernels has the fused evaluation.)"""
    attention = build(causal=causal, **{"evaluate": "dense"} | options).train()
    qkv, mask = [t.requires_grad_() for t in inputs()], mask_of("scatter", n=n)
    ours, theirs = (
        with_gradients(f(*qkv, mask), [*qkv, *attention.parameters()])
        for f in (attention, partial(listed, attention))
    )
    assert_close(ours, theirs, 1e-11)


def test_initialisation_is_the_listings():
    """W ~ N(0, 1) / sqrt(d), beta 0, torch's own for linear layers: moments and bounds."""
    torch.manual_seed(0)
    sizes = {"M": 200, "L": 200}
    attention = luna.build("luna", n_heads=1, head_dim=d, max_len=8, **sizes)
    theirs = Listing(d, LunaOptions(**sizes))
    projections, channels = attention.map.projections, attention.map.channels
    assert (projections.bias == 0).all()
    assert projections.weight.abs().max() > 3 * d**-0.5  # normal, not uniform
    for weight, reference in [
        (projections.weight, [theirs.W]),
        (channels.e, [m.weight for m in theirs.first]),
        (channels.f, [m.bias for m in theirs.first]),
        (channels.a, [m.weight for m in theirs.second]),
        (channels.g, [m.bias for m in theirs.second]),
    ]:
        drawn = torch.cat([t.flatten() for t in reference])
        assert weight.std().item() == pytest.approx(drawn.std().item(), rel=0.1)
        assert weight.mean().abs() < 0.1 * drawn.abs().max()
        if weight is not projections.weight:  # a normal's largest is anything
            assert weight.abs().max().item() == pytest.approx(drawn.abs().max().item(), rel=0.05)


def test_features_are_the_listings_projection_by_projection():
    """phi_{iL+l}: the order counts for envelopes and checkpoints, not for the output."""
    attention, x = build(M=3, L=5), inputs()[0]
    assert difference(attention.phi_q(x, None), by_listing(attention).phi(x)) < 1e-13


# ---------------------------------------------------------------------- special cases, envelopes


@pytest.mark.parametrize("squash", ["sigmoid", "softplus", "exp"])
@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("envelope", ["scalar", "norm"])
def test_scalar_envelope_weights_keys_only(envelope: str, squash: str, hidden: int):
    attention = build(envelope=envelope, envelope_squash=squash, envelope_hidden=hidden)
    q, k, v = inputs()
    if (envelope, hidden) == ("norm", 0):  # the start at which it is Performer's
        fresh = luna.build("luna", n_heads=H, head_dim=d, max_len=8, envelope="norm").map.envelope
        assert (fresh.out.weight == -0.5 * d**-0.5).all()
        assert (fresh.out.bias == 0).all()
    h = attention.map.envelope(k)  # (B, H, n, 1)
    assert h.shape == (B, H, n, 1)
    assert h.std() > 1e-3
    attention.map.envelope, envelope = None, attention.map.envelope
    plain = attention.phi_q(q, None) @ attention.phi_k(k, None).mT
    attention.map.envelope = envelope
    assert difference(attention(q, k, v), normalise(plain * h.mT, v)) < 1e-12


def test_vector_envelope_does_not_cancel():
    attention = build(envelope="vector", M=3, L=5)
    q, k, v = inputs()
    out = attention(q, k, v)
    phi_q, phi_k = attention.features(q, k, None)
    assert difference(out, normalise(phi_q @ phi_k.mT, v)) < 1e-12
    G, g = attention.map.envelope.out.weight[0], attention.map.envelope.out.bias[0]
    gates = torch.sigmoid(q @ G.mT + g)  # (B, H, n, L)
    attention.map.envelope = None
    ungated = attention.phi_q(q, None)
    for i in range(3):
        for l in range(5):
            expected = gates[..., l] * ungated[..., 5 * i + l]
            assert difference(phi_q[..., 5 * i + l], expected) < 1e-13
    assert difference(out, normalise(ungated @ phi_k.mT, v)) > 1e-3


def test_each_of_two_maps_has_one_statistic():
    attention = build(ch_rms=True, tie_qk=False)
    assert len(attention.map.rms) == len(attention.map_k.rms) == 1


@pytest.mark.parametrize("share", ["layer", "head"])
@pytest.mark.parametrize("ch_rms", [True, "shared"])
def test_channel_rms_statistics(share: str, ch_rms: bool | str):
    """Over real tokens, of q and of k or of both together; a head has its own where it has its own
    map."""
    attention = build(ch_rms=ch_rms, share=share).train()
    q, k, v = (torch.cat([t, t.flip(0)[:1]]) for t in inputs())  # three: a half is no third
    k = 3 * k  # so that the statistics differ
    m = mask_of("prefix", 3, n=n)
    garbage = torch.where(m[:, None, :, None], q, 50.0)
    attention(garbage, k, v, m)

    plain = build(share=share)
    plain.load_state_dict(attention.state_dict(), strict=False)
    calls = [torch.cat([q, k])] if ch_rms == "shared" else [q, k]
    expected = []
    for x, rms in zip(calls, attention.map.rms, strict=True):
        y = plain.map(x, None).unflatten(-1, (8, 8)) * math.sqrt(8)
        real = m.repeat(len(x) // len(m), 1)[:, None, :, None, None].expand_as(y)
        square = (y.square() * real).sum((0, 2, 3)) / real.sum((0, 2, 3))  # (H, L)
        square = square.mean(0, keepdim=True) if share == "layer" else square
        assert difference(rms.mean_square, square.detach()) < 1e-12
        gain = (0.1 / (square + 1e-6).sqrt()).clamp(max=1)  # (H or 1, L)
        assert (gain < 0.9).any()
        expected.append((y * gain[:, None, None, :] / math.sqrt(8)).flatten(-2))
    expected = expected[0].chunk(2) if ch_rms == "shared" else expected
    got = attention.features(q, k, m)
    assert difference(got[0], expected[0]) < 1e-5  # 0.1 / (rms + 1e-6)
    assert difference(got[1], expected[1] * m[:, None, :, None]) < 1e-5


def test_running_average_has_momentum_one_tenth():
    attention = build(ch_rms=True).train()
    rms = attention.map.rms[0]
    ones = torch.ones(1, 1, 4, 2, 8, dtype=F64)
    rms(3 * ones, None)
    assert rms.mean_square.unique().tolist() == [9.0]  # the first batch starts it
    rms(ones, None)
    assert rms.mean_square[0, 0].item() == pytest.approx(9 + 0.1 * (1 - 9))
    before = rms.mean_square.clone()
    rms(ones, torch.zeros(1, 4, dtype=torch.bool))  # a batch without a token says nothing
    assert torch.equal(rms.mean_square, before)
    assert difference(rms(0.05 * ones, None), 0.05 * ones) == 0  # it only shrinks
    assert rms(ones, None).max().item() == pytest.approx(0.1, rel=1e-4)


# ---------------------------------------------------------------------- the kernels of the ablation


def test_bank_coef_is_the_sum_over_channels():
    """phi_i = D^(-1/2) sum_l c_l psi_l(w_i . x + beta_i), i = 1..D; c starts at 1 / L."""
    fresh = luna.build("luna", n_heads=H, head_dim=d, max_len=64, kernel="bank_coef")
    assert (fresh.map.coef == 1 / 8).all()
    attention = build(kernel="bank_coef", M=3, L=4)
    x = inputs()[0]
    projections = attention.map.projections
    assert projections.weight.shape == (1, 12, d)
    u = x @ projections.weight[0].mT + projections.bias[0]
    expected = (by_listing(attention).psi(u) * attention.map.coef[0]).sum(-1) / math.sqrt(12)
    assert difference(attention.phi_q(x, None), expected) < 1e-13


def test_bank_coef_concat_is_the_listing_rescaled():
    bank, x = build(kernel="bank_coef_concat"), inputs()[0]
    set_(bank.map.coef, bank.map.coef.abs())
    concat = bank.phi_q(x, None)
    set_(bank.map.channels.a, bank.map.channels.a * bank.map.coef.unsqueeze(-1))
    set_(bank.map.channels.g, bank.map.channels.g * bank.map.coef)
    assert difference(concat, by_listing(bank).phi(x)) < 1e-13


def test_random_phases():
    """sqrt(2 / D) cos(w_i . x' + b_i), b over the whole circle: in the mean the Gaussian kernel of
    the pairs, with the same frequencies."""
    attention = build(kernel="rff", phases=True, M=9, L=1)
    fourier, x = attention.map.fourier, inputs()[0]
    pairs = build(kernel="rff", M=9, L=2).map.fourier
    assert torch.equal(fourier.Omega, pairs.Omega)
    expected = math.sqrt(2 / 9) * torch.cos(x * d**-0.25 @ fourier.Omega.mT + fourier.b)
    assert difference(attention.phi_q(x, None), expected) < 1e-13
    wide = build(kernel="rff", phases=True, M=40_000, L=1)
    assert 0 <= wide.map.fourier.b.min() < 0.01 < 6.27 < wide.map.fourier.b.max() <= 2 * math.pi
    q, k = (t[:1, :1, :6] for t in inputs()[:2])
    kernel = (-torch.cdist(q, k).square() / (2 * math.sqrt(d))).exp()
    assert difference(wide.phi_q(q, None) @ wide.phi_k(k, None).mT, kernel) < 0.03


@pytest.mark.parametrize("psi", ["learned", "frozen"])
@pytest.mark.parametrize("projections", ["learned", "frozen", "gaussian"])
def test_frozen_parts_are_as_drawn_and_never_trained(projections: str, psi: str):
    """In any combination: what is not trained is no parameter, so that no stage of training or
    conversion can touch it, but a checkpoint has it under the same name."""
    attentions = []
    for options in ({}, {"projections": projections, "psi": psi}):
        torch.manual_seed(0)
        attentions.append(luna.build("luna", n_heads=H, head_dim=d, max_len=8, **options))
    plain, attention = attentions
    frozen = (
        {"map.projections.weight", "map.projections.bias"} if projections != "learned" else set()
    )
    if psi == "frozen":
        frozen |= {f"map.channels.{name}" for name in "efag"}
    trained = {name for name, _ in attention.named_parameters()}
    assert trained == set(dict(plain.named_parameters())) - frozen
    drawn, state = plain.state_dict(), attention.state_dict()
    for name in trained | frozen:
        unit = d**0.5 if (projections, name) == ("gaussian", "map.projections.weight") else 1
        torch.testing.assert_close(state[name], drawn[name] * unit)
    attention.load_state_dict(drawn)
    q, k, v = torch.randn(3, 1, H, 8, d)
    assert torch.equal(attention(q, k, v), plain(q, k, v))


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "head_dim", "count"),
    [
        ({}, 32, 1808),
        ({"shared_channels": True}, 32, 912),
        ({}, 64, 2064),
        ({"share": "head"}, 64, 12 * 2064),
        ({"tie_qk": False}, 32, 2 * 1808),
        ({"envelope": "scalar"}, 32, 1808 + 33),
        ({"envelope": "vector"}, 32, 1808 + 8 * 33),
        ({"kernel": "bank_coef"}, 32, 64 * 33 + 1544 + 8),
        ({"kernel": "rff"}, 32, 0),
    ],
)
def test_parameters(options: dict, head_dim: int, count: int):
    """M (d + 1) + L (3 w + 1), or 2 w + L (w + 1) for the shared MLP."""
    attention = luna.build("luna", n_heads=12, head_dim=head_dim, max_len=8, **options)
    assert sum(p.numel() for p in attention.parameters()) == count


@pytest.mark.parametrize("ch_rms", [True, "shared"])
def test_channel_rms_is_fixed_in_evaluation(ch_rms: bool | str):
    """An example does not know the others, and a loaded checkpoint gives the same."""
    attention, m = build(ch_rms=ch_rms).train(), mask_of("scatter", n=n)
    attention(*inputs(1), m)
    q, k, v = inputs(9)
    out = attention.eval()(q, k, v, m)
    louder = torch.cat([q[:1], 9 * q[1:]])
    assert difference(attention(louder, k, v, m)[:1], out[:1]) < 1e-12
    other = build(ch_rms=ch_rms, seed=5)
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other(q, k, v, m), out)


@pytest.mark.parametrize(
    ("options", "signed"),
    [
        ({}, False),
        ({"nonneg": "exp", "envelope": "norm", "envelope_squash": "exp"}, False),
        ({"nonneg": False, "activation": "tanh"}, True),
        ({"envelope": "scalar", "envelope_squash": "none"}, True),
        ({"kernel": "bank_coef"}, True),
        ({"kernel": "rff"}, True),
    ],
    ids=str,
)
def test_signed_kernels_say_so(options: dict, signed: bool):
    """Negative features need the signed denominator; without one outputs would blow up."""
    attention = build(**options)
    if "coef" in dict(attention.map.named_parameters()):
        set_(attention.map.coef, -1.0)
    assert (attention.phi_q(inputs()[0], None) < 0).any() == signed
    assert attention.signed == signed
    assert attention.traits().convex != signed
