"""The scans of luna/scans.py: chunks are the recurrence, whatever the decays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from luna.scans import CHUNK, FLOOR, SHORT, dense_weights, scan, shifted

from .kit import mask_of

EDGES = (1, 2, SHORT - 1, SHORT, SHORT + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
STRENGTHS = {"none": 0.0, "weak": -1e-3, "middle": -0.5, "strong": FLOOR}
WIDTHS = pytest.mark.parametrize("width", [1, 6], ids=["scalar", "vector"])


def tokens(
    n: int, width: int, strength: float = -1.0, *, kind: str = "full", e: int = 5, D: int = 6
) -> tuple[Tensor, ...]:
    """q, k, v, g and back with decays between 0 and `strength`; padding has k = 0 and no decay."""
    generator = torch.Generator().manual_seed(n)
    q, k, v = (
        torch.randn(2, 2, n, size, generator=generator, dtype=torch.float64) for size in (D, D, e)
    )
    decays = torch.rand(2, 2, 2, n, width, generator=generator, dtype=torch.float64)
    real = mask_of(kind, 2, n)[:, None, :, None]
    return q, k * real, v, *(strength * decays * real)


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One token after the other."""
    S = q.new_zeros(2, 2, q.shape[3], v.shape[3]) if state is None else state
    out = []
    for i in range(q.shape[2]):
        S = g[:, :, i].exp().unsqueeze(-1) * S + k[:, :, i, :, None] * v[:, :, i, None, :]
        out.append((q[:, :, i].unsqueeze(-2) @ S).squeeze(-2))
    return S, torch.stack(out, 2)


def both_ways(q: Tensor, k: Tensor, v: Tensor, g: Tensor, back: Tensor) -> Tensor:
    """The recurrence and the one from the end, without what the second says of a token itself."""
    ends = (t.flip(2) for t in (q, k, v, back))
    own = (q * k).sum(-1, keepdim=True) * v
    return recurrence(q, k, v, g)[1] + recurrence(*ends)[1].flip(2) - own


def close(a: Tensor, b: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@WIDTHS
@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_chunks_are_the_recurrence(width: int, n: int, strength: str):
    q, k, v, g, back = tokens(n, width, STRENGTHS[strength])
    S, out = scan(q, k, v, g)
    expected_S, expected = recurrence(q, k, v, g)
    close(out, expected)
    close(S, expected_S)
    close(scan(q, k, v, g, back)[1], both_ways(q, k, v, g, back))


@WIDTHS
@pytest.mark.parametrize("chunk", [1, 3, 7, 16, 64])
def test_no_result_depends_on_the_chunk(width: int, chunk: int):
    q, k, v, g, back = tokens(70, width)
    close(scan(q, k, v, g, back, chunk=chunk)[1], both_ways(q, k, v, g, back))


@WIDTHS
def test_the_weights_of_all_pairs(width: int):
    q, k, v, g, back = tokens(40, width)
    close(dense_weights(q, k, g) @ v, recurrence(q, k, v, g)[1])
    A = dense_weights(q, k, g, back)
    close(A @ v, both_ways(q, k, v, g, back))
    own = (q * k).sum(-1)  # of lag 0 there is one, without a decay
    close(A.diagonal(dim1=2, dim2=3), own)


@WIDTHS
@pytest.mark.parametrize("split", [1, 16, 33, 69])
def test_a_state_continues(width: int, split: int):
    q, k, v, g, _ = tokens(70, width)
    S, first = scan(*(t[:, :, :split] for t in (q, k, v, g)))
    last, second = scan(*(t[:, :, split:] for t in (q, k, v, g)), state=S)
    whole_last, whole = scan(q, k, v, g)
    close(torch.cat([first, second], 2), whole)
    close(last, whole_last)


@WIDTHS
@pytest.mark.parametrize("kind", ["prefix", "scatter"])
def test_padding_is_as_if_it_were_not_there(width: int, kind: str):
    q, k, v, g, back = tokens(100, width, kind=kind)
    out = scan(q, k, v, g, back)[1]
    for b, real in enumerate(mask_of(kind, 2, 100)):
        dense = scan(*(t[b : b + 1, :, real] for t in (q, k, v, g, back)))[1]
        close(out[b : b + 1, :, real], dense)


@WIDTHS
@pytest.mark.parametrize("strength", STRENGTHS)
def test_gradients_are_those_of_the_recurrence(width: int, strength: str):
    given = [t.requires_grad_() for t in tokens(37, width, STRENGTHS[strength])]
    fast, slow = scan(*given)[1], both_ways(*given)
    direction = torch.randn_like(slow)
    pairs = zip(
        torch.autograd.grad((fast * direction).sum(), given),
        torch.autograd.grad((slow * direction).sum(), given),
        strict=True,
    )
    for a, b in pairs:
        close(a, b, 1e-9)


@WIDTHS
def test_no_decay_is_linear_attention(width: int):
    q, k, v, g, back = tokens(50, width, 0.0)
    close(scan(q, k, v, g, back)[1], q @ (k.mT @ v))


def test_endless_decay_leaves_the_token_itself():
    q, k, v, g, back = tokens(50, 1, 0.0)
    out = scan(q, k, v, g - 1e4, back - 1e4)[1]
    close(out, (q * k).sum(-1, keepdim=True) * v)


def test_decays_of_features_have_a_floor():
    q, k, v, g, back = tokens(50, 6)
    low = scan(q, k, v, g - 1e4, back - 1e4)[1]
    floor = torch.full_like(g, FLOOR)
    close(low, both_ways(q, k, v, floor, floor))


def test_equal_decays_of_features_are_one_decay():
    q, k, v, g, back = tokens(50, 1)
    close(scan(q, k, v, g, back)[1], scan(q, k, v, g.expand_as(q), back.expand_as(q))[1])


@WIDTHS
@pytest.mark.parametrize("strength", STRENGTHS)
def test_float32_at_8192_tokens(width: int, strength: str):
    q, k, v, g, back = tokens(8192, width, STRENGTHS[strength])
    exact = scan(q, k, v, g, back)[1]
    single = scan(*(t.float() for t in (q, k, v, g, back)))[1].double()
    assert (single - exact).norm() / exact.norm() < 1e-5


@WIDTHS
def test_large_inputs_at_the_floor_stay_finite(width: int):
    given = tokens(200, width, 0.0)
    q, k, v = (1e3 * t.float() for t in given[:3])
    g, back = (t.float() - 100 for t in given[3:])
    leaves = [t.requires_grad_() for t in (q, k, v, g, back)]
    out = scan(*leaves)[1]
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out.sum(), leaves):
        assert gradient.isfinite().all()


@WIDTHS
def test_later_tokens_change_no_bit(width: int):
    q, k, v, g, _ = tokens(100, width)
    for t in (1, 31, 32, 50):
        later = [torch.cat([a[:, :, :t], 30 * a[:, :, t:]], 2) for a in (q, k, v, g)]
        assert torch.equal(scan(*later)[1][:, :, :t], scan(q, k, v, g)[1][:, :, :t])


def test_shifted():
    g = torch.arange(3.0).view(1, 1, 3, 1) + 1
    assert shifted(g).flatten().tolist() == [0, 1, 2]
    assert shifted(g, torch.full((1, 1, 1, 1), 7.0)).flatten().tolist() == [7, 1, 2]
