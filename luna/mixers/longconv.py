"""Long convolutions: a number for every lag and channel, without a recurrence. Fu et al. (2023),
https://arxiv.org/abs/2302.06646

    k = dropout(squash(K))     squash(a) = sign(a) max(|a| - threshold, 0), K (E, L) learned
    y_i = sum_(j <= i) k[i - j] u_j + sum_(j > i) k'[j - i] u_j + d u_i     u = x, L = max_len
    out_i = W_o gelu(y_i)

Squashing keeps most lags at 0, which smooths a kernel's spectrum; without it kernels of this length
overfit. K begins as N(0, 0.002^2), or as N(0, 0.02^2) times exp(-(l / L) (E / 2)^(c / E)) for the
channel c (`init=decay`): from slow to fast. The authors' block ends in a gated map in place of W_o
(`output=glu`). They have two kernels for every channel, where one is here, and look both ways on
Pathfinder and Path-X, elsewhere at the tokens before alone.

An FFT's rounding carries later tokens into earlier outputs. The causal form is a tree: each half of
a stretch of tokens is computed for itself, and an FFT of the first one adds what the second sees of
it, with O(n log(n)^2). It streams with all earlier inputs as its state, for a kernel has no shorter
one.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError, Mask, Mixer, Paper, Place, Rate, Traits, register
from luna.diagonal import CHUNK, convolve, triangle
from luna.dropout import dropout
from luna.surround import Output, cost, output_map


@register("longconv")
class LongConv(Mixer):
    title = "Long convolution"
    family = "convolution"
    marker = ">"
    paper = Paper(
        title="Simple Hardware-Efficient Long Convolutions for Sequence Modeling",
        year=2023,
        url="https://arxiv.org/abs/2302.06646",
    )
    complexity = "O(n E (E + log n))"
    declared = Traits(
        causal_form=True,
        equivariant=False,
        holes_are_time=True,
        bound_to_max_len=True,
        draws=True,
    )
    rates = dict.fromkeys(("K*",), Rate(highest=1e-3, decay=False))

    def __init__(
        self,
        place: Place,
        *,
        threshold: float = 0.003,
        kernel_dropout: float = 0.0,
        init: Literal["random", "decay"] = "random",
        output: Output = "linear",
    ):
        super().__init__(place)
        if threshold < 0:
            raise LunaError(f"longconv.threshold must be at least 0, got {threshold}")
        if not 0 <= kernel_dropout < 1:
            raise LunaError(f"longconv.kernel_dropout must be in [0, 1), got {kernel_dropout}")
        E, L = place.d_model, place.max_len
        self.threshold, self.kernel_dropout = threshold, kernel_dropout
        self.K = drawn(init, E, L)
        if not self.causal:
            self.K_back = nn.Parameter(drawn(init, E, L)[:, 1:].detach())  # a token has one lag 0
        self.d = nn.Parameter(torch.randn(E))
        self.outward = output_map(output, E)

    def _traits(self) -> Traits:
        return self.declared.but(draws=self.kernel_dropout > 0)

    def kernel(self, K: Tensor, n: int) -> Tensor:
        """k (E, n) of its first n lags, 0 where there are fewer."""
        squashed = F.softshrink(K[:, :n], self.threshold)
        k = dropout(squashed, self.kernel_dropout, self.training)
        return F.pad(k, (0, n - k.shape[1]))

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        """x (B, n, E), 0 at padding: a token that adds nothing, while time goes on."""
        if self.causal:
            return self.mix_from(None, x, mask)[1]
        n = x.shape[1]
        y = convolve(x.mT, self.kernel(self.K, n), self.kernel(self.K_back, n)).mT
        return self.outward(F.gelu(y + self.d * x))

    def mix_from(self, state: Any, x: Tensor, mask: Mask) -> tuple[Any, Tensor]:
        """All inputs (B, n, E), and the outputs of those that follow the state."""
        before = x[:, :0] if state is None else state[0]
        t, n = before.shape[1], x.shape[1]
        if t + n > self.max_len:
            raise LunaError(
                f"longconv was built for max_len={self.max_len} tokens and got {t + n}: build it "
                "with a larger max_len"
            )
        k = self.kernel(self.K, t + n)
        y = causally(x.mT, k)
        if t:
            y = y + following(before.mT, k)
        return (torch.cat([before, x], 1),), self.outward(F.gelu(y.mT + self.d * x))

    def flops(self, x: Tensor, *_: Any) -> int:
        """3 FFTs and a product of spectra for each channel, and the last map."""
        B, n, E = x.shape
        fft = E * (3 * 5 * n * math.ceil(math.log2(2 * n)) + 6 * (n + 1))
        return B * (fft + 2 * n * cost(self.outward))


def drawn(init: str, E: int, L: int) -> nn.Parameter:
    if init == "random":
        return nn.Parameter(0.002 * torch.randn(E, L))
    speed = (E / 2) ** (torch.arange(E).unsqueeze(1) / E)
    return nn.Parameter(0.02 * torch.randn(E, L) * (-speed * torch.arange(L) / L).exp())


def causally(u: Tensor, k: Tensor) -> Tensor:
    """Sums over j <= i of k[i - j] u_j for u (B, E, n) and k (E, n or more). No sum has later
    tokens in it, not even in the rounding of an FFT."""
    n = u.shape[-1]
    s = min(CHUNK, n)
    whole = s * 2 ** math.ceil(math.log2(-(-n // s)))
    u, k = F.pad(u, (0, whole - n)), F.pad(k[:, :n], (0, whole - n))
    y = torch.einsum("eij,bemj->bemi", triangle(k[:, :s]), u.unflatten(-1, (-1, s))).flatten(2)
    while s < whole:  # pairs of stretches of s tokens
        first = u.unflatten(-1, (-1, 2, s))[..., 0, :]  # (B, E, pairs, s)
        added = following(first, k[:, : 2 * s].unsqueeze(1))
        y = y + torch.stack([torch.zeros_like(added), added], -2).flatten(2)
        s *= 2
    return y[..., :n]


def following(u: Tensor, k: Tensor) -> Tensor:
    """What the tokens behind u (..., t) see of it, as many as k (..., T) has lags beyond t. On a
    circle of T places only the first t of the sums are mixed with others."""
    t, T = u.shape[-1], k.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(u, T) * torch.fft.rfft(k, T), T)[..., t:]
