"""The norm that normalise=rms divides by, in machine code, against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import luna
from luna.kernels import cpu
from luna.kernels.rms_norm import plain, rms_norm

from ..kit import qkv as drawn
from .kit import (
    F32,
    F64,
    assert_close,
    assert_threads_change_nothing,
    leaves,
    numba,
    poison_memory,
    scattered,
    with_gradients,
)

pytestmark = numba
LEAST = 1e-3
of_heads = pytest.mark.parametrize("of_all_heads", [False, True])


def tensors(n: int, *, B: int = 2, H: int = 3, e: int = 5, dtype: torch.dtype = F64):
    """N, and gains of both signs, one of them 0; two rows of N are 0 or below the limit."""
    torch.manual_seed(n)
    N, gain = torch.randn(B, H, n, e, dtype=F64), torch.randn(H, 1, e, dtype=F64)
    N[0, :, 0], N[-1, :, n // 2] = 0, LEAST / 100
    gain[0, 0, -1] = 0
    return leaves(N, gain, dtype=dtype)


def by_kernels(N: Tensor, gain: Tensor, of_all_heads: bool) -> list[Tensor]:
    out, rms = rms_norm(N, gain, LEAST, of_all_heads=of_all_heads)
    return [*with_gradients(out, [N, gain]), rms]


def by_definition(N: Tensor, gain: Tensor, of_all_heads: bool) -> list[Tensor]:
    out, rms = plain(N, gain, LEAST, of_all_heads)
    return [*with_gradients(out, [N, gain]), rms.detach()]


@of_heads
@pytest.mark.parametrize(
    ("n", "sizes"),
    [(1, {}), (64, {"e": 1}), (65, {"H": 1}), (1024, {"B": 1}), (2100, {"B": 3, "e": 8})],
    ids=str,
)
def test_sizes(n: int, sizes: dict[str, int], of_all_heads: bool, monkeypatch: pytest.MonkeyPatch):
    """Below, at and above a block and a segment."""
    call = *tensors(n, **sizes), of_all_heads
    expected = by_definition(*call)
    poison_memory(monkeypatch)
    assert_close(by_kernels(*call), expected, 1e-12)


@of_heads
def test_gradients_are_those_of_finite_differences(of_all_heads: bool):
    """Of rows at the limit too; above it the second derivatives as well."""
    N, gain = tensors(3)

    def norm(N: Tensor, gain: Tensor) -> Tensor:
        return rms_norm(N, gain, LEAST, of_all_heads=of_all_heads)[0]

    assert torch.autograd.gradcheck(norm, (N, gain), eps=1e-7, atol=1e-5)
    (above,) = leaves(torch.randn(2, 3, 3, 5, dtype=F64))
    assert torch.autograd.gradgradcheck(norm, (above, gain))


@pytest.mark.parametrize("dims", [(1, 2), (2, 3)])
def test_layouts(dims: tuple[int, int]):
    """Heads side by side as a backbone has them, columns apart; a gradient of stride 0."""
    N, gain = tensors(70)
    (apart,) = leaves(N.transpose(*dims).contiguous().transpose(*dims))
    assert_close(by_kernels(apart, gain, False), by_definition(N, gain, False), 1e-12)
    ours, theirs = (
        torch.autograd.grad(f(t, gain, LEAST, of_all_heads=False)[0].sum(), (t, gain))
        for f, t in ((rms_norm, apart), (plain, N))
    )
    assert_close(ours, theirs, 1e-12)


def test_a_side_that_needs_no_gradient():
    N, gain = tensors(20)
    expected = by_definition(N, gain, False)
    for wanted, other in ((N, gain), (gain, N)):
        other.requires_grad_(False)
        out, _ = rms_norm(N, gain, LEAST)
        (found,) = with_gradients(out, [wanted])[1:]
        assert_close([found], [expected[1 if wanted is N else 2]], 1e-12)
        other.requires_grad_()


@of_heads
def test_single_precision(of_all_heads: bool):
    call = tensors(3000, e=32, dtype=F32)
    exact = by_definition(*leaves(*call, dtype=F64), of_all_heads)
    for ours, right in zip(by_kernels(*call, of_all_heads), exact, strict=True):
        assert ours.dtype == F32
        # Gains add 6,000 terms; in which order, and so how they round, is the processor's choice.
        assert (ours - right).norm() <= 4e-7 * right.norm()


@of_heads
def test_threads_change_nothing(of_all_heads: bool):
    call = *tensors(3000, dtype=F32), of_all_heads
    assert_threads_change_nothing(lambda: by_kernels(*call))


@of_heads
def test_nan_and_infinity_go_where_they_go_by_the_definition(of_all_heads: bool):
    for value in (torch.nan, torch.inf):
        N, gain = tensors(20)
        with torch.no_grad():
            N[1, 1, 7, 2] = value
        pairs = zip(
            by_kernels(N, gain, of_all_heads), by_definition(N, gain, of_all_heads), strict=True
        )
        assert all(torch.equal(ours.isnan(), theirs.isnan()) for ours, theirs in pairs)


# ---------------------------------------------------------------------- in an attention


def build(name: str, dtype: torch.dtype, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"n_heads": 2, "head_dim": 8, "max_len": 4096}
    attention = luna.build(name, **sizes | {"normalise": "rms"} | options).to(dtype)
    with torch.no_grad():
        attention.gain.normal_()
    return attention


def attended(attention: Any, qkv: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    return with_gradients(attention(*qkv, mask), [*qkv, *attention.parameters()])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [("luna", {"nonneg": False}), ("luna", {"nonneg": "softplus"}), ("linear", {})],
    ids=str,
)
def test_methods(name: str, options: dict, causal: bool, monkeypatch: pytest.MonkeyPatch):
    """Outputs, gradients and dead rows, as without machine code; padded rows are 0."""
    attention = build(name, F64, causal=causal, **options).eval()
    qkv, mask = leaves(*drawn(2, 2, 40, 8, seed=0)), scattered(40)
    ours, dead = attended(attention, qkv, mask), attention.dead_fraction
    pad = ~mask[:, None, :, None]
    assert all((t.masked_select(pad) == 0).all() for t in ours[:4])
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    assert_close(ours, attended(attention, qkv, mask), 1e-11)
    assert torch.equal(dead, attention.dead_fraction)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    """Inputs alone, and parameters too."""
    for of_parameters in (F32, dtype):
        attention = build("luna", of_parameters, nonneg=False)
        qkv = leaves(*drawn(2, 2, 70, 8, seed=0), dtype=dtype)
        with monkeypatch.context() as patch:
            ours = attended(attention, qkv, None)
            patch.setattr(
                "luna.linear.rms_norm", lambda N, g, least, **_: plain(N, g, least, False)
            )
            theirs = attended(attention, qkv, None)
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            close = torch.finfo(dtype if i < 4 else of_parameters).eps
            assert a.dtype == b.dtype
            assert (a.double() - b.double()).norm() <= max(close, 1e-6) * b.double().norm()


def test_compiled():
    attention, qkv = build("linear", F64), leaves(*drawn(2, 2, 40, 8, seed=0))
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    assert_close(attended(compiled, qkv, None), attended(attention, qkv, None), 1e-11)
