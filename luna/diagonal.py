"""Linear systems with a diagonal matrix, one for every channel: what state spaces and moving
averages compute.

    s_t = e^z s_(t-1) + b u_t     N numbers, Re z <= 0, real or complex
    y_t = Re(c . s_t)             = sum_(j <= t) K[t - j] u_j with K[l] = Re sum_m c_m b_m e^(z_m l)

All at once they are convolutions with K, by FFT, in both directions. An FFT's rounding carries
later tokens into earlier outputs, so causal forms are computed in chunks, which a state links.

    B batch   n tokens   E channels   N numbers of a state   C tokens of a chunk   m chunks
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.scans import states_before

CHUNK = 64  # of tokens, and of lags; no result depends on it
SHORT = 16  # of tokens, where all states are wanted


def powers(z: Tensor, n: int) -> Tensor:
    """e^(z l) for l = 0 ... n - 1: (E, N, n)."""
    lags = torch.arange(n, dtype=z.real.dtype, device=z.device)
    size = (z.real.unsqueeze(-1) * lags).exp()
    if not z.is_complex():
        return size
    angle = z.imag.unsqueeze(-1) * lags
    # Not torch.polar: its gradient divides by the size, which becomes as small as a number can be,
    # and compiled it is then NaN.
    return torch.complex(size * angle.cos(), size * angle.sin())


def kernel(weights: Tensor, z: Tensor, n: int) -> Tensor:
    """K (E, n) of weights c b (E, N): a Vandermonde product. With l a row and a column of a table
    its powers are products of few, and no tensor is (E, N, n)."""
    C = min(CHUNK, n)
    rows = weights.unsqueeze(-1) * powers(C * z, -(-n // C))
    return (rows.mT @ powers(z, C)).real.flatten(1)[:, :n]


def convolve(u: Tensor, ahead: Tensor, back: Tensor) -> Tensor:
    """Sums over j <= i of ahead[i - j] u_j and over j > i of back[j - i - 1] u_j, for u (B, E, n)
    and kernels (E, n). A circle of 2 n places has room for both."""
    n = u.shape[-1]
    circle = torch.cat([ahead, back.flip(-1)], -1)
    return torch.fft.irfft(torch.fft.rfft(u, 2 * n) * torch.fft.rfft(circle), 2 * n)[..., :n]


def run(
    u: Tensor, z: Tensor, b: Tensor, c: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The state (B, E, N) after the tokens u (B, n, E), which follow `state`, and y (B, n, E), of
    z, b and c (E, N)."""
    n, C = u.shape[1], min(CHUNK, u.shape[1])
    if state is None:
        state = b.new_zeros(len(u), *b.shape)
    parts = F.pad(u, (0, 0, 0, -n % C)).unflatten(1, (-1, C))  # (B, m, C, E)
    power = powers(z, C + 1)
    fed = b.unsqueeze(-1) * power[..., :C].flip(-1)  # (E, N, j): what is left of token j at the end
    # All but the last chunk are full; what it adds is needed for the last state alone.
    own = torch.einsum("enj,bmje->bmen", fed, parts[:, :-1].to(fed.dtype))
    decay = power[..., C].expand_as(own)
    s = _before(own, decay, state)  # (B, m, E, N)
    y = torch.einsum("eij,bmje->bmie", triangle(kernel(c * b, z, C)), parts)
    y = y + torch.einsum("bmen,eni->bmie", s * c, power[..., 1:]).real

    left = n - (parts.shape[1] - 1) * C  # tokens of the last chunk
    last = torch.einsum("enj,bje->ben", fed[..., C - left :], parts[:, -1, :left].to(fed.dtype))
    return power[..., left] * s[:, -1] + last, y.flatten(1, 2)[:, :n]


def scan(v: Tensor, z: Tensor, state: Tensor | None = None) -> Tensor:
    """The states s_t = e^z s_(t-1) + v_t themselves, (B, n, N) of v like it and z (N), after
    `state` (B, N): for systems whose channels share states."""
    n, C = v.shape[1], min(SHORT, v.shape[1])
    if state is None:
        state = v.new_zeros(len(v), len(z))
    parts = F.pad(v, (0, 0, 0, -n % C)).unflatten(1, (-1, C))  # (B, m, C, N)
    power = powers(z, C + 1)
    s = torch.einsum("nij,bmjn->bmin", triangle(power[:, :C]), parts)
    own = s[:, :-1, -1:]
    before = _before(own, power[:, C].expand_as(own), state.unsqueeze(1))  # (B, m, 1, N)
    return (s + power[:, 1:].mT * before).flatten(1, 2)[:, :n]


def _before(own: Tensor, decay: Tensor, state: Tensor) -> Tensor:
    """The states before each chunk and after the last, of what m chunks add, (B, m, E, N)."""
    own, decay = (F.pad(t, (0, 0, 0, 0, 0, 1)).unsqueeze(1) for t in (own, decay))
    return states_before(own, decay, state.unsqueeze(1)).squeeze(1)


def triangle(K: Tensor) -> Tensor:
    """K[i - j] for j <= i, else 0: (E, i, j) of K (E, C)."""
    places = torch.arange(K.shape[1], device=K.device)
    lag = places.unsqueeze(1) - places
    return K[:, lag.clamp(min=0)].masked_fill(lag < 0, 0)
