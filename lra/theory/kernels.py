"""Kernels that the theorems speak of, from the feature maps of `luna`.

    k(x, y) = h(x) h(y) sum_l E psi_l(w . x) psi_l(w . y)     w ~ N(0, I)
    k_m(x, y) = (1 / m) sum_i X_i        X_i = h(x) h(y) sum_l psi_l(w_i . x) psi_l(w_i . y)

(w . x, w . y) is a pair of Gaussians with the covariance of x and y, so that k is a sum over
Hermite polynomials (Mehler's formula), c the cosine of x and y:

    k(x, y) = h(x) h(y) sum_n c^n <a_n(|x|), a_n(|y|)>     a_n(r) = E psi(r z) He_n(z) / sqrt(n!)

k_m comes from a map with `projections="gaussian"`. The M projections of a wide map are independent,
so that groups of m of them are M / m independent draws of k_m. Here h = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

import luna
from luna.attention.luna import FourierMap, Luna

Psi = Callable[[np.ndarray], np.ndarray]  # (n,) -> (n, L)
Array = np.ndarray

# The trapezoidal rule is exact to rounding for smooth psi, as Gauss-Hermite's is, and converges
# faster where psi has kinks (relu).
NODES = np.linspace(-8, 8, 2001)
WEIGHTS = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()
TERMS = 128  # of Mehler's sum
ENTRIES = 2**15  # of the table in which psi is looked up


def build(
    d: int,
    seed: int,
    *,
    dtype: torch.dtype = torch.float64,
    like: Luna | None = None,
    **options: Any,
) -> Luna:
    """LUNA with one head of width d, with the scalar functions of another LUNA if given."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        method = luna.build("luna", n_heads=1, head_dim=d, max_len=1, seed=seed, **options)
    assert isinstance(method, Luna)
    if like is not None:
        channels = method.map.get_submodule("channels")
        channels.load_state_dict(like.map.get_submodule("channels").state_dict())
    return method.to(dtype).eval()


@torch.no_grad()
def features(method: Luna, x: Array, keys: bool = False) -> Array:
    """phi(x): (n, d) -> (n, D)."""
    phi = method.phi_k if keys else method.phi_q
    dtype = next(iter(method.map.state_dict().values())).dtype
    return phi(torch.as_tensor(x, dtype=dtype)[None, None], None)[0, 0].double().numpy()


def terms(method: Luna, x: Array, y: Array) -> Array:
    """X_1..X_M of pairs x, y (P, d): (P, M)."""
    products = features(method, x) * features(method, y)  # (P, M L)
    if isinstance(method.map, FourierMap):  # all cosines, then all sines
        per_projection = products.reshape(len(x), 2, -1).sum(1)
    else:
        projections: Any = method.map.projections
        per_projection = products.reshape(len(x), projections.d_out, -1).sum(2)
    return per_projection * per_projection.shape[1]


def psi_of(method: Luna) -> Psi:
    """The scalar functions of a map."""
    if isinstance(method.map, FourierMap):
        scale = method.head_dim**-0.25
        return lambda u: np.stack([np.cos(scale * u), np.sin(scale * u)], -1)
    channels: Any = method.map.channels

    @torch.no_grad()
    def psi(u: Array) -> Array:
        return channels(torch.as_tensor(u)[None, None, :, None])[0, 0, :, 0].numpy()

    return psi


def geometry(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Norms of x and of y, and their cosine, for pairs (P, d)."""
    a, b = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
    return a, b, np.clip((x * y).sum(1) / (a * b), -1, 1)


def tabulated(psi: Psi, reach: float) -> Psi:
    """psi on [-reach, reach], looked up."""
    grid = np.linspace(-reach, reach, ENTRIES)
    table = psi(grid).T  # (L, ENTRIES)
    return lambda u: np.stack([np.interp(u, grid, row) for row in table], -1)


def population(psi: Psi, x: Array, y: Array) -> Array:
    """k of pairs x, y (P, d): (P,)."""
    a, b, cosine = geometry(x, y)
    psi = tabulated(psi, 8 * max(a.max(), b.max()))
    H = _hermite() * WEIGHTS  # (TERMS, nodes)
    at_x, at_y = (np.einsum("pzl,nz->pnl", psi(r[:, None] * NODES), H, optimize=True)
                  for r in (a, b))  # fmt: skip
    return ((at_x * at_y).sum(2) * cosine[:, None] ** np.arange(TERMS)).sum(1)


@cache
def _hermite() -> Array:
    """He_n / sqrt(n!) at the nodes."""
    found = [np.ones_like(NODES), NODES]
    for n in range(1, TERMS - 1):
        found.append((NODES * found[n] - n**0.5 * found[n - 1]) / (n + 1) ** 0.5)
    return np.array(found)


def bounds(psi: Psi) -> tuple[float, Array]:
    """sup |psi| and sup |psi_l'| of every l (L,), on a grid that reaches far out."""
    u = np.sinh(np.linspace(-10, 10, 20001))
    values = psi(u)
    slopes = np.diff(values, axis=0) / np.diff(u)[:, None]
    return float(np.linalg.norm(values, axis=1).max()), np.abs(slopes).max(0)


def ball(rng: np.random.Generator, n: int, d: int, radius: float) -> Array:
    """Points of the uniform distribution on a ball, (n, d)."""
    x = rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True) * radius * rng.random((n, 1)) ** (1 / d)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of y in x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
