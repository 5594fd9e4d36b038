"""The fused attention against the paper's listing: outputs and every gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import luna
from luna import LunaError
from luna.attention.luna import Luna
from luna.kernels import cpu
from luna.kernels import luna_attention as fused
from luna.kernels.scalar_mlp import OUTPUTS

from ..kit import Sizes
from ..listing import listed

F64, F32 = torch.float64, torch.float32
numba = pytest.mark.skipif(not cpu.AVAILABLE, reason="needs numba: pip install 'luna-lra[fast]'")


def build(evaluate: str, *, heads: int = 2, dtype: torch.dtype = F64, **options: Any):
    torch.manual_seed(0)
    options = {"M": 4, "L": 3, "hidden": 8} | options
    attention = luna.build(
        "luna", n_heads=heads, head_dim=8, max_len=8192, evaluate=evaluate, **options
    )
    with torch.no_grad():
        for p in attention.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    return attention.to(dtype)


def tensors(
    n: int, *, B: int = 2, H: int = 2, d: int = 8, e: int = 5, dtype: torch.dtype = F64
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    shapes = [(B, H, n, d), (B, H, n, d), (B, H, n, e)]
    return [
        torch.randn(s, generator=generator, dtype=F64).to(dtype).requires_grad_() for s in shapes
    ]


def scattered(n: int, B: int = 2) -> Tensor:
    """Some tokens of the first example, none of the last."""
    mask = torch.rand(B, n, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[0, n // 2] = True
    mask[-1] = B == 1
    return mask


def with_gradients(
    attention: Luna, given: list[Tensor], mask: Tensor | None, attend: Callable | None = None
) -> list[Tensor]:
    """The attention's output and gradients, or those of another way to compute it."""
    out = (attend or attention)(*given, mask)
    weights = torch.cos(torch.arange(out.numel(), dtype=F64)).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, [*given, *attention.parameters()], weights)]


def assert_is_the_listing(attention: Luna, given: list[Tensor], mask: Tensor | None) -> None:
    expected = with_gradients(attention, given, mask, partial(listed, attention))
    assert_close(with_gradients(attention, given, mask), expected, 1e-11)


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).detach().abs().max() <= tolerance * b.detach().abs().max().clamp_min(1)


@numba
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_lengths(masked: bool, causal: bool):
    """Below, at and above a block, which is 128 tokens, or 64 in causal attention."""
    for n in (1, 17, 64, 128, 150):
        mask, given = (scattered(n) if masked else None), tensors(n)
        attention = build("fused", causal=causal)
        assert_is_the_listing(attention, given, mask)


@numba
@pytest.mark.parametrize("n", [1024, 1025, 2100])
def test_segments(n: int):
    """At and above a segment of 1024 tokens; the ordinary evaluation stands for the listing."""
    given, mask = tensors(n), scattered(n)
    expected = with_gradients(build("piecewise"), given, mask)
    assert_close(with_gradients(build("fused"), given, mask), expected, 1e-11)


@numba
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"share": "head"},
        {"share": "head", "heads": 3},
        {"nonneg": False},
        {"nonneg": "softplus"},
        {"nonneg": "exp"},
        {"nonneg": "exp", "share": "head", "M": 5, "L": 1},
        {"activation": "leaky_relu", "shared_channels": True},
        {"M": 1, "L": 1, "hidden": 1},
        {"M": 16, "L": 16, "hidden": 16},
        {"M": 2, "L": 32, "hidden": 4},
        {"M": 8, "L": 8, "hidden": 64},
    ],
    ids=str,
)
def test_options(options: dict[str, Any], causal: bool):
    given, mask = tensors(150, H=options.get("heads", 2)), scattered(150)
    assert_is_the_listing(build("fused", causal=causal, **options), given, mask)


@numba
@pytest.mark.parametrize(("B", "H", "d_v"), [(1, 1, 8), (3, 2, 1), (1, 4, 16), (33, 1, 3)])
@pytest.mark.parametrize("share", ["layer", "head"])
def test_sizes(B: int, H: int, d_v: int, share: str):
    given, mask = tensors(40, B=B, H=H, e=d_v), scattered(40, B)
    assert_is_the_listing(build("fused", heads=H, share=share), given, mask)


@numba
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("dtype", "nonneg"),
    [
        (F32, True), (F32, "softplus"), (F32, "exp"), (torch.bfloat16, True), (torch.float16, "exp")
    ],
)  # fmt: skip
def test_lower_precision(dtype: torch.dtype, nonneg: bool | str, causal: bool):
    """As the ordinary way in float32, and in the values' precision outside."""
    given, mask = tensors(700, dtype=dtype), scattered(700)
    fused, plain = (
        with_gradients(build(how, dtype=F32, causal=causal, nonneg=nonneg), given, mask)
        for how in ("fused", "piecewise")
    )
    assert fused[0].dtype == fused[1].dtype == dtype
    for ours, theirs in zip(fused, plain, strict=True):
        # Positive features hardly change with their scale: the sums of g's gradient cancel.
        close = max(2 * torch.finfo(ours.dtype).eps, 1e-5 if nonneg is True else 1e-4)
        assert (ours.double() - theirs.double()).norm() <= close * theirs.double().norm()


@numba
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("nonneg", [True, "exp"])
def test_training_in_bf16_mixed_is_near_float32(nonneg: bool | str, causal: bool):
    """With projections under autocast, over so many tokens that sums in bfloat16 would be far
    off."""
    attention = build("fused", dtype=F32, causal=causal, nonneg=nonneg)
    projection = nn.Linear(16, 48)
    x = torch.randn(2, 1500, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = torch.cos(torch.arange(x.numel()).float()).view(2, 1500, 2, 8).transpose(1, 2)
    parameters = [*projection.parameters(), *attention.parameters()]

    def step(mixed: bool) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            qkv = projection(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            out = attention(*qkv, scattered(1500))
        assert out.dtype == (torch.bfloat16 if mixed else F32)
        gradient, *others = torch.autograd.grad(out.float(), [x, *parameters], weights)
        return [out, gradient, torch.cat([t.flatten() for t in others])]

    for mixed, exact in zip(step(True), step(False), strict=True):
        assert (mixed - exact).norm() < 2e-2 * exact.norm()


@numba
@pytest.mark.parametrize("dtype", [F32, F64])
def test_softplus_and_exp_are_torchs(dtype: torch.dtype):
    """Values and derivatives over the whole range, to a few units in the last place: beyond the
    clamp of exp and the threshold of softplus, where they vanish, at infinity and NaN."""
    from luna.kernels.luna_attention.outputs import EXP, SOFTPLUS, put_outputs

    ends = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 15.0, 20.0, -88.0, -120.0]
    y = torch.cat([torch.linspace(-87, 25, 20_001, dtype=F64), torch.tensor(ends, dtype=F64)])
    y = y.to(dtype)
    for code, nonneg in ((SOFTPLUS, "softplus"), (EXP, "exp")):
        exact = y.double().clone().requires_grad_()
        value = OUTPUTS[nonneg](exact)
        (slope,) = torch.autograd.grad(value.sum(), exact)
        found = y.clone(), torch.empty_like(y)
        put_outputs(*(t.numpy() for t in found), code)
        close = {"rtol": 5 * torch.finfo(dtype).eps, "atol": 1e-37, "equal_nan": True}
        value = value.detach()
        torch.testing.assert_close(found[0].double(), value, **close)
        finite = y.isfinite()  # at infinity torch's formulas have 0 times infinity
        torch.testing.assert_close(found[1].double()[finite], slope[finite], **close)
        assert found[1][y.isnan()].isnan().all()


@numba
@pytest.mark.parametrize("x", [-80.0, -3.0, 0.0, 0.25])
def test_exp_and_log1p_have_the_precision_of_their_argument(x: float):
    """Called from Python as from compiled code."""
    from luna.kernels.luna_attention.outputs import exponential, log1p

    e, short = math.exp(x), np.float32(x)
    t = min(e, 1.0)
    assert exponential(x) == e
    assert log1p(t) == math.log1p(t)
    singles = exponential(short), log1p(np.float32(t))
    assert singles == pytest.approx((e, math.log1p(t)), rel=1e-6)
    assert singles == tuple(float(np.float32(s)) for s in singles)


@numba
@pytest.mark.parametrize("nonneg", [True, False, "softplus", "exp"])
def test_nan_goes_where_it_goes_by_the_definition(nonneg: bool | str):
    """In a query, a key or a value: to the same numbers of the output, and of every gradient to no
    fewer. (A unit that is off for every token has 0 by the definition; a table knows no units.)"""
    attention = build("fused", nonneg=nonneg)
    for which in range(3):
        given = tensors(20)
        with torch.no_grad():
            given[which][0, 1, 7, 2] = torch.nan
        expected = with_gradients(attention, given, None, partial(listed, attention))
        found = with_gradients(attention, given, None)
        assert torch.equal(found[0].isnan(), expected[0].isnan())
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.isnan() | ~theirs.isnan()).all()
        assert any(t.isnan().any() for t in expected[1:])


@numba
def test_second_derivatives_are_refused():
    attention, given = build("fused"), tensors(20)
    (slope,) = torch.autograd.grad(attention(*given).sum(), given[0], create_graph=True)
    with pytest.raises(LunaError, match="no second derivatives: build LUNA with evaluate='dense'"):
        slope.square().sum().backward()


@numba
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("frozen", [{"projections": "frozen"}, {"psi": "frozen"}])
def test_frozen_parameters(frozen: dict[str, Any], causal: bool):
    attention, given = build("fused", causal=causal, **frozen), tensors(70)
    assert_close(
        with_gradients(attention, given, None),
        with_gradients(build("dense", causal=causal, **frozen), given, None),
        1e-11,
    )


@numba
@pytest.mark.parametrize("how", ["auto", "fused", "piecewise", "compiled"])
@pytest.mark.parametrize("causal", [False, True])
def test_no_path_has_wrong_second_derivatives(how: str, causal: bool):
    x = tensors(20)[0]
    out = build(how, causal=causal)(x, x, x)
    (slope,) = torch.autograd.grad((x + out).square().sum(), x, create_graph=True)
    with pytest.raises(LunaError, match="no second derivatives: build LUNA with evaluate='dense'"):
        torch.autograd.grad(slope.sum(), x)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", ["auto", "dense"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision(dtype: torch.dtype, how: str, causal: bool):
    given = tensors(40, dtype=dtype)
    exact = [t.detach().double().requires_grad_() for t in given]
    attention = build(how, causal=causal, dtype=dtype)
    found = with_gradients(attention, given, None)
    expected = with_gradients(build("dense", causal=causal), exact, None)
    assert all(t.dtype == dtype and t.isfinite().all() for t in found)
    assert (found[0].double() - expected[0]).abs().max() < 0.1


@numba
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_columns_that_lie_apart(which: int, causal: bool):
    given, attention = tensors(50), build("fused", causal=causal)
    expected = with_gradients(attention, given, None)
    given[which] = given[which].detach().mT.contiguous().mT.requires_grad_()
    assert_close(with_gradients(attention, given, None), expected, 1e-12)


@numba
@pytest.mark.parametrize("layout", ["transposed", "expanded"])
def test_layouts(layout: str):
    """Heads cut out of (B, n, H d) as a backbone does it, and a gradient of stride 0."""
    given = tensors(50)
    expected = with_gradients(build("dense"), given, None)
    if layout == "transposed":
        given = [t.detach().transpose(1, 2).contiguous().transpose(1, 2) for t in given]
        given = [t.requires_grad_() for t in given]
        assert_close(with_gradients(build("fused"), given, None), expected, 1e-11)
    else:
        sums = [torch.autograd.grad(build(how)(*given).sum(), given) for how in ("dense", "fused")]
        assert_close(sums[1], sums[0], 1e-11)


@numba
def test_dead_queries_give_zero_and_finite_gradients():
    """Where no channel is on, the sum of weights is 0: the output is 0 and c gets no gradient."""
    results = []
    for how in ("dense", "fused"):
        attention = build(how)
        with torch.no_grad():
            attention.map.channels.g.fill_(-100)
        results.append(with_gradients(attention, tensors(30), None))
    assert results[1][0].abs().max() == 0
    assert all(t.isfinite().all() for t in results[1])
    assert_close(results[1], results[0], 1e-12)


@numba
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_is_read_at_padding(causal: bool):
    """Not even NaN, without the module's own masking before and after."""
    attention, mask = build("fused", causal=causal), scattered(300)
    clean = tensors(300)
    pad = ~mask[:, None, :, None]
    dirty = [t.detach().masked_fill(pad, torch.nan).requires_grad_() for t in clean]
    outs = [attention.attend(*given, mask, None) for given in (clean, dirty)]
    assert torch.equal(*outs)
    assert (outs[1].masked_select(pad) == 0).all()
    gradients = [
        torch.autograd.grad(out.square().sum(), given)
        for out, given in zip(outs, (clean, dirty), strict=True)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)
        assert (theirs.masked_select(pad) == 0).all()


@numba
@pytest.mark.parametrize("nonneg", [True, "exp"])
def test_threads_change_nothing(nonneg: bool | str):
    given, mask = tensors(3000, dtype=F32), scattered(3000)
    attention, before = build("fused", dtype=F32, nonneg=nonneg), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 1, 2, 3):
            torch.set_num_threads(threads)
            results.append(with_gradients(attention, given, mask))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for ours, theirs in zip(other, results[0], strict=True):
            assert torch.equal(ours, theirs)


@numba
def test_all_memory_is_written_before_it_is_read(monkeypatch: pytest.MonkeyPatch):
    given, mask, attention = tensors(200), scattered(200), build("fused")
    clean = with_gradients(attention, given, mask)
    for where, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        make = getattr(where, name)

        def poisoned(*args: Any, make: Any = make, **kwargs: Any) -> Tensor:
            t = make(*args, **kwargs)
            return t.fill_(float("nan") if t.is_floating_point() else 2**31 - 1)

        monkeypatch.setattr(where, name, poisoned)
    for ours, theirs in zip(with_gradients(attention, given, mask), clean, strict=True):
        assert torch.equal(ours, theirs)


@numba
def test_the_operator_refuses_tensors_that_do_not_fit():
    """It indexes raw memory: k shorter than q once corrupted the heap."""
    attention = build("fused")
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
    }
    for arguments in wrong.values():
        with pytest.raises(LunaError, match="the fused attention needs q, k"):
            fused.luna_attention(*arguments, *maps)
    for i, name in ((3, "f"), (4, "a"), (5, "g")):
        narrow = [t[..., :1] if j == i else t for j, t in enumerate(maps)]
        with pytest.raises(LunaError, match=rf"scalar MLPs need .*{name} torch.float64 \(1, "):
            fused.luna_attention(q, k, v, None, *narrow)
    heads = build("fused", heads=3, share="head").map
    with pytest.raises(LunaError, match="scalar MLPs need .* G = 3"):
        fused.luna_attention(
            q, k, v, None, heads.projections.weight, heads.projections.bias, *maps[2:]
        )


@numba
def test_cross_attention_goes_without_the_kernel():
    """As asked for by name: the same function with all features at once."""
    (q, _, _), (_, k, v) = tensors(70), tensors(40)
    mask, keys = scattered(70), scattered(40)
    ours, theirs = (build(how)(q, k, v, mask, key_mask=keys) for how in ("fused", "dense"))
    assert_close([ours], [theirs], 1e-11)


@numba
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("nonneg", [True, "exp"])
def test_no_tensor_of_the_size_of_the_features(nonneg: bool | str, causal: bool):
    """n D numbers are never there."""
    n = 2048
    given = tensors(n, B=1, H=1, dtype=F32)
    attention = build("fused", heads=1, dtype=F32, M=16, L=8, causal=causal, nonneg=nonneg)
    attention(*given).sum().backward()
    with Sizes() as sizes:
        attention(*given).sum().backward()
    assert sizes.largest < n * 16 * 8 / 4


@numba
@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_is_sound_for_torch_compile(causal: bool):
    attention, given = build("fused", causal=causal), tensors(20)
    expected = with_gradients(attention, given, scattered(20))
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    assert_close(with_gradients(compiled, given, scattered(20)), expected, 1e-14)


@numba
def test_the_fraction_of_dead_rows_is_the_same():
    given, mask = tensors(100), scattered(100)
    fractions = []
    for how in ("dense", "fused"):
        attention = build(how, M=1, L=1).eval()
        attention(*given, mask)
        fractions.append(attention.dead_fraction.item())
    assert fractions[0] == fractions[1] > 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "fused"),
        ({"share": "head", "nonneg": False}, "fused"),
        ({"envelope": "scalar"}, "compiled"),
        ({"ch_rms": True}, "compiled"),
        ({"tie_qk": False}, "compiled"),
        ({"nonneg": "softplus"}, "fused"),
        ({"causal": True}, "fused"),
        ({"causal": True, "envelope": "scalar"}, "compiled"),
        ({"kernel": "bank_coef"}, "compiled"),
        ({"evaluate": "compiled"}, "compiled"),
        ({"evaluate": "piecewise"}, "piecewise"),
        ({"activation": "gelu"}, "dense"),
    ],
    ids=str,
)
def test_auto_fuses_what_can_be_fused(
    options: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cpu, "AVAILABLE", True)
    attention = luna.build("luna", n_heads=2, head_dim=8, max_len=8, **options)
    assert attention.evaluation("cpu") == expected
    assert attention.evaluation("meta") == ("dense" if expected == "dense" else "piecewise")
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    assert attention.evaluation("cpu") == attention.evaluation("meta")


def test_fused_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu, "AVAILABLE", True)
    for options in ({"envelope": "scalar"}, {"tie_qk": False}, {"ch_rms": True}):
        with pytest.raises(LunaError, match=r"luna\.evaluate='fused' needs kernel='learned'"):
            luna.build("luna", n_heads=2, head_dim=8, max_len=8, evaluate="fused", **options)
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    with pytest.raises(LunaError, match="fused attention on cpu needs numba: pip install"):
        build("fused").evaluation("cpu")
