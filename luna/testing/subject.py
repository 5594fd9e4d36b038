"""One view of attentions and mixers, so that a check is written once: a method as a function of
tensors whose tokens are along the last axis but one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from luna.testing.cases import Case, D, H, N, hidden, inputs, mask_of, over

Tensors = list[Tensor]


@dataclass(frozen=True)
class Subject:
    """An attention on (q, k, v, x), or a mixer on (x,)."""

    case: Case
    as_mixer: bool = False

    @classmethod
    def of(cls, case: Case) -> Subject:
        return cls(case, as_mixer=not case.is_attention)

    def build(self, *, init: int = 0, heads: int = H, d: int = D, **place: Any) -> Any:
        if self.as_mixer:
            return self.case.mixer(init=init, n_heads=heads, d_model=heads * d, **place)
        return self.case.build(init=init, n_heads=heads, head_dim=d, **place)

    def inputs(
        self, n: int = N, *, batch: int = 2, heads: int = H, seed: int = 0, tame: bool = False
    ) -> Tensors:
        if self.as_mixer:
            return [hidden(n, batch=batch, width=heads * D, seed=seed)]
        return list(inputs(n, batch=batch, heads=heads, seed=seed, tame=tame))

    def small_inputs(self, batch: int, n: int, d: int = 4) -> Tensors:
        """Inputs with narrow heads: finite differences need a forward pass for each number."""
        generator = torch.Generator().manual_seed(3)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        x = randn(batch, n, H * d)
        return [x] if self.as_mixer else [*(randn(batch, H, n, d) for _ in range(3)), x]

    def run(self, method: Any, tensors: Tensors, mask: Tensor | None = None) -> Tensor:
        if self.as_mixer:
            return method(tensors[0], mask)
        q, k, v, x = tensors
        return method(q, k, v, mask, x)

    def stream(self, method: Any, state: Any, tensors: Tensors, mask: Tensor | None = None) -> Any:
        """The state after these tokens, and their outputs."""
        if self.as_mixer:
            return method.steps(state, tensors[0], mask)
        named = {"x": tensors[3]} if method.traits().needs_x else {}
        return method.steps(state, *tensors[:3], mask, **named)

    def trained_output(self, method: Any, seed: int = 0) -> Tensor:
        """What a forward pass in training gives after this seed."""
        torch.manual_seed(seed)
        return self.run(method.train(), self.inputs(), mask_of("prefix")).detach()


def tokens(tensors: Tensors, which: Any) -> Tensors:
    """These tokens of all tensors."""
    return [t[..., which, :] for t in tensors]


def mixed(keep: Tensor, first: Tensors, second: Tensors) -> Tensors:
    """`first` where the mask `keep` (B, n) is true, `second` elsewhere."""
    return [torch.where(over(keep, a), a, b) for a, b in zip(first, second, strict=True)]
