"""Linear attention with a small feature map on GPUs, against the method with all features.

In float64 in Triton's interpreter (test_triton.py runs it), in float32 on a GPU.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import luna
from luna import LunaError
from luna.kernels import checked, cpu, mapped
from luna.kernels.checked import INTERPRETED, TRITON
from luna.kernels.linear_triton import segments
from luna.kernels.mapped import operator

from ..kit import qkv as drawn
from .kit import (
    F32,
    F64,
    assert_close,
    assert_padding_is_never_read,
    leaves,
    scattered,
    with_gradients,
)
from .test_luna_attention import NO_GPU, Place, causally

triton = pytest.mark.skipif(not TRITON, reason="needs triton: pip install 'luna-lra[triton]'")
interpreter = pytest.mark.skipif(not INTERPRETED, reason="needs the interpreter")
CPU = pytest.param(Place("cpu", F64, 1e-11), marks=interpreter, id="cpu")
GPU = pytest.param(Place("cuda", F32, 1e-4), marks=[pytest.mark.gpu, NO_GPU], id="cuda")
methods = pytest.mark.parametrize(
    ("name", "options"),
    [("linear", {}), ("t2r", {"r": 12}), ("t2r", {"r": 33})],
    ids=["linear", "t2r", "wide"],
)


@pytest.fixture(params=[CPU, GPU])
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


@pytest.fixture(autouse=True)
def nothing_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checked, "LEFT_OUT", set())


def build(name: str, *, heads: int = 2, **options: Any) -> Any:
    torch.manual_seed(0)
    return luna.build(name, n_heads=heads, head_dim=8, max_len=4096, **options).to(F64)


def tensors(n: int, *, H: int = 2, e: int = 8, dtype: torch.dtype = F64) -> list[Tensor]:
    return leaves(*drawn(2, H, n, 8, d_v=e, seed=n), dtype=dtype)


def attended(attention: Any, qkv: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    return with_gradients(attention(*qkv, mask), [*qkv, *attention.parameters()])


def assert_is_the_method(
    place: Place, attention: Any, qkv: list[Tensor], mask: Tensor | None = None
) -> None:
    """Output and every gradient are those of all features, and the kernels have run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "is_default", lambda *_, **__: False)
        expected = attended(attention, qkv, mask)
    there = [t.detach().to(place.device, place.dtype).requires_grad_() for t in qkv]
    moved = attention.to(place.device, place.dtype)
    results = attended(moved, there, None if mask is None else mask.to(place.device))
    assert moved.evaluation(place.device) == "fused"
    assert not checked.LEFT_OUT
    assert_close([t.cpu().double() for t in results], expected, place.close)
    attention.to(F64)


@methods
@causally
@pytest.mark.parametrize("n", [1, 64, 130])
def test_lengths(place: Place, name: str, options: dict, causal: bool, n: int):
    assert_is_the_method(place, build(name, causal=causal, **options), tensors(n), scattered(n))


@methods
@causally
def test_options(place: Place, name: str, options: dict, causal: bool):
    for more, mask, e in (({}, None, 5), ({"normalise": "rms"}, scattered(40), 8)):
        attention = build(name, causal=causal, **options, **more)
        assert_is_the_method(place, attention, tensors(40, e=e), mask)


@causally
def test_segments_of_several_blocks(place: Place, causal: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segments, "PROGRAMS", 3)
    attention = build("t2r", causal=causal, heads=1)
    assert_is_the_method(place, attention, tensors(300, H=1), scattered(300))


@methods
@causally
def test_nothing_is_read_at_padding_or_before_it_is_written(
    place: Place, name: str, options: dict, causal: bool, monkeypatch: pytest.MonkeyPatch
):
    """Not even NaN, without the method's own masking before and after."""
    attention = build(name, causal=causal, heads=1, **options).to(place.device, place.dtype)
    like = torch.empty(0, dtype=place.dtype, device=place.device)
    clean = tensors(70, H=1)
    assert_padding_is_never_read(attention, clean, like, place.close, monkeypatch)


@methods
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(place: Place, name: str, options: dict, dtype: torch.dtype):
    """The gradients of the map's parameters have float32's digits: the output is computed again."""
    attention = build(name, **options).to(place.device, F32)
    qkv = [t.detach().to(place.device, dtype).requires_grad_() for t in tensors(70)]
    ours = attended(attention, qkv, None)
    assert ours[0].dtype == dtype
    assert not checked.LEFT_OUT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "is_default", lambda *_, **__: False)
        theirs = attended(attention, qkv, None)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        close = 2 * torch.finfo(dtype).eps if i < 4 else 2e-4
        assert (a.double() - b.double()).norm() <= close * b.double().norm()


def test_kernels_that_are_wrong_are_left_out(place: Place, monkeypatch: pytest.MonkeyPatch, caplog):
    attention, qkv = build("linear").to(place.device, place.dtype), tensors(40)
    there = [t.detach().to(place.device, place.dtype) for t in qkv]
    monkeypatch.setitem(mapped.PHI, "elu", lambda x: x.exp())  # what they are compared with
    monkeypatch.setattr(checked, "_compared", set())
    attention(*there)
    assert {"mapped elu"} == checked.LEFT_OUT
    assert "the kernel 'mapped elu' is not used in this process" in caplog.text
    assert attention.evaluation(place.device) is None


@interpreter
@causally
def test_the_operator_is_sound(causal: bool):
    attention, mask = build("t2r", causal=causal), scattered(20)
    parameters = [p.detach().requires_grad_() for p in attention.map_parameters()]
    call = (*tensors(20), mask, parameters, "relu", causal, 1e-6, True)
    torch.library.opcheck(operator.attention, call)


@triton
def test_tensors_that_do_not_fit_are_refused():
    q, k, v = tensors(20)
    mask = scattered(20)
    W, b = (p.detach() for p in build("t2r").map_parameters())
    refused = partial(pytest.raises, LunaError, match=r"the fused attention '\w+' needs q, k")
    for arguments in (
        (q, k[:, :, :4], v, mask, [], "elu"),
        (q, k, v, mask[:, :4], [], "elu"),
        (q, k, v.float(), mask, [], "elu"),
        (q, k, v, mask, [W, b], "elu"),
        (q, k, v, mask, [W[..., :4], b], "relu"),
        (q, k, v, mask, [W, b[:, :4]], "relu"),
        (q, k, v, mask, [], "tanh"),
    ):
        with refused():
            operator.attention(*arguments, False, 1e-6, True)


def test_what_is_fused_where():
    for name, profile in (("linear", "strict"), ("linear", "official"), ("t2r", "strict")):
        attention = luna.build(name, n_heads=2, head_dim=8, max_len=64, profile=profile)
        for device, there in (("cpu", INTERPRETED or cpu.AVAILABLE), ("cuda", TRITON)):
            expected = "fused" if there and profile == "strict" else None
            assert attention.evaluation(device) == expected
