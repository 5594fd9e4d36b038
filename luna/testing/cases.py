"""What checks run on: a method with options, inputs, masks, and how results are compared.

Everything is float64 and in evaluation mode unless a check says otherwise; parameters are moved off
their initial zeros and ones, so that none is forgotten.

    B batch   H heads   n tokens   d width of a head   E = H d width of the hidden states
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import luna
from luna.contract import Attention
from luna.method import Method
from luna.mixing import Mixer
from luna.qkv import Style

H, D, N = 2, 16, 37
E = H * D
EXACT, VISIBLE = 1e-10, 1e-7  # equal up to rounding; a difference nobody would call rounding
MASKS = ("full", "prefix", "scatter")


class Contradiction(AssertionError):
    """What a method does is not what it declares; the message names the declaration to change."""


def hold(condition: bool, message: str) -> None:
    if not condition:
        raise Contradiction(message)


def as_declared(trait: str, declared: bool, gap: float, what: str) -> None:
    """A declared property must hold up to rounding, a denied one must visibly fail."""
    if declared:
        hold(gap < EXACT, f"{what} differ by {gap:.1g}: declare {trait}=False")
    else:
        hold(
            gap > VISIBLE,
            f"{what} differ by {gap:.1g}, no more than rounding: declare {trait}=True",
        )


@dataclass(frozen=True)
class Case:
    """A method with options, under a profile."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    profile: str = "strict"

    def __str__(self) -> str:
        shown = (
            dict(self.options) if self.profile == "strict" else {**self.options, "": self.profile}
        )
        return ",".join([self.name, *(f"{k}={v}" if k else v for k, v in shown.items())])

    @property
    def cls(self) -> type[Method]:
        return luna.get(self.name)

    @property
    def is_attention(self) -> bool:
        return issubclass(self.cls, Attention)

    def build(self, *, init: int = 0, n_heads: int = H, **slot: Any) -> Attention:
        """The attention itself, on q, k, v."""
        torch.manual_seed(init)
        sizes: dict[str, Any] = {"n_heads": n_heads, "head_dim": D, "max_len": 128}
        settings = sizes | {"profile": self.profile} | slot | dict(self.options)
        return shaken(luna.build(self.name, **settings))

    def mixer(self, *, init: int = 0, **place: Any) -> Mixer:
        """The method as a mixer of hidden states."""
        torch.manual_seed(init)
        sizes: dict[str, Any] = {"d_model": E, "n_heads": H, "max_len": 128}
        own = dict(self.options)
        style = Style(alibi=own.pop("alibi", False))  # a setting of an attention's place
        settings = sizes | {"profile": self.profile} | place | own
        return shaken(luna.mixer(self.name, style=style, **settings))


def shaken(method: Any) -> Any:
    """In float64 and evaluation mode, parameters moved off their initial values."""
    method.eval().double()
    with torch.no_grad():
        for p in method.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return method


# ---------------------------------------------------------------------- inputs


def qkv(
    batch: int = 2, heads: int = H, n: int = N, d: int = D, *, d_v: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(batch, heads, n, width, generator=generator, dtype=torch.float64)
        for width in (d, d, d_v or d)
    )
    return q, k, v


def hidden(n: int = N, *, batch: int = 2, width: int = E, seed: int = 0) -> Tensor:
    """Hidden states x (B, n, E)."""
    generator = torch.Generator().manual_seed(seed + 50)
    return torch.randn(batch, n, width, generator=generator).double()


def inputs(
    n: int = N,
    *,
    batch: int = 2,
    heads: int = H,
    d_v: int | None = None,
    seed: int = 0,
    tame: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and the hidden states x. Tame: q and k so small that no signed denominator comes near
    0, where it is clamped."""
    q, k, v = qkv(batch, heads, n, d_v=d_v, seed=seed)
    x = hidden(n, batch=batch, width=heads * D, seed=seed)
    return (0.3 * q, 0.3 * k, v, x) if tame else (q, k, v, x)


def mask_of(kind: str, n: int = N, batch: int = 2) -> Tensor:
    """full; prefix, 50 and 40 tokens of 64 in turn; scatter, every third token masked."""
    position = torch.arange(n).expand(batch, n)
    if kind == "full":
        return torch.ones(batch, n, dtype=torch.bool)
    if kind == "scatter":
        return position % 3 != 0
    real = torch.tensor([n * (50, 40)[b % 2] // 64 for b in range(batch)])
    return position < real[:, None]


def longer(
    extra: int, mask: Tensor, *tensors: Tensor, value: float | None = None
) -> Iterator[Tensor]:
    """Append `extra` masked tokens of garbage, or of `value`: the mask first, then tensors
    (B, n, E) or (B, H, n, d)."""
    generator = torch.Generator().manual_seed(99)
    yield torch.cat([mask, mask.new_zeros(mask.shape[0], extra)], 1)
    for t in tensors:
        shape = (*t.shape[:-2], extra, t.shape[-1])
        garbage = 10 * torch.randn(shape, generator=generator, dtype=t.dtype)
        yield torch.cat([t, garbage if value is None else garbage.fill_(value)], -2)


# ---------------------------------------------------------------------- comparing


def over(mask: Tensor, t: Tensor) -> Tensor:
    """The mask (B, n) as one over t, (B, n, E) or (B, H, n, d)."""
    return mask[:, None, :, None] if t.dim() == 4 else mask[:, :, None]


def difference(a: Tensor, b: Tensor, mask: Tensor | None = None) -> float:
    """Largest absolute difference on valid rows; NaN counts as infinite."""
    gap = (a - b).detach().abs().nan_to_num(nan=float("inf"))
    return float(gap.max() if mask is None else gap.masked_fill(~over(mask, gap), 0).max())


def width(attention: Attention, e: int) -> int:
    """The width of values: any, where it is not bound to that of a head."""
    return D if "d_v" in attention.traits().exempt else e
