"""LRU, the linear recurrent unit: one diagonal recurrence of complex numbers for all channels.
Orvieto et al. (2023), https://arxiv.org/abs/2303.06349

    lambda = exp(-e^nu + i e^theta)     N numbers inside the unit circle, whatever is learned
    s_t = lambda s_(t-1) + e^gamma B u_t     u = x, B complex (N, E)
    y_t = Re(C s_t) + d u_t     C complex (E, N)
    out_t = W_o gelu(y_t)     both ways: and Re(C' s'_(t+1)), s' running from the end

|lambda|^2 begins uniform between r_min^2 and r_max^2, the phase between 0 and `phase`, and gamma so
that e^(2 gamma) = 1 - |lambda|^2, with which a state of white noise is as large as its input. The
authors' block ends in a gated map in place of W_o (`output=glu`). They give the recurrence in one
direction; the other one shares lambda and B, as in S5, and knows the tokens behind alone, so that a
token counts once. Their learning rates of recurrent parameters are a fraction of the others'; here
those of lambda and gamma are at most 1e-3, as those of S4D.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError, Mask, Mixer, Paper, Place, Rate, Traits, at_least, register
from luna.diagonal import scan
from luna.surround import Output, cost, output_map

SMALLEST = 1e-6  # of what is drawn, whose logarithm is taken


@register("lru")
class LRU(Mixer):
    title = "LRU"
    family = "state space"
    marker = "P"
    paper = Paper(
        title="Resurrecting Recurrent Neural Networks for Long Sequences",
        year=2023,
        url="https://arxiv.org/abs/2303.06349",
    )
    complexity = "O(n E (E + N))"
    declared = Traits(causal_form=True, equivariant=False, holes_are_time=True)
    rates = dict.fromkeys(("nu", "theta", "gamma"), Rate(highest=1e-3, decay=False))

    def __init__(
        self,
        place: Place,
        *,
        state: int = 256,
        r_min: float = 0.0,
        r_max: float = 1.0,
        phase: float = 2 * math.pi,
        output: Output = "linear",
    ):
        super().__init__(place)
        at_least("lru", 1, state=state)
        if not 0 <= r_min < r_max <= 1:
            raise LunaError(
                f"lru begins with decays from r_min to r_max, which must rise within 0 and 1, got "
                f"r_min={r_min} and r_max={r_max}"
            )
        if not 0 < phase <= 2 * math.pi:
            raise LunaError(f"lru.phase must be greater than 0 and at most 2 pi, got {phase}")
        E, N = place.d_model, state
        # Real numbers alone, for .double() leaves complex parameters as they are.
        square = torch.empty(N).uniform_(r_min**2, r_max**2).clamp(SMALLEST, 1 - SMALLEST)
        self.nu = nn.Parameter((-0.5 * square.log()).log())
        self.theta = nn.Parameter(torch.empty(N).uniform_(0, phase).clamp_min(SMALLEST).log())
        self.gamma = nn.Parameter(0.5 * torch.log1p(-square))
        self.B = nn.Parameter(torch.randn(2, N, E) * (2 * E) ** -0.5)  # real and imaginary parts
        self.C = nn.Parameter(torch.randn(2, E, N) * N**-0.5)
        if not self.causal:
            self.C_back = nn.Parameter(torch.randn(2, E, N) * N**-0.5)
        self.d = nn.Parameter(torch.randn(E))
        self.outward = output_map(output, E)

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        """x (B, n, E), 0 at padding: a token that adds nothing, while time goes on."""
        if self.causal:
            return self.mix_from(None, x, mask)[1]
        v, z = self.system(x)
        y = taken(self.C, scan(v, z))
        back = taken(self.C_back, scan(v.flip(1), z)).flip(1)
        y = y + F.pad(back[:, 1:], (0, 0, 0, 1))
        return self.outward(F.gelu(y + self.d * x))

    def mix_from(self, state: Any, x: Tensor, mask: Mask) -> tuple[Any, Tensor]:
        """The state s (B, N) after these tokens, and their outputs."""
        s = scan(*self.system(x), None if state is None else state[0])
        return (s[:, -1],), self.outward(F.gelu(taken(self.C, s) + self.d * x))

    def system(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """e^gamma B u (B, n, N) and log lambda (N)."""
        real, imaginary = (u @ part.mT * self.gamma.exp() for part in self.B)
        return torch.complex(real, imaginary), torch.complex(-self.nu.exp(), self.theta.exp())

    def flops(self, x: Tensor, *_: Any) -> int:
        """Real maps to and from states, in each direction a complex multiply-add for each state,
        the last map."""
        B, n = x.shape[:2]
        directions = 1 if self.causal else 2
        states = (1 + directions) * self.B.numel() + 4 * directions * len(self.nu)
        return B * 2 * n * (states + cost(self.outward))


def taken(C: Tensor, s: Tensor) -> Tensor:
    """Re(C s), (B, n, E) of states s (B, n, N)."""
    return s.real @ C[0].mT - s.imag @ C[1].mT
