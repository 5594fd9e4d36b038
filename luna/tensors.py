"""Small things that every method needs: masks, padding, precision, the compiler."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Mask = Tensor | None  # (B, n) bool, True = real token; None: all are
HALF = (torch.float16, torch.bfloat16)
TINY = 1e-6  # of squared lengths, as in the kernels of delta rules: a row of 0 stays 0


def zero_padding(t: Tensor, mask: Mask) -> Tensor:
    """t (B, H, n, .) with 0 at padding, whatever stands there: 0 * NaN would be NaN."""
    return t if mask is None else t.masked_fill(~mask[:, None, :, None], 0)


def zero_padded_rows(x: Tensor, mask: Mask) -> Tensor:
    """The same for hidden states x (B, n, E)."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)


def unit(t: Tensor) -> Tensor:
    """Rows of length 1; a row of 0 stays 0."""
    return t * (t.square().sum(-1, keepdim=True) + TINY).rsqrt()


def autocast_off(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Full precision inside, whatever surrounds it; meta has no autocast to switch off."""
    # Not torch.amp.is_autocast_available: torch.compile cannot trace it before torch 2.13.
    if device.type == "meta":
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile out of a function. torch's own decorator imports the compiler at once,
    which takes longer than everything else that listing the methods needs."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*arguments)
        return function(*arguments)

    return call
