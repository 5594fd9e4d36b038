"""Mamba-2: a state space with one decay for each head and token, between a short convolution and a
gate. Dao and Gu (2024), https://arxiv.org/abs/2405.21060

    [z, x, b, c, s] = W x_t     widths F, F, N, N, H, with F = expand E; no bias
    x, b, c = silu(conv([x, b, c]))     each channel over the last tokens
    dt = softplus(s + s_0), a = -exp(A_h)
    S_t = e^(a dt) S_(t-1) + dt b x^T     of each head, (N, F / H); all heads share b and c
    y_t = S_t^T c + D_h x
    out_t = W_o (g rms(y_t silu(z)))     rms divides by the root mean square of all F numbers

Both ways: the same is run from the end, with the convolution over the tokens behind, and its sum
without a token's own term is added to S_t^T c. Then a token counts once, and the last row is that
of the causal form. Codes that add two whole blocks count it twice; Hydra moves both on by a token.

Padding has dt = 0 and leaves a state as it is, while in the convolution it stands between tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError, Mask, Mixer, Paper, Place, Rate, Traits, at_least, register
from luna.gates import small_steps
from luna.scans import scan
from luna.surround import ShortConv
from luna.tensors import zero_padding

DECAYS = (1.0, 16.0)  # of a unit of time, at the start: e^A is uniform between them
EPS = 1e-5  # of the authors' norm


@register("mamba2")
class Mamba2(Mixer):
    title = "Mamba-2"
    family = "state space"
    marker = "^"
    paper = Paper(
        "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured "
        "State Space Duality",
        2024,
        "https://arxiv.org/abs/2405.21060",
    )
    complexity = "O(n F (E + N))"
    declared = Traits(causal_form=True, equivariant=False, holes_are_time=True)
    rates = dict.fromkeys(("log_a", "D", "dt_bias"), Rate(decay=False))

    def __init__(self, place: Place, *, state: int = 128, expand: int = 2, conv: int = 4):
        super().__init__(place)
        at_least("mamba2", 1, state=state, expand=expand, conv=conv)
        E, H, width = place.d_model, place.n_heads, expand * place.d_model
        if width % H:
            raise LunaError(
                f"mamba2 is expand * d_model = {width} wide, and {H} heads do not divide that"
            )
        self.n_heads = H
        self.sizes = width, width + 2 * state, H  # of z, of what is convolved, of dt
        self.parts_of_conv = width, state, state  # x, b, c
        self.inward = nn.Linear(E, sum(self.sizes), bias=False)
        self.conv = ShortConv(width + 2 * state, conv, causal=True)
        self.log_a = nn.Parameter(torch.empty(H).uniform_(*DECAYS).log())
        self.D = nn.Parameter(torch.ones(H))
        self.dt_bias = nn.Parameter(small_steps(torch.empty(H)))
        self.gain = nn.Parameter(torch.ones(width))
        self.outward = nn.Linear(width, E, bias=False)

    def _traits(self) -> Traits:
        return self.declared.but(holes_are_time=self.conv.kernel > 1)

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        if self.causal:
            return self.mix_from(None, x, mask)[1]
        z, given, dt = self._projected(x, mask)
        own, y, _ = self._scanned(self.conv(given, mask), dt, None)
        behind = None if mask is None else mask.flip(1)
        v, b, c = self._heads(self.conv(given.flip(1), behind))
        kept = dt.flip(2) * v
        _, back = scan(c, b, kept, self._decay(dt.flip(2)))
        back = back - (c * b).sum(-1, keepdim=True) * kept
        return self._merged(y + back.flip(2) + own, z)

    def mix_from(self, state: Any, x: Tensor, mask: Mask) -> tuple[Any, Tensor]:
        """The state S (B, H, N, F / H) and the last inputs of the convolution (B, conv - 1, .)."""
        z, given, dt = self._projected(x, mask)
        before = self.conv.kernel - 1
        nothing = None, given.new_zeros(len(x), before, given.shape[2])
        S, tail = nothing if state is None else state
        given = torch.cat([tail, given], 1)
        seen = None if mask is None else F.pad(mask, (before, 0), value=True)
        own, y, S = self._scanned(self.conv(given, seen)[:, before:], dt, S)
        return (S, given[:, given.shape[1] - before :]), self._merged(y + own, z)

    def _projected(self, x: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """z (B, n, F), what is convolved (B, n, F + 2 N), and dt (B, H, n, 1), 0 at padding."""
        z, given, steps = self.inward(x).split(self.sizes, -1)
        dt = F.softplus(steps + self.dt_bias).mT.unsqueeze(-1)
        return z, given, zero_padding(dt, mask)

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, H, n, F / H), b and c (B, H, n, N), the same for all heads."""
        x, b, c = convolved.split(self.parts_of_conv, -1)
        b, c = (t.unsqueeze(1).expand(-1, self.n_heads, -1, -1) for t in (b, c))
        return x.unflatten(2, (self.n_heads, -1)).transpose(1, 2), b, c

    def _decay(self, dt: Tensor) -> Tensor:
        return -self.log_a.exp().view(-1, 1, 1) * dt

    def _scanned(
        self, convolved: Tensor, dt: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """D x, S^T c, both (B, H, n, F / H), and the state after these tokens."""
        v, b, c = self._heads(convolved)
        S, y = scan(c, b, dt * v, self._decay(dt), state=state)
        return self.D.view(-1, 1, 1) * v, y, S

    def _merged(self, y: Tensor, z: Tensor) -> Tensor:
        """The gate, the norm, the last projection: (B, n, E) of y (B, H, n, F / H)."""
        y = y.transpose(1, 2).flatten(2) * F.silu(z)
        rms = (y.square().mean(-1, keepdim=True) + EPS).sqrt()
        return self.outward(self.gain * y / rms)

    def flops(self, x: Tensor, *_: Any) -> int:
        """Projections; for each direction a convolution, and 2 N F each to write and to read."""
        B, n = x.shape[:2]
        width, N = self.parts_of_conv[:2]
        linear = 2 * (self.inward.weight.numel() + self.outward.weight.numel())
        direction = 2 * self.conv.weight.numel() + 4 * N * width
        return B * n * (linear + (1 if self.causal else 2) * direction)

    def elementwise(self, x: Tensor, *_: Any) -> int:
        """A state of N F numbers fades at each token, in each direction."""
        width, N = self.parts_of_conv[:2]
        return (1 if self.causal else 2) * len(x) * x.shape[1] * N * width
