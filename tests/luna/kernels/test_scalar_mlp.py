"""The scalar MLPs: piecewise linear evaluations against the definition, with gradients."""

from __future__ import annotations

import os
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import luna
from luna import LunaError
from luna.kernels import cpu
from luna.kernels import scalar_mlp as scalar_mlp_module
from luna.kernels.checked import TRITON
from luna.kernels.scalar_mlp import (
    ACTIVATIONS,
    SLOPES,
    Activation,
    check,
    evaluator,
    scalar_mlp,
)
from luna.kernels.scalar_mlp.piecewise import tables

from ..kit import Sizes
from ..listing import channels

F64 = torch.float64
NUMBA = pytest.mark.skipif(not cpu.AVAILABLE, reason="needs numba: pip install 'luna-lra[fast]'")
FAST = ["piecewise", pytest.param("compiled", marks=NUMBA)]


def parameters(
    G: int = 1, L: int = 8, w: int = 64, *, shared: bool = False, dtype: torch.dtype = F64
) -> list[Tensor]:
    """e, f, a, g, initialised as linear layers are."""
    generator = torch.Generator().manual_seed(G + 10 * L + 100 * w)
    shapes = [(G, 1 if shared else L, w)] * 2 + [(G, L, w), (G, L)]
    bounds = [1, 1, w**-0.5, w**-0.5]
    return [
        ((2 * torch.rand(s, generator=generator, dtype=F64) - 1) * b).to(dtype).requires_grad_()
        for s, b in zip(shapes, bounds, strict=True)
    ]


def scalars(G: int, N: int, dtype: torch.dtype = F64, seed: int = 0) -> Tensor:
    u = torch.randn(G, N, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return u.to(dtype).requires_grad_()


def weights_like(y: Tensor) -> Tensor:
    return torch.cos(torch.arange(y.numel(), dtype=F64)).view(y.shape).to(y.dtype)


def with_gradients(u: Tensor, p: list[Tensor], **options) -> list[Tensor]:
    y = scalar_mlp(u, *p, **options)
    return [y, *torch.autograd.grad(y, [u, *p], weights_like(y))]


def largest_gap(first: list[Tensor], second: list[Tensor]) -> float:
    """Relative to the size of each tensor."""
    return max(
        float((a - b).detach().abs().max() / b.detach().abs().max().clamp_min(1))
        for a, b in zip(first, second, strict=True)
    )


# ---------------------------------------------------------------------- the definition


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_dense_is_the_listing(activation: str, nonneg: bool, shared: bool):
    p, u = parameters(2, 3, 5, shared=shared), scalars(2, 17)
    y = scalar_mlp(u, *p, activation=activation, nonneg=nonneg, evaluate="dense")
    expected = channels(u, *p, activation=activation, nonneg=nonneg)
    assert (y - expected).abs().max() < 1e-14
    expected_gradients = torch.autograd.grad(expected, [u, *p], weights_like(y))
    gradients = torch.autograd.grad(y, [u, *p], weights_like(y))
    assert largest_gap(gradients, expected_gradients) < 1e-13


@pytest.mark.parametrize("evaluate", ["dense", *FAST])
@pytest.mark.parametrize("chunk", [1, 7, 1_000_000])
def test_chunks_change_nothing(evaluate: str, chunk: int):
    p, u = parameters(2, 3, 16), scalars(2, 50)
    whole = with_gradients(u, p, evaluate=evaluate, chunk=10**9)
    assert largest_gap(with_gradients(u, p, evaluate=evaluate, chunk=chunk), whole) < 1e-13


def test_recomputation_changes_nothing_and_stores_no_hidden_unit(monkeypatch: pytest.MonkeyPatch):
    p, u = parameters(1, 4, 32), scalars(1, 500)
    options = {"activation": "gelu", "evaluate": "dense", "chunk": 100}
    kept = with_gradients(u, p, **options)
    monkeypatch.setattr("luna.kernels.scalar_mlp.reference.KEEP", 0)
    assert largest_gap(with_gradients(u, p, **options), kept) < 1e-14

    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        scalar_mlp(u, *p, **options)
    assert max(saved, default=0) <= u.numel()


# ---------------------------------------------------------------------- piecewise against dense


@pytest.mark.parametrize("how", FAST)
@pytest.mark.parametrize("activation", SLOPES)
@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_piecewise_equals_dense(how: str, activation: str, nonneg: bool, shared: bool):
    options = {"activation": activation, "nonneg": nonneg}
    for G, L, w, N in ((1, 8, 64, 1000), (3, 2, 16, 17), (1, 1, 1, 1), (2, 16, 5, 1000)):
        p, u = parameters(G, L, w, shared=shared), scalars(G, N)
        dense = with_gradients(u, p, evaluate="dense", **options)
        assert largest_gap(with_gradients(u, p, evaluate=how, **options), dense) < 1e-12


@pytest.mark.parametrize("how", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision(how: str, dtype: torch.dtype):
    """Inputs of any precision, results in it; float32 inside."""
    p, u = parameters(dtype=torch.float32), scalars(1, 4096, dtype)
    y, *gradients = with_gradients(u, p, nonneg=True, evaluate=how)
    assert y.dtype == gradients[0].dtype == dtype
    exact = with_gradients(
        u.detach().double().requires_grad_(),
        [t.detach().double().requires_grad_() for t in p],
        nonneg=True,
        evaluate="dense",
    )
    close = torch.finfo(dtype).eps if dtype != torch.float32 else 2e-6
    assert (y - exact[0]).abs().max() < close
    for ours, theirs in zip(gradients, exact[1:], strict=True):
        assert (ours - theirs).norm() < 5 * close * theirs.norm()


def test_float32_rounds_less_than_the_dense_evaluation():
    """Slopes and intercepts are summed in float64 and rounded once."""
    p32, u32 = parameters(dtype=torch.float32), scalars(1, 20_000, torch.float32)
    exact = scalar_mlp(u32.double(), *(t.double() for t in p32), evaluate="dense")
    errors = {
        how: (scalar_mlp(u32, *p32, evaluate=how) - exact).norm().item()
        for how in ("dense", "piecewise")
    }
    assert errors["piecewise"] < errors["dense"]


def exact_unit(e: list[float], f: list[float]) -> list[Tensor]:
    """One channel, units whose breakpoints are floating point numbers, and unequal weights."""
    a = [1.0 + i for i in range(len(e))]
    p = [torch.tensor([[x]], dtype=F64) for x in (e, f, a)] + [torch.tensor([[0.25]], dtype=F64)]
    return [t.requires_grad_() for t in p]


@pytest.mark.parametrize("how", FAST)
@pytest.mark.parametrize("activation", SLOPES)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_inputs_on_a_breakpoint_take_the_side_relu_takes(
    how: str, activation: str, dtype: torch.dtype
):
    """relu'(0) = 0: of two units that meet at u = 0.5, rising and falling, neither is on there."""
    p = exact_unit([1.0, -1.0, 2.0, -4.0], [-0.5, 0.5, -1.0, 2.0])
    p = [t.detach().to(dtype).requires_grad_() for t in p]
    at = torch.tensor(0.5, dtype=dtype)
    down, up = (torch.nextafter(at, torch.tensor(x, dtype=dtype)) for x in (0.0, 1.0))
    u = torch.stack([down, at, up]).unsqueeze(0).requires_grad_()
    dense, fast = (
        with_gradients(u, p, evaluate=one, activation=activation) for one in ("dense", how)
    )
    slopes = fast[1][0] / weights_like(u)[0]
    assert slopes.diff().abs().min() > 1  # left of the breakpoint, on it, and right of it
    assert largest_gap(fast, dense) < (1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("how", FAST)
def test_breakpoints_that_coincide(how: str):
    """Equal units, mirrored units, units of other channels: empty intervals between them."""
    p, u = parameters(1, 4, 8), scalars(1, 300)
    with torch.no_grad():
        for t in p[:2]:
            t[:, 1] = t[:, 0]
            t[:, 2] = -t[:, 0]
            t[:, 3, :4] = t[:, 0, 0]
    for nonneg in (False, True):
        dense = with_gradients(u, p, evaluate="dense", nonneg=nonneg)
        fast = with_gradients(u, p, evaluate=how, nonneg=nonneg)
        assert largest_gap(fast, dense) < 1e-12


@pytest.mark.parametrize("how", FAST)
@pytest.mark.parametrize("activation", SLOPES)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_weights_that_are_zero(how: str, activation: str, zero: float):
    """A unit with e = 0 is a constant, but its gradient with respect to e is a u where it is on."""
    p, u = parameters(1, 2, 6), scalars(1, 200)
    with torch.no_grad():
        p[0][:, :, :3] = zero
        p[1][:, :, :3] = torch.tensor([0.7, -0.7, 0.0])  # on, off, exactly at 0
    dense = with_gradients(u, p, evaluate="dense", activation=activation)
    fast = with_gradients(u, p, evaluate=how, activation=activation)
    assert largest_gap(fast, dense) < 1e-12
    assert fast[2][0, :, 0].abs().min() > 0.1
    nothing = [torch.zeros_like(t).requires_grad_() for t in p]
    dense = with_gradients(u, nothing, evaluate="dense", activation=activation)
    fast = with_gradients(u, nothing, evaluate=how, activation=activation)
    assert largest_gap(fast, dense) < 1e-13


@pytest.mark.parametrize("how", FAST)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e15])
def test_huge_and_tiny_numbers(how: str, scale: float):
    """Breakpoints far outside or far inside the data, up to where f / e overflows."""
    for which in range(3):
        u, *p = (t.detach() for t in (scalars(1, 200), *parameters(1, 4, 16)))
        scaled = (u, *p[:2])[which]
        scaled *= scale
        tensors = [t.requires_grad_() for t in (u, *p)]
        dense, fast = (
            with_gradients(tensors[0], tensors[1:], evaluate=one) for one in ("dense", how)
        )
        for ours, theirs in zip(fast, dense, strict=True):
            assert (ours - theirs).abs().max() <= 1e-11 * theirs.abs().max()


def test_the_table_is_what_it_says():
    """Between its keys every channel is the line that the table holds for the interval."""
    p = [t.detach() for t in parameters(1, 3, 7)]
    keys, table = tables(*p, 0.0, F64)
    assert keys.shape == (1, 21)
    assert table.shape == (1, 22, 6)
    assert (keys.diff() >= 0).all()
    inside = (keys[0, 1:] + keys[0, :-1]) / 2
    for j, u in enumerate([keys[0, 0] - 1, *inside, keys[0, -1] + 1]):
        expected = channels(u.view(1, 1), *p, nonneg=False)[0, 0]
        assert (table[0, j, :3] * u + table[0, j, 3:] - expected).abs().max() < 1e-13


@NUMBA
@pytest.mark.parametrize("activation", SLOPES)
@pytest.mark.parametrize("shared", [False, True])
def test_the_table_in_machine_code(shared: bool, activation: str):
    """Keys, table and every gradient, with units that are constant and keys that coincide."""
    from luna.kernels.scalar_mlp.compiled import compiled_tables

    p = parameters(2, 3, 7, shared=shared)
    with torch.no_grad():
        p[0][0, 0, :3] = torch.tensor([0.0, -0.0, 1.0])
        p[0][0, 0, 4], p[1][0, 0, 4] = -1.0, -p[1][0, 0, 2]
    results = []
    for make in (tables, compiled_tables):
        keys, table = make(*p, SLOPES[activation], F64)
        gradients = torch.autograd.grad(table, p, weights_like(table))
        results.append([keys.nan_to_num(), table, *gradients])
    assert largest_gap(*results) < 1e-13


# ---------------------------------------------------------------------- cost, choice


@pytest.mark.parametrize("how", FAST)
def test_piecewise_memory_does_not_know_the_hidden_width(how: str):
    largest = []
    for w in (4, 256):
        p, u = parameters(1, 2, w, dtype=torch.float32), scalars(1, 10_000, torch.float32)
        with Sizes() as sizes:
            scalar_mlp(u, *p, evaluate=how).sum().backward()
        largest.append(sizes.largest)
    assert largest[0] == largest[1] == 2 * 10_000


@pytest.mark.parametrize("how", FAST)
def test_all_memory_is_written_before_it_is_read(how: str, monkeypatch: pytest.MonkeyPatch):
    """Everything that is allocated is written: results are the same where memory starts as NaN."""
    p, u = parameters(2, 3, 4), scalars(2, 100)
    clean = with_gradients(u, p, nonneg=True, chunk=60, evaluate=how)
    for name in ("empty", "empty_like"):
        make = getattr(torch, name)

        def poisoned(*args, make=make, **kwargs):
            t = make(*args, **kwargs)
            return t.fill_(float("nan") if t.is_floating_point() else 2**31 - 1)

        monkeypatch.setattr(torch, name, poisoned)
    fill = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda t, *size, **kw: fill(t, *size, **kw).fill_(float("nan"))
    )
    for ours, theirs in zip(
        with_gradients(u, p, nonneg=True, chunk=60, evaluate=how), clean, strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("how", FAST)
def test_neither_time_nor_threads_change_a_bit(how: str):
    p, u = parameters(2, dtype=torch.float32), scalars(2, 70_001, torch.float32)
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 1, 2, 3) if how == "compiled" else (1, 1):
            torch.set_num_threads(threads)
            results.append(with_gradients(u, p, nonneg=True, evaluate=how))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))
    exact = with_gradients(u, p, nonneg=True, evaluate="piecewise")
    for ours, theirs in zip(results[0], exact, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@NUMBA
@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("scale", [1e-38, 1.0, 1e30])
def test_the_grid_finds_what_a_search_finds(dtype: torch.dtype, scale: float):
    """Keys that coincide, lie close or far out; scalars on them, beside them, infinite and NaN."""
    from luna.kernels.scalar_mlp.compiled import find_intervals, grid

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
        found = torch.full((len(u),), -1, dtype=torch.int32)
        search = padded[g], *span[g], start[g]
        find_intervals(u.numpy(), *search, found.numpy(), len(u))
        assert torch.equal(found, torch.searchsorted(keys[g], u, out_int32=True))
        find_intervals(u.numpy() * np.nan, *search, found.numpy(), len(u))
        assert ((found >= 0) & (found <= keys.shape[1])).all()


@pytest.mark.parametrize("how", FAST)
def test_operators_are_sound_for_torch_compile(how: str):
    """Fake kernel, autograd registration and schema, by torch's own check of custom operators."""
    p, u = parameters(2, 3, 4), scalars(2, 20)
    keys, table = tables(*p, 0.0, F64)
    table = table.detach().requires_grad_()
    scalar_mlp(u, *p, evaluate=how)  # imports what registers the operator
    if how == "piecewise":
        torch.library.opcheck(torch.ops.luna.piecewise_linear.default, (u, keys, table, True, 7))
    else:
        torch.library.opcheck(torch.ops.luna.grid.default, (keys,))
        given = u, *torch.ops.luna.grid(keys), table, True
        torch.library.opcheck(torch.ops.luna.scalar_mlp.default, given)


@NUMBA
def test_the_operator_refuses_tensors_that_do_not_fit():
    """It indexes raw memory."""
    from luna.kernels.scalar_mlp.compiled import grid, lookup

    keys, table = tables(*parameters(1, 2, 4), 0.0, F64)
    for u in (scalars(2, 5), scalars(1, 5)[0], scalars(1, 5, torch.float32)):
        with pytest.raises(LunaError, match=r"scalars \(G, N\), keys \(G, 10\)"):
            lookup(u, *grid(keys), table, False)


@pytest.mark.parametrize("how", ["auto", "dense", *FAST])
def test_parameters_that_do_not_fit_are_refused(how):
    u, p = scalars(1, 5), parameters(1, 3, 4)
    for i in range(4):
        with pytest.raises(LunaError, match="scalar MLPs need"):
            scalar_mlp(u, *(t[..., :2] if j == i else t for j, t in enumerate(p)), evaluate=how)


@pytest.mark.parametrize("how", FAST)
def test_nan_and_infinity_pass_through(how: str):
    p = parameters(1, 4, 16)
    u = torch.tensor([[torch.nan, torch.inf, -torch.inf, 0.5]], dtype=F64)
    y = scalar_mlp(u, *p, nonneg=True, evaluate=how)
    assert y[0, 0].isnan().all()
    assert torch.equal(y[0, 1:3], scalar_mlp(u * 1, *p, nonneg=True, evaluate="piecewise")[0, 1:3])
    assert y[0, 3].isfinite().all()


@pytest.mark.parametrize("how", FAST)
def test_nan_reaches_the_gradients(how: str):
    """Those that the definition gives it to."""
    p, u = parameters(1, 4, 16), torch.tensor([[0.5, torch.nan]], dtype=F64).requires_grad_()
    dense, fast = (with_gradients(u, p, nonneg=True, evaluate=one) for one in ("dense", how))
    for ours, theirs in zip(fast, dense, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())


INTERPRETED_TEST = """
import itertools, sys, torch
sys.path.insert(0, {root!r})
from tests.luna.kernels.test_scalar_mlp import largest_gap, parameters, scalars, with_gradients
from luna.kernels.scalar_mlp import evaluator

assert evaluator("triton", "relu", "cpu") == "triton"
sizes = [(1, 8, 64, 300), (2, 3, 5, 17), (1, 1, 1, 1), (1, 2, 4, 1000)]
for (G, L, w, N), shared, nonneg, activation in itertools.product(
    sizes, [False, True], [False, True], ["relu", "leaky_relu"]
):
    p, u = parameters(G, L, w, shared=shared), scalars(G, N)
    options = dict(nonneg=nonneg, activation=activation)
    dense = with_gradients(u, p, evaluate="dense", **options)
    gap = largest_gap(with_gradients(u, p, evaluate="triton", **options), dense)
    assert gap < 1e-12, (G, L, w, N, shared, nonneg, activation, gap)

p, u = parameters(1, 4, 8), scalars(1, 300)  # keys that coincide, lie at infinity, hold inputs
with torch.no_grad():
    p[0][:, 1], p[1][:, 1] = p[0][:, 0], p[1][:, 0]
    p[0][:, 2, :3], p[1][:, 2, :3] = 0, torch.tensor([0.7, -0.7, 0.0])
    p[0][:, 3], p[1][:, 3] = torch.tensor([1.0, -1.0] * 4), torch.tensor([-0.5, 0.5] * 4)
    u[0, :50] = 0.5
dense = with_gradients(u, p, evaluate="dense")
assert largest_gap(with_gradients(u, p, evaluate="triton"), dense) < 1e-12
"""


@pytest.mark.skipif(not TRITON, reason="needs triton: pip install 'luna-lra[triton]'")
def test_triton_equals_dense_in_its_interpreter():
    """The variable has to be set before triton is imported, so in a process of its own."""
    root = Path(__file__).resolve().parents[3]
    subprocess.run(
        [sys.executable, "-c", INTERPRETED_TEST.format(root=str(root))],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        check=True,
        timeout=300,
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("how", ["piecewise", "triton"])
def test_gpu_equals_cpu(how: str, nonneg: bool):
    p, u = parameters(2, 4, 16), scalars(2, 5000)
    there = [t.detach().cuda().requires_grad_() for t in (u, *p)]
    ours = with_gradients(there[0], there[1:], nonneg=nonneg, chunk=3000, evaluate=how)
    assert largest_gap([t.cpu() for t in ours], with_gradients(u, p, nonneg=nonneg)) < 1e-12


def test_auto_takes_the_fast_one_where_it_applies(monkeypatch: pytest.MonkeyPatch):
    assert typing.get_args(Activation) == tuple(ACTIVATIONS)
    for present, expected in ((True, "compiled"), (False, "piecewise")):
        monkeypatch.setattr(cpu, "AVAILABLE", present)
        chosen = {activation: evaluator("auto", activation) for activation in ACTIVATIONS}
        fast = {activation: how for activation, how in chosen.items() if how != "dense"}
        assert fast == {"relu": expected, "leaky_relu": expected}
        assert evaluator("dense", "relu") == "dense"
        assert evaluator("piecewise", "relu") == "piecewise"
        assert evaluator("auto", "relu", "meta") == "piecewise"
        assert evaluator("triton", "relu", "cuda") == "triton"
        assert evaluator("auto", "relu", "cuda") == ("triton" if TRITON else "piecewise")
    with pytest.raises(LunaError, match="evaluate='triton' needs a GPU, got cpu"):
        evaluator("triton", "relu", "cpu")
    with pytest.raises(LunaError, match="evaluate='compiled' needs a CPU, got cuda"):
        evaluator("compiled", "relu", "cuda")
    with pytest.raises(LunaError, match=r"'compiled' needs numba: pip install"):
        check("compiled", "relu")
    for how in ("piecewise", "compiled", "triton"):
        with pytest.raises(
            LunaError, match=r"needs a piecewise linear activation \(relu, leaky_relu\)"
        ):
            check(how, "gelu")


def test_missing_numba_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    scalar_mlp_module._warn_without_numba.cache_clear()
    attention = luna.build("luna", n_heads=1, head_dim=4, max_len=8)
    assert not caplog.records, "nothing is slow yet"
    for _ in range(3):
        attention(*torch.randn(3, 1, 1, 8, 4))
    assert len([r for r in caplog.records if "numba is not installed" in r.message]) == 1
