"""The slot's depthwise convolution of the values, against sums written out by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from luna import LunaError
from luna.local import KINDS, LocalBranch

from .kit import difference

B, H, E = 2, 3, 4
GRID = (5, 7)
N = 35


def branch(kind: str, **options) -> LocalBranch:
    torch.manual_seed(0)
    return LocalBranch(kind, H, E, GRID if kind == "conv2d" else None, **options).double()


def values(n: int = N) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, H, n, E, generator=generator, dtype=torch.float64)


def mask(n: int = N) -> Tensor:
    m = torch.arange(n).expand(B, n) % 4 != 0
    return m & (torch.arange(n) < torch.tensor([[n], [n - 9]]))


def by_hand(local: LocalBranch, v: Tensor, causal: bool = False) -> Tensor:
    """out[b,h,i,c] = sum_t filter[t] v[b,h,i+t-centre,c] (+ bias), zeros outside."""
    n, K = v.shape[2], local.weight.shape[-1]
    filters = local.weight.view(H, 1, 1, K) if local.per_head else local.weight.view(E, K)
    before = K - 1 if causal else K // 2
    padded = F.pad(v, (0, 0, before, K))
    out = sum(filters[..., t] * padded[:, :, t : t + n] for t in range(K))
    return out if local.bias is None else out + local.bias


def by_hand_2d(local: LocalBranch, v: Tensor) -> Tensor:
    """Each of 5 x 5 shifted images times its weight."""
    image = F.pad(v.unflatten(2, GRID), (0, 0, 2, 2, 2, 2))
    out = sum(
        local.weight[:, 0, s, t] * image[:, :, s : s + GRID[0], t : t + GRID[1]]
        for s in range(5)
        for t in range(5)
    )
    return out.flatten(2, 3) + local.bias


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["conv1d", "conv1d_long"])
def test_one_dimension(kind: str, causal: bool):
    local, v = branch(kind, causal=causal), values()
    assert difference(local(v), by_hand(local, v, causal)) < 1e-12


def test_two_dimensions():
    local, v = branch("conv2d"), values()
    assert difference(local(v), by_hand_2d(local, v)) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_padding_enters_no_sum_and_receives_nothing(kind: str):
    local, v, m = branch(kind), values(), mask()
    padded = (~m)[:, None, :, None]
    clean = local(v.masked_fill(padded, 0))
    out = local(v.masked_fill(padded, float("nan")).requires_grad_(), m)
    assert difference(out, clean.masked_fill(padded, 0)) == 0
    out.sum().backward()
    assert local.weight.grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_cls_token_is_left_out(kind: str):
    local, v, m = branch(kind, cls=True), values(N + 1), mask(N + 1)
    out = local(v, m)
    assert (out[:, :, 0] == 0).all()
    assert difference(out[:, :, 1:], branch(kind)(v[:, :, 1:], m[:, 1:])) == 0
    alone = local(v[:, :, :1])
    assert alone.shape == (B, H, 1, E)
    assert (alone == 0).all()


@pytest.mark.parametrize(
    ("arguments", "n", "message"),
    [
        ({"kind": "conv3d"}, N, r"unknown local branch 'conv3d'; did you mean conv"),
        ({"kind": "conv2d"}, N, "needs a grid of tokens"),
        ({"kind": "conv2d", "grid": GRID, "causal": True}, N, "no causal form"),
        ({"kind": "conv2d", "grid": GRID}, 36, "36 tokens do not fill a grid of 5 x 7"),
    ],
)
def test_mistakes_are_refused(arguments: dict, n: int, message: str):
    with pytest.raises(LunaError, match=message):
        LocalBranch(n_heads=H, head_dim=E, **arguments)(values(n).float())


def test_parameters():
    """conv2d: d (5 x 5 + 1), 832 at d = 32; conv1d: d (5 + 1); conv1d_long: one filter a head."""
    counts = {}
    for kind in KINDS:
        local = LocalBranch(kind, 2, 32, (4, 4))
        counts[kind] = sum(p.numel() for p in local.parameters())
        assert local.weight.abs().max() <= local.weight[0].numel() ** -0.5
    assert counts == {"conv1d": 192, "conv2d": 832, "conv1d_long": 66}
