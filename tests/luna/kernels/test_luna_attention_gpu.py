"""The Triton kernels of LUNA's attention against the paper's listing: outputs and every gradient.

On a machine with a GPU they run there, in float32. Elsewhere they run in Triton's interpreter, in
float64; its variable has to be set before triton is imported, so in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

import luna
from luna import LunaError
from luna.kernels import checked
from luna.kernels.checked import INTERPRETED, TRITON
from luna.kernels.luna_attention import luna_attention, segments
from luna.kernels.luna_attention.reference import plain
from luna.kernels.scalar_mlp import OUTPUTS

from ..listing import listing

F = TypeVar("F", bound=Callable[..., None])
F64, F32 = torch.float64, torch.float32
GPU = TRITON and torch.cuda.is_available()
SIGNED = {"nonneg": False, "activation": "leaky_relu"}
DEVICE, DTYPE, CLOSE = ("cuda", F32, 1e-4) if GPU else ("cpu", F64, 1e-11)

triton = pytest.mark.skipif(not TRITON, reason="needs triton: pip install 'luna-lra[triton]'")


def runs(test: F) -> F:
    """Marks what `make test-gpu` and the interpreter's process run."""
    skip = pytest.mark.skipif(not (GPU or INTERPRETED), reason="needs a GPU, or the interpreter")
    return pytest.mark.gpu(skip(test))


@triton
@pytest.mark.skipif(GPU or INTERPRETED, reason="the tests below run as they are")
def test_in_the_interpreter():
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__],
        cwd=Path(__file__).resolve().parents[3],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        check=True,
        timeout=300,
    )


def given(
    n: int, *, B: int = 2, H: int = 1, d: int = 8, e: int = 5, M: int = 4, L: int = 3, w: int = 4,
    shared: bool = False, per_head: bool = False,
) -> list[Tensor]:  # fmt: skip
    """q, k, v, W, bias and the scalar MLPs e, f, a, g."""
    generator = torch.Generator().manual_seed(n + M + L)
    G, C = H if per_head else 1, 1 if shared else L
    shapes = [(B, H, n, d)] * 2 + [(B, H, n, e), (G, M, d), (G, M), (G, C, w), (G, C, w), (G, L, w)]
    return [torch.randn(s, generator=generator, dtype=F64) for s in [*shapes, (G, L)]]


def masks(n: int, B: int = 2) -> Tensor:
    """Some tokens of the first example, none of the last."""
    mask = torch.rand(B, n, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[0, n // 2] = True
    mask[-1] = False
    return mask


def with_gradients(attend, tensors: list[Tensor], mask: Tensor | None, **options) -> list[Tensor]:
    tensors = [t.detach().requires_grad_() for t in tensors]
    out, c = attend(*tensors[:3], mask, *tensors[3:], **options)
    weights = torch.cos(torch.arange(out.numel(), dtype=F64)).view(out.shape).to(out)
    found = torch.autograd.grad(out, tensors, weights)
    return [t.double().cpu() for t in (out.detach(), c.detach(), *found)]


def listed(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *maps: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """The paper's listing, head by head where each has maps of its own."""
    outs, sums = [], []
    M = maps[0].shape[1]
    # The listing divides features by sqrt(M). The operator is given a and g divided by it, but for
    # softplus and exp weights that are M times too large.
    scale, factor = (1, M) if isinstance(options["nonneg"], str) else (M**0.5, 1)
    options["eps"] /= factor
    for group, weights in enumerate(zip(*maps, strict=True)):
        W, bias, e, f, a, g = weights
        module = listing(W, bias, e, f, scale * a, scale * g, **options)
        heads = slice(group, group + 1) if len(maps[0]) > 1 else slice(None)
        q_, k_, v_ = (t[:, heads] for t in (q, k, v))
        outs.append(module(q_, k_, v_, mask))
        sums.append(factor * module.weights(q_, k_, mask).sum(-1).detach())
    out, c = torch.cat(outs, 1), torch.cat(sums, 1)
    return (out if mask is None else out * mask[:, None, :, None]), c


def compare(tensors: list[Tensor], mask: Tensor | None, **options: Any) -> None:
    """On the device and in its precision against the paper's listing in float64."""
    options = {"activation": "relu", "nonneg": True, "causal": False, "eps": 1e-6} | options
    expected = with_gradients(listed, tensors, mask, **options)
    there = [t.to(DEVICE, DTYPE) for t in tensors]
    mask = None if mask is None else mask.to(DEVICE)
    found = with_gradients(luna_attention, there, mask, **options)
    if mask is not None:  # c of a padded query says nothing
        found[1], expected[1] = (c * mask.cpu()[:, None] for c in (found[1], expected[1]))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= CLOSE * theirs.abs().max().clamp_min(1)


@runs
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "masked"), [(1, False), (70, True), (130, False)])
def test_lengths(n: int, masked: bool, causal: bool):
    """Below and above a block of 64, and the last one not full."""
    compare(given(n), masks(n) if masked else None, causal=causal)


@runs
@pytest.mark.parametrize("causal", [False, True])
def test_segments_of_several_blocks(causal: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segments, "PROGRAMS", 3)  # two of 128 tokens, the second with one block
    compare(given(150), masks(150), causal=causal)


@runs
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"H": 3, "per_head": True}, SIGNED),
        ({"M": 3, "L": 5, "d": 20, "e": 17}, SIGNED),
        ({"M": 1, "L": 1, "w": 1, "e": 1}, {}),
        ({"M": 3, "L": 5}, {"nonneg": "softplus"}),
        ({"H": 2, "per_head": True}, {"nonneg": "exp"}),
        ({"M": 16, "L": 8, "w": 2, "B": 1}, {}),
        ({"shared": True, "w": 16}, {"activation": "leaky_relu"}),
    ],
    ids=str,
)
def test_sizes_and_options(sizes: dict[str, Any], options: dict[str, Any], causal: bool):
    tensors = given(20, **sizes)
    compare(tensors, masks(20) if len(tensors[0]) > 1 else None, causal=causal, **options)


@runs
@pytest.mark.parametrize("nonneg", [True, False])
def test_breakpoints_that_coincide_hold_inputs_or_lie_nowhere(nonneg: bool):
    """u is x itself and binary fractions throughout, so that inputs lie on breakpoints exactly;
    units with e = 0 are on, off, or exactly at 0."""
    tensors = given(40, d=4, M=4, L=2, w=8)
    tensors[:2] = ((t * 4).round() / 4 for t in tensors[:2])
    W, bias, e, f = tensors[3:7]
    W.copy_(torch.eye(4))
    bias.zero_()
    e.copy_(torch.tensor([1.0, -1, 2, -2, 0, 0, 0, 1]))
    f.copy_(torch.tensor([0.25, -0.25, 0.5, -1, 0.5, -0.5, 0, 0.25]))
    compare(tensors, masks(40), nonneg=nonneg)


@runs
def test_dead_queries():
    """Where no channel is on the sum of weights is 0, and so are the output and its gradients."""
    tensors = given(20)
    tensors[-1].fill_(-100)
    compare(tensors, None)


@runs
def test_deterministic_sums():
    tensors, mask = given(70, H=2, per_head=True), masks(70)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        compare(tensors, mask)
    finally:
        torch.use_deterministic_algorithms(False)


@runs
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_is_read_at_padding_or_before_it_is_written(
    causal: bool, monkeypatch: pytest.MonkeyPatch
):
    n = 70
    tensors, mask = [t.to(DEVICE, DTYPE) for t in given(n)], masks(n).to(DEVICE)
    clean = with_gradients(luna_attention, tensors, mask, causal=causal)
    pad = ~mask[:, None, :, None]
    tensors[:3] = (t.masked_fill(pad, torch.nan) for t in tensors[:3])
    for where, name in ((torch, "empty_like"), (Tensor, "new_empty")):
        make = getattr(where, name)
        monkeypatch.setattr(
            where, name, lambda *a, make=make, **kw: make(*a, **kw).fill_(torch.nan)
        )
    for ours, theirs in zip(
        with_gradients(luna_attention, tensors, mask, causal=causal), clean, strict=True
    ):
        assert torch.equal(ours, theirs) if INTERPRETED else (ours - theirs).abs().max() < CLOSE


@runs
def test_layouts():
    """Heads cut out of (B, n, H d) as a backbone does it, and a gradient of stride 0."""
    tensors = [t.to(DEVICE, DTYPE) for t in given(30, H=2)]
    cut = [t.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in tensors[:3]]
    whole = [t.clone().requires_grad_() for t in tensors[:3]]
    found = []
    for q, k, v in (cut, whole):
        out, _ = luna_attention(q, k, v, None, *tensors[3:])
        assert out.stride() == v.stride()
        found.append([out, *torch.autograd.grad(out.sum(), (q, k, v))])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() < CLOSE


@runs
@pytest.mark.parametrize("causal", [False, True])
def test_columns_that_lie_apart(causal: bool):
    """Results once had the strides of such inputs, and kernels filled copies of them."""
    tensors = [t.to(DEVICE, DTYPE) for t in given(30, H=2)]
    apart = [t.mT.contiguous().mT if i < 3 else t for i, t in enumerate(tensors)]
    options = {"causal": causal}
    found = with_gradients(luna_attention, apart, None, **options)
    for ours, theirs in zip(
        found, with_gradients(luna_attention, tensors, None, **options), strict=True
    ):
        assert (ours - theirs).abs().max() < CLOSE


@runs
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype):
    """Read as it stands, computed in float32, returned rounded (by the interpreter: cut off)."""
    tensors = [t.to(DEVICE, F32) for t in given(30)]
    tensors[:3] = (t.to(dtype) for t in tensors[:3])
    out, c = luna_attention(*tensors[:3], None, *tensors[3:])
    expected, weights = luna_attention(*(t.float() for t in tensors[:3]), None, *tensors[3:])
    assert (out.dtype, c.dtype) == (dtype, F32)
    assert ((out - expected).abs() <= torch.finfo(dtype).eps * expected.abs()).all()
    assert torch.equal(c, weights)
    gradients = with_gradients(luna_attention, tensors, None)
    exact = with_gradients(plain, [t.double() for t in tensors], None, activation="relu",
                           nonneg=True, causal=False, eps=1e-6)  # fmt: skip
    for ours, theirs in zip(gradients, exact, strict=True):
        assert (ours - theirs).norm() <= 4 * torch.finfo(dtype).eps * theirs.norm()


@runs
@pytest.mark.parametrize("causal", [False, True])
def test_compiled_equals_eager(causal: bool):
    tensors = [t.to(DEVICE, DTYPE) for t in given(20)]
    attend = torch.compile(luna_attention, backend="aot_eager", fullgraph=True)
    eager = with_gradients(luna_attention, tensors, None, causal=causal)
    for ours, theirs in zip(
        with_gradients(attend, tensors, None, causal=causal), eager, strict=True
    ):
        assert (ours - theirs).abs().max() < CLOSE


@runs
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernels_are_used_after_a_comparison(causal: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checked, "_compared", compared := set())
    method = luna.build("luna", n_heads=2, head_dim=8, max_len=20, M=4, L=3, causal=causal)
    q, k, v = (torch.randn(2, 2, 20, 8).to(DEVICE) for _ in range(3))
    mask = masks(20).to(DEVICE)
    out = method.to(DEVICE)(q, k, v, mask)
    assert len(compared) == 1
    assert method.evaluation(DEVICE) == "fused"
    assert torch.allclose(out, method.matrix(q, k, mask) @ v, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU: too large for the interpreter")
@pytest.mark.parametrize("causal", [False, True])
def test_the_defaults_at_full_length(causal: bool):
    """M = L = 8, hidden 64, heads of 32, n = 4096. Of half a million inputs some lie within a
    rounding error of a breakpoint, where the gradient jumps: hence norms."""
    sizes = {"B": 4, "H": 2, "d": 32, "e": 32, "M": 8, "L": 8, "w": 64}
    tensors, mask = [t.to(DEVICE, F32) for t in given(4096, **sizes)], masks(4096, 4).to(DEVICE)
    options = {"activation": "relu", "nonneg": True, "causal": causal, "eps": 1e-6}
    expected = with_gradients(plain, tensors, mask, evaluate="piecewise", **options)
    found = with_gradients(luna_attention, tensors, mask, **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU: the interpreter has one program at a time")
def test_deterministic_sums_are_the_same_bit_by_bit():
    tensors = [t.to(DEVICE, F32) for t in given(3000, d=32, e=32, M=8, L=8, w=64)]
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        once, again = (with_gradients(luna_attention, tensors, None) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    for ours, theirs in zip(once, again, strict=True):
        assert torch.equal(ours, theirs)


# ---------------------------------------------------------------------- without running them


@triton
@pytest.mark.skipif(INTERPRETED, reason="the interpreter replaces the compiler's language")
@pytest.mark.parametrize(("causal", "nonneg"), [(False, True), (True, "exp"), (False, "softplus")])
def test_the_compiler_accepts_the_kernels(causal: bool, nonneg: bool | str):
    """Types and shapes, by its front end: the interpreter takes what the compiler does not."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton._C.libtriton import ir  # isort: skip

    from luna.kernels.luna_attention import gpu, tiles

    v, W, table = torch.empty(1, 1, 1, 32), torch.empty(1, 8, 32), torch.empty(1, 513, 16)
    shape = tiles.Shape.of(v, W, table, causal, list(OUTPUTS).index(nonneg), eps=1e-6)
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({})
    rows = ("*bf16", "i32", "i32", "i32")
    types = dict.fromkeys(("grad", "q", "k", "v", "out", "dq", "dk", "dv"), rows)
    types |= dict.fromkeys(("H", "n", "segment", "copies"), "i32") | {"maps": ("*fp32",) * 4}
    types |= {"mask": "*i1", "s": "constexpr", "exact": "constexpr"}
    for kernel in (
        *(gpu.keys_kernel, gpu.queries_kernel),
        *(gpu.queries_backward_kernel, gpu.keys_backward_kernel),
    ):
        constants = {"s": shape, "exact": causal}
        source = ASTSource(
            kernel,
            {name: types.get(name, "*fp32") for name in kernel.arg_names},
            {name: value for name, value in constants.items() if name in kernel.arg_names},
        )
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        functions = backend.get_codegen_implementation(options)
        module = source.make_ir(target, options, functions, backend.get_module_map(), context)
        assert module.verify()


def test_segments_fill_a_gpu_and_no_more():
    assert [segments.block_of(M, L) for M, L in ((8, 8), (3, 9), (16, 16))] == [64, 64, 16]
    for tokens, segment in ((1, 64), (2**15, 64), (2**15 + 1, 128), (2**20, 2048)):
        assert segments.segment_of(tokens, 64) == segment


def test_what_is_asked_for_and_missing_is_said(monkeypatch: pytest.MonkeyPatch):
    """`auto` takes the kernels where Triton is installed."""
    build = partial(luna.build, "luna", n_heads=2, head_dim=8, max_len=8, share="head")
    for causal in (False, True):
        for installed, usual in ((True, "fused"), (False, "piecewise")):
            monkeypatch.setattr(checked, "TRITON", installed)
            assert build(causal=causal).evaluation("cuda") == usual
        with pytest.raises(LunaError, match="fused attention on cuda needs triton: pip install"):
            build(causal=causal, evaluate="fused").evaluation("cuda")
    with pytest.raises(LunaError, match="there is no fused attention for mps"):
        build(evaluate="fused").evaluation("mps")


def test_activations_without_a_table_are_refused():
    tensors = given(3)
    with pytest.raises(LunaError, match="needs relu or leaky_relu, not 'gelu'"):
        luna_attention(*tensors[:3], None, *tensors[3:], activation="gelu")
