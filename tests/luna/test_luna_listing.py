"""LUNA against the paper's listing, transcribed: one torch module per channel, loops, chunks.

The listing computes in float32; here it keeps the input's type, so that equality can be exact.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import luna

from .attention.kit import difference, qkv

B, H, n, d = 2, 2, 37, 16


class Listing(nn.Module):
    """phi of x (B, H, n, d): one W, beta for all tokens and heads, L MLPs 1 -> w -> 1 or one
    1 -> w -> L, final relu, optional channel RMS, 1 / sqrt(M)."""

    def __init__(
        self,
        d: int,
        M: int = 8,
        L: int = 8,
        w: int = 64,
        *,
        shared: bool = False,
        nonneg: bool = True,
        act: str = "relu",
        ch_rms: bool = False,
    ):
        super().__init__()
        self.ch_rms = ch_rms
        self.M, self.L, self.shared, self.nonneg = M, L, shared, nonneg
        self.W = nn.Parameter(torch.randn(M, d) / d**0.5)
        self.beta = nn.Parameter(torch.zeros(M))
        activations = {
            "relu": nn.ReLU,
            "gelu": nn.GELU,
            "tanh": nn.Tanh,
            "leaky_relu": nn.LeakyReLU,
        }
        out = L if shared else 1
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(1, w), activations[act](), nn.Linear(w, out))
            for _ in range(1 if shared else L)
        )

    def forward(self, x: Tensor, chunk: int = 1_000_000) -> Tensor:
        u = x @ self.W.T + self.beta  # (B, H, n, M)
        scalars = u.reshape(-1, 1)
        channels = [
            torch.cat([mlp(part) for part in scalars.split(chunk)], dim=0) for mlp in self.mlps
        ]
        y = torch.cat(channels, dim=-1)  # (B H n M, L)
        if self.nonneg:
            y = y.relu()
        y = y.view(*u.shape, self.L)
        if self.ch_rms:
            rho = (y.square().mean(dim=(0, 1, 2, 3)) + 1e-6).sqrt()  # (L,)
            y = y * (0.1 / (rho + 1e-6)).clamp(max=1.0)
        return y.reshape(*u.shape[:-1], self.M * self.L) / self.M**0.5


def attention_of(phi: Listing, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The matrix, row by row: A_ij = phi(q_i) . phi(k_j) / max(sum, 1e-6)."""
    kernel = phi(q) @ phi(k).transpose(-1, -2)
    c = kernel.sum(-1, keepdim=True)
    if phi.nonneg:
        c = c.clamp_min(1e-6)
    return (kernel / c) @ v


def transfer(listing: Listing, attention: luna.Attention) -> dict[str, list[Tensor]]:
    """Copy the listing's parameters; pairs (ours, theirs) to compare gradients by."""
    projections, channels = attention.map.projections, attention.map.channels
    first, last = [m[0] for m in listing.mlps], [m[2] for m in listing.mlps]
    theirs = {
        projections.weight: lambda get: get(listing.W)[None],
        projections.bias: lambda get: get(listing.beta)[None],
        channels.e: lambda get: torch.stack([get(m.weight)[:, 0] for m in first])[None],
        channels.f: lambda get: torch.stack([get(m.bias) for m in first])[None],
        channels.a: lambda get: torch.cat([get(m.weight) for m in last])[None],
        channels.g: lambda get: torch.cat([get(m.bias) for m in last])[None],
    }
    with torch.no_grad():
        for ours, read in theirs.items():
            ours.copy_(read(lambda p: p))
    return theirs


@pytest.mark.parametrize("evaluate", ["dense", "auto"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shared_channels": True},
        {"nonneg": False},
        {"activation": "gelu"},
        {"activation": "leaky_relu"},
        {"activation": "tanh", "shared_channels": True, "nonneg": False},
        {"M": 3, "L": 5, "hidden": 7},
        {"chunk": 100},
    ],
    ids=str,
)
def test_equals_the_listing(options: dict, evaluate: str):
    """Values and every gradient, in float64."""
    torch.manual_seed(0)
    attention = luna.build(
        "luna", n_heads=H, head_dim=d, max_len=64, evaluate=evaluate, **options
    ).double()
    listing = Listing(
        d,
        options.get("M", 8),
        options.get("L", 8),
        options.get("hidden", 64),
        shared=options.get("shared_channels", False),
        nonneg=options.get("nonneg", True),
        act=options.get("activation", "relu"),
    ).double()
    with torch.no_grad():
        listing.beta.normal_()  # zero would hide it
    pairs = transfer(listing, attention)
    inputs = [t.requires_grad_() for t in qkv(B, H, n, d)]

    assert difference(attention.phi_q(inputs[0], None), listing(inputs[0])) < 1e-12
    ours, theirs = attention(*inputs), attention_of(listing, *inputs)
    size = float(theirs.detach().abs().max())
    assert difference(ours, theirs) < 1e-12 * max(1, size)

    upstream = torch.randn(ours.shape, dtype=ours.dtype)
    got = torch.autograd.grad(ours, [*inputs, *pairs], upstream)
    theirs_all = [*inputs, *listing.parameters()]
    wanted = torch.autograd.grad(theirs, theirs_all, upstream)
    gradient_of = dict(zip(theirs_all, wanted, strict=True))
    expected = [*wanted[:3], *(read(gradient_of.__getitem__) for read in pairs.values())]
    for mine, other in zip(got, expected, strict=True):
        assert difference(mine, other) < 1e-12 * max(1, float(other.abs().max()))


def test_chunk_sizes_of_the_listing_change_nothing():
    torch.manual_seed(0)
    listing = Listing(d).double()
    q = qkv(B, H, n, d)[0]
    assert difference(listing(q, chunk=7), listing(q)) < 1e-14


@pytest.mark.parametrize("evaluate", ["dense", "piecewise", "compiled"])
def test_channel_rms_is_the_listings_in_training(evaluate: str):
    """Each call has a statistic of its own, and gradients go through it; unlike a shared one."""
    if evaluate == "compiled":
        pytest.importorskip("numba")
    torch.manual_seed(0)
    slot = {"n_heads": H, "head_dim": d, "max_len": 64}
    attention = luna.build("luna", **slot, ch_rms=True, evaluate=evaluate).double().train()
    listing = Listing(d, ch_rms=True).double()
    pairs = transfer(listing, attention)
    q, k, v = qkv(B, H, n, d)
    q, k = q.requires_grad_(), (3 * k).requires_grad_()
    ours, theirs = attention(q, k, v), attention_of(listing, q, k, v)
    assert difference(ours, theirs) < 1e-12
    shared = luna.build("luna", **slot, ch_rms="shared", evaluate=evaluate).double().train()
    transfer(listing, shared)
    assert difference(shared.features(q, k, None)[0], attention.features(q, k, None)[0]) > 1e-3
    upstream = torch.randn(ours.shape, dtype=ours.dtype)
    got = torch.autograd.grad(ours, [q, k, *pairs], upstream)
    everything = [q, k, *listing.parameters()]
    wanted = dict(zip(everything, torch.autograd.grad(theirs, everything, upstream), strict=True))
    expected = [wanted[q], wanted[k], *(read(wanted.__getitem__) for read in pairs.values())]
    for mine, other in zip(got, expected, strict=True):
        assert difference(mine, other) < 1e-11 * max(1, float(other.abs().max()))


def test_initialisation_is_the_listings():
    """W ~ N(0, 1) / sqrt(d), beta 0, torch's own for linear layers: moments and bounds."""
    torch.manual_seed(0)
    w, L, M = 64, 200, 200
    attention = luna.build("luna", n_heads=1, head_dim=d, max_len=8, M=M, L=L)
    listing = Listing(d, M, L, w)
    projections, channels = attention.map.projections, attention.map.channels
    assert (projections.bias == 0).all()
    assert projections.weight.std().item() == pytest.approx(d**-0.5, rel=0.05)
    assert projections.weight.abs().max() > 3 * d**-0.5  # normal, not uniform
    first, last = [m[0] for m in listing.mlps], [m[2] for m in listing.mlps]
    for ours, theirs in [
        (channels.e, [m.weight for m in first]),
        (channels.f, [m.bias for m in first]),
        (channels.a, [m.weight for m in last]),
        (channels.g, [m.bias for m in last]),
    ]:
        reference = torch.cat([t.flatten() for t in theirs])
        assert ours.std().item() == pytest.approx(reference.std().item(), rel=0.1)
        assert ours.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.05)
        assert ours.mean().abs() < 0.1 * reference.abs().max()


def test_defaults_are_the_listings():
    attention = luna.build("luna", n_heads=2, head_dim=32, max_len=8)
    assert attention.feature_dim == 64
    assert attention.map.channels.e.shape == (1, 8, 64)
    assert attention.map.channels.activation == "relu"
    assert attention.map.channels.nonneg
    assert not attention.map.rms
    assert attention.map.envelope is None
    assert attention.map_k is None
    assert attention.map.channels.chunk == 1_000_000
