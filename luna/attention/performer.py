"""Performer: positive orthogonal random features of the softmax kernel (FAVOR+).

    x' = d^(-1/4) x     s_i(x) = omega_i . x' - |x'|^2 / 2
    E[e^(s_i(x)) e^(s_i(y))] = e^(x . y / sqrt(d))

    phi_q(q)_i = m^(-1/2) (exp(s_i(q) - max_i s_i(q)) + eps)
    phi_k(k)_i = m^(-1/2) (exp(s_i(k) - max over real keys and i) + eps)

Both maxima cancel in the normalised output. They are taken of the whole exponent: public code
leaves -|x'|^2 / 2 out of them, and with large norms every feature then underflows to eps.

`published`  the harness of the Skyformer and LOTFormer tables: q and k are divided by d^(1/4) a
             second time (so the kernel is e^(q . k / d)), the keys' maximum is one number for the
             whole batch and leaves the norm out, padded keys are zero vectors that stay in the
             denominator, eps = 1e-4, and Omega is never redrawn
`official`   padding is attended, denominators below 1e-6 get 2e-6 more, and Omega is drawn anew in
             every forward, evaluation included, from a seed made of the queries
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from luna.base import Mask, Paper, Slot, at_least, register, uncompiled, zero_padding
from luna.feature_maps.random import gaussian_projection
from luna.weighted import TINY, WeightedKernelAttention, largest

# Of a profile: eps, and how many steps of the optimiser (official: calls) a draw serves, 0 for all.
DEFAULTS = {"strict": (1e-6, 1000), "published": (1e-4, 0), "official": (1e-6, 1)}


@register("performer")
class Performer(WeightedKernelAttention):
    """The draw is the buffer `Omega` (m, d), shared by all heads and part of the checkpoint."""

    title = "Performer"
    family = "fixed kernels"
    marker = "P"
    paper = Paper("Rethinking Attention with Performers", 2021, "https://arxiv.org/abs/2009.14794")
    complexity = "O(n m (d + e))"
    profiles = ("strict", "published", "official")
    declared = WeightedKernelAttention.declared.but(
        causal_if_strict="its key maximum reads the future",
    )

    Omega: Tensor

    def __init__(
        self,
        slot: Slot,
        *,
        m: int = 128,
        orthogonal: bool = True,
        eps: float | None = None,
        redraw: int | None = None,
    ):
        super().__init__(slot, eps=TINY)
        default_eps, default_redraw = DEFAULTS[self.profile]
        eps = default_eps if eps is None else eps
        self.redraw_every = default_redraw if redraw is None else redraw
        at_least("performer", 1, m=m)
        at_least("performer", 0, eps=eps, redraw=self.redraw_every)
        self.m = self.feature_dim = m
        self.orthogonal = orthogonal
        self.floor = m**-0.5 * eps
        self.log_scale = math.log(m) / 2  # m^(-1/2) within the exponential
        self.age = 0  # steps, or calls, since the last draw
        self.register_buffer("Omega", self._draw(self.generator("cpu")))

    # ------------------------------------------------------------------ the random projection

    def _draw(self, generator: torch.Generator) -> Tensor:
        Omega = gaussian_projection(self.m, self.head_dim, generator, orthogonal=self.orthogonal)
        return Omega.to(torch.get_default_dtype())

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw Omega anew, from this module's own stream unless another is given."""
        # A new tensor, not a copy into the old one: a graph awaiting its backward holds that.
        self.Omega = self._draw(generator or self.generator("cpu")).to(self.Omega)
        self.age = 0

    def after_step(self) -> None:
        if self.profile != "official":
            self._grow_older()

    @uncompiled
    def _before_call(self, q: Tensor) -> None:
        """Redraw from ceil(1e7 sum of q) as a 32-bit seed: the schedule of the JAX code, not its
        random numbers."""
        total = (q.detach().double().sum() * 1e7).ceil().nan_to_num(0, 0, 0)
        seed = int(total.clamp(-(2.0**62), 2.0**62).item()) % 2**32
        self._grow_older(torch.Generator().manual_seed(seed))

    def _grow_older(self, generator: torch.Generator | None = None) -> None:
        self.age += 1
        if self.redraw_every and self.age >= self.redraw_every:
            self.redraw(generator)

    def get_extra_state(self) -> dict[str, Tensor]:
        return super().get_extra_state() | {"age": torch.tensor(self.age)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.age = int(state["age"])
        super().set_extra_state({key: value for key, value in state.items() if key != "age"})

    # ------------------------------------------------------------------ the feature map

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """omega_i . x' (B, H, n, m) and |x'|^2 / 2 (B, H, n, 1)."""
        x = x * self.head_dim**-0.25
        return x @ self.Omega.to(x.dtype).mT, x.square().sum(-1, keepdim=True) / 2

    def phi_q(self, q: Tensor, mask: Mask, start: int = 0) -> Tensor:
        u, _ = self.project(q)  # the norm is the same for all i and leaves with the maximum
        return (u - (u.amax(-1, keepdim=True) + self.log_scale)).exp() + self.floor

    def phi_k(self, k: Tensor, mask: Mask, start: int = 0) -> Tensor:
        u, norm = self.project(k)
        a = u.amax(-1, keepdim=True) - norm  # (B, H, n, 1) max_i s_i(k_j)
        hidden = torch.zeros_like(a, dtype=torch.bool) if mask is None else ~mask[:, None, :, None]
        shift = norm + largest(a.masked_fill(hidden, float("-inf")).mT) + self.log_scale
        # Infinite at padding: there k = 0, whose exponent may lie far above the valid maximum.
        return (u - shift.masked_fill(hidden, float("inf"))).exp() + self.floor

    def weigh(self, k: Tensor) -> tuple[Tensor, Tensor]:
        u, norm = self.project(k)
        top = u.amax(-1, keepdim=True)
        return (u - (top + self.log_scale)).exp(), (top - norm).squeeze(-1)

    # ------------------------------------------------------------------ the quirks

    def features(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        if self.profile == "strict":
            return super().features(q, k, mask)
        if self.profile == "published":
            q, k = (self.head_dim**-0.25 * t for t in (q, k))
            k = zero_padding(k, mask)
        over = (0, 1, 2, 3) if self.profile == "published" else (2, 3)
        return self._public_map(q, (3,)), self._public_map(k, over)

    def _public_map(self, x: Tensor, over: tuple[int, ...]) -> Tensor:
        u, norm = self.project(x)
        return (u - (norm + u.amax(over, keepdim=True) + self.log_scale)).exp() + self.floor

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.profile == "official":
            self._before_call(q)
        if self.profile == "published":
            v = zero_padding(v, mask)
        return super().attend(q, k, v, mask, x)

    def den(self, c: Tensor) -> Tensor:
        return c + 2e-6 * (c.abs() <= 1e-6) if self.profile == "official" else super().den(c)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        A = super()._matrix(q, k, mask, x)
        return zero_padding(A.mT, mask).mT if self.profile == "published" else A
