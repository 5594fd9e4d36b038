"""The fused attention against the paper's listing: outputs and every gradient.

On a CPU by numba, in float64; on a GPU by Triton, in float32. test_triton.py runs what has a
`place` in Triton's interpreter too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import luna
from luna import LunaError
from luna.attention.luna import Luna
from luna.kernels import cpu
from luna.kernels import luna_attention as fused
from luna.kernels.checked import INTERPRETED, TRITON
from luna.kernels.scalar_mlp import OUTPUTS
from luna.kernels.scalar_mlp.reference import CLAMP

from .. import kit
from ..kit import Sizes
from ..listing import listed
from .kit import (
    F32,
    F64,
    assert_close,
    assert_equal,
    assert_threads_change_nothing,
    leaves,
    numba,
    poison_memory,
    scattered,
    with_gradients,
)

causally = pytest.mark.parametrize("causal", [False, True])


class Place(NamedTuple):
    device: str
    dtype: torch.dtype
    close: float


NO_GPU = pytest.mark.skipif(not (TRITON and torch.cuda.is_available()), reason="needs a GPU")
CPU = pytest.param(Place("cpu", F64, 1e-11), marks=[] if INTERPRETED else numba, id="cpu")
GPU = pytest.param(Place("cuda", F32, 1e-4), marks=[pytest.mark.gpu, NO_GPU], id="cuda")


@pytest.fixture(params=[CPU, GPU])
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


def build(evaluate: str = "fused", *, heads: int = 2, dtype: torch.dtype = F64, **options: Any):
    torch.manual_seed(0)
    sizes = {"n_heads": heads, "head_dim": 8, "max_len": 8192, "M": 4, "L": 3, "hidden": 8}
    attention = luna.build("luna", evaluate=evaluate, **sizes | options)
    with torch.no_grad():
        for p in attention.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    return attention.to(dtype)


def tensors(n: int, *, B: int = 2, H: int = 2, e: int = 5, dtype: torch.dtype = F64):
    """q, k, v."""
    return leaves(*kit.qkv(B, H, n, 8, d_v=e, seed=n), dtype=dtype)


def attended(attention: Luna, qkv: list[Tensor], mask: Tensor | None = None, by=None):
    """The attention's output and gradients, or those of another way to compute it."""
    return with_gradients((by or attention)(*qkv, mask), [*qkv, *attention.parameters()])


def attended_at(place: Place, attention: Luna, qkv: list[Tensor], mask: Tensor | None = None):
    qkv = [t.detach().to(place.device, place.dtype).requires_grad_() for t in qkv]
    mask = None if mask is None else mask.to(place.device)
    results = attended(attention.to(place.device, place.dtype), qkv, mask)
    return [t.cpu().double() for t in results]


def assert_is_the_listing(
    place: Place, attention: Luna, qkv: list[Tensor], mask: Tensor | None = None
) -> list[Tensor]:
    expected = attended(attention, qkv, mask, by=lambda *call: listed(attention, *call))
    results = attended_at(place, attention, qkv, mask)
    assert_close(results, expected, place.close)
    return results


@causally
@pytest.mark.parametrize("masked", [False, True])
def test_lengths(place: Place, masked: bool, causal: bool):
    """Below, at and above a block, of 64 or 128 tokens."""
    for n in (1, 64, 130):
        mask = scattered(n) if masked else None
        assert_is_the_listing(place, build(causal=causal, heads=1), tensors(n, H=1), mask)


@causally
@pytest.mark.parametrize(
    "options",
    [
        {"share": "head", "heads": 3, "nonneg": False},
        {"nonneg": "softplus"},
        {"nonneg": "exp"},
        {"nonneg": "exp", "share": "head", "heads": 2, "M": 5, "L": 1},
        {"activation": "leaky_relu", "shared_channels": True},
        {"M": 1, "L": 1, "hidden": 1},
        {"M": 16, "L": 8, "hidden": 16},
        {"M": 3, "L": 5, "projections": "frozen"},
        {"psi": "frozen"},
    ],
    ids=str,
)
def test_options(place: Place, options: dict[str, Any], causal: bool):
    attention = build(causal=causal, **{"heads": 1} | options)
    assert_is_the_listing(place, attention, tensors(20, H=attention.n_heads), scattered(20))


@causally
@pytest.mark.parametrize("nonneg", [True, False, "exp", "softplus"])
def test_another_divisor(place: Place, nonneg: bool | str, causal: bool):
    """normalise=rms divides the sums of values outside of the kernels."""
    attention, dense = (
        build(how, causal=causal, nonneg=nonneg, normalise="rms", heads=1)
        for how in ("fused", "dense")
    )
    qkv, mask = tensors(70, H=1, e=8), scattered(70)
    results = attended_at(place, attention, qkv, mask)
    assert_close(results, attended(dense, qkv, mask), place.close)


@causally
@pytest.mark.parametrize(("n", "dtype"), [(1, F64), (130, F64), (70, torch.bfloat16)])
def test_sums_of_absolute_weights(place: Place, n: int, dtype: torch.dtype, causal: bool):
    """normalise=abs, of features of both signs. Values of one sign, so that no sum nearly is 0."""
    options = {"nonneg": False, "normalise": "abs", "share": "head", "causal": causal}
    attention, dense = (build(how, **options) for how in ("fused", "dense"))
    qkv, mask = tensors(n), scattered(n)
    qkv[2].data.abs_()
    if dtype == F64:
        results = attended_at(place, attention, qkv, mask)
        assert_close(results, attended(dense, qkv, mask), place.close)
        return
    for each in (attention, dense):
        each.to(place.device, F32)
    qkv, mask = leaves(*(t.to(place.device) for t in qkv), dtype=dtype), mask.to(place.device)
    pairs = zip(attended(attention, qkv, mask), attended(dense, qkv, mask), strict=True)
    for i, (ours, theirs) in enumerate(pairs):
        close = 2 * torch.finfo(dtype).eps if i < 4 else 2e-4
        assert ours.dtype == theirs.dtype
        assert (ours.double() - theirs.double()).norm() <= close * theirs.double().norm()


@pytest.mark.parametrize(
    ("n", "B", "H", "e", "share"),
    [(20, 1, 1, 17, "layer"), (20, 3, 2, 1, "head"), (5, 33, 1, 3, "layer")],
)
def test_sizes(place: Place, n: int, B: int, H: int, e: int, share: str):
    qkv = tensors(n, B=B, H=H, e=e)
    assert_is_the_listing(place, build(heads=H, share=share), qkv, scattered(n, B))


@pytest.mark.parametrize("nonneg", [True, False])
def test_breakpoints_that_coincide_hold_inputs_or_lie_nowhere(place: Place, nonneg: bool):
    """u is x itself and binary fractions throughout, so that inputs lie on breakpoints exactly;
    units with e = 0 are on, off, or exactly at 0."""
    attention, qkv = build(nonneg=nonneg), tensors(40)
    with torch.no_grad():
        for t in qkv[:2]:
            t.copy_((t * 4).round() / 4)
        attention.map.projections.weight.copy_(torch.eye(4, 8))
        attention.map.projections.bias.zero_()
        attention.map.channels.e.copy_(torch.tensor([1.0, -1, 2, -2, 0, 0, 0, 1]))
        attention.map.channels.f.copy_(torch.tensor([0.25, -0.25, 0.5, -1, 0.5, -0.5, 0, 0.25]))
    assert_is_the_listing(place, attention, qkv, scattered(40))


@causally
@pytest.mark.parametrize("dims", [(1, 2), (2, 3)])
def test_layouts(place: Place, dims: tuple[int, int], causal: bool):
    """Heads cut out of (B, n, H d) as a backbone does it, or columns that lie apart (results once
    had their strides, and kernels filled copies of them); and a gradient of stride 0."""
    whole, sums = tensors(20), []
    apart = leaves(*(t.transpose(*dims).contiguous().transpose(*dims) for t in whole))
    for qkv in (apart, [*whole[:2], apart[2]]):
        assert_is_the_listing(place, build(causal=causal), qkv)
    attention = build(causal=causal).to(place.device, place.dtype)
    for qkv in (apart, whole):
        there = [t.detach().to(place.device, place.dtype).requires_grad_() for t in qkv]
        sums.append(torch.autograd.grad(attention(*there).sum(), there))
    assert_close(*sums, place.close)


def test_dead_queries_give_zero_and_finite_gradients(place: Place):
    """Where no channel is on, the sum of weights is 0: the output is 0 and c gets no gradient."""
    attention = build()
    with torch.no_grad():
        attention.map.channels.g.fill_(-100)
    results = assert_is_the_listing(place, attention, tensors(30))
    assert results[0].abs().max() == 0
    assert all(t.isfinite().all() for t in results)


@causally
def test_nothing_is_read_at_padding_or_before_it_is_written(
    place: Place, causal: bool, monkeypatch: pytest.MonkeyPatch
):
    """Not even NaN, without the module's own masking before and after."""
    attention, mask, clean = build(causal=causal, heads=1), scattered(70), tensors(70, H=1)
    pad = ~mask[:, None, :, None]
    dirty = leaves(*(t.masked_fill(pad, torch.nan) for t in clean))
    monkeypatch.setattr(attention, "forward", lambda *call: attention.attend(*call, None))
    expected = attended_at(place, attention, clean, mask)
    poison_memory(monkeypatch)
    results = attended_at(place, attention, dirty, mask)
    assert_close(results, expected, 0 if place.device == "cpu" else place.close)
    for t in results[:4]:
        assert (t.masked_select(pad) == 0).all()


@causally
def test_the_operator_is_sound_for_torch_compile(place: Place, causal: bool):
    attention, call = build(causal=causal), (tensors(20), scattered(20))
    expected = attended_at(place, attention, *call)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    assert_close(attended_at(place, compiled, *call), expected, place.close)


@causally
@pytest.mark.parametrize(
    ("dtype", "nonneg"),
    [(F32, True), (F32, "softplus"), (F32, "exp"), (torch.bfloat16, True), (torch.float16, "exp")],
)
def test_lower_precision(
    place: Place, dtype: torch.dtype, nonneg: bool | str, causal: bool, monkeypatch
):
    """As the ordinary way in float32, and in the values' precision outside. (The interpreter cuts
    off where it should round.)"""
    place, n = place._replace(dtype=dtype), 20 if INTERPRETED else 700
    results = []
    for how in ("fused", "piecewise"):
        attention = build(how, dtype=F32, causal=causal, nonneg=nonneg).to(place.device)
        monkeypatch.setattr(attention, "to", lambda *_, a=attention: a)  # they stay in float32
        results.append(attended_at(place, attention, tensors(n), scattered(n)))
    for i, (ours, theirs) in enumerate(zip(*results, strict=True)):
        # Positive features hardly change with their scale: the sums of g's gradient cancel.
        close = max(2 * torch.finfo(dtype if i < 4 else F32).eps, 1e-5 if nonneg is True else 1e-4)
        if place.device == "cuda" and dtype != F32:
            close = max(close, 2e-4)  # products of three bfloat16 have 16 digits of 24
        assert (ours - theirs).norm() <= close * theirs.norm()


# ---------------------------------------------------------------------- on a CPU


@numba
@pytest.mark.parametrize("n", [1024, 1025, 2100])
def test_segments(n: int):
    """At and above a segment of 1024 tokens; the ordinary evaluation stands for the listing."""
    ours, theirs = (attended(build(h), tensors(n), scattered(n)) for h in ("fused", "piecewise"))
    assert_close(ours, theirs, 1e-11)


@causally
@pytest.mark.parametrize("how", ["auto", "dense"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision(dtype: torch.dtype, how: str, causal: bool):
    qkv = tensors(40, dtype=dtype)
    results = attended(build(how, causal=causal, dtype=dtype), qkv)
    exact = build("dense", causal=causal)(*leaves(*qkv, dtype=F64))
    assert all(t.dtype == dtype and t.isfinite().all() for t in results)
    assert (results[0].double() - exact).abs().max() < 0.1


@numba
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("nonneg", ["softplus", "exp"])
def test_softplus_and_exp_are_torchs(dtype: torch.dtype, nonneg: str):
    """Values and derivatives over the whole range, to a few units in the last place: beyond the
    clamp of exp and the threshold of softplus, where they vanish, at infinity and NaN."""
    from luna.kernels.luna_attention.numba_outputs import put_outputs

    ends = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 15.0, 20.0, -88.0, -120.0]
    y = torch.cat([torch.linspace(-87, 25, 20_001, dtype=F64), torch.tensor(ends, dtype=F64)])
    y = y.to(dtype)
    (exact,) = leaves(y, dtype=F64)
    value = OUTPUTS[nonneg](exact)
    (slope,) = torch.autograd.grad(value.sum(), exact)
    values, slopes = y.clone(), torch.empty_like(y)
    call = cpu.jit(lambda *given: put_outputs(*given))
    call(values.numpy(), slopes.numpy(), list(OUTPUTS).index(nonneg))
    close = {"rtol": 5 * torch.finfo(dtype).eps, "atol": 1e-37, "equal_nan": True}
    torch.testing.assert_close(values.double(), value.detach(), **close)
    finite = y.isfinite()  # at infinity torch's formulas have 0 times infinity
    finite &= y != CLAMP  # a kink: at it torch 2.13 has the slope of its left, 2.15 has 0
    torch.testing.assert_close(slopes.double()[finite], slope[finite], **close)
    assert slopes[y.isnan()].isnan().all()


@numba
@causally
def test_absolute_weights_in_several_segments_by_any_number_of_threads(causal: bool):
    ours, theirs = (
        build(how, nonneg=False, normalise="abs", causal=causal) for how in ("fused", "piecewise")
    )
    qkv, mask = tensors(2100), scattered(2100)
    assert_close(attended(ours, qkv, mask), attended(theirs, qkv, mask), 1e-11)
    assert_threads_change_nothing(lambda: attended(ours, qkv, mask))


@numba
def test_features_of_one_sign_have_no_other_absolute_weights():
    qkv, mask = tensors(40), scattered(40)
    assert_equal(*(attended(build(normalise=by), qkv, mask) for by in ("abs", "sum")))


@numba
@pytest.mark.parametrize("nonneg", [True, False, "softplus", "exp"])
def test_nan_goes_where_it_goes_by_the_definition(nonneg: bool | str):
    """In a query, a key or a value: to the same numbers of the output, and of every gradient to no
    fewer. (A unit that is off for every token has 0 by the definition; a table knows no units.)"""
    attention = build(nonneg=nonneg)
    for which in range(3):
        qkv = tensors(20)
        with torch.no_grad():
            qkv[which][0, 1, 7, 2] = torch.nan
        expected = attended(attention, qkv, by=lambda *call: listed(attention, *call))
        results = attended(attention, qkv)
        assert torch.equal(results[0].isnan(), expected[0].isnan())
        for ours, theirs in zip(results, expected, strict=True):
            assert (ours.isnan() | ~theirs.isnan()).all()
        assert any(t.isnan().any() for t in expected[1:])
        assert not any(t[1].isnan().any() for t in results[:4])  # another example


@numba
@causally
@pytest.mark.parametrize("how", ["auto", "fused", "piecewise"])
def test_second_derivatives_are_refused(how: str, causal: bool):
    """Also where the first ones have a graph without them."""
    x = tensors(20)[0]
    out = build(how, causal=causal)(x, x, x)
    (slope,) = torch.autograd.grad((x + out).square().sum(), x, create_graph=True)
    with pytest.raises(LunaError, match="no second derivatives: build LUNA with evaluate='dense'"):
        torch.autograd.grad(slope.sum(), x)


@numba
def test_the_fraction_of_dead_rows_is_the_same():
    dense, fused = (build(how, M=1, L=1).eval() for how in ("dense", "fused"))
    for attention in (dense, fused):
        attention(*tensors(100), scattered(100))
    assert dense.dead_fraction == fused.dead_fraction > 0


@numba
@pytest.mark.parametrize("nonneg", [True, "exp"])
def test_threads_change_nothing(nonneg: bool | str):
    attention = build(dtype=F32, nonneg=nonneg)
    qkv, mask = tensors(3000, dtype=F32), scattered(3000)
    assert_threads_change_nothing(lambda: attended(attention, qkv, mask))


@numba
@causally
def test_tensors_that_do_not_fit_are_refused(causal: bool):
    """The operator indexes raw memory: k shorter than q once corrupted the heap."""
    attention = build()
    psi, W = attention.map.channels, attention.map.projections
    maps = (W.weight, W.bias, psi.e, psi.f, psi.a, psi.g)
    q, k, v = tensors(50)
    wrong = {
        "shorter keys": (q, k[:, :, :4], v[:, :, :4], None),
        "narrow queries": (q[..., :4], k, v, None),
        "another batch": (q[:1], k, v, None),
        "short mask": (q, k, v, scattered(49)),
        "mask of numbers": (q, k, v, scattered(50).double()),
        "narrow maps": (*(t[..., :5] for t in (q, k, v)), None),
        "more values": (q, k, torch.cat([v, v]), None),
        "values of whole numbers": (q, k, v.long(), None),
        "values in single precision": (q, k, v.float(), None),
        "one dimension less": (q[0], k[0], v[0], None),
    }
    for arguments in wrong.values():
        with pytest.raises(LunaError, match="the fused attention needs q, k"):
            fused.luna_attention(*arguments, *maps, causal=causal)
    heads = build(heads=3, share="head").map.projections
    with pytest.raises(LunaError, match=r"scalar MLPs need .* G = 3"):
        fused.luna_attention(q, k, v, None, heads.weight, heads.bias, *maps[2:])


@numba
@causally
@pytest.mark.parametrize("nonneg", [True, "exp"])
def test_no_tensor_of_the_size_of_the_features(nonneg: bool | str, causal: bool):
    """n D numbers are never there."""
    n, qkv = 2048, tensors(2048, B=1, H=1, dtype=F32)
    attention = build(heads=1, dtype=F32, M=16, L=8, causal=causal, nonneg=nonneg)
    with Sizes() as sizes:
        attention(*qkv).sum().backward()
    assert sizes.largest < n * 16 * 8 / 4


@numba
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "fused"),
        ({"causal": True, "nonneg": "softplus", "share": "head"}, "fused"),
        ({"nonneg": False, "normalise": "abs"}, "fused"),
        ({"envelope": "scalar"}, "piecewise"),
        ({"ch_rms": True}, "piecewise"),
        ({"tie_qk": False}, "piecewise"),
        ({"kernel": "bank_coef"}, "piecewise"),
        ({"evaluate": "piecewise"}, "piecewise"),
        ({"activation": "gelu"}, "dense"),
    ],
    ids=str,
)
def test_auto_fuses_what_can_be_fused(options: dict[str, Any], expected: str, monkeypatch):
    attention = luna.build("luna", n_heads=2, head_dim=8, max_len=8, **options)
    assert attention.evaluation("cpu") == expected
    assert attention.evaluation("meta") == ("dense" if expected == "dense" else "piecewise")
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    assert attention.evaluation("cpu") == attention.evaluation("meta")


def test_fused_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch):
    for options in ({"envelope": "scalar"}, {"tie_qk": False}, {"ch_rms": True}):
        with pytest.raises(LunaError, match=r"luna\.evaluate='fused' needs kernel='learned'"):
            build(**options)
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    with pytest.raises(LunaError, match="fused attention on cpu needs numba: pip install"):
        build().evaluation("cpu")
