"""Methods that are wrong on purpose: what the conformance suite must find, and a right one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from luna.base import Attention, Mask, Mixer, Paper, Place, Slot, Traits, zero_padding
from luna.streaming import StreamingAttention

PAPER = Paper("None", 2026, "https://arxiv.org/abs/0000.00000")
AVERAGE = Attention.declared.but(compares=False, equivariant=True)


class Values(Attention):
    """The right one: every token receives itself."""

    paper, complexity = PAPER, "O(n)"
    declared = AVERAGE

    @classmethod
    def projected(cls, profile: str) -> str:
        return "vo"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        return v

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        return torch.eye(q.shape[2], dtype=q.dtype).expand(*q.shape[:3], -1)


class TakesASettingsName(Values):
    def __init__(self, slot: Slot, *, gate: bool = True):
        super().__init__(slot)


class MixesTheBatch(Values):
    declared = AVERAGE.but(has_matrix=False, convex=False, row_stochastic=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        return v + v.mean(0)


class FalselyConvex(Values):
    declared = AVERAGE.but(has_matrix=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        return v + 0.5 * (v - v.mean(-2, keepdim=True)) if mask is None else 1.5 * v


class FalselyRowStochastic(Values):
    declared = AVERAGE.but(has_matrix=False, convex=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        return 2 * v


class FalselyEquivariant(Values):
    declared = AVERAGE.but(has_matrix=False, convex=False, row_stochastic=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        places = torch.arange(1, v.shape[2] + 1, dtype=v.dtype)
        return v / places[:, None]


class FalselyLinear(Values):
    """Through a matrix of all pairs."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        return self._matrix(v, v, mask, x) @ v


class DoublesItsSteps(StreamingAttention, Values):
    declared = StreamingAttention.declared.but(compares=False)

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[Any, Tensor]:
        return (v[:, :, :1],), v if state is None else 2 * v

    def cross(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Mask) -> Tensor:
        return v


class TakesEveryMaskForAPrefix(Values):
    """The mean of the first tokens, as many as are real."""

    declared = AVERAGE.but(has_matrix=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        real = v.new_ones(len(v), v.shape[2]) if mask is None else mask.to(v.dtype)
        count = real.sum(-1)[:, None, None, None]
        first = torch.arange(v.shape[2])[:, None] < count
        return ((v * first).sum(2, keepdim=True) / count.clamp(min=1)).expand_as(v)


class LeaksNaN(Values):
    """Reads hidden states past the contract, and multiplies padding by 0."""

    declared = AVERAGE.but(has_matrix=False, convex=False, row_stochastic=False, needs_x=True)

    def forward(self, q, k, v, mask=None, x=None, **named):  # type: ignore[override]
        real = 1 if mask is None else mask[:, :, None]
        own = (x * real).sum((1, 2))[:, None, None, None]
        return zero_padding(super().forward(q, k, v, mask, x, **named) + own, mask)


class Float32Only(Values):
    declared = AVERAGE.but(
        has_matrix=False, convex=False, row_stochastic=False, full_precision=False
    )

    def __init__(self, slot: Slot):
        super().__init__(slot)
        self.weight = nn.Parameter(torch.eye(slot.head_dim))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return v @ self.weight


class Detached(Values):
    declared = AVERAGE.but(has_matrix=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        return (v + v.detach()) / 2


class DeadProjection(Values):
    @classmethod
    def projected(cls, profile: str) -> str:
        return "qkvo"


class HiddenState(Values):
    """What it came to in training is an attribute, and not in its state dict."""

    declared = AVERAGE.but(has_matrix=False, convex=False, row_stochastic=False)
    seen: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.training:
            self.seen = v.detach().square().mean() if self.seen is None else self.seen + 1
        return v if self.seen is None else v * (1 + self.seen)


class DrawsUnsaid(Values):
    """New noise in each call of training."""

    declared = AVERAGE.but(has_matrix=False, convex=False, row_stochastic=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        noise = torch.rand((), generator=self.generator("cpu"))
        return v * (1 + noise) if self.training else v


class DecaysInHoles(Mixer):
    """A recurrence whose state decays at padding too, and that calls it no time."""

    paper, complexity = PAPER, "O(n d)"
    declared = Traits(equivariant=False)

    def __init__(self, place: Place):
        super().__init__(place)
        self.decay = nn.Linear(place.d_model, place.d_model)

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        a = self.decay(x).sigmoid()  # at padding, where x is 0, it is not 1
        total = a.log().cumsum(1)
        weights = (total[:, :, None] - total[:, None]).tril().exp()  # (B, n, n, E)
        seen = torch.ones(x.shape[1], x.shape[1]).tril()[None, :, :, None]
        return (weights * seen * x[:, None]).sum(2)


class AnotherShape(Mixer):
    paper, complexity = PAPER, "O(n)"

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        return x[..., :-1]


class AnotherDtype(Mixer):
    paper, complexity = PAPER, "O(n)"

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        return x.to(torch.complex64)


class OtherShapesWhenCausal(Mixer):
    """One scale for each direction in one parameter, so that the causal form has another shape."""

    paper, complexity = PAPER, "O(n)"
    declared = Traits(causal_form=True)

    def __init__(self, place: Place):
        super().__init__(place)
        self.scale = nn.Parameter(torch.ones(1 if self.causal else 2, place.d_model))

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        return x * self.scale[0]


class ComplexParameters(Mixer):
    paper, complexity = PAPER, "O(n)"

    def __init__(self, place: Place):
        super().__init__(place)
        self.turn = nn.Parameter(torch.ones(place.d_model, dtype=torch.complex128))

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        return x * self.turn.real.to(x.dtype)


class CausalByFFT(Mixer):
    """Sums over all tokens before, by a transform of all tokens."""

    paper, complexity = PAPER, "O(n log n)"
    declared = Traits(causal_form=True, equivariant=False)

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        n = x.shape[1]
        ones = torch.ones(n, 1, dtype=x.dtype)
        spectrum = torch.fft.rfft(x, 2 * n, 1) * torch.fft.rfft(ones, 2 * n, 0)
        return torch.fft.irfft(spectrum, 2 * n, 1)[:, :n]
