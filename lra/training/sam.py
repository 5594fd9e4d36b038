"""Sharpness-aware minimisation (Foret, Kleiner, Mobahi and Neyshabur 2021, arXiv:2010.01412).

The gradient g of the first pass leads to the worst weights nearby, w + rho g / |g|; AdamW then
steps from w with the gradient that the second pass finds there (equation 3 of the paper).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.optim import AdamW

TINY = 1e-12  # no division by the norm of a gradient that is 0


class SAM(AdamW):
    """AdamW at the gradient of a nearby place. Its whole state is AdamW's."""

    def __init__(self, params: Iterable[Any], rho: float = 0.05, **options: Any):
        if not rho > 0:
            raise ValueError(f"rho must be greater than 0, got {rho}")
        super().__init__(params, **options)
        self.rho = rho

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """The closure computes loss and gradients; gradients are clipped within it. Clipping by the
        norm leaves the direction of the climb as it is."""
        with torch.enable_grad():
            loss = closure()
        before = self._climb()
        with torch.enable_grad():
            closure()
        for weights, there in before:
            weights.copy_(there)  # and not back by the same way, which would round
        super().step()
        return loss

    def _climb(self) -> list[tuple[Tensor, Tensor]]:
        """Move to the worst weights nearby; returns all weights with what they were."""
        found = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms = [
            vector_norm(p.grad, dtype=torch.promote_types(p.dtype, torch.float32)) for p in found
        ]
        share = self.rho / (torch.stack(norms).norm() + TINY)
        before = [(p, p.clone()) for p in found]
        for p in found:
            p.add_(p.grad * share.to(p.grad))
        return before
