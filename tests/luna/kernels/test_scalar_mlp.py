"""The scalar MLPs: piecewise linear evaluations against the definition, with gradients."""

from __future__ import annotations

import typing

import numpy as np
import pytest
import torch
from torch import Tensor

import luna
from luna import LunaError
from luna.kernels import cpu
from luna.kernels import scalar_mlp as scalar_mlp_module
from luna.kernels.scalar_mlp import ACTIVATIONS, SLOPES, Activation, evaluator, scalar_mlp
from luna.kernels.scalar_mlp.operator import look_up, tables

from ..kit import Sizes
from ..listing import channels
from .kit import (
    F32,
    F64,
    assert_close,
    assert_equal,
    assert_threads_change_nothing,
    leaves,
    numba,
    poison_memory,
    with_gradients,
)


@pytest.fixture(params=["torch", pytest.param("numba", marks=numba)])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `piecewise` is computed by."""
    monkeypatch.setattr(cpu, "AVAILABLE", request.param == "numba")
    return request.param


def parameters(
    G: int = 1, L: int = 8, w: int = 64, *, shared: bool = False, dtype: torch.dtype = F64
) -> list[Tensor]:
    """e, f, a, g, initialised as linear layers are."""
    generator = torch.Generator().manual_seed(G + 10 * L + 100 * w)
    shapes = [(G, 1 if shared else L, w)] * 2 + [(G, L, w), (G, L)]
    bounds = [1, 1, w**-0.5, w**-0.5]
    draws = (2 * torch.rand(s, generator=generator, dtype=F64) - 1 for s in shapes)
    return leaves(*(draw * b for draw, b in zip(draws, bounds, strict=True)), dtype=dtype)


def scalars(G: int, N: int, dtype: torch.dtype = F64) -> Tensor:
    u = torch.randn(G, N, generator=torch.Generator().manual_seed(0), dtype=F64)
    return u.to(dtype).requires_grad_()


def evaluated(u: Tensor, p: list[Tensor], how: str = "piecewise", **options) -> list[Tensor]:
    return with_gradients(scalar_mlp(u, *p, evaluate=how, **options), [u, *p])


def assert_dense(u: Tensor, p: list[Tensor], tolerance: float = 1e-12, **options) -> list[Tensor]:
    """Hold `piecewise` to `dense`."""
    fast = evaluated(u, p, **options)
    assert_close(fast, evaluated(u, p, "dense", **options), tolerance)
    return fast


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_dense_is_the_listing(activation: str, nonneg: bool, shared: bool):
    p, u = parameters(2, 3, 5, shared=shared), scalars(2, 17)
    options = {"activation": activation, "nonneg": nonneg}
    expected = with_gradients(channels(u, *p, **options), [u, *p])
    assert_close(evaluated(u, p, "dense", **options), expected, 1e-13)


def test_chunks_and_recomputation_change_nothing(monkeypatch: pytest.MonkeyPatch):
    p, u = parameters(1, 4, 32), scalars(1, 500)
    whole = evaluated(u, p, "dense", activation="gelu", chunk=10**9)
    assert_close(evaluated(u, p, "dense", activation="gelu", chunk=1), whole, 1e-13)
    monkeypatch.setattr("luna.kernels.scalar_mlp.reference.KEEP", 0)
    assert_close(evaluated(u, p, "dense", activation="gelu", chunk=100), whole, 1e-14)

    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        scalar_mlp(u, *p, evaluate="dense", activation="gelu", chunk=100)
    assert max(saved, default=0) <= u.numel()  # no hidden unit


# ---------------------------------------------------------------------- piecewise against dense


@pytest.mark.parametrize("activation", SLOPES)
@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_piecewise_equals_dense(engine, activation, nonneg, shared, monkeypatch):
    monkeypatch.setattr("luna.kernels.scalar_mlp.operator.ROWS", 300)
    for G, L, w, N in ((1, 8, 64, 1000), (3, 2, 16, 17), (1, 1, 1, 1), (2, 16, 5, 1000)):
        p, u = parameters(G, L, w, shared=shared), scalars(G, N)
        assert_dense(u, p, activation=activation, nonneg=nonneg)


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16])
def test_lower_precision(engine, dtype: torch.dtype):
    """Inputs of any precision, results in it; float32 inside."""
    p, u = parameters(dtype=F32), scalars(1, 4096, dtype)
    results = evaluated(u, p, nonneg=True)
    assert results[0].dtype == results[1].dtype == dtype
    exact = evaluated(*leaves(u, dtype=F64), leaves(*p, dtype=F64), "dense", nonneg=True)
    close = 5 * torch.finfo(dtype).eps if dtype != F32 else 1e-5
    for ours, theirs in zip(results, exact, strict=True):
        assert (ours - theirs).norm() < close * theirs.norm()


def test_float32_rounds_less_than_the_dense_evaluation():
    """Slopes and intercepts are summed in float64 and rounded once."""
    p, u = parameters(dtype=F32), scalars(1, 20_000, F32)
    exact = scalar_mlp(u.double(), *(t.double() for t in p), evaluate="dense")
    dense, piecewise = (
        (scalar_mlp(u, *p, evaluate=how) - exact).norm() for how in ("dense", "piecewise")
    )
    assert piecewise < dense


@pytest.mark.parametrize("activation", SLOPES)
@pytest.mark.parametrize("dtype", [F64, F32])
def test_inputs_on_a_breakpoint_take_the_side_relu_takes(engine, activation, dtype):
    """relu'(0) = 0: of two units that meet at u = 0.5, rising and falling, neither is on there."""
    units = [1.0, -1.0, 2.0, -4.0], [-0.5, 0.5, -1.0, 2.0], [1.0, 2.0, 3.0, 4.0]
    p = leaves(*(torch.tensor([[x]]) for x in units), torch.tensor([[0.25]]), dtype=dtype)
    at = torch.tensor(0.5, dtype=dtype)
    down, up = (torch.nextafter(at, at.new_tensor(x)) for x in (0.0, 1.0))
    (u,) = leaves(torch.stack([down, at, up]).unsqueeze(0))
    fast = assert_dense(u, p, 1e-6 if dtype == F32 else 1e-14, activation=activation)
    slopes = fast[1][0] / torch.arange(3).cos()
    assert slopes.diff().abs().min() > 1  # left of the breakpoint, on it, and right of it


@pytest.mark.parametrize("nonneg", [False, True])
def test_breakpoints_that_coincide(engine, nonneg: bool):
    """Equal units, mirrored units, units of other channels: empty intervals between them."""
    p, u = parameters(1, 4, 8), scalars(1, 300)
    with torch.no_grad():
        for t in p[:2]:
            t[:, 1] = t[:, 0]
            t[:, 2] = -t[:, 0]
            t[:, 3, :4] = t[:, 0, 0]
    assert_dense(u, p, nonneg=nonneg)


@pytest.mark.parametrize("activation", SLOPES)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_weights_that_are_zero(engine, activation: str, zero: float):
    """A unit with e = 0 is a constant, but its gradient with respect to e is a u where it is on."""
    p, u = parameters(1, 2, 6), scalars(1, 200)
    with torch.no_grad():
        p[0][:, :, :3] = zero
        p[1][:, :, :3] = torch.tensor([0.7, -0.7, 0.0])  # on, off, exactly at 0
    fast = assert_dense(u, p, activation=activation)
    assert fast[2][0, :, 0].abs().min() > 0.1
    assert_dense(u, leaves(*(torch.zeros_like(t) for t in p)), activation=activation)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e15])
def test_huge_and_tiny_numbers(engine, scale: float):
    """Breakpoints far outside or far inside the data, up to where f / e overflows."""
    for which in range(3):
        tensors = [t.detach() for t in (scalars(1, 200), *parameters(1, 4, 16))]
        tensors[which] *= scale
        u, *p = leaves(*tensors)
        for ours, theirs in zip(evaluated(u, p), evaluated(u, p, "dense"), strict=True):
            assert (ours - theirs).abs().max() <= 1e-11 * theirs.abs().max()


def test_nan_and_infinity_pass_through(engine):
    """NaN reaches the gradients that the definition gives it to."""
    p = parameters(1, 4, 16)
    u = torch.tensor([[torch.inf, -torch.inf, torch.nan, 0.5]], dtype=F64)
    y = scalar_mlp(u, *p, nonneg=True, evaluate="piecewise")[0]
    slopes = scalar_mlp(u.sign() * 1e9, *p, nonneg=True, evaluate="dense")[0, :2] / 1e9
    assert torch.equal(y[:2], torch.where(slopes > 1e-6, torch.inf, y[:2]))
    assert y[2].isnan().all()
    assert y[3].isfinite().all()
    (u,) = leaves(u[:, 2:])
    fast, dense = (evaluated(u, p, how, nonneg=True) for how in ("piecewise", "dense"))
    assert_equal([t.isnan() for t in fast], [t.isnan() for t in dense])


@numba
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("scale", [1e-38, 1.0, 1e30])
def test_the_grid_finds_what_a_search_finds(dtype: torch.dtype, scale: float):
    """Keys that coincide, lie close or far out; scalars on them, beside them, infinite and NaN."""
    from luna.kernels.scalar_mlp.by_numba import find_intervals, grid

    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(3, 99, generator=generator, dtype=F64)
    inf = torch.full((3, 1), torch.inf, dtype=F64)
    rows = torch.cat([spread, spread**7, spread[:, :9] * 0 + 0.5, -inf, inf, inf], 1)
    rows[2] = 0.25
    keys = (rows * scale).to(dtype).sort().values
    padded, span, start = (t.numpy() for t in grid(keys))
    for g in range(3):
        ends = [keys[g].nextafter(torch.tensor(x, dtype=dtype)) for x in (-torch.inf, torch.inf)]
        u = torch.cat([keys[g], *ends, keys.new_tensor([0.0, -0.0, 1e37, -1e37])])
        intervals = torch.full((len(u),), -1, dtype=torch.int32)
        search = padded[g], *span[g], start[g]
        find_intervals(u.numpy(), *search, intervals.numpy(), len(u))
        assert torch.equal(intervals, torch.searchsorted(keys[g], u, out_int32=True))
        find_intervals(u.numpy() * np.nan, *search, intervals.numpy(), len(u))
        assert ((intervals >= 0) & (intervals <= keys.shape[1])).all()


# ---------------------------------------------------------------------- cost, soundness, choice


def test_piecewise_memory_does_not_know_the_hidden_width(engine):
    largest = []
    for w in (4, 256):
        p, u = parameters(1, 2, w, dtype=F32), scalars(1, 10_000, F32)
        with Sizes() as sizes:
            scalar_mlp(u, *p, evaluate="piecewise").sum().backward()
        largest.append(sizes.largest)
    assert largest == [2 * 10_000] * 2


def test_all_memory_is_written_before_it_is_read(engine, monkeypatch: pytest.MonkeyPatch):
    p, u = parameters(2, 3, 4), scalars(2, 100)
    clean = evaluated(u, p, nonneg=True)
    poison_memory(monkeypatch)
    assert_equal(evaluated(u, p, nonneg=True), clean)


@numba
def test_threads_change_nothing():
    p, u = parameters(2, dtype=F32), scalars(2, 70_001, F32)
    assert_threads_change_nothing(lambda: evaluated(u, p, nonneg=True))


def test_operators_are_sound_for_torch_compile(engine):
    """Fake kernel, autograd registration and schema, by torch's own check of custom operators."""
    keys, table = tables(*parameters(2, 3, 4), 0.0, F64)
    arguments = scalars(2, 20), keys, *leaves(table), True
    torch.library.opcheck(torch.ops.luna.scalar_mlp.default, arguments)


def test_tensors_that_do_not_fit_are_refused(engine):
    """The operator indexes raw memory."""
    keys, table = tables(*parameters(1, 2, 4), 0.0, F64)
    for u in (scalars(2, 5), scalars(1, 5)[0], scalars(1, 5, F32)):
        with pytest.raises(LunaError, match=r"scalars \(G, N\), keys \(G, 8\)"):
            look_up(u, keys, table, False)
    u, p = scalars(1, 5), parameters(1, 3, 4)
    for how in ("auto", "dense", "piecewise"):
        for i in range(4):
            narrow = [t[..., :2] if j == i else t for j, t in enumerate(p)]
            with pytest.raises(LunaError, match="scalar MLPs need"):
                scalar_mlp(u, *narrow, evaluate=how)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("nonneg", [False, True])
def test_gpu_equals_cpu(nonneg: bool):
    tensors = scalars(2, 5000), *parameters(2, 4, 16)
    (u, *p), (v, *r) = tensors, leaves(*(t.cuda() for t in tensors))
    ours = evaluated(v, r, nonneg=nonneg)
    assert_close([t.cpu() for t in ours], evaluated(u, p, nonneg=nonneg), 1e-12)


def test_auto_takes_the_table_where_there_is_one():
    assert typing.get_args(Activation) == tuple(ACTIVATIONS)
    fast = {name for name in ACTIVATIONS if evaluator("auto", name) == "piecewise"}
    assert fast == {"relu", "leaky_relu"} == set(SLOPES)
    assert evaluator("dense", "relu") == "dense"


def test_missing_numba_is_warned_of_once(monkeypatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    scalar_mlp_module._warn_without_numba.cache_clear()
    attention = luna.build("luna", n_heads=1, head_dim=4, max_len=8)
    assert not caplog.records, "nothing is slow yet"
    for _ in range(3):
        attention(*torch.randn(3, 1, 1, 8, 4))
    assert len([r for r in caplog.records if "numba is not installed" in r.message]) == 1
