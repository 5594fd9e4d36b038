"""Hydra: its matrix by loops, with the query of the neighbour, and the diagonal of its own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

import luna
from luna.attention.hydra import Hydra, of_neighbour

from ..kit import assert_defined, assert_golden, build, by_example, difference, qkv, shaken, wave


def matrix(
    q: Tensor, k: Tensor, ahead: Tensor, back: Tensor, a: Tensor, own: Tensor, causal: bool = False
) -> Tensor:
    """M (B, H, n, n) entry by entry; ahead, back, own (B, H, n), a (H)."""
    n = q.shape[2]
    M = torch.diag_embed(own)
    for i in range(n):
        for j in range(i):
            decay = (a.view(1, -1) * ahead[:, :, j + 1 : i].sum(-1)).exp()
            M[:, :, i, j] = (q[:, :, i - 1] * k[:, :, j]).sum(-1) * ahead[:, :, j] * decay
        for j in range(i + 1, 0 if causal else n):
            decay = (a.view(1, -1) * back[:, :, i + 1 : j].sum(-1)).exp()
            M[:, :, i, j] = (q[:, :, i + 1] * k[:, :, j]).sum(-1) * back[:, :, j] * decay
    return M


def gated(hydra: Hydra, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Steps of both directions and the diagonal (B, H, n), as the header has them."""

    def logits(gate: luna.Mixer) -> Tensor:
        return (k @ gate.map.weight.mT + gate.map.bias.unsqueeze(1)).squeeze(-1)

    ahead = softplus(logits(hydra.step_size))
    back = ahead if hydra.alike or hydra.causal else softplus(logits(hydra.step_size_back))
    return ahead, back, hydra.D.view(-1, 1) + logits(hydra.diagonal)


@pytest.mark.parametrize("options", [{}, {"tie": False}, {"causal": True}], ids=str)
def test_formula(options: dict):
    hydra = shaken("hydra", **options)

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        steps = gated(hydra, k)
        a = -hydra.log_a.exp()
        return matrix(silu(q), silu(k), *steps[:2], a, steps[2], hydra.causal) @ v

    assert_defined(hydra, by_example(defined), d_v=5)


@pytest.mark.parametrize("options", [{}, {"tie": False}, {"causal": True}], ids=str)
def test_without_the_shift_a_row_reads_with_its_own_query(options: dict):
    """What stands before it, itself, and what stands behind it, by loops; itself once."""
    hydra = shaken("hydra", shift=False, **options)

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ahead, back, own = gated(hydra, k)
        q, k, a, n = silu(q), silu(k), -hydra.log_a.exp().view(1, -1), k.shape[2]
        M = torch.diag_embed(own)
        for i in range(n):
            for j in range(n):
                steps, passed = (ahead, slice(j + 1, i + 1)) if j <= i else (back, slice(i, j))
                decay = (a * steps[:, :, passed].sum(-1)).exp()
                if j <= i or not hydra.causal:
                    M[:, :, i, j] += (q[:, :, i] * k[:, :, j]).sum(-1) * steps[:, :, j] * decay
        return M @ v

    assert_defined(hydra, by_example(defined), n=24, d_v=5)


def test_without_the_shift_a_query_acts_on_its_own_row_alone():
    hydra = shaken("hydra", shift=False)
    q, k, v = qkv()
    changed = q.clone()
    changed[:, :, 20] += 1
    moved = (hydra(changed, k, v) - hydra(q, k, v)).abs().amax((0, 1, 3)) > 1e-12
    assert moved.nonzero().flatten().tolist() == [20]
    assert luna.get("hydra").added == {"shift": True}


def test_the_golden():
    """The recurrence as its authors shift it, on waves, without silu and gates."""
    q, k, v = (wave((1, 2, 6, d), s) for d, s in ((3, 0), (3, 1), (2, 2)))
    ahead, back = (softplus(wave((1, 2, 6), s, 2) - 2) for s in (0.4, 1.4))
    a, own = torch.tensor([-1.0, -2.0], dtype=torch.float64), wave((1, 2, 6), 0.8)
    first = [1.682221, 1.543575, 1.986347, 1.748994, 2.073161, 1.758906]
    first += [1.991772, 1.641140, 1.783169, 1.439453, 1.431028, 1.128703]
    assert_golden(matrix(q, k, ahead, back, a, own) @ v, first, 16.296276, 24.573094)
    hydra = luna.build("hydra", n_heads=2, head_dim=3, max_len=6, tie=False).double()
    with torch.no_grad():
        hydra.log_a.copy_((-a).log())
    given = tuple(t.unsqueeze(-1) for t in (ahead, back, own))
    hydra._read = lambda *_: (q, k, *given)  # type: ignore[method-assign]
    assert_golden(hydra(q, k, v), first, 16.296276, 24.573094)


def test_a_query_acts_on_its_neighbours_alone():
    hydra = shaken("hydra")
    q, k, v = qkv()
    changed = q.clone()
    changed[:, :, 20] += 1
    moved = (hydra(changed, k, v) - hydra(q, k, v)).abs().amax((0, 1, 3)) > 1e-12
    assert moved.nonzero().flatten().tolist() == [19, 21]


def test_a_token_without_a_step_is_seen_by_itself_alone():
    hydra = shaken("hydra")
    q, k, _ = qkv()
    with torch.no_grad():
        hydra.step_size.map.weight.zero_()
        hydra.step_size.map.bias.fill_(-1e4)
    A = hydra.matrix(q, k)
    assert (A - torch.diag_embed(A.diagonal(dim1=-2, dim2=-1))).abs().max() == 0


def test_the_neighbour_is_the_next_real_token():
    t = torch.arange(1.0, 7).view(1, 1, 6, 1)
    mask = torch.tensor([[False, True, False, False, True, True]])
    moved = of_neighbour(t, mask).flatten()
    assert moved[mask[0]].tolist() == [0, 2, 5]
    assert of_neighbour(t, None).flatten().tolist() == [0, 1, 2, 3, 4, 5]
    first = torch.full((1, 1, 1, 1), 9.0)
    assert of_neighbour(t, mask, first).flatten()[mask[0]].tolist() == [9, 2, 5]


def test_directions_are_alike():
    hydra, given = shaken("hydra"), qkv()
    flipped = hydra(*(t.flip(2) for t in given)).flip(2)
    assert difference(flipped, hydra(*given)) < 1e-12


def test_it_begins_with_small_steps_and_itself():
    torch.manual_seed(0)
    hydra = build("hydra").double()
    steps = softplus(hydra.step_size.map.bias.detach())
    assert ((steps >= 1e-4) & (steps <= 0.1)).all()
    assert 0.3 < hydra(*qkv(4, 2, 512)).square().mean().sqrt() / math.sqrt(2) < 1.2


def test_long_sequences_in_float32_and_bfloat16():
    hydra = build("hydra")
    q, k, v = qkv(1, 2, 8192)
    exact = hydra.double()(q, k, v)
    single = hydra.float()(q.float(), k.float(), v.float())
    assert (single - exact).norm() / exact.norm() < 1e-5
    half = hydra(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert (half - exact).norm() / exact.norm() < 2e-2
