"""Gradients, masks and comparisons that the tests of kernels share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from luna.kernels import cpu

F64, F32 = torch.float64, torch.float32
numba = pytest.mark.skipif(not cpu.AVAILABLE, reason="needs numba: pip install numba")


def leaves(*tensors: Tensor, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]


def with_gradients(out: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """An output, and gradients of a weighted sum of it."""
    weights = torch.arange(out.numel(), dtype=F64, device=out.device).cos().view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, inputs, weights.to(out.dtype))]


def scattered(n: int, B: int = 2) -> Tensor:
    """Some tokens of the first example, none of the last of several."""
    mask = torch.rand(B, n, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[0, n // 2] = True
    mask[-1] = B == 1
    return mask


def assert_close(ours: Sequence[Tensor], theirs: Sequence[Tensor], tolerance: float) -> None:
    """Relative to the size of each tensor, if that is above 1."""
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= tolerance * b.abs().max().clamp_min(1)


def assert_equal(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def poison_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new memory start as NaN, so that what is not written is seen."""

    def poisoned(make: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        t = make(*args, **kwargs)
        return t.fill_(float("nan") if t.is_floating_point() else 2**31 - 1)

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, partial(poisoned, getattr(torch, name)))
    make = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **kw: poisoned(make, *a, **kw))


def assert_threads_change_nothing(call: Callable[[], list[Tensor]]) -> None:
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 1, 2, 3):
            torch.set_num_threads(threads)
            results.append(call())
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert_equal(other, results[0])


def assert_padding_is_never_read(
    attention: Any, clean: Sequence[Tensor], like: Tensor, close: float, monkeypatch: Any
) -> None:
    """Not even NaN, without the method's own masking before and after; `like` has the device and
    dtype to compute in. Padded rows get no gradient."""
    mask = scattered(clean[0].shape[2]).to(like.device)
    pad = ~mask[:, None, :, None].cpu()

    def run(qkv: Sequence[Tensor]) -> list[Tensor]:
        there = [t.detach().to(like.device, like.dtype).requires_grad_() for t in qkv]
        out = attention.attend(*there, mask, None)
        return [t.cpu() for t in with_gradients(out, [*there, *attention.parameters()])]

    expected = run(clean)
    poison_memory(monkeypatch)
    results = run([t.masked_fill(pad, torch.nan) for t in clean])
    assert_close(results, expected, close)
    for t in results[:4]:
        assert (t.masked_select(pad) == 0).all()
