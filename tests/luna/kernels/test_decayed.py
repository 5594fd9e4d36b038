"""`lion` on GPUs: the kernels with decays, against the scan in torch.

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
from luna.attention import lion
from luna.kernels import checked, decayed
from luna.kernels.checked import INTERPRETED, TRITON
from luna.kernels.decayed import operator

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
from .test_luna_attention import Place, causally
from .test_mapped import CPU, GPU, interpreter, triton

decays = pytest.mark.parametrize("decay", ["selective", "fixed", "none"])


@pytest.fixture(params=[CPU, GPU])
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


@pytest.fixture(autouse=True)
def nothing_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checked, "LEFT_OUT", set())


def build(*, heads: int = 2, **options: Any) -> Any:
    """Some decays are strong, some weak."""
    torch.manual_seed(0)
    attention = luna.build("lion", n_heads=heads, head_dim=8, max_len=4096, **options).to(F64)
    with torch.no_grad():
        for p in attention.parameters():
            p.add_(torch.randn(p.shape))
    return attention


def tensors(n: int, *, H: int = 2, e: int = 8, dtype: torch.dtype = F64) -> list[Tensor]:
    return leaves(*drawn(2, H, n, 8, d_v=e, seed=n), dtype=dtype)


def attended(attention: Any, qkv: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    used = [p for p in attention.parameters() if p.requires_grad]
    return with_gradients(attention(*qkv, mask), [*qkv, *used])


def by_scan(attention: Any, qkv: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lion, "is_default", lambda _: False)
        return attended(attention, qkv, mask)


def assert_is_the_scan(
    place: Place, attention: Any, qkv: list[Tensor], mask: Tensor | None = None
) -> None:
    """Output and every gradient are those of the scan, and the kernels have run."""
    expected = by_scan(attention, qkv, mask)
    there = [t.detach().to(place.device, place.dtype).as_strided_(t.shape, t.stride()) for t in qkv]
    moved = attention.to(place.device, place.dtype)
    results = attended(
        moved, [t.requires_grad_() for t in there], None if mask is None else mask.to(place.device)
    )
    assert moved.evaluation(place.device) == "fused"
    assert not checked.LEFT_OUT
    assert_close([t.cpu().double() for t in results], expected, place.close)
    attention.to(F64)


@decays
@causally
@pytest.mark.parametrize("n", [1, 32, 70])
def test_lengths(place: Place, decay: str, causal: bool, n: int):
    """Below, at and above a block of 32 tokens, and several of them."""
    mask = None if decay == "none" else scattered(n)
    assert_is_the_scan(place, build(causal=causal, decay=decay), tensors(n), mask)


@causally
@pytest.mark.parametrize(("e", "dims"), [(5, None), (17, (1, 2)), (8, (2, 3))])
def test_widths_and_layouts(place: Place, e: int, dims: tuple[int, int] | None, causal: bool):
    qkv = tensors(70, e=e)
    if dims:
        qkv = leaves(*(t.transpose(*dims).contiguous().transpose(*dims) for t in qkv))
    assert_is_the_scan(place, build(causal=causal), qkv, scattered(70))


@causally
def test_wide_heads(place: Place, causal: bool):
    torch.manual_seed(0)
    attention = luna.build("lion", n_heads=1, head_dim=72, max_len=64, causal=causal).to(F64)
    assert_is_the_scan(place, attention, leaves(*drawn(1, 1, 40, 72, seed=0)), scattered(40, 1))


@causally
def test_the_strongest_decays_and_none_at_all(place: Place, causal: bool):
    """Sums of logarithms within a block fall to -20,000; nothing becomes NaN."""
    for shift in (-300.0, 300.0):
        attention = build(causal=causal)
        with torch.no_grad():
            attention.gates.map.bias.fill_(shift)
        assert_is_the_scan(place, attention, tensors(70), scattered(70))


@causally
def test_nothing_is_read_at_padding_or_before_it_is_written(
    place: Place, causal: bool, monkeypatch: pytest.MonkeyPatch
):
    """Not even NaN, without the method's own masking before and after; the gate alone reads keys
    outside of the kernels."""
    attention = build(causal=causal, heads=1, decay="fixed").to(place.device, place.dtype)
    like = torch.empty(0, dtype=place.dtype, device=place.device)
    clean = tensors(70, H=1)
    assert_padding_is_never_read(attention, clean, like, place.close, monkeypatch)


@causally
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(place: Place, dtype: torch.dtype, causal: bool):
    """The gates' gradients have float32's digits."""
    attention = build(causal=causal).to(place.device, F32)
    qkv = [t.detach().to(place.device, dtype).requires_grad_() for t in tensors(70)]
    ours, theirs = attended(attention, qkv, None), by_scan(attention, qkv, None)
    assert not checked.LEFT_OUT
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        close = 2 * torch.finfo(dtype).eps if i < 4 else 2e-4
        assert a.dtype == b.dtype
        assert (a.double() - b.double()).norm() <= close * b.double().norm()


def test_kernels_that_are_wrong_are_left_out(place: Place, monkeypatch: pytest.MonkeyPatch, caplog):
    attention = build().to(place.device, place.dtype)
    there = [t.detach().to(place.device, place.dtype) for t in tensors(40)]
    monkeypatch.setattr(lion.Lion, "phi", lambda self, u: u.exp())  # what they are compared with
    monkeypatch.setattr(checked, "_compared", set())
    attention(*there)
    assert {decayed.NAME} == checked.LEFT_OUT
    assert f"the kernel '{decayed.NAME}' is not used in this process" in caplog.text
    assert attention.evaluation(place.device) is None


@interpreter
@pytest.mark.parametrize("directions", [1, 2])
def test_the_operator_is_sound(directions: int):
    g = leaves(-torch.rand(directions, 2, 2, 20, dtype=F64))
    torch.library.opcheck(operator.attention, (*tensors(20), scattered(20), *g, 1e-6))


@triton
def test_tensors_that_do_not_fit_are_refused():
    (q, k, v), mask, g = tensors(20), scattered(20), torch.zeros(2, 2, 2, 20, dtype=F64)
    refused = partial(pytest.raises, LunaError, match="attention with decays needs q, k")
    for arguments in (
        (q, k[:, :, :4], v, mask, g),
        (q, k, v, mask[:, :4], g),
        (q, k, v.float(), mask, g),
        (q, k, v, mask, g.float()),
        (q, k, v, mask, g[..., :4]),
        (q, k, v, mask, torch.cat([g, g])),
        (q, k, v, mask, g[0]),
    ):
        with refused():
            operator.attention(*arguments, 1e-6)


def test_where_there_is_no_gpu_nothing_changes():
    attention = build()
    assert attention.evaluation("cpu") == ("fused" if INTERPRETED else None)
    assert attention.evaluation("cuda") == ("fused" if TRITON else None)
