"""S4D: a linear system with a diagonal complex matrix for every channel. Gu et al. (2022),
https://arxiv.org/abs/2206.11893

    s_t = e^z s_(t-1) + b u_t     z = dt A, b = (e^z - 1) / A (zero-order hold), u_t = W_u x_t
    y_t = 2 Re(c . s_t) + d u_t   N / 2 states, one of each pair of conjugates
    out_t = W_o gelu(y_t)         both ways: and 2 Re(c' . s'_(t+1)), s' running from the end
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError, Mask, Mixer, Paper, Place, Rate, Traits, register

CHUNK = 64  # of tokens in the causal form, and of lags; no result depends on it


def powers(z: Tensor, n: int) -> Tensor:
    """e^(z l) for l = 0 ... n - 1: (E, N / 2, n)."""
    lags = torch.arange(n, dtype=z.real.dtype, device=z.device)
    return torch.polar((z.real.unsqueeze(-1) * lags).exp(), z.imag.unsqueeze(-1) * lags)


def kernel(weights: Tensor, z: Tensor, n: int) -> Tensor:
    """2 Re(c b . e^(z l)), (E, n), of weights c b (E, N / 2): a Vandermonde product. With l a row
    and a column of a table its powers are products of few, and no tensor is (E, N / 2, n)."""
    rows = weights.unsqueeze(-1) * powers(CHUNK * z, -(-n // CHUNK))
    return 2 * (rows.mT @ powers(z, CHUNK)).real.flatten(1)[:, :n]


def convolve(u: Tensor, ahead: Tensor, back: Tensor) -> Tensor:
    """Sums over j <= i of ahead[i - j] u_j and over j > i of back[j - i - 1] u_j, for u (B, E, n)
    and kernels (E, n). A circle of 2 n places has room for both."""
    n = u.shape[-1]
    circle = torch.cat([ahead, back.flip(-1)], -1)
    return torch.fft.irfft(torch.fft.rfft(u, 2 * n) * torch.fft.rfft(circle), 2 * n)[..., :n]


@register("s4d")
class S4D(Mixer):
    paper = Paper(
        title="On the Parameterization and Initialization of Diagonal State Space Models",
        year=2022,
        url="https://arxiv.org/abs/2206.11893",
    )
    complexity = "O(n E (E + N + log n))"
    declared = Traits(causal_form=True, equivariant=False, holes_are_time=True)
    rates = dict.fromkeys(("log_dt", "log_decay", "frequency"), Rate(highest=1e-3, decay=False))

    def __init__(self, place: Place, *, state: int = 16):
        super().__init__(place)
        if state < 2 or state % 2:
            raise LunaError(f"s4d.state must be even and at least 2, got {state}")
        E, pairs = place.d_model, state // 2
        # Real numbers alone, for .double() leaves complex parameters as they are.
        self.log_dt = nn.Parameter(torch.empty(E).uniform_(math.log(1e-3), math.log(0.1)))
        self.log_decay = nn.Parameter(torch.full((E, pairs), math.log(0.5)))  # Re A = -1/2
        self.frequency = nn.Parameter(math.pi * torch.arange(pairs).float().repeat(E, 1))  # S4D-Lin
        self.c = nn.Parameter(torch.randn(E, pairs, 2) * math.sqrt(0.5))
        if not self.causal:
            self.c_back = nn.Parameter(torch.randn(E, pairs, 2) * math.sqrt(0.5))
        self.d = nn.Parameter(torch.randn(E))
        self.inward = nn.Linear(E, E, bias=False)  # so that u is 0 where x is: at padding
        self.outward = nn.Linear(E, E)

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        """x (B, n, E), 0 at padding: a token that adds nothing, while time goes on."""
        if self.causal:  # an FFT's rounding would carry later tokens into earlier outputs
            return self.mix_from(None, x, mask)[1]
        u, (z, b) = self.inward(x), self.system()
        both = (torch.view_as_complex(c) * b for c in (self.c, self.c_back))
        ahead, back = (kernel(weights, z, x.shape[1]) for weights in both)
        return self.outward(F.gelu(convolve(u.mT, ahead, back).mT + self.d * u))

    def mix_from(self, state: Any, x: Tensor, mask: Mask) -> tuple[Any, Tensor]:
        """The state s (B, E, N / 2) after these tokens, and their outputs, chunk by chunk."""
        u, (z, b), c = self.inward(x), self.system(), torch.view_as_complex(self.c)
        s = b.new_zeros(len(x), *b.shape) if state is None else state[0]
        length = min(CHUNK, x.shape[1])
        power, places = powers(z, length + 1), torch.arange(length, device=x.device)
        lag = places.unsqueeze(1) - places
        inside = kernel(c * b, z, length)[:, lag.clamp(min=0)].masked_fill(lag < 0, 0)  # (E, i, j)
        out = []
        for part in u.split(CHUNK, 1):
            n = part.shape[1]
            y = torch.einsum("eij,bje->bie", inside[:, :n, :n], part)
            out.append(y + 2 * torch.einsum("bem,emi->bie", s * c, power[..., 1 : n + 1]).real)
            fed = b.unsqueeze(-1) * power[..., :n].flip(-1)
            s = power[..., n] * s + torch.einsum("emi,bie->bem", fed, part.to(fed.dtype))
        return (s,), self.outward(F.gelu(torch.cat(out, 1) + self.d * u))

    def system(self) -> tuple[Tensor, Tensor]:
        """z and b, (E, N / 2). e^z - 1 is written without the cancellation of a small z."""
        A = torch.complex(-self.log_decay.exp(), self.frequency)
        z = self.log_dt.exp().unsqueeze(-1) * A
        real = torch.expm1(z.real) * z.imag.cos() - 2 * (z.imag / 2).sin().square()
        return z, torch.complex(real, z.real.exp() * z.imag.sin()) / A

    def flops(self, x: Tensor, *_: Any) -> int:
        """Projections, kernels (8 a complex multiply-add), 3 FFTs, a product of spectra."""
        B, n, E = x.shape
        kernels = 8 * (1 if self.causal else 2) * self.log_decay.numel() * n
        fft = E * (3 * 5 * n * math.ceil(math.log2(2 * n)) + 6 * (n + 1))
        return B * (4 * n * E * E + kernels + fft)
