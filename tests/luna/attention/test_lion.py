"""LION: its formula, the authors' numbers, and what its mask says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

import luna
from luna import LunaError

from ..kit import assert_defined, assert_golden, build, by_example, difference, qkv, shaken, wave

GIVEN = wave((1, 2, 6, 3), 0), wave((1, 2, 6, 3), 1), wave((1, 2, 6, 2), 2)  # q, k, v


def phi(u: Tensor) -> Tensor:
    return (silu(u) + 0.5) / (silu(u) + 0.5).norm(dim=-1, keepdim=True)


def mask_of_decays(a: Tensor) -> Tensor:
    """M (B, H, n, n) of a (B, H, n), entry by entry as the formula has it."""
    n = a.shape[-1]
    M = torch.ones(*a.shape, n, dtype=a.dtype)
    for i in range(n):
        for j in range(n):
            between = a[..., j:i] if j < i else a[..., i + 1 : j + 1]
            M[..., i, j] = between.prod(-1)
    return M


def by_formula(a: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    A = mask_of_decays(a) * (phi(q) @ phi(k).mT)
    return A / A.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize("decay", ["selective", "fixed", "none"])
def test_formula(decay: str):
    lion = shaken("lion", decay=decay)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a = torch.ones_like(k[..., 0])
        if decay == "selective":
            a = (
                1
                - torch.einsum("hod,bhnd->bhn", lion.gates.map.weight, k)
                .add(lion.gates.map.bias)
                .sigmoid()
            )
        elif decay == "fixed":
            a = lion.a.sigmoid().view(1, -1, 1).expand_as(a)
        return by_formula(a, q, k, v)

    assert_defined(lion, by_example(dense), d_v=5)


def test_the_published_gate_reads_the_hidden_states():
    lion = shaken("lion", gates="x")
    q, k, v = qkv()
    x = wave((2, 64, 64), 0.5, 3.0)
    logits = x @ lion.gates.map.weight[0].mT + lion.gates.map.bias
    a = 1 - logits.sigmoid().mT
    assert difference(lion(q, k, v, None, x), by_formula(a, q, k, v)) < 1e-10

    with pytest.raises(LunaError, match=r"width n_heads \* head_dim = 64, got 32"):
        lion(q, k, v, None, x[..., :32])


def test_the_authors_numbers():
    """Of their matrix M, for 2 heads of 3 and 6 tokens. They add 1.7e-6 to every divisor."""
    lion = luna.build("lion", n_heads=2, head_dim=3, max_len=6, gates="x").double()
    with torch.no_grad():  # a token for each channel of x: logits are the weights
        lion.gates.map.weight.copy_(wave((1, 2, 6), 0.3, 2))
        lion.gates.map.bias.zero_()
    out = lion(*GIVEN, None, torch.eye(6, dtype=torch.float64)[None])
    first = [0.864716, 0.812254, 0.791390, 0.728445, 0.678808, 0.604130]
    first += [0.532276, 0.446871, 0.363976, 0.270510, 0.198406, 0.100428]
    assert_golden(out, first, -0.046839, 12.831259, close=3e-6)

    lion = luna.build("lion", n_heads=2, head_dim=3, max_len=6, decay="fixed").double()
    with torch.no_grad():
        lion.a.copy_(torch.tensor([0.3, -0.7]))
    first = [0.768320, 0.706151, 0.708933, 0.639991, 0.625148, 0.548682]
    first += [0.527801, 0.444559, 0.427739, 0.339224, 0.342963, 0.251186]
    assert_golden(lion(*GIVEN), first, -0.140496, close=3e-6)


def test_fixed_decay_is_a_power_of_the_distance():
    lion = shaken("lion", decay="fixed")
    q, k, _ = qkv()
    A = lion.matrix(q, k)
    n = torch.arange(64)
    M = lion.a.sigmoid().view(1, 2, 1, 1) ** (n[:, None] - n).abs()
    expected = M * (phi(q) @ phi(k).mT)
    assert difference(A, expected / expected.sum(-1, keepdim=True)) < 1e-10


def test_no_weight_crosses_a_token_that_lets_nothing_pass():
    """And no other token sees it, while it sees both sides."""
    lion, j = build("lion", gates="x").double(), 20
    x = torch.zeros(2, 64, 64, dtype=torch.float64)
    x[:, j] = 1
    with torch.no_grad():
        lion.gates.map.weight.fill_(20.0)  # a logit of 1280 at token j
        lion.gates.map.bias.zero_()
    A = lion.matrix(*qkv()[:2], None, x)
    assert (A[..., :j, j:] == 0).all()
    assert (A[..., j + 1 :, : j + 1] == 0).all()
    assert (A[..., j, :] > 0).all()


def test_directions_are_alike():
    """Of flipped tokens the outputs are flipped."""
    lion, given = shaken("lion"), qkv()
    flipped = lion(*(t.flip(2) for t in given)).flip(2)
    assert difference(flipped, lion(*given)) < 1e-12


def test_initialisation():
    """Of the authors: gates as any linear map, fixed decays N(0, 1) before the sigmoid."""
    torch.manual_seed(0)
    a = luna.build("lion", n_heads=4000, head_dim=1, max_len=8, decay="fixed").a
    assert abs(a.mean()) < 0.06
    assert abs(a.std() - 1) < 0.04
    gates = build("lion").gates.map
    assert 0.15 < gates.weight.abs().max() <= 32**-0.5
    assert gates.bias.abs().max() <= 32**-0.5


def test_long_sequences_in_float32_and_bfloat16():
    lion = build("lion")
    q, k, v = qkv(1, 2, 8192)
    exact = lion.double()(q, k, v)
    single = lion.float()(q.float(), k.float(), v.float())
    assert (single - exact).norm() / exact.norm() < 1e-5
    half = lion(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert (half - exact).norm() / exact.norm() < 2e-2
