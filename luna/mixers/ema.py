"""EMA: exponential moving averages of every channel, several for each, in both directions: the
first part of Mega. Ma et al. (2022), https://arxiv.org/abs/2209.10655

    u = W_u x     p = sigmoid(delta), a = sigmoid(alpha), r = 1 - p a in (0, 1)
    s_t = r s_(t-1) + p beta u_t     N averages of a channel, each one number
    K[l] = N^(-1/2) sum_m gamma_m p_m beta_m r_m^l     = N^(-1/2) gamma . s after an impulse
    y_i = sum_(j <= i) K[i - j] u_j + sum_(j > i) K'[j - i] u_j
    out = W_o silu(y + omega u)

K' has parameters of its own, all of them. In the authors' code both kernels have a lag 0
(`lag0=twice`, preset `published`); then the last row of a prefix is not that of the causal form,
so here it counts once. Mega has its averages between its norm and its gates, without W_u and W_o.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError, Mask, Mixer, Paper, Place, Traits, at_least, register
from luna.diagonal import convolve, kernel, run

Lag0 = Literal["once", "twice"]


class Averages(nn.Module):
    """The parameters of one direction, each (E, N), as the authors draw them: a memory of about
    four tokens, and signs that alternate."""

    def __init__(self, channels: int, dims: int):
        super().__init__()
        signs = torch.tensor([1.0, -1.0]).repeat(dims)[:dims]
        self.delta = nn.Parameter(0.2 * torch.randn(channels, dims))
        self.alpha = nn.Parameter(0.2 * torch.randn(channels, dims))
        self.beta = nn.Parameter(signs + 0.02 * torch.randn(channels, dims))
        self.gamma = nn.Parameter(torch.randn(channels, dims))

    def system(self) -> tuple[Tensor, Tensor, Tensor]:
        """log r, what a token gives to an average, and what the output takes from it, all (E, N).
        r = 1 - p + p (1 - a), a sum that does not round to 0."""
        kept = F.logsigmoid(self.delta) + F.logsigmoid(-self.alpha)
        log_r = torch.logaddexp(F.logsigmoid(-self.delta), kept)
        taken = self.gamma * self.gamma.shape[1] ** -0.5
        return log_r, self.delta.sigmoid() * self.beta, taken

    def kernel(self, n: int) -> Tensor:
        """K (E, n)."""
        log_r, given, taken = self.system()
        return kernel(given * taken, log_r, n)


class MovingAverages(nn.Module):
    """silu(y + omega u), (B, n, E), of tokens u like it, which are 0 at padding: a token that adds
    nothing, while time goes on."""

    def __init__(self, name: str, place: Place, dims: int, lag0: Lag0):
        super().__init__()
        at_least(name, 1, dims=dims)
        if place.causal and lag0 == "twice":
            raise LunaError(
                f"{name}.lag0='twice' counts a token in both directions and has no causal form: "
                "use lag0='once'"
            )
        self.lag0, self.causal = lag0, place.causal
        self.ahead = Averages(place.d_model, dims)
        if not place.causal:
            self.behind = Averages(place.d_model, dims)
        self.omega = nn.Parameter(torch.randn(place.d_model))

    def forward(self, u: Tensor) -> Tensor:
        if self.causal:  # an FFT's rounding would carry later tokens into earlier outputs
            return self.after(None, u)[1]
        n = u.shape[1]
        back = self.behind.kernel(n + 1)
        y = convolve(u.mT, self.ahead.kernel(n), back[:, 1:]).mT
        if self.lag0 == "twice":
            y = y + back[:, 0] * u
        return F.silu(y + self.omega * u)

    def after(self, s: Tensor | None, u: Tensor) -> tuple[Tensor, Tensor]:
        """The averages s (B, E, N) after these tokens, which follow some, and their outputs."""
        s, y = run(u, *self.ahead.system(), s)
        return s, F.silu(y + self.omega * u)

    def cost(self, n: int) -> int:
        """Kernels (2 a multiply-add), 3 FFTs, a product of spectra."""
        E, directions = len(self.omega), 1 if self.causal else 2
        fft = E * (3 * 5 * n * math.ceil(math.log2(2 * n)) + 6 * (n + 1))
        return 2 * directions * self.ahead.gamma.numel() * n + fft


@register("ema")
class EMA(Mixer):
    title = "Moving averages (EMA)"
    family = "state space"
    marker = "o"
    paper = Paper(
        title="Mega: Moving Average Equipped Gated Attention",
        year=2022,
        url="https://arxiv.org/abs/2209.10655",
    )
    complexity = "O(n E (E + N + log n))"
    declared = Traits(causal_form=True, equivariant=False, holes_are_time=True)

    def __init__(self, place: Place, *, dims: int = 16, lag0: Lag0 = "once"):
        super().__init__(place)
        self.average = MovingAverages("ema", place, dims, lag0)
        E = place.d_model
        self.inward = nn.Linear(E, E, bias=False)  # so that u is 0 where x is: at padding
        self.outward = nn.Linear(E, E)

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        return self.outward(self.average(self.inward(x)))

    def mix_from(self, state: Any, x: Tensor, mask: Mask) -> tuple[Any, Tensor]:
        s, y = self.average.after(state and state[0], self.inward(x))
        return (s,), self.outward(y)

    def flops(self, x: Tensor, *_: Any) -> int:
        """With the projections."""
        B, n, E = x.shape
        return B * (4 * n * E * E + self.average.cost(n))
